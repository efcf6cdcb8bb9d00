//! Rows A1 to A28 of the reliability list, section 2A: what a hostile guest writes in a split ring.
//! A23 is in `trips`.

use guest_memory::{GuestMap, Mapping, Region};
use proptest::prelude::*;

use super::rig::{DATA, Rig, ring, spec, split, start, two_regions};
use crate::driver::{Buffer, RawDescriptor, Used};
use crate::layout::Format;
use crate::{CHAIN_SPANS_MAX, Queue, SetupError, Violation};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Where hand-made indirect tables are.
const TABLE: u64 = 0x8000;

fn descriptor(gpa: u64, len: u32, flags: u16, next: u16) -> RawDescriptor {
    RawDescriptor { gpa, len, flags, next_or_id: next }
}

fn reads(gpa: u64, len: u32) -> Buffer {
    Buffer { gpa, len, device_writes: false }
}

fn writes(gpa: u64, len: u32) -> Buffer {
    Buffer { gpa, len, device_writes: true }
}

/// A split ring that may use indirect tables.
fn indirect() -> Rig {
    Rig::new(ring(Format::Split, 8, false, 4))
}

/// Makes `table` the descriptor table and the chain at its entry 0 the only one available.
fn offer(rig: &Rig, table: &[RawDescriptor]) {
    let raw = rig.driver.raw();
    for (index, descriptor) in table.iter().enumerate() {
        raw.write_descriptor(index as u16, *descriptor);
    }
    raw.write_avail(0, 0);
    raw.set_avail_index(1);
}

fn write_table(rig: &Rig, gpa: u64, table: &[RawDescriptor]) {
    let area = rig.area(gpa, 16 * table.len() as u64);
    for (index, descriptor) in table.iter().enumerate() {
        rig.driver.raw().write_descriptor_to(&area, index as u16, *descriptor);
    }
}

#[test]
fn a01_loop_of_direct_descriptors() {
    let mut rig = split();
    offer(&rig, &[descriptor(0, 1, NEXT, 1), descriptor(0, 1, NEXT, 0)]);
    assert_eq!(rig.refused(), Some(Violation::ChainLoop { limit: 8 }));
}

#[test]
fn a02_loop_inside_an_indirect_table() {
    for (entries, limit) in [(2u32, 2u32), (4096, 1024)] {
        let mut rig = indirect();
        offer(&rig, &[descriptor(TABLE, 16 * entries, INDIRECT, 0)]);
        write_table(&rig, TABLE, &[descriptor(0, 1, NEXT, 1), descriptor(0, 1, NEXT, 0)]);
        assert_eq!(rig.refused(), Some(Violation::ChainLoop { limit }));
    }
}

#[test]
fn a03_next_outside_the_table() {
    let mut rig = split();
    offer(&rig, &[descriptor(0, 1, NEXT, 8)]);
    assert_eq!(rig.refused(), Some(Violation::DescriptorIndex { index: 8, size: 8 }));
}

#[test]
fn a04_next_outside_the_indirect_table() {
    for next in [2, 3, 65535] {
        let mut rig = indirect();
        offer(&rig, &[descriptor(TABLE, 32, INDIRECT, 0)]);
        write_table(&rig, TABLE, &[descriptor(0, 1, NEXT, next)]);
        assert_eq!(rig.refused(), Some(Violation::DescriptorIndex { index: next, size: 2 }));
    }
}

#[test]
fn a05_indirect_inside_indirect() {
    let mut rig = indirect();
    offer(&rig, &[descriptor(TABLE, 32, INDIRECT, 0)]);
    write_table(&rig, TABLE, &[descriptor(TABLE, 16, INDIRECT, 0)]);
    assert_eq!(rig.refused(), Some(Violation::IndirectPlace));
}

#[test]
fn a06_indirect_and_next_together() {
    let mut rig = indirect();
    offer(&rig, &[descriptor(TABLE, 16, INDIRECT | NEXT, 1), descriptor(0, 1, WRITE, 0)]);
    assert_eq!(rig.refused(), Some(Violation::IndirectPlace));
}

#[test]
fn a07_direct_descriptors_before_an_indirect_one() {
    let mut rig = indirect();
    offer(&rig, &[descriptor(16, 16, NEXT, 1), descriptor(TABLE, 32, INDIRECT, 0)]);
    write_table(&rig, TABLE, &[descriptor(64, 8, NEXT | WRITE, 1), descriptor(96, 1, WRITE, 0)]);
    assert_eq!(rig.peek(), Some(vec![reads(16, 16), writes(64, 8), writes(96, 1)]));
    assert_eq!(rig.chain.walked(), 4, "each descriptor is paid for");
}

#[test]
fn a08_write_flag_on_the_indirect_descriptor_itself() {
    let mut rig = indirect();
    offer(&rig, &[descriptor(TABLE, 16, INDIRECT | WRITE, 0)]);
    write_table(&rig, TABLE, &[descriptor(64, 8, 0, 0)]);
    assert_eq!(rig.peek(), Some(vec![reads(64, 8)]));
}

#[test]
fn a09_impossible_length_of_an_indirect_table() {
    let end = split().map.end();
    let cases =
        [(TABLE, 0), (TABLE, 8), (TABLE, 17), (TABLE, 0xffff_fff0), (end - 16, 32), (end, 16)];
    for (gpa, len) in cases {
        let mut rig = indirect();
        offer(&rig, &[descriptor(gpa, len, INDIRECT, 0)]);
        assert_eq!(rig.refused(), Some(Violation::IndirectTable { gpa, len }));
    }
}

#[test]
fn a10_indirect_table_over_two_regions() {
    let map = two_regions(2 << 20, 4096);
    let mut rig = Rig::over(map, ring(Format::Split, 8, false, 4));
    let gpa = (2 << 20) - 16;
    offer(&rig, &[descriptor(gpa, 32, INDIRECT, 0)]);
    assert_eq!(rig.refused(), Some(Violation::IndirectTable { gpa, len: 32 }));
}

#[test]
fn a11_indirect_though_not_negotiated() {
    let mut rig = split();
    offer(&rig, &[descriptor(TABLE, 16, INDIRECT, 0)]);
    assert_eq!(rig.refused(), Some(Violation::IndirectPlace));
}

/// A writable buffer that is not in guest memory, direct and in an indirect table.
fn refused_buffer(gpa: u64, len: u32) {
    let mut rig = split();
    offer(&rig, &[descriptor(0, 16, NEXT, 1), descriptor(gpa, len, WRITE, 0)]);
    assert_eq!(rig.refused(), Some(Violation::BufferAddress { gpa, len }));
    let mut rig = indirect();
    offer(&rig, &[descriptor(TABLE, 16, INDIRECT, 0)]);
    write_table(&rig, TABLE, &[descriptor(gpa, len, WRITE, 0)]);
    assert_eq!(rig.refused(), Some(Violation::BufferAddress { gpa, len }));
}

#[test]
fn a12_buffer_outside_all_regions() {
    for gpa in [indirect().map.end(), 1 << 40, u64::MAX] {
        refused_buffer(gpa, 1);
    }
}

#[test]
fn a13_buffer_runs_past_its_region() {
    refused_buffer(indirect().map.end() - 8, 9);
    refused_buffer(16, u32::MAX);
}

#[test]
fn a14_address_and_length_wrap() {
    refused_buffer(u64::MAX - 7, 16);
    refused_buffer(u64::MAX, u32::MAX);
}

#[test]
fn a15_buffer_over_two_adjacent_regions() {
    let edge = 2 << 20;
    let mut rig = Rig::over(two_regions(edge, 4096), ring(Format::Split, 8, false, 0));
    offer(&rig, &[descriptor(edge - 100, 300, WRITE, 0)]);
    assert_eq!(rig.peek(), Some(vec![writes(edge - 100, 100), writes(edge, 200)]));
    assert_eq!(rig.chain.writable_bytes(), 300);
    let mut rig = Rig::over(two_regions(edge, 4096), ring(Format::Split, 8, false, 0));
    offer(&rig, &[descriptor(edge - 100, 4197, WRITE, 0)]);
    let beyond = Violation::BufferAddress { gpa: edge - 100, len: 4197 };
    assert_eq!(rig.refused(), Some(beyond));
}

/// Each descriptor costs as much as the map has regions: a chain with more pieces than are kept is
/// not cut any further (A31).
#[test]
fn a15_pieces_of_one_chain_are_bounded() {
    let rings = Region { gpa: 0, user: 0, mapping: Mapping::anonymous(1 << 20).unwrap() };
    let bytes = (0..200).map(|at| {
        let gpa = (1 << 30) + at;
        Region { gpa, user: gpa, mapping: Mapping::anonymous(1).unwrap() }
    });
    let regions: Vec<Region> = [rings].into_iter().chain(bytes).collect();
    let chain = |rig: &Rig, crossing: u16| {
        let mut table: Vec<_> =
            (0..crossing).map(|index| descriptor(1 << 30, 200, NEXT, index + 1)).collect();
        table.push(descriptor(0, 1, WRITE, 0));
        offer(rig, &table);
    };
    let ring = ring(Format::Split, 8, false, 0);

    let mut rig = Rig::over(GuestMap::new(regions.clone()).unwrap(), ring);
    chain(&rig, 1);
    assert_eq!(rig.peek().map(|buffers| buffers.len()), Some(201), "legal, and kept whole");

    let mut rig = Rig::over(GuestMap::new(regions).unwrap(), ring);
    chain(&rig, 2);
    assert_eq!(rig.refused(), Some(Violation::BufferPieces { gpa: 1 << 30, len: 200 }));
}

#[test]
fn a16_empty_descriptors_are_skipped() {
    let whole = [(0, 16, 0u16), (512, 512, WRITE), (2048, 1, WRITE)];
    let canonical = vec![reads(0, 16), writes(512, 512), writes(2048, 1)];
    for empty_at in 0..=3usize {
        for (gpa, flags) in [(64, 0), (64, WRITE), (u64::MAX, WRITE), (u64::MAX, 0)] {
            let mut rig = split();
            let mut table: Vec<_> = whole.to_vec();
            table.insert(empty_at, (gpa, 0, flags));
            let last = table.len() - 1;
            let chained: Vec<_> = (0u16..)
                .zip(table)
                .map(|(at, (gpa, len, flags))| {
                    let more = if usize::from(at) < last { NEXT } else { 0 };
                    descriptor(gpa, len, flags | more, at + 1)
                })
                .collect();
            offer(&rig, &chained);
            assert_eq!(rig.peek().as_ref(), Some(&canonical), "empty at {empty_at}");
        }
    }
    let mut rig = split();
    offer(&rig, &[descriptor(0, 0, NEXT, 1), descriptor(u64::MAX, 0, WRITE, 0)]);
    assert_eq!(rig.peek(), Some(vec![]), "nothing but empty ones");
    assert!(rig.chain.last_writable().is_empty());
    let mut rig = split();
    offer(&rig, &[descriptor(0, 0, NEXT, 0)]);
    assert_eq!(rig.refused(), Some(Violation::ChainLoop { limit: 8 }));
}

#[test]
fn a17_buffers_of_4_gib() {
    use guest_memory::GuestMap;
    let quarter = 1u32 << 30;
    for (last, legal) in [(quarter, false), (quarter - 1, true)] {
        let map = GuestMap::anonymous(1 << 30).unwrap();
        let mut rig = Rig::over(map, ring(Format::Split, 8, false, 0));
        let piece = |len, flags, next| descriptor(0, len, flags, next);
        let next = |at| piece(quarter, NEXT | WRITE, at);
        offer(&rig, &[next(1), next(2), next(3), piece(last, WRITE, 0)]);
        if legal {
            assert_eq!(rig.peek().map(|found| found.len()), Some(4));
            assert_eq!(rig.chain.writable_bytes(), (1 << 32) - 1);
        } else {
            assert_eq!(rig.refused(), Some(Violation::ChainBytes));
        }
    }
}

#[test]
fn a18_readable_after_writable() {
    let mut rig = split();
    offer(&rig, &[descriptor(0, 1, NEXT | WRITE, 1), descriptor(64, 1, 0, 0)]);
    assert_eq!(rig.refused(), Some(Violation::BufferOrder));
}

#[test]
fn a19_available_index_jumps() {
    let mut rig = split();
    rig.driver.raw().set_avail_index(9);
    let (from, to, size) = (0, 9, 8);
    assert_eq!(rig.refused(), Some(Violation::AvailableIndex { from, to, size }));
}

#[test]
fn a20_available_index_goes_back() {
    let mut rig = split();
    offer(&rig, &[descriptor(0, 1, WRITE, 0)]);
    assert_eq!(rig.serve(), 1);
    rig.driver.raw().set_avail_index(0);
    let (from, to, size) = (1, 0, 8);
    assert_eq!(rig.refused(), Some(Violation::AvailableIndex { from, to, size }));
    let mut rig = split();
    offer(&rig, &[descriptor(0, 1, WRITE, 0)]);
    rig.serve();
    rig.driver.raw().set_avail_index(0);
    assert!(!rig.queue.arm());
    assert_eq!(rig.queue.violation(), Some(Violation::AvailableIndex { from, to, size }));
}

#[test]
fn a21_head_outside_the_table() {
    for head in [8, 9, 32768, 65535] {
        let mut rig = split();
        rig.driver.raw().write_avail(0, head);
        rig.driver.raw().set_avail_index(1);
        assert_eq!(rig.refused(), Some(Violation::DescriptorIndex { index: head, size: 8 }));
    }
}

#[test]
fn a22_one_head_made_available_twice() {
    let mut rig = split();
    offer(&rig, &[descriptor(0, 1, WRITE, 0)]);
    let raw = rig.driver.raw().clone();
    raw.write_avail(1, 0);
    raw.set_avail_index(2);
    let (first, _) = rig.take().unwrap();
    let (second, _) = rig.take().unwrap();
    rig.queue.complete(first, 1);
    rig.queue.complete(second, 1);
    rig.queue.publish();
    assert_eq!((raw.used_index(), raw.read_used(0), raw.read_used(1)), (2, (0, 1), (0, 1)));
    assert_eq!(rig.queue.in_flight(), 0);
}

#[test]
fn a22_never_more_in_flight_than_the_ring_holds() {
    let mut rig = split();
    offer(&rig, &[descriptor(0, 1, WRITE, 0)]);
    let mut held = Vec::new();
    for index in 1..100 {
        rig.driver.raw().set_avail_index(index);
        held.extend(rig.take().map(|(ticket, _)| ticket));
    }
    assert_eq!(held.len(), 8);
    held.into_iter().for_each(crate::Ticket::forfeit);
}

/// Row A24: parts of the ring over each other and over the buffers.
#[test]
fn a24_overlapping_parts() {
    let rig = split();
    for (driver, device) in [(0, 0), (0, 64), (64, 0), (4, 8), (2, 4)] {
        let mut queue_spec = spec(&rig.map, rig.places, rig.ring, 0);
        queue_spec.descriptors = rig.area(0, 128);
        queue_spec.driver = rig.area(driver, 20);
        queue_spec.device = rig.area(device, 68);
        let mut rig = split();
        rig.area(0, 256).write(0, &[1; 256]);
        rig.queue = Queue::new(queue_spec).unwrap();
        for _ in 0..1000 {
            let served = rig.serve();
            assert!(served <= 8, "a ring that feeds itself ends");
            rig.queue.publish();
        }
    }
}

#[test]
fn a25_ring_at_the_last_bytes_of_a_region() {
    let rig = split();
    let end = rig.map.end();
    let mut places = rig.places;
    places.device = end - 68;
    let mut queue = Queue::new(spec(&rig.map, places, rig.ring, start(Format::Split))).unwrap();
    assert!(!queue.peek(&rig.map, &mut crate::Chain::default()));
    assert!(rig.map.area_at_user(end - 64, 68).is_none(), "four bytes too far");
    let mut queue_spec = spec(&rig.map, rig.places, rig.ring, 0);
    queue_spec.device = rig.area(end - 64, 64);
    let short = SetupError::Short { part: "device", have: 64, need: 68 };
    assert_eq!(Queue::new(queue_spec).unwrap_err(), short);
}

#[test]
fn a26_data_buffer_is_the_ring_itself() {
    let mut rig = split();
    let places = rig.places;
    let raw = rig.driver.raw().clone();
    offer(
        &rig,
        &[descriptor(places.descriptors, 128, WRITE | NEXT, 1), {
            descriptor(places.device, 68, WRITE, 0)
        }],
    );
    let (ticket, found) = rig.take().unwrap();
    assert_eq!(found, [writes(places.descriptors, 128), writes(places.device, 68)]);
    for span in rig.chain.writable() {
        assert!(rig.map.write(*span, 0, &vec![0xff; span.len() as usize]));
    }
    rig.queue.complete(ticket, 196);
    rig.queue.publish();
    assert_eq!(raw.used_index(), 1, "our own count, whatever the ring says");
    raw.write_avail(1, 0);
    raw.set_avail_index(2);
    assert_eq!(rig.refused(), Some(Violation::IndirectPlace), "every flag is set now");
}

#[test]
fn a27_descriptor_changed_after_it_was_read() {
    let mut rig = split();
    offer(&rig, &[descriptor(64, 8, WRITE, 0)]);
    assert_eq!(rig.peek(), Some(vec![writes(64, 8)]));
    rig.driver.raw().write_descriptor(0, descriptor(u64::MAX, 99, INDIRECT, 9));
    let ticket = rig.queue.advance(&rig.chain);
    assert_eq!(super::rig::buffers(&rig.map, &rig.chain), [writes(64, 8)], "the copy is used");
    rig.queue.complete(ticket, 8);
    assert_eq!(rig.queue.violation(), None);
}

#[test]
fn a28_without_event_indices_only_the_flag_counts() {
    let mut rig = Rig::new(ring(Format::Split, 8, false, 0));
    // Where `used_event` would be, had it been negotiated.
    let beyond = rig.area(rig.places.driver, 22);
    for event in [0u16, 1, 5, 77, 65535] {
        beyond.store_u16(20, event);
        rig.driver.add(&[writes(0, 1)], 1).unwrap();
        rig.driver.publish();
        rig.serve();
        assert!(rig.queue.publish(), "calls are on");
        assert_eq!(rig.driver.take_used(), Some(Used { token: 1, len: 1 }));
    }
}

proptest! {
    /// Row A28: a guest that writes nonsense as its `used_event` hurts nobody but itself, and an
    /// honest `used_event` afterwards works.
    #[test]
    fn a28_random_used_event(events in prop::collection::vec(any::<u16>(), 1..50)) {
        let mut rig = Rig::new(ring(Format::Split, 8, true, 0));
        for event in events {
            rig.driver.raw().driver_area().store_u16(20, event);
            rig.driver.add(&[writes(0, 1)], 1).unwrap();
            rig.driver.publish();
            prop_assert_eq!(rig.serve(), 1);
            rig.queue.publish();
            prop_assert!(rig.driver.take_used().is_some());
        }
        prop_assert!(!rig.driver.arm_calls());
        rig.driver.add(&[writes(0, 1)], 1).unwrap();
        rig.driver.publish();
        rig.serve();
        prop_assert!(rig.queue.publish(), "the honest wish is heard");
    }
}

#[test]
fn a_chain_of_more_spans_than_are_kept_is_counted_whole() {
    let mut rig = Rig::new(ring(Format::Split, 1024, false, 0));
    let mut table: Vec<_> =
        (0..400).map(|at| descriptor(at * 64, 64, NEXT | WRITE, at as u16 + 1)).collect();
    table.push(descriptor(DATA - 1, 1, WRITE, 0));
    offer(&rig, &table);
    assert_eq!(rig.peek().map(|found| found.len()), Some(CHAIN_SPANS_MAX));
    assert!(rig.chain.overflowed());
    assert_eq!(rig.chain.writable_bytes(), 400 * 64 + 1);
    assert_eq!(rig.chain.last_writable().len(), 1, "the status place is known all the same");
}
