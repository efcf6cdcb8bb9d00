//! The clock of loads, in one place.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of a clock that only goes forward.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let [seconds, rest] = [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds * 1_000_000_000 + rest
}
