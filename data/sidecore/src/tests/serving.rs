//! What a visit does, and what of it is counted and called.

use schedule::SHARE_USUAL;
use virtqueue::driver::RingSpec;
use virtqueue::{Format, Violation};

use super::bed::*;
use crate::Event;

#[test]
fn null_and_memory_serve_every_kind_of_ring_side_by_side() {
    for format in [Format::Split, Format::Packed] {
        for (event_index, indirect_entries) in [(false, 0), (true, 0), (false, 3), (true, 3)] {
            serve_both(RingSpec { size: 64, format, event_index, indirect_entries });
        }
    }
}

fn serve_both(ring: RingSpec) {
    let (mut a, mut b) = (Guest::new(ring), Guest::new(ring));
    let mut core = Core::new(4);
    let on_null = core.attach(&a, a.spec(1, &null()));
    let on_memory = core.attach(&b, b.spec(2, &memory()));
    for kind in [WRITE, READ, FLUSH] {
        for number in 0..16 {
            // What was written must come from the disk, not from what the guest still has.
            b.fill(number, if kind == WRITE { number as u8 + 1 } else { 0 });
        }
        a.ask(16, kind);
        b.ask(16, kind);
        assert_eq!(core.pass().requests, 32, "{ring:?}");
        assert_eq!((a.take_ok(), b.take_ok()), (16, 16), "{ring:?}");
        let expected = |number| if kind == FLUSH { 0 } else { number as u8 + 1 };
        assert!((0..16).all(|number| b.holds(number, expected(number))), "{ring:?}");
    }
    for counters in [on_null, on_memory] {
        let seen = counters.snapshot();
        assert_eq!((seen.requests, seen.reads, seen.writes, seen.flushes), (48, 16, 16, 16));
        assert_eq!((seen.read_bytes, seen.written_bytes), (16 * 4096, 16 * 4096));
        assert_eq!((seen.errors, seen.in_flight, seen.visits), (0, 0, 3));
    }
    for device in [1, 2] {
        assert_eq!(core.detach(device).queue().in_flight(), 0);
    }
}

#[test]
fn what_cannot_be_done_is_answered_and_counted_and_the_next_request_is_served() {
    let mut guest = Guest::new(ring(16));
    let mut core = Core::new(1);
    let counters = core.attach(&guest, guest.spec(1, &memory()));
    guest.add(0, READ, DISK / 512, 1);
    guest.add(1, 77, 0, 1);
    guest.add(2, READ, 0, 1);
    guest.driver.publish();
    assert_eq!(core.pass().requests, 3);
    assert_eq!(guest.take(), [(0, 1), (1, 2), (2, 0)]);
    let seen = counters.snapshot();
    assert_eq!((seen.requests, seen.reads, seen.errors), (3, 1, 2));
}

#[test]
fn a_full_ring_takes_one_visit_and_then_waits_for_the_others() {
    let (mut greedy, mut modest) = (Guest::new(ring(256)), Guest::new(ring(16)));
    let mut core = Core::new(2);
    core.attach(&greedy, greedy.spec(1, &null()));
    core.attach(&modest, modest.spec(2, &null()));
    greedy.ask(80, READ);
    modest.ask(1, READ);
    assert_eq!(core.pass().requests, 33);
    assert_eq!((greedy.take_ok(), modest.take_ok()), (32, 1));
    assert_eq!(core.pass().requests, 32);
    assert_eq!(core.pass().requests, 16);
    assert_eq!(greedy.take_ok(), 48);
}

#[test]
fn a_larger_share_gets_more_while_both_want_more() {
    let (mut large, mut small) = (Guest::new(ring(1024)), Guest::new(ring(1024)));
    let mut core = Core::new(2);
    let a = core.attach(&large, large.spec(1, &null()));
    let mut spec = small.spec(2, &null());
    spec.share = SHARE_USUAL / 4;
    let b = core.attach(&small, spec);
    large.ask(250, READ);
    small.ask(250, READ);
    core.passes(5);
    let (large, small) = (a.snapshot().requests, b.snapshot().requests);
    // In the first pass nobody was yet known to want more.
    assert_eq!((large, small), (160, 32 + 4 * 8));
}

#[test]
fn a_violation_is_told_once_and_nobody_else_notices() {
    let (mut bad, mut good) = (Guest::new(ring(16)), Guest::new(ring(16)));
    let mut core = Core::new(2);
    let counters = core.attach(&bad, bad.spec(1, &memory()));
    core.attach(&good, good.spec(2, &memory()));
    bad.ask(2, READ);
    good.ask(2, READ);
    core.pass();
    assert_eq!((bad.take_ok(), good.take_ok()), (2, 2));
    let raw = bad.driver.raw();
    raw.set_avail_index(raw.avail_index().wrapping_add(17));
    for _ in 0..100 {
        good.ask(2, READ);
        core.pass();
        assert_eq!(good.take_ok(), 2);
    }
    let events = core.events();
    let [Event::Failed { key: failed, violation }] = events[..] else { panic!("{events:?}") };
    assert_eq!(failed, key(1));
    assert_eq!(violation, Violation::AvailableIndex { from: 2, to: 19, size: 16 });
    // It reads as empty from then on, so nothing is taken, and it can be given back.
    bad.kick();
    assert_eq!(core.passes(100), 0);
    assert_eq!(counters.snapshot().requests, 2);
    assert_eq!(core.detach(1).queue().violation(), Some(violation));
}

#[test]
fn a_chain_without_room_for_its_status_latches_its_queue() {
    let mut guest = Guest::new(ring(16));
    let mut core = Core::new(1);
    core.attach(&guest, guest.spec(1, &null()));
    let header = virtqueue::driver::Buffer { gpa: 1 << 20, len: 16, device_writes: false };
    guest.driver.add(&[header], 0).unwrap();
    guest.driver.publish();
    core.pass();
    let events = core.events();
    assert!(
        matches!(
            events[..],
            [Event::Failed { violation: Violation::NoRoom { need: "status" }, .. }]
        ),
        "{events:?}"
    );
    assert_eq!(guest.take(), []);
}

#[test]
fn one_visit_makes_at_most_one_call_and_none_that_was_not_asked_for() {
    for format in [Format::Split, Format::Packed] {
        for event_index in [false, true] {
            let ring = RingSpec { size: 128, format, event_index, indirect_entries: 0 };
            let mut guest = Guest::new(ring);
            let mut core = Core::new(1);
            let counters = core.attach(&guest, guest.spec(1, &null()));
            assert_eq!(counters.snapshot().calls, 1, "one call at attach");
            assert!(!guest.driver.arm_calls());
            guest.ask(30, READ);
            core.pass();
            assert_eq!((guest.take_ok(), guest.calls()), (30, 1), "{ring:?}");
            guest.driver.disarm_calls();
            guest.ask(30, READ);
            core.pass();
            assert_eq!((guest.take_ok(), guest.calls()), (30, 0), "{ring:?}");
            assert_eq!(counters.snapshot().calls, 2);
        }
    }
}

#[test]
fn what_is_answered_in_its_visit_took_until_the_next_pass() {
    let mut guest = Guest::new(ring(64));
    let mut core = Core::new(1);
    let counters = core.attach(&guest, guest.spec(1, &null()));
    guest.ask(10, READ);
    core.pass();
    assert_eq!(counters.snapshot().latency.count(), 0, "not known yet");
    core.pass();
    guest.take_ok();
    guest.ask(20, READ);
    core.pass();
    core.now = core.now.after(7 * PASS_NS);
    core.pass();
    let latency = counters.snapshot().latency;
    assert_eq!(latency.count(), 30);
    for (q, took_ns) in [(0.3, PASS_NS), (1.0, 8 * PASS_NS)] {
        let found = latency.quantile_ns(q);
        assert!((took_ns..=took_ns + took_ns / 16).contains(&found), "{q}: {found}");
    }
}
