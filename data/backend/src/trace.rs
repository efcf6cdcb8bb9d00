//! What became of requests, for whoever looks: a ring of one queue that its sidecore writes and anybody reads.
//!
//! Made by control and kept with the queue's counters, so that it stays when the queue moves, or is served anew. One
//! writes at a time: the [`Staged`](crate::Backend::Staged) back-end that has it. Readers have a [`Cursor`] each, and
//! slow nobody down: what they did not read in time is overwritten, and counted as lost.
//!
//! An entry is written between two stores of its sequence number, odd while that is done. A reader that sees it change
//! has read nothing (a seqlock; its fences are those of H.-J. Boehm, "Can seqlocks get along with programming language
//! memory models?", MSPC 2012). All else in it is relaxed atomics, so that no word is torn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use request::{Op, Status};

use crate::SECTOR_SIZE;

/// Entries of a ring at least: more than one piece of a visit takes requests.
pub const ENTRIES_MIN: u32 = 1_024;
/// Entries at most: 4 MiB for each queue.
pub const ENTRIES_MAX: u32 = 65_536;

/// What was asked, without what only a back-end needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Asked {
    /// Disk to guest.
    Read = 0,
    /// Guest to disk.
    Write = 1,
    /// Stable from here on.
    Flush = 2,
    /// No longer of interest.
    Discard = 3,
    /// Zeroes from here on.
    WriteZeroes = 4,
}

impl From<Op> for Asked {
    #[inline]
    fn from(op: Op) -> Asked {
        match op {
            Op::Read => Asked::Read,
            Op::Write { .. } => Asked::Write,
            Op::Flush => Asked::Flush,
            Op::Discard => Asked::Discard,
            Op::WriteZeroes { .. } => Asked::WriteZeroes,
        }
    }
}

/// A request that has ended. Times are those of the sidecore's passes: what is shorter than one is 0, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it was taken from its ring, nanoseconds of `CLOCK_MONOTONIC`.
    pub taken_ns: u64,
    /// First byte on the disk.
    pub offset: u64,
    /// Bytes of the disk concerned, whole sectors.
    pub len: u64,
    /// What was asked.
    pub asked: Asked,
    /// How it ended.
    pub status: Status,
    /// It may have waited in its ring for so long before, nanoseconds: since that was last found empty, or served, less
    /// `held_ns`.
    pub waited_ns: u64,
    /// Its queue was held by a limit for so long before, nanoseconds.
    pub held_ns: u64,
    /// From when it was taken until its medium had done it, nanoseconds.
    pub medium_ns: u64,
    /// From then until its guest was answered, nanoseconds: what stages made of it.
    pub stages_ns: u64,
}

/// Of one entry, 64 bytes: one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell {
    /// `2 * number + 1` while entry `number` is written, `2 * number + 2` afterwards; 0: none was.
    sequence: AtomicU64,
    taken_ns: AtomicU64,
    offset: AtomicU64,
    waited_ns: AtomicU64,
    held_ns: AtomicU64,
    medium_ns: AtomicU64,
    stages_ns: AtomicU64,
    /// Of 512 bytes.
    sectors: AtomicU32,
    /// [`Asked`], and above it the status.
    what: AtomicU32,
}

const _: () = assert!(size_of::<Cell>() == 64);

/// What one sidecore writes and others read.
#[derive(Debug)]
pub struct Ring {
    cells: Box<[Cell]>,
    /// Entries that were ever written.
    written: AtomicU64,
}

/// How far somebody has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u64);

impl Cursor {
    /// Its number, for who keeps it elsewhere.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The cursor of that number. Of one that is ahead of its ring nothing is read until that has come so far.
    pub fn at(number: u64) -> Cursor {
        Cursor(number)
    }
}

impl Ring {
    /// An empty one, of a power of two of entries within [`ENTRIES_MIN`] and [`ENTRIES_MAX`] that is not below
    /// `entries`.
    pub fn new(entries: u32) -> Arc<Ring> {
        let entries = entries.clamp(ENTRIES_MIN, ENTRIES_MAX).next_power_of_two();
        let cells = (0..entries).map(|_| Cell::default()).collect();
        Arc::new(Ring { cells, written: AtomicU64::new(0) })
    }

    /// How many entries it keeps.
    pub fn len(&self) -> u64 {
        self.cells.len() as u64
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.written.load(Ordering::Relaxed) == 0
    }

    /// Behind the newest entry: who begins there reads what comes.
    pub fn end(&self) -> Cursor {
        Cursor(self.written.load(Ordering::Acquire))
    }

    /// Reads what `cursor` has not, `entries_max` at most, oldest first, and hands each to `take`. How many were lost
    /// before or between.
    pub fn read(
        &self,
        cursor: &mut Cursor,
        entries_max: usize,
        mut take: impl FnMut(Entry),
    ) -> u64 {
        let written = self.written.load(Ordering::Acquire);
        let oldest = written.saturating_sub(self.len());
        let mut lost = oldest.saturating_sub(cursor.0);
        cursor.0 = cursor.0.max(oldest);
        let until = written.min(cursor.0.saturating_add(entries_max as u64));
        while cursor.0 < until {
            match self.entry(cursor.0) {
                Some(entry) => take(entry),
                None => lost += 1,
            }
            cursor.0 += 1;
        }
        lost
    }

    fn cell(&self, number: u64) -> Option<&Cell> {
        // A power of two.
        let mask = self.len().wrapping_sub(1);
        self.cells.get((number & mask) as usize)
    }

    fn entry(&self, number: u64) -> Option<Entry> {
        let cell = self.cell(number)?;
        let expected = number.wrapping_mul(2).wrapping_add(2);
        if cell.sequence.load(Ordering::Acquire) != expected {
            return None;
        }
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let what = cell.what.load(Ordering::Relaxed);
        let len = u64::from(cell.sectors.load(Ordering::Relaxed)) * SECTOR_SIZE;
        let (taken_ns, offset) = (load(&cell.taken_ns), load(&cell.offset));
        let (waited_ns, held_ns) = (load(&cell.waited_ns), load(&cell.held_ns));
        let (medium_ns, stages_ns) = (load(&cell.medium_ns), load(&cell.stages_ns));
        fence(Ordering::Acquire);
        if cell.sequence.load(Ordering::Relaxed) != expected {
            return None;
        }
        let (asked, status) = unpacked(what)?;
        Some(Entry {
            taken_ns,
            offset,
            len,
            asked,
            status,
            waited_ns,
            held_ns,
            medium_ns,
            stages_ns,
        })
    }
}

/// The writer's side of a ring, for one queue.
#[derive(Debug)]
pub struct Tracer {
    ring: Arc<Ring>,
    /// The number of the next entry.
    next: u64,
    /// Of those before it, so many are written and not shown: when they ended is not known yet.
    pending: u32,
}

impl Tracer {
    /// Goes on where the ring's last writer ended.
    pub fn new(ring: Arc<Ring>) -> Tracer {
        let next = ring.written.load(Ordering::Relaxed);
        Tracer { ring, next, pending: 0 }
    }

    /// Goes on behind what another writer has added since this one was made, which has ended.
    pub(crate) fn go_on(&mut self) {
        self.next = self.ring.written.load(Ordering::Relaxed);
    }

    /// Writes an entry that has ended, and shows it. What is pending is shown first: it ended by now, and this entry has an
    /// end of its own.
    pub fn add(&mut self, entry: &Entry, now_ns: u64) {
        if self.pending > 0 {
            self.show(now_ns);
        }
        self.write(entry);
        self.next += 1;
        self.show(now_ns);
    }

    /// Writes one that ends in this piece of a visit. Its end is told by [`Self::show`].
    #[inline]
    pub(crate) fn add_pending(&mut self, entry: &Entry) {
        self.write(entry);
        self.next += 1;
        self.pending += 1;
    }

    /// All that is pending ended by `now_ns`.
    pub(crate) fn show(&mut self, now_ns: u64) {
        for back in 1..=u64::from(std::mem::take(&mut self.pending)) {
            let Some(cell) = self.ring.cell(self.next.wrapping_sub(back)) else { continue };
            let taken_ns = cell.taken_ns.load(Ordering::Relaxed);
            cell.medium_ns.store(now_ns.saturating_sub(taken_ns), Ordering::Relaxed);
        }
        self.ring.written.store(self.next, Ordering::Release);
    }

    #[inline]
    fn write(&self, entry: &Entry) {
        let Some(cell) = self.ring.cell(self.next) else { return };
        let number = self.next.wrapping_mul(2);
        cell.sequence.store(number.wrapping_add(1), Ordering::Relaxed);
        // No reader that sees what follows still sees the number of what was there.
        fence(Ordering::Release);
        cell.taken_ns.store(entry.taken_ns, Ordering::Relaxed);
        cell.offset.store(entry.offset, Ordering::Relaxed);
        let sectors = u32::try_from(entry.len.div_ceil(SECTOR_SIZE)).unwrap_or(u32::MAX);
        cell.sectors.store(sectors, Ordering::Relaxed);
        cell.waited_ns.store(entry.waited_ns, Ordering::Relaxed);
        cell.held_ns.store(entry.held_ns, Ordering::Relaxed);
        cell.medium_ns.store(entry.medium_ns, Ordering::Relaxed);
        cell.stages_ns.store(entry.stages_ns, Ordering::Relaxed);
        cell.what.store(packed(entry.asked, entry.status), Ordering::Relaxed);
        cell.sequence.store(number.wrapping_add(2), Ordering::Release);
    }
}

#[inline]
fn packed(asked: Asked, status: Status) -> u32 {
    asked as u32 | (status as u32) << 8
}

fn unpacked(what: u32) -> Option<(Asked, Status)> {
    let asked = match what & 0xff {
        0 => Asked::Read,
        1 => Asked::Write,
        2 => Asked::Flush,
        3 => Asked::Discard,
        4 => Asked::WriteZeroes,
        _ => return None,
    };
    let status = match what >> 8 {
        0 => Status::Ok,
        1 => Status::IoError,
        2 => Status::Unsupported,
        _ => return None,
    };
    Some((asked, status))
}

#[cfg(test)]
mod tests;
