//! A sidecore: the crate `schedule`, driven as `data/sidecore` drives it, with costs for memory.
//!
//! The order of the calls is that of `Sidecore::pass` and `Sidecore::rest`, and only this file makes
//! them. Back-ends answer at once; commands, completions and roads between sidecores have no part.

use schedule::{Limits, Nanos, Policy, SHARE_USUAL, Schedule, Visit, Visited};

use crate::costs::{
    ARM_NS, CALL_NS, KICKS_NS, LOOK_NS, PASS_NS, REPLY_NS, SLEEP_NS, VISIT_NS, request_ns,
};
use crate::measure::{CoreMeasures, Sleep};
use crate::ring::Rings;
use crate::world::Core;

/// Between two looks for kicks while something is polled (`data/sidecore/src/sidecore.rs`).
const LOOK_INTERVAL_NS: u64 = 50_000;
/// Kicks taken by one look (`data/sidecore/src/rest.rs`).
const EVENTS: usize = 64;
/// Requests after which a visit shows what was completed (`data/sidecore/src/fetch.rs`).
const SHOW_EVERY: u32 = 16;

#[derive(Clone, Copy, Debug)]
enum At {
    /// The start of a pass.
    Pass,
    /// Between two visits.
    Next,
    /// In one.
    Visit(Visit, Visited),
    /// Back from a sleep, or from a wait that was none because something had come.
    Woken,
    Asleep,
}

#[derive(Debug)]
pub(crate) struct Sidecore {
    schedule: Schedule,
    at: At,
    due: u64,
    /// The clock as the pass read it.
    now: Nanos,
    looked: Nanos,
    /// Queues whose eventfd was written since the last look.
    signalled: Vec<u16>,
    /// Whether the pass did anything.
    worked: bool,
    sleep: Sleep,
}

impl Sidecore {
    /// With these of a host's `queues_all` queues.
    pub(crate) fn new(queues: Vec<u16>, queues_all: usize, policy: Policy) -> Sidecore {
        let mut schedule = Schedule::new(Limits::default(), queues_all as u16);
        for queue in queues {
            schedule.add(queue, SHARE_USUAL, policy, Nanos(0));
        }
        Sidecore {
            schedule,
            at: At::Pass,
            due: 0,
            now: Nanos(0),
            looked: Nanos(0),
            signalled: Vec::new(),
            worked: false,
            sleep: Sleep::default(),
        }
    }

    fn begin(&mut self, rings: &mut Rings) -> u64 {
        self.now = Nanos(self.due);
        self.worked = false;
        self.at = At::Next;
        let mut took = PASS_NS;
        if self.now.since(self.looked) >= LOOK_INTERVAL_NS {
            self.look(rings);
            took += KICKS_NS;
        }
        self.schedule.begin(self.now);
        took
    }

    /// Takes kicks. After a sleep with the time before it, as the daemon does.
    fn look(&mut self, rings: &mut Rings) {
        self.looked = self.now;
        for queue in self.signalled.drain(..self.signalled.len().min(EVENTS)) {
            self.worked = true;
            if self.schedule.kicked(queue, self.now) {
                rings.arm(queue, false);
            }
        }
    }

    fn next(&mut self, rings: &mut Rings) -> u64 {
        let Some(visit) = self.schedule.next() else {
            return self.end(rings);
        };
        if rings.is_empty(visit.queue) {
            self.schedule.visited(visit.queue, Visited::default());
            return LOOK_NS;
        }
        self.at = At::Visit(visit, Visited { more: true, ..Visited::default() });
        VISIT_NS
    }

    fn go_on(&mut self, visit: Visit, mut visited: Visited, rings: &mut Rings) -> u64 {
        let Visit { queue, budget } = visit;
        if visited.requests < budget.requests && visited.bytes < budget.bytes {
            if let Some(request) = rings.take(queue) {
                visited.requests += 1;
                visited.bytes += request.bytes;
                self.at = At::Visit(visit, visited);
                let took = request_ns(request.bytes);
                if visited.requests.is_multiple_of(SHOW_EVERY) {
                    rings.show(queue, self.due + took + REPLY_NS);
                }
                return took;
            }
            visited.more = false;
        }
        rings.show(queue, self.due + CALL_NS + REPLY_NS);
        self.worked = true;
        self.schedule.visited(queue, visited);
        self.at = At::Next;
        CALL_NS
    }

    /// The end of a pass: idle queues are armed, and an idle sidecore sleeps.
    fn end(&mut self, rings: &mut Rings) -> u64 {
        let mut took = 0;
        while let Some(queue) = self.schedule.to_arm() {
            took += ARM_NS;
            rings.arm(queue, true);
            if rings.is_empty(queue) {
                self.schedule.armed(queue);
            } else {
                rings.arm(queue, false);
                self.schedule.found(queue);
            }
        }
        self.at = At::Pass;
        if self.worked || !self.schedule.may_rest() {
            return took;
        }
        if !self.signalled.is_empty() {
            self.at = At::Woken;
            return took + KICKS_NS;
        }
        self.at = At::Asleep;
        self.sleep.begin(self.due + took + SLEEP_NS);
        took
    }
}

impl Core for Sidecore {
    fn due(&self) -> Option<u64> {
        (!matches!(self.at, At::Asleep)).then_some(self.due)
    }

    fn step(&mut self, rings: &mut Rings) {
        self.due += match self.at {
            At::Pass => self.begin(rings),
            At::Next => self.next(rings),
            At::Visit(visit, visited) => self.go_on(visit, visited, rings),
            At::Woken => {
                self.look(rings);
                self.at = At::Pass;
                0
            }
            At::Asleep => 0,
        };
    }

    fn kicked(&mut self, queue: u16, now: u64) {
        self.signalled.push(queue);
        if let Some(first) = self.sleep.end(now) {
            self.due = first;
            self.at = At::Woken;
        }
    }

    fn measures(&self, now: u64) -> CoreMeasures {
        self.sleep.measures(now)
    }
}
