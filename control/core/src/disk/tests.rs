//! The table of states and events of a disk's locks, the refused and the late ones too.

use super::*;

type Locks = DiskLocks<&'static str, &'static str>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Is {
    Here,
    Parting,
    Away,
    Waits,
}

const ALL: [Is; 4] = [Is::Here, Is::Parting, Is::Away, Is::Waits];
const NOW: Nanos = Nanos(1_000);

/// In that state, if locks that do not follow can be in it.
fn locks(follows: bool, is: Is) -> Option<Locks> {
    let mut locks = Locks::new(follows, matches!(is, Is::Away | Is::Waits));
    match is {
        Is::Parting => locks.part("under way", NOW).ok()?,
        Is::Waits => assert!(locks.refused("another has them", NOW)),
        Is::Here | Is::Away => {}
    }
    Some(locks)
}

fn told(locks: &Locks) -> Is {
    let is = match (locks.is_here(), locks.is_away(), locks.due_at().is_some()) {
        (true, false, false) => Is::Here,
        (false, false, false) => Is::Parting,
        (false, true, false) => Is::Away,
        (false, true, true) => Is::Waits,
        other => panic!("no state: {other:?}"),
    };
    assert_eq!(locks.parting().copied(), (is == Is::Parting).then_some("under way"));
    assert_eq!(locks.parting_since(), (is == Is::Parting).then_some(NOW));
    assert_eq!(locks.why().is_some(), is == Is::Waits);
    is
}

/// What an event says, and makes, of each state; `None` where there is no such state.
fn after<T>(follows: bool, act: impl Fn(&mut Locks) -> T) -> [Option<(T, Is)>; 4] {
    ALL.map(|is| {
        let mut locks = locks(follows, is)?;
        assert_eq!((told(&locks), locks.follows()), (is, follows));
        let said = act(&mut locks);
        Some((said, told(&locks)))
    })
}

#[test]
fn locks_that_do_not_follow_are_never_let_go() {
    for is in [Is::Here, Is::Away, Is::Waits] {
        let mut kept = locks(false, is).expect("it is a state of theirs");
        assert!(!kept.may_part());
        assert_eq!((kept.part("late", NOW), told(&kept)), (Err("late"), is));
    }
    assert!(locks(false, Is::Parting).is_none());
}

#[test]
fn each_event_makes_of_each_state_what_the_table_says() {
    let parted = |is_kept| move |locks: &mut Locks| locks.parted(is_kept);
    let unchanged = |said: [bool; 4]| [0, 1, 2, 3].map(|at| Some((said[at], ALL[at])));
    assert_eq!(
        after(true, |locks| locks.part("under way", NOW).is_ok()),
        [
            Some((true, Is::Parting)),
            Some((false, Is::Parting)),
            Some((false, Is::Away)),
            Some((false, Is::Waits))
        ]
    );
    let mut expected = unchanged([false, true, false, false]);
    expected[1] = Some((true, Is::Away));
    assert_eq!(after(true, parted(false)), expected);
    expected[1] = Some((true, Is::Here));
    assert_eq!(after(true, parted(true)), expected);
    for follows in [false, true] {
        let known = |mut all: [Option<(bool, Is)>; 4]| {
            all[1] = all[1].filter(|_| follows);
            all
        };
        let mut come = unchanged([false, false, true, true]);
        (come[2], come[3]) = (Some((true, Is::Here)), Some((true, Is::Here)));
        assert_eq!(after(follows, Locks::come), known(come));
        let mut refused = unchanged([false, false, true, true]);
        refused[2] = Some((true, Is::Waits));
        assert_eq!(after(follows, |locks| locks.refused("held", NOW)), known(refused));
        let mut forgotten = unchanged([true; 4]);
        forgotten[3] = Some((true, Is::Away));
        let forget = |locks: &mut Locks| {
            locks.forget();
            true
        };
        assert_eq!(after(follows, forget), known(forgotten));
        let mut fenced = unchanged([true, false, false, false]);
        fenced[0] = Some((true, Is::Away));
        assert_eq!(after(follows, Locks::fence), known(fenced));
    }
}

#[test]
fn they_are_asked_for_when_that_may_help() {
    let asked = after(true, |locks| locks.ask(NOW));
    let said = asked.map(|one| one.map(|(said, _)| said));
    let first = Ask::Now { again: false };
    assert_eq!(said, [Ask::Here, Ask::Later, first, Ask::Later].map(Some));
    // Each pause after a refusal is as long as its `Retry` says.
    let mut locks = locks(true, Is::Waits).expect("it waits");
    let mut expected = Retry::from(NOW).again(NOW);
    for why in ["held", "held still", "held for ever"] {
        let due = locks.due_at().expect("it waits");
        assert_eq!(due, expected.due_at());
        assert_eq!(locks.ask(Nanos(due.0 - 1)), Ask::Later);
        assert_eq!(locks.ask(due), Ask::Now { again: true });
        assert!(locks.refused(why, due));
        assert_eq!(locks.why(), Some(&why));
        expected = expected.again(due);
    }
    // What has happened is not waited for; nobody is hurried who does not wait.
    locks.hurry(NOW);
    assert_eq!((locks.due_at(), locks.ask(NOW)), (Some(NOW), Ask::Now { again: true }));
    let hurry = |locks: &mut Locks| locks.hurry(NOW);
    assert_eq!(after(true, hurry).map(|one| one.map(|(_, is)| is)), ALL.map(Some));
}

/// Of what was written before them nobody says that it is stable, until they are back.
#[test]
fn locks_that_were_given_up_are_fenced_until_they_have_come() {
    for follows in [false, true] {
        let mut given_up = locks(follows, Is::Here).expect("it is a state of theirs");
        assert!(!given_up.is_fenced() && given_up.fence());
        assert!(given_up.is_fenced());
        assert!(given_up.refused("its file system is slow", NOW));
        given_up.forget();
        assert!(given_up.is_fenced());
        assert!(given_up.come());
        assert!(!given_up.is_fenced());
    }
    let mut let_go = locks(true, Is::Parting).expect("it is a state of theirs");
    assert!(let_go.parted(false) && !let_go.is_fenced());
    let_go.were_fenced(true);
    assert!(let_go.is_fenced());
    // Another process has them so, whose locks follow nobody, whether or not it is told.
    for mut inherited in [Locks::new(false, true), Locks::new(true, false)] {
        let is_away = inherited.is_away();
        assert_eq!(inherited.is_fenced(), is_away);
        inherited.were_fenced(true);
        assert_eq!(inherited.is_fenced(), is_away);
    }
}

#[test]
fn a_wish_that_is_forgotten_begins_anew() {
    let mut locks = locks(true, Is::Waits).expect("it waits");
    for _ in 0..9 {
        assert!(locks.refused("held", NOW));
    }
    locks.forget();
    assert_eq!(locks.ask(NOW), Ask::Now { again: false });
    assert!(locks.refused("held", NOW));
    assert_eq!(locks.due_at(), Some(Retry::from(NOW).again(NOW).due_at()));
}
