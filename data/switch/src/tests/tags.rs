//! Every rule of a sender, every rule of a receiver, every form of a tag.

use std::fmt::Write as _;

use super::frames::{BROADCAST, frame, left, station, switch};
use crate::{BadPort, DropReason, Limits, PortId, Rules, Verdict, Vlan, Vlans};

fn rule(name: &str) -> Vlan {
    let trunk = |native, allowed: &[u16]| {
        let allowed = Vlans::new(allowed).expect("VLANs");
        Vlan::Trunk { native, allowed }
    };
    match name {
        "none" => Vlan::None,
        "access 10" => Vlan::Access(10),
        "access 20" => Vlan::Access(20),
        "trunk 10,20" => trunk(None, &[10, 20]),
        "trunk 20, native 10" => trunk(Some(10), &[20]),
        "trunk 10,20, native 10" => trunk(Some(10), &[10, 20]),
        "native 10" => trunk(Some(10), &[]),
        name => panic!("{name}"),
    }
}

const RULES: [&str; 7] = [
    "none",
    "access 10",
    "access 20",
    "trunk 10,20",
    "trunk 20, native 10",
    "trunk 10,20, native 10",
    "native 10",
];

/// Tags from the outside in; the last one opens with a provider's type.
const FRAMES: [(&str, &[(u16, u16)]); 11] = [
    ("u", &[]),
    ("p", &[(0x8100, 0x6000)]),
    ("10", &[(0x8100, 10)]),
    ("20", &[(0x8100, 20)]),
    ("30", &[(0x8100, 30)]),
    ("p10", &[(0x8100, 0x600a)]),
    ("p.20", &[(0x8100, 0x6000), (0x8100, 20)]),
    ("10.20", &[(0x8100, 10), (0x8100, 20)]),
    ("20.s30", &[(0x8100, 20), (0x88a8, 30)]),
    ("s10", &[(0x88a8, 10)]),
    ("4095", &[(0x8100, 4095)]),
];

/// A frame's tags as in [`FRAMES`], priorities left out but for those without a VLAN.
fn tags(bytes: &[u8]) -> String {
    let mut said = String::new();
    let mut at = 12;
    loop {
        let number = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let kind = match number(at) {
            0x8100 => "",
            0x88a8 => "s",
            _ => break,
        };
        let dot = if at > 12 { "." } else { "" };
        match number(at + 2) {
            0x6000 => write!(said, "{dot}{kind}p"),
            tag if tag >> 12 == 6 => write!(said, "{dot}{kind}p{}", tag & 0xfff),
            tag => write!(said, "{dot}{kind}{tag}"),
        }
        .expect("a string");
        at += 4;
    }
    if said.is_empty() { "u".to_owned() } else { said }
}

/// All that comes out for all that goes in: `in>out`, nothing for what is dropped.
fn outcome(sender: &str, receiver: &str, others: &str) -> String {
    let mut bridge = switch(Limits::default(), &[rule(sender), rule(receiver), rule(others)]);
    let mut said = Vec::new();
    for (name, tagged) in FRAMES {
        let head = frame(BROADCAST, station(1), tagged);
        let vlan = match bridge.decide(PortId(0), &head, 0) {
            Verdict::Flood { vlan } => vlan,
            Verdict::To { .. } => panic!("a broadcast goes to all"),
            Verdict::Drop(reason) => {
                assert_eq!(reason, DropReason::Vlan);
                continue;
            }
        };
        if let Some(bytes) = left(bridge.egress(PortId(1), vlan), &head) {
            said.push(format!("{name}>{}", tags(&bytes)));
        }
    }
    said.join(" ")
}

#[test]
fn every_rule_to_every_rule() {
    let table = include_str!("tags.txt");
    let mut found = String::new();
    for sender in RULES {
        for receiver in RULES {
            let said = outcome(sender, receiver, "access 10");
            writeln!(found, "{sender} | {receiver} | {said}").expect("a string");
        }
    }
    let found: Vec<String> = found.lines().map(|line| line.trim_end().to_owned()).collect();
    let table: Vec<&str> = table.lines().map(str::trim_end).collect();
    for (found, expected) in found.iter().zip(&table) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), table.len());
}

#[test]
fn without_any_rule_tags_are_bytes_like_others() {
    let expected: Vec<String> = FRAMES.iter().map(|(name, _)| format!("{name}>{name}")).collect();
    assert_eq!(outcome("none", "none", "none"), expected.join(" "));
    // One station in several VLANs is one station.
    let mut bridge = switch(Limits::default(), &[Vlan::None, Vlan::None]);
    for (_, tagged) in FRAMES {
        bridge.decide(PortId(0), &frame(BROADCAST, station(1), tagged), 0);
    }
    assert_eq!(bridge.learned(PortId(0)), 1);
    let back = frame(station(1), station(2), &[(0x8100, 99)]);
    assert!(matches!(bridge.decide(PortId(1), &back, 0), Verdict::To { port: PortId(0), .. }));
}

#[test]
fn rules_hold_while_one_port_has_one() {
    let mut bridge = switch(Limits::default(), &[Vlan::None, Vlan::None, Vlan::Access(5)]);
    let tagged = frame(BROADCAST, station(1), &[(0x8100, 10)]);
    assert_eq!(bridge.decide(PortId(0), &tagged, 0), Verdict::Drop(DropReason::Vlan));
    bridge.set_port(PortId(2), Rules::default()).expect("a port");
    assert!(matches!(bridge.decide(PortId(0), &tagged, 0), Verdict::Flood { .. }));
    let rules = Rules { vlan: Vlan::Access(5), ..Rules::default() };
    bridge.set_port(PortId(1), rules).expect("a port");
    assert_eq!(bridge.decide(PortId(0), &tagged, 0), Verdict::Drop(DropReason::Vlan));
    bridge.remove_port(PortId(1));
    assert!(matches!(bridge.decide(PortId(0), &tagged, 0), Verdict::Flood { .. }));
}

#[test]
fn a_station_is_another_one_in_another_vlan() {
    let trunk = rule("trunk 10,20");
    let mut bridge = switch(Limits::default(), &[trunk, Vlan::Access(10), Vlan::Access(20)]);
    // The same address behind two ports, once in each VLAN.
    bridge.decide(PortId(1), &frame(BROADCAST, station(1), &[]), 0);
    bridge.decide(PortId(2), &frame(BROADCAST, station(1), &[]), 0);
    for (vlan, port) in [(10, 1), (20, 2)] {
        let head = frame(station(1), station(9), &[(0x8100, vlan)]);
        let Verdict::To { port: found, vlan: id } = bridge.decide(PortId(0), &head, 0) else {
            panic!("the station is known");
        };
        assert_eq!((found, id.number()), (PortId(port), vlan));
        let bytes = left(bridge.egress(found, id), &head).expect("its VLAN");
        assert_eq!(tags(&bytes), "u");
    }
    let mut known: Vec<_> =
        bridge.macs(0).map(|mac| (mac.address[5], mac.vlan, mac.port.0)).collect();
    known.sort_unstable();
    assert_eq!(known, [(1, 10, 1), (1, 20, 2), (9, 10, 0), (9, 20, 0)]);
}

#[test]
fn frames_that_end_in_their_tag_are_runts() {
    let mut bridge = switch(Limits::default(), &[rule("trunk 10,20"), Vlan::Access(10)]);
    let head = frame(BROADCAST, station(1), &[(0x8100, 10)]);
    for len in 14..18 {
        let verdict = bridge.decide(PortId(0), &head[..len], 0);
        assert_eq!(verdict, Verdict::Drop(DropReason::Runt), "{len} bytes");
    }
    assert!(matches!(bridge.decide(PortId(0), &head[..18], 0), Verdict::Flood { .. }));
}

#[test]
fn sets_of_vlans() {
    let some = Vlans::new(&[4094, 1, 64, 63]).expect("VLANs");
    assert_eq!(some.iter().collect::<Vec<_>>(), [1, 63, 64, 4094]);
    assert_eq!(format!("{some:?}"), "{1, 63, 64, 4094}");
    assert_eq!(Vlans::all().iter().count(), 4094);
    assert!(!Vlans::all().contains(0) && !Vlans::all().contains(4095) && !some.contains(u16::MAX));
    for vlan in [0, 4095, 9999] {
        assert_eq!(Vlans::new(&[5, vlan]), Err(BadPort::Vlan(vlan)));
    }
}
