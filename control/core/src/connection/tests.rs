//! The table of states and events of a front-end, the refused and the late ones too.

use super::*;

const SECOND: u64 = 1_000_000_000;

fn at(seconds: u64) -> Nanos {
    Nanos(seconds * SECOND)
}

fn silent() -> Life<char> {
    Life::begin(at(0))
}

fn speaking() -> Life<char> {
    let mut life = silent();
    life.applied(true);
    life
}

fn holding() -> Life<char> {
    let mut life = speaking();
    assert!(life.hear('a', at(1)));
    life
}

fn applying() -> Life<char> {
    let mut life = holding();
    assert_eq!(life.take(), Some('a'));
    life
}

#[test]
fn one_message_is_heard_at_a_time() {
    for (mut life, hears) in
        [(silent(), true), (speaking(), true), (holding(), false), (applying(), false)]
    {
        assert_eq!((life.is_read(), life.hear('b', at(2))), (hears, hears));
        assert_eq!(life.heard_at(), if hears { at(2) } else { at(1) });
    }
    assert_eq!(holding().held(), Some(&'a'));
    for life in [silent(), speaking(), applying()] {
        assert_eq!((life.held(), life.waits()), (None, None));
    }
}

#[test]
fn what_is_held_waits_for_what_it_was_last_seen_to() {
    let mut life = holding();
    assert_eq!(life.waits(), None, "nobody has looked yet");
    for cause in [Cause::Queues, Cause::Start, Cause::Queues, Cause::Parting] {
        life.wait(cause);
        assert_eq!(life.waits(), Some((at(1), cause)), "it waits since it came");
    }
    for mut life in [silent(), speaking(), applying()] {
        life.wait(Cause::Queues);
        assert_eq!(life.waits(), None, "nothing is there that could");
    }
}

#[test]
fn it_is_taken_once_and_read_again_when_that_was_applied() {
    for mut life in [silent(), speaking(), applying()] {
        assert_eq!(life.take(), None);
    }
    let mut life = applying();
    assert!(!life.is_read());
    life.applied(false);
    assert!(life.is_read() && life.due().is_none(), "it stays a front-end");
    // A late word changes nothing of what is held.
    let mut life = holding();
    life.applied(true);
    assert_eq!(life.held(), Some(&'a'));
}

#[test]
fn who_says_nothing_of_a_front_end_is_ended_and_who_stops_within_a_message() {
    let mut life = silent();
    assert_eq!((life.due(), life.overdue(at(9))), (Some(at(10)), None));
    assert_eq!(life.overdue(at(10)), Some(Overdue::Silent));
    // It asks, which is no owner's word.
    assert!(life.hear('a', at(8)) && life.take().is_some());
    life.applied(false);
    assert_eq!((life.overdue(at(17)), life.overdue(at(18))), (None, Some(Overdue::Silent)));
    for mut life in [silent(), speaking(), holding(), applying()] {
        life.note_rest(true, at(2));
        life.note_rest(true, at(6));
        assert_eq!((life.overdue(at(6)), life.overdue(at(7))), (None, Some(Overdue::Stalled)));
        life.note_rest(false, at(6));
        assert_eq!(life.overdue(at(7)), None);
    }
    for life in [speaking(), holding(), applying()] {
        assert_eq!(life.due(), None);
    }
}

#[test]
fn who_is_silent_gives_way() {
    for (life, heard) in [(speaking(), 0), (holding(), 1), (applying(), 1)] {
        assert!(!life.is_silent(at(heard + 9)) && life.is_silent(at(heard + 10)));
    }
    assert!(silent().is_silent(at(0)));
}
