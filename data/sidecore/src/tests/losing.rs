//! Memory that goes away under a queue, and a connection that control has given up.

use std::os::fd::OwnedFd;

use backend::Io;
use guest_memory::Loss;
use schedule::{Budget, Nanos};
use virtqueue::driver::Buffer;
use virtqueue::{Chain, Violation};

use super::bed::*;
use super::file::file;
use crate::alarm::Alarm;
use crate::{Command, Event, Served};

fn cut_off(fd: &OwnedFd, len: u64) {
    rustix::fs::ftruncate(fd, len).unwrap();
}

/// That the queue of device 1, and no other, was reported, once, for lost memory.
fn assert_lost(core: &mut Core) {
    let events = core.events();
    assert!(
        matches!(
            events[..],
            [Event::Failed { key: failed, violation: Violation::MemoryLost }] if failed == key(1)
        ),
        "{events:?}"
    );
}

#[test]
fn a_queue_whose_memory_is_cut_off_is_latched_and_its_neighbour_goes_on() {
    for disk in [null(), memory()] {
        let ((mut bad, fd), mut good) = (Guest::lent(ring(16)), Guest::new(ring(16)));
        let mut core = Core::new(2);
        core.attach(&bad, bad.spec(1, &disk));
        core.attach(&good, good.spec(2, &memory()));
        bad.ask(4, WRITE);
        core.pass();
        assert_eq!(bad.take_ok(), 4);
        bad.ask(4, WRITE);
        cut_off(&fd, 0);
        for _ in 0..100 {
            good.ask(1, READ);
            assert_eq!(core.pass().requests, 1, "nothing of the bad one");
            assert_eq!(good.take_ok(), 1);
        }
        assert_lost(&mut core);
        core.detach(1);
    }
}

#[test]
fn an_armed_queue_is_latched_by_its_next_kick() {
    let (bad, fd) = Guest::lent(ring(16));
    let mut core = Core::new(1);
    core.attach(&bad, bad.spec(1, &null()));
    core.idle();
    cut_off(&fd, 0);
    assert!(core.pass().is_idle() && core.events().is_empty(), "nobody touches it");
    bad.kick();
    core.passes(51);
    assert_lost(&mut core);
}

#[test]
fn memory_that_is_gone_before_attach_is_told_at_attach() {
    let (bad, fd) = Guest::lent(ring(16));
    let mut core = Core::new(1);
    let served = Served::new(bad.spec(1, &null()));
    cut_off(&fd, 0);
    core.send(Command::Attach(served));
    core.passes(3);
    assert_lost(&mut core);
}

#[test]
fn what_a_lost_page_says_is_not_done() {
    // A header in two pieces: the type on a page that stays, the sector on one that goes. Read as
    // zeroes, it would be a write to sector 0.
    let (mut bad, fd) = Guest::lent(ring(16));
    let disk = memory();
    let mut core = Core::new(1);
    core.attach(&bad, bad.spec(1, &disk));
    bad.fill(0, 7);
    bad.add(0, WRITE, 0, 1);
    bad.driver.publish();
    core.pass();
    assert_eq!(bad.take_ok(), 1);
    let (kind_at, sector_at) = (SPARE_AT, SPARE_AT + SPARE - 4096);
    let area = bad.map.area_at_user(0, SPARE_AT + SPARE).unwrap();
    area.store_u32(kind_at as usize, WRITE);
    area.store_u64(sector_at as usize, 8);
    let buffer = |gpa, len, device_writes| Buffer { gpa, len, device_writes };
    let chain = [
        buffer(kind_at, 8, false),
        buffer(sector_at, 8, false),
        buffer(kind_at + 4096, 4096, false),
        buffer(kind_at + 8192, 1, true),
    ];
    bad.driver.add(&chain, 1).unwrap();
    bad.driver.publish();
    cut_off(&fd, sector_at);
    core.passes(3);
    assert_lost(&mut core);
    core.detach(1);
    let mut reader = Guest::new(ring(16));
    core.attach(&reader, reader.spec(2, &disk));
    reader.ask(1, READ);
    core.pass();
    assert_eq!(reader.take_ok(), 1);
    assert!(reader.holds(0, 7), "sector 0 was written");
}

#[test]
fn a_write_whose_data_went_away_does_not_end_well() {
    let (mut bad, fd) = Guest::lent(ring(16));
    let mut core = Core::new(1);
    let counters = core.attach(&bad, bad.spec(1, &memory()));
    let data = [Buffer { gpa: SPARE_AT, len: 4096, device_writes: false }];
    bad.add(1, READ, 0, 1);
    bad.add_over(0, WRITE, 0, &data);
    bad.driver.publish();
    cut_off(&fd, SPARE_AT);
    core.passes(3);
    assert_lost(&mut core);
    assert_eq!(bad.status(0), 0xff, "the guest is told nothing");
    assert_eq!(bad.take(), [], "nor is what ended before it shown");
    let seen = counters.snapshot();
    assert_eq!((seen.errors, seen.in_flight), (1, 0));
}

#[test]
fn after_control_gave_a_connection_up_nothing_is_stored_for_what_was_in_flight() {
    let (_folder, disk) = file();
    let mut guest = Guest::new(ring(64));
    guest.fill(0, 9);
    let mut served = Served::new(guest.spec(1, &disk));
    let (ring, disk) = served.disk().unwrap();
    let (mut io, mut alarm) = (Io::new(64).unwrap(), Alarm::new().unwrap());
    disk.backend.join(&mut io).unwrap();
    guest.ask(8, WRITE);
    let budget = Budget { requests: 32, bytes: 1 << 20, nanos: 25_000 };
    let done = disk.fetch(ring, &mut io, &mut Chain::default(), budget, 1 << 20, Nanos(1));
    assert_eq!(done.visited().requests, 8);
    let taken = ring.queue.in_flight();
    guest.map.health().lose(Loss::Memory);
    for _ in 0..10_000_000 {
        if ring.queue.in_flight() == 0 {
            break;
        }
        io.enter().unwrap();
        while let Some((tag, result)) = io.reap_one() {
            disk.reap(ring, &mut io, tag, result, Nanos(2));
        }
    }
    ring.publish(&mut alarm);
    ring.call(&mut alarm);
    assert_eq!(ring.queue.in_flight(), 0, "slots and tickets are free");
    // On a file system in memory they had ended before the loss.
    if taken > 0 {
        assert!((0..8).all(|number| guest.status(number) == 0xff));
    }
    assert_eq!((guest.take(), guest.calls()), (Vec::new(), 0));
    disk.backend.leave(&mut io);
}
