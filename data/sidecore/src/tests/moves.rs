//! Queues that go from one sidecore to another: nothing is lost, doubled or out of order, whatever comes
//! in between.

use std::sync::Arc;

use backend::Disk;
use virtqueue::Ticket;
use virtqueue::driver::Buffer;

use super::bed::*;
use crate::large::SLICE_BYTES;
use crate::moves::DRAIN_NS_MAX;
use crate::places::disk_at;
use crate::{Command, Departure, Event, MoveId, Refusal, Served, Stay, handover};

/// Prepares move `id` of a queue of `disk` to `to`, which has room.
fn prepared(to: &mut Core, id: u64, disk: &Arc<Disk>) -> Box<Departure> {
    let (arrival, departure) = handover(MoveId(id), &to.handle, disk.backend(), None);
    to.send(Command::Prepare(arrival));
    to.pass();
    assert!(matches!(to.events()[..], [Event::Prepared(MoveId(answered))] if answered == id));
    departure
}

fn moved(core: &mut Core, id: u64) {
    let events = core.events();
    assert!(matches!(events[..], [Event::Moved(MoveId(a))] if a == id), "{events:?}");
}

fn stayed(core: &mut Core, id: u64) -> Stay {
    match core.events().pop() {
        Some(Event::Stayed(MoveId(answered), why)) if answered == id => why,
        other => panic!("{other:?}"),
    }
}

/// A guest of the first of two sidecores, with a RAM disk.
fn pair() -> (Guest, Core, Core, Arc<Disk>) {
    let (guest, disk) = (Guest::new(ring(256)), memory());
    let (mut a, b) = (Core::numbered(0, 2), Core::numbered(1, 2));
    a.attach(&guest, guest.spec(1, &disk));
    (guest, a, b, disk)
}

/// A request that is with a back-end that does not answer.
fn hold(core: &mut Core, guest: &mut Guest) -> Ticket {
    guest.add(9, READ, 0, 1);
    guest.driver.publish();
    let sidecore = &mut core.sidecore;
    let (ring, _) = disk_at(&mut sidecore.places, 0).unwrap();
    assert!(ring.queue.peek(&guest.map, &mut sidecore.chain));
    ring.queue.advance(&sidecore.chain)
}

fn answer(core: &mut Core, ticket: Ticket) {
    let (ring, _) = disk_at(&mut core.sidecore.places, 0).unwrap();
    ring.queue.complete(ticket, 1);
    ring.unshown = true;
}

#[test]
fn a_queue_goes_on_where_it_was_at_its_new_owner() {
    let (mut guest, mut a, mut b, disk) = pair();
    for number in 0..40 {
        guest.fill(number, number as u8 + 1);
    }
    guest.ask(40, WRITE);
    a.pass();
    let departure = prepared(&mut b, 7, &disk);
    a.send(Command::Move(key(1), departure));
    assert_eq!(a.pass().requests, 0, "it takes nothing more");
    assert_eq!(guest.take_ok(), 32, "what it took is shown");
    b.pass();
    assert!(b.events().is_empty(), "it was not yet looked at when the pass began");
    b.pass();
    moved(&mut b, 7);
    assert!(a.events().is_empty());
    assert_eq!(guest.take_ok(), 8);
    (0..40).for_each(|number| guest.fill(number, 0));
    guest.ask(40, READ);
    b.passes(2);
    assert_eq!(guest.take_ok(), 40);
    assert!((0..40).all(|number| guest.holds(number, number as u8 + 1)));
    let (from, to) = (a.handle.counters(), b.handle.counters());
    assert_eq!((from.moves_out, from.moves_in, from.queues), (1, 0, 0));
    assert_eq!((to.moves_out, to.moves_in, to.queues), (0, 1, 1));
    assert_eq!((from.requests, to.requests), (32, 48));
    assert_eq!((to.pauses.count(), from.pauses.count()), (1, 0));
    assert_eq!(b.detach(1).queue().base(), 80);
}

#[test]
fn a_pause_is_counted_from_before_the_last_visit_to_after_the_first() {
    let (_guest, mut a, mut b, disk) = pair();
    let departure = prepared(&mut b, 1, &disk);
    let before = a.now;
    a.pass();
    a.send(Command::Move(key(1), departure));
    a.pass();
    b.now = before.after(400_000);
    b.passes(2);
    let pause = b.handle.counters().pauses.quantile_ns(1.0);
    assert!((400_000 + PASS_NS..440_000).contains(&pause), "{pause}");
}

#[test]
fn a_kick_while_nobody_has_the_queue_is_not_lost() {
    let (mut guest, mut a, mut b, disk) = pair();
    a.idle();
    let departure = prepared(&mut b, 1, &disk);
    a.send(Command::Move(key(1), departure));
    a.pass();
    guest.ask(1, READ);
    assert!(!b.rest(), "something came");
    b.pass();
    assert_eq!(guest.take_ok(), 1);
    b.pass();
    moved(&mut b, 1);
    b.idle();
    guest.ask(1, READ);
    a.now = a.now.after(1_000_000);
    assert_eq!(a.pass().kicks, 0, "it is not watched there any more");
    assert!(b.rest());
    assert_eq!(b.pass().requests, 1);
}

#[test]
fn a_sidecore_that_sleeps_is_woken_for_what_comes_and_for_what_will_not() {
    let (_guest, mut a, mut b, disk) = pair();
    let departure = prepared(&mut b, 1, &disk);
    count(&b.handle.command_fd);
    b.sidecore.rest.bell().sleep();
    a.send(Command::Move(key(1), departure));
    a.pass();
    assert_eq!(count(&b.handle.command_fd), 1);
    b.sidecore.rest.bell().awake();
    b.passes(2);
    moved(&mut b, 1);
    let departure = prepared(&mut a, 2, &disk);
    count(&a.handle.command_fd);
    a.sidecore.rest.bell().sleep();
    drop(departure);
    assert_eq!(count(&a.handle.command_fd), 1);
    a.sidecore.rest.bell().awake();
    assert!(!a.rest());
    a.pass();
    assert!(!a.sidecore.moves.awaits());
    assert!(a.sidecore.places.iter().all(|place| place.is_empty()), "the place is free again");
}

#[test]
fn a_large_request_under_way_goes_along() {
    let (mut guest, mut a, mut b, disk) = pair();
    let spare = guest.map.area_at_user(SPARE_AT, SPARE).unwrap();
    let len = 20 * SLICE_BYTES;
    let bytes: Vec<u8> = (0..len).map(|at| ((at * 7) >> 5) as u8).collect();
    assert!(spare.write(0, &bytes));
    let buffer = |device_writes| [Buffer { gpa: SPARE_AT, len: len as u32, device_writes }];
    guest.add_over(0, WRITE, 0, &buffer(false));
    guest.add(1, FLUSH, 0, 1);
    guest.driver.publish();
    for id in 1..5 {
        let (from, to) = if id % 2 == 1 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        from.pass();
        let departure = prepared(to, id, &disk);
        from.send(Command::Move(key(1), departure));
        from.pass();
        to.passes(2);
        moved(to, id);
    }
    a.passes(10);
    assert_eq!(guest.take(), [(0, 0), (1, 0)]);
    assert!(spare.zero(0, len as usize));
    guest.add_over(0, READ, 0, &buffer(true));
    guest.driver.publish();
    a.passes(10);
    let mut back = vec![0; len as usize];
    assert!(spare.read(0, &mut back));
    assert!(back == bytes);
    assert_eq!(guest.take(), [(0, 0)]);
}

#[test]
fn what_is_not_drained_in_time_stays_and_is_served() {
    let (mut guest, mut a, mut b, disk) = pair();
    let held = hold(&mut a, &mut guest);
    let departure = prepared(&mut b, 1, &disk);
    a.send(Command::Move(key(1), departure));
    guest.ask(1, READ);
    assert_eq!(a.pass().requests, 0);
    assert!(!a.rest(), "it waits for no longer than it said");
    assert!(a.events().is_empty());
    a.now = a.now.after(DRAIN_NS_MAX);
    a.passes(2);
    assert!(matches!(stayed(&mut a, 1), Stay::Busy));
    assert_eq!(guest.take_ok(), 1, "the one behind it");
    b.pass();
    assert!(!b.sidecore.moves.awaits());
    assert_eq!(a.handle.counters().moves_stayed, 1);
    // In time, it goes as soon as it is drained.
    let departure = prepared(&mut b, 2, &disk);
    a.send(Command::Move(key(1), departure));
    a.passes(3);
    answer(&mut a, held);
    a.pass();
    b.passes(2);
    moved(&mut b, 2);
    assert_eq!(guest.take().len(), 1);
}

#[test]
fn a_sidecore_without_a_place_says_so_at_once() {
    let (guest, disk) = (Guest::new(ring(16)), memory());
    let mut full = Core::new(1);
    full.attach(&guest, guest.spec(1, &disk));
    let (arrival, _departure) = handover(MoveId(1), &full.handle, disk.backend(), None);
    full.send(Command::Prepare(arrival));
    full.pass();
    assert!(matches!(stayed(&mut full, 1), Stay::Refused(Refusal::NoPlace)));
}

#[test]
fn a_place_that_is_held_is_given_to_nobody_else() {
    let (guest, disk) = (Guest::new(ring(16)), memory());
    let mut core = Core::new(1);
    let departure = prepared(&mut core, 1, &disk);
    core.attach(&guest, guest.spec(1, &disk));
    assert!(matches!(core.events()[..], [Event::Refused(_, Refusal::NoPlace)]));
    drop(departure);
    core.pass();
    core.attach(&guest, guest.spec(1, &disk));
    assert!(core.events().is_empty());
}

#[test]
fn a_detach_calls_a_move_off_and_one_that_is_late_finds_nothing() {
    let (mut guest, mut a, mut b, disk) = pair();
    let held = hold(&mut a, &mut guest);
    let departure = prepared(&mut b, 1, &disk);
    a.send(Command::Move(key(1), departure));
    a.pass();
    a.send(Command::Detach(key(1)));
    a.pass();
    assert!(matches!(stayed(&mut a, 1), Stay::Leaving));
    answer(&mut a, held);
    a.pass();
    drop(detached(a.events(), 1));
    b.pass();
    assert!(b.events().is_empty() && !b.sidecore.moves.awaits());
    let departure = prepared(&mut b, 2, &disk);
    a.send(Command::Move(key(1), departure));
    a.pass();
    assert!(matches!(stayed(&mut a, 2), Stay::Leaving), "it is gone");
    b.pass();
    // And one that is handed over is not the old owner's to give back.
    let (_guest, mut a, mut b, disk) = pair();
    let departure = prepared(&mut b, 3, &disk);
    a.send(Command::Move(key(1), departure));
    a.send(Command::Detach(key(1)));
    a.passes(2);
    // The detach came in the same batch, before the hand-over.
    assert!(matches!(
        &a.events()[..],
        [Event::Stayed(MoveId(3), Stay::Leaving), Event::Detached(_)]
    ));
    b.pass();
    assert!(b.sidecore.places.iter().all(|place| place.is_empty()));
}

#[test]
fn a_second_move_of_a_queue_that_goes_is_refused() {
    let (mut guest, mut a, mut b, disk) = pair();
    let held = hold(&mut a, &mut guest);
    let (first, second) = (prepared(&mut b, 1, &disk), prepared(&mut b, 2, &disk));
    a.send(Command::Move(key(1), first));
    a.send(Command::Move(key(1), second));
    a.pass();
    assert!(matches!(stayed(&mut a, 2), Stay::Moving));
    answer(&mut a, held);
    a.pass();
    b.passes(2);
    moved(&mut b, 1);
}

#[test]
fn stop_finds_the_queue_wherever_it_is() {
    for step in 0..4 {
        for stops_first in [0, 1] {
            let (mut guest, a, b, disk) = pair();
            let mut cores = [a, b];
            guest.ask(3, WRITE);
            let mut departure = Some(prepared(&mut cores[1], 1, &disk));
            if step > 0 {
                cores[0].send(Command::Move(key(1), departure.take().unwrap()));
            }
            if step > 1 {
                cores[0].pass();
            }
            if step > 2 {
                cores[1].pass();
            }
            // As control does at the end: what was not sent is called off.
            drop(departure);
            cores[stops_first].send(Command::Stop);
            cores[stops_first].pass();
            cores[1 - stops_first].send(Command::Stop);
            for _ in 0..4 {
                for core in &mut cores {
                    core.pass();
                }
            }
            assert!(cores.iter().all(|core| core.sidecore.has_ended()), "{step} {stops_first}");
            let events = cores.iter_mut().flat_map(Core::events);
            let back = events.filter(|event| matches!(event, Event::Detached(_))).count();
            assert_eq!(back, 1, "step {step}, {stops_first} stops first");
        }
    }
}

/// Numbers from a seed (xorshift).
struct Seed(u64);

impl Seed {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// What control knows of one queue.
struct Known {
    guest: Guest,
    disk: Arc<Disk>,
    /// The sidecore that has it; `None` while control has it itself.
    at: Option<usize>,
    mine: Option<Box<Served>>,
    /// The move and where to, and what is to be sent to the old owner.
    moving: Option<(u64, usize, Option<Box<Departure>>)>,
    leaving: bool,
    /// Detach once the move is answered.
    held: bool,
    /// In flight by the driver's count, and what it wrote last.
    asked: usize,
    turn: u8,
    reading: bool,
    done: usize,
}

/// Three sidecores, four guests, and control, one step at a time.
struct World {
    cores: Vec<Core>,
    known: Vec<Known>,
    seed: Seed,
    next: u64,
    moves: usize,
    stays: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let mut cores: Vec<Core> = (0..3).map(|index| Core::numbered(index, 3)).collect();
        let known = (0..4).map(|device| {
            let (guest, disk) = (Guest::new(ring(64)), memory());
            let at = device % 3;
            cores[at].attach(&guest, guest.spec(device as u32, &disk));
            Known {
                guest,
                disk,
                at: Some(at),
                mine: None,
                moving: None,
                leaving: false,
                held: false,
                asked: 0,
                turn: 0,
                reading: false,
                done: 0,
            }
        });
        let known = known.collect();
        World { cores, known, seed: Seed(seed), next: 0, moves: 0, stays: 0 }
    }

    /// The guest asks for some blocks, or takes what was answered: all of it, once, in order.
    fn drive(&mut self, device: usize) {
        let count = 1 + self.seed.below(16);
        let known = &mut self.known[device];
        let guest = &mut known.guest;
        let taken = guest.take();
        let numbers: Vec<usize> = taken.iter().map(|(number, _)| *number).collect();
        let expected: Vec<usize> = (known.done..known.done + taken.len()).collect();
        assert_eq!(numbers, expected, "in order, once");
        assert!(taken.iter().all(|(_, status)| *status == 0), "{taken:?}");
        known.done += taken.len();
        if known.done < known.asked {
            return;
        }
        if known.reading {
            let turn = known.turn;
            assert!((0..known.asked).all(|n| guest.holds(n, turn.wrapping_add(n as u8))));
            known.reading = false;
        } else if known.asked > 0 {
            known.reading = true;
        }
        known.done = 0;
        if !known.reading {
            (known.asked, known.turn) = (count, known.turn.wrapping_add(1));
        }
        for number in 0..known.asked {
            let byte = if known.reading { 0 } else { known.turn.wrapping_add(number as u8) };
            guest.fill(number, byte);
        }
        guest.ask(known.asked, if known.reading { READ } else { WRITE });
    }

    fn begin_move(&mut self, device: usize) {
        let to = self.seed.below(3);
        let known = &mut self.known[device];
        if known.at.is_none_or(|at| at == to) || known.moving.is_some() || known.leaving {
            return;
        }
        self.next += 1;
        let to_handle = &self.cores[to].handle;
        let (arrival, departure) =
            handover(MoveId(self.next), to_handle, known.disk.backend(), None);
        self.cores[to].send(Command::Prepare(arrival));
        known.moving = Some((self.next, to, Some(departure)));
    }

    fn detach(&mut self, device: usize) {
        let known = &mut self.known[device];
        let Some(at) = known.at.filter(|_| !known.leaving) else { return };
        known.leaving = true;
        match &known.moving {
            // The old owner has been told: wait for where it ends up.
            Some((_, _, None)) => known.held = true,
            _ => self.cores[at].send(Command::Detach(key(device as u32))),
        }
    }

    fn set_call(&mut self, device: usize) {
        let known = &mut self.known[device];
        let Some(at) = known.at.filter(|_| known.moving.is_none()) else { return };
        known.guest.call = crate::rest::eventfd().unwrap();
        let call = known.guest.call.try_clone().unwrap();
        self.cores[at].send(Command::SetCall(key(device as u32), Some(call)));
    }

    fn attach_again(&mut self, device: usize) {
        let at = self.seed.below(3);
        let known = &mut self.known[device];
        let Some(served) = known.mine.take() else { return };
        let mut spec = served.into_spec();
        spec.queue = known.guest.queue(spec.queue.base());
        known.at = Some(at);
        self.cores[at].send(Command::Attach(Served::new(spec)));
    }

    fn hear(&mut self, core: usize) {
        for event in self.cores[core].events() {
            match event {
                Event::Prepared(MoveId(id)) => self.go(id),
                Event::Moved(MoveId(id)) => {
                    let device = self.of(id).expect("a move that nobody asked for");
                    self.known[device].at = Some(core);
                    self.moves += 1;
                    self.answered(device);
                }
                Event::Stayed(MoveId(id), _) => {
                    self.stays += 1;
                    if let Some(device) = self.of(id) {
                        self.answered(device);
                    }
                }
                Event::Detached(served) | Event::Refused(served, _) => {
                    let known = &mut self.known[served.key().device as usize];
                    assert_eq!(known.at, Some(core), "it was there");
                    (known.at, known.mine) = (None, Some(served));
                    (known.leaving, known.moving) = (false, None);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn of(&self, id: u64) -> Option<usize> {
        self.known.iter().position(|known| known.moving.as_ref().is_some_and(|m| m.0 == id))
    }

    fn go(&mut self, id: u64) {
        let Some(device) = self.of(id) else { return };
        let known = &mut self.known[device];
        let Some((_, _, departure)) = &mut known.moving else { return };
        match (departure.take(), known.at) {
            (Some(departure), Some(at)) if !known.leaving => {
                self.cores[at].send(Command::Move(key(device as u32), departure));
            }
            _ => known.moving = None,
        }
    }

    fn answered(&mut self, device: usize) {
        let known = &mut self.known[device];
        known.moving = None;
        if std::mem::take(&mut known.held) {
            let at = known.at.expect("it is somewhere");
            self.cores[at].send(Command::Detach(key(device as u32)));
        }
    }

    fn step(&mut self) {
        let (device, core) = (self.seed.below(4), self.seed.below(3));
        match self.seed.below(40) {
            0 => self.detach(device),
            1 | 2 => self.attach_again(device),
            3 => self.set_call(device),
            4..8 => self.begin_move(device),
            8..16 => self.drive(device),
            16..20 => self.hear(core),
            20 => self.cores[core].now = self.cores[core].now.after(60_000),
            _ => {
                self.cores[core].pass();
            }
        }
    }

    /// Lets everything end, and looks that every guest is served.
    fn settle(&mut self) {
        let goals: Vec<u8> = self.known.iter().map(|known| known.turn.wrapping_add(2)).collect();
        for round in 0.. {
            assert!(round < 1_000, "a guest waits for ever");
            for core in 0..3 {
                self.cores[core].pass();
                self.hear(core);
            }
            (0..4).for_each(|device| self.attach_again(device));
            let late: Vec<usize> = (0..4).filter(|d| self.known[*d].turn != goals[*d]).collect();
            late.iter().for_each(|device| self.drive(*device));
            let is_calm = |known: &Known| known.at.is_some() && known.moving.is_none();
            if late.is_empty() && self.known.iter().all(is_calm) {
                break;
            }
        }
        let queues: u64 = self.cores.iter().map(|core| core.handle.counters().queues).sum();
        assert_eq!(queues, 4, "each is somewhere, once");
    }
}

#[test]
fn random_moves_detaches_and_calls_lose_double_and_reorder_nothing() {
    let (mut moves, mut stays) = (0, 0);
    for seed in 1..=60 {
        let mut world = World::new(u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15));
        for _ in 0..4_000 {
            world.step();
        }
        world.settle();
        (moves, stays) = (moves + world.moves, stays + world.stays);
    }
    assert!(moves > 3_000, "{moves}");
    assert!(stays > 50, "{stays}");
}
