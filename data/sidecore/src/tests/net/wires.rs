//! Frames across a wire: what is taken comes out, and waits a moment where it must.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use backend::net::{HostPort, NullMode, Simulated, Wire};
use switch::DropReason;
use virtqueue::Format;

use super::super::bed::PASS_NS;
use super::bed::*;
use crate::{Command, Event};

#[test]
fn frames_cross_a_wire_as_they_are_with_every_kind_of_ring() {
    for format in [Format::Split, Format::Packed] {
        for features in [USUAL, PLAIN, 0] {
            let mut lan = Lan::wire();
            let (mut a, mut b) =
                (Nic::new(ring(format, 64), features), Nic::new(ring(format, 64), features));
            let (from, to) = (lan.plug(&a), lan.plug(&b));
            b.post(20, 2048);
            let sent: Vec<_> = (0..20).map(|n| frame(mac(2), mac(1), 14 + n * 77)).collect();
            sent.iter().for_each(|frame| a.send(frame));
            assert_eq!(lan.passes(1), 20, "{format:?} {features:x}");
            assert_eq!(b.take_frames(), sent, "{format:?} {features:x}");
            assert_eq!(a.sent(), 20);
            let bytes: usize = sent.iter().map(Vec::len).sum();
            let (taken, given) = (lan.counters(from), lan.counters(to));
            assert_eq!((taken.taken_frames, taken.taken_bytes), (20, bytes as u64));
            assert_eq!((given.delivered_frames, given.delivered_bytes), (20, bytes as u64));
            assert_eq!(taken.drops.total() + given.drops.total(), 0);
        }
    }
}

#[test]
fn rings_of_a_few_entries_go_round_for_long() {
    for format in [Format::Split, Format::Packed] {
        let mut lan = Lan::wire();
        let (mut a, mut b) = (Nic::new(ring(format, 4), USUAL), Nic::new(ring(format, 8), USUAL));
        lan.plug(&a);
        lan.plug(&b);
        for round in 0..500 {
            // Frames of one and of two buffers; the ring's places fall anywhere.
            let sent = frame(mac(2), mac(1), 60 + round % 90);
            b.post(2, 100);
            a.send(&sent);
            lan.passes(1);
            assert_eq!(a.sent(), 1);
            assert_eq!(b.take_frames(), [&sent[..]], "{format:?}, round {round}");
            let used = if sent.len() + 12 > 100 { 2 } else { 1 };
            if used == 1 {
                a.send(&frame(mac(2), mac(1), 30));
                lan.passes(1);
                assert_eq!((a.sent(), b.take_frames().len()), (1, 1));
            }
        }
    }
}

#[test]
fn both_are_called_once_for_a_visit() {
    let mut lan = Lan::wire();
    let (mut a, mut b) = (Nic::usual(), Nic::usual());
    lan.plug(&a);
    lan.plug(&b);
    b.post(40, 2048);
    assert!(!a.transmit.driver.arm_calls() && !b.receive.driver.arm_calls());
    (0..30).for_each(|_| a.send(&frame(mac(2), mac(1), 60)));
    lan.passes(1);
    assert_eq!((a.calls(), b.calls()), ((0, 1), (1, 0)));
    assert_eq!((a.sent(), b.take().len()), (30, 30));
    b.receive.driver.disarm_calls();
    a.transmit.driver.disarm_calls();
    a.send(&frame(mac(2), mac(1), 60));
    lan.passes(1);
    assert_eq!((a.calls(), b.calls()), ((0, 0), (0, 0)));
}

#[test]
fn a_frame_waits_for_its_receiver_but_not_for_ever() {
    let mut lan = Lan::wire();
    let (mut a, mut b) = (Nic::usual(), Nic::usual());
    let to = {
        lan.plug(&a);
        lan.plug(&b)
    };
    for number in 0..3 {
        a.send(&frame(mac(2), mac(1), 100 + number));
    }
    // A pass is a microsecond.
    lan.passes(900);
    assert_eq!((a.sent(), lan.only_dropped(to, DropReason::NoBuffer)), (0, 0));
    assert!(!lan.core.rest(), "nobody would wake it");
    b.post(1, 2048);
    lan.passes(2);
    assert_eq!((a.sent(), b.take_frames()), (1, vec![frame(mac(2), mac(1), 100)]));
    // It had buffers: the time starts anew.
    lan.passes(900);
    assert_eq!(a.sent(), 0);
    lan.passes(200);
    assert_eq!((a.sent(), lan.only_dropped(to, DropReason::NoBuffer)), (2, 2));
    // From then on nobody waits. (Its kicks are looked for every 50 us.)
    a.send(&frame(mac(2), mac(1), 60));
    lan.passes(60);
    assert_eq!((a.sent(), lan.only_dropped(to, DropReason::NoBuffer)), (1, 3));
    // And the sender rests like any other.
    lan.core.idle();
    let mut kicked = frame(mac(2), mac(1), 60);
    kicked.push(1);
    b.post(1, 2048);
    a.send(&kicked);
    assert!(lan.core.rest(), "armed, with a kick waiting");
    lan.passes(1);
    assert_eq!(b.take_frames(), [kicked]);
}

/// A driver that is about to post buffers is left alone with its ring.
#[test]
fn where_there_was_no_room_nobody_looks_for_two_microseconds() {
    let mut lan = Lan::wire();
    let (mut a, mut b) = (Nic::usual(), Nic::usual());
    lan.plug(&a);
    lan.plug(&b);
    a.send(&frame(mac(2), mac(1), 60));
    lan.passes(1);
    b.post(1, 2048);
    lan.passes(1);
    assert_eq!((a.sent(), b.take().len()), (0, 0), "a pass is one microsecond");
    lan.passes(1);
    assert_eq!((a.sent(), b.take().len()), (1, 1));
}

#[test]
fn what_the_host_gives_waits_too_and_nothing_is_read_behind_it() {
    let mut lan = Lan::wire();
    let mut nic = Nic::usual();
    let to = lan.plug(&nic);
    let mode = NullMode::Generate { size: 64, rate: 0, destination: mac(1) };
    let from = lan.plug_host(null(mode));
    lan.passes(900);
    assert_eq!(lan.counters(from).taken_frames, 0);
    // It waits for the driver's kick, which is looked for every 50 us.
    nic.post(10, 2048);
    lan.passes(60);
    let number = |frame: &Vec<u8>| u64::from_be_bytes(*frame[14..].first_chunk().unwrap());
    let numbers: Vec<u64> = nic.take_frames().iter().map(number).collect();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>(), "none is lost for want of buffers");
    assert_eq!(lan.only_dropped(to, DropReason::NoBuffer), 0);
    // However long it takes: the host has a queue of its own, and its own rule for what is too much.
    lan.passes(10_000);
    assert_eq!(lan.only_dropped(to, DropReason::NoBuffer), 0);
    assert_eq!(lan.counters(from).taken_frames, 10);
    nic.post(1, 2048);
    lan.passes(60);
    assert_eq!(nic.take_frames().iter().map(number).collect::<Vec<_>>(), [10]);
    // Without a guest nobody is waited for, and nothing is made for nobody.
    lan.detach(to, true);
    lan.passes(10_000);
    assert_eq!(lan.only_dropped(to, DropReason::NoBuffer), 0);
    assert_eq!(lan.counters(from).taken_frames, 11);
}

/// An uplink leaves for an upgrade, or to be opened anew.
#[test]
fn a_frame_that_waits_is_brought_or_counted_when_its_port_leaves() {
    for has_room in [true, false] {
        let mut lan = Lan::wire();
        let mut nic = Nic::usual();
        lan.plug(&nic);
        let mode = NullMode::Generate { size: 64, rate: 0, destination: mac(1) };
        let from = lan.plug_host(null(mode));
        lan.passes(900);
        if has_room {
            nic.post(1, 2048);
        }
        lan.core.send(Command::DetachHost(host_key(from)));
        lan.passes(1);
        // It waits for room, for 20 ms.
        let events = lan.core.events();
        assert_eq!(matches!(events[..], [Event::HostDetached(_)]), has_room, "{events:?}");
        lan.passes(20_000_000 / PASS_NS as u32 + 2);
        assert_eq!(nic.take_frames().len(), usize::from(has_room));
        assert_eq!(lan.counters(from).taken_frames, u64::from(has_room));
        assert_eq!(lan.only_dropped(from, DropReason::NoBuffer), u64::from(!has_room));
        let later = lan.core.events();
        assert_eq!(matches!(later[..], [Event::HostDetached(_)]), !has_room, "{later:?}");
    }
}

/// What waits for room gets it when there is some in time.
#[test]
fn a_frame_that_waits_as_its_port_leaves_is_brought_when_there_is_room() {
    let mut lan = Lan::wire();
    let mut nic = Nic::usual();
    lan.plug(&nic);
    let mode = NullMode::Generate { size: 64, rate: 0, destination: mac(1) };
    let from = lan.plug_host(null(mode));
    lan.passes(900);
    lan.core.send(Command::DetachHost(host_key(from)));
    lan.passes(3);
    assert!(lan.core.events().is_empty());
    nic.post(2, 2048);
    lan.passes(20_000_000 / PASS_NS as u32);
    assert_eq!(nic.take_frames().len(), 1, "nothing more is read from it");
    let events = lan.core.events();
    assert!(matches!(events[..], [Event::HostDetached(_)]), "{events:?}");
    assert_eq!((lan.counters(from).taken_frames, lan.counters(from).drops.total()), (1, 0));
}

/// The host's end of a wire that is cut while a frame waits.
#[derive(Debug)]
struct Cut {
    frames: Vec<Vec<u8>>,
    end: OwnedFd,
}

impl Wire for Cut {
    fn receive(&mut self) -> Option<Vec<u8>> {
        self.frames.pop()
    }

    fn send(&mut self, _: &[u8]) -> bool {
        true
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

#[test]
fn a_frame_that_waits_is_counted_when_its_port_fails() {
    let mut lan = Lan::wire();
    let nic = Nic::usual();
    lan.plug(&nic);
    let (end, other) = rustix::pipe::pipe().unwrap();
    let frames = vec![frame(mac(1), mac(9), 64)];
    let wire = Cut { frames, end };
    let from = lan.plug_host(HostPort::Simulated(Box::new(Simulated::new(Box::new(wire)))));
    lan.passes(900);
    assert_eq!(lan.counters(from).drops.total(), 0, "it waits");
    drop(other);
    lan.passes(200);
    assert_eq!(lan.only_dropped(from, DropReason::NoBuffer), 1);
}

/// It is asked for nothing for 10 ms at a time, in which a sidecore that has nothing else sleeps.
#[test]
fn a_port_that_makes_frames_rests_until_somebody_is_there() {
    let mut lan = Lan::wire();
    let mode = NullMode::Generate { size: 64, rate: 0, destination: mac(1) };
    let from = lan.plug_host(null(mode));
    lan.passes(50_000);
    assert_eq!((lan.counters(from).taken_frames, lan.counters(from).drops.total()), (0, 0));
    let mut nic = Nic::usual();
    lan.plug(&nic);
    nic.post(3, 2048);
    lan.passes(10_100);
    assert_eq!(nic.take_frames().len(), 3);
}

/// A ring that is not empty, but has too few buffers for what is next, is waited for like an empty one.
#[test]
fn what_the_host_gives_waits_for_enough_buffers() {
    let mut lan = Lan::wire();
    let mut nic = Nic::new(ring(Format::Split, 256), USUAL);
    let to = lan.plug(&nic);
    nic.post(1, 2048);
    let mode = NullMode::Generate { size: 4000, rate: 0, destination: mac(1) };
    lan.plug_host(null(mode));
    for posted in 2..=6 {
        lan.passes(3_000);
        assert_eq!(lan.counters(to).drops.total(), 0, "with {posted} buffers");
        nic.post(1, 2048);
        lan.passes(100);
        assert_eq!(nic.take_frames().len(), usize::from(posted % 2 == 0), "with {posted} buffers");
    }
}

#[test]
fn frames_are_made_at_their_rate() {
    let mut lan = Lan::wire();
    let mut nic = Nic::new(ring(Format::Split, 1024), USUAL);
    lan.plug(&nic);
    nic.post(1000, 256);
    let mode = NullMode::Generate {
        size: 100,
        rate: 1_000_000_000 / (4 * PASS_NS as u32),
        destination: mac(1),
    };
    lan.plug_host(null(mode));
    lan.passes(1000);
    let got = nic.take_frames();
    assert!((248..=252).contains(&got.len()), "{}", got.len());
    assert!(got.iter().all(|frame| frame.len() == 100 && frame[..6] == mac(1)));
}

#[test]
fn an_echo_comes_back_with_its_addresses_swapped() {
    for len in [60, 128, 129, 1500, 60_000] {
        let mut lan = Lan::wire();
        let mut nic = Nic::usual();
        let port = lan.plug(&nic);
        let host = lan.plug_host(null(NullMode::Echo));
        nic.post(200, 2048);
        nic.send(&frame(mac(2), mac(1), len));
        lan.passes(1);
        assert_eq!(nic.sent(), 1);
        let mut back = frame(mac(1), mac(2), len);
        back[14..].copy_from_slice(&frame(mac(2), mac(1), len)[14..]);
        assert_eq!(nic.take_frames(), [back]);
        assert_eq!(
            (lan.counters(port).delivered_frames, lan.counters(host).delivered_frames),
            (1, 1)
        );
    }
}

#[test]
fn an_echo_waits_for_buffers_as_others_do() {
    let mut lan = Lan::wire();
    let mut nic = Nic::usual();
    lan.plug(&nic);
    lan.plug_host(null(NullMode::Echo));
    (0..5).for_each(|_| nic.send(&frame(mac(2), mac(1), 60)));
    lan.passes(100);
    assert_eq!(nic.sent(), 0);
    nic.post(5, 2048);
    lan.passes(1);
    assert_eq!((nic.sent(), nic.take().len()), (5, 5));
}

#[test]
fn what_is_dropped_by_the_host_is_over() {
    let mut lan = Lan::wire();
    let mut nic = Nic::usual();
    let port = lan.plug(&nic);
    let host = lan.plug_host(null(NullMode::Drop));
    (0..100).for_each(|_| nic.send(&frame(mac(2), mac(1), 60)));
    assert_eq!([lan.passes(1), lan.passes(1), lan.passes(1), lan.passes(1)], [32, 32, 32, 4]);
    assert_eq!(nic.sent(), 100);
    assert_eq!((lan.counters(port).taken_frames, lan.counters(host).delivered_frames), (100, 100));
    // Nothing comes from there, so it keeps nobody awake.
    lan.core.idle();
    nic.send(&frame(mac(2), mac(1), 60));
    assert!(lan.core.rest());
    assert_eq!(lan.passes(1), 1);
}

#[test]
fn nothing_crosses_a_wire_whose_link_is_down() {
    let mut lan = Lan::wire();
    let (mut a, mut b) = (Nic::usual(), Nic::usual());
    let (from, to) = (lan.plug(&a), lan.plug(&b));
    b.post(10, 2048);
    for (port, is_up) in [(from, false), (from, true), (to, false), (to, true)] {
        lan.rules[usize::from(port)].is_up = is_up;
        lan.set(port);
        a.send(&frame(mac(2), mac(1), 60));
        lan.passes(1);
        assert_eq!((a.sent(), b.take().len()), (1, usize::from(is_up)), "{port} {is_up}");
    }
    assert_eq!(lan.only_dropped(from, DropReason::CarrierDown), 2);
}
