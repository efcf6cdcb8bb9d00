//! Latencies in log-linear buckets: 128 to an octave, so a quantile is within 0.8% of the truth. Of fixed size: counting
//! allocates nothing.

const STEPS_EXP: u32 = 7;
const STEPS: u64 = 1 << STEPS_EXP;
/// Values from here on share the last bucket: 2^40 ns are 18 minutes.
const VALUE_EXP_MAX: u32 = 40;
const BUCKETS: usize = ((VALUE_EXP_MAX - STEPS_EXP + 1) as usize) << STEPS_EXP;

/// A count for each bucket. Recording allocates nothing.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: Vec<u32>,
    count: u64,
    longest: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: vec![0; BUCKETS], count: 0, longest: 0 }
    }
}

impl Histogram {
    /// Counts one value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        let bucket = &mut self.buckets[bucket_of(value)];
        *bucket = bucket.saturating_add(1);
        self.count += 1;
        self.longest = self.longest.max(value);
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.buckets.fill(0);
        (self.count, self.longest) = (0, 0);
    }

    /// Adds what another has counted.
    pub fn merge(&mut self, other: &Histogram) {
        for (bucket, count) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket = bucket.saturating_add(*count);
        }
        self.count += other.count;
        self.longest = self.longest.max(other.longest);
    }

    /// `percent` of 100 are no more than this, which is at most 0.8% above the truth; 0 when nothing was counted.
    pub fn percentile(&self, percent: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(percent)).div_ceil(100).max(1);
        self.bucket_at(rank as u64).map_or(0, |bucket| last_of(bucket).min(self.longest))
    }

    /// The middle of the bucket below which a part `q` (0 to 1) of the values lies; 0 when empty.
    pub fn quantile(&self, q: f64) -> u64 {
        let wanted = (self.count as f64 * q).ceil().max(1.0) as u64;
        self.bucket_at(wanted).map_or(0, value_of)
    }

    /// The bucket of the value of that rank, from 1.
    fn bucket_at(&self, rank: u64) -> Option<usize> {
        let mut below = 0;
        self.buckets.iter().position(|count| {
            below += u64::from(*count);
            below >= rank
        })
    }
}

#[inline]
fn bucket_of(value: u64) -> usize {
    if value < STEPS {
        return value as usize;
    }
    let exp = value.ilog2();
    if exp >= VALUE_EXP_MAX {
        return BUCKETS - 1;
    }
    let step = value >> (exp - STEPS_EXP) & (STEPS - 1);
    ((u64::from(exp - STEPS_EXP + 1) << STEPS_EXP) + step) as usize
}

fn value_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let shift = (bucket >> STEPS_EXP) - 1;
    let start = (STEPS + bucket % STEPS) << shift;
    start + (1 << shift) / 2
}

/// The largest value of a bucket.
fn last_of(bucket: usize) -> u64 {
    if bucket == BUCKETS - 1 {
        return u64::MAX;
    }
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let shift = (bucket >> STEPS_EXP) - 1;
    ((STEPS + bucket % STEPS + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_bucket_holds_its_own_value_within_one_percent() {
        for exp in 0..VALUE_EXP_MAX {
            for offset in [0, 1, 12_345] {
                let value = (1u64 << exp) + offset;
                let told = value_of(bucket_of(value));
                assert!(told.abs_diff(value) * 100 <= value, "{value} became {told}");
            }
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_of_a_straight_line() {
        let mut line = Histogram::default();
        assert_eq!(line.quantile(0.5), 0);
        (1..=10_000).for_each(|value| line.record(value));
        for (q, truth) in [(0.5, 5_000u64), (0.99, 9_900), (1.0, 10_000)] {
            assert!(line.quantile(q).abs_diff(truth) * 100 <= truth, "{q}");
        }
        assert_eq!(line.count(), 10_000);
    }

    fn of(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        values.iter().for_each(|value| histogram.record(*value));
        histogram
    }

    #[test]
    fn percentiles_of_few_values() {
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
            prop_assert_eq!((merged.count(), merged.longest), (all.count, all.longest));
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
