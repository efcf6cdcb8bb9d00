//! The split ring as a driver writes it (VIRTIO 1.2, 2.7).

use std::sync::atomic::{Ordering, fence};

use guest_memory::Area;

use super::{AddError, Buffer, DriverSpec, Fault, Held, IndirectTables, Used, passes};

const DESCRIPTOR_SIZE: usize = 16;
const F_NEXT: u16 = 1;
const F_WRITE: u16 = 2;
const F_INDIRECT: u16 = 4;
const NO_CALLS: u16 = 1;
const NO_KICKS: u16 = 1;

#[derive(Debug)]
pub(super) struct Split {
    table: Area,
    avail: Area,
    used: Area,
    indirect: Option<IndirectTables>,
    size: u16,
    event_index: bool,
    /// By head descriptor.
    heads: Vec<Head>,
    /// By descriptor: the next free one. Ends are not marked; `free` counts.
    free_next: Vec<u16>,
    free_first: u16,
    free: u16,
    /// Available index as written by `add`, and as the device last saw it.
    avail_next: u16,
    avail_shown: u16,
    /// Used index up to which elements were taken, and up to which they are known to be there.
    used_next: u16,
    used_seen: u16,
}

#[derive(Clone, Copy, Debug, Default)]
struct Head {
    token: u64,
    held: Held,
    /// Descriptors of the table that belong to it.
    descriptors: u16,
    last: u16,
}

impl Split {
    /// Over areas that `Driver::new` has checked and zeroed.
    pub(super) fn new(spec: DriverSpec) -> Split {
        let size = spec.size;
        Split {
            table: spec.descriptors,
            avail: spec.driver,
            used: spec.device,
            indirect: spec.indirect,
            size,
            event_index: spec.event_index,
            heads: vec![Head::default(); usize::from(size)],
            free_next: (1..=size).collect(),
            free_first: 0,
            free: size,
            avail_next: 0,
            avail_shown: 0,
            used_next: 0,
            used_seen: 0,
        }
    }

    #[inline]
    pub(super) fn add(&mut self, buffers: &[Buffer], token: u64) -> Result<(), AddError> {
        let head = self.describe(buffers)?;
        self.start(head, Held::Once, token);
        Ok(())
    }

    pub(super) fn prepare(&mut self, buffers: &[Buffer]) -> Result<u16, AddError> {
        let head = self.describe(buffers)?;
        self.heads[usize::from(head)].held = Held::Prepared;
        Ok(head)
    }

    #[inline]
    pub(super) fn add_prepared(&mut self, head: u16, token: u64) -> Result<(), AddError> {
        match self.heads.get(usize::from(head)) {
            Some(Head { held: Held::Prepared, .. }) => {
                self.start(head, Held::Again, token);
                Ok(())
            }
            _ => Err(AddError::Full),
        }
    }

    pub(super) fn forget(&mut self, head: u16) -> bool {
        let known = self.heads.get(usize::from(head));
        let idle = known.is_some_and(|place| place.held == Held::Prepared);
        if idle {
            self.release(head);
        }
        idle
    }

    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        let (old, new) = (self.avail_shown, self.avail_next);
        if old == new {
            return false;
        }
        self.avail.store_release_u16(2, new);
        self.avail_shown = new;
        // The device writes its wish, then looks at the index; we the other way round (2.7.13.4.1).
        fence(Ordering::SeqCst);
        if self.event_index {
            passes(self.used.load_u16(4 + 8 * usize::from(self.size)), new, old)
        } else {
            self.used.load_u16(0) & NO_KICKS == 0
        }
    }

    #[inline]
    pub(super) fn take_used(&mut self, in_flight: u16) -> Result<Option<Used>, Fault> {
        if self.used_next == self.used_seen {
            let (from, to) = (self.used_seen, self.used.load_acquire_u16(2));
            if from == to {
                return Ok(None);
            }
            if to.wrapping_sub(from) > in_flight {
                return Err(Fault::UsedIndex { from, to, in_flight });
            }
            self.used_seen = to;
        }
        let at = 4 + 8 * usize::from(self.used_next & (self.size - 1));
        let (id, len) = (self.used.load_u32(at), self.used.load_u32(at + 4));
        let not_in_flight = Fault::NotInFlight { id };
        let head = self.heads.get_mut(id as usize).ok_or(not_in_flight)?;
        let token = head.token;
        match head.held {
            Held::Again => head.held = Held::Prepared,
            Held::Once => self.release(id as u16),
            Held::Free | Held::Prepared => return Err(not_in_flight),
        }
        self.used_next = self.used_next.wrapping_add(1);
        Ok(Some(Used { token, len }))
    }

    pub(super) fn arm_calls(&mut self) -> bool {
        self.avail.store_u16(0, 0);
        if self.event_index {
            self.avail.store_u16(self.used_event(), self.used_next);
        }
        fence(Ordering::SeqCst);
        self.used.load_acquire_u16(2) != self.used_next
    }

    pub(super) fn disarm_calls(&mut self) {
        if self.event_index {
            // The flag must stay zero (2.7.7.1): a place just passed comes again last of all.
            self.avail.store_u16(self.used_event(), self.used_next.wrapping_sub(1));
        } else {
            self.avail.store_u16(0, NO_CALLS);
        }
    }

    /// Where this ring's indirect tables are.
    #[cfg(test)]
    pub(super) fn tables(&self) -> Option<&IndirectTables> {
        self.indirect.as_ref()
    }

    pub(super) fn free_descriptors(&self) -> u16 {
        self.free
    }

    fn used_event(&self) -> usize {
        4 + 2 * usize::from(self.size)
    }

    /// Writes the descriptors of one request and gives its head.
    #[inline]
    fn describe(&mut self, buffers: &[Buffer]) -> Result<u16, AddError> {
        let most = self.indirect.as_ref().map_or(self.size, |tables| tables.entries);
        if buffers.is_empty() || buffers.len() > usize::from(most) {
            return Err(AddError::Pieces(buffers.len()));
        }
        let needed = if self.indirect.is_some() { 1 } else { buffers.len() as u16 };
        if needed > self.free {
            return Err(AddError::Full);
        }
        let head = self.free_first;
        let last = match &self.indirect {
            Some(tables) => {
                let gpa = write_table(tables, head, buffers);
                let len = buffers.len() as u32 * DESCRIPTOR_SIZE as u32;
                write_descriptor(&self.table, head, gpa, len, F_INDIRECT, 0);
                head
            }
            None => self.write_chain(head, buffers),
        };
        self.free_first = self.free_next[usize::from(last)];
        self.free -= needed;
        let place = &mut self.heads[usize::from(head)];
        place.descriptors = needed;
        place.last = last;
        Ok(head)
    }

    /// Writes a chain along the free list and gives its last descriptor.
    #[inline]
    fn write_chain(&self, head: u16, buffers: &[Buffer]) -> u16 {
        let (mut index, mut last) = (head, head);
        for (place, buffer) in buffers.iter().enumerate() {
            let next = self.free_next[usize::from(index)];
            let more = place + 1 < buffers.len();
            let flags = flags_of(buffer) | if more { F_NEXT } else { 0 };
            let link = if more { next } else { 0 };
            write_descriptor(&self.table, index, buffer.gpa, buffer.len, flags, link);
            (last, index) = (index, next);
        }
        last
    }

    #[inline]
    fn start(&mut self, head: u16, held: Held, token: u64) {
        let place = &mut self.heads[usize::from(head)];
        place.held = held;
        place.token = token;
        let at = 4 + 2 * usize::from(self.avail_next & (self.size - 1));
        self.avail.store_u16(at, head);
        self.avail_next = self.avail_next.wrapping_add(1);
    }

    /// Gives a request's descriptors back, in the order they were taken.
    #[inline]
    fn release(&mut self, head: u16) {
        let place = &mut self.heads[usize::from(head)];
        place.held = Held::Free;
        self.free_next[usize::from(place.last)] = self.free_first;
        self.free += place.descriptors;
        self.free_first = head;
    }
}

/// Writes the indirect table that belongs to `owner` and gives its guest address.
#[inline]
fn write_table(tables: &IndirectTables, owner: u16, buffers: &[Buffer]) -> u64 {
    let first = u32::from(owner) * u32::from(tables.entries);
    for (place, buffer) in buffers.iter().enumerate() {
        let more = place + 1 < buffers.len();
        let flags = flags_of(buffer) | if more { F_NEXT } else { 0 };
        let at = (first as usize + place) * DESCRIPTOR_SIZE;
        tables.area.store_u64(at, buffer.gpa);
        let next = if more { place as u64 + 1 } else { 0 };
        let rest = u64::from(buffer.len) | u64::from(flags) << 32 | next << 48;
        tables.area.store_u64(at + 8, rest);
    }
    tables.gpa + u64::from(first) * DESCRIPTOR_SIZE as u64
}

/// Length, flags and next are one store: the second half of a descriptor is 8 bytes.
#[inline]
fn write_descriptor(table: &Area, index: u16, gpa: u64, len: u32, flags: u16, next: u16) {
    let at = usize::from(index) * DESCRIPTOR_SIZE;
    table.store_u64(at, gpa);
    table.store_u64(at + 8, u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48);
}

#[inline]
fn flags_of(buffer: &Buffer) -> u16 {
    if buffer.device_writes { F_WRITE } else { 0 }
}
