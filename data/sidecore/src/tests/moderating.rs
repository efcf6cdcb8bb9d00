//! Calls that wait for more completions: a guest that sleeps until it is called learns of everything.

use std::collections::VecDeque;
use std::sync::Arc;

use backend::Disk;
use proptest::prelude::*;
use schedule::Nanos;
use virtqueue::driver::RingSpec;
use virtqueue::{Chain, Format, Ticket};

use super::bed::*;
use super::file::file;
use crate::alarm::Alarm;
use crate::{Command, Served, ServedSpec};

const WAIT_NS: u32 = 10_000;
const NS: u64 = 1_000;

/// A guest that sleeps until it is called, its ring, and a back-end that completes when it is told to.
struct Bench {
    guest: Guest,
    served: Box<Served>,
    alarm: Alarm,
    chain: Chain,
    tickets: VecDeque<Ticket>,
    now: Nanos,
    /// A call was put off.
    waits: bool,
    asked: usize,
    taken: usize,
    calls: u64,
}

impl Bench {
    fn new(ring: RingSpec, moderate_ns: u32) -> Bench {
        let guest = Guest::new(ring);
        let served = Served::new(ServedSpec { moderate_ns, ..guest.spec(1, &null()) });
        let mut bench = Bench {
            guest,
            served,
            alarm: Alarm::new().unwrap(),
            chain: Chain::default(),
            tickets: VecDeque::new(),
            now: Nanos(1),
            waits: false,
            asked: 0,
            taken: 0,
            calls: 0,
        };
        bench.wake();
        bench
    }

    /// The guest asks for so many more, as far as there is room, and the back-end has them.
    fn ask(&mut self, count: usize) {
        for _ in 0..count.min(60 + self.taken - self.asked) {
            self.guest.add(self.asked % 64, READ, 0, 1);
            self.asked += 1;
        }
        self.guest.driver.publish();
        let ring = &mut self.served.ring;
        while ring.queue.peek(&ring.memory, &mut self.chain) {
            self.tickets.push_back(ring.queue.advance(&self.chain));
        }
    }

    /// The back-end completes so many.
    fn complete(&mut self, count: usize) {
        let ring = &mut self.served.ring;
        for ticket in self.tickets.drain(..count.min(self.tickets.len())) {
            ring.queue.complete(ticket, 0);
            ring.unshown = true;
        }
        self.waits |= ring.publish_reaped(&mut self.alarm, self.now);
        if self.tickets.len() < 4 {
            // What was put off before is told with it: nothing is delayed beyond this.
            let still_waits = ring.publish_put_off(&mut self.alarm, self.now);
            assert!(count == 0 || !still_waits, "the last ones are told of at once");
            self.waits = still_waits;
        }
    }

    fn pass(&mut self, ns: u64) {
        self.now = self.now.after(ns);
        self.waits &= self.served.ring.publish_put_off(&mut self.alarm, self.now);
    }

    /// Called, it takes all there is and sleeps again. Without a call it was told of everything, unless a
    /// call waits.
    fn wake(&mut self) {
        let calls = self.guest.calls();
        self.calls += calls;
        if calls > 0 || self.asked == 0 {
            loop {
                self.taken += self.guest.take().len();
                if !self.guest.driver.arm_calls() {
                    break;
                }
            }
        } else if !self.waits {
            assert!(self.guest.take().is_empty(), "a call was lost");
        }
    }

    fn end(&mut self) {
        self.tickets.drain(..).for_each(Ticket::forfeit);
    }
}

fn ring_like(format: Format, event_index: bool) -> RingSpec {
    RingSpec { format, event_index, ..ring(256) }
}

/// Calls for a hundred requests at depth 32, one completed every microsecond.
fn calls_per_hundred(moderate_ns: u32) -> u64 {
    let mut bench = Bench::new(ring(256), moderate_ns);
    for _ in 0..1000 {
        bench.ask(32 - bench.tickets.len());
        bench.complete(1);
        bench.wake();
        bench.pass(NS);
        bench.wake();
    }
    bench.end();
    bench.calls / 10
}

#[test]
fn at_depth_32_one_call_tells_of_many() {
    assert_eq!((calls_per_hundred(0), calls_per_hundred(WAIT_NS)), (100, 10));
}

#[derive(Clone, Debug)]
enum Step {
    Ask(usize),
    Complete(usize),
    Pass(u64),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_guest_that_sleeps_is_told_of_everything(
        (is_packed, event_index) in any::<(bool, bool)>(),
        steps in prop::collection::vec(prop_oneof![
            (1..40usize).prop_map(Step::Ask),
            (0..12usize).prop_map(Step::Complete),
            (0..15_000u64).prop_map(Step::Pass),
        ], 1..200),
    ) {
        let format = if is_packed { Format::Packed } else { Format::Split };
        let mut bench = Bench::new(ring_like(format, event_index), WAIT_NS);
        for step in steps {
            match step {
                Step::Ask(count) => bench.ask(count),
                Step::Complete(count) => bench.complete(count),
                Step::Pass(ns) => bench.pass(ns),
            }
            bench.wake();
        }
        // Whatever waits is told in time.
        bench.pass(WAIT_NS.into());
        prop_assert!(!bench.waits);
        bench.wake();
        bench.complete(64);
        bench.wake();
        bench.end();
    }
}

#[test]
fn a_disk_with_moderated_calls_loses_none_and_is_awake_while_one_waits() {
    let (_folder, disk): (_, Arc<Disk>) = file();
    let mut guest = Guest::new(ring(256));
    let mut core = Core::new(1);
    let spec = ServedSpec { moderate_ns: 50_000, ..guest.spec(1, &disk) };
    let counters = core.attach(&guest, spec);
    let mut asked = 0;
    for round in 0..200 {
        guest.calls();
        assert!(!guest.driver.arm_calls());
        let count = 1 + round % 40;
        guest.ask(count, WRITE);
        asked += count as u64;
        let mut done = 0;
        while done < count {
            let is_idle = core.pass().is_idle();
            if guest.calls() > 0 {
                done += guest.take_ok();
                while guest.driver.arm_calls() {
                    done += guest.take_ok();
                }
            } else if !core.sidecore.calls.delayed().is_empty() {
                assert!(!core.rest(), "it slept on a call");
            } else if is_idle {
                // Nothing would end that sleep.
                assert!(counters.snapshot().requests < asked, "a call was lost");
                core.rest();
            }
        }
    }
    assert_eq!(counters.snapshot().errors, 0);
    core.send(Command::Detach(key(1)));
    core.passes(2);
}
