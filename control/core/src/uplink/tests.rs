//! The table of states and events of an uplink, the refused and the late ones too.

use super::*;

const NOW: Nanos = Nanos(1_000);
const LATER: Nanos = Nanos(1_050);
const GONE: &str = "its interface is gone";

type Uplink = Life<char, u8>;

/// Each state by name, of one with two queues; with one wish.
fn states(wish: Wish<u8>) -> Vec<(&'static str, Uplink)> {
    let all = vec![(0, 'a'), (1, 'b')];
    let closed = State::Closed { problem: "busy".to_owned(), retry_at: Nanos(7) };
    let states = vec![
        ("closed", closed),
        ("open", State::Open(2)),
        ("partly", State::Partly(2, vec![], None)),
        ("partly, one back", State::Partly(2, vec![(1, 'b')], None)),
        ("kept", State::Kept(all.clone(), None)),
        ("kept, none", State::Kept(vec![], None)),
        ("kept, gone", State::Kept(all, Some(GONE.to_owned()))),
    ];
    states.into_iter().map(|(name, state)| (name, Life { state, wish })).collect()
}

fn name(life: &Uplink) -> String {
    match &life.state {
        State::Closed { problem, retry_at } => format!("closed {problem:?} {}", retry_at.0),
        State::Open(_) => "open".to_owned(),
        State::Partly(_, back, _) if back.is_empty() => "partly".to_owned(),
        State::Partly(..) => "partly, one back".to_owned(),
        State::Kept(_, Some(_)) => "kept, gone".to_owned(),
        State::Kept(ports, None) if ports.is_empty() => "kept, none".to_owned(),
        State::Kept(_, None) => "kept".to_owned(),
    }
}

/// What an event makes of each state: its name after it, and what it gave, as text.
fn table<T: Debug>(wish: Wish<u8>, event: impl Fn(&mut Uplink) -> T) -> Vec<[String; 3]> {
    let of = |(before, mut life): (&'static str, Uplink)| {
        let gave = format!("{:?}", event(&mut life));
        [before.to_owned(), name(&life), gave]
    };
    states(wish).into_iter().map(of).collect()
}

fn assert_table(found: &[[String; 3]], wanted: [[&str; 3]; 7]) {
    let found: Vec<[&str; 3]> =
        found.iter().map(|row| row.each_ref().map(String::as_str)).collect();
    assert_eq!(found, wanted);
}

#[test]
fn only_one_that_is_closed_takes_descriptors() {
    assert_table(
        &table(Wish::Stay, |life| life.come(vec![(0, 'c')])),
        [
            ["closed", "kept", "Ok(())"],
            ["open", "open", "Err([(0, 'c')])"],
            ["partly", "partly", "Err([(0, 'c')])"],
            ["partly, one back", "partly, one back", "Err([(0, 'c')])"],
            ["kept", "kept", "Err([(0, 'c')])"],
            ["kept, none", "kept, none", "Err([(0, 'c')])"],
            ["kept, gone", "kept, gone", "Err([(0, 'c')])"],
        ],
    );
}

#[test]
fn what_its_sidecore_has_is_not_closed() {
    assert_table(
        &table(Wish::Stay, |life| life.close("full", NOW)),
        [
            ["closed", "closed \"full\" 1000", "(true, [])"],
            ["open", "open", "(false, [])"],
            ["partly", "partly", "(false, [])"],
            ["partly, one back", "partly, one back", "(false, [])"],
            ["kept", "closed \"full\" 1000", "(true, [(0, 'a'), (1, 'b')])"],
            ["kept, none", "closed \"full\" 1000", "(true, [])"],
            ["kept, gone", "closed \"full\" 1000", "(true, [(0, 'a'), (1, 'b')])"],
        ],
    );
    let mut life = Uplink::new(NOW);
    assert_eq!(life.close("full", NOW), (true, vec![]));
    assert_eq!(life.close("full", LATER), (false, vec![]), "that is known");
    assert_eq!((life.problem(), life.due_at()), (Some("full"), Some(LATER)));
}

#[test]
fn it_is_asked_for_once() {
    let found = table(Wish::Stay, |life| life.ask());
    for [before, after, gave] in found {
        match before.as_str() {
            "open" => assert_eq!((after.as_str(), gave.as_str()), ("partly", "Some(2)")),
            "closed" => assert_eq!((after.as_str(), gave.as_str()), ("closed \"busy\" 7", "None")),
            _ => assert_eq!((after.as_str(), gave.as_str()), (before.as_str(), "None")),
        }
    }
}

#[test]
fn one_that_comes_back_has_the_others_asked_for_and_the_last_makes_it_whole() {
    assert_table(
        &table(Wish::Stay, |life| life.come_back(0, 'a', Some(GONE.to_owned()))),
        [
            ["closed", "closed \"busy\" 7", "Stray('a')"],
            ["open", "partly, one back", "Partly(Some(2))"],
            ["partly", "partly, one back", "Partly(None)"],
            ["partly, one back", "kept, gone", "Whole"],
            ["kept", "kept", "Stray('a')"],
            ["kept, none", "kept, none", "Stray('a')"],
            ["kept, gone", "kept, gone", "Stray('a')"],
        ],
    );
    // The first reason counts, and they are in order whichever came first.
    let mut life = Life { state: State::Open(2), wish: Wish::Stay } as Uplink;
    assert_eq!(life.come_back(1, 'b', Some(GONE.to_owned())), Back::Partly(Some(2)));
    assert_eq!(life.come_back(0, 'a', Some("another".to_owned())), Back::Whole);
    assert_eq!(life.kept(), Some(&[(0, 'a'), (1, 'b')][..]));
    let next = life.go_on(Mode::Serving, NOW, LATER);
    assert_eq!(next, Next::Close(vec![(0, 'a'), (1, 'b')], Some(GONE.to_owned())));
    // One queue alone is whole at once.
    let mut life = Life { state: State::Open(1), wish: Wish::Stay } as Uplink;
    assert_eq!(life.come_back(0, 'a', None), Back::Whole);
}

/// What goes on with descriptors that are here.
fn gone_on(wish: Wish<u8>, mode: Mode) -> Vec<[String; 3]> {
    let found = table(wish, |life| life.go_on(mode, NOW, LATER));
    let (not_here, here) = found.split_at(4);
    for [before, after, gave] in not_here {
        assert!(after.starts_with(before.as_str()) && gave == "Rest", "{before} {after} {gave}");
    }
    here.to_vec()
}

#[test]
fn what_is_whole_is_served_again_or_kept_or_closed() {
    let ports = "[(0, 'a'), (1, 'b')]";
    let closed = format!("closed {GONE:?} 1050");
    let for_that = format!("Close({ports}, Some({GONE:?}))");
    let gone = ["kept, gone".to_owned(), closed, for_that];
    let row = |before: &str, after: &str, gave: String| [before.to_owned(), after.to_owned(), gave];
    for mode in [Mode::Serving, Mode::Inheriting, Mode::HeirExpected, Mode::HeirWaits] {
        assert_eq!(
            gone_on(Wish::Stay, mode),
            [
                row("kept", "open", format!("Serve({ports})")),
                row("kept, none", "closed \"\" 1000", "Close([], None)".to_owned()),
                gone.clone(),
            ]
        );
    }
    assert_eq!(
        gone_on(Wish::Stay, Mode::Frozen),
        [
            row("kept", "kept", "Rest".to_owned()),
            row("kept, none", "kept, none", "Rest".to_owned()),
            gone.clone(),
        ]
    );
    assert_eq!(
        gone_on(Wish::Stay, Mode::Stopping),
        [
            row("kept", "closed \"\" 1050", format!("Close({ports}, None)")),
            row("kept, none", "closed \"\" 1050", "Close([], None)".to_owned()),
            gone,
        ]
    );
}

#[test]
fn one_that_leaves_is_gone_in_any_case_and_one_that_moves_waits_to_be_plugged_in() {
    let ports = "[(0, 'a'), (1, 'b')]";
    for mode in [Mode::Serving, Mode::Frozen, Mode::Stopping] {
        let gave: Vec<String> =
            gone_on(Wish::Leave, mode).into_iter().map(|[_, _, gave]| gave).collect();
        let (all, for_that) =
            (format!("Leave({ports}, None)"), format!("Leave({ports}, Some({GONE:?}))"));
        assert_eq!(gave, [all, "Leave([], None)".to_owned(), for_that]);
        for [before, after, gave] in gone_on(Wish::Move(3), mode) {
            assert_eq!((before, gave.as_str()), (after, "Rest"));
        }
    }
}

#[test]
fn a_wish_waits_for_what_is_out() {
    let wanted = [
        ["closed", "closed \"busy\" 7", "Now"],
        ["open", "partly", "Ask(2)"],
        ["partly", "partly", "Wait"],
        ["partly, one back", "partly, one back", "Wait"],
        ["kept", "kept", "Now"],
        ["kept, none", "kept, none", "Now"],
        ["kept, gone", "kept, gone", "Now"],
    ];
    assert_table(&table(Wish::Stay, |life| life.move_to(3)), wanted);
    assert_table(&table(Wish::Stay, |life| life.leave()), wanted);
    assert_table(&table(Wish::Move(3), |life| life.leave()), wanted);
}

#[test]
fn leaving_is_for_good_and_a_move_is_over_once() {
    for (_, mut life) in states(Wish::Stay) {
        let _ = life.move_to(3);
        assert_eq!(life.moving_to(), Some(3));
        let _ = life.move_to(4);
        assert_eq!(life.moving_to(), Some(4));
        life.moved();
        assert_eq!((life.moving_to(), life.is_leaving()), (None, false));
        let _ = life.leave();
        assert_eq!((life.move_to(5), life.moving_to()), (Wanted::Wait, None));
        life.moved();
        assert!(life.is_leaving());
    }
}

#[test]
fn what_another_process_has_none_of_is_parted_with_and_only_one_that_is_closed_is_hastened() {
    let found = table(Wish::Stay, |life| life.part_with(|port| *port == 'a'));
    for [before, after, gave] in found {
        let parted = before == "kept" || before == "kept, gone";
        assert_eq!(gave, if parted { "[(0, 'a')]" } else { "[]" }, "{before}");
        assert!(after.starts_with(before.as_str()));
    }
    for (name, mut life) in states(Wish::Stay) {
        life.hasten(NOW);
        assert_eq!(life.due_at(), (name == "closed").then_some(NOW), "{name}");
    }
}

#[test]
fn who_is_out_and_who_is_asked_for() {
    let seen: Vec<_> = states(Wish::Stay)
        .into_iter()
        .map(|(_, life)| (life.is_out(), life.is_asked(), life.problem().is_some()))
        .collect();
    let (out, here) = ((true, true, false), (false, false, false));
    assert_eq!(seen, [(false, false, true), (true, false, false), out, out, here, here, here]);
}
