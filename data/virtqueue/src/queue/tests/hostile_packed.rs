//! Rows B1 to B9 of the reliability list, section 2B: what a hostile guest writes in a packed ring.

use super::rig::{Rig, packed, ring, spec};
use crate::driver::{Buffer, RawDescriptor, Used};
use crate::layout::Format;
use crate::{Queue, SetupError, Violation};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;
const TABLE: u64 = 0x8000;

fn descriptor(gpa: u64, len: u32, flags: u16, id: u16) -> RawDescriptor {
    RawDescriptor { gpa, len, flags, next_or_id: id }
}

fn writes(gpa: u64, len: u32) -> Buffer {
    Buffer { gpa, len, device_writes: true }
}

/// Writes the ring from place 0, every descriptor available in the first lap.
fn offer(rig: &Rig, ring: &[RawDescriptor]) {
    for (index, found) in ring.iter().enumerate().rev() {
        let flags = found.flags | AVAIL;
        rig.driver.raw().write_descriptor(index as u16, RawDescriptor { flags, ..*found });
    }
}

#[test]
fn b1_lap_bits_that_contradict_the_lap_are_not_available() {
    for bits in [0, USED, AVAIL | USED] {
        let mut rig = packed();
        rig.driver.raw().write_descriptor(0, descriptor(0, 1, WRITE | bits, 0));
        assert_eq!(rig.peek(), None);
        assert!(!rig.queue.arm());
        assert_eq!(rig.queue.violation(), None);
        rig.driver.raw().write_descriptor(0, descriptor(0, 1, WRITE | AVAIL, 0));
        assert_eq!(rig.peek(), Some(vec![writes(0, 1)]));
    }
}

#[test]
fn b2_chain_without_end() {
    let mut rig = packed();
    offer(&rig, &[descriptor(0, 1, NEXT | WRITE, 0); 8]);
    assert_eq!(rig.refused(), Some(Violation::ChainLoop { limit: 8 }));
    let mut rig = packed();
    offer(&rig, &[descriptor(0, 1, NEXT | WRITE, 0); 3]);
    assert_eq!(rig.refused(), Some(Violation::ChainLoop { limit: 4 }), "ends in nothing");
}

/// What was found ahead is not believed of what comes behind a chain that its guest has made more of since.
#[test]
fn a_chain_that_grew_ends_what_was_found_ahead() {
    let mut rig = packed();
    let places = [0, 64, 128, 192].map(|gpa| descriptor(gpa, 9, WRITE, gpa as u16 / 64));
    offer(&rig, &places);
    let first = rig.queue.peek_single(&rig.map, true).unwrap();
    assert_eq!(Some(first.span), rig.map.span(0, 9));
    rig.driver.raw().write_descriptor(0, descriptor(0, 9, NEXT | WRITE | AVAIL, 0));
    let (ticket, found) = rig.take().unwrap();
    assert_eq!((found.len(), ticket.id()), (2, 1));
    let next = rig.queue.peek_single(&rig.map, true).unwrap();
    assert_eq!(Some(next.span), rig.map.span(128, 9));
    rig.queue.complete(ticket, 0);
}

#[test]
fn b3_buffer_id_outside_the_ring() {
    for id in [8, 9, 32768, 65535] {
        let mut rig = packed();
        offer(&rig, &[descriptor(0, 1, WRITE, id)]);
        assert_eq!(rig.refused(), Some(Violation::BufferId { id, size: 8 }));
    }
}

#[test]
fn b3_buffer_id_used_twice_at_once() {
    let mut rig = packed();
    offer(&rig, &[descriptor(0, 1, WRITE, 5), descriptor(64, 1, WRITE, 5)]);
    let (first, _) = rig.take().unwrap();
    let (second, _) = rig.take().unwrap();
    rig.queue.complete(second, 1);
    rig.queue.complete(first, 1);
    rig.queue.publish();
    let raw = rig.driver.raw();
    assert_eq!(raw.read_descriptor(0).next_or_id, 5);
    assert_eq!(raw.read_descriptor(1).next_or_id, 5);
    assert_eq!(rig.queue.in_flight(), 0);
}

#[test]
fn b4_indirect_beside_next_or_in_a_chain() {
    let refused = |table: &[RawDescriptor]| {
        let mut rig = Rig::new(ring(Format::Packed, 8, false, 4));
        offer(&rig, table);
        rig.refused()
    };
    let table = descriptor(TABLE, 16, INDIRECT, 0);
    let with_next = RawDescriptor { flags: INDIRECT | NEXT, ..table };
    let first = descriptor(0, 1, NEXT, 0);
    assert_eq!(refused(&[with_next, first]), Some(Violation::IndirectPlace));
    assert_eq!(refused(&[first, table]), Some(Violation::IndirectPlace));
    let mut rig = packed();
    offer(&rig, &[table]);
    assert_eq!(rig.refused(), Some(Violation::IndirectPlace), "not negotiated");
}

#[test]
fn b4_indirect_tables_are_checked() {
    let rig_with = |len, inner: RawDescriptor| {
        let rig = Rig::new(ring(Format::Packed, 8, false, 4));
        rig.driver.raw().write_descriptor_to(&rig.area(TABLE, 16), 0, inner);
        offer(&rig, &[descriptor(TABLE, len, INDIRECT | WRITE, 3)]);
        rig
    };
    // WRITE on the table itself says nothing; NEXT and the id inside it neither.
    let mut rig = rig_with(16, descriptor(64, 8, NEXT | WRITE, 999));
    assert_eq!(rig.peek(), Some(vec![writes(64, 8)]));
    for len in [0, 8, 17, 0xffff_fff0] {
        let mut rig = rig_with(len, descriptor(64, 8, 0, 0));
        assert_eq!(rig.refused(), Some(Violation::IndirectTable { gpa: TABLE, len }));
    }
    let mut rig = rig_with(16, descriptor(TABLE, 16, INDIRECT, 0));
    assert_eq!(rig.refused(), Some(Violation::IndirectPlace));
    let mut rig = rig_with(16, descriptor(u64::MAX, 8, 0, 0));
    assert_eq!(rig.refused(), Some(Violation::BufferAddress { gpa: u64::MAX, len: 8 }));
    let mut rig = rig_with(16 * 1025, descriptor(0, 1, 0, 0));
    assert_eq!(rig.refused(), Some(Violation::ChainLoop { limit: 1024 }));
}

#[test]
fn b5_nonsense_in_the_event_structure_means_always_call() {
    for (place, flags) in [(8u16, 2u16), (0x7fff, 2), (0xffff, 2), (0, 3), (0, 0xffff)] {
        let mut rig = Rig::new(ring(Format::Packed, 8, true, 0));
        let event = rig.driver.raw().driver_area().clone();
        for _ in 0..20 {
            event.store_u16(0, place);
            event.store_u16(2, flags);
            rig.driver.add(&[writes(0, 1)], 1).unwrap();
            rig.driver.publish();
            rig.serve();
            assert!(rig.queue.publish(), "place {place} flags {flags}");
            assert_eq!(rig.driver.take_used(), Some(Used { token: 1, len: 1 }));
        }
    }
}

#[test]
fn b6_a_bad_request_among_good_ones() {
    let mut rig = packed();
    let bad = u64::MAX - 4096;
    for gpa in [0, 64, bad, 192] {
        rig.driver.add(&[writes(gpa, 1)], gpa).unwrap();
    }
    rig.driver.publish();
    assert_eq!(rig.serve(), 2);
    assert_eq!(rig.queue.violation(), Some(Violation::BufferAddress { gpa: bad, len: 1 }));
    rig.queue.publish();
    assert_eq!(rig.driver.take_used(), Some(Used { token: 0, len: 1 }));
    assert_eq!(rig.driver.take_used(), Some(Used { token: 64, len: 1 }));
    assert_eq!(rig.driver.take_used(), None);
}

#[test]
fn b7_sizes_that_are_no_power_of_two() {
    for size in [3u16, 7, 1000, 32767] {
        let mut rig = Rig::new(ring(Format::Packed, size, true, 0));
        let pieces = [writes(0, 1), writes(64, 2)];
        // Chains of two entries in an odd ring begin at another place in each lap.
        for token in 0..u64::from(size) * 2 {
            rig.driver.add(&pieces, token).unwrap();
            rig.driver.publish();
            let (ticket, found) = rig.take().unwrap();
            assert_eq!(found, pieces);
            rig.queue.complete(ticket, 3);
            rig.queue.publish();
            assert_eq!(rig.driver.take_used(), Some(Used { token, len: 3 }), "size {size}");
        }
        assert_eq!(rig.queue.violation(), None);
    }
}

#[test]
fn b8_ring_base_outside_the_ring_is_refused_and_a_wrong_lap_finds_nothing() {
    let mut rig = packed();
    for base in [8, 0x8008, 0x8008_8000, 0x7fff_0000] {
        let queue_spec = spec(&rig.map, rig.places, rig.ring, base);
        assert_eq!(Queue::new(queue_spec).unwrap_err(), SetupError::Base(base));
    }
    rig.driver.add(&[writes(0, 1)], 1).unwrap();
    rig.driver.publish();
    rig.reopen(0);
    assert_eq!(rig.peek(), None);
    assert_eq!(rig.queue.violation(), None);
}

#[test]
fn b9_descriptor_rewritten_after_it_was_read() {
    let mut rig = packed();
    offer(&rig, &[descriptor(64, 8, WRITE, 2)]);
    assert_eq!(rig.peek(), Some(vec![writes(64, 8)]));
    offer(&rig, &[descriptor(u64::MAX, 99, INDIRECT, 77)]);
    let ticket = rig.queue.advance(&rig.chain);
    assert_eq!(ticket.id(), 2);
    assert_eq!(super::rig::buffers(&rig.map, &rig.chain), [writes(64, 8)], "the copy is used");
    rig.queue.complete(ticket, 8);
    assert_eq!(rig.queue.violation(), None);
}

/// A guest that makes entries available again before they were used gets them served, and no more
/// of them at once than the ring holds.
#[test]
fn entries_taken_again_before_they_were_used() {
    let mut rig = packed();
    let mut held = Vec::new();
    for lap in 0..4 {
        let flags = WRITE | if lap % 2 == 0 { AVAIL } else { USED };
        for place in 0..8 {
            rig.driver.raw().write_descriptor(place, descriptor(0, 1, flags, place));
        }
        while let Some((ticket, _)) = rig.take() {
            held.push(ticket);
        }
    }
    assert_eq!(held.len(), 8);
    for ticket in held {
        rig.queue.complete(ticket, 1);
    }
    rig.queue.publish();
}
