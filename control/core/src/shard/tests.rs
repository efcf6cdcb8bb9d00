//! The tables of states and events of a shard and of a loan, the refused and the late ones too.

use super::*;

type Tested = Shard<&'static str, u8>;

fn served() -> Tested {
    let mut shard = Tested::default();
    assert!(shard.open());
    shard
}

fn asked() -> Tested {
    let mut shard = served();
    assert!(shard.ask());
    shard
}

fn home() -> Tested {
    let mut shard = asked();
    assert_eq!(shard.come_home("rack"), Ok(()));
    shard
}

/// Served, away, awaited, and what is here.
fn shown(shard: &Tested) -> (bool, bool, bool, Option<&'static str>) {
    let is_served = matches!(shard.0, State::Served);
    (is_served, shard.is_away(), shard.is_awaited(), shard.home().copied())
}

const SHUT: (bool, bool, bool, Option<&str>) = (false, false, false, None);
const SERVED: (bool, bool, bool, Option<&str>) = (true, false, false, None);
const ASKED: (bool, bool, bool, Option<&str>) = (false, true, true, None);
const HOME: (bool, bool, bool, Option<&str>) = (false, true, false, Some("rack"));

#[test]
fn each_state_is_told_apart() {
    let all = [Tested::default(), served(), asked(), home()];
    assert_eq!(all.each_ref().map(shown), [SHUT, SERVED, ASKED, HOME]);
}

#[test]
fn a_sidecore_is_given_it_once_and_asked_for_it_once() {
    for (mut shard, opens, asks) in [
        (Tested::default(), true, false),
        (served(), false, true),
        (asked(), false, false),
        (home(), false, false),
    ] {
        let before = shown(&shard);
        assert_eq!(shard.ask(), asks);
        assert_eq!(shown(&shard), if asks { ASKED } else { before });
        if !asks {
            assert_eq!(shard.open(), opens);
            assert_eq!(shown(&shard), if opens { SERVED } else { before });
        }
    }
}

#[test]
fn what_was_not_asked_for_does_not_come_home() {
    for (mut shard, state) in [(Tested::default(), SHUT), (served(), SERVED), (home(), HOME)] {
        assert_eq!(shard.come_home("another"), Err("another"));
        assert_eq!(shown(&shard), state);
    }
}

#[test]
fn what_it_is_told_while_it_is_away_is_said_in_order_when_it_goes_out() {
    assert_eq!(served().tell(1), Some(1));
    let mut shard = asked();
    assert_eq!(shard.tell(1), None);
    assert_eq!(shard.come_home("rack"), Ok(()));
    assert_eq!(shard.tell(2), None);
    *shard.home_mut().expect("it is here") = "rested";
    assert_eq!(shard.send_out(), Some(("rested", vec![1, 2])));
    assert_eq!(shown(&shard), SERVED);
    assert_eq!(shard.tell(3), Some(3));
    // Nobody hears what a link that is shut is told, then or later.
    let mut shard = Tested::default();
    assert_eq!(shard.tell(4), None);
    assert!(shard.open() && shard.ask());
    assert_eq!(shard.come_home("rack"), Ok(()));
    assert_eq!(shard.send_out(), Some(("rack", Vec::new())));
}

#[test]
fn only_what_is_here_goes_out() {
    for (mut shard, state) in [(Tested::default(), SHUT), (served(), SERVED), (asked(), ASKED)] {
        assert_eq!(shard.send_out(), None);
        assert_eq!(shard.home_mut(), None);
        assert_eq!(shown(&shard), state);
    }
}

#[test]
fn it_is_shut_from_wherever_it_is() {
    for mut shard in [Tested::default(), served(), asked(), home()] {
        let _ = shard.tell(1);
        shard.shut();
        assert_eq!(shown(&shard), SHUT);
        assert_eq!(shard.come_home("rack"), Err("rack"), "it is late");
    }
}

type Lent = Loan<u8, &'static str>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Is {
    Free,
    Held,
    Waits,
    WaitsWithNothing,
    Parts,
    Syncs,
}

const ALL: [Is; 6] = [Is::Free, Is::Held, Is::Waits, Is::WaitsWithNothing, Is::Parts, Is::Syncs];

fn lent(is: Is) -> Lent {
    let mut lent = Lent::default();
    if matches!(is, Is::Held | Is::Waits) {
        lent.give(7);
    }
    if !matches!(is, Is::Free | Is::Held) {
        lent.leave();
    }
    match is {
        Is::Parts => assert!(lent.part()),
        Is::Syncs => assert!(lent.sync("under way")),
        _ => {}
    }
    lent
}

fn told(lent: &mut Lent) -> Is {
    let is = match (lent.held().copied(), lent.last_held().copied(), lent.is_leaving()) {
        (None, None, false) => Is::Free,
        (Some(7), Some(7), false) => Is::Held,
        (None, Some(7), true) => Is::Waits,
        (None, None, true) if lent.waits() => Is::WaitsWithNothing,
        (None, None, true) if lent.parts() => Is::Parts,
        (None, None, true) => Is::Syncs,
        other => panic!("no state: {other:?}"),
    };
    assert_eq!(lent.waits(), matches!(is, Is::Waits | Is::WaitsWithNothing));
    assert_eq!(lent.parts(), is == Is::Parts);
    assert_eq!(lent.syncs().copied(), (is == Is::Syncs).then_some("under way"));
    is
}

#[test]
fn a_loan_goes_from_each_state_where_its_table_says() {
    let after = |act: fn(&mut Lent)| {
        ALL.map(|is| {
            let mut lent = lent(is);
            assert_eq!(told(&mut lent), is);
            act(&mut lent);
            told(&mut lent)
        })
    };
    assert_eq!(after(|lent| lent.give(7)), [Is::Held; 6]);
    assert_eq!(after(Lent::end), [Is::Free; 6]);
    let nothing = Is::WaitsWithNothing;
    assert_eq!(
        after(Lent::take_back),
        [Is::Free, Is::Free, nothing, nothing, Is::Parts, Is::Syncs]
    );
    assert_eq!(after(Lent::leave), [nothing, Is::Waits, Is::Waits, nothing, nothing, nothing]);
}

#[test]
fn only_a_loan_whose_queue_is_waited_for_parts_or_syncs() {
    for is in ALL {
        let waits = matches!(is, Is::Waits | Is::WaitsWithNothing);
        let (mut parting, mut syncing) = (lent(is), lent(is));
        assert_eq!((parting.part(), syncing.sync("under way")), (waits, waits));
        let expected = if waits { (Is::Parts, Is::Syncs) } else { (is, is) };
        assert_eq!((told(&mut parting), told(&mut syncing)), expected);
    }
}
