//! One load: warmed up, then done between two markers that the kernel below sees.
//!
//! Not what the load does. The one place of the guest that reads the clock. Used by `block` and `network`.

use anyhow::{Result, ensure};
use rustix::time::{ClockId, clock_gettime};

use super::latency::Latency;
use crate::orders::{Answer, MARKER_BEGIN, MARKER_END};

/// Operations of a warm-up: caches, and what a connection or device grows to at first.
const WARM_UP_MIN: u64 = 16;
/// More do not change it, but cost time.
const WARM_UP_MAX: u64 = 1000;

/// Monotonic nanoseconds. Costs the guest no exit where its clock source is the TSC or kvm-clock.
#[inline]
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Lets `load` do so many operations, measured, after it has done a tenth of them. `load` says how many it
/// did, and has waited for all of them.
///
/// # Errors
/// What `load` says, or that it did another number of them.
pub(super) fn measure(
    operations: u64,
    load: impl FnMut(u64, &mut Latency) -> Result<u64>,
) -> Result<Answer> {
    between(operations, mark, load)
}

fn between(
    operations: u64,
    mut mark: impl FnMut(u32),
    mut load: impl FnMut(u64, &mut Latency) -> Result<u64>,
) -> Result<Answer> {
    let mut latency = Latency::new();
    load(warm_up(operations), &mut latency)?;
    latency.clear();
    mark(MARKER_BEGIN);
    let from = now_ns();
    let done = load(operations, &mut latency);
    let elapsed_ns = now_ns() - from;
    // Also of a load that failed: the kernel must stop counting.
    mark(MARKER_END);
    let done = done?;
    ensure!(done == operations, "{done} operations were done, not {operations}");
    let (p50_ns, p99_ns) = (latency.percentile(50), latency.percentile(99));
    Ok(Answer::Done { operations, elapsed_ns, p50_ns, p99_ns })
}

fn warm_up(operations: u64) -> u64 {
    (operations / 10).clamp(WARM_UP_MIN, WARM_UP_MAX)
}

/// CPUID always exits, and the tracepoint for it knows the leaf. Other machines have no such instruction,
/// and no lab.
fn mark(leaf: u32) {
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

    /// What happens when the second run of a load ends as `end` says.
    fn seen(operations: u64, end: impl Fn(u64) -> Result<u64>) -> (Vec<Seen>, Result<Answer>) {
        let seen = RefCell::new(Vec::new());
        let mark = |leaf| seen.borrow_mut().push(Seen::Marker(leaf));
        let mut warm = false;
        let answer = between(operations, mark, |count, latency| {
            seen.borrow_mut().push(Seen::Load(count));
            latency.record(if warm { 5 } else { 1_000_000 });
            if std::mem::replace(&mut warm, true) { end(count) } else { Ok(count) }
        });
        (seen.into_inner(), answer)
    }

    #[test]
    fn only_what_follows_the_warm_up_is_between_the_markers() {
        let (seen, answer) = seen(5000, Ok);
        assert_eq!(
            seen,
            [
                Seen::Load(500),
                Seen::Marker(0x4c41_0001),
                Seen::Load(5000),
                Seen::Marker(0x4c41_0002)
            ]
        );
        let Ok(Answer::Done { operations: 5000, p50_ns: 5, p99_ns: 5, .. }) = answer else {
            panic!("{answer:?}");
        };
    }

    #[test]
    fn a_load_that_fails_ends_its_markers() {
        let (failed, answer) = seen(10, |_| bail!("broken"));
        assert_eq!(failed.last(), Some(&Seen::Marker(MARKER_END)));
        assert_eq!(answer.map_err(|e| e.to_string()), Err("broken".to_owned()));
        let (short, answer) = seen(10, |count| Ok(count - 1));
        assert_eq!(short.last(), Some(&Seen::Marker(MARKER_END)));
        let said = "9 operations were done, not 10".to_owned();
        assert_eq!(answer.map_err(|e| e.to_string()), Err(said));
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
