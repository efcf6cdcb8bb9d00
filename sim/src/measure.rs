//! What came out of a run: latencies, rates, what the cores did.
//!
//! Exact: every latency is kept and sorted, nothing is put into buckets.

use crate::costs::{WAKE_CPU_NS, WAKE_NS};

/// Times from the moment a guest put its request to the moment it saw the answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies(Vec<u64>);

impl Latencies {
    pub(crate) fn add(&mut self, latency_ns: u64) {
        self.0.push(latency_ns);
    }

    /// All of several guests, in order.
    pub(crate) fn merged<'a>(all: impl Iterator<Item = &'a Latencies>) -> Latencies {
        let mut merged: Vec<u64> = all.flat_map(|one| one.0.iter().copied()).collect();
        merged.sort_unstable();
        Latencies(merged)
    }

    pub(crate) fn mean_ns(&self) -> Option<u64> {
        let count = self.0.len() as u64;
        let sum: u64 = self.0.iter().sum();
        (sum + count / 2).checked_div(count)
    }

    /// Of merged latencies: what so many of a thousand stay within.
    pub(crate) fn within_ns(&self, per_mille: u64) -> Option<u64> {
        let rank = (self.0.len() as u64 * per_mille).div_ceil(1000).max(1) - 1;
        self.0.get(rank as usize).copied()
    }
}

/// One guest, over the time that was measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuestMeasures {
    pub(crate) latencies: Latencies,
    /// Requests answered, and their bytes.
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) kicks: u64,
    /// Arrivals that found the ring full.
    pub(crate) refused: u64,
}

/// All cores, over the time that was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CoreMeasures {
    /// Not asleep: serving, or looking for something to serve.
    pub(crate) awake_ns: u64,
    pub(crate) sleeps: u64,
}

impl CoreMeasures {
    pub(crate) fn since(self, earlier: CoreMeasures) -> CoreMeasures {
        CoreMeasures {
            awake_ns: self.awake_ns - earlier.awake_ns,
            sleeps: self.sleeps - earlier.sleeps,
        }
    }
}

/// One core's sleep, kept by whoever runs it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sleep {
    since: Option<u64>,
    asleep_ns: u64,
    sleeps: u64,
}

impl Sleep {
    /// A core that has nothing to do from the start.
    pub(crate) fn from_start() -> Sleep {
        Sleep { since: Some(0), ..Sleep::default() }
    }

    pub(crate) fn begin(&mut self, now: u64) {
        self.since = Some(now);
        self.sleeps += 1;
    }

    /// A signal at `now`: when the core's first step is, and none when it does not sleep.
    pub(crate) fn end(&mut self, now: u64) -> Option<u64> {
        let since = self.since.take()?;
        let first = now.max(since) + WAKE_NS;
        self.asleep_ns += first - WAKE_CPU_NS - since;
        Some(first)
    }

    pub(crate) fn measures(&self, now: u64) -> CoreMeasures {
        let asleep_ns = self.asleep_ns + self.since.map_or(0, |since| now.saturating_sub(since));
        CoreMeasures { awake_ns: now.saturating_sub(asleep_ns), sleeps: self.sleeps }
    }
}

/// A run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) span_ns: u64,
    pub(crate) guests: Vec<GuestMeasures>,
    pub(crate) cores: Vec<CoreMeasures>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_the_sorted_list() {
        let one = Latencies((1..=60).rev().collect());
        let two = Latencies((61..=100).collect());
        let merged = Latencies::merged([&one, &two].into_iter());
        assert_eq!(merged.within_ns(500), Some(50));
        assert_eq!(merged.within_ns(990), Some(99));
        assert_eq!(merged.within_ns(1000), Some(100));
        assert_eq!(merged.mean_ns(), Some(51));
        assert_eq!(Latencies::default().within_ns(500), None);
        assert_eq!(Latencies::default().mean_ns(), None);
    }
}
