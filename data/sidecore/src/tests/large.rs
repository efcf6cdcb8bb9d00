//! Requests that are larger than a visit may be.

use std::io::Write;

use guest_memory::Loss;
use virtqueue::Violation;
use virtqueue::driver::Buffer;

use super::bed::*;
use crate::large::{REST_NS, SLICE_BYTES};
use crate::{Command, Event};

/// A slice takes as long as a visit may.
const LONG_NS: u64 = 25_000;

/// `len` bytes of a guest's spare memory as `pieces` buffers of unequal size, out of order.
fn buffers(len: u64, pieces: u64, device_writes: bool) -> Vec<Buffer> {
    let mut sizes: Vec<u64> = (0..pieces).map(|piece| len / pieces + piece % 3 - 1).collect();
    let rest = len - sizes.iter().take(pieces as usize - 1).sum::<u64>();
    sizes[pieces as usize - 1] = rest;
    let mut at = SPARE_AT;
    let mut buffers: Vec<Buffer> = sizes
        .into_iter()
        .map(|size| {
            let buffer = Buffer { gpa: at, len: size as u32, device_writes };
            at += size;
            buffer
        })
        .collect();
    buffers.reverse();
    buffers
}

/// Bytes that differ from place to place.
fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

#[test]
fn a_large_request_is_done_in_slices_whole_and_in_order() {
    const LEN: u64 = 15 << 20;
    for (pieces, sector) in [(1, 0), (2, 3), (7, 2047), (120, 1)] {
        let mut guest = Guest::new(ring(256));
        let mut core = Core::new(1);
        core.tick_ns = LONG_NS;
        let counters = core.attach(&guest, guest.spec(1, &memory()));
        let spare = guest.map.area_at_user(SPARE_AT, SPARE).unwrap();
        let bytes = pattern(LEN);
        assert!(spare.write(0, &bytes));
        guest.add_over(0, WRITE, sector, &buffers(LEN, pieces, false));
        guest.driver.publish();
        let passes = (1..100).find(|_| {
            core.pass();
            !guest.take().is_empty()
        });
        // A first or last slice that is small takes no pass of its own.
        let whole = (LEN / SLICE_BYTES) as u32;
        assert!(passes.is_some_and(|passes| (whole..=whole + 1).contains(&passes)), "{passes:?}");
        assert_eq!(guest.status(0), 0);
        assert!(spare.zero(0, LEN as usize));
        guest.add_over(0, READ, sector, &buffers(LEN, pieces, true));
        guest.driver.publish();
        core.passes(whole + 1);
        assert_eq!(guest.take(), [(0, 0)]);
        let mut back = vec![0; LEN as usize];
        assert!(spare.read(0, &mut back));
        assert!(back == bytes, "{pieces} pieces from sector {sector}");
        let seen = counters.snapshot();
        assert_eq!((seen.requests, seen.reads, seen.writes, seen.in_flight), (2, 1, 1, 0));
        assert_eq!((seen.read_bytes, seen.written_bytes), (LEN, LEN));
    }
}

#[test]
fn a_ring_full_of_huge_requests_does_one_slice_between_two_visits_of_its_neighbour() {
    let (mut greedy, mut modest) = (Guest::new(ring(64)), Guest::new(ring(16)));
    let mut core = Core::new(2);
    core.tick_ns = LONG_NS;
    let counters = core.attach(&greedy, greedy.spec(1, &memory()));
    core.attach(&modest, modest.spec(2, &memory()));
    let len = 15 << 20;
    for number in 0..20 {
        greedy.add_over(number, READ, 0, &buffers(len, 1, true));
    }
    greedy.driver.publish();
    let passes = 20 * (len / SLICE_BYTES);
    for pass in 0..passes {
        modest.ask(4, READ);
        core.pass();
        assert_eq!(modest.take_ok(), 4, "in every pass");
        let done = counters.snapshot().requests;
        assert!(done * len <= (pass + 1) * SLICE_BYTES, "{done} after {pass}");
    }
    assert_eq!(greedy.take_ok(), 20);
}

#[test]
fn what_no_longer_fits_a_visit_waits_for_the_next() {
    let mut guest = Guest::new(ring(64));
    let mut core = Core::new(1);
    core.tick_ns = LONG_NS;
    core.attach(&guest, guest.spec(1, &memory()));
    let len = SLICE_BYTES / 8 * 5;
    for number in 0..3 {
        guest.add_over(number, READ, 0, &buffers(len, 1, true));
    }
    guest.driver.publish();
    for _ in 0..3 {
        assert_eq!(core.pass().requests, 1);
        assert_eq!(guest.take_ok(), 1);
    }
    // And a small one beside the end of a large one is taken with it.
    guest.add_over(0, READ, 0, &buffers(SLICE_BYTES + 4096, 1, true));
    guest.add(1, READ, 0, 1);
    guest.driver.publish();
    core.pass();
    assert_eq!(guest.take_ok(), 0);
    core.pass();
    assert_eq!(guest.take_ok(), 2);
}

#[test]
fn a_large_request_under_way_is_finished_before_its_queue_leaves() {
    let mut guest = Guest::new(ring(64));
    let mut core = Core::new(1);
    core.tick_ns = LONG_NS;
    core.attach(&guest, guest.spec(1, &memory()));
    guest.add_over(0, READ, 0, &buffers(4 * SLICE_BYTES, 1, true));
    guest.add(1, READ, 0, 1);
    guest.driver.publish();
    core.pass();
    core.send(Command::Detach(key(1)));
    core.pass();
    assert!(core.events().is_empty(), "it is under way");
    assert!(!core.rest(), "and goes on without a reason from outside");
    core.passes(2);
    assert_eq!(detached(core.events(), 1).queue().base(), 1, "the second was not taken");
    assert_eq!(guest.take(), [(0, 0)]);
}

#[test]
fn a_large_request_stops_when_its_memory_is_lost() {
    let mut guest = Guest::new(ring(64));
    let mut core = Core::new(1);
    core.tick_ns = LONG_NS;
    let counters = core.attach(&guest, guest.spec(1, &memory()));
    guest.add_over(0, WRITE, 0, &buffers(15 << 20, 1, false));
    guest.driver.publish();
    core.pass();
    guest.map.health().lose(Loss::Memory);
    core.pass();
    assert_eq!((counters.snapshot().in_flight, guest.status(0)), (0, 0xff));
    assert!(matches!(core.events()[..], [Event::Failed { violation: Violation::MemoryLost, .. }]));
}

/// Copies of a request in parts leave most of the time to a neighbour that asks little, and all of it is theirs where
/// there is none. The neighbour is there first, or comes when one copy has been made; the last part may be short.
#[test]
fn what_is_copied_in_parts_rests_beside_others_alone() {
    const COPY_NS: u64 = 20_000;
    let (folder, disk) = super::file::file();
    if disk.describe() != "file, direct" {
        let name = "what_is_copied_in_parts_rests_beside_others_alone";
        let why = format!("{} has no direct I/O", folder.path().display());
        let _ = std::io::stderr().write_all(format!("skipped: {why}: {name}\n").as_bytes());
        return;
    }
    // Reads of a hole, which end at once.
    for tail in [0, 512] {
        for comes_after in [0, 1, u64::MAX] {
            let len = 16 * (64 << 10) + tail;
            let data = [Buffer { gpa: SPARE_AT + 1, len: len as u32, device_writes: true }];
            let (mut greedy, mut modest) = (Guest::new(ring(16)), Guest::new(ring(16)));
            let mut core = Core::new(2);
            let counters = core.attach(&greedy, greedy.spec(1, &disk));
            core.attach(&modest, modest.spec(2, &memory()));
            // Of a visit that copies the clock is read once.
            core.tick_ns = COPY_NS;
            // Before anybody comes, or while somebody is there.
            for round in 0..2 {
                let mut begun = core.now;
                greedy.add_over(0, READ, 0, &data);
                greedy.add(1, READ, sector(7), 1);
                greedy.driver.publish();
                let (mut passes, mut ended, mut is_asked) = (0, Vec::new(), false);
                while ended.len() < 2 {
                    passes += 1;
                    assert!(passes < 1_000_000, "{tail}, round {round}: it has not ended");
                    let is_beside = round == 1 && passes > comes_after;
                    if is_beside && !is_asked {
                        modest.ask(1, READ);
                        is_asked = true;
                    } else if !is_beside {
                        // Who waited for a moment to come would wait for ever.
                        core.now = begun;
                    }
                    core.pass();
                    is_asked &= modest.take_ok() == 0;
                    if !is_beside {
                        begun = core.now;
                    }
                    ended.extend(greedy.take());
                }
                assert!(ended.iter().all(|(_, status)| *status == 0), "{ended:?}");
                let took = core.now.since(begun);
                if round == 1 && comes_after == 0 && tail == 0 {
                    assert!(took >= 8 * REST_NS, "{took} ns for 16 copies");
                    assert_eq!(ended[0].0, 1, "a small one does not wait for all of that");
                }
                assert!(took <= 30 * REST_NS, "{took} ns: it rests for longer than is said");
            }
            assert_eq!(counters.snapshot().errors, 0);
        }
    }
}
