//! Frames for everybody: each gets one, a visit is bounded, and others keep their share.

use backend::net::NullMode;
use switch::PortId;
use virtqueue::Format;

use super::bed::*;
use crate::{Command, Event};

fn switch_of(count: usize) -> (Lan, Vec<Nic>) {
    let mut lan = Lan::switch();
    let nics: Vec<Nic> = (0..count).map(|_| Nic::usual()).collect();
    nics.iter().for_each(|nic| {
        lan.plug(nic);
    });
    (lan, nics)
}

#[test]
fn a_flood_larger_than_a_visit_goes_on_at_the_next() {
    for len in [60, 1000, 60_000] {
        let (mut lan, mut nics) = switch_of(64);
        nics.iter_mut().for_each(|nic| nic.post(3, 70_000));
        let sent = [frame(ALL, mac(1), len), frame(ALL, mac(1), len + 1)];
        nics[0].send(&sent[0]);
        nics[0].send(&sent[1]);
        let mut visits = Vec::new();
        for _ in 0..120 {
            match lan.passes(1) {
                0 => {}
                copies => visits.push(copies),
            }
        }
        assert_eq!(visits.iter().sum::<u32>(), 2 * 63);
        assert!(visits.iter().all(|copies| *copies <= 32), "{visits:?}");
        if len == 60_000 {
            assert!(visits.iter().all(|copies| *copies <= 18), "a visit is 1 MiB: {visits:?}");
        }
        assert_eq!(nics[0].sent(), 2);
        for nic in &mut nics[1..] {
            assert!(nic.take_frames() == sent, "each once, in order, whole");
        }
    }
}

#[test]
fn what_the_host_sends_to_all_is_kept_until_all_have_it() {
    // A flood is two visits: its port leaves between two floods, or in the midst of one.
    for passes in [40, 41, 42] {
        let (mut lan, mut nics) = switch_of(50);
        nics.iter_mut().for_each(|nic| nic.post(40, 2048));
        let mode = NullMode::Generate { size: 200, rate: 0, destination: ALL };
        let from = lan.plug_host(null(mode));
        lan.passes(passes);
        lan.core.send(Command::DetachHost(host_key(50)));
        lan.passes(1);
        let number = |frame: &Vec<u8>| u64::from_be_bytes(*frame[14..].first_chunk().unwrap());
        let got: Vec<Vec<u64>> =
            nics.iter_mut().map(|nic| nic.take_frames().iter().map(number).collect()).collect();
        let least = got.iter().map(Vec::len).min().unwrap();
        assert!(least >= 20, "{least} of about 26");
        for numbers in got {
            assert!(numbers.iter().copied().eq(0..least as u64), "{numbers:?}, {passes} passes");
        }
        let counters = lan.counters(from);
        assert_eq!((counters.taken_frames, counters.drops.total()), (least as u64, 0));
    }
}

#[test]
fn whoever_floods_leaves_eight_busy_ports_their_share() {
    let (mut lan, mut nics) = switch_of(64);
    let sink = lan.plug_host(null(NullMode::Drop));
    lan.core.send(Command::Announce(BRIDGE, PortId(sink), mac(99)));
    lan.passes(1);
    let (flooder, others) = nics.split_first_mut().unwrap();
    let (busy, _) = others.split_at_mut(8);
    // Long enough for everybody to have buffers or not: both are floods.
    let passes = 500;
    for pass in 0..passes {
        for (number, nic) in (1..).zip(busy.iter_mut()) {
            nic.sent();
            while nic.transmit.driver.free_descriptors() > 200 {
                nic.send(&frame(mac(99), mac(number), 60));
            }
            if pass % 10 == 0 {
                nic.take();
                nic.post(20, 2048);
            }
        }
        flooder.sent();
        while flooder.transmit.driver.free_descriptors() > 200 {
            flooder.send(&frame(ALL, mac(0), 1400));
        }
        lan.passes(1);
    }
    for port in 1..=8 {
        let taken = lan.counters(port).taken_frames;
        assert!(taken >= 32 * (passes - 1) * 9 / 10, "port {port} sent {taken}");
    }
    // The flooder is charged for each copy, so it had no more than they.
    let copies: u64 = (1..64).map(|port| lan.counters(port).delivered_frames).sum();
    assert!(copies <= 32 * passes + 64, "{copies}");
}

#[test]
fn a_flood_that_nobody_takes_is_bounded_too() {
    let (mut lan, mut nics) = switch_of(200);
    (0..100).for_each(|_| nics[0].send(&frame(ALL, mac(0), 60)));
    let mut passes = 0;
    let mut sent = 0;
    while sent < 100 {
        lan.passes(1);
        sent += nics[0].sent();
        passes += 1;
        assert!(passes < 1000);
    }
    // Looking at 199 ports costs as much as 39 KB of copies.
    assert!(passes >= 4, "{passes}");
}

#[test]
fn a_frame_that_changes_while_it_is_flooded_is_delivered_as_it_then_is() {
    let (mut lan, mut nics) = switch_of(64);
    nics.iter_mut().for_each(|nic| nic.post(3, 2048));
    // A first one, which teaches the switch where it is.
    nics[0].send(&frame(mac(0), mac(0), 50));
    while nics[0].sent() == 0 {
        lan.passes(1);
    }
    nics.iter_mut().for_each(|nic| drop(nic.take()));
    nics[0].send(&frame(ALL, mac(0), 100));
    while (1..64).all(|port| lan.counters(port).delivered_frames == 0) {
        lan.passes(1);
    }
    // In the middle of its flood the guest makes a frame for one station of it.
    nics[0].area.write(SEND_AT as usize + 63 + 12, &mac(5));
    lan.passes(3);
    assert_eq!(nics[0].sent(), 1);
    let got: usize = nics.iter_mut().map(|nic| nic.take().len()).sum();
    assert!((32..=63).contains(&got), "{got}");
}

/// Its receiver may be among those who have had it.
#[test]
fn a_flood_whose_receiver_becomes_known_meanwhile_reaches_everyone_once() {
    for receiver in [1, 40, 63] {
        let (mut lan, mut nics) = switch_of(64);
        nics.iter_mut().for_each(|nic| nic.post(3, 2048));
        let sent = frame(mac(receiver), mac(0), 1500);
        nics[0].send(&sent);
        while (1..64).all(|port| lan.counters(port).delivered_frames == 0) {
            lan.passes(1);
        }
        assert_eq!(nics[0].sent(), 0, "it is over in one pass");
        nics[usize::from(receiver)].send(&frame(mac(0), mac(receiver), 60));
        lan.passes(60);
        assert_eq!(nics[0].sent(), 1);
        for (port, nic) in nics.iter_mut().enumerate().skip(1) {
            assert_eq!(nic.take_frames(), [&sent[..]], "port {port}, for {receiver}");
        }
    }
}

#[test]
fn packed_rings_flood_as_well() {
    let mut lan = Lan::switch();
    let mut nics: Vec<Nic> = (0..40).map(|_| Nic::new(ring(Format::Packed, 32), USUAL)).collect();
    for nic in &nics {
        lan.plug(nic);
    }
    for round in 0..30 {
        nics.iter_mut().for_each(|nic| nic.post(2, 1000));
        let sent = frame(ALL, mac(0), 1500);
        nics[0].send(&sent);
        lan.passes(60);
        assert_eq!(nics[0].sent(), 1);
        for nic in &mut nics[1..] {
            assert_eq!(nic.take_frames(), [&sent[..]], "round {round}");
        }
        let own = nics[0].receive.driver.in_flight();
        assert!(own <= 32);
        if own > 28 {
            break;
        }
    }
}

#[test]
fn a_sender_that_leaves_in_the_middle_of_its_flood_ends_it_first() {
    let (mut lan, mut nics) = switch_of(64);
    nics.iter_mut().for_each(|nic| nic.post(3, 2048));
    nics[0].send(&frame(ALL, mac(0), 1500));
    let got = |lan: &Lan| (1..64).filter(|port| lan.counters(*port).delivered_frames > 0).count();
    while got(&lan) == 0 {
        lan.passes(1);
    }
    assert!((1..63).contains(&got(&lan)), "{} in one pass: not in the middle", got(&lan));
    lan.core.send(Command::Detach(key(0, false)));
    let mut events = Vec::new();
    for _ in 0..60 {
        lan.passes(1);
        events.extend(lan.core.events());
    }
    let [Event::Detached(served)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((nics[0].sent(), got(&lan)), (1, 63));
    lan.attach_one(&nics[0], 0, false, Some(served.queue().base()));
    lan.passes(60);
    for (port, nic) in nics.iter_mut().enumerate().skip(1) {
        assert_eq!(nic.take().len(), 1, "port {port}");
    }
}
