//! One guest's memory with a ring in it, seen from both sides.

use guest_memory::{Area, GuestMap, Mapping, Region, Span};

pub(super) use crate::driver::first_base as start;
use crate::driver::{Arena, Buffer, Driver, Places, RingSpec};
use crate::layout::Format;
use crate::{Chain, Queue, QueueSpec, Ticket, Violation};

/// Bytes for buffers and hand-made tables; they start at guest address 0.
pub(super) const DATA: u64 = 1 << 16;

pub(super) struct Rig {
    pub(super) map: GuestMap,
    pub(super) driver: Driver,
    pub(super) queue: Queue,
    pub(super) chain: Chain,
    pub(super) places: Places,
    pub(super) ring: RingSpec,
}

/// A ring spec in one line.
pub(super) fn ring(
    format: Format,
    size: u16,
    event_index: bool,
    indirect_entries: u16,
) -> RingSpec {
    RingSpec { size, format, event_index, indirect_entries }
}

/// A small split ring without extras: where most hostile cases start.
pub(super) fn split() -> Rig {
    Rig::new(ring(Format::Split, 8, false, 0))
}

/// The same, packed.
pub(super) fn packed() -> Rig {
    Rig::new(ring(Format::Packed, 8, false, 0))
}

/// Every combination that must work, small sizes first.
pub(super) fn all_rings() -> Vec<RingSpec> {
    let split = [1, 2, 8, 256, 32768].map(|size| (Format::Split, size));
    let packed = [1, 2, 3, 8, 256, 1000, 32767, 32768].map(|size| (Format::Packed, size));
    let mut rings = Vec::new();
    for (format, size) in split.into_iter().chain(packed) {
        for event_index in [false, true] {
            for indirect_entries in [0, 4] {
                rings.push(ring(format, size, event_index, indirect_entries));
            }
        }
    }
    rings
}

impl Rig {
    pub(super) fn new(ring: RingSpec) -> Rig {
        let tables = u64::from(ring.size) * u64::from(ring.indirect_entries) * 16;
        let len = DATA + (1 << 20) + 32 * u64::from(ring.size) + tables;
        let map = GuestMap::anonymous(len.next_multiple_of(4096)).unwrap();
        Rig::over(map, ring)
    }

    /// A ring in the region that holds guest address [`DATA`].
    pub(super) fn over(map: GuestMap, ring: RingSpec) -> Rig {
        let len = map.regions()[0].mapping.len() as u64;
        let mut arena = Arena::new(map.area_at_user(DATA, len - DATA).unwrap(), DATA);
        let (driver, places) = arena.driver(ring).unwrap();
        let queue = Queue::new(spec(&map, places, ring, start(ring.format))).unwrap();
        Rig { map, driver, queue, chain: Chain::default(), places, ring }
    }

    /// A new queue at `base` over the same memory, as after a hand-over.
    pub(super) fn reopen(&mut self, base: u32) {
        self.queue = Queue::new(spec(&self.map, self.places, self.ring, base)).unwrap();
    }

    /// Looks at the next chain: its buffers.
    pub(super) fn peek(&mut self) -> Option<Vec<Buffer>> {
        self.queue.peek(&self.map, &mut self.chain).then(|| buffers(&self.map, &self.chain))
    }

    /// Takes the next chain.
    pub(super) fn take(&mut self) -> Option<(Ticket, Vec<Buffer>)> {
        let found = self.peek()?;
        Some((self.queue.advance(&self.chain), found))
    }

    /// Takes and completes what is there; says how many.
    pub(super) fn serve(&mut self) -> u32 {
        let mut served = 0;
        while let Some((ticket, _)) = self.take() {
            self.queue.complete(ticket, 1);
            served += 1;
        }
        served
    }

    /// Looks, and gives what latched the queue.
    pub(super) fn refused(&mut self) -> Option<Violation> {
        assert_eq!(self.peek(), None);
        self.queue.violation()
    }

    /// All of guest memory from guest address 0 in the first region.
    pub(super) fn area(&self, gpa: u64, len: u64) -> Area {
        self.map.area_at_user(gpa, len).unwrap()
    }
}

pub(super) fn spec(map: &GuestMap, places: Places, ring: RingSpec, base: u32) -> QueueSpec {
    ring.queue_spec(map, places, base).unwrap()
}

/// A chain's spans as guest addresses.
pub(super) fn buffers(map: &GuestMap, chain: &Chain) -> Vec<Buffer> {
    let readable = chain.readable().iter().map(|span| buffer(map, *span, false));
    let writable = chain.writable().iter().map(|span| buffer(map, *span, true));
    readable.chain(writable).collect()
}

fn buffer(map: &GuestMap, span: Span, device_writes: bool) -> Buffer {
    for region in map.regions() {
        let first = map.span(region.gpa, 1).unwrap().host_address();
        let offset = span.host_address().wrapping_sub(first);
        if offset < region.mapping.len() {
            return Buffer { gpa: region.gpa + offset as u64, len: span.len(), device_writes };
        }
    }
    panic!("{span:?} is in no region");
}

/// Two regions that touch in guest addresses, with a page between them in front-end addresses.
pub(super) fn two_regions(first: u64, second: u64) -> GuestMap {
    let mapping = |len| Mapping::anonymous(len).unwrap();
    let regions = vec![
        Region { gpa: 0, user: 0, mapping: mapping(first) },
        Region { gpa: first, user: first + 4096, mapping: mapping(second) },
    ];
    GuestMap::new(regions).unwrap()
}
