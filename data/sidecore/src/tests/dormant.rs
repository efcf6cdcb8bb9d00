//! Queues of guests that have no processor: left alone at no loss.

use std::sync::Arc;

use random::Random;
use runstate::{Table, Vm};
use schedule::Policy;

use super::bed::*;
use crate::{Command, VmLine};

const GUESTS: u16 = 8;

/// Guests of one vCPU and one disk each, guest 0 without run state.
struct World {
    table: Arc<Table>,
    guests: Vec<Guest>,
    runs: Vec<bool>,
    core: Core,
}

impl World {
    fn new(policy: Policy) -> World {
        let table = Arc::new(Table::simulated());
        let mut core = Core::new(GUESTS);
        let guests: Vec<Guest> = (0..GUESTS).map(|_| Guest::new(ring(16))).collect();
        for (number, guest) in (0u16..).zip(&guests) {
            let mut spec = guest.spec(number.into(), &null());
            spec.policy = policy;
            core.attach(guest, spec);
            let line = VmLine { table: Arc::clone(&table), vm: Table::simulated_vm(number) };
            core.send(Command::SetVm(key(number.into()), (number > 0).then_some(line)));
            core.pass();
        }
        World { table, guests, runs: vec![false; usize::from(GUESTS)], core }
    }

    /// Guest `number` is given a processor, or loses it.
    fn turn(&mut self, number: usize, is_given: bool) {
        if std::mem::replace(&mut self.runs[number], is_given) != is_given {
            let vm: Vm = Table::simulated_vm(number as u16);
            self.table.simulate_vm(vm, is_given);
        }
    }

    fn dormant(&self) -> u64 {
        self.core.handle.counters().dormant
    }
}

#[test]
fn who_sleeps_is_not_looked_at_and_who_wakes_is_served_at_once() {
    let mut world = World::new(Policy::Poll);
    world.core.passes(3);
    // All but the one that is not followed.
    assert_eq!(world.dormant(), u64::from(GUESTS) - 1);
    let spared = world.core.handle.counters().unpolled;
    world.core.passes(10);
    // And but the one whose turn it is.
    assert_eq!(world.core.handle.counters().unpolled - spared, 10 * (u64::from(GUESTS) - 2));
    for number in 1..usize::from(GUESTS) {
        world.turn(number, true);
        world.guests[number].ask(1, READ);
        // It waits for the answer without a processor.
        world.turn(number, false);
        assert_eq!(world.core.pass().requests, 1, "guest {number}");
        assert_eq!(world.guests[number].take_ok(), 1);
        assert_eq!(world.guests[number].calls(), 1);
        world.core.passes(3);
    }
}

#[test]
fn a_request_of_somebody_who_is_not_followed_is_found_in_its_turn() {
    let mut world = World::new(Policy::Poll);
    world.core.passes(3);
    for number in 1..usize::from(GUESTS) {
        world.guests[number].ask(1, READ);
        assert_eq!(world.core.passes(GUESTS.into()), 1, "guest {number}");
        assert_eq!(world.guests[number].take_ok(), 1);
    }
}

#[test]
fn whose_vm_is_forgotten_is_polled_again() {
    let mut world = World::new(Policy::Poll);
    world.core.passes(3);
    for number in 1..u32::from(GUESTS) {
        world.core.send(Command::SetVm(key(number), None));
    }
    world.core.passes(3);
    assert_eq!(world.dormant(), 0);
    world.guests[1].ask(1, READ);
    assert_eq!(world.core.pass().requests, 1);
}

#[test]
fn when_nobody_is_polled_any_more_those_that_sleep_are_armed() {
    let mut world = World::new(Policy::Adaptive);
    world.core.passes(3);
    assert_eq!(world.dormant(), u64::from(GUESTS) - 1);
    let mut passes = 0;
    while !world.core.sidecore.schedule.may_rest() {
        world.core.pass();
        passes += 1;
        assert!(passes < 2 * IDLE_PASSES, "it stays awake for those that sleep");
    }
    assert_eq!(world.dormant(), 0);
    for number in 0..usize::from(GUESTS) {
        world.turn(number, true);
        // Kicks, since it is asked to.
        world.guests[number].ask(1, READ);
        world.core.sidecore.look(false, world.core.now);
        assert_eq!(world.core.passes(2), 1, "guest {number}");
    }
}

#[test]
fn a_dormant_queue_is_given_back_with_all_that_is_in_it() {
    let mut world = World::new(Policy::Poll);
    world.core.passes(3);
    world.guests[5].ask(2, READ);
    let served = world.core.detach(5);
    assert_eq!(served.queue().in_flight(), 0);
    assert_eq!(world.core.passes(GUESTS.into()), 0, "it was not served after that");
}

/// Guests run and sleep as a seed says, ask only while they run, and each request is taken in the pass that follows.
#[test]
fn whatever_they_do_no_request_waits_for_it() {
    for seed in 0..200 {
        let random = &mut Random::new(seed, 0);
        let policy = if seed % 2 == 0 { Policy::Poll } else { Policy::Adaptive };
        let mut world = World::new(policy);
        for _ in 0..300 {
            let mut asked = 0;
            for number in 0..usize::from(GUESTS) {
                if random.below(4) == 0 {
                    let is_given = !world.runs[number];
                    world.turn(number, is_given);
                }
                if (number == 0 || world.runs[number]) && random.below(8) == 0 {
                    world.guests[number].ask(1, READ);
                    asked += 1;
                }
                if random.below(4) == 0 {
                    world.turn(number, false);
                }
            }
            // A kick is looked for now and then; what is late by that is not what is asked here.
            world.core.sidecore.look(false, world.core.now);
            world.core.pass();
            let taken: usize = world.guests.iter_mut().map(Guest::take_ok).sum();
            assert_eq!(taken, asked, "seed {seed}");
        }
    }
}
