//! Sidecores that take of one meter at the same moment, in every interleaving (loom; `./x test unit/loom`).

use std::collections::BTreeSet;

use loom::sync::Arc;
use loom::thread;

use super::{Meter, Rate};
use crate::nanos::Nanos;

/// A thousand a second, and so many at once.
fn meter(burst: u64) -> Arc<Meter> {
    Arc::new(Meter::new(Rate { per_s: 1_000, burst_ns: burst * 1_000_000 }))
}

const NOW: Nanos = Nanos(1_000_000_000);

#[test]
fn loom_each_has_a_moment_of_its_own() {
    loom::model(|| {
        let meter = meter(1);
        let its = Arc::clone(&meter);
        let other = thread::spawn(move || its.take(1, NOW));
        let moments = [meter.take(1, NOW), meter.take(1, NOW), other.join().unwrap()];
        let at: BTreeSet<u64> = moments.iter().map(|moment| moment.0 - NOW.0).collect();
        assert_eq!(at, BTreeSet::from([0, 1_000_000, 2_000_000]));
    });
}

#[test]
fn loom_a_burst_is_had_once() {
    loom::model(|| {
        let meter = meter(3);
        let its = Arc::clone(&meter);
        let other = thread::spawn(move || its.take_due(2, NOW));
        let ours = meter.take_due(2, NOW);
        let theirs = other.join().unwrap();
        assert_eq!(ours + theirs, 3, "{ours} and {theirs} of a burst of 3");
        assert_eq!(meter.take_due(1, NOW), 0);
    });
}
