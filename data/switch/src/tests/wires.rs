//! Wires, and the list of reasons.

use std::collections::HashSet;

use super::frames::{BROADCAST, frame, station};
use crate::{BadPort, Bridge, DropReason, Egress, PortId, Rules, Spoof, Verdict, Vlan, VlanId};

/// Nothing but the link counts on a wire.
const UP: Rules =
    Rules { vlan: Vlan::None, macs_max: 0, mac: None, spoof: Spoof::Deny, is_up: true };

#[test]
fn a_wire_gives_all_to_the_other_end() {
    let (one, other) = (PortId(700), PortId(9));
    let mut wire = Bridge::wire();
    let head = frame(station(1), station(2), &[]);
    assert_eq!(wire.decide(one, &head, 0), Verdict::Drop(DropReason::NoPort));
    assert_eq!(wire.set_port(one, UP), Ok(()));
    assert_eq!(wire.decide(one, &head, 0), Verdict::Drop(DropReason::NoPort));
    assert_eq!(wire.set_port(other, UP), Ok(()));
    assert_eq!(wire.set_port(PortId(1), UP), Err(BadPort::Full));
    assert_eq!(wire.ports().collect::<Vec<_>>(), [other, one]);
    let odd = [
        frame(station(1), station(2), &[]),
        frame(BROADCAST, BROADCAST, &[]),
        frame([0; 6], [0; 6], &[(0x8100, 5)]),
        frame([1, 0x80, 0xc2, 0, 0, 0], station(1), &[(0x88a8, 0xfff)]),
    ];
    for head in odd {
        for (from, to) in [(one, other), (other, one)] {
            let verdict = wire.decide(from, &head, 0);
            assert_eq!(verdict, Verdict::To { port: to, vlan: VlanId::NONE });
            assert_eq!(wire.egress(to, VlanId::NONE), Egress::Keep);
        }
    }
    assert_eq!(wire.learn(one, &head, 0), Ok(()));
    assert_eq!(wire.decide(one, &head[..13], 0), Verdict::Drop(DropReason::Runt));
    assert_eq!(wire.decide(PortId(1), &head, 0), Verdict::Drop(DropReason::NoPort));
    assert!(wire.is_wire() && wire.macs(0).next().is_none() && wire.learned(one) == 0);
}

#[test]
fn a_wire_with_an_end_down_drops_both_ways() {
    let mut wire = Bridge::wire();
    let head = frame(station(1), station(2), &[]);
    wire.set_port(PortId(0), UP).expect("room");
    wire.set_port(PortId(1), Rules { is_up: false, ..UP }).expect("room");
    for from in [0, 1] {
        assert_eq!(wire.decide(PortId(from), &head, 0), Verdict::Drop(DropReason::CarrierDown));
    }
    assert_eq!(wire.egress(PortId(1), VlanId::NONE), Egress::Refuse(DropReason::CarrierDown));
    wire.set_port(PortId(1), UP).expect("a change");
    assert!(matches!(wire.decide(PortId(0), &head, 0), Verdict::To { port: PortId(1), .. }));
    wire.remove_port(PortId(1));
    wire.remove_port(PortId(1));
    assert_eq!(wire.decide(PortId(0), &head, 0), Verdict::Drop(DropReason::NoPort));
    assert_eq!(wire.egress(PortId(1), VlanId::NONE), Egress::Refuse(DropReason::NoPort));
    wire.set_port(PortId(2), UP).expect("room again");
    assert!(matches!(wire.decide(PortId(0), &head, 0), Verdict::To { port: PortId(2), .. }));
}

#[test]
fn each_reason_has_its_number_name_and_sentence() {
    let mut said = HashSet::new();
    for (number, reason) in DropReason::ALL.into_iter().enumerate() {
        assert_eq!(reason.index(), number);
        assert!(said.insert(reason.name()) && said.insert(reason.sentence()));
        let is_plain = reason.name().bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase());
        assert!(is_plain, "{}", reason.name());
    }
    assert_eq!(DropReason::COUNT, 20);
}

#[test]
fn verdicts_are_small() {
    assert!(size_of::<Verdict>() <= 8 && size_of::<Egress>() <= 4);
}
