//! The tables of states and events of both sides.

use super::*;

type Side = Giving<&'static str, &'static str>;

/// The predecessor's side, so many steps on its way.
fn giving(steps: usize) -> Side {
    let mut giving = Side::ask(1, Nanos(5));
    let all: [fn(&mut Side) -> bool; 5] = [
        |it| it.started("heir", Nanos(6)),
        |it| it.greeted("version", Nanos(7)),
        Giving::tell,
        Giving::flip,
        Giving::give,
    ];
    all.iter().take(steps).for_each(|step| assert!(step(&mut giving)));
    giving
}

#[test]
fn a_predecessor_goes_step_by_step_and_knows_the_way_back_from_each() {
    let backs = [
        Back::GoOn(None),
        Back::GoOn(Some("heir")),
        Back::GoOn(Some("heir")),
        Back::SendOut("heir"),
        Back::EndFirst("heir"),
        Back::TakeBack("heir"),
    ];
    for (steps, back) in backs.into_iter().enumerate() {
        let takes = [
            giving(steps).started("another", Nanos(9)),
            giving(steps).greeted("again", Nanos(9)),
            giving(steps).tell(),
            giving(steps).flip(),
            giving(steps).give(),
        ];
        let next: Vec<bool> = (0..5).map(|at| at == steps).collect();
        assert_eq!(takes.to_vec(), next, "after {steps} steps");
        let is = giving(steps);
        assert_eq!(is.launcher(), (steps == 0).then_some(1));
        assert_eq!(is.hello(), (steps > 1).then_some(&"version"));
        assert_eq!(is.given(), (steps == 5).then_some((&"heir", &"version")));
        assert_eq!(giving(steps).into_given(), (steps == 5).then_some(("heir", "version")));
        assert_eq!(is.due(), Nanos([5, 6, 7, 7, 7, 7][steps]));
        assert_eq!(is.give_up(), back, "after {steps} steps");
    }
}

#[test]
fn what_comes_out_of_order_changes_nothing() {
    for steps in 0..6 {
        let mut it = giving(steps);
        if steps != 1 {
            assert!(!it.greeted("another", Nanos(9)));
        }
        if steps != 0 {
            assert!(!it.started("another", Nanos(9)));
        }
        assert_eq!((it.hello(), it.due()), (giving(steps).hello(), giving(steps).due()));
        assert_eq!(it.give_up(), giving(steps).give_up());
    }
}

#[test]
fn an_heir_serves_only_what_it_knows_the_place_of() {
    use Taking::{Able, Committed, OnProbation, Placed, Told};
    let table = [
        // state, and after: ready, flipped, leave, its predecessor's end, commit; none: it is refused
        (Told, [Some(Able), None, None, None, None]),
        (Able, [None, Some(Placed), None, None, None]),
        (Placed, [None, None, Some(OnProbation), Some(OnProbation), None]),
        (OnProbation, [None, None, None, Some(Committed), Some(Committed)]),
        (Committed, [None, None, None, Some(Committed), None]),
    ];
    let events: [fn(&mut Taking) -> bool; 5] =
        [Taking::ready, Taking::flipped, Taking::leave, Taking::left_alone, Taking::commit];
    for (state, row) in table {
        for (event, after) in events.iter().zip(row) {
            let mut is = state;
            assert_eq!(event(&mut is), after.is_some(), "{state:?}");
            assert_eq!(is, after.unwrap_or(state));
        }
    }
}
