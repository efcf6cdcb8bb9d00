//! Requests that ended in the pass that took them: how long that took is known when the clock is read next.
//!
//! Not the histogram (`latency`). Counted by `visit` and `reap`.

use schedule::Nanos;

use crate::latency::Latency;
use crate::places::disk_at;
use crate::sidecore::Sidecore;

/// Those of one queue that are not in its histogram yet.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    requests: u64,
    /// Not after the first of them was taken.
    since: Nanos,
}

impl Answered {
    /// So many more, taken at `at`. True when there was none.
    #[inline]
    pub(crate) fn add(&mut self, requests: u64, at: Nanos) -> bool {
        let is_first = self.requests == 0;
        if is_first {
            self.since = at;
        }
        self.requests += requests;
        is_first
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// They took until `now`, at most.
    #[inline]
    pub(crate) fn clock(&mut self, latency: &Latency, now: Nanos) {
        latency.add(now.since(self.since), std::mem::take(&mut self.requests));
    }
}

impl Sidecore {
    /// What was answered at once in the last pass took until now, at most.
    #[inline]
    pub(crate) fn clock_answered(&mut self, now: Nanos) {
        for queue in self.unclocked.drain(..) {
            if let Some((ring, disk)) = disk_at(&mut self.places, queue) {
                disk.answered.clock(&ring.counters.latency, now);
            }
        }
    }
}
