//! The table of states and events of a port, the refused and the late ones too.

use super::*;

#[derive(Debug)]
struct Tokens;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Command {
    SetCall(u8),
    Detach,
}

impl Passes for Tokens {
    type MoveId = u64;
    type Departure = ();
    type Command = Command;
}

const HERE: At<char> = At { way: 'a', home: 0, by_hand: false };
const MOVE: u64 = 5;

/// A wish of loads.
fn there() -> Wish {
    Wish::new(1, false)
}

fn out() -> Port<Tokens, char> {
    Port::default()
}

fn plugged() -> Port<Tokens, char> {
    let mut port = out();
    assert!(port.plug(HERE));
    port
}

fn travelling() -> Port<Tokens, char> {
    let mut port = plugged();
    assert!(port.depart(MOVE, there()));
    port
}

#[test]
fn it_is_plugged_in_once_and_goes_once() {
    assert!(!plugged().plug(HERE) && !travelling().plug(HERE));
    assert!(!out().depart(MOVE, there()) && !travelling().depart(MOVE, there()));
    assert_eq!((out().at(), plugged().at(), travelling().at()), (None, Some(HERE), Some(HERE)));
    assert_eq!((plugged().going_to(), travelling().going_to()), (None, Some(1)));
    let mut port = plugged();
    assert!(!port.depart(MOVE, Wish::new(HERE.home, true)) && !port.travels(), "it is there");
}

#[test]
fn it_arrives_or_stays_and_what_was_kept_is_said() {
    for outcome in [Outcome::Moved, Outcome::Stayed, Outcome::Late] {
        let mut port = travelling();
        for (queue, command) in [
            (1, Command::SetCall(1)),
            (1, Command::Detach),
            (0, Command::SetCall(7)),
            (1, Command::SetCall(2)),
        ] {
            assert_eq!(port.tell(queue, command), None);
        }
        assert_eq!(port.announce([2; 6]), None);
        let Arrived { from, to, held, announced, again } =
            port.arrive(MOVE, outcome).expect("it was on its way");
        assert_eq!((from, to), (0, usize::from(outcome == Outcome::Moved)));
        assert_eq!(again.is_some(), outcome == Outcome::Late);
        let kept = [(1, Command::Detach), (0, Command::SetCall(7)), (1, Command::SetCall(2))];
        assert_eq!((held.as_slice(), announced), (&kept[..], Some([2; 6])));
        assert_eq!(port.at(), Some(At { home: to, ..HERE }));
        assert!(!port.travels());
        assert_eq!(port.tell(1, Command::Detach), Some(Command::Detach));
        assert_eq!(port.announce([2; 6]), port.at());
    }
}

#[test]
fn a_word_of_another_move_is_late() {
    for mut port in [out(), plugged(), travelling()] {
        let before = (port.at(), port.going_to());
        assert!(port.arrive(4, Outcome::Moved).is_none());
        assert_eq!((port.at(), port.going_to()), before);
    }
    let mut port = travelling();
    assert_eq!(port.call_off(), Some(MOVE));
    assert!(port.arrive(MOVE, Outcome::Moved).is_none(), "it was called off");
    assert_eq!((port.at(), port.call_off()), (Some(HERE), None));
}

#[test]
fn it_is_pulled_out_from_wherever_it_is() {
    assert_eq!((out().unplug(), plugged().unplug()), (None, Some(HERE)));
    let mut port = travelling();
    assert_eq!(port.unplug(), Some(HERE));
    assert_eq!((port.at(), port.going_to()), (None, None));
    assert!(port.arrive(MOVE, Outcome::Moved).is_none());
}

#[test]
fn an_operators_wish_holds_until_he_lets_go() {
    let by_hand = Wish::new(1, true);
    let mut port = plugged();
    assert!(port.depart(MOVE, by_hand) && port.arrive(MOVE, Outcome::Moved).is_some());
    assert_eq!(port.at(), Some(At { home: 1, by_hand: true, ..HERE }));
    assert!(!port.stays_at(0, true) && port.stays_at(1, false));
    port.let_go();
    assert_eq!(port.at(), Some(At { home: 1, ..HERE }));
    assert!(port.stays_at(1, true) && port.at().is_some_and(|at| at.by_hand));
    // Let go of on its way: it arrives, and does not stay.
    let mut port = plugged();
    assert!(port.depart(MOVE, by_hand));
    port.let_go();
    assert!(port.arrive(MOVE, Outcome::Moved).is_some());
    assert_eq!(port.at(), Some(At { home: 1, ..HERE }));
}

#[test]
fn a_wish_is_tried_again_and_not_for_ever() {
    for (by_hand, tries) in [(true, TRIES_MAX), (false, TRIES_FOR_LOAD_MAX)] {
        let (mut port, mut wish) = (plugged(), Wish::new(1, by_hand));
        for tries_left in (0..tries).rev() {
            assert!(port.depart(MOVE, wish));
            let arrived = port.arrive(MOVE, Outcome::Late).expect("it was on its way");
            wish = arrived.again.expect("it may be in time");
            assert_eq!(wish, Wish { to: 1, by_hand, tries_left });
            assert_eq!(port.at(), Some(HERE));
        }
        assert!(port.depart(MOVE, wish));
        assert_eq!(port.arrive(MOVE, Outcome::Late).map(|arrived| arrived.again), Some(None));
    }
    for outcome in [Outcome::Moved, Outcome::Stayed] {
        let mut port = plugged();
        assert!(port.depart(MOVE, Wish::new(1, true)));
        assert_eq!(port.arrive(MOVE, outcome).map(|arrived| arrived.again), Some(None));
    }
    // The one of an operator who has let it go meanwhile is one of nobody's.
    let mut port = plugged();
    assert!(port.depart(MOVE, Wish::new(1, true)));
    port.let_go();
    let again = port.arrive(MOVE, Outcome::Late).and_then(|arrived| arrived.again);
    assert!(again.is_some_and(|wish| !wish.by_hand));
}
