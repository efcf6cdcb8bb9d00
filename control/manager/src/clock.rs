//! The clock, and who reads it: the loops of the shell, which wait.
//!
//! All else goes by the time of its turn ([`crate::turn::Turn`]), or is told the time.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The monotonic clock.
#[expect(clippy::disallowed_methods, reason = "control's one reader of the clock")]
pub(crate) fn now() -> Instant {
    #[cfg(any(test, feature = "simulated"))]
    if let Some(now) = crate::simulated::now() {
        return now;
    }
    Instant::now()
}

/// How long this machine was suspended so far, nanoseconds.
pub(crate) fn suspended_ns() -> u64 {
    #[cfg(any(test, feature = "simulated"))]
    if crate::simulated::now().is_some() {
        return 0;
    }
    let ns = |clock| {
        let time = clock_gettime(clock);
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + time.tv_nsec as u64
    };
    ns(ClockId::Boottime).saturating_sub(ns(ClockId::Monotonic))
}

/// The monotonic clock, which is the same for all processes of a machine, at `at`: nanoseconds.
pub(crate) fn machine_ns(at: Instant) -> u64 {
    #[cfg(any(test, feature = "simulated"))]
    if crate::simulated::now().is_some() {
        return sidecore::nanos_of(at).0;
    }
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
    let ns = seconds.saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0));
    before(ns, now().saturating_duration_since(at))
}

fn before(now_ns: u64, time: Duration) -> u64 {
    now_ns.saturating_sub(time.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_before_is_less_by_the_time_between() {
        assert_eq!(before(5_000_000_000, Duration::from_millis(100)), 4_900_000_000);
        // Of a clock that began later.
        assert_eq!(before(5, Duration::from_millis(100)), 0);
    }
}
