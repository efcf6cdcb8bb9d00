//! How long operations took, in log-linear buckets: 128 to an octave, so what is told is at most 0.8% above
//! the truth. Of fixed size: counting allocates nothing. And the clock that says so.
//!
//! Filled by loads of a guest and by what asks its servers.

use rustix::time::{ClockId, clock_gettime};

const STEPS_EXP: u32 = 7;
const STEPS: u64 = 1 << STEPS_EXP;
/// Values from here on share the last bucket: 2^40 ns are 18 minutes.
const VALUE_EXP_MAX: u32 = 40;
const BUCKETS: usize = ((VALUE_EXP_MAX - STEPS_EXP + 1) as usize) << STEPS_EXP;

/// Monotonic nanoseconds. Costs a guest no exit where its clock source is the TSC or kvm-clock.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A count for each bucket.
#[derive(Debug)]
pub(crate) struct Latency {
    buckets: Box<[u64; BUCKETS]>,
    count: u64,
    longest_ns: u64,
}

impl Latency {
    pub(crate) fn new() -> Latency {
        Latency { buckets: Box::new([0; BUCKETS]), count: 0, longest_ns: 0 }
    }

    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        self.buckets[bucket_of(ns)] += 1;
        self.count += 1;
        self.longest_ns = self.longest_ns.max(ns);
    }

    /// How many were counted.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Adds what another has counted.
    pub(crate) fn merge(&mut self, other: &Latency) {
        for (bucket, count) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *bucket += count;
        }
        self.count += other.count;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    pub(crate) fn clear(&mut self) {
        self.buckets.fill(0);
        (self.count, self.longest_ns) = (0, 0);
    }

    /// `percent` of 100 took no longer than this; 0 when nothing was counted.
    pub(crate) fn percentile(&self, percent: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(percent)).div_ceil(100).max(1);
        let mut below = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            below += u128::from(*count);
            if below >= rank {
                return last_of(bucket).min(self.longest_ns);
            }
        }
        0
    }
}

#[inline]
fn bucket_of(ns: u64) -> usize {
    if ns < STEPS {
        return ns as usize;
    }
    let exp = ns.ilog2();
    if exp >= VALUE_EXP_MAX {
        return BUCKETS - 1;
    }
    let step = ns >> (exp - STEPS_EXP) & (STEPS - 1);
    ((u64::from(exp - STEPS_EXP + 1) << STEPS_EXP) + step) as usize
}

/// The largest value of a bucket.
fn last_of(bucket: usize) -> u64 {
    let bucket_number = bucket as u64;
    if bucket == BUCKETS - 1 {
        return u64::MAX;
    }
    if bucket_number < STEPS {
        return bucket_number;
    }
    let shift = (bucket_number >> STEPS_EXP) - 1;
    ((STEPS + bucket_number % STEPS + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[u64]) -> Latency {
        let mut latency = Latency::new();
        values.iter().for_each(|value| latency.record(*value));
        latency
    }

    #[test]
    fn cases() {
        assert_eq!(of(&[]).percentile(50), 0);
        assert_eq!(of(&[7]).percentile(99), 7);
        assert_eq!(of(&[3, 1, 2]).percentile(50), 2);
        assert_eq!(of(&[4, 3, 1, 2]).percentile(50), 2);
        assert_eq!(of(&[1, 2, 100_000]).percentile(99), 100_000);
        // More than a bucket can tell is told as the longest.
        assert_eq!(of(&[u64::MAX, u64::MAX - 1]).percentile(1), u64::MAX);
        let mut cleared = of(&[5]);
        cleared.clear();
        assert_eq!(cleared.percentile(50), 0);
    }

    proptest! {
        #[test]
        fn two_merged_are_as_one_of_all(
            (one, other) in (vec(any::<u64>(), 0..50), vec(any::<u64>(), 0..50)),
        ) {
            let mut merged = of(&one);
            merged.merge(&of(&other));
            let all = of(&[one, other].concat());
            prop_assert_eq!(&merged.buckets, &all.buckets);
            prop_assert_eq!((merged.count(), merged.longest_ns), (all.count, all.longest_ns));
        }

        /// Beside a sorted list: never below the truth, and 1/128 above at most.
        #[test]
        fn a_percentile_is_that_of_a_sorted_list(
            exps in vec((0u32..39, any::<u64>()), 1..400),
            percent in 1u64..=100,
        ) {
            let mut values: Vec<u64> =
                exps.into_iter().map(|(exp, any)| (1 << exp) + any % (1 << exp)).collect();
            let told = of(&values).percentile(percent);
            values.sort_unstable();
            let truth = values[(values.len() * percent as usize).div_ceil(100) - 1];
            prop_assert!(told >= truth, "{told} for {truth}");
            prop_assert!((told - truth) * STEPS <= truth, "{told} for {truth}");
        }
    }
}
