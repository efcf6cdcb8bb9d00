//! Memory that goes away under a sender or a receiver: its own loss, and nobody else's.

use guest_memory::Loss;
use switch::DropReason;
use virtqueue::Violation;

use super::bed::*;
use crate::Event;

/// That these queues, and no others, were reported for lost memory, each once.
fn assert_lost(lan: &mut Lan, expected: &[crate::QueueKey]) {
    let mut failed: Vec<_> = lan
        .core
        .events()
        .iter()
        .map(|event| match event {
            Event::Failed { key, violation: Violation::MemoryLost } => *key,
            other => panic!("{other:?}"),
        })
        .collect();
    failed.sort();
    assert_eq!(failed, expected);
}

#[test]
fn what_a_lost_sender_says_is_not_delivered() {
    for kept in [0, SEND_AT + 4096] {
        let mut lan = Lan::wire();
        let ((mut bad, fd), mut good) = (Nic::lent(), Nic::usual());
        lan.plug(&bad);
        let to = lan.plug(&good);
        good.post(10, 4096);
        // Its head is on the page that stays, in the second case; its rest is not.
        bad.send(&frame(mac(2), mac(1), 9000));
        rustix::fs::ftruncate(&fd, kept).unwrap();
        lan.passes(3);
        assert!(good.take().is_empty());
        assert_lost(&mut lan, &[key(0, false)]);
        assert_eq!(lan.counters(to).delivered_frames, 0);
        // All its buffers are still there for the next sender.
        lan.detach(0, false);
        let other = Nic::usual();
        lan.detach(0, true);
        let mut other = {
            lan.attach(&other, 0);
            other
        };
        other.send(&frame(mac(2), mac(1), 9000));
        lan.passes(2);
        assert_eq!((other.sent(), good.take().len()), (1, 1));
    }
}

#[test]
fn a_lost_receiver_costs_its_sender_frames_and_nothing_else() {
    for len in [60, 9000] {
        let mut lan = Lan::switch();
        let ((bad, fd), mut good, mut other) = (Nic::lent(), Nic::usual(), Nic::usual());
        let mut bad = {
            lan.plug(&bad);
            bad
        };
        lan.plug(&good);
        lan.plug(&other);
        bad.post(10, 4096);
        other.post(50, 4096);
        bad.send(&frame(ALL, mac(1), 60));
        lan.passes(1);
        other.take();
        // Its rings stay, its buffers go.
        rustix::fs::ftruncate(&fd, RECEIVE_AT).unwrap();
        for _ in 0..10 {
            good.send(&frame(mac(1), mac(2), len));
            good.send(&frame(ALL, mac(2), len));
            lan.passes(1);
            assert_eq!((good.sent(), other.take().len()), (2, 1));
        }
        assert!(bad.take().is_empty(), "nothing is shown to whoever has that memory now");
        assert_eq!(lan.only_dropped(0, DropReason::NoBuffer), 20);
        lan.passes(200);
        let failed = lan.core.events().len();
        assert!(failed >= 1, "it was reported");
        lan.detach(0, true);
    }
}

#[test]
fn a_connection_that_control_gave_up_takes_and_gets_nothing() {
    let mut lan = Lan::wire();
    let (mut a, mut b) = (Nic::usual(), Nic::usual());
    lan.plug(&a);
    lan.plug(&b);
    b.post(10, 2048);
    a.send(&frame(mac(2), mac(1), 60));
    b.map.health().lose(Loss::Memory);
    lan.passes(3);
    assert_eq!((a.sent(), b.take().len()), (1, 0));
    assert_eq!(lan.only_dropped(1, DropReason::NoBuffer), 1);
    a.map.health().lose(Loss::Memory);
    a.send(&frame(mac(2), mac(1), 60));
    lan.passes(3);
    assert_eq!(a.sent(), 0);
}
