//! The split ring against `virtio-queue`, the rust-vmm device side, as an oracle: the same ring
//! bytes give the same chains, the same used ring, and the same decision to call.

use guest_memory::GuestMap;
use proptest::prelude::*;
use virtio_queue::QueueT;
use virtqueue::driver::{Arena, Buffer, Driver, Places, RingSpec};
use virtqueue::{Chain, Format, Queue, Ticket, layout};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const MEMORY: u64 = 1 << 19;
/// Rings start here; buffers are below.
const RINGS: u64 = 1 << 16;

/// One guest's memory, twice: ours is written by the driver and copied to the oracle's.
struct World {
    map: GuestMap,
    oracle_memory: GuestMemoryMmap,
    driver: Driver,
    queue: Queue,
    oracle: virtio_queue::Queue,
    places: Places,
    ring: RingSpec,
}

impl World {
    fn new(ring: RingSpec) -> World {
        let map = GuestMap::anonymous(MEMORY).unwrap();
        let oracle_memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY as usize)]);
        let rings = map.area_at_user(RINGS, MEMORY - RINGS).unwrap();
        let (driver, places) = Arena::new(rings, RINGS).driver(ring).unwrap();
        let queue = Queue::new(ring.queue_spec(&map, places, 0).unwrap()).unwrap();
        let mut oracle = virtio_queue::Queue::new(ring.size).unwrap();
        oracle.set_desc_table_address(Some(places.descriptors as u32), Some(0));
        oracle.set_avail_ring_address(Some(places.driver as u32), Some(0));
        oracle.set_used_ring_address(Some(places.device as u32), Some(0));
        oracle.set_event_idx(ring.event_index);
        oracle.set_ready(true);
        let oracle_memory = oracle_memory.unwrap();
        World { map, oracle_memory, driver, queue, oracle, places, ring }
    }

    /// The oracle sees what the guest wrote; the used ring is its own.
    fn copy_to_oracle(&self) {
        let used = self.places.device;
        let used_end = used + layout::device_len(Format::Split, self.ring.size, true);
        for (from, to) in [(0, used), (used_end, MEMORY)] {
            let mut bytes = vec![0; (to - from) as usize];
            assert!(self.map.read(self.map.span(from, bytes.len() as u32).unwrap(), 0, &mut bytes));
            self.oracle_memory.write_slice(&bytes, GuestAddress(from)).unwrap();
        }
    }

    fn take(&mut self) -> Option<(Ticket, Vec<Buffer>)> {
        let mut chain = Chain::default();
        if !self.queue.peek(&self.map, &mut chain) {
            assert_eq!(self.queue.violation(), None);
            return None;
        }
        let origin = self.map.span(0, 1).unwrap().host_address();
        let side = |device_writes| {
            move |span: &guest_memory::Span| {
                let gpa = (span.host_address() - origin) as u64;
                Buffer { gpa, len: span.len(), device_writes }
            }
        };
        let mut found: Vec<_> = chain.readable().iter().map(side(false)).collect();
        found.extend(chain.writable().iter().map(side(true)));
        Some((self.queue.advance(&chain), found))
    }

    fn oracle_take(&mut self) -> Option<(u16, Vec<Buffer>)> {
        let chain = self.oracle.pop_descriptor_chain(&self.oracle_memory)?;
        let head = chain.head_index();
        let piece = |found: virtio_queue::desc::split::Descriptor| Buffer {
            gpa: found.addr().0,
            len: found.len(),
            device_writes: found.is_write_only(),
        };
        Some((head, chain.map(piece).collect()))
    }

    /// The used ring without `avail_event`, as each side sees it.
    fn used_rings(&self) -> [Vec<u8>; 2] {
        let len = layout::device_len(Format::Split, self.ring.size, false) as usize;
        let (mut ours, mut theirs) = (vec![0; len], vec![0; len]);
        let span = self.map.span(self.places.device, len as u32).unwrap();
        assert!(self.map.read(span, 0, &mut ours));
        self.oracle_memory.read_slice(&mut theirs, GuestAddress(self.places.device)).unwrap();
        [ours, theirs]
    }
}

fn request() -> impl Strategy<Value = Vec<Buffer>> {
    let piece = || (0..RINGS - 5000, 1u32..5000);
    let reads = prop::collection::vec(piece(), 1..4);
    let writes = prop::collection::vec(piece(), 0..4);
    (reads, writes).prop_map(|(reads, writes)| {
        let side = |device_writes| move |(gpa, len)| Buffer { gpa, len, device_writes };
        let reads = reads.into_iter().map(side(false));
        reads.chain(writes.into_iter().map(side(true))).collect()
    })
}

/// One round: requests, how many of the taken ones end (in which order), whether calls are wanted.
#[derive(Clone, Debug)]
struct Round {
    requests: Vec<Vec<Buffer>>,
    ends: Vec<u8>,
    calls: bool,
}

fn round() -> impl Strategy<Value = Round> {
    let requests = prop::collection::vec(request(), 0..5);
    let ends = prop::collection::vec(any::<u8>(), 0..6);
    (requests, ends, any::<bool>()).prop_map(|(requests, ends, calls)| Round {
        requests,
        ends,
        calls,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_same_ring_gives_the_same_as_virtio_queue(
        size_power in 3u32..8,
        event_index in any::<bool>(),
        indirect in any::<bool>(),
        rounds in prop::collection::vec(round(), 1..12),
    ) {
        let indirect_entries = if indirect { 8 } else { 0 };
        let (size, format) = (1u16 << size_power, Format::Split);
        let mut world = World::new(RingSpec { size, format, event_index, indirect_entries });
        let mut held = Vec::new();
        for Round { requests, ends, calls } in rounds {
            for pieces in requests {
                let _full = world.driver.add(&pieces, 0).is_err();
            }
            world.driver.publish();
            if calls {
                world.driver.arm_calls();
            } else {
                world.driver.disarm_calls();
            }
            world.copy_to_oracle();
            loop {
                let theirs = world.oracle_take();
                let ours = world.take();
                let Some((head, pieces)) = theirs else {
                    prop_assert!(ours.is_none());
                    break;
                };
                let (ticket, found) = ours.expect("the oracle found one");
                prop_assert_eq!((ticket.id(), found), (head, pieces));
                held.push(ticket);
            }
            // The oracle shows and decides for each completion, we for all of them at once.
            let mut oracle_calls = false;
            for (which, written) in ends.into_iter().zip(1u32..) {
                if held.is_empty() {
                    break;
                }
                let ticket = held.swap_remove(usize::from(which) % held.len());
                world.oracle.add_used(&world.oracle_memory, ticket.id(), written).unwrap();
                oracle_calls |= world.oracle.needs_notification(&world.oracle_memory).unwrap();
                world.queue.complete(ticket, written);
            }
            let called = world.queue.publish();
            if event_index {
                prop_assert_eq!(called, oracle_calls);
            }
            let [ours, theirs] = world.used_rings();
            prop_assert_eq!(ours, theirs);
            while world.driver.take_used().is_some() {}
            prop_assert_eq!(world.driver.fault(), None);
        }
        held.into_iter().for_each(Ticket::forfeit);
    }
}
