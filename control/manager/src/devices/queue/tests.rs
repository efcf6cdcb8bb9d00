//! One queue as control sees it: what is known of it after it was back, and what a successor is told.

use std::time::Duration;

use super::*;
use crate::clock::now;

fn place(core: usize, owner: Owner) -> Place {
    Place { core, owner, by_hand: core == 1 }
}

fn facts(told: u32) -> vhost_user::RingFacts<'static, ()> {
    let addresses = vhost_user::RingAddresses {
        descriptors: 0x1000,
        driver: 0x2000,
        device: 0x3000,
        log: 0,
        logged: false,
    };
    vhost_user::RingFacts { size: 8, addresses, base: told, told, kick: None, call: None }
}

/// One that a sidecore has, for a front-end.
fn served() -> Queue {
    let mut queue = Queue::new();
    assert!(queue.is_made(Left::at_start(&facts(3)), 8, Format::Split).is_none());
    assert!(queue.attach(place(1, Owner::Connection(7))));
    queue
}

#[test]
fn a_queue_has_one_sidecore_at_a_time() {
    let mut queue = served();
    assert!(!queue.attach(place(0, Owner::Connection(8))), "one has it");
    assert_eq!(queue.place(), Some(place(1, Owner::Connection(7))));
    assert!(queue.is_attached() && queue.was_attached() && queue.is_by_hand());
    assert!(queue.come_back(5, None, false).is_some());
    assert!(!queue.is_attached() && queue.was_attached());
    assert!(queue.come_back(5, None, false).is_none(), "nobody had it");
}

#[test]
fn where_a_ring_stood_is_known_when_it_is_back() {
    let mut queue = served();
    assert_eq!(queue.left().and_then(|left| left.base()), Some(3));
    queue.come_back(9, None, false).expect("it was served");
    let left = queue.left().expect("it is known");
    assert_eq!(left.base(), Some(9));
    // Whoever says of it what was said before was cut off; who says more knows better.
    assert!(left.is_news_to(&facts(3)) && !left.is_news_to(&facts(4)));
    queue.forget_left();
    assert!(queue.left().is_none());
}

/// What stood still for an upgrade goes where it was; what stops for its guest goes wherever suits.
#[test]
fn a_queue_returns_to_its_sidecore_only_where_all_stood_still() {
    for (returns, again) in [(true, Some((1, true))), (false, None)] {
        let mut queue = served();
        let asked = now();
        assert!(matches!(queue.ask(false, asked), Asked::Tell(None)));
        assert!(matches!(queue.ask(false, asked + Duration::from_secs(1)), Asked::Nothing));
        assert_eq!(queue.leaving_since(), Some(asked), "since it was asked first");
        queue.come_back(9, None, returns).expect("it was served");
        assert_eq!(queue.asked_at(), Some(asked));
        assert_eq!(queue.take_again(), again);
        assert_eq!(queue.take_again(), None, "once");
    }
    // A link's ring is the daemon's own, and is made anew.
    let mut queue = Queue::new();
    assert!(queue.attach(place(1, Owner::Link)));
    queue.come_back(9, None, true).expect("it was served");
    assert_eq!((queue.take_again(), queue.left().is_none()), (None, true));
}

#[test]
fn a_start_that_failed_is_tried_again_when_more_was_said_or_somebody_says_so() {
    let mut queue = Queue::new();
    queue.is_not_made((7, 1), Some("cannot be served: why".to_string()), (8, Format::Split));
    assert!(queue.gave_up((7, 1)) && !queue.gave_up((7, 2)) && !queue.gave_up((8, 1)));
    assert_eq!(queue.problem(), Some("cannot be served: why"));
    queue.try_again();
    assert!(!queue.gave_up((7, 1)) && queue.problem().is_none());
    queue.is_refused("no room", Some((7, 3)));
    assert_eq!((queue.problem(), queue.gave_up((7, 3))), (Some("is not served: no room"), true));
    // Its front-end has gone: what it said last counts no more, and what was given up stays so.
    queue.is_refused("no room", None);
    assert!(queue.gave_up((7, 3)));
    queue.is_made(Left::at_start(&facts(0)), 8, Format::Split);
    assert!(queue.problem().is_none() && !queue.gave_up((7, 3)));
}

#[test]
fn a_rule_that_was_broken_is_known_until_the_ring_is_made_anew() {
    let mut queue = served();
    queue.stop("it broke a rule");
    queue.come_back(3, None, false).expect("it was served");
    assert_eq!(queue.violation(), Some("it broke a rule"));
    queue.is_made(Left::at_start(&facts(0)), 16, Format::Packed);
    assert_eq!((queue.violation(), queue.size(), queue.format()), (None, 16, Format::Packed));
}

/// A successor goes by what its predecessor knew, and by what nothing has counted yet.
#[test]
fn a_successor_knows_what_its_predecessor_knew() {
    let mut queue = served();
    queue.stop("it broke a rule");
    queue.come_back(9, None, true).expect("it was served");
    let mut heir = Queue::new();
    heir.go_on_as(queue.known(), true);
    assert!(heir.was_attached() && heir.is_inherited() && !heir.is_attached());
    assert_eq!(heir.left().and_then(|left| left.base()), Some(9));
    assert_eq!(heir.violation(), Some("it broke a rule"));
    assert_eq!(heir.take_again(), Some((1, true)));
}

/// Neither a look at it nor another process finds a place that is lost.
#[test]
fn a_place_that_is_lost_stays_so_for_a_successor_and_until_its_guest_is_gone() {
    let mut queue = served();
    queue.come_back(9, None, true).expect("it was served");
    queue.lose_place(Left::lost(&facts(3)), "it is lost".to_string());
    queue.try_again();
    let mut heir = Queue::new();
    heir.go_on_as(queue.known(), false);
    for queue in [&mut queue, &mut heir] {
        assert_eq!(
            (queue.problem(), queue.left()),
            (Some("it is lost"), Some(Left::lost(&facts(3))))
        );
        queue.lose_guest();
        assert_eq!(queue.problem(), None, "another guest knows nothing of it");
    }
    queue.is_made(Left::at_start(&facts(4)), 8, Format::Packed);
    assert_eq!(queue.left().and_then(|left| left.base()), Some(4));
}
