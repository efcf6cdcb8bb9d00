//! What operators are promised of NICs: added whole or not at all, moved or not.

use std::time::Duration;

use config::api::{Answer, Call, ErrorKind, NicView};
use config::spec::{Carrier, NicMove, NicSpec, NullKind};
use config::{SwitchSpec, Target};

use crate::calls::UNDONE;
use crate::trial::vmm::{Guest, Vmm, dial};
use crate::trial::{Trial, refused};

const FILE: &str = "[[switch]]\nid = \"s\"\n[[nic]]\nid = \"a\"\nswitch = \"s\"\n";

fn ids(id: &str) -> String {
    id.to_string()
}

fn on_switch(id: &str) -> NicSpec {
    NicSpec { switch: Some(ids("s")), ..NicSpec::new(id) }
}

fn nic(answer: Answer) -> NicView {
    match answer {
        Answer::Nic(nic) => *nic,
        other => panic!("{other:?}"),
    }
}

fn names(trial: &mut Trial) -> Vec<String> {
    match trial.ask(Call::ListNics) {
        Ok(Answer::Nics(list)) => list.nics.into_iter().map(|it| it.id).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_nic_that_is_added_is_served_and_there_after_a_restart() {
    for spec in [on_switch("b"), NicSpec { null: Some(NullKind::Drop), ..NicSpec::new("b") }] {
        let mut trial = Trial::of(FILE);
        trial.ask(Call::AddNic(spec)).map(nic).expect("it is added");
        let _vmm = Vmm::of_nic(&mut trial, "b");
        assert_eq!(trial.nic("b").queues_attached, 2);
        let mut again = Trial::start(FILE, trial.die()).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(names(&mut again), ["a", "b"]);
    }
}

#[test]
fn what_cannot_be_added_leaves_nothing_behind() {
    let mut trial = Trial::of(FILE);
    std::fs::write(trial.path("a-file"), "text").expect("a file");
    let socket = Some(trial.path("a-file").display().to_string());
    let taken = "id: the name \"a\" is taken by nic \"a\" (sidecore.toml:10)";
    let cases = [
        (on_switch("a"), ErrorKind::Conflict, taken),
        (NicSpec::new("b"), ErrorKind::Refused, ""),
        (
            NicSpec { switch: Some(ids("t")), ..NicSpec::new("b") },
            ErrorKind::Conflict,
            "switch: there is no switch \"t\"",
        ),
        (
            NicSpec { group: Some(ids("g")), ..on_switch("b") },
            ErrorKind::Refused,
            "group: there is no group \"g\"",
        ),
        (NicSpec { socket, ..on_switch("b") }, ErrorKind::Refused, ""),
    ];
    let bounds = trial.daemon.bounds();
    for (spec, kind, error) in cases {
        let why = trial.ask(Call::AddNic(spec.clone())).expect_err("it is refused");
        assert_eq!(why.kind, kind, "{spec:?}: {why}");
        assert!(why.error.starts_with(error), "{spec:?}: {why}");
        assert_eq!(names(&mut trial), ["a"]);
        assert_eq!(trial.daemon.bounds(), bounds);
    }
    trial.break_state(true);
    let (kind, why) = refused(trial.ask(Call::AddNic(on_switch("b"))));
    assert_eq!(kind, ErrorKind::Internal);
    assert!(why.ends_with(UNDONE), "{why}");
    trial.rest();
    assert_eq!(names(&mut trial), ["a"]);
    assert_eq!(trial.daemon.bounds(), bounds);
    assert!(dial(&trial.socket("b")).is_none());
    // Its port on the switch is free again, too.
    trial.break_state(false);
    trial.ask(Call::AddNic(on_switch("b"))).expect("it is added");
}

/// Without its cable a guest sees no carrier, which it can only see by its front-end's end.
#[test]
fn a_cable_that_is_out_keeps_front_ends_off_until_it_is_in_again() {
    let mut trial = Trial::of(FILE);
    let mut vmm = Vmm::of_nic(&mut trial, "a");
    let set = |carrier| Call::SetCarrier { id: ids("a"), carrier };
    trial.ask(set(Carrier::Down)).expect("it is out");
    assert!(vmm.is_cut_off(&mut trial));
    assert!(dial(&trial.socket("a")).is_none(), "its socket is there");
    assert_eq!(trial.nic("a").queues_attached, 0);
    trial.ask(set(Carrier::Up)).expect("it is in");
    let mut vmm = Vmm::connect(&trial, "a", vmm.hang_up()).expect("it listens");
    vmm.features = 1 << 32;
    vmm.begin(&mut trial);
    assert_eq!(trial.nic("a").queues_attached, 2);
}

#[test]
fn a_cable_of_the_api_is_kept_and_one_of_the_file_follows_the_file() {
    let mut trial = Trial::of(FILE);
    trial.ask(Call::AddNic(on_switch("b"))).expect("it is added");
    let set = |id: &str| Call::SetCarrier { id: ids(id), carrier: Carrier::Down };
    for id in ["a", "b"] {
        trial.ask(set(id)).expect("it is out");
    }
    let (kind, _) = refused(trial.ask(set("c")));
    assert_eq!(kind, ErrorKind::NotFound);
    let mut trial = Trial::start(FILE, trial.die()).unwrap_or_else(|why| panic!("{why}"));
    assert!(dial(&trial.socket("a")).is_some());
    assert!(dial(&trial.socket("b")).is_none());
    trial.break_state(true);
    let up = Call::SetCarrier { id: ids("b"), carrier: Carrier::Up };
    let (kind, why) = refused(trial.ask(up));
    assert_eq!(kind, ErrorKind::Internal);
    assert!(why.ends_with(UNDONE), "{why}");
    trial.rest();
    assert!(dial(&trial.socket("b")).is_none(), "nothing was done");
    assert_eq!(trial.nic("b").link, Carrier::Down);
}

#[test]
fn a_nic_moves_with_all_its_queues() {
    let mut trial = Trial::of(FILE);
    let mut vmm = Vmm::of_nic(&mut trial, "a");
    let go = |to: &str| Call::MoveNic {
        id: ids("a"),
        wish: NicMove { to: to.parse::<Target>().expect("a target") },
    };
    for to in [1, 0, 0] {
        let moved = trial.ask(go(&to.to_string())).map(nic).expect("it is moved");
        let cores: Vec<_> = moved.queues.iter().map(|queue| queue.sidecore).collect();
        assert_eq!(cores, [Some(to), Some(to)]);
    }
    assert!(!vmm.is_cut_off(&mut trial));
    let (kind, why) = refused(trial.ask(go("2")));
    assert_eq!(kind, ErrorKind::Refused);
    assert!(why.starts_with("there is no sidecore 2"), "{why}");
    trial.ask(go("auto")).expect("it is let go");
}

/// A sidecore that does not answer holds the move up, not the operator's other calls.
#[test]
fn a_nic_whose_front_end_goes_while_it_moves_ends_the_call() {
    let mut trial = Trial::of(FILE);
    let vmm = Vmm::of_nic(&mut trial, "a");
    let from = trial.nic("a").queues[0].sidecore.expect("a sidecore");
    trial.stall(true);
    let wish = NicMove { to: Target::Sidecore(1 - from) };
    let asked = trial.asks(Call::MoveNic { id: ids("a"), wish });
    trial.rest();
    assert_eq!(names(&mut trial), ["a"]);
    drop(vmm.hang_up());
    trial.rest();
    trial.stall(false);
    let _ = trial.answer(asked);
    trial.pass(Duration::from_millis(10));
    assert_eq!(trial.nic("a").queues_attached, 0);
    let mut vmm = Vmm::connect(&trial, "a", Guest::new(2)).expect("it listens");
    vmm.features = 1 << 32;
    vmm.begin(&mut trial);
    assert_eq!(trial.nic("a").queues_attached, 2);
}

#[test]
fn a_switch_goes_when_its_last_nic_has_gone() {
    let mut trial = Trial::of(FILE);
    trial.ask(Call::AddSwitch(SwitchSpec::new("t"))).expect("it is added");
    let spec = NicSpec { switch: Some(ids("t")), ..NicSpec::new("b") };
    trial.ask(Call::AddNic(spec)).expect("it is added");
    let remove = || Call::RemoveSwitch { id: ids("t") };
    let (kind, why) = refused(trial.ask(remove()));
    assert_eq!(kind, ErrorKind::Conflict);
    assert!(why.starts_with("switch \"t\" has 1 nic: b; "), "{why}");
    trial.ask(Call::RemoveNic { id: ids("b"), force: false }).expect("it goes");
    trial.ask(remove()).expect("it goes");
    let (kind, _) = refused(trial.ask(Call::ShowSwitch { id: ids("t") }));
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(!trial.rooms().network.is_losing_a_switch());
}
