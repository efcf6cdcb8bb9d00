//! Nobody who was given a processor waits, and nobody waits for ever.

use proptest::prelude::*;

use crate::{Limits, Nanos, Policy, Schedule, Visited};

const QUEUES: u16 = 10;
/// Each has some of the queues.
const VMS: u16 = 4;

fn vm_of(queue: u16) -> u16 {
    queue % VMS
}

/// A VM's word: how many vCPUs have a processor, and how often one was given one.
#[derive(Clone, Copy, Debug, Default)]
struct Vm {
    running: u32,
    given: u32,
}

impl Vm {
    fn word(self) -> u64 {
        u64::from(self.given) << 32 | u64::from(self.running)
    }
}

/// What a sidecore does, in small.
struct World {
    schedule: Schedule,
    vms: [Vm; VMS as usize],
    policies: Vec<Policy>,
    backlog: [u32; QUEUES as usize],
    /// The word when the ring was found empty last.
    seen: [u64; QUEUES as usize],
    armed: [bool; QUEUES as usize],
    /// Passes begun since something was put in.
    waited: [usize; QUEUES as usize],
    /// The most that were dormant since then.
    dormant: [usize; QUEUES as usize],
    now: Nanos,
}

impl World {
    fn new(policies: Vec<Policy>) -> World {
        let mut schedule = Schedule::new(Limits::default(), QUEUES);
        for (queue, policy) in policies.iter().enumerate() {
            schedule.add(queue as u16, 100, *policy, Nanos(0));
        }
        World {
            schedule,
            vms: [Vm::default(); VMS as usize],
            policies,
            backlog: Default::default(),
            seen: Default::default(),
            armed: Default::default(),
            waited: Default::default(),
            dormant: Default::default(),
            now: Nanos(1),
        }
    }

    /// Somebody puts a request in, and kicks when kicks are on.
    fn ask(&mut self, queue: u16) {
        let at = usize::from(queue);
        if self.backlog[at] == 0 {
            (self.waited[at], self.dormant[at]) = (0, self.schedule.dormant());
        }
        self.backlog[at] += 1;
        if std::mem::take(&mut self.armed[at]) {
            assert!(self.schedule.kicked(queue, self.now));
        }
    }

    fn turn(&mut self, vm: u16, is_given: bool) {
        let Vm { running, given } = &mut self.vms[usize::from(vm)];
        if is_given {
            (*running, *given) = (*running + 1, *given + 1);
        } else {
            *running = running.saturating_sub(1);
        }
    }

    fn pass(&mut self, took_ns: u64) {
        self.now = self.now.after(took_ns);
        self.schedule.begin(self.now);
        let vms = self.vms;
        let left = self.schedule.wake(|vm| vms[usize::from(vm)].word());
        assert_eq!(left, self.schedule.dormant());
        self.waited.iter_mut().for_each(|waited| *waited += 1);
        for most in &mut self.dormant {
            *most = left.max(*most);
        }
        while let Some(visit) = self.schedule.next() {
            let at = usize::from(visit.queue);
            assert!(!self.armed[at] && !self.schedule.is_dormant(visit.queue));
            let requests = std::mem::take(&mut self.backlog[at]);
            let visited = Visited { requests, ..Visited::default() };
            self.schedule.visited(visit.queue, visited);
            if requests > 0 {
                continue;
            }
            let vm = self.vms[usize::from(vm_of(visit.queue))];
            let before = std::mem::replace(&mut self.seen[at], vm.word());
            if before == vm.word() && vm.running == 0 {
                self.schedule.sleep(visit.queue, vm_of(visit.queue), vm.word());
            }
        }
        while let Some(queue) = self.schedule.to_arm() {
            let at = usize::from(queue);
            assert_ne!(self.policies[at], Policy::Poll);
            assert!(!self.armed[at], "queue {queue} twice");
            if self.backlog[at] > 0 {
                self.schedule.found(queue);
            } else {
                self.schedule.armed(queue);
                self.armed[at] = true;
            }
        }
        let here = self.armed.iter().filter(|armed| !**armed).count();
        assert_eq!(here, self.schedule.polled() + self.schedule.dormant());
        assert!(
            self.schedule.dormant() == 0 || self.schedule.polled() > 0,
            "who sleeps is looked at"
        );
    }
}

#[derive(Clone, Debug)]
enum Event {
    Turn(u16, bool),
    /// By a vCPU that has a processor.
    Ask(u16),
    /// By somebody who is not followed.
    AskUnseen(u16),
    Pass(u64),
    Set(u16),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..VMS, any::<bool>()).prop_map(|(vm, is_given)| Event::Turn(vm, is_given)),
        3 => (0..QUEUES).prop_map(Event::Ask),
        1 => (0..QUEUES).prop_map(Event::AskUnseen),
        6 => (100..20_000u64).prop_map(Event::Pass),
        1 => (0..QUEUES).prop_map(Event::Set),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn who_runs_is_served_in_the_next_pass_and_who_is_not_seen_to_in_its_turn(
        policies in prop::collection::vec(
            prop_oneof![Just(Policy::Poll), Just(Policy::Adaptive), Just(Policy::Notify)], QUEUES as usize),
        events in prop::collection::vec(event(), 1..400),
    ) {
        let mut world = World::new(policies);
        let mut unseen = [false; QUEUES as usize];
        for event in events {
            match event {
                Event::Turn(vm, is_given) => world.turn(vm, is_given),
                Event::Ask(queue) => {
                    // It has a processor for as long as this takes, and may have none before the pass.
                    let had_none = world.vms[usize::from(vm_of(queue))].running == 0;
                    if had_none {
                        world.turn(vm_of(queue), true);
                    }
                    world.ask(queue);
                    if had_none {
                        world.turn(vm_of(queue), false);
                    }
                }
                Event::AskUnseen(queue) => {
                    world.ask(queue);
                    unseen[usize::from(queue)] = true;
                }
                Event::Pass(took_ns) => world.pass(took_ns),
                Event::Set(queue) => {
                    let policy = world.policies[usize::from(queue)];
                    let woke = world.schedule.set(queue, 100, policy, world.now);
                    world.armed[usize::from(queue)] &= !woke;
                }
            }
            for (queue, unseen) in unseen.iter_mut().enumerate() {
                *unseen &= world.backlog[queue] > 0;
                let passes_max = if *unseen { world.dormant[queue] + 1 } else { 0 };
                let waited = if world.backlog[queue] > 0 { world.waited[queue] } else { 0 };
                prop_assert!(waited <= passes_max, "queue {queue} waited for {waited} passes");
            }
        }
    }
}

#[test]
fn a_kick_that_nobody_asked_for_is_heard() {
    let mut world = World::new(vec![Policy::Poll; usize::from(QUEUES)]);
    (0..3).for_each(|_| world.pass(1000));
    assert!(world.schedule.is_dormant(5) && !world.schedule.kicked(5, world.now));
    assert!(!world.schedule.is_dormant(5));
}

#[test]
fn all_that_sleep_cost_one_look_a_pass() {
    let mut world = World::new(vec![Policy::Poll; usize::from(QUEUES)]);
    world.turn(0, true);
    (0..3).for_each(|_| world.pass(1000));
    // Queues 0, 4 and 8 are of the one that runs.
    assert_eq!((world.schedule.polled(), world.schedule.dormant()), (3, 7));
    world.turn(1, true);
    world.turn(1, false);
    world.schedule.begin(world.now);
    let word = |vm: u16| world.vms[usize::from(vm)].word();
    let woken = 7 - world.schedule.wake(word);
    assert_eq!(woken, 4, "three of one VM, and one in turn");
    world.schedule.remove(0);
    (0..QUEUES).for_each(|queue| world.schedule.remove(queue));
    assert_eq!((world.schedule.polled(), world.schedule.dormant()), (0, 0));
    assert!(world.schedule.may_rest());
}
