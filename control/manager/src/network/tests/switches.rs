//! Switches, and who was heard where.

use super::*;
use crate::network::switches::Holder;

#[test]
fn a_switch_that_is_added_is_shown_until_it_is_removed() {
    let mut trial = Trial::of(LAN);
    let spec = SwitchSpec { ageing_s: 7, macs_max: 99, ..SwitchSpec::new("dmz") };
    let added = switch_in(trial.ask(Call::AddSwitch(spec.clone())));
    assert_eq!((added.id.as_str(), added.declared.as_str()), ("dmz", "api"));
    assert_eq!((added.ageing_s, added.macs_max, added.ports.len()), (7, 99, 0));
    assert_eq!((added.problem, added.macs), (None, None), "nobody asks who was heard");
    assert_eq!(show(&mut trial, "dmz").macs, Some(vec![]));
    // A name is one switch's.
    assert_eq!(kind(trial.ask(Call::AddSwitch(spec.clone()))), ErrorKind::Conflict);
    let gone = switch_in(trial.ask(Call::RemoveSwitch { id: "dmz".to_string() }));
    assert_eq!(gone.id, "dmz", "as it last was");
    for call in [Call::ShowSwitch { id: "dmz".into() }, Call::RemoveSwitch { id: "dmz".into() }] {
        let (kind, why) = refused(trial.ask(call));
        assert_eq!(kind, ErrorKind::NotFound);
        assert_eq!(
            why,
            "there is no switch \"dmz\"; `sidecore switch show` lists the switches there are"
        );
    }
    // The name is free again.
    switch_in(trial.ask(Call::AddSwitch(spec)));
    let Ok(Answer::Switches(all)) = trial.ask(Call::ListSwitches) else { panic!("no list") };
    let names: Vec<&str> = all.switches.iter().map(|switch| switch.id.as_str()).collect();
    assert_eq!(names, ["lan", "dmz"], "in the order of the plan");
}

#[test]
fn a_switch_of_the_file_and_one_with_nics_are_not_removed() {
    let mut trial = Trial::of(LAN);
    let remove = |id: &str| Call::RemoveSwitch { id: id.to_string() };
    let (why_kind, why) = refused(trial.ask(remove("lan")));
    assert_eq!(why_kind, ErrorKind::Conflict);
    assert!(why.contains("is declared in sidecore.toml, line "), "{why}");
    assert!(why.ends_with("change it there, then run `sidecore reload`"), "{why}");
    switch_in(trial.ask(Call::AddSwitch(SwitchSpec::new("dmz"))));
    let nic = NicSpec { switch: Some("dmz".to_string()), ..NicSpec::new("n") };
    nic_in(trial.ask(Call::AddNic(nic)));
    let (why_kind, why) = refused(trial.ask(remove("dmz")));
    assert_eq!(why_kind, ErrorKind::Conflict);
    assert!(why.starts_with("switch \"dmz\" has 1 nic: n; remove them first"), "{why}");
    nic_in(trial.ask(Call::RemoveNic { id: "n".to_string(), force: false }));
    switch_in(trial.ask(remove("dmz")));
}

#[test]
fn a_switch_that_cannot_be_kept_is_not_added() {
    let mut trial = Trial::of(LAN);
    trial.break_state(true);
    let (why_kind, why) = refused(trial.ask(Call::AddSwitch(SwitchSpec::new("dmz"))));
    assert_eq!(why_kind, ErrorKind::Internal);
    assert!(why.starts_with("the change cannot be kept: "), "{why}");
    assert!(why.contains("nothing was changed"), "{why}");
    assert_eq!(kind(trial.ask(Call::ShowSwitch { id: "dmz".into() })), ErrorKind::NotFound);
    trial.break_state(false);
    switch_in(trial.ask(Call::AddSwitch(SwitchSpec::new("dmz"))));
}

#[test]
fn a_switch_whose_removal_cannot_be_kept_stays() {
    let mut trial = Trial::of(LAN);
    switch_in(trial.ask(Call::AddSwitch(SwitchSpec::new("dmz"))));
    trial.break_state(true);
    let (why_kind, why) = refused(trial.ask(Call::RemoveSwitch { id: "dmz".into() }));
    assert_eq!(why_kind, ErrorKind::Internal);
    assert!(why.contains("nothing was changed"), "{why}");
    assert_eq!(show(&mut trial, "dmz").id, "dmz");
    trial.break_state(false);
    switch_in(trial.ask(Call::RemoveSwitch { id: "dmz".into() }));
    assert_eq!(kind(trial.ask(Call::ShowSwitch { id: "dmz".into() })), ErrorKind::NotFound);
}

#[test]
fn what_was_added_is_there_after_a_crash_and_what_was_removed_is_not() {
    let mut trial = Trial::of(LAN);
    for id in ["dmz", "san"] {
        switch_in(trial.ask(Call::AddSwitch(SwitchSpec::new(id))));
    }
    switch_in(trial.ask(Call::RemoveSwitch { id: "san".to_string() }));
    let folder = trial.die();
    let mut trial = Trial::start(LAN, folder).expect("it starts");
    let Ok(Answer::Switches(all)) = trial.ask(Call::ListSwitches) else { panic!("no list") };
    let names: Vec<&str> = all.switches.iter().map(|switch| switch.id.as_str()).collect();
    assert_eq!(names, ["lan", "dmz"]);
}

#[test]
fn guests_of_a_switch_hear_each_other_and_the_table_says_where_they_are() {
    let mut trial = Trial::of(&format!("{LAN}{}{}", nic("a"), nic("b")));
    let (mut a, mut b) = (Vmm::of_nic(&mut trial, "a"), Vmm::of_nic(&mut trial, "b"));
    let (from_a, from_b) = (trial.nic("a").mac.0, trial.nic("b").mac.0);
    // One that is bridged within the guest of `a`, and is learned.
    let behind_a = [2, 9, 9, 9, 9, 9];
    let flood = frame(BROADCAST, behind_a, 1);
    assert_eq!(carries(&mut trial, &mut a, &mut b, &flood), Some(flood));
    let reply = frame(behind_a, from_b, 2);
    assert_eq!(carries(&mut trial, &mut b, &mut a, &reply), Some(reply));
    trial.pass(ms(3_000));
    let shown = show(&mut trial, "lan");
    let ports: Vec<(&str, Option<u16>)> =
        shown.ports.iter().map(|port| (port.name.as_str(), port.sidecore)).collect();
    let home = |nic: NicView| nic.sidecore;
    let homes = (home(trial.nic("a")), home(trial.nic("b")));
    assert_eq!(ports, [("a", homes.0), ("b", homes.1)]);
    assert!(homes.0 != homes.1, "they are where there is room");
    let mut heard: Vec<(String, String, u64)> =
        shown.macs.unwrap().into_iter().map(|mac| (mac.port, mac.mac, mac.age_s)).collect();
    heard.sort();
    let text = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    // A NIC's own address is known for ever.
    let mut expected = [("a", from_a, 0), ("a", behind_a, 3), ("b", from_b, 0)]
        .map(|(port, mac, age_s)| (port.to_string(), text(mac), age_s));
    expected.sort();
    assert_eq!(heard, expected);
    let counted =
        |id: &str| shown.ports.iter().find(|port| port.name == id).unwrap().counters.clone();
    assert_eq!((counted("a").taken_frames, counted("a").delivered_frames), (1, 1));
    assert_eq!((counted("b").taken_frames, counted("b").delivered_frames), (1, 1));
}

#[test]
fn a_sidecore_that_does_not_answer_is_waited_for_two_seconds() {
    let mut trial = Trial::of(&format!("{LAN}{}", nic("a")));
    let mut a = Vmm::of_nic(&mut trial, "a");
    let from_a = trial.nic("a").mac.0;
    a.guest.transmit(1, &frame(BROADCAST, from_a, 1));
    trial.pass(ms(10));
    let mut asked = trial.asks(Call::ShowSwitch { id: "lan".to_string() });
    turn(&mut trial);
    trial.skip(ms(1_990));
    turn(&mut trial);
    assert_eq!(answered(&mut asked), None);
    trial.skip(ms(20));
    turn(&mut trial);
    let shown = switch_in(answered(&mut asked).expect("time is up"));
    assert_eq!((shown.id.as_str(), shown.macs), ("lan", Some(vec![])), "with what is known");
    // What they say then is late, and the next one who asks is answered at once.
    trial.rest();
    assert_eq!(show(&mut trial, "lan").macs.map(|macs| macs.len()), Some(1));
}

/// No event comes: it is the time that has control answer.
#[test]
fn whoever_asks_for_the_table_of_sidecores_that_stand_still_is_answered_all_the_same() {
    let mut trial = Trial::of(LAN);
    trial.stall(true);
    let began = trial.now();
    let shown = show(&mut trial, "lan");
    assert_eq!(shown.macs, Some(vec![]), "with what is known");
    assert!((2_000_000_000..2_100_000_000).contains(&trial.now().since(began)));
    trial.stall(false);
    trial.rest();
}

#[test]
fn a_switch_that_goes_while_its_table_is_asked_for_is_said_to_be_gone() {
    let mut trial = Trial::of(LAN);
    switch_in(trial.ask(Call::AddSwitch(SwitchSpec::new("dmz"))));
    let mut shows = trial.asks(Call::ShowSwitch { id: "dmz".to_string() });
    let mut removes = trial.asks(Call::RemoveSwitch { id: "dmz".to_string() });
    turn(&mut trial);
    turn(&mut trial);
    switch_in(answered(&mut removes).expect("it had no ports"));
    assert_eq!(answered(&mut shows), None);
    trial.rest();
    let gone = answered(&mut shows).expect("all have answered");
    let (why_kind, why) = refused(gone);
    let told = "the switch is gone; `sidecore ls` and `sidecore switch show` list what there is";
    assert_eq!((why_kind, why.as_str()), (ErrorKind::NotFound, told));
}

#[test]
fn a_switch_has_so_many_ports_and_numbers_that_come_free_are_used_again() {
    let mut trial = Trial::of(LAN);
    let lan = trial.rooms().network.switch_mut("lan").expect("a switch");
    let taken: Vec<_> = std::iter::from_fn(|| lan.take_port(Holder::Uplink(999))).collect();
    assert_eq!(taken.len(), usize::from(switch::PORTS_MAX));
    let (_, why) = refused(trial.ask(Call::AddNic(nic_spec("n"))));
    assert!(why.contains("switch \"lan\" has no port left"), "{why}");
    let lan = trial.rooms().network.switch_mut("lan").expect("a switch");
    lan.give_port(taken[7].port);
    for _ in 0..5 {
        nic_in(trial.ask(Call::AddNic(nic_spec("n"))));
        nic_in(trial.ask(Call::RemoveNic { id: "n".to_string(), force: false }));
    }
    assert!(trial.daemon.loads().iter().all(|load| *load == 0), "{:?}", trial.daemon.loads());
}

#[test]
fn a_reload_adds_and_removes_switches_and_their_nics_follow() {
    let both = format!("{LAN}[[switch]]\nid = \"dmz\"\n{}", nic("a"));
    let mut trial = Trial::of(&format!("{LAN}{}", nic("a")));
    let mut vmm = Vmm::of_nic(&mut trial, "a");
    let done = trial.reload(&both, false).expect("it is done");
    assert_eq!(done.changes.len(), 1, "{:?}", done.changes);
    assert!(!vmm.is_cut_off(&mut trial), "nobody else is disturbed");
    let other = both.replace("switch = \"lan\"", "switch = \"dmz\"");
    let (why_kind, _) = refused(trial.reload(&other, false));
    assert_eq!(why_kind, ErrorKind::Conflict, "its guest would lose its NIC");
    trial.reload(&other, true).expect("it is done");
    assert!(vmm.is_cut_off(&mut trial));
    assert_eq!(trial.nic("a").switch.as_deref(), Some("dmz"));
    trial.reload("", true).expect("it is done");
    let Ok(Answer::Switches(all)) = trial.ask(Call::ListSwitches) else { panic!("no list") };
    assert_eq!(all.switches, []);
    assert!(!trial.rooms().network.has_switches());
}

/// What there is not enough of is there again later, and nothing is said to be done until then.
#[test]
fn what_a_reload_could_not_do_of_switches_is_told_and_done_by_the_next() {
    let mut trial = Trial::of(&format!("{LAN}{}", nic("a")));
    let rooms = trial.rooms();
    let taken: Vec<u16> = std::iter::from_fn(|| rooms.network.bridges.take()).collect();
    let text = "[[switch]]\nid = \"lan\"\nmacs_max = 99\nageing_s = 7\n";
    let dmz = "[[switch]]\nid = \"dmz\"\n[[nic]]\nid = \"b\"\nswitch = \"dmz\"\n";
    let text = format!("{text}{dmz}{}share = 7\n", nic("a"));
    let (why_kind, why) = refused(trial.reload(&text, false));
    assert_eq!(why_kind, ErrorKind::Refused);
    for part in [
        "switch \"lan\" keeps its limits: there are 4096 switches and wires already",
        "switch \"dmz\" cannot be served: there are 4096 ",
        "nic \"b\" cannot be served: there is no switch \"dmz\"",
        "everything else was done",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    let lan = show(&mut trial, "lan");
    assert_eq!(trial.daemon.plan().nic("a").map(|nic| nic.service.share), Some(7));
    let is_new = |view: &SwitchView| (view.ageing_s, view.macs_max) == (7, 99);
    assert!(!is_new(&lan), "{lan:?}");
    assert_eq!(kind(trial.ask(Call::ShowSwitch { id: "dmz".to_string() })), ErrorKind::NotFound);
    for number in taken {
        trial.rooms().network.bridges.give_back(number);
    }
    let done = trial.reload(&text, false).expect("there is room");
    assert!(done.changes.iter().any(|it| it.starts_with("set switch lan: ")), "{:?}", done.changes);
    assert!(done.changes.contains(&"added switch dmz".to_string()), "{:?}", done.changes);
    assert!(done.changes.contains(&"opened nic b".to_string()), "{:?}", done.changes);
    assert!(is_new(&show(&mut trial, "lan")));
    assert_eq!(trial.nic("b").problem, None);
    assert_eq!(trial.reload(&text, false).expect("it is in force").changes, [""; 0]);
}

/// Whoever may only look may ask as often as he likes: sidecores are asked once for all who wait.
#[test]
fn those_who_ask_for_one_table_at_once_share_its_answer() {
    let mut trial = Trial::of(&format!("{LAN}{}", nic("a")));
    let mut a = Vmm::of_nic(&mut trial, "a");
    let from_a = trial.nic("a").mac.0;
    a.guest.transmit(1, &frame(BROADCAST, from_a, 1));
    trial.pass(ms(10));
    let before = trial.rooms().network.queries.begun();
    let show = |trial: &mut Trial| trial.asks(Call::ShowSwitch { id: "lan".to_string() });
    let asked: Vec<_> = (0..9).map(|_| show(&mut trial)).collect();
    for asked in asked {
        let shown = switch_in(trial.answer(asked));
        assert_eq!(shown.macs.map(|macs| macs.len()), Some(1));
    }
    // The first has the first answer, and all others the next.
    assert_eq!(trial.rooms().network.queries.begun() - before, 2);
    // A sidecore that does not answer is waited for by each of them, and no one for ever.
    trial.stall(true);
    let asked: Vec<_> = (0..3).map(|_| show(&mut trial)).collect();
    for asked in asked {
        assert_eq!(switch_in(trial.answer(asked)).macs, Some(vec![]), "with what is known");
    }
    trial.stall(false);
    trial.rest();
}
