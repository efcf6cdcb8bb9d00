//! Frames through a switch: learned, flooded, kept apart by VLANs; nobody waits for anybody.

use frame::tag::{self, Tag};
use switch::{DropReason, PortId, Rules, Vlan, Vlans};
use virtqueue::Format;

use super::bed::*;
use crate::{Command, Event, MacTable};

/// Guests that each have said once where they are, with buffers.
fn guests(lan: &mut Lan, count: u8) -> Vec<Nic> {
    let mut nics: Vec<Nic> = (0..count).map(|_| Nic::usual()).collect();
    for nic in &mut nics {
        lan.plug(nic);
        nic.post(100, 2048);
    }
    for (number, nic) in (0..).zip(&mut nics) {
        nic.send(&frame(ALL, mac(number), 60));
    }
    lan.passes(2);
    nics.iter_mut().for_each(|nic| {
        nic.take();
        nic.sent();
    });
    nics
}

#[test]
fn the_unknown_is_flooded_and_the_known_is_not() {
    let mut lan = Lan::switch();
    let mut nics: Vec<Nic> = (0..4).map(|_| Nic::usual()).collect();
    for nic in &mut nics {
        lan.plug(nic);
        nic.post(10, 2048);
    }
    let first = frame(mac(3), mac(0), 200);
    nics[0].send(&first);
    lan.passes(1);
    let got: Vec<_> = nics.iter_mut().map(|nic| nic.take_frames().len()).collect();
    assert_eq!(got, [0, 1, 1, 1], "to all but its sender");
    let answer = frame(mac(0), mac(3), 201);
    nics[3].send(&answer);
    lan.passes(1);
    nics[0].send(&frame(mac(3), mac(0), 202));
    lan.passes(1);
    let got: Vec<_> = nics.iter_mut().map(|nic| nic.take_frames().len()).collect();
    assert_eq!(got, [1, 0, 0, 1]);
    assert_eq!(lan.counters(3).taken_frames, 1);
    let counters = lan.counters(1);
    assert_eq!((counters.delivered_frames, counters.delivered_multicast), (1, 0));
    nics[0].send(&frame(ALL, mac(0), 60));
    lan.passes(1);
    assert_eq!(lan.counters(1).delivered_multicast, 1);
    assert_eq!(lan.counters(0).taken_multicast, 1);
}

#[test]
fn a_sender_waits_for_nobody() {
    for format in [Format::Split, Format::Packed] {
        let mut lan = Lan::switch();
        let (mut a, mut b) = (Nic::new(ring(format, 64), USUAL), Nic::new(ring(format, 64), USUAL));
        let to = {
            lan.plug(&a);
            lan.plug(&b)
        };
        b.send(&frame(ALL, mac(2), 60));
        lan.passes(1);
        b.post(2, 2048);
        (0..5).for_each(|_| a.send(&frame(mac(2), mac(1), 1000)));
        lan.passes(1);
        assert_eq!((a.sent(), b.take().len()), (5, 2));
        assert_eq!(lan.only_dropped(to, DropReason::NoBuffer), 3);
        // One that was never there at all, likewise.
        lan.detach(to, true);
        a.send(&frame(mac(2), mac(1), 1000));
        lan.passes(1);
        assert_eq!((a.sent(), lan.only_dropped(to, DropReason::NoBuffer)), (1, 4));
    }
}

#[test]
fn vlans_are_apart_and_tags_come_and_go() {
    let rules = |vlan| Rules { vlan, ..Rules::default() };
    let trunk = Vlan::Trunk { native: Some(30), allowed: Vlans::new(&[10, 20]).unwrap() };
    let mut lan = Lan::switch();
    let mut nics: Vec<Nic> = (0..4).map(|_| Nic::usual()).collect();
    for (nic, vlan) in
        nics.iter_mut().zip([Vlan::Access(10), Vlan::Access(10), Vlan::Access(20), trunk])
    {
        lan.plug_with(nic, rules(vlan));
        nic.post(10, 2048);
    }
    // From an access port: untagged to its like, tagged to the trunk; long and short frames.
    for len in [60, 125, 128, 129, 1400] {
        let plain = frame(ALL, mac(0), len);
        nics[0].send(&plain);
        lan.passes(1);
        let mut tagged = plain.clone();
        tagged.resize(len + 4, 0);
        tag::push(&mut tagged, len, Tag(10)).unwrap();
        let got: Vec<_> = nics.iter_mut().map(Nic::take_frames).collect();
        assert_eq!(got, [vec![], vec![plain], vec![], vec![tagged]], "{len}");
    }
    // From the trunk: each to its VLAN, without the tag; the native one to nobody else.
    for (vlan, expected) in [(Some(10), [1, 1, 0, 0]), (Some(20), [0, 0, 1, 0]), (None, [0; 4])] {
        let plain = frame(ALL, mac(3), 100);
        let mut sent = plain.clone();
        if let Some(vlan) = vlan {
            sent.resize(104, 0);
            tag::push(&mut sent, 100, Tag(vlan)).unwrap();
        }
        nics[3].send(&sent);
        lan.passes(1);
        let got: Vec<_> = nics.iter_mut().map(Nic::take_frames).collect();
        assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), expected);
        assert!(got.iter().flatten().all(|frame| *frame == plain));
    }
    let mut hop = frame(ALL, mac(0), 100);
    hop.resize(104, 0);
    tag::push(&mut hop, 100, Tag(20)).unwrap();
    nics[0].send(&hop);
    lan.passes(1);
    assert!(nics.iter_mut().all(|nic| nic.take().is_empty()));
    assert_eq!(lan.only_dropped(0, DropReason::Vlan), 1);
}

#[test]
fn a_port_gets_no_packet_longer_than_its_mtu() {
    let mut lan = Lan::switch();
    let mut nics = guests(&mut lan, 2);
    lan.mtus[1] = 1500;
    lan.set(1);
    for (len, comes) in [(1514, true), (1515, false), (1514, true)] {
        nics[0].send(&frame(mac(1), mac(0), len));
        lan.passes(1);
        assert_eq!(nics[1].take().len(), usize::from(comes), "{len}");
    }
    assert_eq!(lan.only_dropped(1, DropReason::OverMtu), 1);
    // A tag is not part of the packet.
    let mut tagged = frame(mac(1), mac(0), 1514);
    tagged.resize(1518, 0);
    tag::push(&mut tagged, 1514, Tag(7)).unwrap();
    nics[0].send(&tagged);
    lan.passes(1);
    assert_eq!(nics[1].take_frames(), [tagged]);
}

#[test]
fn a_switch_drops_what_a_link_that_is_down_sends_and_gets() {
    let mut lan = Lan::switch();
    let mut nics = guests(&mut lan, 3);
    lan.rules[1].is_up = false;
    lan.set(1);
    nics[1].send(&frame(mac(0), mac(1), 60));
    nics[0].send(&frame(ALL, mac(0), 60));
    lan.passes(1);
    let got: Vec<_> = nics.iter_mut().map(|nic| nic.take().len()).collect();
    assert_eq!(got, [0, 0, 1]);
    assert_eq!(lan.only_dropped(1, DropReason::CarrierDown), 1);
}

#[test]
fn an_announcement_moves_a_station_and_reaches_everybody() {
    let mut lan = Lan::switch();
    let mut nics = guests(&mut lan, 3);
    // Guest 1 has moved to port 2.
    lan.core.send(Command::Announce(BRIDGE, PortId(2), mac(1)));
    lan.passes(1);
    let got: Vec<_> = nics.iter_mut().map(Nic::take_frames).collect();
    let rarp = frame::rarp(mac(1)).to_vec();
    assert_eq!(got, [vec![rarp.clone()], vec![rarp], vec![]]);
    nics[0].send(&frame(mac(1), mac(0), 60));
    lan.passes(1);
    let got: Vec<_> = nics.iter_mut().map(|nic| nic.take().len()).collect();
    assert_eq!(got, [0, 0, 1]);
}

#[test]
fn the_addresses_are_shown_as_far_as_there_is_room() {
    let mut lan = Lan::switch();
    guests(&mut lan, 3);
    for (room, expected) in [(10, 3), (2, 2)] {
        let mut table = MacTable::new(BRIDGE, 7, room);
        // A piece for each command, however many places the table has: 8,192 addresses are 4,096 buckets.
        let mut pieces = 0;
        while !table.is_whole() {
            lan.core.send(Command::ShowMacs(table));
            lan.passes(1);
            let mut events = lan.core.events();
            let Some(Event::Macs(more)) = events.pop() else { panic!("{events:?}") };
            (table, pieces) = (more, pieces + 1);
        }
        assert_eq!((table.entries().len(), table.token), (expected, 7));
        assert!(if room == 10 { pieces == 16 } else { pieces <= 16 }, "{pieces}");
        for entry in table.entries() {
            assert_eq!((entry.address, entry.vlan), (mac(entry.port.0 as u8), 0));
        }
    }
    lan.core.send(Command::ShowMacs(MacTable::new(crate::BridgeId(9), 8, 4)));
    lan.passes(1);
    assert!(
        matches!(&lan.core.events()[..], [Event::Macs(table)] if table.entries().is_empty() && table.is_whole())
    );
}

#[test]
fn a_station_that_echoes_answers_on_a_switch_too() {
    let mut lan = Lan::switch();
    let mut nics = guests(&mut lan, 2);
    let echo = lan.plug_host(null(backend::net::NullMode::Echo));
    lan.core.send(Command::Announce(BRIDGE, PortId(echo), mac(9)));
    lan.passes(1);
    nics.iter_mut().for_each(|nic| drop(nic.take()));
    nics[0].send(&frame(mac(9), mac(0), 300));
    // What is for all is not answered.
    nics[0].send(&frame(ALL, mac(0), 300));
    lan.passes(2);
    let got = nics[0].take_frames();
    assert_eq!(got.len(), 1);
    assert_eq!((&got[0][..6], &got[0][6..12]), (&mac(0)[..], &mac(9)[..]));
    assert_eq!(nics[1].take().len(), 1);
}
