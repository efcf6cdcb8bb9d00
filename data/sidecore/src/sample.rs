//! What each queue's visits cost, from samples: of one pass in 32, every visit is timed.
//!
//! Not the time of whole passes, which the thread adds up, nor what a visit is charged for, which
//! `visit` measures where it is long. Called by `sidecore`; control divides a sidecore's busy time among
//! its queues by what is counted here.

use schedule::{Clock, Nanos};

use crate::places::served_at;
use crate::sidecore::Sidecore;

/// Passes to one that is timed, on average: two readings of the clock a visit then cost some 2 ns each,
/// and 100 ms have enough of such passes.
const INTERVAL: u64 = 32;
/// From one to the next, at most; all distances up to it are as likely, so that no guest is in step.
const INTERVAL_MAX: u32 = 2 * INTERVAL as u32 - 1;

/// Which passes are timed.
#[derive(Debug)]
pub(crate) struct Sampling {
    /// Passes to the next.
    left: u32,
    seed: u32,
    /// In the pass that is timed, looks that found nothing, nanoseconds.
    looks_ns: u64,
    /// In the visit that is timed, that of others, nanoseconds.
    pub(crate) interrupted_ns: u64,
}

impl Sampling {
    pub(crate) fn new(seed: u16) -> Sampling {
        let seed = u32::from(seed) + 0x9e37_79b9;
        Sampling { left: INTERVAL as u32, seed, looks_ns: 0, interrupted_ns: 0 }
    }

    /// Whether the pass that begins is to be timed.
    #[inline]
    pub(crate) fn begin(&mut self) -> bool {
        self.left = self.left.wrapping_sub(1);
        self.left == 0 && self.draw()
    }

    /// Whether looks were timed in this pass.
    #[inline]
    pub(crate) fn has_looks(&self) -> bool {
        self.looks_ns > 0
    }

    #[cold]
    fn draw(&mut self) -> bool {
        // xorshift: never 0, if it was not.
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 17;
        self.seed ^= self.seed << 5;
        self.left = 1 + self.seed % INTERVAL_MAX;
        true
    }
}

impl Sidecore {
    /// A visit begins that is timed; gives the time.
    #[cold]
    pub(crate) fn begin_timing(&mut self, clock: &impl Clock) -> Nanos {
        self.sampling.interrupted_ns = 0;
        clock.now()
    }

    /// The visit has ended; gives the time.
    #[cold]
    pub(crate) fn end_timing(
        &mut self,
        queue: u16,
        begun: Nanos,
        requests: u32,
        clock: &impl Clock,
    ) -> Nanos {
        let ended = clock.now();
        let took_ns = ended.since(begun).saturating_sub(self.sampling.interrupted_ns);
        if requests == 0 {
            self.sampling.looks_ns += took_ns;
            return ended;
        }
        self.counters.work_ns.add(took_ns * INTERVAL);
        if let Some(served) = served_at(&mut self.places, queue) {
            served.ring.counters.work_ns.add(took_ns * INTERVAL);
        }
        ended
    }

    /// A pass in which looks were timed has ended; it found work or none.
    #[cold]
    pub(crate) fn end_sample(&mut self, found_work: bool) {
        let looks_ns = std::mem::take(&mut self.sampling.looks_ns);
        if found_work {
            self.counters.looks_ns.add(looks_ns * INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pass_in_32_is_timed_at_no_fixed_distance() {
        for seed in 0..20 {
            let mut sampling = Sampling::new(seed);
            let timed: Vec<u32> = (0..320_000).filter(|_| sampling.begin()).collect();
            assert!((9_700..10_300).contains(&timed.len()), "{} of seed {seed}", timed.len());
            let gaps: Vec<u32> = timed.windows(2).map(|two| two[1] - two[0]).collect();
            for gap in 1..=INTERVAL_MAX {
                assert!(gaps.contains(&gap), "never {gap}");
            }
            assert!(gaps.iter().all(|gap| (1..=INTERVAL_MAX).contains(gap)));
        }
    }
}
