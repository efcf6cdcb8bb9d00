//! When each policy rests.

use super::*;

const KICK: u32 = 50;
const EMPTY: Visited =
    Visited { requests: 0, bytes: 0, nanos: 0, more: false, held: false, later: false };
const ADAPTIVE: Policy = Policy::Adaptive;

/// A queue of its own on a core, visited every nanosecond.
struct One {
    polling: Polling,
    learned: Learned,
    now: Nanos,
}

impl One {
    fn new(policy: Policy) -> One {
        let polling = Polling::new(policy, KICK);
        One { polling, learned: Learned::default(), now: Nanos(1000) }
    }

    fn visit(&mut self, visited: Visited) -> bool {
        self.now = self.now.after(1);
        let prices = Prices::of_pass(KICK, 100, 1, true);
        self.polling.visited(&mut self.learned, visited, prices, self.now)
    }

    /// So many looks that find nothing; true when the last asks to be armed, and none before.
    fn looks(&mut self, looks: u32) -> bool {
        assert!((1..looks).all(|_| !self.visit(EMPTY)));
        self.visit(EMPTY)
    }

    /// Armed, and kicked so much later; the visit that follows.
    fn kicked_after(&mut self, wait_ns: u64, visited: Visited) -> bool {
        self.polling.armed(&mut self.learned, Prices::of_pass(KICK, 100, 1, true), self.now);
        self.now = self.now.after(wait_ns);
        self.polling.kicked();
        self.visit(visited)
    }
}

fn took(requests: u32) -> Visited {
    Visited { requests, ..EMPTY }
}

#[test]
fn each_policy_rests_when_it_should() {
    let more = Visited { more: true, ..took(1) };
    let held = Visited { held: true, more: true, ..EMPTY };
    let later = Visited { later: true, ..EMPTY };
    let rests = |policy, visited| One::new(policy).visit(visited);
    assert!(!rests(Policy::Poll, EMPTY));
    assert!(rests(Policy::Notify, EMPTY) && rests(Policy::Notify, took(32)));
    let es2 = Policy::Es2 { quota: 8 };
    assert!(rests(es2, EMPTY) && rests(es2, took(7)) && !rests(es2, took(8)));
    assert!(rests(Policy::ELVIS, took(32)), "before it was ever kicked often");
    assert!(!rests(ADAPTIVE, EMPTY) && !rests(ADAPTIVE, took(1)));
    for policy in [Policy::Poll, Policy::Notify, es2, Policy::ELVIS, ADAPTIVE] {
        for visited in [more, held, later] {
            assert!(
                !One::new(policy).looks_at(visited),
                "{policy:?} {visited:?}: nobody would kick"
            );
        }
        assert!(!policy.waits(later, 1 << 40, KICK), "{policy:?}");
    }
    assert!(!Visited { more: true, ..later }.wants_more());
}

impl One {
    /// Whether it ever asks to be armed when every visit is like this.
    fn looks_at(&mut self, visited: Visited) -> bool {
        (0..1000).any(|_| self.visit(visited))
    }
}

#[test]
fn what_is_held_waits_for_its_disk_and_not_for_a_kick() {
    let held = Visited { more: true, held: true, ..EMPTY };
    assert!(!Policy::Poll.waits(held, 1 << 40, KICK));
    for policy in [Policy::Notify, Policy::ES2_AWAITED, Policy::ELVIS, ADAPTIVE] {
        assert!(!policy.waits(held, 49, KICK), "{policy:?}");
        assert!(policy.waits(held, 50, KICK), "{policy:?}");
        assert!(!policy.waits(Visited { requests: 1, ..held }, 1 << 40, KICK), "{policy:?}");
        assert!(!policy.waits(EMPTY, 1 << 40, KICK), "{policy:?}");
    }
}

#[test]
fn elvis_polls_from_ten_kicks_in_a_millisecond_on() {
    let mut queue = One::new(Policy::ELVIS);
    assert!((0..9).all(|_| queue.kicked_after(10, took(1))));
    assert!(!queue.kicked_after(10, took(1)));
    assert!(!queue.visit(EMPTY));
    queue.now = queue.now.after(1_000_000);
    assert!(queue.visit(EMPTY), "one request in a millisecond");
}

#[test]
fn an_unknown_queue_is_polled_for_the_price_of_a_kick() {
    assert!(One::new(ADAPTIVE).looks(KICK));
}

#[test]
fn a_queue_that_is_asked_at_once_is_polled_for_longer_and_one_that_waits_is_armed_at_once() {
    let mut queue = One::new(ADAPTIVE);
    assert!((0..40).all(|_| !queue.visit(took(1))));
    assert!(queue.looks(KICK), "polling cost nothing yet, so spinning is no dearer");
    let mut queue = One::new(ADAPTIVE);
    // Gaps of 40 make polling the cheapest: now and then one of 60 is worth waiting for.
    for gap in 0..100 {
        let looks = if gap % 10 == 9 { 60 } else { 40 };
        let _ = (0..looks).any(|_| queue.visit(EMPTY));
        if queue.polling.spent < looks {
            queue.kicked_after(10 + u64::from(KICK), took(1));
        } else {
            queue.visit(took(1));
        }
    }
    assert!(queue.looks(4 * KICK));
    let mut queue = One::new(ADAPTIVE);
    for _ in 0..5 {
        assert!(queue.looks_at(EMPTY));
        let _ = queue.kicked_after(100 * u64::from(KICK), took(1));
    }
    assert!(queue.kicked_after(100 * u64::from(KICK), took(1)), "no look after the work");
}

#[test]
fn a_completion_is_a_reason_to_poll_on_as_far_as_there_is_slack() {
    let mut queue = One::new(ADAPTIVE);
    assert!(!queue.looks(KICK - 1));
    assert!(queue.polling.completed(KICK), "it is polled still");
    assert!(queue.visit(EMPTY), "there is no slack");
    assert!(!queue.polling.completed(KICK), "and nothing changes that");
    let mut queue = One::new(ADAPTIVE);
    assert!((0..3).all(|_| !queue.visit(took(1))));
    assert!(!queue.looks(KICK - 1));
    assert!(queue.polling.completed(KICK));
    assert!(queue.looks(KICK));
}

#[test]
fn what_the_second_look_found_ends_a_gap_without_a_kick() {
    let mut queue = One::new(ADAPTIVE);
    assert!(queue.looks(KICK));
    queue.polling.found(&mut queue.learned, KICK, queue.now);
    assert!(!queue.visit(took(1)));
    assert!(queue.looks(KICK));
}

#[test]
fn beside_others_a_queue_pays_for_its_looks_alone() {
    let mut queue = One::new(ADAPTIVE);
    let prices = Prices::of_pass(KICK, 5, 1000, false);
    let mut looks = 0;
    while !queue.polling.visited(&mut queue.learned, EMPTY, prices, Nanos(1)) {
        looks += 1;
    }
    assert_eq!(looks, 9);
    // Ten more would have cost as much again, and one of the 10,050 ns is the kick's.
    queue.polling.armed(&mut queue.learned, prices, Nanos(1));
    assert_eq!(queue.learned.prices.of_looking(10_000), 50);
}

#[test]
fn a_sleep_is_not_polling() {
    let mut queue = One::new(ADAPTIVE);
    let after_sleep = Prices::of_pass(KICK, 100, 1 << 40, true);
    assert!(!queue.polling.visited(&mut queue.learned, EMPTY, after_sleep, Nanos(1 << 40)));
}

#[test]
fn what_a_visit_needs_is_small() {
    assert!(size_of::<Polling>() <= 40, "{}", size_of::<Polling>());
}
