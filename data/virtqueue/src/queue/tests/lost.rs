//! Rings and records whose memory goes away: they go on with what they find there, and stop.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use guest_memory::{Area, GuestMap, Health, Loss, Mapping, Region, Seal};
use rustix::fs::MemfdFlags;

use super::rig::{DATA, Rig, all_rings, packed, split};
use crate::Ticket;
use crate::driver::Buffer;
use crate::inflight::{Inflight, queue_region_len};
use crate::layout::Format;

/// Memory that its owner can cut off.
fn lent(len: u64) -> (OwnedFd, Arc<Mapping>) {
    guest_memory::recover_from_sigbus().unwrap();
    let fd = rustix::fs::memfd_create("lent", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    let mapping = Mapping::shared(&fd, 0, len, Seal::Any, &Health::default()).unwrap();
    (fd, mapping)
}

/// A few requests, of which two are in flight.
fn begin(rig: &mut Rig) -> Vec<Ticket> {
    let buffer = Buffer { gpa: 64, len: 8, device_writes: true };
    let size = u64::from(rig.ring.size);
    for token in 0..size.min(4) {
        rig.driver.add(&[buffer], token).unwrap();
    }
    rig.driver.publish();
    (0..2).filter_map(|_| rig.take()).map(|(ticket, _)| ticket).collect()
}

#[test]
fn every_ring_that_is_cut_off_ends_each_call_and_makes_the_map_ill() {
    for ring in all_rings() {
        let len = DATA + (4 << 20) + u64::from(ring.size) * 16 * u64::from(ring.indirect_entries);
        let (fd, mapping) = lent(len.next_multiple_of(4096));
        let map = GuestMap::new(vec![Region { gpa: 0, user: 0, mapping }]).unwrap();
        let mut rig = Rig::over(map, ring);
        let tickets = begin(&mut rig);
        assert!(!rig.map.health().is_lost(), "{ring:?}");
        rustix::fs::ftruncate(&fd, 0).unwrap();
        // Zeroes are an empty ring, or one that has gone back: found or not, nothing panics and
        // nothing waits.
        for ticket in tickets {
            rig.queue.complete(ticket, 1);
        }
        rig.queue.publish();
        rig.queue.arm();
        rig.queue.disarm();
        for _ in 0..8 {
            if let Some((ticket, _)) = rig.take() {
                rig.queue.abandon(ticket);
            }
        }
        assert_eq!(rig.map.health().loss(), Some(Loss::Memory), "{ring:?}");
        assert_eq!(rig.queue.in_flight(), 0, "{ring:?}");
    }
}

#[test]
fn a_record_that_is_cut_off_before_and_while_it_is_used_is_harmless() {
    for rig in [split, packed] {
        for cut_off_first in [true, false] {
            let mut rig: Rig = rig();
            let len = queue_region_len(rig.ring.format, rig.ring.size);
            let (fd, mapping) = lent(len);
            let health = mapping.health().unwrap().clone();
            let area = Area::whole(mapping);
            if cut_off_first {
                rustix::fs::ftruncate(&fd, 0).unwrap();
            }
            rig.record(area);
            let tickets = begin(&mut rig);
            rustix::fs::ftruncate(&fd, 0).unwrap();
            for ticket in tickets {
                rig.queue.complete(ticket, 1);
            }
            rig.queue.publish();
            while let Some((ticket, _)) = rig.take() {
                rig.queue.complete(ticket, 1);
            }
            rig.queue.publish();
            assert!(health.is_lost());
        }
    }
}

#[test]
fn what_is_abandoned_is_told_to_nobody_and_served_by_the_next_process() {
    for (rig, format) in [(split as fn() -> Rig, Format::Split), (packed, Format::Packed)] {
        let mut rig = rig();
        let area = Area::anonymous(queue_region_len(format, rig.ring.size)).unwrap();
        rig.record(area.clone());
        let tickets = begin(&mut rig);
        assert_eq!(tickets.len(), 2);
        for ticket in tickets {
            rig.queue.abandon(ticket);
        }
        assert_eq!(rig.queue.in_flight(), 0);
        assert!(rig.driver.take_used().is_none());
        rig.record(area);
        assert_eq!(rig.serve(), 4, "the two that were abandoned come first");
        rig.queue.publish();
        let tokens: Vec<u64> =
            std::iter::from_fn(|| rig.driver.take_used()).map(|used| used.token).collect();
        assert_eq!(tokens, [0, 1, 2, 3]);
    }
}

impl Rig {
    /// The same ring, begun anew with the record in `area`.
    fn record(&mut self, area: Area) {
        let mut spec = super::rig::spec(
            &self.map,
            self.places,
            self.ring,
            super::rig::start(self.ring.format),
        );
        spec.inflight = Some(Inflight::new(area, self.ring.format, self.ring.size).unwrap());
        self.queue = crate::Queue::new(spec).unwrap();
    }
}
