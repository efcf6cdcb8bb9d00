//! The packed ring's rules (VIRTIO 1.2, 2.8).
//!
//! A descriptor is available when its AVAIL bit equals our lap bit and its USED bit does not. An
//! event structure is a place with its lap bit at 0 and flags at 2.

use std::sync::atomic::{Ordering, fence};

use guest_memory::{Area, GuestMap};

use crate::ahead::{Ahead, Single};
use crate::chain::Chain;
use crate::event_index::passed_packed;
use crate::inflight::packed::PackedRecord;
use crate::layout::{AVAIL, DESCRIPTOR_SIZE, INDIRECT, NEXT, USED, WRITE};
use crate::queue::{FOOTPRINT_SIZE_MAX, Footprint};
use crate::shared::{Shared, SharedEntries, SharedEntry};
use crate::violation::{SetupError, Violation};
use crate::walk::{Descriptor, add_buffer, indirect_packed};
use crate::word::Word;

/// Entries between asking for a buffer's first lines and using them.
const BUFFER_AHEAD: u16 = 4;

const GPA: usize = 0;
const LEN: usize = 8;
const ID: usize = 12;
const DESCRIPTOR_FLAGS: usize = 14;
const EVENT_PLACE: usize = 0;
const EVENT_FLAGS: usize = 2;
const EVENT_ENABLE: u16 = 0;
const EVENT_DISABLE: u16 = 1;
const EVENT_AT_PLACE: u16 = 2;

/// A place in the ring and the lap it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) index: u16,
    pub(crate) lap: bool,
}

impl Place {
    /// `index` in the low 15 bits, the lap in bit 15.
    #[inline]
    pub(crate) fn of_bits(bits: u16) -> Place {
        Place { index: bits & 0x7fff, lap: bits >> 15 == 1 }
    }

    #[inline]
    pub(crate) fn bits(self) -> u16 {
        self.index | u16::from(self.lap) << 15
    }

    #[inline]
    pub(crate) fn after(self, entries: u16, size: u16) -> Place {
        let index = u32::from(self.index) + u32::from(entries);
        if index >= u32::from(size) {
            Place { index: (index - u32::from(size)) as u16, lap: !self.lap }
        } else {
            Place { index: index as u16, ..self }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Packed {
    ring: Shared,
    /// Those of `ring`.
    entries: SharedEntries<DESCRIPTOR_SIZE, 16>,
    driver_event: Area,
    device_event: Shared,
    size: Word,
    event_index: bool,
    indirect: bool,
    /// Hints are for writing.
    writes: bool,
    /// Where the next chain starts: the bits of its place.
    next: Word,
    /// Where the next used descriptor goes.
    used_next: Word,
    /// The first used descriptor that is not shown yet, and its flags: written last.
    held: Option<(Word, Word)>,
    /// Ring entries passed since the guest was last called, or found not to want it.
    moved: Word,
}

impl Packed {
    /// A ring whose parts, size and places were checked.
    ///
    /// # Errors
    /// The ring ends before its entries, or is not aligned: not if it was checked.
    pub(crate) fn new(
        parts: [Area; 3],
        size: u16,
        rules: (bool, bool),
        next: Place,
        used_next: Place,
    ) -> Result<Packed, SetupError> {
        let [ring, driver_event, device_event] = parts;
        let (event_index, indirect) = rules;
        let ring = Shared::from(ring);
        let unaligned = SetupError::Unaligned { part: "descriptor", align: 16 };
        let entries = SharedEntries::new(&ring, 0, size).ok_or(unaligned)?;
        Ok(Packed {
            ring,
            entries,
            driver_event,
            device_event: device_event.into(),
            size: Word::new(size),
            event_index,
            indirect,
            writes: false,
            next: Word::new(next.bits()),
            used_next: Word::new(used_next.bits()),
            held: None,
            moved: Word::new(0),
        })
    }

    /// The next available and the next used place.
    #[inline]
    pub(crate) fn places(&self) -> (Place, Place) {
        (self.next(), self.used_next())
    }

    #[inline]
    fn next(&self) -> Place {
        Place::of_bits(self.next.get())
    }

    #[inline]
    fn used_next(&self) -> Place {
        Place::of_bits(self.used_next.get())
    }

    /// Goes on from where an in-flight record says.
    pub(crate) fn set_places(&mut self, next: Place, used_next: Place) {
        self.next.set(next.bits());
        self.used_next.set(used_next.bits());
    }

    pub(crate) fn expect_writes(&mut self, on: bool) {
        self.writes = on;
    }

    pub(crate) fn ring(&self) -> &Shared {
        &self.ring
    }

    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.available_flags(self.next()).is_some()
    }

    /// Walks the next chain. Only after `is_ready` said yes. Bounded by the ring's size.
    pub(crate) fn peek(&self, map: &GuestMap, chain: &mut Chain) -> Result<(), Violation> {
        chain.clear();
        let mut place = self.next();
        for taken in 1..=self.size.get() {
            // The driver shows a chain's first flags last, so the rest is there; a flag that says
            // otherwise is a chain without end.
            let Some((entry, flags)) = available(&self.entries, place) else {
                return Err(Violation::ChainLoop { limit: taken.into() });
            };
            let (gpa, len) = (entry.load_u64::<GPA>(), entry.load_u32::<LEN>());
            let indirect = flags & INDIRECT != 0;
            if indirect {
                // Only WRITE may stand beside INDIRECT, and the table is the whole chain (2.8.7).
                if !self.indirect || flags & NEXT != 0 || taken > 1 {
                    return Err(Violation::IndirectPlace);
                }
                indirect_packed(
                    chain,
                    map,
                    Descriptor { gpa, len, flags, next: 0 },
                    self.size.get(),
                )?;
            } else {
                add_buffer(chain, map, gpa, len, flags & WRITE != 0)?;
            }
            if flags & NEXT == 0 {
                chain.id = entry.load_u16::<ID>();
                chain.descriptors = taken;
                if chain.id >= self.size.get() {
                    return Err(Violation::BufferId { id: chain.id, size: self.size.get() });
                }
                self.prefetch_after(place, map);
                // An indirect table has counted its own entries.
                return if indirect { Ok(()) } else { chain.end(taken.into()) };
            }
            place = place.after(1, self.size.get());
        }
        Err(Violation::ChainLoop { limit: self.size.get().into() })
    }

    /// Finds the next chains that are single buffers. What is wrong is found again, and said, by a full look.
    pub(crate) fn find_ahead(&self, map: &GuestMap, ahead: &mut Ahead) {
        let mut place = self.next();
        let Packed { entries, size, .. } = self;
        ahead.fill(|_| {
            let (entry, flags) = available(entries, place)?;
            let (gpa, len) = (entry.load_u64::<GPA>(), entry.load_u32::<LEN>());
            let id = entry.load_u16::<ID>();
            if flags & (INDIRECT | NEXT) != 0 || len == 0 || id >= size.get() {
                return None;
            }
            place = place.after(1, size.get());
            let is_writable = flags & WRITE != 0;
            let span = map.span_ahead(gpa, len, is_writable)?;
            Some(Single { span, id, is_writable })
        });
    }

    /// As `peek`, for the chain that an earlier process took: its descriptors are in `record`, from
    /// entry `first` on, and are checked again.
    #[cold]
    pub(crate) fn peek_recorded(
        &self,
        record: &PackedRecord,
        first: u16,
        map: &GuestMap,
        chain: &mut Chain,
    ) -> Result<(), Violation> {
        chain.clear();
        for (place, (found, is_last)) in (1..).zip(record.descriptors(first)) {
            let indirect = found.flags & INDIRECT != 0;
            if !indirect {
                add_buffer(chain, map, found.gpa, found.len, found.flags & WRITE != 0)?;
            } else if self.indirect && is_last && place == 1 {
                indirect_packed(chain, map, found, self.size.get())?;
            } else {
                return Err(Violation::IndirectPlace);
            }
            if is_last {
                (chain.id, chain.descriptors) = (found.next, place);
                if !indirect {
                    chain.end(place.into())?;
                }
            }
        }
        if chain.id >= self.size.get() {
            return Err(Violation::BufferId { id: chain.id, size: self.size.get() });
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn advance(&mut self, descriptors: u16) {
        self.next.set(self.next().after(descriptors, self.size.get()).bits());
    }

    #[inline]
    pub(crate) fn complete(&mut self, id: u16, descriptors: u16, written: u32) {
        let used = self.used_next();
        let Some(entry) = self.entries.get(used.index) else { return };
        entry.store_u32::<LEN>(written);
        entry.store_u16::<ID>(id);
        let lap = if used.lap { AVAIL | USED } else { 0 };
        let flags = lap | if written > 0 { WRITE } else { 0 };
        if self.held.is_none() {
            self.held = Some((Word::new(used.index), Word::new(flags)));
        } else {
            entry.store_release_u16::<DESCRIPTOR_FLAGS>(flags);
        }
        self.used_next.set(used.after(descriptors, self.size.get()).bits());
        self.moved.set(self.moved.get().saturating_add(descriptors));
    }

    /// Shows all completions, the first one last.
    #[inline]
    pub(crate) fn show(&mut self) {
        if let Some((index, flags)) = self.held.take()
            && let Some(entry) = self.entries.get(index.get())
        {
            entry.store_release_u16::<DESCRIPTOR_FLAGS>(flags.get());
        }
    }

    /// Whether the guest asked to be called for one of the completions shown since the last time.
    #[inline]
    pub(crate) fn wants_call(&mut self) -> bool {
        let moved = self.moved.get();
        self.moved.set(0);
        if moved == 0 {
            return false;
        }
        fence(Ordering::SeqCst);
        match self.driver_event.load_u16(EVENT_FLAGS) {
            EVENT_DISABLE => false,
            EVENT_AT_PLACE if self.event_index => {
                let event = self.driver_event.load_u16(EVENT_PLACE);
                let Place { index, lap } = self.used_next();
                passed_packed(event, index, lap, moved, self.size.get())
            }
            _ => true,
        }
    }

    /// See [`crate::Queue::footprint`].
    #[inline]
    pub(crate) fn footprint(&self) -> Option<Footprint> {
        let tells = self.event_index && self.size.get() <= FOOTPRINT_SIZE_MAX;
        let event = || self.driver_event.load_u16(EVENT_PLACE);
        tells.then(|| Footprint { end: self.used_next.get(), event: event() })
    }

    /// See [`crate::Queue::is_consumed`].
    #[inline]
    pub(crate) fn is_consumed(&self, footprint: Footprint) -> bool {
        let event = self.driver_event.load_u16(EVENT_PLACE);
        let is_told = self.driver_event.load_u16(EVENT_FLAGS) == EVENT_AT_PLACE;
        if !is_told || event == footprint.event {
            return false;
        }
        let size = self.size.get();
        let shown = self.used_next.get();
        let along = |bits: u16| {
            let place = Place::of_bits(bits);
            u32::from(place.index) + if place.lap { 0 } else { u32::from(size) }
        };
        let round = 2 * u32::from(size);
        let back_to = |bits: u16| (along(shown) + round - along(bits) % round) % round;
        // While something is not shown, it may be what is asked about.
        let left = back_to(event);
        self.held.is_none() && left <= size.into() && left <= back_to(footprint.end)
    }

    /// Asks for a kick at the next chain, then looks again. True when one is already there.
    pub(crate) fn arm(&mut self) -> bool {
        if self.event_index {
            self.device_event.store_u16(EVENT_PLACE, self.next.get());
            self.device_event.store_release_u16(EVENT_FLAGS, EVENT_AT_PLACE);
        } else {
            self.device_event.store_u16(EVENT_FLAGS, EVENT_ENABLE);
        }
        fence(Ordering::SeqCst);
        self.is_ready()
    }

    pub(crate) fn disarm(&mut self) {
        self.device_event.store_u16(EVENT_FLAGS, EVENT_DISABLE);
    }

    /// The flags at `place`, when they say that the driver made it available in this lap.
    #[inline]
    fn available_flags(&self, place: Place) -> Option<u16> {
        available(&self.entries, place).map(|(_, flags)| flags)
    }

    /// See [`crate::Queue::prefetch`].
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.ring.prefetch(usize::from(self.next().index) * DESCRIPTOR_SIZE);
    }

    /// A hint: the line after the chain's last descriptor is likely the next chain's.
    #[inline]
    fn prefetch_after(&self, place: Place, map: &GuestMap) {
        let ahead = place.after(8.min(self.size.get() - 1), self.size.get());
        if let Some(entry) = self.entries.get(ahead.index) {
            entry.prefetch();
        }
        let ahead = place.after(BUFFER_AHEAD.min(self.size.get() - 1), self.size.get());
        if let Some((entry, _)) = available(&self.entries, ahead) {
            map.prefetch(entry.load_u64::<GPA>(), self.writes);
        }
    }
}

type Entry<'a> = SharedEntry<'a, DESCRIPTOR_SIZE, 16>;

/// The descriptor at `place`, and its flags, when they say that the driver made it available in this lap.
#[inline(always)]
fn available(
    entries: &SharedEntries<DESCRIPTOR_SIZE, 16>,
    place: Place,
) -> Option<(Entry<'_>, u16)> {
    let entry = entries.get(place.index)?;
    let flags = entry.load_acquire_u16::<DESCRIPTOR_FLAGS>();
    is_of_driver(flags, place).then_some((entry, flags))
}

/// Whether `flags` say that the driver made the descriptor at `place` available in this lap.
#[inline(always)]
fn is_of_driver(flags: u16, place: Place) -> bool {
    (flags & AVAIL != 0) == place.lap && (flags & USED != 0) != place.lap
}

/// Whether the descriptor at `place` is still the driver's of this lap: not marked used, and not
/// made available anew.
pub(crate) fn is_available(ring: &Area, place: Place) -> bool {
    let at = usize::from(place.index) * DESCRIPTOR_SIZE + DESCRIPTOR_FLAGS;
    is_of_driver(ring.load_acquire_u16(at), place)
}

/// The descriptor at `place`, whatever it is; the buffer id stands in `next`.
pub(crate) fn descriptor(ring: &Area, place: Place) -> Descriptor {
    let at = usize::from(place.index) * DESCRIPTOR_SIZE;
    Descriptor {
        gpa: ring.load_u64(at),
        len: ring.load_u32(at + LEN),
        flags: ring.load_u16(at + DESCRIPTOR_FLAGS),
        next: ring.load_u16(at + ID),
    }
}

/// Makes the descriptor at `place`, taken and not used by what the guest saw, unused again.
pub(crate) fn take_back(ring: &Shared, place: Place) {
    if !is_available(ring, place) {
        let at = usize::from(place.index) * DESCRIPTOR_SIZE + DESCRIPTOR_FLAGS;
        ring.store_release_u16(at, if place.lap { AVAIL } else { USED });
    }
}
