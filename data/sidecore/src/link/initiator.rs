//! The driver's side of the ring of one attachment: requests of a client become chains of virtio-blk.
//!
//! Not a guest's driver and not `virtqueue::driver`, which tests have: one chain for each slot, prepared when the
//! attachment is made, so that a request is a few stores. The other side is this daemon too, and on the same
//! thread: no store needs a fence. Still no index of the used ring makes it panic, end a slot twice or forget
//! one: what is nonsense is counted and passed over. Called by `host`.

use remote::wire::{Op, Status};

use super::memory::{AttachmentMemory, CHAIN, Layout};
use guest_memory::Area;

const DESCRIPTOR_BYTES: usize = 16;
const NEXT: u64 = 1 << 32;
const WRITE: u64 = 2 << 32;
const NEXT_SHIFT: u32 = 48;
const INDEX: usize = 2;
const RING: usize = 4;
/// In the available ring: no calls. In the used ring: no kicks.
const NO_NOTIFY: u16 = 1;

/// In a slot's line: the header, of a discard its range behind it, and the status.
const SECTOR_AT: usize = 8;
const RANGE_AT: usize = 16;
const STATUS_AT: usize = 32;
const HEADER_BYTES: u64 = 16;
const RANGE_BYTES: u64 = 16;

const SECTOR_BYTES: u32 = 512;
const TYPE_IN: u32 = 0;
const TYPE_OUT: u32 = 1;
const TYPE_FLUSH: u32 = 4;
const TYPE_DISCARD: u32 = 11;
const TYPE_WRITE_ZEROES: u32 = 13;
/// A request that no device knows: it is answered, and nothing is done.
const TYPE_NOTHING: u32 = u32::MAX;
const RANGE_UNMAP: u32 = 1;

const STATUS_OK: u8 = 0;
const STATUS_UNSUPPORTED: u8 = 2;
const STATUS_UNWRITTEN: u8 = 0xff;

/// How far a slot's request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    /// In the ring, or with the device.
    Asked,
    /// The same, and when it has ended well a flush follows: it must be stable.
    AskedStable,
    /// It has ended well, and its flush is in the ring.
    Syncing,
}

/// How a slot's request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The device answered.
    With(Status),
    /// It was withdrawn before the device took it: nothing was done.
    Untouched,
}

/// The driver's side of one attachment's ring.
#[derive(Debug)]
pub(crate) struct Initiator {
    area: Area,
    layout: Layout,
    states: Box<[State]>,
    avail_next: u16,
    avail_shown: u16,
    used_next: u16,
    /// Elements before this one are known to be there.
    used_seen: u16,
    in_flight: u16,
    faults: u64,
}

impl Initiator {
    /// Of memory that is new: prepares its chains.
    pub(crate) fn new(memory: &AttachmentMemory) -> Initiator {
        let (area, layout) = (memory.area.clone(), memory.layout);
        for slot in 0..layout.slots {
            let head = usize::from(slot * CHAIN) * DESCRIPTOR_BYTES;
            let line = layout.line_at(slot);
            area.store_u64(head, line as u64);
            area.store_u64(head + DESCRIPTOR_BYTES, layout.data_at(slot) as u64);
            area.store_u64(head + 2 * DESCRIPTOR_BYTES, (line + STATUS_AT) as u64);
            area.store_u64(head + 2 * DESCRIPTOR_BYTES + 8, 1 | WRITE);
        }
        area.store_u16(layout.avail, NO_NOTIFY);
        Initiator {
            states: vec![State::Idle; usize::from(layout.slots)].into(),
            area,
            layout,
            avail_next: 0,
            avail_shown: 0,
            used_next: 0,
            used_seen: 0,
            in_flight: 0,
            faults: 0,
        }
    }

    /// Puts a slot's request into the ring; seen at [`Self::publish`]. False, and nothing is done, for what a
    /// disk cannot do (no whole sectors, too long), or when the slot has one already.
    pub(crate) fn add(&mut self, slot: u16, op: Op, offset: u64, len: u32) -> bool {
        if self.states.get(usize::from(slot)) != Some(&State::Idle)
            || !self.is_whole(op, offset, len)
        {
            return false;
        }
        let (line, sector) = (self.layout.line_at(slot), offset / u64::from(SECTOR_BYTES));
        let kind = match op {
            Op::Read => TYPE_IN,
            Op::Write { .. } => TYPE_OUT,
            Op::Flush => TYPE_FLUSH,
            Op::Discard => TYPE_DISCARD,
            Op::WriteZeroes { .. } => TYPE_WRITE_ZEROES,
        };
        match op {
            Op::Read => self.transfer(slot, len, WRITE),
            Op::Write { .. } => self.transfer(slot, len, 0),
            Op::Flush => self.command(slot, HEADER_BYTES),
            Op::Discard | Op::WriteZeroes { .. } => {
                let unmap = matches!(op, Op::WriteZeroes { unmap: true, .. });
                self.area.store_u64(line + RANGE_AT, sector);
                let flags = if unmap { RANGE_UNMAP } else { 0 };
                self.area.store_u32_pair(line + RANGE_AT + 8, len / SECTOR_BYTES, flags);
                self.command(slot, HEADER_BYTES + RANGE_BYTES);
            }
        }
        self.area.store_u64(line + SECTOR_AT, sector);
        let is_stable = op != Op::Flush && op.is_stable();
        self.push(slot, kind, if is_stable { State::AskedStable } else { State::Asked });
        true
    }

    /// Shows what was added. True when the queue asks for a kick.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        if self.avail_shown == self.avail_next {
            return false;
        }
        self.area.store_release_u16(self.layout.avail + INDEX, self.avail_next);
        self.avail_shown = self.avail_next;
        self.area.load_u16(self.layout.used) & NO_NOTIFY == 0
    }

    /// The next slot whose request has ended. [`Self::publish`] is to follow: a flush may have been added.
    #[inline]
    pub(crate) fn take_used(&mut self) -> Option<(u16, Ended)> {
        loop {
            if self.used_next == self.used_seen && !self.look() {
                return None;
            }
            let place = usize::from(self.used_next & (self.layout.size - 1));
            let id = self.area.load_u32(self.layout.used + RING + 8 * place);
            self.used_next = self.used_next.wrapping_add(1);
            if let Some(ended) = self.end(id) {
                return Some(ended);
            }
        }
    }

    /// Whether the device has shown something that was not taken.
    #[inline]
    pub(crate) fn has_used(&self) -> bool {
        self.used_next != self.used_seen
            || self.area.load_acquire_u16(self.layout.used + INDEX) != self.used_next
    }

    /// Nothing more is to be done for what is in the ring: what the device has not taken yet ends untouched.
    /// What it has taken goes on. To be called between two visits of the queue.
    #[cold]
    pub(crate) fn withdraw(&mut self) {
        for (slot, state) in (0..).zip(&self.states) {
            // The flush of a write does no harm, and tells how the write ends.
            if matches!(state, State::Asked | State::AskedStable) {
                self.area.store_u32(self.layout.line_at(slot), TYPE_NOTHING);
            }
        }
    }

    /// Requests that have not ended.
    #[inline]
    pub(crate) fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Times that the used ring said what cannot be.
    pub(crate) fn faults(&self) -> u64 {
        self.faults
    }

    fn is_whole(&self, op: Op, offset: u64, len: u32) -> bool {
        let fits = match op {
            Op::Flush => return true,
            Op::Read | Op::Write { .. } => len <= self.layout.slot_bytes,
            Op::Discard | Op::WriteZeroes { .. } => true,
        };
        let is_of_sectors =
            len.is_multiple_of(SECTOR_BYTES) && offset.is_multiple_of(u64::from(SECTOR_BYTES));
        fits && is_of_sectors && len > 0
    }

    #[inline]
    fn transfer(&self, slot: u16, len: u32, flags: u64) {
        let (head, at) = (slot * CHAIN, usize::from(slot * CHAIN) * DESCRIPTOR_BYTES);
        let next = |after: u16| NEXT | u64::from(head + after) << NEXT_SHIFT;
        self.area.store_u64(at + 8, HEADER_BYTES | next(1));
        self.area.store_u64(at + DESCRIPTOR_BYTES + 8, u64::from(len) | flags | next(2));
    }

    fn command(&self, slot: u16, header_bytes: u64) {
        let (head, at) = (slot * CHAIN, usize::from(slot * CHAIN) * DESCRIPTOR_BYTES);
        let next = NEXT | u64::from(head + 2) << NEXT_SHIFT;
        self.area.store_u64(at + 8, header_bytes | next);
    }

    #[inline]
    fn push(&mut self, slot: u16, kind: u32, state: State) {
        let Some(place) = self.states.get_mut(usize::from(slot)) else { return };
        *place = state;
        let line = self.layout.line_at(slot);
        self.area.store_u32(line, kind);
        self.area.store_u8(line + STATUS_AT, STATUS_UNWRITTEN);
        let at = usize::from(self.avail_next & (self.layout.size - 1));
        self.area.store_u16(self.layout.avail + RING + 2 * at, slot * CHAIN);
        self.avail_next = self.avail_next.wrapping_add(1);
        self.in_flight += 1;
    }

    #[inline]
    fn look(&mut self) -> bool {
        let to = self.area.load_acquire_u16(self.layout.used + INDEX);
        let new = to.wrapping_sub(self.used_next);
        if new > self.in_flight {
            self.faults = self.faults.wrapping_add(1);
            return false;
        }
        self.used_seen = to;
        new > 0
    }

    /// What an element of the used ring means.
    #[inline]
    fn end(&mut self, id: u32) -> Option<(u16, Ended)> {
        let slot = id / u32::from(CHAIN);
        let known = self.states.get_mut(slot as usize);
        let was = known.map_or(State::Idle, |state| match id % u32::from(CHAIN) {
            0 => std::mem::take(state),
            _ => State::Idle,
        });
        if was == State::Idle {
            self.faults = self.faults.wrapping_add(1);
            return None;
        }
        let slot = slot as u16;
        self.in_flight = self.in_flight.saturating_sub(1);
        let status = self.area.load_u8(self.layout.line_at(slot) + STATUS_AT);
        if was == State::AskedStable && status == STATUS_OK {
            self.command(slot, HEADER_BYTES);
            self.push(slot, TYPE_FLUSH, State::Syncing);
            return None;
        }
        let ended = match status {
            STATUS_OK => Ended::With(Status::Ok),
            STATUS_UNSUPPORTED if self.area.load_u32(self.layout.line_at(slot)) == TYPE_NOTHING => {
                Ended::Untouched
            }
            STATUS_UNSUPPORTED => Ended::With(Status::Unsupported),
            _ => Ended::With(Status::IoError),
        };
        Some((slot, ended))
    }
}

#[cfg(test)]
mod tests;
