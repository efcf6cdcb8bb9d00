//! A disk at an IOhost: the walk with a link, over a wire in memory, in made-up time.

mod bed;
mod histories;
mod iohost;
mod wire;

use std::sync::Arc;

use ::remote::client::{
    AttachSpec, ClientSpec, Event as ClientEvent, Over, Refusal as NotServed, Standing,
};
use backend::link::{LinkNic, LinkSocket, LinkWire};
use backend::net::{HostPort, Rest, Sent};
use bed::*;
use device::blk::{Blk, Limits, Live, Shape};
use device::features;
use guest_memory::{Area, DirtyLog, Health, Mapping, Seal};
use wire::{FAIR, FOUL};

use crate::link::{ClientLink, Link, LinkKey, ToClient};
use crate::tests::bed::*;
use crate::{Command, Event, MoveId, Refusal, RoleSpec, Stay};

/// Which writes were executed: the block, and its byte.
fn written(world: &World) -> Vec<(u64, u8)> {
    world.storage.writes.iter().map(|(at, byte)| (at / BLOCK as u64, *byte)).collect()
}

fn buffer(gpa: u64, len: u32, device_writes: bool) -> virtqueue::driver::Buffer {
    virtqueue::driver::Buffer { gpa, len, device_writes }
}

#[test]
fn what_was_written_is_read_over_any_wire() {
    for seed in 0..40 {
        let mut world = World::new(1, if seed == 0 { FAIR } else { FOUL }, seed, None);
        let mut guest = Guest::new(ring(128));
        world.attach(&guest, 1);
        for round in 0..3 {
            for number in 0..30 {
                guest.fill(number, (seed * 7 + round * 30 + number as u64) as u8);
            }
            guest.ask(30, WRITE);
            world.ended_well(&mut guest, 30);
            guest.ask(1, FLUSH);
            world.ended_well(&mut guest, 1);
            for number in 0..30 {
                guest.fill(number, 0);
            }
            guest.ask(30, READ);
            world.ended_well(&mut guest, 30);
            for number in 0..30 {
                let byte = (seed * 7 + round * 30 + number as u64) as u8;
                assert!(guest.holds(number, byte), "block {number} of seed {seed}");
            }
        }
        assert_eq!(world.storage.writes.len(), 90, "each once");
        assert!(world.events.is_empty(), "{:?}", world.events);
    }
}

/// Frames of somebody else's address, whatever they are, change nothing and are counted.
#[test]
fn strangers_are_not_heard() {
    let mut world = World::new(1, FAIR, 1, None);
    let mut guest = Guest::new(ring(64));
    world.attach(&guest, 1);
    guest.ask(5, WRITE);
    world.ended_well(&mut guest, 5);
    let before = world.counters.snapshot();
    for kind in 0..6 {
        for len in [0, 1, 16, 200, 9000] {
            let mut frame = vec![0x5a; len];
            frame.iter_mut().zip([1, kind, 0, 0]).for_each(|(byte, value)| *byte = value);
            // From a stranger, and in the IOhost's name.
            world.wire.send(at(9), at(0), &frame);
            world.wire.send(at(1), at(0), &frame);
        }
    }
    world.run(10 * MS);
    let after = world.counters.snapshot();
    // Those in its name that are sealed are the session's to drop; nobody awaits cookies and answers now.
    assert_eq!(after.strange - before.strange, 57);
    assert_eq!(after.dropped - before.dropped, 3);
    assert_eq!((after.sessions, after.is_up, after.handshakes, after.iohost), (1, 1, 1, 0));
    // How the way is, is shown ten times a second.
    world.run(100 * MS);
    guest.ask(5, READ);
    world.ended_well(&mut guest, 5);
    let after = world.counters.snapshot();
    assert!(after.round_trip_ns > 19_000 && after.in_flight == 0, "{after:?}");
}

/// On a fair wire what came is served, and what ended is answered, in one pass: the latency is two flights and no more.
#[test]
fn a_request_costs_no_pass_more() {
    let mut world = World::new(1, FAIR, 1, None);
    let mut guest = Guest::new(ring(8));
    world.attach(&guest, 1);
    guest.ask(1, WRITE);
    let begun = world.core.now.0;
    world.ended_well(&mut guest, 1);
    assert_eq!(world.passed_at - begun, 20_000);
}

#[test]
fn a_sidecore_sleeps_while_it_waits_for_a_frame_and_wakes_for_what_is_due() {
    let mut world = World::new(1, FAIR, 1, None);
    let mut guest = Guest::new(ring(8));
    world.attach(&guest, 1);
    world.wire.cut(at(1), true);
    guest.ask(1, WRITE);
    assert!(world.until(SECOND, |world| world.is_asleep));
    let (awake, asked) = (world.awake, world.asked.len());
    world.run(10 * SECOND);
    // What wakes it are timers of the protocol, and hellos.
    assert!(world.awake - awake < 100, "{} passes", world.awake - awake);
    assert!(world.asked.len() > asked);
    world.wire.cut(at(1), false);
    world.ended_well(&mut guest, 1);
}

#[test]
fn a_request_of_many_slots_is_split_and_ends_once() {
    let mut world = World::new(1, FOUL, 3, None);
    let mut guest = Guest::new(ring(64));
    world.attach(&guest, 1);
    // 5 MiB and a sector: 41 parts, of which 16 have slots, and another request beside it.
    let len = (5 << 20) + 512;
    let area = guest.map.area_at_user(SPARE_AT, u64::from(len)).expect("spare memory");
    let bytes: Vec<u8> = (0..len).map(|at| (at / 512 * 3 + at) as u8).collect();
    assert!(area.write(0, &bytes));
    guest.add_over(0, WRITE, 100, &[buffer(SPARE_AT, len, false)]);
    guest.fill(1, 9);
    guest.add(1, WRITE, 0, 1);
    guest.driver.publish();
    guest.kick();
    world.ended_well(&mut guest, 2);
    assert_eq!(world.storage.writes.len(), 42);
    assert!(world.storage.bytes[51_200..51_200 + len as usize] == bytes[..]);
    assert!(area.write(0, &vec![0; len as usize]));
    guest.add_over(2, READ, 100, &[buffer(SPARE_AT, len, true)]);
    guest.driver.publish();
    guest.kick();
    world.ended_well(&mut guest, 1);
    let mut back = vec![0; len as usize];
    assert!(area.read(0, &mut back));
    assert!(back == bytes);
}

#[test]
fn more_requests_than_slots_are_all_served() {
    let mut world = World::new(1, FOUL, 5, None);
    let mut guests = [Guest::new(ring(512)), Guest::new(ring(512))];
    for (device, guest) in guests.iter_mut().enumerate() {
        world.attach(guest, device as u32);
        guest.ask(100, WRITE);
    }
    for guest in &mut guests {
        world.ended_well(guest, 100);
    }
    assert_eq!(world.storage.writes.len(), 200);
}

#[test]
fn a_link_that_goes_down_and_up_loses_nothing_and_does_nothing_twice() {
    for seed in 0..20 {
        let mut world = World::new(1, FOUL, 100 + seed, None);
        let mut guest = Guest::new(ring(64));
        world.attach(&guest, 1);
        for number in 0..12 {
            guest.fill(number, number as u8 + 1);
        }
        guest.ask(12, WRITE);
        world.run(seed * 20_000);
        world.wire.cut(at(1), true);
        // Shorter than a lease, and longer than one.
        world.run(if seed % 2 == 0 { 700 * MS } else { 3 * SECOND });
        world.wire.cut(at(1), false);
        world.ended_well(&mut guest, 12);
        let mut all = written(&world);
        all.sort_unstable();
        let each: Vec<_> = (0..12).map(|number| (number, number as u8 + 1)).collect();
        // What a lease that ran out had executed is not known there any more, and done once more with the same bytes.
        all.dedup();
        assert_eq!(all, each, "seed {seed}");
        if seed % 2 == 0 {
            assert_eq!(world.storage.writes.len(), 12, "seed {seed}");
        }
    }
}

#[test]
fn an_iohost_that_is_started_again_is_found_and_what_was_outstanding_is_done() {
    for seed in 0..20 {
        let mut world = World::new(1, FOUL, 200 + seed, None);
        let mut guest = Guest::new(ring(64));
        world.attach(&guest, 1);
        guest.ask(12, WRITE);
        world.run(seed * 20_000);
        world.hosts[0].die(&mut world.storage);
        world.run(SECOND);
        world.start(0);
        world.ended_well(&mut guest, 12);
        guest.ask(12, READ);
        world.ended_well(&mut guest, 12);
    }
}

/// The IOhost comes again in another boot: what was acknowledged and not stable may be gone, and the next flush says so.
#[test]
fn a_flush_fails_after_an_iohost_has_lost_what_was_not_stable() {
    let mut world = World::new(1, FAIR, 1, None);
    let mut guest = Guest::new(ring(64));
    world.attach(&guest, 1);
    guest.ask(4, WRITE);
    world.ended_well(&mut guest, 4);
    world.hosts[0].die(&mut world.storage);
    world.storage.boot += 1;
    world.start(0);
    world.run(5 * SECOND);
    guest.ask(1, FLUSH);
    assert_eq!(world.ended(&mut guest, 1), [(0, 1)]);
}

#[test]
fn the_next_iohost_is_spoken_to_when_the_first_does_not_answer() {
    for seed in 0..10 {
        let mut world = World::new(2, FOUL, 300 + seed, None);
        assert_eq!(world.asked, [at(1)]);
        let mut guest = Guest::new(ring(64));
        world.attach(&guest, 1);
        guest.ask(12, WRITE);
        world.run(seed * 20_000);
        world.hosts[0].die(&mut world.storage);
        world.ended_well(&mut guest, 12);
        assert_eq!(world.asked.last(), Some(&at(2)));
        guest.ask(12, READ);
        world.ended_well(&mut guest, 12);
        // And back.
        world.start(0);
        guest.ask(12, WRITE);
        world.run(seed * 20_000);
        world.hosts[1].die(&mut world.storage);
        world.ended_well(&mut guest, 12);
        assert_eq!(world.asked.last(), Some(&at(1)));
    }
}

/// The first one lives and has the disk's lock; only its link is gone. The second one has to refuse until the first has let
/// go, and the client goes on trying both.
#[test]
fn an_iohost_that_is_cut_off_keeps_the_disk_until_its_lease_is_over() {
    let mut world = World::new(2, FAIR, 1, None);
    let mut guest = Guest::new(ring(64));
    world.attach(&guest, 1);
    world.wire.cut(at(1), true);
    guest.ask(4, WRITE);
    world.ended_well(&mut guest, 4);
    assert_eq!(world.asked.last(), Some(&at(2)));
    guest.ask(4, READ);
    world.ended_well(&mut guest, 4);
}

#[test]
fn requests_fail_after_the_time_that_was_given_and_the_disk_comes_back() {
    let mut world = World::new(1, FAIR, 1, Some(4 * SECOND));
    let mut guest = Guest::new(ring(64));
    world.attach(&guest, 1);
    guest.ask(3, WRITE);
    world.ended_well(&mut guest, 3);
    world.wire.cut(at(1), true);
    let cut_at = world.core.now.0;
    guest.ask(3, WRITE);
    let ended = world.ended(&mut guest, 3);
    assert!(ended.iter().all(|(_, status)| *status == 1), "{ended:?}");
    let took = world.passed_at - cut_at;
    assert!((4 * SECOND - MS..4 * SECOND + MS).contains(&took), "{took} ns after the last word");
    let over = ClientEvent::Over { attachment: NUMBER, why: Over::Silent };
    assert_eq!(world.told.iter().filter(|event| **event == over).count(), 1);
    // As long as nothing is heard, at once.
    guest.ask(1, READ);
    let before = world.core.now.0;
    assert_eq!(world.ended(&mut guest, 1), [(0, 1)]);
    assert_eq!(world.passed_at, before);
    world.wire.cut(at(1), false);
    assert!(world.until(10 * SECOND, |world| world.is_bound()));
    guest.ask(3, READ);
    world.ended_well(&mut guest, 3);
    // The three writes that ended well were never flushed: they are there, for the storage has not died.
    guest.ask(1, FLUSH);
    world.ended_well(&mut guest, 1);
}

/// After a silence in which requests failed, too: another boot, or other contents.
#[test]
fn what_was_lost_in_a_silence_is_noticed() {
    for is_other in [false, true] {
        let mut world = World::new(1, FAIR, 1, Some(4 * SECOND));
        let mut guest = Guest::new(ring(64));
        world.attach(&guest, 1);
        guest.ask(3, WRITE);
        world.ended_well(&mut guest, 3);
        world.wire.cut(at(1), true);
        guest.ask(1, READ);
        assert_eq!(world.ended(&mut guest, 1), [(0, 1)]);
        world.hosts[0].die(&mut world.storage);
        match is_other {
            true => world.storage.contents += 1,
            false => world.storage.boot += 1,
        }
        world.start(0);
        world.wire.cut(at(1), false);
        let changed = ClientEvent::Refused { attachment: NUMBER, why: NotServed::Changed };
        assert!(world.until(10 * SECOND, |world| match is_other {
            true => world.told.last() == Some(&changed),
            false => world.is_bound(),
        }));
        let kept = world.stands.last().and_then(|(_, standing)| *standing).expect("it is kept");
        assert_eq!(kept.is_lost, !is_other);
        guest.ask(1, READ);
        if is_other {
            // It waits, until whoever uses it says that it may go on with what is there.
            world.run(SECOND);
            assert!(guest.take().is_empty());
            world.tell(ToClient::Accept(NUMBER));
        }
        world.ended_well(&mut guest, 1);
        guest.ask(1, FLUSH);
        assert_eq!(world.ended(&mut guest, 1), [(0, u8::from(!is_other))]);
    }
}

/// Control has to keep how the disk stands before a guest can write: until then its requests wait in their ring.
#[test]
fn requests_wait_until_it_is_kept_how_the_disk_stands() {
    let mut world = World::new(1, FAIR, 1, None);
    world.tell(ToClient::Release(NUMBER));
    assert!(world.until(SECOND, |world| world.freed == [NUMBER]));
    world.keeps = false;
    world.tell(ToClient::Attach { disk: NUMBER, spec: SPEC, standing: None });
    world.run(MS);
    let mut guest = Guest::new(ring(64));
    world.attach(&guest, 1);
    guest.ask(3, WRITE);
    world.run(SECOND);
    assert_eq!(world.stands.len(), 3, "how it stands is said");
    assert_eq!((guest.take(), world.storage.writes.len()), (vec![], 0));
    assert!(world.is_asleep, "it does not spin for that");
    world.tell(ToClient::Heard(NUMBER));
    world.ended_well(&mut guest, 3);
}

/// An IOhost that has news without end: one at a time is said, and the last one is.
#[test]
fn of_news_without_end_the_newest_is_told_when_the_one_before_was_heard() {
    let mut world = World::new(1, FAIR, 1, None);
    world.run(10 * MS);
    world.told.clear();
    world.keeps = false;
    for round in 1..=1000 {
        world.hosts[0].resize(DISK + 512 * round);
        world.run(MS);
    }
    assert_eq!(world.told.len(), 1, "{:?}", world.told.len());
    world.keeps = true;
    world.tell(ToClient::Heard(NUMBER));
    world.run(10 * MS);
    let size = |told: Option<&ClientEvent>| match told {
        Some(ClientEvent::News { news, .. }) => news.size,
        other => panic!("{other:?}"),
    };
    assert_eq!(world.told.len(), 2);
    assert_eq!(size(world.told.last()), DISK + 512 * 1000);
}

/// A disk is given back and wanted again while its IOhost is silent: first the former attachment ends, and what it
/// leaves is the next one's.
#[test]
fn a_disk_that_is_wanted_again_waits_until_it_was_let_go() {
    for dies in [false, true] {
        let mut world = World::new(1, FAIR, 1, None);
        let mut guest = Guest::new(ring(64));
        world.attach(&guest, 1);
        guest.ask(3, WRITE);
        world.ended_well(&mut guest, 3);
        world.core.send(Command::Detach(key(1)));
        world.run(MS);
        world.wire.cut(at(1), true);
        world.tell(ToClient::Release(NUMBER));
        let next = NUMBER + 1;
        world.tell(ToClient::Attach { disk: next, spec: SPEC, standing: None });
        world.run(SECOND);
        if dies {
            world.hosts[0].die(&mut world.storage);
            world.storage.boot += 1;
            world.start(0);
        }
        world.wire.cut(at(1), false);
        let is_bound = |world: &mut World| matches!(world.told.last(), Some(ClientEvent::Bound { attachment, .. }) if *attachment == next);
        assert!(world.until(20 * SECOND, is_bound), "{:?}", world.told);
        assert_eq!(world.freed, [NUMBER]);
        let is_lost = |standing: &Option<_>| standing.is_some_and(|one: Standing| one.is_lost);
        assert_eq!(world.stands.last().map(|(_, one)| is_lost(one)), Some(dies));
        // Whoever knows of it has flushes end well again.
        world.tell(ToClient::Forgive(next));
        world.tell(ToClient::Release(next));
        assert!(world.until(SECOND, |world| world.freed == [NUMBER, next]));
        assert_eq!(world.stands.last(), Some(&(next, None)));
    }
}

/// Its requests failed, nobody wants it any more, and its number is free: at once.
#[test]
fn the_number_of_a_disk_that_fell_silent_is_free_when_it_is_given_back() {
    let mut world = World::new(1, FAIR, 1, Some(4 * SECOND));
    world.wire.cut(at(1), true);
    let over = ClientEvent::Over { attachment: NUMBER, why: Over::Silent };
    assert!(world.until(10 * SECOND, |world| world.told.contains(&over)));
    assert_eq!(world.freed, []);
    world.tell(ToClient::Release(NUMBER));
    world.run(10 * MS);
    assert_eq!(world.freed, [NUMBER]);
    assert!(world.stands.last().is_some_and(|(_, standing)| standing.is_some()), "not settled");
}

/// A disk over there that does not answer is no silence: its IOhost is heard, and nothing fails.
#[test]
fn a_slow_disk_at_an_iohost_is_waited_for() {
    let mut world = World::new(1, FOUL, 1, Some(2 * SECOND));
    let mut guest = Guest::new(ring(64));
    world.attach(&guest, 1);
    world.hosts[0].is_stuck = true;
    guest.ask(10, WRITE);
    world.run(20 * SECOND);
    assert_eq!(guest.take(), []);
    assert!(world.is_bound(), "{:?}", world.told);
    world.hosts[0].is_stuck = false;
    world.ended_well(&mut guest, 10);
    assert_eq!(world.storage.writes.len(), 10);
}

/// A queue whose guest is gone comes back at once, and what is still outstanding is done before anything of its successor.
#[test]
fn a_queue_leaves_a_silent_iohost_when_its_guest_is_lost() {
    let mut world = World::new(1, FAIR, 1, None);
    let mut guest = Guest::new(ring(64));
    world.attach(&guest, 1);
    guest.fill(0, b'a');
    world.wire.cut(at(1), true);
    guest.ask(1, WRITE);
    world.run(10 * MS);
    // With a guest that lives it waits, as for a disk that does not answer.
    world.core.send(Command::Detach(key(1)));
    world.run(SECOND);
    assert!(world.events.is_empty());
    guest.map.health().lose(guest_memory::Loss::Memory);
    world.run(2 * MS);
    let Some(Event::Detached(served)) = world.events.pop() else { panic!("it did not leave") };
    assert_eq!(served.queue().in_flight(), 1);
    drop(served.into_spec());
    assert_eq!(guest.status(0), 0xff, "nothing is said to it");
    // Its successor writes the same block, later.
    let mut next = Guest::new(ring(64));
    world.attach(&next, 1);
    next.fill(0, b'b');
    next.ask(1, WRITE);
    world.run(SECOND);
    assert_eq!(next.take(), []);
    world.wire.cut(at(1), false);
    world.ended_well(&mut next, 1);
    assert_eq!(written(&world), [(0, b'a'), (0, b'b')], "in this order");
    assert_eq!(guest.status(0), 0xff);
    world.core.send(Command::Detach(key(1)));
    world.run(MS);
    assert!(matches!(world.events[..], [Event::Detached(_)]));
}

/// What was read comes while the guest's memory is lost: it goes nowhere.
#[test]
fn nothing_is_copied_to_a_guest_whose_memory_is_lost() {
    let mut world = World::new(1, FAIR, 1, None);
    let mut guest = Guest::new(ring(64));
    world.attach(&guest, 1);
    guest.fill(0, 7);
    guest.ask(1, WRITE);
    world.ended_well(&mut guest, 1);
    guest.fill(0, 1);
    guest.ask(1, READ);
    world.step();
    guest.map.health().lose(guest_memory::Loss::Memory);
    world.run(10 * MS);
    assert!(guest.holds(0, 1));
    assert_eq!(guest.status(0), 0xff);
    assert!(matches!(world.events[..], [Event::Failed { .. }]));
}

/// Reads are marked in the dirty log, each page of them.
#[test]
fn what_is_read_is_marked_in_the_dirty_log() {
    let log = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&log, 4096).unwrap();
    let (seal, health) = (Seal::Any, Health::default());
    let marks = Area::whole(Mapping::shared(&log, 0, 4096, seal, &health).unwrap());
    let log = DirtyLog::map(&log, 0, 4096, Seal::Any, &Health::default()).unwrap();
    let mut world = World::new(1, FAIR, 1, None);
    let mut guest = Guest::new(ring(64));
    guest.map = Arc::new(guest.map.with_log(Some(log)).unwrap());
    world.attach(&guest, 1);
    let is_marked = |page: u64| marks.load_u8(page as usize / 8) & 1 << (page % 8) != 0;
    let pages = SPARE_AT / 4096..SPARE_AT / 4096 + 20;
    assert!(!pages.clone().any(is_marked));
    guest.add_over(1, READ, 0, &[buffer(SPARE_AT, 20 * 4096, true)]);
    guest.driver.publish();
    guest.kick();
    world.ended_well(&mut guest, 1);
    assert!(pages.clone().all(is_marked));
    assert!(!is_marked(pages.end));
}

/// Write-zeroes and discards are done there.
#[test]
fn ranges_are_zeroed_and_discarded_there() {
    let mut world = World::new(1, FOUL, 1, None);
    let mut guest = Guest::new(ring(64));
    // Its IOhost takes less at once than the guest was told: 256 sectors, and 8.
    let limits = backend::Limits { discard_sectors_max: 8, zeroes_sectors_max: 256 };
    let disk = world.disk_of(limits);
    let shape = Shape {
        block_size: 512,
        physical_block_exp: 0,
        topology: Default::default(),
        readonly: false,
        queues: 1,
        serial: [0; 20],
        limits: Limits { discard_sectors_max: 1 << 16, zeroes_sectors_max: 1 << 16 },
        in_order: false,
    };
    let negotiated = features::VERSION_1
        | features::BLK_FLUSH
        | features::BLK_DISCARD
        | features::BLK_WRITE_ZEROES;
    let mut spec = guest.spec(1, &disk);
    let blk = Blk::new(&shape, Live::new(DISK), negotiated);
    spec.role = RoleSpec::Disk { blk, backend: disk.backend() };
    world.core.attach(&guest, spec);
    world.storage.bytes.fill(5);
    let range = |sector: u64, sectors: u32| {
        [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &[0; 4]].concat()
    };
    let area = guest.map.area_at_user(SPARE_AT, 4096).unwrap();
    let (discard, zeroes) = (11, 13);
    for (number, (kind, bytes)) in
        [(zeroes, range(8, 1000)), (discard, range(2000, 24))].into_iter().enumerate()
    {
        let at = number * 64;
        assert!(area.write(at, &bytes));
        let data = [buffer(SPARE_AT + at as u64, bytes.len() as u32, false)];
        guest.add_over(number, kind, 0, &data);
    }
    guest.driver.publish();
    guest.kick();
    world.ended_well(&mut guest, 2);
    let is_zero = |sector: usize| world.storage.bytes[sector * 512..][..512] == [0; 512];
    for sector in 0..DISK as usize / 512 {
        let expected = (8..1008).contains(&sector) || (2000..2024).contains(&sector);
        assert_eq!(is_zero(sector), expected, "sector {sector}");
    }
    assert_eq!(world.storage.ops.len(), 4 + 3, "in parts");
}

/// A guest that wants each write stable gets it so: the IOhost is told.
#[test]
fn a_write_that_must_be_stable_is_asked_for_as_such() {
    let mut world = World::new(1, FAIR, 1, None);
    let mut guest = Guest::new(ring(64));
    let disk = world.disk();
    let mut spec = guest.spec(1, &disk);
    let shape = Shape {
        block_size: 512,
        physical_block_exp: 0,
        topology: Default::default(),
        readonly: false,
        queues: 1,
        serial: [0; 20],
        limits: Limits::default(),
        in_order: false,
    };
    let blk = Blk::new(&shape, Live::new(DISK), features::VERSION_1);
    spec.role = RoleSpec::Disk { blk, backend: disk.backend() };
    world.core.attach(&guest, spec);
    guest.ask(1, WRITE);
    world.ended_well(&mut guest, 1);
    assert_eq!(world.storage.ops, [::remote::wire::Op::Write { sync: true }]);
}

#[test]
fn what_is_there_already_is_refused_and_what_is_not_there_is_passed_over() {
    let mut world = World::new(1, FAIR, 1, None);
    let socket = LinkSocket::simulated(Arc::clone(&world.wire) as _, at(8)).expect("an end");
    let spec = ClientSpec { instance: 99, ring_frames: 64, fail_after_ns: None };
    let link = Link::Client(Box::new(ClientLink::new(socket, vec![at(1)], spec)));
    world.core.send(Command::AttachLink(LINK, link));
    world.run(MS);
    assert!(matches!(world.events.pop(), Some(Event::LinkRefused(LINK, Link::Client(_)))));
    for disk in [NUMBER, ::remote::ATTACHMENTS_MAX] {
        world.tell(ToClient::Attach { disk, spec: SPEC, standing: None });
        world.run(MS);
        assert_eq!(world.unattached.pop(), Some(disk));
    }
    let nowhere = LinkKey(77);
    world.core.send(Command::ToClient(nowhere, Box::new(ToClient::Release(NUMBER))));
    world.core.send(Command::DetachLink(nowhere));
    world.tell(ToClient::Release(NUMBER + 1));
    world.run(MS);
    assert!(world.events.is_empty() && world.is_bound());
}

/// Its link is on one sidecore: there it stays.
#[test]
fn a_queue_does_not_move_away_from_its_link() {
    let mut world = World::new(1, FAIR, 1, None);
    let mut guest = Guest::new(ring(64));
    world.attach(&guest, 1);
    let mut other = Core::numbered(1, 4);
    let (arrival, departure) =
        crate::handover(MoveId(1), &other.handle, world.disk().backend(), None);
    other.send(Command::Prepare(arrival));
    other.pass();
    let events = other.events();
    let [Event::Stayed(MoveId(1), Stay::Refused(Refusal::NoLink))] = events[..] else {
        panic!("{events:?}")
    };
    drop(departure);
    guest.ask(5, WRITE);
    world.ended_well(&mut guest, 5);
}

/// A disk that is given back, and its link.
#[test]
fn a_disk_and_a_link_are_given_back() {
    let mut world = World::new(1, FOUL, 1, None);
    let mut guest = Guest::new(ring(64));
    world.attach(&guest, 1);
    guest.ask(5, WRITE);
    world.ended_well(&mut guest, 5);
    world.core.send(Command::DetachLink(LINK));
    world.run(100 * MS);
    assert!(world.events.is_empty(), "a queue of it is here");
    world.core.send(Command::Detach(key(1)));
    world.run(MS);
    assert!(
        matches!(world.events[..], [Event::Detached(_), Event::LinkDetached(LINK, _)]),
        "{:?}",
        world.events
    );
}

#[test]
fn a_release_is_told_when_it_is_over_and_the_number_is_free() {
    let mut world = World::new(1, FOUL, 1, None);
    world.tell(ToClient::Release(NUMBER));
    let over = ClientEvent::Over { attachment: NUMBER, why: Over::Released };
    assert!(world.until(SECOND, |world| world.told.last() == Some(&over)), "{:?}", world.told);
    world.tell(ToClient::Look { disk: NUMBER, device: SPEC.device });
    let is_looked = |world: &mut World| {
        matches!(world.told.last(), Some(ClientEvent::Looked { attachment: NUMBER, news: Some(news) })
            if news.size == DISK)
    };
    assert!(world.until(SECOND, is_looked), "{:?}", world.told);
    world.tell(ToClient::Attach { disk: NUMBER, spec: SPEC, standing: None });
    assert!(world.until(SECOND, |world| world.is_bound()), "{:?}", world.told);
}

#[test]
fn a_queue_without_its_link_is_refused() {
    let mut world = World::new(1, FAIR, 1, None);
    let guest = Guest::new(ring(8));
    world.tell(ToClient::Release(NUMBER));
    world.run(10 * MS);
    let spec = guest.spec(1, &world.disk());
    world.core.send(Command::Attach(crate::Served::new(spec)));
    world.run(MS);
    let Some(Event::Refused(served, why)) = world.events.pop() else { panic!("it was attached") };
    assert_eq!(
        why.to_string(),
        "its link is not with its sidecore: this is a defect of the daemon"
    );
    drop(served.into_spec());
}

const NIC_NUMBER: u16 = 9;

/// A port of a NIC that the IOhost has.
fn nic(world: &mut World) -> HostPort {
    let (nic, port) = LinkNic::new().unwrap();
    let spec = AttachSpec { device: iohost::NIC, slots: 1, slot_bytes: 512, keep_bytes: 0 };
    world.tell(ToClient::Attach { disk: NIC_NUMBER, spec, standing: None });
    world.tell(ToClient::PlugIn { disk: NIC_NUMBER, nic: Box::new(nic) });
    port
}

fn send(port: &mut HostPort, frame: &[u8]) -> Sent {
    let (head, rest) = frame.split_at(frame.len().min(128));
    let sent = port.send(&frame::Header::default(), head, Rest::Private(rest));
    port.flush();
    sent
}

/// Sends frames until they come back.
fn await_echo(world: &mut World, port: &mut HostPort) {
    let is_back = world.until(10 * SECOND, |world| {
        let _ = send(port, &[7; 60]);
        world.run(MS);
        port.receive(0).is_some()
    });
    assert!(is_back, "{:?}", world.told);
    world.run(100 * MS);
    while port.receive(0).is_some() {}
}

/// Frames of a port go to the IOhost and come back, over any wire, whoever is killed meanwhile; a port that is no more
/// gives the NIC back.
#[test]
fn frames_of_nics_go_on_whatever_becomes_of_iohosts() {
    for (seed, weather) in [(1, FAIR), (2, FOUL), (3, FOUL)] {
        let mut world = World::new(2, weather, seed, None);
        let mut port = nic(&mut world);
        assert_eq!(send(&mut port, &[7; 60]), Sent::Down, "nobody has it");
        await_echo(&mut world, &mut port);
        for round in 0..3 {
            let frame = |number: usize| vec![number as u8; 14 + (number * 331) % 9_000];
            let mut came = Vec::new();
            for number in 0..100 {
                assert_eq!(send(&mut port, &frame(number)), Sent::Done);
                world.run(2 * MS);
                came.extend(std::iter::from_fn(|| port.receive(0).map(|got| got.bytes.to_vec())));
            }
            let least = if seed == 1 { 100 } else { 20 };
            assert!(came.len() >= least, "seed {seed}: {}", came.len());
            assert!(came.iter().all(|got| *got == frame(got[0].into())), "seed {seed}");
            // The first one begins anew, then the second one takes over.
            let mut storage = std::mem::replace(&mut world.storage, iohost::Storage::new());
            world.hosts[0].die(&mut storage);
            world.storage = storage;
            if round == 0 {
                world.run(100 * MS);
                world.start(0);
            }
            await_echo(&mut world, &mut port);
        }
        drop(port);
        let is_over = |event: &ClientEvent| {
            matches!(event, ClientEvent::Over { attachment: NIC_NUMBER, why: Over::Released })
        };
        assert!(world.until(SECOND, |world| world.told.iter().any(is_over)), "{:?}", world.told);
    }
}

/// A NIC is had while somebody wants it, and stays plugged in when it was given back. Its number is used again, and is
/// free when its port is no more.
#[test]
fn a_nic_is_given_back_and_taken_again() {
    let mut world = World::new(1, FAIR, 1, None);
    let (nic, mut port) = LinkNic::new().unwrap();
    world.tell(ToClient::PlugIn { disk: NIC_NUMBER, nic: Box::new(nic) });
    world.run(SECOND);
    assert_eq!(send(&mut port, &[7; 60]), Sent::Down, "nobody has asked for it");
    let is_free = |world: &mut World| world.freed.contains(&NIC_NUMBER);
    for _ in 0..3 {
        let spec = AttachSpec { device: iohost::NIC, slots: 1, slot_bytes: 512, keep_bytes: 0 };
        world.tell(ToClient::Attach { disk: NIC_NUMBER, spec, standing: None });
        await_echo(&mut world, &mut port);
        world.tell(ToClient::Release(NIC_NUMBER));
        assert!(world.until(SECOND, is_free), "{:?}", world.told);
        assert_eq!(send(&mut port, &[7; 60]), Sent::Down, "it was given back");
        world.freed.clear();
    }
    drop(port);
    assert!(world.until(SECOND, is_free), "{:?}", world.told);
}
