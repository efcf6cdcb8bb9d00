//! NICs that are there: changed, moved, their cables, and what the network is told of their guests.

use config::Target;
use config::spec::{Carrier, NicChange, NicMove, Spoof};
use vhost_user::message::{MacAddress, RingState};
use vhost_user::{Message, bits};

use super::*;
use crate::trial::vmm::dial;

fn change(json: serde_json::Value) -> NicChange {
    serde_json::from_value(json).expect("a change")
}

fn set(id: &str, json: serde_json::Value) -> Call {
    Call::ChangeNic { id: id.to_string(), change: change(json) }
}

fn to(id: &str, to: Target) -> Call {
    Call::MoveNic { id: id.to_string(), wish: NicMove { to } }
}

/// A NIC of the API, and its VMM.
fn added(trial: &mut Trial, id: &str) -> Vmm {
    nic_in(trial.ask(Call::AddNic(nic_spec(id))));
    Vmm::of_nic(trial, id)
}

/// The other one of two sidecores.
fn other(trial: &mut Trial, id: &str) -> u16 {
    1 - trial.nic(id).sidecore.expect("it is plugged in")
}

#[test]
fn a_nic_of_the_api_is_changed_in_place_and_one_of_the_file_is_not() {
    let mut trial = Trial::of(&format!("{LAN}{}", nic("f")));
    let (why_kind, why) = refused(trial.ask(set("f", serde_json::json!({"macs_max": 7}))));
    assert_eq!(why_kind, ErrorKind::Conflict);
    assert!(why.starts_with("nic \"f\" is declared in sidecore.toml, line "), "{why}");
    assert_eq!(kind(trial.ask(set("x", serde_json::json!({})))), ErrorKind::NotFound);
    let mut vmm = added(&mut trial, "n");
    let changed = nic_in(trial.ask(set(
        "n",
        serde_json::json!({
            "macs_max": 7, "spoof": "deny", "share": 300, "vlan": 9
        }),
    )));
    assert_eq!((changed.macs_max, changed.spoof, changed.service.share), (7, Spoof::Deny, 300));
    assert_eq!(changed.queues_attached, 2, "its guest goes on");
    assert!(!vmm.is_cut_off(&mut trial));
    // What is wrong changes nothing, and says what would be right.
    for wrong in [
        serde_json::json!({"vlan": 4095}),
        serde_json::json!({"native": 3, "vlan": 4}),
        serde_json::json!({"limit_burst_ms": 100}),
        serde_json::json!({"socket_owner": "no such user"}),
    ] {
        let (_, why) = refused(trial.ask(set("n", wrong.clone())));
        assert!(!why.ends_with("; "), "{wrong}: {why}");
        assert_eq!(trial.nic("n"), changed, "{wrong}");
    }
}

#[test]
fn a_change_of_a_nic_that_cannot_be_kept_is_taken_back() {
    let mut trial = Trial::of(LAN);
    let _vmm = added(&mut trial, "n");
    let before = trial.nic("n");
    trial.break_state(true);
    let (why_kind, why) = refused(trial.ask(set("n", serde_json::json!({"macs_max": 7}))));
    assert_eq!(why_kind, ErrorKind::Internal);
    assert!(why.contains("nothing was changed"), "{why}");
    assert_eq!(trial.nic("n"), before);
    // Nor is a cable pulled that the next start would put in again.
    let down = Call::SetCarrier { id: "n".to_string(), carrier: Carrier::Down };
    let (_, why) = refused(trial.ask(down));
    assert!(why.contains("nothing was changed"), "{why}");
    assert_eq!(trial.nic("n").link, Carrier::Up);
}

#[test]
fn a_rule_of_a_nic_holds_from_the_next_frame_on() {
    let mut trial = Trial::of(&format!("{LAN}{}", nic("b")));
    let (mut a, mut b) = (added(&mut trial, "a"), Vmm::of_nic(&mut trial, "b"));
    let own = trial.nic("a").mac.0;
    let (true_one, spoofed) = (frame(BROADCAST, own, 1), frame(BROADCAST, [2, 9, 9, 9, 9, 9], 2));
    assert_eq!(carries(&mut trial, &mut a, &mut b, &spoofed), Some(spoofed.clone()));
    trial.ask(set("a", serde_json::json!({"spoof": "deny"}))).expect("it is changed");
    assert!(a.guest.has_sent(1));
    assert_eq!(carries(&mut trial, &mut a, &mut b, &spoofed), None);
    assert!(a.guest.has_sent(1));
    let dropped = trial.nic("a").counters.drops;
    assert_eq!(dropped.iter().map(|drop| drop.frames).sum::<u64>(), 1, "{dropped:?}");
    a.guest.transmit(1, &true_one);
    trial.pass(ms(10));
    assert_eq!(b.guest.frame(0), Some(true_one), "the buffer that waited");
}

#[test]
fn without_a_cable_nobody_is_connected_and_frames_go_nowhere() {
    let mut trial = Trial::of(&format!("{LAN}{}{}", nic("a"), nic("b")));
    let (mut a, mut b) = (Vmm::of_nic(&mut trial, "a"), Vmm::of_nic(&mut trial, "b"));
    let carrier = |id: &str, carrier| Call::SetCarrier { id: id.to_string(), carrier };
    assert_eq!(kind(trial.ask(carrier("x", Carrier::Down))), ErrorKind::NotFound);
    // Of the file, too: it follows the file again when the daemon is started.
    let down = nic_in(trial.ask(carrier("b", Carrier::Down)));
    assert_eq!(down.link, Carrier::Down);
    assert!(b.is_cut_off(&mut trial), "a guest sees by that that it has no carrier");
    assert_eq!(trial.nic("b").queues_attached, 0);
    assert!(dial(&trial.socket("b")).is_none(), "nor may it come again");
    assert!(!a.is_cut_off(&mut trial));
    let own = trial.nic("a").mac.0;
    a.guest.transmit(1, &frame(BROADCAST, own, 1));
    trial.pass(ms(10));
    assert_eq!(trial.nic("b").counters.delivered_frames, 0);
    // It is said once and twice, and is back at once.
    nic_in(trial.ask(carrier("b", Carrier::Down)));
    assert_eq!(nic_in(trial.ask(carrier("b", Carrier::Up))).link, Carrier::Up);
    trial.pass(ms(1_100));
    let mut b = Vmm::of_nic(&mut trial, "b");
    assert!(a.guest.has_sent(1));
    let seen = frame(BROADCAST, own, 2);
    assert_eq!(carries(&mut trial, &mut a, &mut b, &seen), Some(seen));
}

#[test]
fn a_cable_that_was_taken_out_of_a_nic_of_the_api_stays_out_over_a_restart() {
    let mut trial = Trial::of(&format!("{LAN}{}", nic("f")));
    let _vmm = added(&mut trial, "n");
    for id in ["n", "f"] {
        let down = Call::SetCarrier { id: id.to_string(), carrier: Carrier::Down };
        nic_in(trial.ask(down));
    }
    let folder = trial.die();
    let mut trial = Trial::start(&format!("{LAN}{}", nic("f")), folder).expect("it starts");
    assert_eq!((trial.nic("n").link, trial.nic("f").link), (Carrier::Down, Carrier::Up));
}

#[test]
fn a_nic_goes_where_an_operator_wants_it_with_its_guest_and_its_load() {
    let mut trial = Trial::of(&format!("{LAN}{}{}", nic("a"), nic("b")));
    let (mut a, mut b) = (Vmm::of_nic(&mut trial, "a"), Vmm::of_nic(&mut trial, "b"));
    let goal = other(&mut trial, "a");
    let before = trial.daemon.loads();
    let moved = nic_in(trial.ask(to("a", Target::Sidecore(goal))));
    assert_eq!((moved.sidecore, moved.by_hand, moved.queues_attached), (Some(goal), true, 2));
    let mut loads = before.clone();
    loads[usize::from(goal)] += 2;
    loads[usize::from(1 - goal)] -= 2;
    assert_eq!(trial.daemon.loads(), loads, "its two rings");
    let own = trial.nic("a").mac.0;
    let seen = frame(BROADCAST, own, 5);
    assert_eq!(carries(&mut trial, &mut a, &mut b, &seen), Some(seen));
    assert!(!a.is_cut_off(&mut trial));
    // It is there: said at once. And then held by nobody.
    assert_eq!(nic_in(trial.ask(to("a", Target::Sidecore(goal)))).sidecore, Some(goal));
    let let_go = nic_in(trial.ask(to("a", Target::Auto)));
    assert_eq!((let_go.sidecore, let_go.by_hand), (Some(goal), false));
}

#[test]
fn what_cannot_be_moved_says_why() {
    let disk = "[[disk]]\nid = \"d\"\nbackend = \"memory\"\nsize = \"1M\"\n";
    let wire = "[[nic]]\nid = \"w\"\nnull = \"echo\"\n";
    let mut trial = Trial::of(&format!("{LAN}{}{disk}{wire}", nic("a")));
    let cases = [
        ("x", 0, ErrorKind::NotFound, "there is no nic \"x\""),
        ("d", 0, ErrorKind::Refused, "\"d\" is a disk; use `sidecore disk move`"),
        ("w", 0, ErrorKind::Refused, "nic \"w\" is wired to the host"),
        ("a", 2, ErrorKind::Refused, "there is no sidecore 2: there are 2, from 0 on"),
        ("a", u16::MAX, ErrorKind::Refused, "there is no sidecore 65535"),
    ];
    for (id, sidecore, expected, begins) in cases {
        let (kind, why) = refused(trial.ask(to(id, Target::Sidecore(sidecore))));
        assert_eq!(kind, expected, "{why}");
        assert!(why.starts_with(begins), "{why}");
    }
    for id in ["d", "w", "x"] {
        assert!(trial.ask(to(id, Target::Auto)).is_err(), "{id}");
    }
}

/// It is not known then who has its queues, and nothing that is said of them is lost.
#[test]
fn a_nic_on_its_way_is_busy_and_hears_on_its_arrival_what_was_said_meanwhile() {
    let mut trial = Trial::of(&format!("{LAN}{}{}", nic("a"), nic("b")));
    let (mut a, mut b) = (Vmm::of_nic(&mut trial, "a"), Vmm::of_nic(&mut trial, "b"));
    let goal = other(&mut trial, "a");
    let mut moves = trial.asks(to("a", Target::Sidecore(goal)));
    turn(&mut trial);
    let mut again = trial.asks(to("a", Target::Sidecore(1 - goal)));
    let mut removes = trial.asks(Call::RemoveNic { id: "a".to_string(), force: false });
    a.send(&Message::SetVringEnable(RingState { queue: 1, value: 0 }), &[]);
    (0..3).for_each(|_| turn(&mut trial));
    assert_eq!(answered(&mut moves), None);
    let (why_kind, why) = refused(answered(&mut again).expect("at once"));
    assert_eq!(why_kind, ErrorKind::Busy);
    assert!(why.starts_with("nic \"a\" is being moved, stopped or started; try again"), "{why}");
    assert_eq!(kind(answered(&mut removes).expect("at once")), ErrorKind::Conflict);
    trial.pass(ms(5));
    assert_eq!(a.hear(&mut trial), Some(Ok(0)), "its ring stands still");
    let moved = nic_in(answered(&mut moves).expect("it is over"));
    assert_eq!((moved.sidecore, moved.by_hand), (Some(goal), true));
    assert_eq!(trial.nic("a").queues_attached, 1);
    let own = trial.nic("a").mac.0;
    assert_eq!(carries(&mut trial, &mut a, &mut b, &frame(BROADCAST, own, 1)), None);
    a.told(&mut trial, Message::SetVringEnable(RingState { queue: 1, value: 1 }));
    trial.pass(ms(10));
    assert!(b.guest.frame(0).is_some(), "it starts where it stood");
}

#[test]
fn a_nic_that_is_removed_on_its_way_ends_the_move_and_leaves_no_load() {
    let mut trial = Trial::of(LAN);
    let vmm = added(&mut trial, "n");
    let goal = other(&mut trial, "n");
    let mut moves = trial.asks(to("n", Target::Sidecore(goal)));
    turn(&mut trial);
    let mut removes = trial.asks(Call::RemoveNic { id: "n".to_string(), force: true });
    turn(&mut trial);
    drop(vmm);
    trial.pass(ms(50));
    assert!(answered(&mut moves).expect("it is over").is_err());
    nic_in(answered(&mut removes).expect("it is gone"));
    assert_eq!(trial.daemon.loads(), [0, 0]);
    assert_eq!(show(&mut trial, "lan").ports, []);
}

fn rarp(mac: [u8; 6]) -> Message {
    Message::SendRarp(MacAddress { bytes: mac, rest: 0 })
}

#[test]
fn a_vmm_has_its_guest_announced_and_no_other() {
    for (spoof, foreign_is_heard) in [("allow", true), ("deny", false)] {
        let strict = format!("{}spoof = {spoof:?}\n", nic("a"));
        let mut trial = Trial::of(&format!("{LAN}{strict}{}", nic("b")));
        let (mut a, mut b) = (Vmm::of_nic(&mut trial, "a"), Vmm::of_nic(&mut trial, "b"));
        let own = trial.nic("a").mac.0;
        let offered = bits::OFFERED_BY_NIC & !bits::BACKEND_REQ;
        a.told(&mut trial, Message::SetProtocolFeatures(offered));
        b.guest.offer(0);
        a.told(&mut trial, rarp(own));
        trial.pass(ms(10));
        let announced = b.guest.frame(0).expect("a flood");
        assert_eq!(
            (&announced[..6], &announced[6..12], &announced[12..14]),
            (&BROADCAST[..], &own[..], &[0x80, 0x35][..])
        );
        // Each is a flood: one that comes too soon is not said.
        b.guest.offer(0);
        a.told(&mut trial, rarp(own));
        trial.pass(ms(9));
        assert_eq!(b.guest.frame(0), None);
        trial.pass(ms(20));
        a.told(&mut trial, rarp([2, 7, 7, 7, 7, 7]));
        trial.pass(ms(10));
        assert_eq!(b.guest.frame(0).is_some(), foreign_is_heard, "{spoof}");
    }
}

/// Its rings were used before they start here: its guest was running elsewhere.
#[test]
fn a_guest_that_comes_running_is_announced_and_one_that_starts_anew_is_not() {
    let mut trial = Trial::of(&format!("{LAN}{}{}", nic("a"), nic("b")));
    let (mut a, mut b) = (Vmm::of_nic(&mut trial, "a"), Vmm::of_nic(&mut trial, "b"));
    b.guest.offer(0);
    trial.pass(ms(2_000));
    assert_eq!(b.guest.frame(0), None, "it says so itself");
    let own = trial.nic("a").mac.0;
    // Its rings are used, and its VMM comes again: as after a daemon that has ended.
    for fill in 0..3 {
        a.guest.transmit(1, &frame(BROADCAST, own, fill));
        trial.pass(ms(10));
        assert!(a.guest.has_sent(1));
    }
    let frames = |trial: &mut Trial, b: &mut Vmm, time: u64| {
        let until = trial.now().0 + time * 1_000_000;
        let mut count = 0;
        while trial.now().0 < until {
            trial.pass(ms(5));
            if b.guest.frame(0).is_some() {
                count += 1;
                b.guest.offer(0);
            }
        }
        count
    };
    frames(&mut trial, &mut b, 50);
    let bases: Vec<Option<u32>> = (0..2).map(|queue| a.stop(&mut trial, queue)).collect();
    assert_eq!(bases, [Some(0), Some(3)]);
    let mut a = Vmm::connect(&trial, "a", a.hang_up()).expect("it listens");
    trial.rest();
    a.features = 1 << 32;
    a.introduce(&mut trial);
    a.bring_memory(&mut trial);
    (0..2).for_each(|queue| a.set_up(&mut trial, queue));
    for queue in 0..2 {
        a.told(&mut trial, Message::SetVringEnable(RingState { queue, value: 1 }));
    }
    assert_eq!(frames(&mut trial, &mut b, 2_000), 5, "at once and four times more");
    assert_eq!(frames(&mut trial, &mut b, 2_000), 0);
}
