//! A back-end that keeps requests: a real file, the io_uring, and the slots between.

use std::sync::Arc;

use backend::{Cache, Disk, Source, Waits};

use super::bed::*;
use crate::{Command, QueueCounters};

/// A disk on a file where the build lies, which is on a device as a rule. On a file system in
/// memory it answers at once; what these tests demand then still holds.
pub(super) fn file() -> (tempfile::TempDir, Arc<Disk>) {
    let build = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir_in(build.parent().unwrap()).unwrap();
    let path = folder.path().join("disk");
    let (size_bytes, cache) = (Some(DISK), Cache::Auto);
    let (readonly, waits) = (false, Waits::default());
    let source = Source::File { path, size_bytes, readonly, cache, waits };
    let disk = Disk::open(&source).unwrap();
    (folder, disk)
}

/// Passes until `count` requests have ended well. Sleeps for completions when the loop would.
pub(super) fn finish(core: &mut Core, guest: &mut Guest, counters: &QueueCounters, count: usize) {
    let mut done = 0;
    let mut most = 0;
    for _ in 0..10_000_000 {
        if done == count {
            assert!(most <= 256, "{most} in flight");
            return;
        }
        let idle = core.pass().is_idle();
        let in_flight = counters.snapshot().in_flight;
        // With nothing in flight nothing would end the sleep, and the test would hang, not fail.
        if idle && in_flight > 0 {
            core.rest();
        }
        most = most.max(in_flight);
        done += guest.take_ok();
    }
    panic!("{done} of {count} requests ended");
}

#[test]
fn more_requests_than_slots_are_all_served_and_none_twice() {
    let (_folder, disk) = file();
    let mut guest = Guest::new(ring(1024));
    let mut core = Core::new(1);
    let counters = core.attach(&guest, guest.spec(1, &disk));
    for number in 0..340 {
        guest.fill(number, number as u8 | 1);
    }
    guest.ask(340, WRITE);
    finish(&mut core, &mut guest, &counters, 340);
    guest.ask(1, FLUSH);
    finish(&mut core, &mut guest, &counters, 1);
    for number in 0..340 {
        guest.fill(number, 0);
    }
    guest.ask(340, READ);
    finish(&mut core, &mut guest, &counters, 340);
    assert!((0..340).all(|number| guest.holds(number, number as u8 | 1)));
    let seen = counters.snapshot();
    assert_eq!((seen.requests, seen.reads, seen.writes, seen.flushes), (681, 340, 340, 1));
    assert_eq!((seen.errors, seen.in_flight), (0, 0));
    core.pass();
    assert_eq!(counters.snapshot().latency.count(), 681);
}

#[test]
fn requests_of_many_pieces_share_a_small_pool() {
    let (_folder, disk) = file();
    let mut guest = Guest::new(ring(1024));
    let mut core = Core::new(1);
    let counters = core.attach(&guest, guest.spec(1, &disk));
    for kind in [WRITE, READ] {
        for number in 0..100 {
            guest.fill(number, if kind == WRITE { number as u8 + 1 } else { 0 });
            guest.add(number, kind, sector(number), 8);
        }
        guest.driver.publish();
        guest.kick();
        finish(&mut core, &mut guest, &counters, 100);
    }
    // One that found no room is counted when it is taken, and only then.
    let seen = counters.snapshot();
    assert_eq!((seen.requests, seen.reads, seen.writes), (200, 100, 100));
    assert_eq!((seen.read_bytes, seen.written_bytes), (100 * 4096, 100 * 4096));
    assert!((0..100).all(|number| guest.holds(number, number as u8 + 1)));
}

#[test]
fn a_queue_leaves_only_when_nothing_of_it_is_in_flight() {
    let (_folder, disk) = file();
    let mut guest = Guest::new(ring(256));
    let mut core = Core::new(1);
    let counters = core.attach(&guest, guest.spec(1, &disk));
    guest.ask(60, WRITE);
    core.pass();
    core.send(Command::Detach(key(1)));
    let mut events = Vec::new();
    for _ in 0..10_000_000 {
        core.pass();
        events = core.events();
        if !events.is_empty() {
            break;
        }
        core.rest();
    }
    let served = detached(events, 1);
    assert_eq!(served.queue().in_flight(), 0);
    // Whatever was taken is completed and shown; whatever was not is still in the ring.
    let taken = counters.snapshot().requests as usize;
    assert_eq!(guest.take_ok(), taken);
    assert_eq!(served.queue().base() as usize, taken);
    let mut spec = served.into_spec();
    spec.queue = guest.queue(spec.queue.base());
    core.attach(&guest, spec);
    finish(&mut core, &mut guest, &counters, 60 - taken);
}
