//! The packed ring as a driver writes it (VIRTIO 1.2, 2.8).

use std::sync::atomic::{Ordering, fence};

use guest_memory::Area;

use super::{AddError, Buffer, DriverSpec, Fault, Held, IndirectTables, Used, passes};

const DESCRIPTOR_SIZE: usize = 16;
const AT_ID: usize = 12;
const AT_FLAGS: usize = 14;
const F_NEXT: u16 = 1;
const F_WRITE: u16 = 2;
const F_INDIRECT: u16 = 4;
const F_AVAIL: u16 = 1 << 7;
const F_USED: u16 = 1 << 15;
const EVENTS_ALL: u16 = 0;
const EVENTS_NONE: u16 = 1;
const EVENTS_AT: u16 = 2;

#[derive(Debug)]
pub(super) struct Packed {
    ring: Area,
    driver_event: Area,
    device_event: Area,
    indirect: Option<IndirectTables>,
    size: u16,
    event_index: bool,
    /// By buffer id.
    ids: Vec<Id>,
    free_ids: Vec<u16>,
    /// Pieces of prepared requests, one request after the other.
    pieces: Vec<Buffer>,
    /// Ring entries that hold no request.
    free: u16,
    avail_next: u16,
    avail_lap: bool,
    /// Entries made available since the last `publish`.
    added: u16,
    used_next: u16,
    used_lap: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Id {
    token: u64,
    held: Held,
    /// Ring entries it takes.
    entries: u16,
    /// Where its pieces start in `pieces`, when it is prepared.
    first_piece: u32,
}

impl Packed {
    /// Over areas that `Driver::new` has checked and zeroed.
    pub(super) fn new(spec: DriverSpec) -> Packed {
        let size = spec.size;
        Packed {
            ring: spec.descriptors,
            driver_event: spec.driver,
            device_event: spec.device,
            indirect: spec.indirect,
            size,
            event_index: spec.event_index,
            ids: vec![Id::default(); usize::from(size)],
            free_ids: (0..size).rev().collect(),
            pieces: Vec::new(),
            free: size,
            avail_next: 0,
            avail_lap: true,
            added: 0,
            used_next: 0,
            used_lap: true,
        }
    }

    #[inline]
    pub(super) fn add(&mut self, buffers: &[Buffer], token: u64) -> Result<(), AddError> {
        let entries = self.entries_of(buffers)?;
        if entries > self.free {
            return Err(AddError::Full);
        }
        let id = self.free_ids.pop().ok_or(AddError::Full)?;
        self.ids[usize::from(id)] = Id { token, held: Held::Once, entries, first_piece: 0 };
        match &self.indirect {
            Some(tables) => {
                let gpa = write_table(tables, id, buffers);
                self.write_one(id, gpa, buffers.len() as u32 * DESCRIPTOR_SIZE as u32, F_INDIRECT);
            }
            None => self.write_chain(id, buffers),
        }
        Ok(())
    }

    pub(super) fn prepare(&mut self, buffers: &[Buffer]) -> Result<u16, AddError> {
        let entries = self.entries_of(buffers)?;
        let id = self.free_ids.pop().ok_or(AddError::Full)?;
        let first_piece = self.pieces.len() as u32;
        match &self.indirect {
            Some(tables) => {
                let gpa = write_table(tables, id, buffers);
                let len = buffers.len() as u32 * DESCRIPTOR_SIZE as u32;
                self.pieces.push(Buffer { gpa, len, device_writes: false });
            }
            None => self.pieces.extend_from_slice(buffers),
        }
        self.ids[usize::from(id)] = Id { token: 0, held: Held::Prepared, entries, first_piece };
        Ok(id)
    }

    #[inline]
    pub(super) fn add_prepared(&mut self, id: u16, token: u64) -> Result<(), AddError> {
        let place = self.ids.get_mut(usize::from(id)).ok_or(AddError::Full)?;
        if place.held != Held::Prepared || place.entries > self.free {
            return Err(AddError::Full);
        }
        place.held = Held::Again;
        place.token = token;
        let (first, entries) = (place.first_piece as usize, usize::from(place.entries));
        if self.indirect.is_some() {
            let Buffer { gpa, len, .. } = self.pieces[first];
            self.write_one(id, gpa, len, F_INDIRECT);
        } else {
            let pieces = std::mem::take(&mut self.pieces);
            self.write_chain(id, &pieces[first..first + entries]);
            self.pieces = pieces;
        }
        Ok(())
    }

    /// The pieces' own place is not reused: `prepare` is not for the path of a request.
    pub(super) fn forget(&mut self, id: u16) -> bool {
        match self.ids.get_mut(usize::from(id)) {
            Some(place) if place.held == Held::Prepared => {
                place.held = Held::Free;
                self.free_ids.push(id);
                true
            }
            _ => false,
        }
    }

    /// What was added is visible already; this only asks who must be told.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        let added = std::mem::take(&mut self.added);
        if added == 0 {
            return false;
        }
        fence(Ordering::SeqCst);
        // Place and flags in one load, so that they belong together.
        let event = self.device_event.load_u32(0);
        let (place, flags) = (event as u16, (event >> 16) as u16);
        match flags {
            EVENTS_NONE => false,
            EVENTS_AT if self.event_index => {
                let mut at = place & 0x7fff;
                if (place >> 15 == 1) != self.avail_lap {
                    at = at.wrapping_sub(self.size);
                }
                passes(at, self.avail_next, self.avail_next.wrapping_sub(added))
            }
            _ => true,
        }
    }

    #[inline]
    pub(super) fn take_used(&mut self) -> Result<Option<Used>, Fault> {
        if !self.is_used() {
            return Ok(None);
        }
        let at = usize::from(self.used_next) * DESCRIPTOR_SIZE;
        let (id, len) = (self.ring.load_u16(at + AT_ID), self.ring.load_u32(at + 8));
        let not_in_flight = Fault::NotInFlight { id: id.into() };
        let place = self.ids.get_mut(usize::from(id)).ok_or(not_in_flight)?;
        match place.held {
            Held::Again => place.held = Held::Prepared,
            Held::Once => {
                place.held = Held::Free;
                self.free_ids.push(id);
            }
            Held::Free | Held::Prepared => return Err(not_in_flight),
        }
        self.free += place.entries;
        self.used_next += place.entries;
        if self.used_next >= self.size {
            self.used_next -= self.size;
            self.used_lap = !self.used_lap;
        }
        Ok(Some(Used { token: place.token, len }))
    }

    pub(super) fn arm_calls(&mut self) -> bool {
        if self.event_index {
            self.driver_event.store_u16(0, self.used_next | u16::from(self.used_lap) << 15);
            self.driver_event.store_release_u16(2, EVENTS_AT);
        } else {
            self.driver_event.store_u16(2, EVENTS_ALL);
        }
        fence(Ordering::SeqCst);
        self.is_used()
    }

    pub(super) fn disarm_calls(&mut self) {
        self.driver_event.store_u16(2, EVENTS_NONE);
    }

    /// Where this ring's indirect tables are.
    #[cfg(test)]
    pub(super) fn tables(&self) -> Option<&IndirectTables> {
        self.indirect.as_ref()
    }

    pub(super) fn free_descriptors(&self) -> u16 {
        self.free
    }

    #[inline]
    fn is_used(&self) -> bool {
        let at = usize::from(self.used_next) * DESCRIPTOR_SIZE + AT_FLAGS;
        let flags = self.ring.load_acquire_u16(at);
        (flags & F_AVAIL != 0) == self.used_lap && (flags & F_USED != 0) == self.used_lap
    }

    #[inline]
    fn entries_of(&self, buffers: &[Buffer]) -> Result<u16, AddError> {
        let most = self.indirect.as_ref().map_or(self.size, |tables| tables.entries);
        if buffers.is_empty() || buffers.len() > usize::from(most) {
            return Err(AddError::Pieces(buffers.len()));
        }
        Ok(if self.indirect.is_some() { 1 } else { buffers.len() as u16 })
    }

    #[inline]
    fn write_one(&mut self, id: u16, gpa: u64, len: u32, flags: u16) {
        let at = usize::from(self.avail_next) * DESCRIPTOR_SIZE;
        self.ring.store_u64(at, gpa);
        self.ring.store_u32(at + 8, len);
        self.ring.store_u16(at + AT_ID, id);
        self.ring.store_release_u16(at + AT_FLAGS, flags | self.available());
        self.moved(1);
    }

    /// Writes a chain, its first flags last: the device sees all of it or nothing.
    #[inline]
    fn write_chain(&mut self, id: u16, buffers: &[Buffer]) {
        let first_at = usize::from(self.avail_next) * DESCRIPTOR_SIZE + AT_FLAGS;
        let mut first_flags = 0;
        let last = buffers.len() - 1;
        for (place, buffer) in buffers.iter().enumerate() {
            let more = if place == last { 0 } else { F_NEXT };
            let writes = if buffer.device_writes { F_WRITE } else { 0 };
            let flags = more | writes | self.available();
            let at = usize::from(self.avail_next) * DESCRIPTOR_SIZE;
            self.ring.store_u64(at, buffer.gpa);
            if place == 0 {
                self.ring.store_u32(at + 8, buffer.len);
                self.ring.store_u16(at + AT_ID, id);
                first_flags = flags;
            } else {
                let rest = u64::from(buffer.len) | u64::from(id) << 32 | u64::from(flags) << 48;
                self.ring.store_u64(at + 8, rest);
            }
            self.moved(1);
        }
        self.ring.store_release_u16(first_at, first_flags);
    }

    /// The two lap bits of an available descriptor at `avail_next`.
    #[inline]
    fn available(&self) -> u16 {
        if self.avail_lap { F_AVAIL } else { F_USED }
    }

    #[inline]
    fn moved(&mut self, entries: u16) {
        self.free -= entries;
        self.added += entries;
        self.avail_next += entries;
        if self.avail_next >= self.size {
            self.avail_next -= self.size;
            self.avail_lap = !self.avail_lap;
        }
    }
}

/// Writes the indirect table that belongs to `owner` and gives its guest address. In a packed ring
/// NEXT and the id mean nothing there (2.8.7).
#[inline]
fn write_table(tables: &IndirectTables, owner: u16, buffers: &[Buffer]) -> u64 {
    let first = u32::from(owner) * u32::from(tables.entries);
    for (place, buffer) in buffers.iter().enumerate() {
        let at = (first as usize + place) * DESCRIPTOR_SIZE;
        let writes = if buffer.device_writes { F_WRITE } else { 0 };
        tables.area.store_u64(at, buffer.gpa);
        tables.area.store_u64(at + 8, u64::from(buffer.len) | u64::from(writes) << 48);
    }
    tables.gpa + u64::from(first) * DESCRIPTOR_SIZE as u64
}
