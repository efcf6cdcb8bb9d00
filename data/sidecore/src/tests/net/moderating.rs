//! Calls for frames that were sent, rationed: a guest that sleeps until it is called learns of all of them.

use schedule::{INTERRUPTION, Policy, SHARE_USUAL};

use super::super::bed::PASS_NS;
use super::bed::*;
use crate::{Command, Service};

const WAIT_NS: u32 = 20_000;

/// A guest at a port of a switch whose calls for sent frames are at least so far apart.
fn sender(moderate_ns: u32) -> (Lan, Nic, u16) {
    sender_with(moderate_ns, Policy::Poll)
}

fn sender_with(moderate_ns: u32, policy: Policy) -> (Lan, Nic, u16) {
    let mut lan = Lan::switch();
    let nic = Nic::usual();
    let port = lan.plug(&nic);
    let share = SHARE_USUAL;
    let service = Service { share, policy, target_ns: None, moderate_ns, gate: None };
    lan.core.send(Command::SetService(key(port, false), service));
    lan.passes(2);
    nic.calls();
    (lan, nic, port)
}

/// It asks to be called for the next frame that is over.
fn ask(nic: &mut Nic) {
    while nic.transmit.driver.arm_calls() {
        nic.sent();
    }
}

fn send(lan: &mut Lan, nic: &mut Nic) {
    ask(nic);
    nic.send(&frame(ALL, mac(0), 60));
    lan.passes(1);
}

/// Calls for 400 frames, one a microsecond, of a guest that takes its buffers back and asks anew with each
/// frame, or only when it is called.
fn calls_of_a_stream(moderate_ns: u32, looks: bool) -> u64 {
    let (mut lan, mut nic, _) = sender(moderate_ns);
    ask(&mut nic);
    let mut all = 0;
    for _ in 0..400 {
        nic.send(&frame(ALL, mac(0), 60));
        lan.passes(1);
        let calls = nic.calls().1;
        all += calls;
        if looks || calls > 0 {
            nic.sent();
            ask(&mut nic);
        }
    }
    all
}

#[test]
fn a_stream_is_told_of_now_and_then_and_not_at_all_if_the_guest_sees_it_by_itself() {
    assert_eq!(PASS_NS, 1000);
    assert_eq!((calls_of_a_stream(0, true), calls_of_a_stream(0, false)), (400, 400));
    let calls = calls_of_a_stream(WAIT_NS, false);
    assert!((400 / 21..=400 / 19).contains(&calls), "{calls}");
    // Each time it has asked for the next frame, when it would be called.
    assert_eq!(calls_of_a_stream(WAIT_NS, true), 1);
}

#[test]
fn a_frame_after_a_pause_is_told_of_at_once_and_one_soon_after_it_in_time() {
    let (mut lan, mut nic, _) = sender(WAIT_NS);
    lan.passes(50);
    send(&mut lan, &mut nic);
    assert_eq!(nic.calls().1, 1);
    send(&mut lan, &mut nic);
    // It sees that it was sent, if it looks; it did not, and is told in time, for which the sidecore is awake.
    for _ in 0..WAIT_NS / 1000 - 2 {
        lan.passes(1);
        assert_eq!(nic.calls().1, 0);
        assert!(!lan.core.rest(), "it slept on a call");
    }
    lan.passes(2);
    assert_eq!(nic.calls().1, 1);
    assert!(nic.sent() > 0);
    lan.passes(100);
    assert_eq!(nic.calls().1, 0);
}

#[test]
fn no_sidecore_stays_awake_for_a_call_of_a_queue_that_is_not_polled() {
    let (mut lan, mut nic, _) = sender_with(1_000_000, Policy::Notify);
    lan.passes(5);
    for _ in 0..3 {
        ask(&mut nic);
        nic.send(&frame(ALL, mac(0), 60));
        // Until the kick for it.
        assert!(lan.core.rest(), "it stays awake for {:?}", lan.core.sidecore.calls.delayed());
        lan.passes(1);
        assert_eq!(nic.calls().1, 1);
        assert_eq!(nic.sent(), 1);
        lan.passes(1);
    }
}

#[test]
fn a_queue_that_goes_tells_what_it_owes() {
    let (mut lan, mut nic, port) = sender(WAIT_NS);
    lan.passes(50);
    send(&mut lan, &mut nic);
    send(&mut lan, &mut nic);
    assert_eq!(nic.calls().1, 1);
    drop(lan.detach(port, false));
    assert_eq!(nic.calls().1, 1);
}

/// However often its calls are put off and made within a pass, the queue is in the list once.
#[test]
fn a_queue_is_listed_once() {
    let (mut lan, mut nic, port) = sender(2_000);
    for _ in 0..100 {
        ask(&mut nic);
        for _ in 0..3 {
            nic.send(&frame(ALL, mac(0), 60));
            let place = lan.core.sidecore.find(key(port, false)).unwrap();
            // A pass of several pieces: the list is looked through at a pass's start only.
            lan.core.sidecore.visit_frames(place, INTERRUPTION, lan.core.now);
            lan.core.now = lan.core.now.after(1_500);
        }
        assert!(
            lan.core.sidecore.calls.delayed().len() <= 1,
            "{:?}",
            lan.core.sidecore.calls.delayed()
        );
        nic.sent();
    }
    lan.passes(4);
    assert!(lan.core.sidecore.calls.delayed().is_empty());
}
