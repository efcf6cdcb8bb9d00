//! Baseline: one loop that polls every queue of its core in turn, always, as SPDK's pollers do.
//!
//! Up to 32 requests a visit whatever their size, as SPDK's vhost-blk takes them
//! (`SPDK_VHOST_VQ_MAX_SUBMISSIONS`); nobody kicks, nothing sleeps. Written for the comparison only.

use crate::costs::{LOOK_NS, VISIT_NS};
use crate::measure::CoreMeasures;
use crate::ring::Rings;
use crate::world::Core;

const VISIT_REQUESTS_MAX: u32 = 32;

#[derive(Clone, Copy, Debug)]
enum At {
    /// About to look at the queue whose turn it is.
    Look,
    /// In a visit that took so many.
    Visit(u32),
    /// Round and round: every ring was empty at this moment.
    Spin(u64),
}

#[derive(Debug)]
pub(crate) struct RoundRobin {
    core: usize,
    queues: Vec<u16>,
    /// Whose turn it is.
    turn: usize,
    at: At,
    due: u64,
}

impl RoundRobin {
    pub(crate) fn new(core: usize, queues: Vec<u16>) -> RoundRobin {
        RoundRobin { core, queues, turn: 0, at: At::Spin(0), due: 0 }
    }
}

impl Core for RoundRobin {
    fn due(&self) -> Option<u64> {
        (!matches!(self.at, At::Spin(_))).then_some(self.due)
    }

    /// What it would have looked at until now is counted, not simulated.
    fn arrived(&mut self, now: u64) {
        if let At::Spin(since) = self.at {
            let looks = now.saturating_sub(since).div_ceil(LOOK_NS);
            self.turn = (self.turn + looks as usize) % self.queues.len();
            self.due = since + looks * LOOK_NS;
            self.at = At::Look;
        }
    }

    fn step(&mut self, rings: &mut Rings) {
        let now = self.due;
        let queue = self.queues[self.turn];
        match self.at {
            At::Spin(_) => {}
            At::Look if rings.waiting_at(self.core) == 0 => self.at = At::Spin(now),
            At::Look if rings.is_empty(queue) => {
                self.turn = (self.turn + 1) % self.queues.len();
                self.due = now + LOOK_NS;
            }
            At::Look => {
                self.at = At::Visit(0);
                self.due = now + VISIT_NS;
            }
            At::Visit(taken) => {
                let next = if taken < VISIT_REQUESTS_MAX { rings.take(queue) } else { None };
                if let Some(request) = next {
                    self.due = now + rings.way.request_ns(request.bytes);
                    self.at = At::Visit(taken + 1);
                } else {
                    self.due = now + rings.way.call_ns;
                    rings.show(queue, self.due + rings.way.reply_ns);
                    self.turn = (self.turn + 1) % self.queues.len();
                    self.at = At::Look;
                }
            }
        }
    }

    fn kicked(&mut self, _queue: u16, _now: u64) {}

    fn measures(&self, now: u64) -> CoreMeasures {
        CoreMeasures { awake_ns: now, sleeps: 0 }
    }
}
