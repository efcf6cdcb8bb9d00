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
const THERE: Move<u64> = Move { id: 5, to: 1, by_hand: false };

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
    assert!(port.depart(THERE, 3));
    port
}

#[test]
fn it_is_plugged_in_once_and_goes_once() {
    assert!(!plugged().plug(HERE) && !travelling().plug(HERE));
    assert!(!out().depart(THERE, 0) && !travelling().depart(THERE, 0));
    assert_eq!((out().at(), plugged().at(), travelling().at()), (None, Some(HERE), Some(HERE)));
    assert_eq!((plugged().moving(), travelling().moving()), (None, Some(THERE)));
}

#[test]
fn it_arrives_or_stays_and_what_was_kept_is_said() {
    for stayed in [false, true] {
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
        let Arrived { from, to, wish, held, announced, tries_left } =
            port.arrive(THERE.id, stayed).expect("it was on its way");
        assert_eq!((from, to, wish), (0, usize::from(!stayed), (1, false)));
        let kept = [(1, Command::Detach), (0, Command::SetCall(7)), (1, Command::SetCall(2))];
        assert_eq!((held.as_slice(), announced, tries_left), (&kept[..], Some([2; 6]), 3));
        assert_eq!(port.at(), Some(At { home: to, ..HERE }));
        assert_eq!(port.moving(), None);
        assert_eq!(port.tell(1, Command::Detach), Some(Command::Detach));
        assert_eq!(port.announce([2; 6]), port.at());
    }
}

#[test]
fn a_word_of_another_move_is_late() {
    for mut port in [out(), plugged(), travelling()] {
        let before = (port.at(), port.moving());
        assert!(port.arrive(4, false).is_none());
        assert_eq!((port.at(), port.moving()), before);
    }
    let mut port = travelling();
    assert_eq!(port.call_off(), Some(THERE.id));
    assert!(port.arrive(THERE.id, false).is_none(), "it was called off");
    assert_eq!((port.at(), port.call_off()), (Some(HERE), None));
}

#[test]
fn it_is_pulled_out_from_wherever_it_is() {
    assert_eq!((out().unplug(), plugged().unplug()), (None, Some(HERE)));
    let mut port = travelling();
    assert_eq!(port.unplug(), Some(HERE));
    assert_eq!((port.at(), port.moving()), (None, None));
    assert!(port.arrive(THERE.id, false).is_none());
}

#[test]
fn an_operators_wish_holds_until_he_lets_go() {
    let by_hand = Move { by_hand: true, ..THERE };
    let mut port = plugged();
    assert!(port.depart(by_hand, 0) && port.arrive(by_hand.id, false).is_some());
    assert_eq!(port.at(), Some(At { home: 1, by_hand: true, ..HERE }));
    assert!(!port.stays_at(0, true) && port.stays_at(1, false));
    port.let_go();
    assert_eq!(port.at(), Some(At { home: 1, ..HERE }));
    assert!(port.stays_at(1, true) && port.at().is_some_and(|at| at.by_hand));
    // Let go of on its way: it arrives, and does not stay.
    let mut port = plugged();
    assert!(port.depart(by_hand, 0));
    port.let_go();
    assert_eq!(port.arrive(by_hand.id, false).map(|arrived| arrived.wish), Some((1, false)));
    assert_eq!(port.at(), Some(At { home: 1, ..HERE }));
}
