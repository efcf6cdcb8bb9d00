//! The table of states and events of a queue's life: what each does, also those that are refused or late.

use super::*;

/// What passes through in these tests.
#[derive(Debug)]
struct Tokens;

/// What may be said of a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Command {
    SetCall(u8),
    Detach,
}

impl Passes for Tokens {
    type MoveId = u64;
    type Departure = Departure;
    type Command = Command;
}

const NOW: Nanos = Nanos(1_000);
const HERE: Place = Place { core: 0, owner: Owner::Connection(7), by_hand: false };
const THERE: Move<u64> = Move { id: 5, to: 1, by_hand: false };
/// A move that was called off before, or never was.
const OTHER: u64 = 4;

/// What the old sidecore is given.
#[derive(Debug, PartialEq)]
struct Departure(u8);

/// Each state, by name.
fn states(at: Nanos) -> Vec<(&'static str, Life<Tokens>)> {
    let leave = |finishes| Leave { since: at, finishes };
    let states = vec![
        ("idle", State::Idle),
        ("served", State::Served(HERE)),
        ("preparing", State::Preparing(HERE, THERE, Departure(3))),
        ("handing", State::Handing(HERE, THERE, None, Held::default())),
        ("handing and leaving", State::Handing(HERE, THERE, Some(leave(false)), Held::default())),
        ("handing and finishing", State::Handing(HERE, THERE, Some(leave(true)), Held::default())),
        ("leaving", State::Leaving(HERE, leave(false))),
        ("finishing", State::Leaving(HERE, leave(true))),
    ];
    states.into_iter().map(|(name, state)| (name, Life(state))).collect()
}

fn name(life: &Life<Tokens>) -> &'static str {
    match &life.0 {
        State::Idle => "idle",
        State::Served(_) => "served",
        State::Preparing(..) => "preparing",
        State::Handing(_, _, None, _) => "handing",
        State::Handing(_, _, Some(leave), _) if leave.finishes => "handing and finishing",
        State::Handing(..) => "handing and leaving",
        State::Leaving(_, leave) if leave.finishes => "finishing",
        State::Leaving(..) => "leaving",
    }
}

/// What an event makes of each state: its name after it, and what it gave, as text.
fn table<T: std::fmt::Debug>(
    event: impl Fn(&mut Life<Tokens>) -> T,
) -> Vec<(&'static str, &'static str, String)> {
    let of = |(before, mut life): (&'static str, Life<Tokens>)| {
        let gave = event(&mut life);
        (before, name(&life), format!("{gave:?}"))
    };
    states(NOW).into_iter().map(of).collect()
}

fn rows<'a>(
    table: &'a [(&'static str, &'static str, String)],
) -> Vec<(&'static str, &'static str, &'a str)> {
    table.iter().map(|(before, after, gave)| (*before, *after, gave.as_str())).collect()
}

#[test]
fn a_queue_is_attached_once() {
    let place = Place { core: 1, ..HERE };
    let found = table(|life| life.attach(place));
    let again = |name| (name, name, "false");
    let mut wanted = vec![("idle", "served", "true")];
    wanted.extend(states(NOW).iter().skip(1).map(|(name, _)| again(*name)));
    assert_eq!(rows(&found), wanted);
}

#[test]
fn it_is_asked_for_once_and_once_more_without_what_is_left() {
    let found = table(|life| life.ask(false, NOW));
    assert_eq!(
        rows(&found),
        [
            ("idle", "idle", "Nothing"),
            ("served", "leaving", "Tell(None)"),
            ("preparing", "leaving", "Tell(Some(5))"),
            ("handing", "handing and leaving", "Tell(None)"),
            ("handing and leaving", "handing and leaving", "Nothing"),
            ("handing and finishing", "handing and leaving", "Tell(None)"),
            ("leaving", "leaving", "Nothing"),
            ("finishing", "leaving", "Tell(None)"),
        ]
    );
    let found = table(|life| life.ask(true, NOW));
    assert_eq!(
        rows(&found),
        [
            ("idle", "idle", "Nothing"),
            ("served", "finishing", "Tell(None)"),
            ("preparing", "finishing", "Tell(Some(5))"),
            ("handing", "handing and finishing", "Tell(None)"),
            ("handing and leaving", "handing and leaving", "Nothing"),
            ("handing and finishing", "handing and finishing", "Nothing"),
            ("leaving", "leaving", "Nothing"),
            ("finishing", "finishing", "Nothing"),
        ]
    );
}

#[test]
fn the_first_time_that_it_is_asked_for_counts() {
    let (first, later) = (NOW, Nanos(2_000));
    let mut life: Life<Tokens> = Life(State::Served(HERE));
    assert_eq!(life.ask(true, first), Asked::Tell(None));
    assert_eq!(life.ask(false, later), Asked::Tell(None));
    assert_eq!(life.leaving_since(), Some(first));
}

#[test]
fn only_what_is_served_in_peace_is_prepared() {
    let found = table(|life| life.prepare(THERE, Departure(3)));
    let served = |(before, after, gave): &(&str, &str, String)| match *before {
        "served" => *after == "preparing" && gave == "true",
        before => before == *after && gave == "false",
    };
    assert!(found.iter().all(served), "{found:?}");
}

#[test]
fn the_old_sidecore_is_told_once_and_of_this_move_alone() {
    let found = table(|life| life.prepared(THERE.id));
    let told = |(before, after, gave): &(&str, &str, String)| match *before {
        "preparing" => *after == "handing" && gave == "Some((0, Departure(3)))",
        before => before == *after && gave == "None",
    };
    assert!(found.iter().all(told), "{found:?}");
    let late = table(|life| life.prepared(OTHER).is_some());
    assert!(late.iter().all(|(before, after, gave)| before == after && gave == "false"));
}

#[test]
fn a_move_ends_where_the_queue_is() {
    let ends = |stayed| {
        move |life: &mut Life<Tokens>| {
            let moved = life.moved(THERE.id, stayed);
            let core = life.place().map(|place| place.core);
            (moved.map(|moved| (moved.from, moved.to)), core)
        }
    };
    let found = table(ends(false));
    assert_eq!(
        rows(&found),
        [
            ("idle", "idle", "(None, None)"),
            ("served", "served", "(None, Some(0))"),
            // Nobody was told to hand it over yet.
            ("preparing", "preparing", "(None, Some(0))"),
            ("handing", "served", "(Some((0, 1)), Some(1))"),
            ("handing and leaving", "leaving", "(Some((0, 1)), Some(1))"),
            ("handing and finishing", "finishing", "(Some((0, 1)), Some(1))"),
            ("leaving", "leaving", "(None, Some(0))"),
            ("finishing", "finishing", "(None, Some(0))"),
        ]
    );
    let found = table(ends(true));
    let stays = |(_, _, gave): &(&str, &str, String)| !gave.contains("Some(1)");
    assert!(found.iter().all(stays), "{found:?}");
    assert_eq!((found[2].1, found[3].1, found[4].1), ("served", "served", "leaving"));
    let late = table(|life| life.moved(OTHER, false).is_some());
    assert!(late.iter().all(|(before, after, gave)| before == after && gave == "false"));
}

#[test]
fn it_comes_back_whatever_is_under_way() {
    for (before, mut life) in states(NOW) {
        let (was, moving, since) = (life.place(), life.moving(), life.leaving_since());
        let back = life.come_back();
        assert_eq!(name(&life), "idle", "{before}");
        let wanted = was.map(|was| Back {
            was,
            asked_at: since,
            called_off: moving.map(|moving| moving.id),
        });
        assert_eq!(back, wanted, "{before}");
    }
}

#[test]
fn what_is_said_while_nobody_knows_who_has_it_is_kept_the_last_of_a_kind() {
    let found = table(|life| life.tell(Command::Detach).map(|(core, _)| core));
    let said: Vec<&str> = found.iter().map(|(_, _, gave)| gave.as_str()).collect();
    let (here, kept) = ("Some(0)", "None");
    assert_eq!(said, ["None", here, here, kept, kept, kept, here, here]);
    let mut life: Life<Tokens> = Life(State::Handing(HERE, THERE, None, Held::default()));
    for command in [Command::SetCall(1), Command::Detach, Command::SetCall(2)] {
        assert!(life.tell(command).is_none());
    }
    let held = life.moved(THERE.id, false).expect("it was moving").held;
    assert_eq!(held, [Command::Detach, Command::SetCall(2)]);
}

#[test]
fn an_operators_wish_holds_until_he_lets_go() {
    let by_hand = Move { by_hand: true, ..THERE };
    let mut life: Life<Tokens> = Life(State::Served(HERE));
    assert!(life.prepare(by_hand, Departure(1)) && life.prepared(by_hand.id).is_some());
    assert!(life.moved(by_hand.id, false).is_some());
    assert_eq!(life.place(), Some(Place { core: 1, by_hand: true, ..HERE }));
    assert!(!life.stays_at(0) && life.stays_at(1));
    life.let_go();
    assert_eq!(life.place(), Some(Place { core: 1, ..HERE }));
    // Let go of on its way: it arrives, and does not stay.
    let mut life: Life<Tokens> = Life(State::Preparing(HERE, by_hand, Departure(1)));
    life.let_go();
    assert!(life.prepared(by_hand.id).is_some() && life.moved(by_hand.id, false).is_some());
    assert_eq!(life.place(), Some(Place { core: 1, ..HERE }));
}
