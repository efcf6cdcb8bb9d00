//! An IOhost's link in a sidecore: what its clients ask for is done by queues of this sidecore, once, or not at all.
//!
//! Without threads and real time, but for a kernel that is waited for.

mod bed;
mod disk;

use std::sync::Arc;

use backend::net::{HostPort, Rest, Sent};
use frame::Header;
use remote::client::{Event as Told, Over};
use remote::wire::{Kind, Op, Status};

use self::bed::*;
use self::disk::Slow;
use super::bed::{BLOCK, Guest, READ, memory, null, ring};
use super::file::file;
use crate::rest::Woke;
use crate::{Command, Event, FromHost};

const WRITE: Op = Op::Write { sync: false };
const STABLE: Op = Op::Write { sync: true };

/// A load whose answers are known: blocks of one byte each, one request of a block at a time.
struct Blocks {
    /// By block: what is there, and what is being written.
    bytes: Vec<(u8, Option<u8>)>,
    is_busy: Vec<bool>,
    random: random::Random,
    asked: [u64; 3],
}

const BYTES: u32 = 8192;

impl Blocks {
    fn new(seed: u64, count: usize) -> Blocks {
        let random = random::Random::new(seed, 99);
        Blocks { bytes: vec![(0, None); count], is_busy: vec![false; count], random, asked: [0; 3] }
    }

    /// One more, if its block is free and a slot is.
    fn ask(&mut self, world: &mut World, one: usize, in_flight: usize) -> bool {
        let block = self.random.below(self.bytes.len() as u64) as usize;
        if in_flight >= usize::from(SLOTS) || std::mem::replace(&mut self.is_busy[block], true) {
            return false;
        }
        let offset = block as u64 * u64::from(BYTES);
        let kind = self.random.below(10);
        let (op, len) = match kind {
            0 => (Op::Flush, 0),
            1..=4 => (Op::Read, BYTES),
            5 => (STABLE, BYTES),
            _ => (WRITE, BYTES),
        };
        let byte = self.random.next() as u8;
        if op.has_data() {
            self.bytes[block].1 = Some(byte);
        }
        self.asked[0] += u64::from(op == Op::Read);
        self.asked[1] += u64::from(op.has_data());
        self.asked[2] += u64::from(op.is_stable());
        let offset = if op == Op::Flush { 0 } else { offset };
        world.ask(one, op, offset, len, block as u64, byte);
        true
    }

    fn answered(&mut self, tag: u64, status: Status, data: &[u8]) {
        assert_eq!(status, Status::Ok);
        let block = tag as usize;
        assert!(std::mem::take(&mut self.is_busy[block]), "answered twice");
        let (byte, written) = &mut self.bytes[block];
        if let Some(written) = written.take() {
            *byte = written;
        } else {
            // Nothing of a flush.
            assert!(data.iter().all(|one| one == byte), "block {block}");
        }
    }

    /// So many requests of client `one`, all of which end well.
    fn run(&mut self, world: &mut World, one: usize, requests: usize) {
        let (mut asked, mut ended) = (0, 0);
        let until = world.now() + 100 * SECOND;
        while ended < requests {
            while asked < requests && self.random.below(4) > 0 {
                asked += usize::from(self.ask(world, one, asked - ended));
            }
            world.step();
            assert!(world.now() < until, "{ended} of {requests}, {:?}", world.clients[one].told);
            for (tag, status, data) in std::mem::take(&mut world.clients[one].finished) {
                self.answered(tag, status, &data);
                ended += 1;
            }
        }
    }

    /// What was executed is what was asked for, as often.
    fn check(&self, world: &World, device: usize) {
        let seen = world.devices[device].counters.snapshot();
        assert_eq!([seen.reads, seen.writes, seen.flushes], self.asked);
        assert_eq!((seen.errors, seen.in_flight), (0, 0));
        let attachment = world.devices[device].attachment.snapshot();
        assert_eq!((attachment.errors, attachment.faults, attachment.in_flight), (0, 0, 0));
    }
}

const STORM: Weather = Weather { lost: 8, doubled: 8, delay_ns: 3 * MS };

#[test]
fn what_was_written_is_read_and_done_once_whatever_the_wire_does() {
    for seed in 0..12 {
        let mut world = World::bound(seed, memory());
        world.weather = STORM;
        let mut blocks = Blocks::new(seed, 64);
        blocks.run(&mut world, 0, 500);
        blocks.check(&world, 0);
        let seen = world.counters.snapshot();
        assert!(seen.requests >= 500 && seen.frames_in > 500, "{seen:?}");
        assert_eq!((seen.violations, seen.conflicts, seen.mismatches), (0, 0, 0));
        assert_eq!((seen.refused, seen.withdrawals, seen.leases_over), (0, 0, 0));
    }
}

#[test]
fn a_file_is_served_as_a_ram_disk_is() {
    let (_folder, disk) = file();
    let mut world = World::bound(3, disk);
    world.weather = Weather { lost: 20, doubled: 20, delay_ns: MS / 10 };
    let mut blocks = Blocks::new(3, 64);
    blocks.run(&mut world, 0, 500);
    blocks.check(&world, 0);
}

#[test]
fn a_file_that_answers_late_and_in_any_order_is_served_too() {
    for seed in 0..6 {
        let (_folder, slow, disk) = Slow::new(seed);
        let mut world = World::bound(seed, disk);
        (world.weather, world.slow) = (STORM, Some(slow));
        let mut blocks = Blocks::new(seed, 64);
        blocks.run(&mut world, 0, 500);
        blocks.check(&world, 0);
    }
}

#[test]
fn what_is_with_the_disk_when_a_lease_ends_ends_before_another_client_has_it() {
    let (_folder, slow, disk) = Slow::new(1);
    let mut world = World::new(1, vec![disk], 2);
    world.slow = Some(std::sync::Arc::clone(&slow));
    world.attach(0, 0);
    world.run_until(SECOND, |world| world.is_bound(0));
    slow.stick(true);
    (0..4).for_each(|tag| world.ask(0, WRITE, tag * 4096, 4096, tag, 1));
    world.run_until(SECOND, |_| slow.waiting() == 4);
    world.clients[0].is_cut = true;
    world.attach(1, 0);
    world.run(10 * SECOND);
    assert_eq!(world.counters.snapshot().leases_over, 1);
    assert!(!world.is_bound(1));
    slow.stick(false);
    world.run_until(5 * SECOND, |world| world.is_bound(1));
    world.ask(1, Op::Read, 0, 4 * 4096, 9, 0);
    assert_eq!(world.finish(1, 1), [(9, Status::Ok, vec![1; 4 * 4096])]);
}

#[test]
fn a_request_on_a_still_wire_is_answered_in_the_pass_in_which_it_came() {
    let mut world = World::bound(1, memory());
    world.ask(0, WRITE, 0, 512, 1, 7);
    let before = world.counters.snapshot();
    // Its client says it, the next pass answers.
    world.run_until(MS, |world| world.counters.snapshot().requests > before.requests);
    let seen = world.counters.snapshot();
    assert_eq!(seen.frames_out - before.frames_out, 1);
    assert_eq!(world.devices[0].counters.snapshot().writes, 1);
}

#[test]
fn a_stable_write_is_flushed_before_it_is_answered() {
    let mut world = World::bound(1, memory());
    world.ask(0, STABLE, 0, 4096, 1, 7);
    assert_eq!(world.finish(0, 1), [(1, Status::Ok, Vec::new())]);
    let seen = world.devices[0].counters.snapshot();
    assert_eq!((seen.writes, seen.flushes), (1, 1));
}

#[test]
fn what_no_disk_can_do_fails_and_the_ring_goes_on() {
    let mut world = World::bound(1, memory());
    world.ask(0, Op::Read, 3, 512, 1, 0);
    world.ask(0, Op::Read, 512, 100, 2, 0);
    world.ask(0, Op::Discard, 1, 4096, 3, 0);
    world.ask(0, Op::WriteZeroes { unmap: true, sync: false }, 0, 8192, 4, 0);
    let mut all = world.finish(0, 4);
    all.sort_by_key(|(tag, ..)| *tag);
    let status: Vec<Status> = all.iter().map(|(_, status, _)| *status).collect();
    assert_eq!(status, [Status::IoError, Status::IoError, Status::IoError, Status::Ok]);
    assert_eq!(world.counters.snapshot().refused, 3);
    assert!(world.events.iter().all(|event| !matches!(event, Event::Failed { .. })));
}

#[test]
fn the_second_client_waits_until_the_first_releases() {
    let mut world = World::new(5, vec![memory()], 2);
    world.attach(0, 0);
    world.run_until(SECOND, |world| world.is_bound(0));
    world.ask(0, WRITE, 0, 4096, 1, 9);
    world.finish(0, 1);
    world.attach(1, 0);
    world.run(3 * SECOND);
    assert!(!world.is_bound(1));
    let released = world.clients[0].attachment.unwrap();
    world.clients[0].client.release(released);
    world.run_until(SECOND, |world| world.is_bound(1));
    assert!(world.clients[0].told.contains(&Told::Over { attachment: 0, why: Over::Released }));
    // Nobody but control gives its memory back to the kernel.
    assert_eq!(
        world.spent.iter().map(|memory| Arc::strong_count(memory.map())).collect::<Vec<_>>(),
        [1]
    );
    world.ask(1, Op::Read, 0, 4096, 1, 0);
    assert_eq!(world.finish(1, 1), [(1, Status::Ok, vec![9; 4096])]);
    assert_eq!(world.devices[0].opened, 2);
}

#[test]
fn a_client_that_vanishes_loses_its_device_and_nothing_of_it_lands_later() {
    let mut world = World::new(6, vec![memory()], 2);
    // The queue does four requests a second, so that most wait in the ring.
    world.devices[0].gate = Some(slow_gate());
    world.attach(0, 0);
    world.run_until(SECOND, |world| world.is_bound(0));
    for tag in 0..u64::from(SLOTS) {
        world.ask(0, WRITE, tag * 4096, 4096, tag, 1);
    }
    world.run(SECOND / 10);
    let before = world.devices[0].counters.snapshot().writes;
    assert!((1..u64::from(SLOTS)).contains(&before), "{before}");
    world.clients[0].is_cut = true;
    world.attach(1, 0);
    let gone_at = world.now();
    world.run_until(10 * SECOND, |world| world.is_bound(1));
    let lease_ns = u64::from(LEASE_MS) * MS;
    assert!(world.now() - gone_at >= lease_ns - SECOND / 5, "{}", world.now() - gone_at);
    let after = world.devices[0].counters.snapshot();
    assert!(after.writes < u64::from(SLOTS), "{after:?}");
    assert_eq!(after.in_flight, 0);
    let seen = world.counters.snapshot();
    assert_eq!((seen.withdrawals, seen.leases_over), (1, 1));
    // What was taken back is not done, however long one waits.
    world.ask(1, WRITE, 0, 4096, 1, 2);
    world.finish(1, 1);
    world.run(20 * SECOND);
    assert_eq!(world.devices[0].counters.snapshot().writes, after.writes + 1);
    // The first one comes back: what was never executed is, and in its turn.
    world.clients[0].is_cut = false;
    let second = world.clients[1].attachment.unwrap();
    world.clients[1].client.release(second);
    world.run(5 * SECOND);
    assert_eq!(world.clients[0].client.outstanding(0), 0);
}

/// Four requests a second.
fn slow_gate() -> schedule::Gate {
    let rate = schedule::Rate { per_s: 4, burst_ns: 0 };
    let device = schedule::Meters::new(Some(rate), None);
    schedule::Gate::new(schedule::Limited { device, group: None }).unwrap()
}

#[test]
fn a_device_is_resized_and_removed_under_its_client() {
    let mut world = World::bound(7, memory());
    let size = super::bed::DISK;
    world.resize(0, size / 2);
    let is_size = |world: &World, size| {
        let is = |told: &Told| matches!(told, Told::News { news, .. } if news.size == size);
        world.clients[0].told.last().is_some_and(is)
    };
    // Said before it could know, for what is gone when it comes.
    world.ask(0, WRITE, size - 4096, 4096, 1, 1);
    assert_eq!(world.finish(0, 1)[0].1, Status::IoError);
    assert_eq!(world.devices[0].counters.snapshot().writes, 0);
    world.run_until(SECOND, |world| is_size(world, size / 2));
    world.resize(0, size);
    world.run_until(SECOND, |world| is_size(world, size));
    world.tell(crate::ToHost::Remove { export: 0 });
    world.run_until(SECOND, |world| {
        world.clients[0].told.iter().any(|told| matches!(told, Told::Over { .. }))
    });
    assert_eq!(world.devices[0].counters.snapshot().in_flight, 0);
}

#[test]
fn a_queue_goes_and_comes_back_while_requests_are_under_way() {
    let mut world = World::bound(8, memory());
    world.weather = Weather { lost: 0, doubled: 0, delay_ns: MS / 10 };
    let mut blocks = Blocks::new(8, 64);
    for _ in 0..20 {
        world.core.send(Command::Detach(super::bed::key(0)));
        blocks.run(&mut world, 0, 40);
    }
    blocks.check(&world, 0);
}

#[test]
fn a_flood_of_garbage_costs_a_pass_no_more_than_its_frames() {
    let mut world = World::bound(9, memory());
    let mut guest = Guest::new(ring(256));
    let spec = guest.spec(77, &null());
    world.core.attach(&guest, spec);
    let mut random = random::Random::new(9, 0);
    let frames = 5000;
    for number in 0..frames {
        let mut frame = vec![0; 16 + random.below(1400) as usize];
        frame.iter_mut().for_each(|byte| *byte = random.next() as u8);
        // Frames of a version and kind that there is, among others.
        if number % 2 == 0 {
            frame[..4].copy_from_slice(&[1, 1 + random.below(4) as u8, 0, 0]);
        }
        world.give(address(random.next() as u8), frame);
    }
    let before = world.counters.snapshot();
    let mut passes = 0;
    while world.counters.snapshot().frames_in - before.frames_in < frames {
        guest.ask(1, READ);
        let progress = world.core.pass();
        // It came with the flood, and is served in the same pass.
        assert_eq!((progress.requests, guest.take_ok()), (1, 1));
        assert!(progress.linked <= 2 * 64, "{progress:?}");
        passes += 1;
    }
    assert!(passes >= frames / 64);
    // Of all of it control hears once where some came from.
    let events = world.core.events();
    let is_told = matches!(
        &events[..],
        [Event::FromHost(LINK, told)] if matches!(**told, FromHost::Unreadable(_))
    );
    assert!(is_told, "{events:?}");
    // The client did not notice.
    world.ask(0, Op::Read, 0, BLOCK as u32, 1, 0);
    assert_eq!(world.finish(0, 1)[0].1, Status::Ok);
}

#[test]
fn hellos_wait_eight_at_a_time_and_others_are_dropped() {
    let mut world = World::new(10, vec![memory()], 20);
    world.keeps_greetings = true;
    world.run(40 * MS);
    assert_eq!(world.greetings.len(), 8);
    let seen = world.counters.snapshot();
    assert_eq!((seen.cookies, seen.greets_dropped, seen.sessions), (20, 12, 0));
    // Those that are not answered make place, and their clients come again.
    world.greetings.clear();
    world.keeps_greetings = false;
    (0..20).for_each(|one| world.attach(one, 0));
    world.run_until(5 * SECOND, |world| (0..20).any(|one| world.is_bound(one)));
    world.run(SECOND);
    assert_eq!(world.counters.snapshot().sessions, 20);
}

/// What another shard of a link has heard is answered by this one, with a number of its own.
#[test]
fn a_hello_of_another_shard_gets_a_number_of_this_one() {
    let mut world = World::new(13, vec![memory()], 3);
    world.reserved = Some(0);
    (0..3).for_each(|one| world.attach(one, 0));
    world.run(SECOND);
    assert_eq!((world.reserved, world.counters.snapshot().sessions), (Some(3), 3));
}

#[test]
fn a_frame_of_another_shard_is_dropped_and_counted() {
    let mut world = World::bound(14, memory());
    let before = world.counters.snapshot();
    for kind in [Kind::Hello, Kind::Sealed] {
        for shard in [1, 3, 15] {
            let header = remote::wire::Header { kind, session: shard << 28, counter: 1 };
            let mut frame = header.bytes().to_vec();
            frame.resize(200, 0);
            world.give(address(1), frame);
        }
    }
    world.core.pass();
    let seen = world.counters.snapshot();
    assert_eq!(seen.frames_misplaced - before.frames_misplaced, 6);
    assert_eq!((seen.hellos, seen.frames_unknown), (before.hellos, before.frames_unknown));
}

#[test]
fn a_link_without_work_lets_its_sidecore_sleep() {
    let mut world = World::bound(11, memory());
    world.run(SECOND);
    let before = world.core.handle.counters();
    let at = world.now();
    world.run(10 * SECOND);
    let passes = (world.now() - at) / MS;
    let sleeps = world.core.handle.counters().sleeps - before.sleeps;
    // Eight pings a lease of each end, their acknowledgements, and what polling costs after each.
    assert!(sleeps < 1000, "{sleeps} in {passes} ms");
    // And is awake at once when something comes.
    world.ask(0, Op::Read, 0, 4096, 1, 0);
    let at = world.now();
    world.finish(0, 1);
    assert!(world.now() - at < MS, "{}", world.now() - at);
}

#[test]
fn a_link_is_given_back_when_it_is_asked_for_and_when_all_ends() {
    let mut world = World::bound(12, memory());
    world.core.send(Command::DetachLink(LINK));
    world.core.pass();
    let mut events = world.core.events();
    let Some(Event::LinkDetached(LINK, link)) = events.pop() else { panic!("{events:?}") };
    // A frame more is nobody's.
    world.give(address(1), vec![0; 100]);
    assert_eq!(world.core.pass().linked, 0);
    world.core.send(Command::AttachLink(LINK, link));
    world.run(10 * MS);
    world.ask(0, WRITE, 0, 4096, 1, 9);
    assert_eq!(world.finish(0, 1)[0].1, Status::Ok);
    world.core.send(Command::Stop);
    world.core.pass();
    let events = world.core.events();
    assert!(events.iter().any(|event| matches!(event, Event::LinkDetached(LINK, _))), "{events:?}");
}

fn send(port: &mut HostPort, frame: &[u8]) -> Sent {
    let (head, rest) = frame.split_at(frame.len().min(128));
    let sent = port.send(&Header::default(), head, Rest::Private(rest));
    port.flush();
    sent
}

fn bytes(number: usize) -> Vec<u8> {
    let len = 14 + number * 211 % 9_000;
    (0..len).map(|at| (at * 3 + number * 7 + at / 256) as u8).collect()
}

/// Frames of a port to the client that has it, and back; what a bad wire loses is lost whole.
#[test]
fn frames_of_nics_go_between_a_port_and_the_client_that_has_it() {
    let foul = Weather { lost: 30, doubled: 30, delay_ns: MS / 4 };
    for (seed, weather) in [(1, FAIR), (2, foul), (3, foul)] {
        let mut world = World::new(seed, Vec::new(), 1);
        let mut port = world.nic();
        world.weather = weather;
        let attachment = world.clients[0].attachment.unwrap();
        let mut came = Vec::new();
        for number in 0..300 {
            let frame = bytes(number);
            assert!(world.clients[0].client.send_net(attachment, &frame));
            assert_eq!(send(&mut port, &frame), Sent::Done);
            world.run(2 * MS);
            came.extend(std::iter::from_fn(|| port.receive(0).map(|got| got.bytes.to_vec())));
        }
        world.run(100 * MS);
        for frames in [&came, &world.clients[0].net] {
            let mut sent = (0..300).map(bytes);
            let all = frames.iter().all(|frame| sent.any(|one| one == *frame));
            assert!(all, "seed {seed}: some came twice, late, or otherwise than they were sent");
            let least = if weather.lost == 0 { 300 } else { 180 };
            assert!(frames.len() >= least, "seed {seed}: {} of 300", frames.len());
        }
        // Its client falls silent: nobody has it.
        world.clients[0].is_cut = true;
        world.run(4 * SECOND);
        assert_eq!(send(&mut port, &bytes(1)), Sent::Down);
    }
}

/// Whoever keeps the other end of a port does not keep a sidecore awake that has the link no more.
#[test]
fn a_link_that_is_given_back_wakes_nobody_for_its_nics() {
    let mut world = World::new(4, Vec::new(), 1);
    let mut port = world.nic();
    let wakes = |world: &mut World| {
        let (now, rest) = (world.core.now, &mut world.core.sidecore.rest);
        rest.look(now);
        std::iter::from_fn(|| rest.next()).any(|woke| matches!(woke, Woke::Link))
    };
    world.core.send(Command::DetachLink(LINK));
    world.core.pass();
    let mut events = world.core.events();
    let Some(Event::LinkDetached(LINK, link)) = events.pop() else { panic!("{events:?}") };
    assert_eq!(send(&mut port, &bytes(1)), Sent::Done);
    assert!(!wakes(&mut world), "it would be awake until another process has the link");
    world.core.send(Command::AttachLink(LINK, link));
    world.core.pass();
    world.run(10 * MS);
    assert_eq!(world.clients[0].net, [bytes(1)]);
    assert_eq!(send(&mut port, &bytes(2)), Sent::Done);
    assert!(wakes(&mut world), "nobody would hear of the frame");
}

/// It is no disk: whatever is asked of it fails, at once.
#[test]
fn a_nic_executes_nothing() {
    let mut world = World::new(4, Vec::new(), 1);
    let mut port = world.nic();
    for (op, len) in [(Op::Read, 512), (Op::Flush, 0), (WRITE, 512)] {
        world.ask(0, op, 0, len, 7, 1);
        let ended = world.finish(0, 1);
        assert!(matches!(ended[..], [(7, Status::IoError, _)]), "{op:?}: {ended:?}");
    }
    assert_eq!(send(&mut port, &bytes(3)), Sent::Done);
    world.run(10 * MS);
    assert_eq!(world.clients[0].net, [bytes(3)]);
}

/// The link's end of a port goes from one shard to another and back: the port notices nothing, and frames go on.
#[test]
fn the_end_of_a_port_goes_to_another_shard() {
    let mut world = World::new(5, Vec::new(), 1);
    let mut port = world.nic();
    assert_eq!(send(&mut port, &bytes(1)), Sent::Done);
    world.run(10 * MS);
    let export = 0;
    world.tell(crate::ToHost::PullOut { export });
    world.tell(crate::ToHost::PullOut { export });
    world.run(MS);
    let Some((0, nic)) = world.pulled.pop() else { panic!("it is not here") };
    assert!(world.pulled.is_empty(), "there is one of it");
    // What comes for it meanwhile is nobody's.
    let attachment = world.clients[0].attachment.unwrap();
    assert!(world.clients[0].client.send_net(attachment, &bytes(2)));
    world.run(10 * MS);
    world.tell(crate::ToHost::PlugIn { export, nic });
    world.run(MS);
    assert!(world.clients[0].client.send_net(attachment, &bytes(3)));
    assert_eq!(send(&mut port, &bytes(4)), Sent::Done);
    world.run(10 * MS);
    assert_eq!(port.receive(0).map(|got| got.bytes.to_vec()), Some(bytes(3)));
    assert_eq!(world.clients[0].net, [bytes(1), bytes(4)]);
}
