//! What must hold for any load and any way to run the cores.

use proptest::prelude::*;
use schedule::Policy;

use crate::costs::{VISIT_NS, Way};
use crate::guest::Load;
use crate::measure::Outcome;
use crate::ring::Request;
use crate::world::{Setup, Who, run, run_observed};

const MS: u64 = 1_000_000;

fn load() -> impl Strategy<Value = Load> {
    let bytes = prop_oneof![Just(64u64), Just(4 << 10), Just(64 << 10)];
    (bytes, 1..200u32, 200..200_000u64, 0..5u8).prop_map(
        |(bytes, depth, gap_ns, kind)| match kind {
            0 => Load::RequestResponse { bytes, think_ns: gap_ns },
            1 => Load::Bulk { depth, bytes, cpu_ns: gap_ns },
            2 => Load::Poisson { bytes, gap_ns },
            3 => Load::OnOff { bytes, gap_ns, on_ns: 20 * gap_ns, off_ns: 100 * gap_ns },
            _ => Load::Idle,
        },
    )
}

fn who() -> impl Strategy<Value = Who> {
    prop_oneof![
        Just(Who::Sidecore(Policy::Adaptive)),
        Just(Who::Sidecore(Policy::Notify)),
        Just(Who::Sidecore(Policy::Poll)),
        Just(Who::InTurn(Policy::Adaptive)),
        Just(Who::Stuck(Policy::Adaptive, false)),
        Just(Who::Stuck(Policy::Adaptive, true)),
        Just(Who::RoundRobin),
        Just(Who::Threads),
    ]
}

fn setup() -> impl Strategy<Value = Setup> {
    let guests = prop::collection::vec((load(), 0..2usize), 1..12);
    (who(), 1..3usize, guests, any::<u64>()).prop_map(|(who, cores, mut guests, seed)| {
        guests.iter_mut().for_each(|(_, core)| *core %= cores);
        Setup { who, cores, way: Way::RING, guests, seed, warm_ns: 0, span_ns: 5 * MS }
    })
}

/// A request with its ring and the time of its answer.
type Answer = (u16, Request, u64);

fn answers(setup: &Setup) -> (Outcome, Vec<Answer>) {
    let mut answers = Vec::new();
    let outcome = run_observed(setup, &mut |queue, request, at| answers.push((queue, request, at)));
    (outcome, answers)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each request is answered once, in the order of its ring, and not before it could be.
    #[test]
    fn requests_are_served_once_and_in_order(setup in setup()) {
        let (outcome, answers) = answers(&setup);
        let mut next = vec![0u64; setup.guests.len()];
        let mut last = 0;
        for (queue, request, at) in answers {
            let next = &mut next[usize::from(queue)];
            prop_assert_eq!(request.serial, *next, "queue {}", queue);
            *next += 1;
            prop_assert!(at >= request.put + Way::RING.request_ns(request.bytes) + Way::RING.reply_ns);
            prop_assert!(at >= last, "time went back");
            last = at;
        }
        let counted: Vec<u64> = outcome.guests.iter().map(|guest| guest.requests).collect();
        prop_assert_eq!(counted, next);
    }

    /// Nothing depends on anything but what was asked for.
    #[test]
    fn the_same_seed_is_the_same_run(setup in setup()) {
        let (one, two) = (answers(&setup), answers(&setup));
        prop_assert_eq!(one.1, two.1);
        prop_assert_eq!(one.0.cores, two.0.cores);
    }

    /// What is offered to a core that has time for it is served: no kick is lost, nobody is forgotten.
    #[test]
    fn a_core_with_time_leaves_nothing(
        who in who(),
        guests in 1..40usize,
        gap_ns in 400_000..4_000_000u64,
        seed: u64,
    ) {
        let load = Load::Poisson { bytes: 64, gap_ns };
        let guests = vec![(load, 0); guests];
        let setup = Setup { who, cores: 1, way: Way::RING, guests, seed, warm_ns: 0, span_ns: 40 * MS };
        let (_, answers) = answers(&setup);
        // 40 guests at 2,500 a second are less than 2 us of work in 10 us, and a look comes in 50 us.
        let slowest = answers.iter().map(|(_, request, at)| at - request.put).max();
        prop_assert!(slowest.unwrap_or(0) < 200_000, "{:?}", slowest);
        let unanswered = setup.guests.len() as u64 * 40 * MS / gap_ns;
        prop_assert!(answers.len() as u64 + 20 + unanswered / 2 >= unanswered);
    }

    /// A core with always something to do does nothing else: it serves what its time is worth.
    #[test]
    fn a_full_core_works_all_the_time(who in who(), streams in 1..6usize, seed: u64) {
        let load = Load::Bulk { depth: 128, bytes: 64 << 10, cpu_ns: 100 };
        let guests = vec![(load, 0); streams];
        let setup = Setup { who, cores: 1, way: Way::RING, guests, seed, warm_ns: MS, span_ns: 20 * MS };
        let outcome = run(&setup);
        let served: u64 = outcome.guests.iter().map(|guest| guest.requests).sum();
        let work_ns = served * Way::RING.request_ns(64 << 10);
        // What is left over: visits, calls, for threads of one device the wait for its kicks, and for
        // stuck queues the ends of visits.
        let least = match who {
            Who::Threads => 16,
            Who::Stuck(..) => 18,
            _ => 19,
        };
        prop_assert!(work_ns >= setup.span_ns / 20 * least, "{} of {}", work_ns, setup.span_ns);
        // Answers of a visit may be seen in the span and its work be done before.
        prop_assert!(work_ns <= setup.span_ns + 256 * Way::RING.request_ns(64 << 10));
    }
}

#[test]
fn a_lone_request_costs_what_its_parts_cost() {
    let load = Load::RequestResponse { bytes: 64, think_ns: 10_000 };
    for who in [Who::Sidecore(Policy::Poll), Who::RoundRobin] {
        let guests = vec![(load, 0)];
        let setup =
            Setup { who, cores: 1, way: Way::RING, guests, seed: 3, warm_ns: 0, span_ns: MS };
        let least = VISIT_NS + Way::RING.request_ns(64) + Way::RING.call_ns + Way::RING.reply_ns;
        let (_, answers) = answers(&setup);
        assert!(answers.len() > 50, "{who:?}: {}", answers.len());
        for (_, request, at) in answers {
            let took = at - request.put;
            // And at most a pass of looking before.
            assert!((least..least + 300).contains(&took), "{who:?}: {took}");
        }
    }
}

#[test]
fn only_those_that_poll_are_awake_for_nothing() {
    let awake = |who| {
        let guests = vec![(Load::Idle, 0); 100];
        let setup =
            Setup { who, cores: 1, way: Way::RING, guests, seed: 1, warm_ns: MS, span_ns: 10 * MS };
        run(&setup).cores[0].awake_ns
    };
    assert_eq!(awake(Who::Sidecore(Policy::Adaptive)), 0);
    assert_eq!(awake(Who::Sidecore(Policy::Notify)), 0);
    assert_eq!(awake(Who::Threads), 0);
    assert_eq!(awake(Who::Sidecore(Policy::Poll)), 10 * MS);
    assert_eq!(awake(Who::RoundRobin), 10 * MS);
}

#[test]
fn a_ring_that_is_full_turns_away() {
    let load = Load::Poisson { bytes: 1 << 20, gap_ns: 1_000 };
    let guests = vec![(load, 0)];
    let setup = Setup {
        who: Who::RoundRobin,
        cores: 1,
        way: Way::RING,
        guests,
        seed: 1,
        warm_ns: 0,
        span_ns: 10 * MS,
    };
    let (outcome, answers) = answers(&setup);
    let refused = outcome.guests[0].refused;
    assert!(refused > 8_000, "{refused}");
    assert!(answers.len() < 1_000);
}
