//! Who is watched, how visits are cut for those, and that what it costs has its bounds.

use proptest::prelude::*;

use super::{CUT_NS, CUT_PART, OWED_NS_MAX, PART, SAVED_NS, STALE_NS, WATCHED_MAX};
use crate::{Limits, Nanos, Piece, Policy, Schedule, Visited};

/// A guest whose pages come from far away, or a thread that others held up.
const LONGEST_NS: u64 = 5_000_000;
const SMALL: Visited =
    Visited { requests: 1, bytes: 4096, nanos: 0, more: false, held: false, later: false };
const LARGE: Visited = Visited { requests: 8, bytes: 512 << 10, ..SMALL };

/// A schedule with so many queues that always find a small request.
fn busy(queues: u16) -> Schedule {
    let mut schedule = Schedule::new(Limits::default(), queues);
    (0..queues).for_each(|queue| schedule.add(queue, 100, Policy::Poll, Nanos(0)));
    schedule
}

/// A pass at `now` in which each queue finds what `of` says.
fn pass(schedule: &mut Schedule, now: u64, of: impl Fn(u16) -> Visited) {
    schedule.begin(Nanos(now));
    while let Some(visit) = schedule.next() {
        schedule.visited(visit.queue, of(visit.queue));
    }
}

fn passes(schedule: &mut Schedule, from: u64, of: impl Fn(u16) -> Visited) {
    (from..from + 64).for_each(|now| pass(schedule, now, &of));
}

#[test]
fn those_that_ask_little_are_watched_until_they_ask_for_more() {
    let mut schedule = busy(3);
    passes(&mut schedule, 0, |queue| if queue == 1 { SMALL } else { LARGE });
    assert_eq!(schedule.watched(), [1]);
    assert!(schedule.watches_others(0) && !schedule.watches_others(1));
    passes(&mut schedule, 64, |queue| if queue == 2 { SMALL } else { LARGE });
    assert_eq!(schedule.watched(), [2]);
}

#[test]
fn one_of_each_owner_is_watched_and_none_of_those_that_have_none() {
    let mut schedule = busy(4);
    schedule.set_owner(0, Some(7));
    schedule.set_owner(1, Some(7));
    schedule.set_owner(3, None);
    passes(&mut schedule, 0, |_| SMALL);
    assert_eq!(schedule.watched(), [0, 2]);
    schedule.remove(0);
    passes(&mut schedule, 64, |_| SMALL);
    assert_eq!(schedule.watched(), [2, 1], "another of the same owner has its place");
}

#[test]
fn places_are_few_and_go_to_others_when_nothing_comes() {
    let many = WATCHED_MAX as u16 + 4;
    let mut schedule = busy(many);
    passes(&mut schedule, 0, |_| SMALL);
    let first = schedule.watched().to_vec();
    assert_eq!(first.len(), WATCHED_MAX);
    let later = STALE_NS + 1000;
    passes(&mut schedule, later, |queue| match first.contains(&queue) {
        true => Visited::default(),
        false => SMALL,
    });
    let now = schedule.watched();
    assert_eq!(now.len(), 4, "{now:?}");
    assert!(now.iter().all(|queue| !first.contains(queue)));
}

#[test]
fn pieces_are_large_until_shortly_before_one_is_expected() {
    const GAP_NS: u64 = 20_000;
    let mut schedule = busy(2);
    for turn in 0..64 {
        let at = turn * GAP_NS;
        pass(&mut schedule, at, |queue| if queue == 1 { SMALL } else { LARGE });
        if turn >= 32 {
            let piece = |ns: u64| schedule.piece(true, Nanos(at + ns));
            assert_eq!(piece(1_000), Piece::QUIET, "at {turn}");
            assert_eq!(piece(GAP_NS - GAP_NS / 8 - Piece::QUIET_NS), Piece::QUIET);
            assert_eq!(piece(GAP_NS - GAP_NS / 8 - Piece::QUIET_NS + 1), Piece::NEAR);
            assert_eq!(schedule.piece(false, Nanos(at)), Piece::ALONE);
        }
    }
    // One that comes sooner once, and nothing is taken for granted any more.
    let at = 63 * GAP_NS + 8_000;
    pass(&mut schedule, at, |queue| if queue == 1 { SMALL } else { LARGE });
    assert_eq!(schedule.piece(true, Nanos(at + 3_000)), Piece::WATCHFUL);
}

#[test]
fn of_one_that_is_watched_anew_nothing_is_known() {
    let mut schedule = busy(2);
    passes(&mut schedule, 0, |queue| if queue == 1 { SMALL } else { LARGE });
    assert_eq!(schedule.piece(true, Nanos(70)), Piece::WATCHFUL);
    let later = 64 + STALE_NS + 1000;
    passes(&mut schedule, later, |queue| if queue == 1 { Visited::default() } else { LARGE });
    assert!(schedule.watched().is_empty());
    pass(&mut schedule, later + 100, |queue| if queue == 1 { SMALL } else { LARGE });
    assert_eq!(schedule.watched(), [1]);
    assert_eq!(schedule.piece(true, Nanos(later + 101)), Piece::WATCHFUL);
}

#[test]
fn nobody_is_watched_when_it_is_switched_off() {
    let mut schedule = busy(2);
    passes(&mut schedule, 0, |_| SMALL);
    schedule.watch(false);
    passes(&mut schedule, 64, |_| SMALL);
    assert!(schedule.watched().is_empty());
    schedule.watch(true);
    passes(&mut schedule, 128, |_| SMALL);
    assert_eq!(schedule.watched().len(), 2);
}

#[test]
fn one_that_can_do_nothing_is_left_alone() {
    let mut schedule = busy(2);
    passes(&mut schedule, 0, |_| SMALL);
    schedule.interrupted(1, Visited { more: true, held: true, ..Visited::default() });
    assert_eq!(schedule.watched(), [0]);
}

/// A thread that was off its processor for an hour meanwhile: nobody is to pay for all of it.
#[test]
fn one_interruption_that_took_for_ever_is_paid_for_soon() {
    let most = OWED_NS_MAX as u64;
    let may_after = |takes: u64, wait: u64| {
        let mut schedule = busy(1);
        assert!(schedule.may_interrupt(0, Nanos(0)));
        schedule.interrupted(0, Visited { nanos: takes, ..SMALL });
        schedule.may_interrupt(0, Nanos(wait))
    };
    // Until more than what is owed was gained; what had been saved up is lost with it.
    let paid = ((most + 1) * 256).div_ceil(PART);
    for takes in [most + SAVED_NS as u64, 3_600_000_000_000, u64::MAX] {
        assert!(!may_after(takes, paid - 1), "{takes} ns");
        assert!(may_after(takes, paid), "{takes} ns");
    }
    assert!(may_after(most, paid - 1), "less is owed as it is");
}

/// Pieces of a visit: how long each takes, below a bound that is generated too, since only short ones cost more
/// than their part; and whether somebody asks (0).
fn pieces() -> impl Strategy<Value = Vec<(u64, u8)>> {
    (50..3_000u64)
        .prop_flat_map(|longest_ns| prop::collection::vec((0..longest_ns, 0..20u8), 1..2_000))
}

proptest! {
    /// Whatever the watched do, small pieces take their part at most, by the estimate of what each costs.
    #[test]
    fn small_pieces_are_bounded(steps in pieces()) {
        let (mut schedule, mut now, mut small) = (busy(2), 0, 0);
        for (takes, asks) in steps {
            now += takes;
            if asks == 0 {
                pass(&mut schedule, now, |queue| if queue == 1 { SMALL } else { LARGE });
            }
            if schedule.piece(true, Nanos(now)) != Piece::QUIET {
                small += 1;
            }
            schedule.cut(Nanos(now));
            let most = now * CUT_PART / 256 + SAVED_NS as u64 + CUT_NS as u64;
            prop_assert!(small * CUT_NS as u64 <= most, "{small} in {now} ns");
        }
    }

    /// Whatever comes, interruptions take a fixed part of the time and one more.
    #[test]
    fn interruptions_take_their_part_at_most(
        steps in prop::collection::vec((0..50_000u64, 0..LONGEST_NS), 1..500),
    ) {
        let (mut schedule, mut now, mut taken) = (busy(1), 0, 0);
        for (wait, takes) in steps {
            now += wait;
            if schedule.may_interrupt(0, Nanos(now)) {
                schedule.interrupted(0, Visited { nanos: takes, ..SMALL });
                (now, taken) = (now + takes, taken + takes);
            }
            let most = now * PART / 256 + SAVED_NS as u64 + LONGEST_NS;
            prop_assert!(taken <= most, "{taken} of {now}");
        }
    }
}
