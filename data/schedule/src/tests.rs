//! The promises of the crate's page, on generated load.

use std::collections::BTreeSet;

use proptest::prelude::*;
use random::often;

use crate::{Budget, Limits, Nanos, Policy, REPAY_PASSES_MAX, Schedule, Visit, Visited};

const QUEUES: u16 = 12;
const MIB: u64 = 1 << 20;

/// One queue as its guest and its sidecore see it.
#[derive(Clone, Debug)]
struct Guest {
    policy: Policy,
    request_bytes: u64,
    backlog: u64,
    armed: bool,
    /// Visits of each other queue since this one was last visited or became non-empty.
    overtaken: Vec<u32>,
    /// Passes begun since then.
    passes_waited: u32,
    /// Its next visit finds that it may do nothing for so long.
    limit_ns: Option<u64>,
    /// It waits for that.
    limited: Option<Nanos>,
}

impl Guest {
    fn forget_waiting(&mut self) {
        self.overtaken.fill(0);
        self.passes_waited = 0;
    }
}

/// What happens between passes.
#[derive(Clone, Debug)]
enum Event {
    Add {
        queue: u16,
        share: u32,
        policy: Policy,
        request_bytes: u64,
    },
    Remove(u16),
    Set {
        queue: u16,
        share: u32,
        policy: Policy,
    },
    Limit {
        queue: u16,
        wait_ns: u64,
    },
    Arrive {
        queue: u16,
        requests: u64,
    },
    Complete(u16),
    Wait(u64),
    /// A pass, in which visits of `full` queues find no slot; with arrivals after its visits.
    Pass {
        full: u16,
        during: Vec<(u16, u64)>,
    },
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        1 => Just(Policy::Poll),
        1 => Just(Policy::Notify),
        2 => Just(Policy::Adaptive),
        1 => (0..40u16).prop_map(|quota| Policy::Es2 { quota }),
        1 => Just(Policy::ELVIS),
    ]
}

fn event(shares: std::ops::RangeInclusive<u32>, bytes_max: u64) -> impl Strategy<Value = Event> {
    let queue = 0..QUEUES;
    prop_oneof![
        1 => (queue.clone(), shares.clone(), policy())
            .prop_map(|(queue, share, policy)| Event::Set { queue, share, policy }),
        1 => (queue.clone(), 0..10_000u64)
            .prop_map(|(queue, wait_ns)| Event::Limit { queue, wait_ns }),
        2 => (queue.clone(), shares, policy(), 0..=bytes_max).prop_map(
            |(queue, share, policy, request_bytes)| Event::Add { queue, share, policy, request_bytes }
        ),
        1 => queue.clone().prop_map(Event::Remove),
        4 => (queue.clone(), 1..100u64)
            .prop_map(|(queue, requests)| Event::Arrive { queue, requests }),
        1 => queue.clone().prop_map(Event::Complete),
        1 => (0..100_000u64).prop_map(Event::Wait),
        6 => (any::<u16>(), prop::collection::vec((queue, 1..40u64), 0..6))
            .prop_map(|(full, during)| Event::Pass { full: full & (full >> 4), during }),
    ]
}

/// A sidecore in small: what drives a schedule, with the promises checked at each step.
struct World {
    schedule: Schedule,
    guests: Vec<Option<Guest>>,
    now: Nanos,
    /// Whether a queue may be in debt, which excuses it from the bound on overtaking.
    debts: bool,
}

impl World {
    fn new(debts: bool) -> World {
        World {
            schedule: Schedule::new(Limits::default(), QUEUES),
            guests: vec![None; usize::from(QUEUES)],
            now: Nanos(1),
            debts,
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Add { queue, share, policy, request_bytes } => {
                self.schedule.add(queue, share, policy, self.now);
                let overtaken = vec![0; usize::from(QUEUES)];
                let guest = Guest {
                    policy,
                    request_bytes,
                    backlog: 0,
                    armed: false,
                    overtaken,
                    passes_waited: 0,
                    limit_ns: None,
                    limited: None,
                };
                self.guests[usize::from(queue)] = Some(guest);
            }
            Event::Set { queue, share, policy } => {
                let woke = self.schedule.set(queue, share, policy, self.now);
                let Some(guest) = &mut self.guests[usize::from(queue)] else {
                    return assert!(!woke);
                };
                assert_eq!(woke, guest.armed && policy == Policy::Poll);
                guest.policy = policy;
                guest.armed &= !woke;
                if guest.limited.take().is_some() {
                    guest.forget_waiting();
                }
            }
            Event::Limit { queue, wait_ns } => {
                if let Some(guest) = &mut self.guests[usize::from(queue)] {
                    guest.limit_ns = Some(wait_ns);
                }
            }
            Event::Remove(queue) => {
                self.schedule.remove(queue);
                self.guests[usize::from(queue)] = None;
            }
            Event::Arrive { queue, requests } => self.arrive(queue, requests),
            Event::Complete(queue) => self.schedule.completed(queue),
            Event::Wait(wait_ns) => self.now = self.now.after(wait_ns),
            Event::Pass { full, during } => self.pass(full, &during),
        }
        let here = || self.guests.iter().flatten();
        assert_eq!(self.schedule.queues(), here().count());
        let is_away = |guest: &Guest| guest.armed || guest.limited.is_some();
        assert_eq!(self.schedule.polled(), here().filter(|guest| !is_away(guest)).count());
        assert_eq!(self.schedule.next_due(), here().filter_map(|guest| guest.limited).min());
        if here().all(is_away) {
            assert!(self.schedule.may_rest());
        }
        // Not armed, yet left alone: only with something that it cannot do, and never when it must be
        // polled.
        let may_wait = |guest: &Guest| guest.backlog > 0 && guest.policy != Policy::Poll;
        if self.schedule.may_rest() {
            assert!(here().all(|guest| is_away(guest) || may_wait(guest)));
        }
    }

    /// The guest adds requests, and kicks when its kicks are on.
    fn arrive(&mut self, queue: u16, requests: u64) {
        let Some(guest) = &mut self.guests[usize::from(queue)] else {
            assert!(!self.schedule.kicked(queue, self.now), "a kick of a queue that is not here");
            return;
        };
        if guest.backlog == 0 {
            guest.forget_waiting();
        }
        guest.backlog += requests;
        assert_eq!(self.schedule.kicked(queue, self.now), guest.armed);
        guest.armed = false;
    }

    fn pass(&mut self, full: u16, during: &[(u16, u64)]) {
        self.now = self.now.after(1000);
        self.schedule.begin(self.now);
        for guest in self.guests.iter_mut().flatten() {
            if guest.limited.take_if(|moment| *moment <= self.now).is_some() {
                guest.forget_waiting();
            }
            guest.passes_waited += 1;
        }
        let mut seen = BTreeSet::new();
        let mut arrivals = during.iter();
        while let Some(visit) = self.schedule.next() {
            assert!(seen.insert(visit.queue), "queue {} twice in a pass", visit.queue);
            self.visit(visit, full & (1 << visit.queue) != 0);
            if let Some((queue, requests)) = arrivals.next() {
                self.arrive(*queue, *requests);
            }
        }
        for (index, guest) in self.guests.iter().enumerate() {
            let waits = |guest: &&Guest| guest.backlog > 0 && guest.limited.is_none();
            let Some(guest) = guest.as_ref().filter(waits) else { continue };
            // One more than the promise: a queue can become non-empty after its turn.
            let passes_max = if self.debts { REPAY_PASSES_MAX + 1 } else { 1 };
            assert!(guest.passes_waited <= passes_max, "queue {index} is starved: {guest:?}");
        }
        self.rest();
    }

    fn visit(&mut self, visit: Visit, full: bool) {
        let Visit { queue, budget } = visit;
        let Budget { requests, bytes, .. } = budget;
        assert!((1..=32).contains(&requests) && (1..=MIB).contains(&bytes), "{visit:?}");
        for (index, other) in self.guests.iter_mut().enumerate() {
            let waits = |guest: &&mut Guest| guest.backlog > 0 && guest.limited.is_none();
            let Some(other) = other.as_mut().filter(waits) else { continue };
            if index != usize::from(queue) {
                other.overtaken[usize::from(queue)] += 1;
                let times = other.overtaken[usize::from(queue)];
                assert!(self.debts || times <= 1, "queue {queue} overtook {index} {times} times");
            }
        }
        let Some(guest) = &mut self.guests[usize::from(queue)] else {
            panic!("queue {queue} is not here");
        };
        assert!(!guest.armed, "queue {queue} is armed");
        assert!(guest.limited.is_none(), "queue {queue} may do nothing yet");
        guest.forget_waiting();
        if let Some(wait_ns) = guest.limit_ns.take() {
            let moment = self.now.after(wait_ns);
            guest.limited = Some(moment);
            return self.schedule.wait_until(queue, moment);
        }
        let mut visited =
            Visited { more: true, held: full && guest.backlog > 0, ..Visited::default() };
        while !visited.held && visited.requests < requests && visited.bytes < bytes {
            if guest.backlog == 0 {
                visited.more = false;
                break;
            }
            guest.backlog -= 1;
            visited.requests += 1;
            visited.bytes += guest.request_bytes;
        }
        self.schedule.visited(queue, visited);
    }

    fn rest(&mut self) {
        let mut asked = BTreeSet::new();
        while let Some(queue) = self.schedule.to_arm() {
            assert!(asked.insert(queue), "queue {queue} to arm twice");
            let Some(guest) = &mut self.guests[usize::from(queue)] else {
                panic!("queue {queue} is not here");
            };
            assert_ne!(guest.policy, Policy::Poll);
            if guest.backlog > 0 {
                self.schedule.found(queue);
            } else {
                self.schedule.armed(queue);
                guest.armed = true;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(often(100, 512)))]

    #[test]
    fn nobody_overtakes_a_waiting_queue_twice(
        events in prop::collection::vec(event(100..=100, MIB), 1..300),
    ) {
        let mut world = World::new(false);
        events.into_iter().for_each(|event| world.apply(event));
    }

    #[test]
    fn nobody_starves_whatever_the_shares_and_sizes(
        events in prop::collection::vec(event(0..=20_000, 64 * MIB), 1..300),
    ) {
        let mut world = World::new(true);
        events.into_iter().for_each(|event| world.apply(event));
    }

    #[test]
    fn busy_queues_get_their_shares(
        queues in prop::collection::vec((100..=3200u32, 1..=MIB), 2..usize::from(QUEUES)),
    ) {
        let mut world = World::new(true);
        for (queue, (share, request_bytes)) in queues.iter().copied().enumerate() {
            let (queue, policy) = (queue as u16, Policy::Adaptive);
            world.apply(Event::Add { queue, share, policy, request_bytes });
            world.apply(Event::Arrive { queue, requests: 1 << 40 });
        }
        // The first pass does not know who is hungry: everybody gets a whole visit.
        let passes = 2000;
        for _ in 0..passes {
            world.apply(Event::Pass { full: 0, during: Vec::new() });
        }
        let largest = f64::from(queues.iter().map(|(share, _)| *share).max().unwrap_or(1));
        for (guest, (share, request_bytes)) in world.guests.iter().flatten().zip(&queues) {
            let requests = ((1u64 << 40) - guest.backlog) as f64;
            // In whole visits, by what it uses more of.
            let visits = (requests / 32.0).max(requests * *request_bytes as f64 / MIB as f64);
            let due = f64::from(passes) * f64::from(*share) / largest;
            prop_assert!((visits / due - 1.0).abs() < 0.05, "{visits} of {due} visits: {queues:?}");
        }
    }
}

#[test]
fn work_and_poll_lines_take_turns() {
    let mut schedule = Schedule::new(Limits::default(), 6);
    (0..6).for_each(|queue| schedule.add(queue, 100, Policy::Adaptive, Nanos(0)));
    (3..6).for_each(|queue| schedule.armed(queue));
    let mut pass = |kicked: &[u16], at: u64| {
        kicked.iter().for_each(|queue| assert!(schedule.kicked(*queue, Nanos(at))));
        schedule.begin(Nanos(at));
        let mut order = Vec::new();
        while let Some(visit) = schedule.next() {
            order.push(visit.queue);
            schedule.visited(visit.queue, Visited::default());
        }
        order
    };
    assert_eq!(pass(&[], 1), [0, 1, 2]);
    assert_eq!(pass(&[5, 4, 3], 2), [5, 0, 4, 1, 3, 2]);
    assert_eq!(pass(&[], 3), [5, 0, 4, 1, 3, 2], "the order of the last visits");
}

#[test]
fn an_adaptive_queue_is_armed_when_a_kick_is_spent_and_woken_by_one() {
    let mut schedule = Schedule::new(Limits { kick_ns: 1000, ..Limits::default() }, 1);
    schedule.add(0, 100, Policy::Adaptive, Nanos(1000));
    let mut visit = |at: u64, visited: Visited| {
        schedule.begin(Nanos(at));
        let turn = schedule.next().map(|visit| visit.queue);
        schedule.visited(0, visited);
        (turn, schedule.to_arm())
    };
    let work = Visited { requests: 1, ..Visited::default() };
    assert_eq!(visit(1400, work), (Some(0), None));
    assert_eq!(visit(1800, Visited::default()), (Some(0), None));
    assert_eq!(visit(2200, Visited::default()), (Some(0), None));
    assert_eq!(visit(2399, Visited::default()), (Some(0), None));
    assert_eq!(visit(2400, Visited::default()), (Some(0), Some(0)));
    schedule.found(0);
    schedule.begin(Nanos(2899));
    assert!(schedule.next().is_some());
    schedule.visited(0, Visited::default());
    assert_eq!(schedule.to_arm(), None, "what the second look found ended the gap");
    schedule.armed(0);
    assert!(schedule.may_rest());
    schedule.begin(Nanos(9000));
    assert_eq!(schedule.next(), None);
    assert!(schedule.kicked(0, Nanos(9001)));
    assert!(!schedule.kicked(0, Nanos(9002)), "polled already");
    schedule.begin(Nanos(9003));
    assert_eq!(schedule.next().map(|visit| visit.queue), Some(0));
}

#[test]
fn a_queue_that_is_held_is_waited_for_after_the_spin_and_looked_at_after_a_completion() {
    let limits = Limits { kick_ns: 500, look_ns: 1000, ..Limits::default() };
    let mut schedule = Schedule::new(limits, 2);
    schedule.add(0, 100, Policy::Adaptive, Nanos(1000));
    schedule.add(1, 100, Policy::Adaptive, Nanos(1000));
    let held = Visited { more: true, held: true, ..Visited::default() };
    let mut at = 1000;
    let mut pass = |schedule: &mut Schedule, first: Visited, second: Visited| {
        at += 250;
        schedule.begin(Nanos(at));
        while let Some(visit) = schedule.next() {
            schedule.visited(visit.queue, if visit.queue == 0 { first } else { second });
        }
        while let Some(queue) = schedule.to_arm() {
            schedule.armed(queue);
        }
        schedule.may_rest()
    };
    let empty = Visited::default();
    assert!(!pass(&mut schedule, held, empty));
    assert!(pass(&mut schedule, held, empty), "one waits, one is armed");
    assert_eq!(schedule.polled(), 1);
    schedule.completed(0);
    assert!(!schedule.may_rest(), "it may have room now");
    let took = Visited { requests: 1, ..held };
    assert!(!pass(&mut schedule, took, empty));
    assert!(!pass(&mut schedule, held, empty));
    assert!(pass(&mut schedule, held, empty));
    schedule.remove(0);
    assert!(schedule.may_rest());
    schedule.add(0, 100, Policy::Poll, Nanos(0));
    assert!(!pass(&mut schedule, held, empty) && !pass(&mut schedule, held, empty));
}

#[test]
fn a_completion_keeps_a_queue_polled_for_as_long_as_its_slack() {
    let mut schedule = Schedule::new(Limits { kick_ns: 1000, ..Limits::default() }, 1);
    schedule.add(0, 100, Policy::Adaptive, Nanos(0));
    let mut pass = |at: u64, requests| {
        schedule.begin(Nanos(400 * at));
        assert!(schedule.next().is_some());
        schedule.visited(0, Visited { requests, ..Visited::default() });
        schedule.completed(0);
        schedule.to_arm()
    };
    // Two requests came before anybody looked: four kicks' worth of slack, beside the usual one.
    assert!((1..=3).all(|at| pass(at, 1).is_none()));
    assert!((4..16).all(|at| pass(at, 0).is_none()));
    assert_eq!(pass(16, 0), Some(0), "whatever is completed");
}

#[test]
fn a_dearer_kick_is_polled_for_longer() {
    let limits = Limits { kick_ns: 1000, ..Limits::default() };
    for (kick_ns, passes) in [(500, 5), (2000, 20), (0, 1), (u32::MAX, 10_000)] {
        let mut schedule = Schedule::new(limits, 1);
        schedule.set_kick_cost(kick_ns);
        schedule.add(0, 100, Policy::Adaptive, Nanos(0));
        let mut armed = (1..=20_000).map(|at| {
            schedule.begin(Nanos(100 * at));
            assert!(schedule.next().is_some());
            schedule.visited(0, Visited::default());
            schedule.to_arm()
        });
        assert_eq!(armed.position(|queue| queue.is_some()), Some(passes - 1), "{kick_ns} ns");
    }
}

#[test]
fn numbers_that_are_no_queue_do_nothing() {
    let mut schedule = Schedule::new(Limits::default(), 2);
    for queue in [0, 2, u16::MAX] {
        schedule.remove(queue);
        schedule.completed(queue);
        schedule.visited(queue, Visited::default());
        schedule.armed(queue);
        schedule.found(queue);
        schedule.wait_until(queue, Nanos(0));
        assert!(!schedule.kicked(queue, Nanos(0)));
        assert!(!schedule.set(queue, 1, Policy::Poll, Nanos(0)));
    }
    schedule.begin(Nanos(1));
    assert_eq!((schedule.next(), schedule.to_arm(), schedule.queues()), (None, None, 0));
}

#[test]
fn a_queue_keeps_what_it_owes_when_its_share_changes() {
    let mut schedule = Schedule::new(Limits::default(), 2);
    schedule.add(0, 100, Policy::Poll, Nanos(0));
    schedule.add(1, 100, Policy::Poll, Nanos(0));
    let more = Visited { requests: 1, bytes: 4 * MIB, more: true, ..Visited::default() };
    schedule.begin(Nanos(1));
    while let Some(visit) = schedule.next() {
        schedule.visited(visit.queue, more);
    }
    assert!(!schedule.set(0, 200, Policy::Adaptive, Nanos(2)));
    // Three visits' bytes are owed. The first pass still divides as if both had the same share; after it
    // the other repays half as fast.
    let mut passes = [0; 2];
    for pass in 0..8 {
        schedule.begin(Nanos(3 + pass));
        while let Some(visit) = schedule.next() {
            let first = &mut passes[usize::from(visit.queue)];
            *first = if *first == 0 { pass + 1 } else { *first };
            schedule.visited(visit.queue, Visited { more: true, ..Visited::default() });
        }
    }
    assert_eq!(passes, [4, 6]);
}

#[test]
fn a_queue_that_is_not_visited_for_a_while_owes_what_it_owed() {
    let owes_after = |comes: fn(&mut Schedule)| {
        let mut schedule = Schedule::new(Limits::default(), 2);
        (0..2).for_each(|queue| schedule.add(queue, 100, Policy::Poll, Nanos(0)));
        let hungry = Visited { requests: 1, more: true, ..Visited::default() };
        schedule.begin(Nanos(1_000));
        while let Some(Visit { queue, budget }) = schedule.next() {
            let bytes = if queue == 0 { 5 * budget.bytes } else { 0 };
            schedule.visited(queue, Visited { bytes, ..hungry });
        }
        comes(&mut schedule);
        schedule.begin(Nanos(2_000));
        let turns: Vec<u16> = std::iter::from_fn(|| schedule.next()).map(|it| it.queue).collect();
        assert_eq!((schedule.queues(), schedule.polled()), (2, 2));
        !turns.contains(&0)
    };
    assert!(owes_after(|_| ()));
    assert!(owes_after(|schedule| {
        schedule.remove(0);
        schedule.come_back(0, 100, Policy::Poll, Nanos(1_500));
        // Who is here is left as it is.
        schedule.come_back(0, 1, Policy::Notify, Nanos(1_500));
    }));
    assert!(!owes_after(|schedule| {
        schedule.remove(0);
        schedule.add(0, 100, Policy::Poll, Nanos(1_500));
    }));
}
