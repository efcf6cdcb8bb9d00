//! The record of a packed ring: a copy of every descriptor taken, because the ring's own may be
//! overwritten by used elements before the chain is completed.
//!
//! Header: free head and its old value at 12 and 14; used index and its old value at 16 and 18, used
//! lap and its old value at 20 and 21. Then 32 bytes for each entry: in flight at 0, next at 2, last
//! at 4, num at 6, counter at 8, and the descriptor's id, flags, length and address at 16, 18, 20
//! and 24. Entries that belong to no chain are in the free list, whose end is any number that is no
//! entry.
//!
//! # Where this is stricter than the specification
//!
//! - The free list changes when completions are shown, not at each one. The specification takes
//!   new chains from the same list, and its `old_free_head` would then commit completions that
//!   the guest has not seen; after a crash they would be lost.
//! - The pairs of new and old values are each one store, and laps are compared as well as indices:
//!   a batch that fills the ring leaves the index where it was.
//! - Used elements beyond the first are written to the ring before the batch is shown. After a crash
//!   they are taken back ([`PackedRecord::recover`]), or the next process's first completion would
//!   show them too.

use super::Inflight;
use crate::layout::NEXT;
use crate::packed::{Place, descriptor, is_available, take_back};
use crate::shared::Shared;
use crate::violation::SetupError;
use crate::walk::Descriptor;

pub(super) const HEADER: usize = 32;
pub(super) const STATE: usize = 32;

const FREE_HEADS: usize = 12;
const FREE_HEAD: usize = 12;
const OLD_FREE_HEAD: usize = 14;
const USED_PLACES: usize = 16;

const STATE_NEXT: usize = 2;
const STATE_LAST: usize = 4;
const STATE_NUM: usize = 6;
const STATE_COUNTER: usize = 8;
const STATE_ID: usize = 16;
const STATE_FLAGS: usize = 18;
const STATE_LEN: usize = 20;
const STATE_ADDRESS: usize = 24;

#[derive(Debug)]
pub(crate) struct PackedRecord {
    area: Shared,
    size: u16,
    /// Order of submission, one for each chain taken.
    counter: u64,
    /// By entry: the next one of its chain or of the free list, as in the record.
    next: Vec<u16>,
    /// By first entry of a chain: its last one.
    last: Vec<u16>,
    free_head: u16,
    /// Entries in the free list.
    free: u16,
    /// Where the next completion that is shown goes.
    used: Place,
    /// First entries of chains completed since the last publish.
    batch: Vec<u16>,
    /// Entries of all those chains.
    batch_entries: u16,
    /// First entries of chains that an earlier process took and did not complete; the next one
    /// last.
    resubmit: Vec<u16>,
}

impl PackedRecord {
    /// What an earlier process left, and where it had come to: the next available and the next used
    /// place. A fresh record adopts `next` and `used`. Takes back from the ring what was
    /// completed and not shown.
    ///
    /// # Errors
    /// [`SetupError::InflightContradiction`] when the record cannot be what any process left.
    pub(crate) fn recover(
        inflight: Inflight,
        ring: &Shared,
        next: Place,
        used: Place,
    ) -> Result<(PackedRecord, Place), SetupError> {
        let size = inflight.size;
        let mut record = PackedRecord {
            area: inflight.area.clone(),
            size,
            counter: 0,
            next: (1..=size).collect(),
            last: vec![0; size.into()],
            free_head: 0,
            free: size,
            used,
            batch: Vec::with_capacity(size.into()),
            batch_entries: 0,
            resubmit: Vec::new(),
        };
        if inflight.fresh {
            inflight.clear();
            record.write_free_list();
            record.write_used_places(used, used);
            inflight.begun();
            return Ok((record, next));
        }
        record.settle_batch(ring)?;
        let entries = record.find_left()?;
        record.write_free_list();
        take_back_used(ring, record.used, entries, size);
        let next = record.used.after(entries, size);
        Ok((record, next))
    }

    /// The batch that was being shown was seen, and is finished, or was not, and did not happen.
    /// Then nothing in the free list is in flight.
    fn settle_batch(&mut self, ring: &Shared) -> Result<(), SetupError> {
        let (used, old) = self.read_used_places();
        if used.index >= self.size || old.index >= self.size {
            return Err(SetupError::InflightContradiction("a used index"));
        }
        let shown = used != old && !is_available(ring, old);
        self.used = if shown { used } else { old };
        let kept = if shown { FREE_HEAD } else { OLD_FREE_HEAD };
        let free_head = self.area.load_u16(kept);
        self.write_free_heads(free_head, free_head);
        self.write_used_places(self.used, self.used);
        let mut entry = free_head;
        for _ in 0..self.size {
            if entry >= self.size {
                break;
            }
            self.area.store_u8(state(entry), 0);
            entry = self.area.load_u16(state(entry) + STATE_NEXT);
        }
        Ok(())
    }

    /// Finds the chains in flight, and makes a free list of all else. Says how many ring entries
    /// the chains took.
    fn find_left(&mut self) -> Result<u16, SetupError> {
        let mut owned = vec![false; self.size.into()];
        let mut left = Vec::new();
        for first in 0..self.size {
            if self.area.load_u8(state(first)) == 1 {
                self.follow(first, &mut owned)?;
                left.push((self.area.load_u64(state(first) + STATE_COUNTER), first));
            }
        }
        left.sort_unstable_by(|a, b| b.cmp(a));
        self.counter = left.first().map_or(0, |(counter, _)| counter.wrapping_add(1));
        self.resubmit = left.into_iter().map(|(_, first)| first).collect();
        (self.free_head, self.free) = (self.size, 0);
        for entry in (0..self.size).rev().filter(|entry| !owned[usize::from(*entry)]) {
            self.next[usize::from(entry)] = self.free_head;
            self.free_head = entry;
            self.free += 1;
        }
        Ok(self.size - self.free)
    }

    /// Follows the chain that starts at `first`; each entry belongs to one chain.
    fn follow(&mut self, first: u16, owned: &mut [bool]) -> Result<(), SetupError> {
        let entries = self.area.load_u16(state(first) + STATE_NUM);
        if entries == 0 || entries > self.size {
            return Err(SetupError::InflightContradiction("a chain's length"));
        }
        let mut entry = first;
        for place in 0..entries {
            match owned.get_mut(usize::from(entry)) {
                Some(taken) if !*taken => *taken = true,
                _ => return Err(SetupError::InflightContradiction("a chain's entries")),
            }
            self.last[usize::from(first)] = entry;
            if place + 1 < entries {
                let next = self.area.load_u16(state(entry) + STATE_NEXT);
                self.next[usize::from(entry)] = next;
                entry = next;
            }
        }
        Ok(())
    }

    /// The first entry of the chain to submit again next.
    #[inline]
    pub(crate) fn next_left(&self) -> Option<u16> {
        self.resubmit.last().copied()
    }

    /// How many chains are left to submit again.
    pub(crate) fn left(&self) -> u16 {
        self.resubmit.len() as u16
    }

    /// The chain that `next_left` gave is taken. It is in the record already, and keeps its place
    /// in the order.
    #[inline]
    pub(crate) fn take_left(&mut self) -> Option<u16> {
        self.resubmit.pop()
    }

    /// Where the next completion goes.
    pub(crate) fn used(&self) -> Place {
        self.used
    }

    /// Entries that a new chain can have.
    #[inline]
    pub(crate) fn free(&self) -> u16 {
        self.free
    }

    /// The recorded descriptors of the chain that starts at entry `first`, each with whether it is
    /// the last. As hostile as the ring's own.
    pub(crate) fn descriptors(&self, first: u16) -> impl Iterator<Item = (Descriptor, bool)> {
        let last = self.last[usize::from(first)];
        let mut entry = Some(first);
        std::iter::from_fn(move || {
            let at = state(entry?);
            let is_last = entry == Some(last);
            entry = entry.filter(|_| !is_last).map(|entry| self.next[usize::from(entry)]);
            let found = Descriptor {
                gpa: self.area.load_u64(at + STATE_ADDRESS),
                len: self.area.load_u32(at + STATE_LEN),
                flags: self.area.load_u16(at + STATE_FLAGS),
                next: self.area.load_u16(at + STATE_ID),
            };
            Some((found, is_last))
        })
    }

    /// A chain of `entries` (at most [`Self::free`]) with buffer id `id` is being taken from `place`
    /// of the ring. Gives the entry that stands for it. What the guest writes in its descriptors
    /// meanwhile is checked when they are read from here.
    pub(crate) fn taken(&mut self, ring: &Shared, place: Place, id: u16, entries: u16) -> u16 {
        let first = self.free_head;
        let head = state(first);
        self.area.store_u16(head + STATE_NUM, 0);
        self.area.store_u64(head + STATE_COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.area.store_u8(head, 1);
        let mut entry = first;
        for done in 0..entries {
            let is_last = done + 1 == entries;
            if is_last {
                self.area.store_u16(head + STATE_LAST, entry);
                self.last[usize::from(first)] = entry;
            }
            self.area.store_u16(head + STATE_NUM, done + 1);
            let found = descriptor(ring, place.after(done, self.size));
            let next = if is_last { 0 } else { NEXT };
            let at = state(entry);
            self.area.store_u64(at + STATE_ADDRESS, found.gpa);
            self.area.store_u32(at + STATE_LEN, found.len);
            self.area.store_u16(at + STATE_FLAGS, found.flags & !NEXT | next);
            self.area.store_u16(at + STATE_ID, id);
            entry = self.next[usize::from(entry)];
        }
        self.free_head = entry;
        self.free -= entries;
        self.write_free_heads(entry, entry);
        first
    }

    /// The chain of `entries` that entry `first` stands for was completed; the guest does not see
    /// it yet.
    #[inline]
    pub(crate) fn completed(&mut self, first: u16, entries: u16) {
        self.batch.push(first);
        self.batch_entries += entries;
    }

    /// The batch is about to be shown; after it the next used place is `used`.
    pub(crate) fn before_publish(&mut self, used: Place) {
        if self.batch.is_empty() {
            return;
        }
        for first in &self.batch {
            let last = self.last[usize::from(*first)];
            self.area.store_u16(state(last) + STATE_NEXT, self.free_head);
            self.next[usize::from(last)] = self.free_head;
            self.free_head = *first;
            self.area.store_u16(FREE_HEAD, self.free_head);
        }
        self.free += std::mem::take(&mut self.batch_entries);
        self.write_used_places(used, self.used);
        self.used = used;
    }

    /// The guest sees the batch: it is no longer in flight.
    pub(crate) fn published(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        for first in self.batch.drain(..) {
            self.area.store_u8(state(first), 0);
        }
        self.write_free_heads(self.free_head, self.free_head);
        self.write_used_places(self.used, self.used);
    }

    /// The whole free list. The links first: until its head is written, the list that is there
    /// names free entries only.
    fn write_free_list(&self) {
        let mut entry = self.free_head;
        for _ in 0..self.free {
            let next = self.next[usize::from(entry)];
            self.area.store_u16(state(entry) + STATE_NEXT, next);
            entry = next;
        }
        self.write_free_heads(self.free_head, self.free_head);
    }

    fn write_free_heads(&self, now: u16, old: u16) {
        self.area.store_u32(FREE_HEADS, u32::from(now) | u32::from(old) << 16);
    }

    fn write_used_places(&self, now: Place, old: Place) {
        let indices = u64::from(now.index) | u64::from(old.index) << 16;
        let laps = u64::from(now.lap) << 32 | u64::from(old.lap) << 40;
        self.area.store_u64(USED_PLACES, indices | laps);
    }

    fn read_used_places(&self) -> (Place, Place) {
        let bits = self.area.load_u64(USED_PLACES);
        let place = |index: u64, lap: u64| Place { index: index as u16, lap: lap as u8 != 0 };
        (place(bits, bits >> 32), place(bits >> 16, bits >> 40))
    }
}

/// Makes the `entries` of the ring from `used` on unused again: their chains will be completed anew,
/// in another order maybe.
fn take_back_used(ring: &Shared, used: Place, entries: u16, size: u16) {
    for offset in 0..entries {
        take_back(ring, used.after(offset, size));
    }
}

#[inline]
fn state(entry: u16) -> usize {
    HEADER + STATE * usize::from(entry)
}
