//! Latencies in log-linear buckets: 128 to an octave, so a quantile is within 0.8% of the truth.

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
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: vec![0; BUCKETS], count: 0 }
    }
}

impl Histogram {
    /// Counts one value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        let bucket = &mut self.buckets[bucket_of(value)];
        *bucket = bucket.saturating_add(1);
        self.count += 1;
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.buckets.fill(0);
        self.count = 0;
    }

    /// The middle of the bucket below which a part `q` (0 to 1) of the values lies; 0 when empty.
    pub fn quantile(&self, q: f64) -> u64 {
        let wanted = (self.count as f64 * q).ceil().max(1.0) as u64;
        let mut below = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            below += u64::from(*count);
            if below >= wanted {
                return value_of(index);
            }
        }
        0
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

#[cfg(test)]
mod tests {
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
}
