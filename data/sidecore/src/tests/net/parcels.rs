//! Two sidecores on one thread, whose passes take turns in an order that a seed gives: frames between
//! ports that are at home on different ones.

use std::sync::Arc;

use frame::Header;
use schedule::{Gate, Limited, Meters, Policy, Rate};
use switch::{DropReason, Limits, PortId, Rules};
use virtqueue::Format;

use super::super::bed::{Core, count};
use super::bed::{ALL, BRIDGE, Nic, USUAL, frame, key, mac, ring};
use crate::{BridgeKind, Command, Event, PortCounters, PortSpec, Served, Service, build_road};

/// Two sidecores and a switch with ports on both.
struct Two {
    cores: [Core; 2],
    counters: Vec<Arc<PortCounters>>,
    homes: Vec<usize>,
    random: u64,
}

impl Two {
    fn new(seed: u64) -> Two {
        let mut cores = [Core::numbered(0, 64), Core::numbered(1, 64)];
        let kind = BridgeKind::Switch { limits: Limits::default(), seed: 1 };
        for core in &mut cores {
            core.send(Command::SetBridge(BRIDGE, Some(kind)));
        }
        for (from, to) in [(0, 1), (1, 0)] {
            let (out, back) = build_road(&cores[from].handle, &cores[to].handle, to as u16);
            cores[from].send(out);
            cores[to].send(back);
        }
        cores.iter_mut().for_each(|core| assert!(core.passes(1) == 0));
        Two { cores, counters: Vec::new(), homes: Vec::new(), random: seed | 1 }
    }

    /// A NIC on sidecore `home`.
    fn plug(&mut self, nic: &Nic, home: usize) -> u16 {
        let port = self.counters.len() as u16;
        let counters = Arc::new(PortCounters::default());
        for core in &mut self.cores {
            let (rules, counters) = (Rules::default(), Arc::clone(&counters));
            let spec = PortSpec { rules, home: home as u16, mtu: 100_000, counters, lanes: None };
            core.send(Command::SetPort(BRIDGE, PortId(port), Some(Box::new(spec))));
            core.pass();
        }
        self.counters.push(counters);
        self.homes.push(home);
        for is_receive in [true, false] {
            self.cores[home].send(Command::Attach(Served::new(nic.spec(port, is_receive, None))));
            self.cores[home].pass();
        }
        nic.calls();
        port
    }

    /// So many passes, each of whichever sidecore.
    fn passes(&mut self, passes: u32) {
        for _ in 0..passes {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            self.cores[(self.random >> 33) as usize % 2].pass();
        }
    }

    fn delivered(&self, port: u16) -> u64 {
        self.counters[usize::from(port)].snapshot().delivered_frames
    }
}

/// Frames from `from` to `to` until both know where the other is.
fn meet(two: &mut Two, one: &mut Nic, other: &mut Nic) {
    one.send(&frame(mac(2), mac(1), 60));
    two.passes(40);
    other.send(&frame(mac(1), mac(2), 60));
    two.passes(40);
    assert_eq!((one.take_frames().len(), other.take_frames().len()), (1, 1));
    assert_eq!((one.sent(), other.sent()), (1, 1));
}

#[test]
fn frames_of_every_length_arrive_whole_once_and_in_order() {
    for format in [Format::Split, Format::Packed] {
        for seed in 1..20 {
            let mut two = Two::new(seed);
            let mut one = Nic::new(ring(format, 256), USUAL);
            let mut other = Nic::new(ring(format, 256), USUAL);
            two.plug(&one, 0);
            two.plug(&other, 1);
            one.post(10, 4096);
            other.post(200, 16_384);
            meet(&mut two, &mut one, &mut other);
            let lens = [14, 60, 128, 129, 1514, 1664, 1665, 9000, 40_000, 65_549];
            let mut expected = Vec::new();
            for round in 0..4 {
                for len in lens {
                    let mut bytes = frame(mac(2), mac(1), len);
                    // A number, so that none is taken for another.
                    bytes.extend([round, len as u8]);
                    one.send_pieces(Header::default(), &bytes, &[50, 1000, usize::MAX]);
                    expected.push(bytes);
                }
                two.passes(30);
            }
            two.passes(400);
            assert!(other.take_frames() == expected, "{format:?}, seed {seed}");
            assert_eq!(one.sent(), expected.len(), "{format:?}, seed {seed}");
        }
    }
}

#[test]
fn a_flood_reaches_every_port_once_wherever_it_is() {
    let mut two = Two::new(7);
    let mut nics: Vec<Nic> = (0..8).map(|_| Nic::usual()).collect();
    for (at, nic) in nics.iter_mut().enumerate() {
        nic.post(64, 4096);
        two.plug(nic, at % 2);
    }
    let long = frame(ALL, mac(1), 9000);
    for _ in 0..10 {
        nics[0].send(&frame(ALL, mac(1), 60));
        nics[0].send(&long);
        two.passes(100);
    }
    two.passes(1000);
    assert!(nics[0].take_frames().is_empty());
    assert_eq!(nics[0].sent(), 20);
    for nic in &mut nics[1..] {
        let frames = nic.take_frames();
        assert_eq!(frames.len(), 20);
        assert!(frames.iter().skip(1).step_by(2).all(|frame| *frame == long));
    }
}

#[test]
fn more_than_all_parcels_at_once_wait_and_none_is_lost() {
    let mut two = Two::new(3);
    let (mut one, mut other) = (Nic::usual(), Nic::usual());
    two.plug(&one, 0);
    let to = two.plug(&other, 1);
    one.post(4, 4096);
    other.post(256, 4096);
    meet(&mut two, &mut one, &mut other);
    for _ in 0..200 {
        one.send(&frame(mac(2), mac(1), 2000));
    }
    // The other end stands still: a queue lends 16, and its next frames stay in the ring.
    two.cores[0].passes(200);
    assert_eq!((one.sent(), two.delivered(to)), (0, 1));
    two.passes(4000);
    assert_eq!((one.sent(), other.take_frames().len()), (200, 200));
}

#[test]
fn a_queue_leaves_when_its_parcels_are_back() {
    let mut two = Two::new(5);
    let (mut one, mut other) = (Nic::usual(), Nic::usual());
    let from = two.plug(&one, 0);
    two.plug(&other, 1);
    one.post(4, 4096);
    other.post(64, 4096);
    meet(&mut two, &mut one, &mut other);
    for _ in 0..5 {
        one.send(&frame(mac(2), mac(1), 3000));
    }
    two.cores[0].pass();
    two.cores[0].send(Command::Detach(key(from, false)));
    two.cores[0].passes(50);
    assert!(two.cores[0].events().is_empty(), "its memory is lent");
    assert!(!two.cores[0].rest());
    two.cores[1].passes(5);
    two.cores[0].pass();
    let events = two.cores[0].events();
    assert!(matches!(&events[..], [Event::Detached(served)] if served.key() == key(from, false)));
    assert_eq!((one.sent(), other.take_frames().len()), (5, 5));
}

#[test]
fn who_sleeps_is_rung_for_a_parcel_and_for_its_return() {
    let mut two = Two::new(9);
    let (mut one, mut other) = (Nic::usual(), Nic::usual());
    two.plug(&one, 0);
    two.plug(&other, 1);
    one.post(4, 4096);
    other.post(64, 4096);
    meet(&mut two, &mut one, &mut other);
    two.cores.iter_mut().for_each(Core::idle);
    for (sender, receiver) in [(0, 1), (1, 0)] {
        let (from, nic) = if sender == 0 { (1, &mut one) } else { (2, &mut other) };
        nic.send(&frame(mac(3 - from), mac(from), 3000));
        two.cores.iter().for_each(|core| _ = count(&core.handle.command_fd));
        two.cores[receiver].sidecore.rest.bell().sleep();
        assert!(two.cores[sender].rest(), "its guest's kick ends it");
        two.cores[sender].pass();
        assert_eq!(count(&two.cores[receiver].handle.command_fd), 1, "rung for a parcel");
        assert!(!two.cores[receiver].rest(), "it looks a last time");
        two.cores[sender].sidecore.rest.bell().sleep();
        two.cores[receiver].pass();
        assert_eq!(count(&two.cores[sender].handle.command_fd), 1, "rung for its return");
        assert!(!two.cores[sender].rest());
        two.cores.iter_mut().for_each(Core::idle);
    }
    assert_eq!((one.take_frames().len(), other.take_frames().len()), (1, 1));
    assert_eq!((one.sent(), other.sent()), (1, 1));
}

#[test]
fn parcels_for_a_port_that_went_come_back() {
    let mut two = Two::new(11);
    let (mut one, mut other) = (Nic::usual(), Nic::usual());
    two.plug(&one, 0);
    let to = two.plug(&other, 1);
    one.post(4, 4096);
    other.post(64, 4096);
    meet(&mut two, &mut one, &mut other);
    for _ in 0..5 {
        one.send(&frame(mac(2), mac(1), 3000));
    }
    two.cores[0].pass();
    two.cores[1].send(Command::Detach(key(to, true)));
    two.passes(50);
    assert_eq!(one.sent(), 5);
    let snapshot = two.counters[usize::from(to)].snapshot();
    assert_eq!(snapshot.drops.of(DropReason::NoBuffer), snapshot.drops.total());
    assert_eq!(snapshot.drops.total() + snapshot.delivered_frames, 6);
}

#[test]
fn queues_that_are_never_empty_leave_parcels_to_the_others() {
    let mut two = Two::new(13);
    let mut nics: Vec<Nic> = (0..4).map(|_| Nic::new(ring(Format::Split, 1024), USUAL)).collect();
    for (at, nic) in nics.iter().enumerate() {
        two.plug(nic, usize::from(at == 3));
    }
    nics[3].send(&frame(ALL, mac(4), 60));
    two.passes(20);
    // Two senders keep their rings full; the third has 100 frames.
    for at in 0..3 {
        for _ in 0..[900, 900, 100][at] {
            nics[at].send(&frame(mac(4), mac(1 + at as u8), 60));
        }
    }
    let mut sent = [0; 3];
    for _ in 0..300 {
        for at in 0..3 {
            let more = nics[at].sent();
            sent[at] += more;
            for _ in 0..if at < 2 { more } else { 0 } {
                nics[at].send(&frame(mac(4), mac(1 + at as u8), 60));
            }
        }
        two.cores[0].pass();
        two.cores[1].pass();
    }
    assert_eq!(sent[2], 100, "{sent:?}");
    assert!(sent[0].abs_diff(sent[1]) * 10 < sent[0], "{sent:?}");
}

#[test]
fn a_limit_holds_for_what_another_sidecore_sends_and_its_parcels_go_back() {
    let mut two = Two::new(17);
    let (mut one, mut other) = (Nic::usual(), Nic::usual());
    two.plug(&one, 0);
    let to = two.plug(&other, 1);
    one.post(10, 4096);
    other.post(200, 4096);
    meet(&mut two, &mut one, &mut other);
    two.cores[1].now = two.cores[1].now.after(1_000_000_000);
    let rate = Rate { per_s: 1000, burst_ns: 4_000_000 };
    let (device, group) = (Meters::new(Some(rate), None), None);
    let gate = Gate::new(Limited { device, group }).map(Box::new);
    let service = Service {
        target_ns: None,
        moderate_ns: 0,
        share: schedule::SHARE_USUAL,
        policy: Policy::Adaptive,
        gate,
    };
    two.cores[1].send(Command::SetService(key(to, true), service));
    two.cores[1].pass();
    // Copied ones and lent ones: all come back to their sender.
    for len in [60, 3000].repeat(50) {
        one.send(&frame(mac(2), mac(1), len));
        two.passes(4);
    }
    two.passes(400);
    assert_eq!((one.sent(), other.take().len()), (100, 4));
    let drops = two.counters[usize::from(to)].snapshot().drops;
    assert_eq!((drops.of(DropReason::OverLimit), drops.total()), (96, 96));
}
