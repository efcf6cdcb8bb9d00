//! No kick and no call is lost, whatever the order in which the two sides move.

use proptest::prelude::*;
use random::often;

use super::rig::{Rig, ring, split};
use crate::Ticket;
use crate::driver::{Buffer, RingSpec};
use crate::layout::Format;

/// What one side does next. A side that rests does nothing until it is told.
#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u8),
    PublishAvailable,
    TakeUsed(u8),
    DriverRests,
    Take(u8),
    /// Which of the held ones.
    Complete(u8),
    /// Without asking whether the guest wants to be called; a publish follows before the rest.
    ShowUsed,
    PublishUsed,
    DeviceRests,
    DisarmCalls,
    Disarm,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1u8..5).prop_map(Step::Add),
        Just(Step::PublishAvailable),
        (1u8..5).prop_map(Step::TakeUsed),
        Just(Step::DriverRests),
        (1u8..5).prop_map(Step::Take),
        any::<u8>().prop_map(Step::Complete),
        any::<u8>().prop_map(Step::Complete),
        Just(Step::ShowUsed),
        Just(Step::PublishUsed),
        Just(Step::DeviceRests),
        Just(Step::DisarmCalls),
        Just(Step::Disarm),
    ]
}

struct Pair {
    rig: Rig,
    held: Vec<Ticket>,
    driver_rests: bool,
    device_rests: bool,
}

impl Pair {
    fn new(spec: RingSpec) -> Pair {
        Pair { rig: Rig::new(spec), held: Vec::new(), driver_rests: false, device_rests: false }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Add(_) | Step::PublishAvailable | Step::TakeUsed(_) | Step::DisarmCalls
                if !self.driver_rests =>
            {
                self.drive(step);
            }
            // What was added is shown before waiting.
            Step::DriverRests if !self.driver_rests => {
                self.drive(Step::PublishAvailable);
                self.driver_rests = !self.rig.driver.arm_calls();
            }
            Step::DeviceRests if !self.device_rests => {
                self.serve(Step::PublishUsed);
                self.device_rests = !self.rig.queue.arm();
            }
            // A completion comes from the back-end, whether the queue is asleep or not; a queue
            // that is asleep shows it before it sleeps on.
            Step::Complete(_) | Step::PublishUsed => {
                self.serve(step);
                if self.device_rests {
                    self.serve(Step::PublishUsed);
                }
            }
            Step::Take(_) | Step::ShowUsed | Step::Disarm if !self.device_rests => {
                self.serve(step);
            }
            _ => {}
        }
    }

    fn drive(&mut self, step: Step) {
        let Rig { driver, .. } = &mut self.rig;
        match step {
            Step::Add(count) => {
                for _ in 0..count {
                    let piece = [Buffer { gpa: 0, len: 64, device_writes: true }];
                    let _full = driver.add(&piece, 0).is_err();
                }
            }
            Step::PublishAvailable => {
                if driver.publish() {
                    self.device_rests = false;
                }
            }
            Step::TakeUsed(count) => {
                for _ in 0..count {
                    driver.take_used();
                }
            }
            _ => driver.disarm_calls(),
        }
    }

    fn serve(&mut self, step: Step) {
        match step {
            Step::Take(count) => {
                for _ in 0..count {
                    let Some((ticket, _)) = self.rig.take() else { break };
                    self.held.push(ticket);
                }
            }
            Step::Complete(which) if !self.held.is_empty() => {
                let ticket = self.held.swap_remove(usize::from(which) % self.held.len());
                self.rig.queue.complete(ticket, 64);
            }
            Step::PublishUsed if self.rig.queue.publish() => self.driver_rests = false,
            Step::ShowUsed => self.rig.queue.show(),
            Step::Disarm => self.rig.queue.disarm(),
            _ => {}
        }
    }

    /// Lets both sides do all that they know of, until both rest; nothing may be left.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 1000, "two sides that wake each other without end");
            while !self.held.is_empty() {
                self.apply(Step::Complete(0));
            }
            self.apply(Step::PublishUsed);
            for step in [Step::Take(255), Step::DeviceRests, Step::TakeUsed(255), Step::DriverRests]
            {
                self.apply(step);
            }
            if self.held.is_empty() && self.driver_rests && self.device_rests {
                break;
            }
        }
        assert_eq!(self.rig.driver.in_flight(), 0, "a lost kick or call");
        assert_eq!(self.rig.driver.fault(), None);
    }
}

fn shapes() -> impl Strategy<Value = RingSpec> {
    let split = prop_oneof![Just(1u16), Just(2), Just(8)].prop_map(|size| (Format::Split, size));
    let packed = prop_oneof![Just(1u16), Just(2), Just(3), Just(7)];
    let packed = packed.prop_map(|size| (Format::Packed, size));
    (prop_oneof![split, packed], any::<bool>())
        .prop_map(|((format, size), event_index)| ring(format, size, event_index, 0))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(often(400, 2000)))]

    /// Row P13: whenever both sides are at rest, nothing is left.
    #[test]
    fn no_kick_and_no_call_is_lost(
        spec in shapes(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut pair = Pair::new(spec);
        for step in steps {
            pair.apply(step);
            if pair.driver_rests && pair.device_rests && pair.held.is_empty() {
                prop_assert_eq!(pair.rig.driver.in_flight(), 0, "both rest");
            }
        }
        pair.settle();
    }
}

#[test]
fn a_disarmed_queue_is_not_kicked() {
    for format in [Format::Split, Format::Packed] {
        for event_index in [false, true] {
            let mut pair = Pair::new(ring(format, 8, event_index, 0));
            pair.apply(Step::Add(1));
            assert!(pair.rig.driver.publish(), "kicks are on at first");
            pair.apply(Step::Take(1));
            pair.rig.queue.disarm();
            pair.apply(Step::Add(2));
            assert!(!pair.rig.driver.publish(), "{format:?} event index {event_index}");
            assert!(pair.rig.queue.arm(), "arming looks again");
            pair.settle();
        }
    }
}

#[test]
fn a_driver_that_wants_no_calls_gets_none() {
    for format in [Format::Split, Format::Packed] {
        for event_index in [false, true] {
            let mut pair = Pair::new(ring(format, 8, event_index, 0));
            pair.rig.driver.disarm_calls();
            pair.apply(Step::Add(4));
            pair.rig.driver.publish();
            for _ in 0..4 {
                let (ticket, _) = pair.rig.take().unwrap();
                pair.rig.queue.complete(ticket, 1);
                assert!(!pair.rig.queue.publish(), "{format:?} event index {event_index}");
            }
            assert!(pair.rig.driver.arm_calls(), "arming looks again");
            pair.settle();
        }
    }
}

#[test]
fn one_call_for_a_batch_that_passes_the_place_asked_for() {
    for format in [Format::Split, Format::Packed] {
        let mut pair = Pair::new(ring(format, 8, true, 0));
        assert!(!pair.rig.driver.arm_calls());
        pair.apply(Step::Add(6));
        pair.rig.driver.publish();
        let mut calls = 0;
        for _ in 0..3 {
            for _ in 0..2 {
                let (ticket, _) = pair.rig.take().unwrap();
                pair.rig.queue.complete(ticket, 1);
            }
            calls += u32::from(pair.rig.queue.publish());
        }
        assert_eq!(calls, 1, "{format:?}: only the first batch passes the place");
        pair.settle();
    }
}

fn publish_one(rig: &mut Rig) -> bool {
    rig.driver.add(&[Buffer { gpa: 0, len: 64, device_writes: true }], 0).unwrap();
    rig.driver.publish()
}

/// Of a queue of receive buffers that do not suffice.
#[test]
fn a_kick_is_asked_for_behind_what_is_there() {
    for event_index in [false, true] {
        let mut rig = Rig::new(ring(Format::Split, 8, event_index, 0));
        for known in 0..3 {
            assert_eq!(rig.queue.arm_behind(), Some(known), "event index {event_index}");
            assert!(publish_one(&mut rig), "no kick behind {known}, event index {event_index}");
            rig.queue.disarm();
            assert!(rig.queue.has_new(&rig.map));
        }
        assert_eq!(rig.serve(), 3);

        let mut rig = Rig::new(ring(Format::Packed, 8, event_index, 0));
        assert_eq!(rig.queue.arm_behind(), Some(0));
        assert!(publish_one(&mut rig));
        rig.queue.disarm();
        assert_eq!(
            rig.queue.arm_behind(),
            None,
            "one is there, and behind it nothing is asked for"
        );
        assert!(!publish_one(&mut rig));
        assert_eq!(rig.serve(), 2);
    }
}

#[test]
fn a_ring_that_breaks_a_rule_is_not_armed_behind_what_is_there() {
    let mut rig = split();
    rig.driver.raw().set_avail_index(300);
    assert_eq!(rig.queue.arm_behind(), None);
    assert!(rig.queue.violation().is_some());
    assert_eq!(rig.queue.arm_behind(), None);
    assert!(!rig.queue.has_new(&rig.map) && rig.peek().is_none());
}
