//! One load: warmed up, then done between two markers that the kernel below sees.
//!
//! Not what the load does. Used by all loads.

use anyhow::{Result, ensure};
use testing::clock::now_ns;
use testing::histogram::Histogram;

use crate::orders::{Answer, MARKER_BEGIN, MARKER_END};

/// Operations of an order: minutes of the fastest load there is.
const OPERATIONS_MAX: u64 = 1_000_000_000;
/// Repeats begin within a minute; who ordered them waits two.
const FOR_MS_MAX: u32 = 60_000;
/// Operations of a warm-up: caches, and what a connection or device grows to at first.
const WARM_UP_MIN: u64 = 16;
/// More do not change it, but cost time.
const WARM_UP_MAX: u64 = 1000;

/// How much of a load is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amount {
    /// At a time.
    operations: u64,
    /// Until so many nanoseconds have passed; 0 is once.
    for_ns: u64,
}

impl Amount {
    /// So many operations, again and again for so many milliseconds, if any.
    ///
    /// # Errors
    /// Which of them is out of bounds.
    pub(super) fn new(operations: u64, for_ms: Option<u32>) -> Result<Amount> {
        let range = 1..=OPERATIONS_MAX;
        ensure!(range.contains(&operations), "operations: {operations}, not 1 to {OPERATIONS_MAX}");
        let for_ms = for_ms.unwrap_or(0);
        ensure!(for_ms <= FOR_MS_MAX, "for_ms: {for_ms}, not 0 to {FOR_MS_MAX}");
        Ok(Amount { operations, for_ns: u64::from(for_ms) * 1_000_000 })
    }

    #[cfg(test)]
    pub(super) fn once(operations: u64) -> Amount {
        Amount { operations, for_ns: 0 }
    }
}

/// Lets `load` do so many operations, measured, after it has done a tenth of them. `load` says how many it
/// did, and has waited for all of them.
///
/// # Errors
/// What `load` says, or that it did another number of them.
pub(super) fn measure(
    amount: Amount,
    load: impl FnMut(u64, &mut Histogram) -> Result<u64>,
) -> Result<Answer> {
    between(amount, mark, now_ns, load)
}

fn between(
    amount: Amount,
    mut mark: impl FnMut(u32),
    mut now_ns: impl FnMut() -> u64,
    mut load: impl FnMut(u64, &mut Histogram) -> Result<u64>,
) -> Result<Answer> {
    let mut latency = Histogram::default();
    load(warm_up(amount.operations), &mut latency)?;
    latency.clear();
    mark(MARKER_BEGIN);
    let from = now_ns();
    let mut operations = 0;
    let (ended, elapsed_ns) = loop {
        let done = load(amount.operations, &mut latency);
        let elapsed_ns = now_ns() - from;
        operations += amount.operations;
        let is_whole = matches!(&done, Ok(count) if *count == amount.operations);
        if !is_whole || elapsed_ns >= amount.for_ns {
            break (done, elapsed_ns);
        }
    };
    // Also of a load that failed: the kernel must stop counting.
    mark(MARKER_END);
    let (done, wanted) = (ended?, amount.operations);
    ensure!(done == wanted, "{done} operations were done, not {wanted}");
    let (p50_ns, p99_ns) = (latency.percentile(50), latency.percentile(99));
    Ok(Answer::Done { operations, elapsed_ns, p50_ns, p99_ns })
}

fn warm_up(operations: u64) -> u64 {
    (operations / 10).clamp(WARM_UP_MIN, WARM_UP_MAX)
}

/// CPUID always exits, and the tracepoint for it knows the leaf. Other machines have no such instruction,
/// and no lab.
pub(super) fn mark(leaf: u32) {
    #[cfg(target_arch = "x86_64")]
    std::hint::black_box(std::arch::x86_64::__cpuid(leaf));
    #[cfg(not(target_arch = "x86_64"))]
    let _ = leaf;
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use anyhow::bail;

    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    enum Seen {
        Marker(u32),
        Load(u64),
    }

    /// What happens when the runs after the warm-up end as `end` says, each 3 ms on.
    fn seen(
        operations: u64,
        for_ms: Option<u32>,
        end: impl Fn(u64) -> Result<u64>,
    ) -> (Vec<Seen>, Result<Answer>) {
        let seen = RefCell::new(Vec::new());
        let mark = |leaf| seen.borrow_mut().push(Seen::Marker(leaf));
        let mut clock = 7;
        let now_ns = || {
            clock += 3_000_000;
            clock
        };
        let mut warm = false;
        let answer = Amount::new(operations, for_ms).and_then(|amount| {
            between(amount, mark, now_ns, |count, latency| {
                seen.borrow_mut().push(Seen::Load(count));
                latency.record(if warm { 5 } else { 1_000_000 });
                if std::mem::replace(&mut warm, true) { end(count) } else { Ok(count) }
            })
        });
        (seen.into_inner(), answer)
    }

    #[test]
    fn only_what_follows_the_warm_up_is_between_the_markers() {
        let (seen, answer) = seen(5000, None, Ok);
        assert_eq!(
            seen,
            [
                Seen::Load(500),
                Seen::Marker(0x4c41_0001),
                Seen::Load(5000),
                Seen::Marker(0x4c41_0002)
            ]
        );
        let done = Answer::Done { operations: 5000, elapsed_ns: 3_000_000, p50_ns: 5, p99_ns: 5 };
        assert_eq!(answer.ok(), Some(done));
    }

    #[test]
    fn a_load_for_a_time_is_repeated_between_the_same_markers() {
        for (for_ms, repeats) in [(0, 1), (1, 1), (3, 1), (4, 2), (59_999, 20_000)] {
            let (seen, answer) = seen(20, Some(for_ms), Ok);
            let markers = [seen.get(1), seen.last()];
            let ends = [Seen::Marker(MARKER_BEGIN), Seen::Marker(MARKER_END)];
            assert_eq!(markers, ends.each_ref().map(Some));
            assert_eq!(seen.iter().filter(|seen| **seen == Seen::Load(20)).count(), repeats);
            let operations = 20 * repeats as u64;
            let elapsed_ns = 3_000_000 * repeats as u64;
            let done = Answer::Done { operations, elapsed_ns, p50_ns: 5, p99_ns: 5 };
            assert_eq!(answer.ok(), Some(done), "{for_ms}");
        }
    }

    #[test]
    fn amounts_are_bounded() {
        for (operations, for_ms, why) in [
            (0, None, "operations: 0, not 1 to 1000000000"),
            (1_000_000_001, None, "operations: 1000000001, not 1 to 1000000000"),
            (1, Some(60_001), "for_ms: 60001, not 0 to 60000"),
        ] {
            let said = Amount::new(operations, for_ms).map_err(|error| error.to_string());
            assert_eq!(said.err().as_deref(), Some(why));
        }
        assert!(Amount::new(1_000_000_000, Some(60_000)).is_ok());
    }

    #[test]
    fn a_load_that_fails_ends_its_markers() {
        for for_ms in [None, Some(60_000)] {
            let (failed, answer) = seen(10, for_ms, |_| bail!("broken"));
            assert_eq!((failed.len(), failed.last()), (4, Some(&Seen::Marker(MARKER_END))));
            assert_eq!(answer.map_err(|e| e.to_string()), Err("broken".to_owned()));
            let (short, answer) = seen(10, for_ms, |count| Ok(count - 1));
            assert_eq!((short.len(), short.last()), (4, Some(&Seen::Marker(MARKER_END))));
            let said = "9 operations were done, not 10".to_owned();
            assert_eq!(answer.map_err(|e| e.to_string()), Err(said));
        }
    }

    #[test]
    fn a_warm_up_is_a_tenth_within_bounds() {
        assert_eq!([1, 160, 170, 5000, 1_000_000].map(warm_up), [16, 16, 17, 500, 1000]);
    }

    #[test]
    fn a_marker_needs_no_privilege() {
        mark(MARKER_BEGIN);
        mark(MARKER_END);
    }
}
