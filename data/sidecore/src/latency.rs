//! How long requests took: a log-linear histogram of fixed size, written by one thread and read by
//! others without a lock.
//!
//! Sixteen buckets for each power of two, so a value read back is at most 1/16 off; from 0 ns to
//! beyond a minute.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets for each power of two.
const STEPS: u64 = 16;
/// Powers of two above the linear start: 2^37 ns is 137 s.
const BUCKETS: usize = 16 * 34;

/// Counts by latency.
#[derive(Debug)]
pub(crate) struct Latency {
    buckets: Box<[AtomicU64]>,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Latency {
    /// Counts `times` requests that took `ns` each. Only the owning sidecore calls this.
    #[inline]
    pub(crate) fn add(&self, ns: u64, times: u64) {
        if let Some(bucket) = self.buckets.get(bucket_of(ns)) {
            bucket.store(bucket.load(Ordering::Relaxed) + times, Ordering::Relaxed);
        }
    }

    /// Goes on from counts of another process, each by the number of its bucket.
    pub(crate) fn go_on_from<'a>(&self, parts: impl Iterator<Item = (&'a str, u64)>) {
        for (name, n) in parts {
            let bucket = name.parse().ok().and_then(|at: usize| self.buckets.get(at));
            if let Some(bucket) = bucket {
                bucket.store(n, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn snapshot(&self) -> LatencySnapshot {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        LatencySnapshot { counts }
    }
}

/// The histogram at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencySnapshot {
    counts: Vec<u64>,
}

impl LatencySnapshot {
    /// Requests counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What is in each bucket, by its number.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.counts.iter().copied().enumerate()
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &LatencySnapshot) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
    }

    /// The latency that a share `q` (0 to 1) of the requests did not exceed, nanoseconds, as the
    /// upper end of its bucket; 0 when nothing was counted.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let wanted = (self.count() as f64 * q.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper_end(bucket);
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
    let power = 63 - ns.leading_zeros() as u64;
    let step = (ns >> (power - 4)) & (STEPS - 1);
    (((power - 3) * STEPS + step) as usize).min(BUCKETS - 1)
}

fn upper_end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let (power, step) = (bucket / STEPS + 3, bucket % STEPS);
    ((STEPS + step + 1) << (power - 4)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_falls_in_a_bucket_at_most_a_sixteenth_above_it() {
        for ns in (0..5_000).chain((0..30).map(|p| 12_345u64 << p >> 10)) {
            let end = upper_end(bucket_of(ns));
            assert!(end >= ns && end - ns <= ns / 16 + 1, "{ns} in a bucket up to {end}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_found() {
        let latency = Latency::default();
        assert_eq!(latency.snapshot().quantile_ns(0.5), 0);
        latency.add(10, 98);
        latency.add(1_000, 1);
        latency.add(100_000, 1);
        let snapshot = latency.snapshot();
        assert_eq!(snapshot.count(), 100);
        assert_eq!(snapshot.quantile_ns(0.5), 10);
        assert_eq!(snapshot.quantile_ns(0.99), upper_end(bucket_of(1_000)));
        assert_eq!(snapshot.quantile_ns(1.0), upper_end(bucket_of(100_000)));
    }
}
