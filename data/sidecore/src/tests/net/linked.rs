//! A host port that leads to a link: the test is the link.

use std::sync::Arc;

use backend::link::{LinkNic, NicCounters, Way};
use remote::wire::Net;
use switch::DropReason;

use super::bed::*;

/// A guest whose wire leads to a link, which has it.
fn wired() -> (Lan, Nic, LinkNic, [u16; 2], Arc<NicCounters>) {
    let mut lan = Lan::wire();
    let guest = Nic::usual();
    let near = lan.plug(&guest);
    let (link, port) = LinkNic::new().expect("two eventfds");
    let far = lan.plug_host(port);
    let counters = link.counters();
    link.set_up(true);
    (lan, guest, link, [near, far], counters)
}

fn come(link: &mut LinkNic, number: u32, frame: &[u8]) {
    let half = frame.len() / 2;
    for (place, data) in [(half, &frame[half..]), (0, &frame[..half])] {
        let (len, place) = (frame.len() as u16, place as u16);
        link.hear(&Net { handle: 1, number, len, place, data });
    }
    link.tell();
}

#[test]
fn frames_cross_and_a_sidecore_that_sleeps_is_woken() {
    let (mut lan, mut guest, mut link, [near, far], counters) = wired();
    guest.post(60, 9_100);
    for round in 0..200u32 {
        let len = 14 + round as usize * 40;
        let (out, back) = (frame(mac(2), mac(1), len), frame(mac(1), mac(2), len));
        guest.send(&out);
        lan.passes(60);
        assert_eq!(link.next(Way::Open), Some(&out[..]), "{round}");
        assert!(link.next(Way::Open).is_none());
        lan.core.idle();
        come(&mut link, round, &back);
        assert!(lan.core.rest(), "its bell waits");
        lan.passes(2);
        assert_eq!(guest.take_frames(), [back], "{round}");
        guest.post(1, 9_100);
    }
    let (given, taken) = (lan.counters(far), lan.counters(near));
    assert_eq!((given.taken_frames, taken.taken_frames), (200, 200));
    assert_eq!(given.drops.total() + taken.drops.total(), 0);
    let seen = counters.snapshot();
    assert_eq!((seen.sent, seen.came, seen.dropped), (200, 200, 0));
}

#[test]
fn what_nobody_has_is_dropped_and_what_is_full_is_waited_for() {
    let (mut lan, mut guest, mut link, [_, far], _) = wired();
    link.set_up(false);
    guest.send(&frame(mac(2), mac(1), 100));
    lan.passes(1);
    assert_eq!((guest.sent(), lan.only_dropped(far, DropReason::CarrierDown)), (1, 1));
    link.set_up(true);
    for _ in 0..40 {
        guest.send(&frame(mac(2), mac(1), 9_000));
    }
    lan.passes(50);
    // 256 KiB, and the rest stays in the ring for a millisecond.
    assert_eq!((guest.sent(), lan.only_dropped(far, DropReason::CarrierDown)), (29, 1));
    while link.next(Way::Open).is_some() {}
    lan.passes(50);
    assert_eq!((guest.sent(), lan.only_dropped(far, DropReason::CarrierDown)), (11, 1));
    while link.next(Way::Open).is_some() {}
    // Too long for a link.
    guest.send(&frame(mac(2), mac(1), 9_025));
    lan.passes(50);
    assert_eq!((guest.sent(), lan.counters(far).drops.of(DropReason::TooLong)), (1, 1));
}

#[test]
fn a_port_whose_link_let_it_go_is_told_of_once() {
    let (mut lan, mut guest, link, _, _) = wired();
    lan.core.idle();
    drop(link);
    assert!(lan.core.rest());
    guest.send(&frame(mac(2), mac(1), 100));
    lan.passes(100);
    let events = lan.core.events();
    assert!(matches!(events[..], [crate::Event::HostGone(_)]), "{events:?}");
    assert_eq!(guest.sent(), 1);
}
