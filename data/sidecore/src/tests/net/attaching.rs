//! Queues, ports and bridges that come and go.

use std::sync::Arc;

use backend::net::NullMode;
use switch::{DropReason, PortId};
use virtqueue::Format;

use super::bed::*;
use crate::{BridgeId, Command, Event, PortSpec, Refusal, RoleSpec, Served};

#[test]
fn each_queue_can_go_and_come_back_and_goes_on_where_it_was() {
    for format in [Format::Split, Format::Packed] {
        let mut lan = Lan::wire();
        let (mut a, mut b) = (Nic::new(ring(format, 64), USUAL), Nic::new(ring(format, 64), USUAL));
        let (from, to) = (lan.plug(&a), lan.plug(&b));
        b.post(30, 500);
        for round in 0..20 {
            let sent = frame(mac(2), mac(1), 60 + round);
            a.send(&sent);
            lan.passes(60);
            assert_eq!((a.sent(), b.take_frames()), (1, vec![sent]), "{format:?} {round}");
            let (port, nic, is_receive) =
                if round % 2 == 0 { (to, &b, true) } else { (from, &a, false) };
            let served = lan.detach(port, is_receive);
            assert_eq!(served.queue().in_flight(), 0);
            lan.attach_one(nic, port, is_receive, Some(served.queue().base()));
        }
    }
}

#[test]
fn while_its_receiver_is_away_a_frame_is_dropped() {
    let mut lan = Lan::wire();
    let (mut a, mut b) = (Nic::usual(), Nic::usual());
    let to = {
        lan.plug(&a);
        lan.plug(&b)
    };
    b.post(5, 2048);
    let served = lan.detach(to, true);
    a.send(&frame(mac(2), mac(1), 60));
    lan.passes(1);
    assert_eq!((a.sent(), lan.only_dropped(to, DropReason::NoBuffer)), (1, 1));
    lan.attach_one(&b, to, true, Some(served.queue().base()));
    a.send(&frame(mac(2), mac(1), 60));
    lan.passes(1);
    assert_eq!((a.sent(), b.take().len()), (1, 1));
}

#[test]
fn a_queue_for_no_port_is_given_back() {
    let mut lan = Lan::switch();
    let nic = Nic::usual();
    for is_receive in [true, false] {
        lan.core.send(Command::Attach(Served::new(nic.spec(5, is_receive, None))));
        lan.core.pass();
        let events = lan.core.events();
        assert!(
            matches!(&events[..], [Event::Refused(served, Refusal::NoPort)]
                if served.key() == key(5, is_receive)),
            "{events:?}"
        );
    }
    // Nor is one whose port is at home elsewhere.
    let elsewhere = PortSpec {
        rules: Default::default(),
        home: 3,
        mtu: 1500,
        counters: Arc::default(),
        lanes: None,
    };
    lan.core.send(Command::SetPort(BRIDGE, PortId(5), Some(Box::new(elsewhere))));
    lan.core.send(Command::Attach(Served::new(nic.spec(5, true, None))));
    lan.core.pass();
    assert!(matches!(lan.core.events()[..], [Event::Refused(_, Refusal::NoPort)]));
}

#[test]
fn ports_and_bridges_go_under_their_queues_and_come_again() {
    let mut lan = Lan::switch();
    let (mut a, mut b) = (Nic::usual(), Nic::usual());
    let from = lan.plug(&a);
    let to = lan.plug(&b);
    b.post(20, 2048);
    lan.core.send(Command::SetPort(BRIDGE, PortId(to), None));
    a.send(&frame(mac(2), mac(1), 60));
    lan.passes(1);
    assert_eq!((a.sent(), b.take().len()), (1, 0));
    // Made again, it has its queues again.
    lan.set(to);
    a.send(&frame(mac(2), mac(1), 60));
    lan.passes(1);
    assert_eq!((a.sent(), b.take().len()), (1, 1));
    lan.core.send(Command::SetPort(BRIDGE, PortId(from), None));
    a.send(&frame(mac(2), mac(1), 60));
    lan.passes(1);
    assert_eq!((a.sent(), b.take().len()), (1, 0));
    lan.core.send(Command::SetBridge(BRIDGE, None));
    a.send(&frame(mac(2), mac(1), 60));
    lan.passes(1);
    assert_eq!(a.sent(), 0, "without its bridge nothing is taken");
    lan.detach(from, false);
    lan.detach(to, true);
}

#[test]
fn a_host_port_comes_back_with_what_it_was_made_of() {
    let mut lan = Lan::wire();
    let mut nic = Nic::usual();
    lan.plug(&nic);
    let host = lan.plug_host(null(NullMode::Drop));
    lan.core.send(Command::DetachHost(host_key(host)));
    lan.core.pass();
    let mut events = lan.core.events();
    let Some(Event::HostDetached(served)) = events.pop() else { panic!("{events:?}") };
    assert_eq!(served.key(), host_key(host));
    nic.send(&frame(mac(2), mac(1), 60));
    lan.passes(1);
    assert_eq!((nic.sent(), lan.only_dropped(host, DropReason::NoBuffer)), (1, 1));
    lan.attach_host(served.into_spec().port, host);
    nic.send(&frame(mac(2), mac(1), 60));
    lan.passes(1);
    assert_eq!((nic.sent(), lan.counters(host).delivered_frames), (1, 1));
    // One without a port is given back.
    lan.core.send(Command::DetachHost(host_key(host)));
    lan.core.pass();
    lan.core.events();
    lan.core.send(Command::SetPort(BRIDGE, PortId(host), None));
    lan.attach_host(null(NullMode::Drop), host);
    assert!(matches!(lan.core.events()[..], [Event::HostRefused(_, Refusal::NoPort)]));
}

#[test]
fn a_sidecore_that_stops_gives_everything_back() {
    let mut lan = Lan::wire();
    let mut nic = Nic::usual();
    lan.plug(&nic);
    lan.plug_host(null(NullMode::Generate { size: 60, rate: 0, destination: mac(1) }));
    nic.post(100, 100);
    (0..100).for_each(|_| nic.send(&frame(mac(2), mac(1), 60)));
    lan.core.send(Command::Stop);
    lan.passes(2);
    assert!(lan.core.sidecore.has_ended());
    let (mut queues, mut hosts) = (0, 0);
    for event in lan.core.events() {
        match event {
            Event::Detached(_) => queues += 1,
            Event::HostDetached(_) => hosts += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((queues, hosts), (2, 1));
}

#[test]
fn a_bridge_beyond_the_table_does_nothing() {
    let mut lan = Lan::switch();
    lan.core.send(Command::SetBridge(BridgeId(u16::MAX), Some(crate::BridgeKind::Wire)));
    lan.core.send(Command::SetPort(BridgeId(u16::MAX), PortId(0), None));
    lan.core.send(Command::Announce(BridgeId(u16::MAX), PortId(0), mac(1)));
    lan.core.send(Command::Announce(BRIDGE, PortId(77), mac(1)));
    assert_eq!(lan.core.pass().commands, 4);
}

#[test]
fn an_answer_goes_to_the_pair_that_its_flow_was_sent_on() {
    let mut lan = Lan::wire();
    let mut pairs = [Nic::usual(), Nic::usual(), Nic::usual()];
    let mut peer = Nic::usual();
    let port = lan.port();
    for (pair, nic) in (0..).zip(&mut pairs) {
        nic.post(100, 2048);
        for is_receive in [true, false] {
            let mut spec = nic.spec(port, is_receive, None);
            spec.key.queue = 2 * pair + u16::from(!is_receive);
            match &mut spec.role {
                RoleSpec::Receive(nic) | RoleSpec::Transmit(nic) => nic.pair = pair,
                RoleSpec::Disk { .. } => panic!("a disk"),
            }
            lan.core.send(Command::Attach(Served::new(spec)));
            lan.core.pass();
        }
    }
    lan.plug(&peer);
    peer.post(200, 2048);
    // A flow is two stations here.
    for number in 0..60 {
        let pair = usize::from(number % 3);
        pairs[pair].send(&frame(mac(200), mac(number), 60));
        lan.passes(60);
        assert_eq!((pairs[pair].sent(), peer.take().len()), (1, 1));
        peer.send(&frame(mac(number), mac(200), 60));
        lan.passes(60);
        let got: Vec<_> = pairs.iter_mut().map(|nic| nic.take().len()).collect();
        let mut expected = [0; 3];
        expected[pair] = 1;
        assert_eq!((peer.sent(), got.as_slice()), (1, &expected[..]), "{number}");
    }
    // Flows that were never sent are spread.
    for number in 100..160 {
        peer.send(&frame(mac(number), mac(201), 60));
        lan.passes(60);
    }
    let got: Vec<_> = pairs.iter_mut().map(|nic| nic.take().len()).collect();
    assert_eq!(got.iter().sum::<usize>(), 60);
    assert!(got.iter().all(|count| *count >= 5), "{got:?}");
}
