//! Who is where: learning, moving, ageing, limits.

use super::frames::{BROADCAST, MS, frame, plain, station, switch, to};
use crate::{
    BadPort, Bridge, DropReason, Egress, Limits, PortId, Rules, Spoof, Verdict, Vlan, VlanId, Vlans,
};

/// From a station, to a station, at a port.
fn send(bridge: &mut Bridge, port: u16, from: u8, target: u8, now_ns: u64) -> Verdict {
    bridge.decide(PortId(port), &frame(station(target), station(from), &[]), now_ns)
}

#[test]
fn unknown_stations_are_flooded_known_ones_are_not() {
    let mut bridge = plain(3);
    assert_eq!(to(send(&mut bridge, 0, 1, 2, 0)), None);
    assert_eq!(to(send(&mut bridge, 1, 2, 1, 0)), Some(0));
    assert_eq!(to(send(&mut bridge, 0, 1, 2, 0)), Some(1));
    assert_eq!(to(send(&mut bridge, 2, 3, 1, 0)), Some(0));
    let to_all = frame(BROADCAST, station(1), &[]);
    assert_eq!(to(bridge.decide(PortId(0), &to_all, 0)), None);
    let to_some = frame([0x33, 0x33, 0, 0, 0, 1], station(1), &[]);
    assert_eq!(to(bridge.decide(PortId(0), &to_some, 0)), None);
    assert_eq!(bridge.ports().collect::<Vec<_>>(), [PortId(0), PortId(1), PortId(2)]);
    let mut macs: Vec<_> =
        bridge.macs(5 * MS).map(|mac| (mac.address, mac.port.0, mac.age_ns)).collect();
    macs.sort_unstable();
    let expected = [(station(1), 0, 5 * MS), (station(2), 1, 5 * MS), (station(3), 2, 5 * MS)];
    assert_eq!(macs, expected);
}

#[test]
fn frames_that_no_switch_forwards() {
    let mut bridge = plain(2);
    let mut dropped = |port: u16, head: &[u8]| match bridge.decide(PortId(port), head, 0) {
        Verdict::Drop(reason) => Some(reason),
        _ => None,
    };
    let good = frame(station(2), station(1), &[]);
    for len in 0..14 {
        assert_eq!(dropped(0, &good[..len]), Some(DropReason::Runt), "{len} bytes");
    }
    assert_eq!(dropped(0, &good[..14]), None);
    assert_eq!(dropped(2, &good), Some(DropReason::NoPort));
    assert_eq!(dropped(u16::MAX, &good), Some(DropReason::NoPort));
    let reasons = [
        (station(2), [0; 6], Some(DropReason::BadSource)),
        (station(2), BROADCAST, Some(DropReason::BadSource)),
        (station(2), [3, 0, 0, 0, 0, 1], Some(DropReason::BadSource)),
        ([1, 0x80, 0xc2, 0, 0, 0], station(1), Some(DropReason::LinkLocal)),
        ([1, 0x80, 0xc2, 0, 0, 0xf], station(1), Some(DropReason::LinkLocal)),
        ([1, 0x80, 0xc2, 0, 0, 0x10], station(1), None),
        ([1, 0x80, 0xc2, 0, 1, 0], station(1), None),
        (station(1), station(1), Some(DropReason::Same)),
        ([0; 6], station(1), None),
    ];
    for (target, source, expected) in reasons {
        assert_eq!(dropped(0, &frame(target, source, &[])), expected, "{target:x?} {source:x?}");
    }
    assert_eq!(bridge.learned(PortId(0)), 1, "nothing is learned from them");
}

#[test]
fn a_station_is_forgotten_when_it_was_silent_for_long() {
    let limits = Limits { ageing_ns: 300 * MS, ..Limits::default() };
    let mut bridge = switch(limits, &[Vlan::None, Vlan::None]);
    send(&mut bridge, 0, 1, 9, 0);
    assert_eq!(to(send(&mut bridge, 1, 2, 1, 300 * MS)), Some(0));
    assert_eq!(to(send(&mut bridge, 1, 2, 1, 301 * MS)), None);
    // A word in between, and it is known for as long again.
    send(&mut bridge, 0, 1, 9, 310 * MS);
    send(&mut bridge, 0, 1, 9, 500 * MS);
    assert_eq!(to(send(&mut bridge, 1, 2, 1, 800 * MS)), Some(0));
    assert_eq!(to(send(&mut bridge, 1, 2, 1, 801 * MS)), None);
    assert_eq!(bridge.macs(801 * MS).count(), 1);
    // A clock that goes back ages nothing.
    send(&mut bridge, 0, 1, 9, 802 * MS);
    assert_eq!(to(send(&mut bridge, 1, 2, 1, 7 * MS)), Some(0));
}

#[test]
fn a_station_that_moves_is_found_where_it_is() {
    let mut bridge = plain(3);
    send(&mut bridge, 0, 1, 9, 0);
    send(&mut bridge, 1, 1, 9, 0);
    assert_eq!(to(send(&mut bridge, 2, 2, 1, 0)), Some(1));
    assert_eq!([0, 1].map(|port| bridge.learned(PortId(port))), [0, 1]);
    assert_eq!(send(&mut bridge, 1, 3, 1, 0), Verdict::Drop(DropReason::Same));
}

#[test]
fn a_port_has_a_limit_of_stations() {
    let limits = Limits { ageing_ns: 100 * MS, ..Limits::default() };
    let mut bridge = switch(limits, &[Vlan::None, Vlan::None]);
    bridge.set_port(PortId(0), Rules { macs_max: 2, ..Rules::default() }).expect("a port");
    send(&mut bridge, 0, 1, 9, 0);
    send(&mut bridge, 0, 2, 9, 50 * MS);
    assert_eq!(send(&mut bridge, 0, 3, 9, 60 * MS), Verdict::Drop(DropReason::MacLimit));
    assert_eq!(to(send(&mut bridge, 0, 2, 9, 60 * MS)), None, "those that are known go on");
    // A station of another port does not come here either.
    send(&mut bridge, 1, 4, 9, 60 * MS);
    assert_eq!(send(&mut bridge, 0, 4, 9, 60 * MS), Verdict::Drop(DropReason::MacLimit));
    assert_eq!(to(send(&mut bridge, 0, 2, 4, 60 * MS)), Some(1), "and stays where it was");
    // When one has aged there is a place. At most eight calls are needed to find it.
    let mut tried = 0;
    while send(&mut bridge, 0, 3, 9, (110 + 30 * tried) * MS)
        != (Verdict::Flood { vlan: VlanId::NONE })
    {
        tried += 1;
        assert!(tried < 8);
    }
    assert_eq!(to(send(&mut bridge, 1, 4, 3, (110 + 30 * tried) * MS)), Some(0));
    bridge.set_port(PortId(0), Rules { macs_max: 0, ..Rules::default() }).expect("a port");
    assert_eq!(send(&mut bridge, 0, 8, 9, 999 * MS), Verdict::Drop(DropReason::MacLimit));
}

#[test]
fn a_full_table_forwards_and_does_not_learn() {
    let limits = Limits { macs_max: 3, ageing_ns: 100 * MS, ..Limits::default() };
    let mut bridge = switch(limits, &[Vlan::None, Vlan::None]);
    for from in 1..=3 {
        send(&mut bridge, 0, from, 9, 0);
    }
    assert_eq!(to(send(&mut bridge, 1, 4, 1, 0)), Some(0), "it is forwarded");
    assert_eq!((bridge.learned(PortId(1)), bridge.unlearned()), (0, 1));
    assert_eq!(to(send(&mut bridge, 0, 1, 4, 0)), None, "and not known");
    // The young ones stay; when they have aged, it is learned.
    assert_eq!(to(send(&mut bridge, 1, 4, 2, 100 * MS)), Some(0));
    send(&mut bridge, 1, 4, 2, 102 * MS);
    assert_eq!(to(send(&mut bridge, 0, 1, 4, 102 * MS)), Some(1));
    assert_eq!(bridge.unlearned(), 2);
}

#[test]
fn a_port_that_goes_takes_its_stations_with_it() {
    type Change = fn(&mut Bridge);
    let access = || Rules { vlan: Vlan::Access(7), ..Rules::default() };
    let changes: [(Change, bool); 5] = [
        (|bridge| bridge.remove_port(PortId(0)), true),
        (
            |b| b.set_port(PortId(0), Rules { is_up: false, ..Rules::default() }).expect("a port"),
            true,
        ),
        (
            |b| {
                b.set_port(PortId(0), Rules { vlan: Vlan::Access(7), ..Rules::default() })
                    .expect("a port")
            },
            true,
        ),
        (
            |b| b.set_port(PortId(0), Rules { macs_max: 1, ..Rules::default() }).expect("a port"),
            false,
        ),
        (|b| b.set_port(PortId(0), Rules::default()).expect("a port"), false),
    ];
    for (change, is_gone) in changes {
        let mut bridge = plain(3);
        for from in 1..=20 {
            send(&mut bridge, 0, from, 99, 0);
        }
        send(&mut bridge, 1, 50, 99, 0);
        change(&mut bridge);
        let expected = if is_gone { (0, None) } else { (20, Some(0)) };
        assert_eq!((bridge.learned(PortId(0)), to(send(&mut bridge, 1, 50, 5, 0))), expected);
        assert_eq!(to(send(&mut bridge, 2, 51, 50, 0)), Some(1), "others stay");
    }
    let mut bridge = plain(2);
    bridge.remove_port(PortId(0));
    bridge.remove_port(PortId(0));
    assert_eq!(send(&mut bridge, 0, 1, 2, 0), Verdict::Drop(DropReason::NoPort));
    assert_eq!(bridge.egress(PortId(0), VlanId::NONE), Egress::Refuse(DropReason::NoPort));
    bridge.set_port(PortId(0), access()).expect("the number is free again");
    assert_eq!(bridge.ports().collect::<Vec<_>>(), [PortId(0), PortId(1)]);
}

#[test]
fn a_link_that_is_down_neither_sends_nor_gets() {
    let mut bridge = plain(2);
    bridge.set_port(PortId(1), Rules { is_up: false, ..Rules::default() }).expect("a port");
    assert_eq!(send(&mut bridge, 1, 1, 2, 0), Verdict::Drop(DropReason::CarrierDown));
    assert_eq!(bridge.egress(PortId(1), VlanId::NONE), Egress::Refuse(DropReason::CarrierDown));
    bridge.set_port(PortId(1), Rules::default()).expect("a port");
    assert_eq!(bridge.egress(PortId(1), VlanId::NONE), Egress::Keep);
}

#[test]
fn ports_have_bounds() {
    let mut bridge = switch(Limits { ports_max: 4, ..Limits::default() }, &[]);
    assert_eq!(bridge.set_port(PortId(4), Rules::default()), Err(BadPort::Full));
    assert_eq!(bridge.set_port(PortId(3), Rules::default()), Ok(()));
    for vlan in [0, 4095, u16::MAX] {
        let rules = Rules { vlan: Vlan::Access(vlan), ..Rules::default() };
        assert_eq!(bridge.set_port(PortId(2), rules), Err(BadPort::Vlan(vlan)));
    }
    assert_eq!(bridge.ports().count(), 1, "what was refused has changed nothing");
    let mut large = switch(Limits { ports_max: u16::MAX, ..Limits::default() }, &[]);
    assert_eq!(large.set_port(PortId(1024), Rules::default()), Err(BadPort::Full));
    assert_eq!(large.set_port(PortId(1023), Rules::default()), Ok(()));
}

/// Two guests that may send from their own address alone, stations 1 and 2, and an uplink.
fn guarded() -> Bridge {
    let mut bridge = plain(3);
    for port in [0, 1] {
        let mac = Some(station(port as u8 + 1));
        let rules = Rules { mac, spoof: Spoof::Deny, ..Rules::default() };
        bridge.set_port(PortId(port), rules).expect("a port");
    }
    bridge
}

#[test]
fn a_guest_cannot_take_the_address_of_another() {
    let mut bridge = guarded();
    let bad = Verdict::Drop(DropReason::BadSource);
    assert_eq!(send(&mut bridge, 0, 2, 9, 0), bad, "another guest's");
    assert_eq!(send(&mut bridge, 0, 3, 9, 0), bad, "nobody's");
    assert_eq!(send(&mut bridge, 2, 1, 9, 0), bad, "an uplink has others, but not a guest's own");
    assert_eq!(to(send(&mut bridge, 2, 3, 2, 0)), Some(1), "known before it has sent");
    assert_eq!(to(send(&mut bridge, 0, 1, 2, u64::MAX)), Some(1), "and for ever");
    assert_eq!(to(send(&mut bridge, 1, 2, 3, u64::MAX)), None, "as others are not");
    let mut macs: Vec<_> =
        bridge.macs(u64::MAX).map(|mac| (mac.address[5], mac.is_pinned)).collect();
    macs.sort_unstable();
    assert_eq!(macs, [(1, true), (2, true)]);
    // A port without an address of its own may send from none.
    bridge.set_port(PortId(2), Rules { spoof: Spoof::Deny, ..Rules::default() }).expect("a port");
    assert_eq!(send(&mut bridge, 2, 3, 9, 0), bad);
}

#[test]
fn an_own_address_is_kept_while_the_link_is_down_and_not_longer_than_the_port() {
    let mut bridge = guarded();
    let own = |number, is_up| Rules { mac: Some(station(number)), is_up, ..Rules::default() };
    bridge.set_port(PortId(0), own(1, false)).expect("a port");
    assert_eq!(send(&mut bridge, 2, 1, 9, 0), Verdict::Drop(DropReason::BadSource));
    let Verdict::To { port, vlan } = send(&mut bridge, 2, 3, 1, 0) else { panic!("it is known") };
    assert_eq!(bridge.egress(port, vlan), Egress::Refuse(DropReason::CarrierDown));
    bridge.set_port(PortId(0), own(7, true)).expect("a port");
    assert_eq!(
        to(send(&mut bridge, 2, 1, 7, 0)),
        Some(0),
        "the old one is free, the new one is not"
    );
    bridge.remove_port(PortId(0));
    assert_eq!(to(send(&mut bridge, 2, 7, 9, 0)), None);
    // Of two with one address, the first has it; when that goes, the other has it before it has sent anything.
    bridge.set_port(PortId(0), own(2, true)).expect("a port");
    assert_eq!(to(send(&mut bridge, 2, 3, 2, 0)), Some(1));
    assert_eq!(send(&mut bridge, 0, 2, 3, 0), Verdict::Drop(DropReason::BadSource));
    bridge.remove_port(PortId(1));
    assert_eq!(to(send(&mut bridge, 2, 3, 2, 0)), Some(0), "and no other port hears it");
    assert_eq!(to(send(&mut bridge, 0, 2, 3, 0)), Some(2));
    assert_eq!(send(&mut bridge, 2, 2, 3, 0), Verdict::Drop(DropReason::BadSource));
    // The same where the first one gets another address.
    bridge.set_port(PortId(1), own(2, true)).expect("a port");
    bridge.set_port(PortId(0), own(7, true)).expect("a port");
    assert_eq!(to(send(&mut bridge, 2, 3, 2, 0)), Some(1));
}

#[test]
fn an_own_address_needs_no_room() {
    let limits = Limits { macs_max: 1, ..Limits::default() };
    let mut bridge = switch(limits, &[Vlan::None]);
    send(&mut bridge, 0, 9, 8, 0);
    for port in 1..=20 {
        let mac = Some(station(100 + port as u8));
        let rules = Rules { mac, macs_max: 0, ..Rules::default() };
        bridge.set_port(PortId(port), rules).expect("a port");
        assert_eq!(to(send(&mut bridge, 0, 9, 100 + port as u8, 0)), Some(port));
        assert_eq!(to(send(&mut bridge, port, 100 + port as u8, 9, 0)), Some(0));
        assert_eq!(send(&mut bridge, port, 7, 9, 0), Verdict::Drop(DropReason::MacLimit));
    }
    // Addresses that no frame can come from are nobody's.
    for mac in [[0; 6], BROADCAST] {
        bridge.set_port(PortId(30), Rules { mac: Some(mac), ..Rules::default() }).expect("a port");
        assert_eq!(bridge.learned(PortId(30)), 0);
    }
}

#[test]
fn a_trunk_has_its_address_in_each_vlan_that_it_speaks_in() {
    let allowed = Vlans::new(&[10, 20]).expect("VLANs");
    let trunk = Vlan::Trunk { native: Some(10), allowed };
    let mut bridge = switch(Limits::default(), &[Vlan::None, Vlan::Access(10), Vlan::Access(20)]);
    let rules = Rules { vlan: trunk, mac: Some(station(1)), ..Rules::default() };
    bridge.set_port(PortId(0), rules).expect("a port");
    let bad = Verdict::Drop(DropReason::BadSource);
    assert_eq!(send(&mut bridge, 1, 1, 9, 0), bad, "the native one is its own at once");
    assert_eq!(to(send(&mut bridge, 2, 1, 9, 0)), None, "others when it has spoken");
    bridge.decide(PortId(0), &frame(BROADCAST, station(1), &[(0x8100, 20)]), 0);
    assert_eq!(send(&mut bridge, 2, 1, 9, 0), bad);
}

#[test]
fn a_replica_learns_what_another_has_decided() {
    let mut bridge = plain(2);
    let head = frame(station(9), station(1), &[]);
    assert_eq!(bridge.learn(PortId(0), &head, 0), Ok(()));
    assert_eq!(to(send(&mut bridge, 1, 2, 1, 0)), Some(0));
    assert_eq!(bridge.learn(PortId(5), &head, 0), Err(DropReason::NoPort));
    assert_eq!(bridge.learn(PortId(0), &head[..9], 0), Err(DropReason::Runt));
}
