//! Honest drivers: what goes in comes out, in every format, size, and layout.

use super::rig::{Rig, all_rings, ring};
use crate::driver::{Buffer, RingSpec, Used};
use crate::layout::Format;
use crate::{SetupError, Violation};

/// Request number `n`: one to three pieces, as many as the ring can describe.
fn pieces(n: u64, ring: RingSpec) -> Vec<Buffer> {
    let most = if ring.indirect_entries > 0 { 3 } else { ring.size.min(3).into() };
    let count = 1 + n % most;
    let piece = |place: u64| Buffer {
        gpa: (n % 16) * 4096 + place * 512,
        len: 16 + place as u32 + (n % 400) as u32,
        device_writes: place >= 1 || count == 1 && n % 2 == 1,
    };
    (0..count).map(piece).collect()
}

/// As many requests as fit, beginning with number `from`; returns the next number.
fn fill(rig: &mut Rig, from: u64) -> u64 {
    let mut n = from;
    while rig.driver.add(&pieces(n, rig.ring), n).is_ok() {
        n += 1;
    }
    n
}

fn written(n: u64) -> u32 {
    (n * 7 % 1000) as u32
}

#[test]
fn every_request_comes_back_once_in_every_ring() {
    for spec in all_rings() {
        let mut rig = Rig::new(spec);
        let mut n = 0;
        for _ in 0..if spec.size > 1000 { 3 } else { 5 } {
            let first = n;
            n = fill(&mut rig, first);
            assert!(n > first, "{spec:?}");
            let kick = rig.driver.publish();
            assert!(kick || first > 0, "{spec:?}: kicks are on at first");
            for number in first..n {
                let (ticket, found) = rig.take().unwrap();
                assert_eq!(found, pieces(number, spec), "{spec:?}");
                rig.queue.complete(ticket, written(number));
            }
            assert!(rig.take().is_none(), "{spec:?}");
            assert_eq!(rig.driver.take_used(), None, "{spec:?}: nothing is seen before publish");
            rig.queue.publish();
            for token in first..n {
                assert_eq!(rig.driver.take_used(), Some(Used { token, len: written(token) }));
            }
            assert_eq!(rig.driver.take_used(), None);
            assert_eq!(rig.driver.fault(), None, "{spec:?}");
            assert_eq!(rig.queue.violation(), None, "{spec:?}");
        }
    }
}

#[test]
fn completions_may_come_in_any_order() {
    for spec in all_rings().into_iter().filter(|spec| spec.size <= 1000) {
        let mut rig = Rig::new(spec);
        let mut n = 0;
        for lap in 0..6 {
            n = fill(&mut rig, n);
            rig.driver.publish();
            let mut held = Vec::new();
            while let Some((ticket, _)) = rig.take() {
                held.push(ticket);
            }
            let taken = held.len();
            assert_eq!(usize::from(rig.queue.in_flight()), taken);
            // Some are kept over to the next lap, others end in reverse.
            for (place, ticket) in held.into_iter().rev().enumerate() {
                rig.queue.complete(ticket, 1);
                if place % 5 == lap {
                    rig.queue.publish();
                }
            }
            rig.queue.publish();
            let mut seen = 0;
            while rig.driver.take_used().is_some() {
                seen += 1;
            }
            assert_eq!((seen, rig.driver.fault()), (taken, None), "{spec:?}");
        }
    }
}

/// Row A23: the 16-bit indices wrap under load, at the smallest and the largest size.
#[test]
fn a23_indices_wrap_at_65536() {
    for size in [1, 2, 32768] {
        for event_index in [false, true] {
            let mut rig = Rig::new(ring(Format::Split, size, event_index, 0));
            let mut n = 0;
            while n < 140_000 {
                let first = n;
                n = fill(&mut rig, n);
                rig.driver.publish();
                assert_eq!(u64::from(rig.serve()), n - first);
                rig.queue.publish();
                for token in first..n {
                    assert_eq!(rig.driver.take_used(), Some(Used { token, len: 1 }));
                }
            }
            assert_eq!(rig.queue.base(), n as u32 & 0xffff);
        }
    }
}

#[test]
fn completions_are_shown_in_batches() {
    for format in [Format::Split, Format::Packed] {
        let mut rig = Rig::new(ring(format, 8, false, 0));
        let one = [Buffer { gpa: 0, len: 1, device_writes: true }];
        for token in 0..6 {
            rig.driver.add(&one, token).unwrap();
        }
        rig.driver.publish();
        let mut shown = 0;
        for batch in [1, 3, 2] {
            for _ in 0..batch {
                let (ticket, _) = rig.take().unwrap();
                rig.queue.complete(ticket, 1);
            }
            assert_eq!(rig.driver.take_used(), None, "{format:?}");
            assert!(rig.queue.publish(), "{format:?}: calls are on");
            assert!(!rig.queue.publish(), "{format:?}: nothing new, no call");
            for _ in 0..batch {
                assert_eq!(rig.driver.take_used(), Some(Used { token: shown, len: 1 }));
                shown += 1;
            }
            assert_eq!(rig.driver.take_used(), None, "{format:?}");
        }
    }
}

#[test]
fn a_second_queue_goes_on_where_the_first_one_stopped() {
    for spec in all_rings().into_iter().filter(|spec| spec.size <= 1000) {
        let mut rig = Rig::new(spec);
        let mut n = 0;
        for step in 0..40 {
            let first = n;
            n = fill(&mut rig, n);
            rig.driver.publish();
            // Part of it by this queue, the rest by the next one.
            let here = (n - first) * (step % 4) / 3;
            for _ in 0..here {
                let (ticket, _) = rig.take().unwrap();
                rig.queue.complete(ticket, 1);
            }
            rig.queue.publish();
            let base = rig.queue.base();
            rig.reopen(base);
            assert_eq!(rig.queue.base(), base, "{spec:?}");
            rig.serve();
            rig.queue.publish();
            for token in first..n {
                assert_eq!(rig.driver.take_used(), Some(Used { token, len: 1 }), "{spec:?}");
            }
            assert_eq!(rig.queue.violation(), None, "{spec:?}");
        }
    }
}

#[test]
fn a_latched_queue_reads_as_empty_and_still_completes() {
    for format in [Format::Split, Format::Packed] {
        let mut rig = Rig::new(ring(format, 8, false, 0));
        let good = [Buffer { gpa: 0, len: 1, device_writes: true }];
        let bad = [Buffer { gpa: u64::MAX, len: 1, device_writes: true }];
        rig.driver.add(&good, 1).unwrap();
        rig.driver.add(&bad, 2).unwrap();
        rig.driver.add(&good, 3).unwrap();
        rig.driver.publish();
        let (ticket, _) = rig.take().unwrap();
        let violation = Violation::BufferAddress { gpa: u64::MAX, len: 1 };
        assert_eq!(rig.refused(), Some(violation));
        assert_eq!(rig.refused(), Some(violation), "for ever");
        assert_eq!(rig.queue.take_report(), Some(violation));
        assert_eq!(rig.queue.take_report(), None, "told once");
        assert!(!rig.queue.arm(), "nothing more to take");
        rig.queue.complete(ticket, 9);
        assert!(rig.queue.publish());
        assert_eq!(rig.driver.take_used(), Some(Used { token: 1, len: 9 }));
        rig.queue.latch(Violation::BufferOrder);
        assert_eq!(rig.queue.violation(), Some(violation), "the first one stays");
    }
}

#[test]
fn a_peeked_chain_stays_until_it_is_taken() {
    for format in [Format::Split, Format::Packed] {
        let mut rig = Rig::new(ring(format, 4, true, 0));
        let one = Buffer { gpa: 512, len: 8, device_writes: false };
        rig.driver.add(&[one], 1).unwrap();
        rig.driver.publish();
        for _ in 0..3 {
            assert_eq!(rig.peek(), Some(vec![one]));
            assert_eq!(rig.queue.in_flight(), 0);
        }
        let (ticket, _) = rig.take().unwrap();
        assert_eq!(rig.peek(), None);
        rig.queue.complete(ticket, 0);
    }
}

#[test]
fn impossible_rings_are_refused_before_anything_is_changed() {
    use super::rig::spec;
    use crate::Queue;
    let rig = Rig::new(ring(Format::Split, 8, true, 0));
    let make = || spec(&rig.map, rig.places, rig.ring, 0);
    let refusal = |change: &dyn Fn(&mut crate::QueueSpec)| {
        let mut spec = make();
        change(&mut spec);
        Queue::new(spec).expect_err("refused")
    };
    assert_eq!(refusal(&|spec| spec.size = 0), SetupError::Size(0));
    assert_eq!(refusal(&|spec| spec.size = 6), SetupError::Size(6));
    assert_eq!(refusal(&|spec| spec.size = 32769), SetupError::Size(32769));
    assert_eq!(refusal(&|spec| spec.base = 65536), SetupError::Base(65536));
    let short = refusal(&|spec| spec.device = spec.device.window(0, 4).unwrap());
    assert_eq!(short, SetupError::Short { part: "device", have: 4, need: 70 });
    let odd = |at| rig.area(at, 4096);
    let unaligned = |part, align| SetupError::Unaligned { part, align };
    assert_eq!(refusal(&|spec| spec.descriptors = odd(8)), unaligned("descriptor", 16));
    assert_eq!(refusal(&|spec| spec.driver = odd(1)), unaligned("driver", 2));
    assert_eq!(refusal(&|spec| spec.device = odd(2)), unaligned("device", 4));
}

#[test]
fn a_hint_to_the_processor_changes_nothing() {
    for spec in all_rings() {
        let mut rig = Rig::new(spec);
        rig.queue.prefetch();
        let piece = [Buffer { gpa: 0, len: 64, device_writes: true }];
        rig.driver.add(&piece, 5).unwrap();
        rig.driver.publish();
        rig.queue.prefetch();
        assert_eq!(rig.serve(), 1, "{spec:?}");
        rig.queue.publish();
        assert_eq!(rig.driver.take_used().map(|used| used.token), Some(5), "{spec:?}");
    }
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "dropped without completion")]
fn a_ticket_that_nobody_spends_is_a_fault_of_ours() {
    let mut rig = Rig::new(ring(Format::Split, 8, false, 0));
    rig.driver.add(&[Buffer { gpa: 0, len: 64, device_writes: true }], 5).unwrap();
    rig.driver.publish();
    drop(rig.take());
}
