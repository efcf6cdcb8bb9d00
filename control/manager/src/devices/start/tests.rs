//! Where rings go on.

use std::os::fd::OwnedFd;

use cpus::HostCpus;
use guest_memory::Seal;
use vhost_user::{MemoryRegion, Owner, RingAddresses};

use super::*;
use crate::bounds::Bounds;
use crate::devices::lent::Closer;
use crate::network::nic::NicParts;

const LEN: u64 = 1 << 16;
const SIZE: u16 = 4;
/// Parts of the ring, front-end addresses.
const DESCRIPTORS: u64 = 0;
const USED: u64 = 0x2000;
/// A packed ring's base: place 3 in the first lap, for both sides.
const THIRD: u32 = 0x8003_8003;

/// A NIC with guest memory of `LEN` bytes, and a way to write there.
struct Fixture {
    kind: Kind,
    facts: Facts,
    front_end: FrontEnd,
    memory: OwnedFd,
    counters: Arc<QueueCounters>,
}

impl Fixture {
    fn new() -> Fixture {
        let host = HostCpus { online: vec![0], auto: vec![0], auto_count: 1 };
        let text = "[[nic]]\nid = \"n\"\nnull = \"drop\"\n";
        let plan = config::plan::load(text, "f", "/", &host, None).expect("a good file");
        let plan = plan.nics.into_iter().next().expect("a nic");
        let (facts, kind) = (Facts::from(&plan), Kind::Nic(NicParts::new(plan, None)));
        let closer = Closer::default();
        let memory =
            rustix::fs::memfd_create("m", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&memory, LEN).expect("sized");
        let seal = Seal::Any;
        let mut front_end =
            FrontEnd::new(kind.personality(), seal, &Bounds::without_limits(), &closer);
        let region = MemoryRegion { gpa: 0, size: LEN, user: 0, offset: 0 };
        let lent = Lent::new(memory.try_clone().expect("a descriptor"), &closer);
        front_end.set_memory(&[region], vec![lent]).expect("taken");
        Fixture { kind, facts, front_end, memory, counters: Arc::default() }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        rustix::io::pwrite(&self.memory, bytes, at).expect("written");
    }

    /// Where the ring would go on when its front-end says `told`.
    fn base(&self, told: u32, negotiated: u64, left: Option<Left>) -> u32 {
        self.try_base(told, negotiated, left).expect("a base")
    }

    fn try_base(&self, told: u32, negotiated: u64, left: Option<Left>) -> Result<u32, RingError> {
        let key = QueueKey { device: 0, queue: 0 };
        let (kind, facts, counters) = (&self.kind, &self.facts, &self.counters);
        let stages = Default::default();
        let parts = DeviceParts { key, kind, facts, counters, left, stages };
        base_of(&ring(told), negotiated, &self.front_end, &parts)
    }
}

fn ring(told: u32) -> RingFacts<'static, Lent> {
    let addresses = RingAddresses {
        descriptors: DESCRIPTORS,
        driver: 0x1000,
        device: USED,
        log: 0,
        logged: false,
    };
    RingFacts { size: SIZE, addresses, base: told, told, kick: None, call: None }
}

#[test]
fn a_split_ring_of_a_nic_goes_on_behind_what_was_used() {
    let fixture = Fixture::new();
    fixture.write(USED + 2, &7u16.to_le_bytes());
    for told in [0, 7, 11] {
        assert_eq!(fixture.base(told, 0, None), 7, "told {told}");
    }
}

#[test]
fn a_packed_ring_that_was_cut_off_goes_on_where_it_stood() {
    let fixture = Fixture::new();
    let left = Some(Left::at_start(&ring(PACKED_FRESH)).at(THIRD));
    // Place 0 was used in the first lap.
    fixture.write(DESCRIPTORS, &[1; 12]);
    fixture.write(DESCRIPTORS + 14, &(PACKED_AVAIL | PACKED_USED).to_le_bytes());
    let base = |told, left| fixture.base(told, features::RING_PACKED, left);
    assert_eq!(base(PACKED_FRESH, left), THIRD);
    let refused = fixture.try_base(PACKED_FRESH, features::RING_PACKED, None);
    assert!(matches!(refused, Err(RingError::PackedLost)), "nothing is known: {refused:?}");
    assert_eq!(base(0x8001_8001, left), 0x8001_8001, "it was told where the ring stood");
}

/// Whoever says what was said before knows no more, be it on another connection.
#[test]
fn a_packed_ring_whose_place_is_lost_is_served_where_its_front_end_says_anew_or_its_guest_has_begun()
 {
    let fixture = Fixture::new();
    let left = |told| Some(Left::lost(&ring(told)));
    let base = |told, left| fixture.try_base(told, features::RING_PACKED, left).ok();
    assert_eq!(base(PACKED_FRESH, left(PACKED_FRESH)), Some(PACKED_FRESH), "nothing was used");
    fixture.write(DESCRIPTORS, &[1; 12]);
    fixture.write(DESCRIPTORS + 14, &(PACKED_AVAIL | PACKED_USED).to_le_bytes());
    assert_eq!(base(PACKED_FRESH, left(PACKED_FRESH)), None);
    assert_eq!(base(THIRD, left(THIRD)), None);
    assert_eq!(base(THIRD, left(PACKED_FRESH)), Some(THIRD), "it knows more");
}

#[test]
fn a_packed_ring_of_a_guest_that_started_anew_begins_anew() {
    let fixture = Fixture::new();
    let left = Some(Left::at_start(&ring(PACKED_FRESH)).at(THIRD));
    // Place 0 is available in the first lap.
    fixture.write(DESCRIPTORS, &[1; 12]);
    fixture.write(DESCRIPTORS + 14, &PACKED_AVAIL.to_le_bytes());
    assert_eq!(fixture.base(PACKED_FRESH, features::RING_PACKED, left), PACKED_FRESH);
}

#[test]
fn a_fresh_packed_ring_of_dpdk_has_numbers_and_half_a_base_and_begins_anew() {
    let fixture = Fixture::new();
    for place in 0..SIZE {
        fixture.write(DESCRIPTORS + 16 * u64::from(place) + 12, &place.to_le_bytes());
    }
    for told in [0x8000, PACKED_FRESH] {
        let left = Some(Left::at_start(&ring(told)).at(THIRD));
        assert_eq!(fixture.base(told, features::RING_PACKED, left), told);
    }
}

#[test]
fn a_ring_that_cannot_be_served_is_told_why() {
    let all: [(RingError, &str); 8] = [
        (MemoryMissing::NotAnnounced.into(), "no memory was announced"),
        (
            RingError::NotInMemory { part: "driver part", user: 0x2000 },
            "the driver part of the ring at 0x2000 is not in memory",
        ),
        (
            RingError::RecordFor { queues: 1, queue_size: 128, index: 1, size: 256 },
            "the in-flight record is for 1 queues of 128, this is queue 1 of 256 entries",
        ),
        (RingError::RecordEnds { index: 3 }, "the in-flight record ends before queue 3"),
        (RingError::NotOpen, "its image is not open"),
        (RingError::NoPort, "the nic has no port"),
        (
            RingError::PackedLost,
            "its packed ring was used before the daemon was started, and its front-end does not know \
             where it stands: reset the device in the guest (unbind and bind its driver, or restart the \
             guest); with packed=off a NIC outlives a kill of the daemon",
        ),
        (
            RingError::PlaceLost,
            "another process served its packed ring and died, and its front-end keeps no in-flight record: \
             nobody knows where the ring stands; restart the guest, or, where its VMM connects again after a \
             cut, reset the device in the guest (unbind and bind its driver)",
        ),
    ];
    for (error, text) in all {
        assert_eq!(error.to_string(), text);
    }
}
