//! Copies of what was written and has not been flushed, in the order in which it was answered: of what a machine that
//! died takes along.
//!
//! Not when they are sent again (`replay`). Nothing is allocated once it is made; memory that is never used is
//! never touched.

use std::collections::VecDeque;

use crate::saved::{BadSaved, Reader, Writer};
use crate::wire::Op;

/// Bytes for which there is an entry, on average: who writes less at a time has fewer bytes kept.
const ENTRY_BYTES: usize = 2048;

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) len: u32,
    /// How many writes had been answered, with this one: a flush that covers so many has made it stable.
    number: u64,
    /// Where its bytes begin, counted from the first that ever came.
    at: u64,
}

impl Entry {
    fn bytes(&self) -> usize {
        if self.op.has_data() { self.len as usize } else { 0 }
    }
}

/// The copies.
#[derive(Debug)]
pub(super) struct Kept {
    ring: Box<[u8]>,
    /// Bytes that ever came, and that were forgotten.
    put: u64,
    gone: u64,
    entries: VecDeque<Entry>,
    entries_max: usize,
    /// Stable ones that came since there was none.
    stable: usize,
    /// Of the writes that were answered, all after this one are here or were flushed.
    since: u64,
}

impl Kept {
    /// For `bytes`; what was answered up to the write `since` is not here.
    pub(super) fn new(bytes: usize, since: u64) -> Kept {
        let entries_max = (bytes / ENTRY_BYTES).max(8);
        let entries = VecDeque::with_capacity(entries_max);
        Kept {
            ring: vec![0; bytes].into(),
            put: 0,
            gone: 0,
            entries,
            entries_max,
            stable: 0,
            since,
        }
    }

    /// Whether all that was answered and not flushed is here.
    pub(super) fn is_whole(&self, flushed: u64) -> bool {
        self.since <= flushed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether more than one part in `parts` is used, with so many bytes that are on their way.
    pub(super) fn is_beyond(&self, parts: usize, promised: u64) -> bool {
        let used = self.put - self.gone + promised;
        used > (self.ring.len() / parts) as u64 || self.entries.len() > self.entries_max / parts
    }

    /// One that was answered as the write `number`. When there is no room all are forgotten.
    pub(super) fn push(&mut self, (op, offset, len): (Op, u64, u32), data: &[u8], number: u64) {
        let free = self.ring.len() - (self.put - self.gone) as usize;
        if data.len() > free || self.entries.len() == self.entries_max {
            self.forget_all(number);
            return;
        }
        let at = self.put;
        self.stable += usize::from(op.is_stable());
        self.entries.push_back(Entry { op, offset, len, number, at });
        let start = (at % self.ring.len().max(1) as u64) as usize;
        let first = data.len().min(self.ring.len() - start);
        self.ring[start..start + first].copy_from_slice(&data[..first]);
        self.ring[..data.len() - first].copy_from_slice(&data[first..]);
        self.put += data.len() as u64;
    }

    /// All up to the write `flushed` is stable.
    pub(super) fn forget(&mut self, flushed: u64) {
        while let Some(entry) = self.entries.front().filter(|entry| entry.number <= flushed) {
            self.gone = entry.at + entry.bytes() as u64;
            self.entries.pop_front();
        }
        self.begin_anew_if_empty();
    }

    /// So that memory which is used seldom stays little.
    fn begin_anew_if_empty(&mut self) {
        if self.entries.is_empty() {
            (self.put, self.gone, self.stable) = (0, 0, 0);
        }
    }

    /// Whatever was answered up to the write `since` may be gone, and is not here.
    pub(super) fn forget_all(&mut self, since: u64) {
        self.entries.clear();
        self.since = since;
        self.begin_anew_if_empty();
    }

    /// Whether something stable that came later lies on all of this entry, which must not come before it again. The
    /// newest ones are looked at first, each for one of `steps`; `None` when there are no more of these.
    pub(super) fn is_covered(&self, index: usize, steps: &mut u32) -> Option<bool> {
        let Some(one) = self.entry(index).filter(|_| self.stable > 0) else { return Some(false) };
        let end = |entry: &Entry| entry.offset.saturating_add(entry.len.into());
        let covers = |other: &Entry| {
            other.op.is_stable() && other.offset <= one.offset && end(&one) <= end(other)
        };
        for other in self.entries.iter().skip(index + 1).rev() {
            *steps = steps.checked_sub(1)?;
            if covers(other) {
                return Some(true);
            }
        }
        Some(false)
    }

    pub(super) fn entry(&self, index: usize) -> Option<Entry> {
        self.entries.get(index).copied()
    }

    /// Puts all of it behind what was written.
    pub(super) fn save(&self, out: &mut Writer<'_>) {
        out.u64(self.since);
        out.u32(self.entries.len() as u32);
        let mut bytes = Vec::new();
        for entry in &self.entries {
            let [op, flags] = entry.op.code();
            out.u8(op);
            out.u8(flags);
            out.u64(entry.offset);
            out.u32(entry.len);
            out.u64(entry.number);
            bytes.resize(entry.bytes(), 0);
            self.read(entry, &mut bytes);
            out.bytes(&bytes);
        }
    }

    /// What [`Kept::save`] has put there: for `bytes`, of writes of up to `longest` bytes, `written` of them.
    pub(super) fn take_over(
        bytes: usize,
        longest: u32,
        written: u64,
        saved: &mut Reader<'_>,
    ) -> Result<Kept, BadSaved> {
        let mut kept = Kept::new(bytes, saved.count()?);
        let count = saved.u32()? as usize;
        if count > kept.entries_max || kept.since > written {
            return Err(BadSaved::Field);
        }
        let mut before = 0;
        for _ in 0..count {
            let op = Op::parse([saved.u8()?, saved.u8()?]).map_err(|_| BadSaved::Field)?;
            let (offset, len, number) = (saved.u64()?, saved.u32()?, saved.count()?);
            let is_kept = op.is_volatile() || op.is_stable() && op != Op::Flush;
            let fits = !op.has_data() || (1..=longest).contains(&len);
            let free = kept.ring.len() - (kept.put - kept.gone) as usize;
            if !is_kept || !fits || number < before || number > written {
                return Err(BadSaved::Field);
            }
            let data = saved.bytes(if op.has_data() { len as usize } else { 0 })?;
            if data.len() > free {
                return Err(BadSaved::Field);
            }
            before = number;
            kept.push((op, offset, len), data, number);
        }
        Ok(kept)
    }

    /// The bytes of an entry.
    pub(super) fn read(&self, entry: &Entry, into: &mut [u8]) {
        let start = (entry.at % self.ring.len().max(1) as u64) as usize;
        let first = into.len().min(self.ring.len() - start);
        let (one, other) = into.split_at_mut(first);
        one.copy_from_slice(&self.ring[start..start + first]);
        other.copy_from_slice(&self.ring[..other.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Op = Op::Write { sync: false };

    fn bytes_of(kept: &Kept, index: usize) -> Option<Vec<u8>> {
        let entry = kept.entry(index)?;
        let mut bytes = vec![0; entry.bytes()];
        kept.read(&entry, &mut bytes);
        Some(bytes)
    }

    #[test]
    fn what_is_kept_comes_back_around_the_end_of_the_ring() {
        let mut kept = Kept::new(16 << 10, 0);
        for number in 1..1000_u64 {
            let data = vec![number as u8; 1 + number as usize * 37 % 5000];
            kept.push((WRITE, number, data.len() as u32), &data, number);
            kept.push((Op::Discard, number, 1 << 20), &[], number);
            assert!(kept.is_whole(0) && kept.entry(4).is_none());
            assert_eq!(bytes_of(&kept, 0).as_deref(), Some(&data[..]));
            assert_eq!(bytes_of(&kept, 1).as_deref(), Some(&[][..]));
            kept.forget(number - 1);
            assert_eq!(bytes_of(&kept, 0).as_deref(), Some(&data[..]));
            kept.forget(number);
            assert!(kept.is_empty() && !kept.is_beyond(1 << 20, 0));
        }
    }

    #[test]
    fn what_finds_no_room_makes_it_incomplete_until_a_flush() {
        for (len, count) in [(4096, 2), (1, 8), (0, 8)] {
            let mut kept = Kept::new(8192, 0);
            for number in 1..=count {
                kept.push((WRITE, 0, len), &vec![7; len as usize], number);
            }
            assert!(kept.is_whole(0) && kept.is_beyond(2, 0) && !kept.is_empty());
            kept.push((WRITE, 0, len.max(1)), &vec![7; len.max(1) as usize], count + 1);
            assert!(!kept.is_whole(count) && kept.is_whole(count + 1) && kept.is_empty());
            kept.push((WRITE, 0, 8192), &[8; 8192], count + 2);
            assert_eq!(bytes_of(&kept, 0), Some(vec![8; 8192]));
        }
    }
}
