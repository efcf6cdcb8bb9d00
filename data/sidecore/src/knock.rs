//! What a kick costs: how long a wake-up of this thread takes, and what the guest pays beside it.
//!
//! Control now and then wakes a sidecore that sleeps, as a guest does, and stamps when; the sidecore
//! subtracts. Not what the price decides (`schedule`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use schedule::Nanos;

use crate::bell::Bell;

/// What the guest pays for a kick: an exit, a write to an eventfd, and the way back. Nothing here can
/// measure it; 2 us is usual with hardware virtualisation.
const GUEST_NS: u64 = 2_000;
/// A kick costs as much at least, and at most: what is measured beyond says more about the machine's
/// other work than about a kick.
const KICK_NS_MIN: u64 = 2_000;
const KICK_NS_MAX: u64 = 200_000;
/// A stamp that is older was for a sidecore that did not sleep any more.
const WAKING_NS_MAX: u64 = 1_000_000;
/// A waking costs as much: what this core spends, and four times that for the guest that waits meanwhile. By
/// the core's time alone a guest that asks every 30 us would be kicked for each request, at five times the
/// latency, for a core that has nothing else to do.
const WAKING_WEIGHT: u64 = 5;
/// A new value counts for one part in so many.
const WEIGHT: u64 = 4;

/// The last stamp, nanoseconds since the clock's start; 0 when it was taken.
#[derive(Debug, Default)]
pub(crate) struct Knock {
    start: OnceLock<Instant>,
    at: AtomicU64,
}

impl Knock {
    fn begin(&self, start: Instant) {
        let _ = self.start.set(start);
    }

    /// By control, before it wakes. False when there is nobody to wake.
    pub(crate) fn stamp(&self, now: Instant, bell: &Bell) -> bool {
        let Some(start) = self.start.get().filter(|_| bell.is_asleep()) else { return false };
        let at = now.saturating_duration_since(*start).as_nanos() as u64;
        self.at.store(at.max(1), Ordering::Relaxed);
        true
    }

    /// By the sidecore, after each sleep: how long this waking took, if it was one by a stamp.
    fn took(&self, now: Nanos) -> Option<u64> {
        let at = self.at.load(Ordering::Relaxed);
        if at == 0 {
            return None;
        }
        self.at.store(0, Ordering::Relaxed);
        let took = now.since(Nanos(at));
        (at <= now.0 && took <= WAKING_NS_MAX).then_some(took)
    }
}

/// What a kick costs this sidecore, as far as its wakings have told.
#[derive(Debug)]
pub(crate) struct KickCost {
    knock: Arc<Knock>,
    ns: u64,
}

impl KickCost {
    /// So much until the first waking by `knock`.
    pub(crate) fn new(knock: Arc<Knock>, usual_ns: u32) -> KickCost {
        KickCost { knock, ns: usual_ns.into() }
    }

    /// Told once: the zero of the sidecore's clock.
    pub(crate) fn begin(&self, start: Instant) {
        self.knock.begin(start);
    }

    /// After a sleep that ended at `now`: another price, nanoseconds, if it was ended to learn that.
    pub(crate) fn learn(&mut self, now: Nanos) -> Option<u64> {
        self.ns = price(self.ns, self.knock.took(now)?);
        Some(self.ns)
    }
}

/// The price of a kick after a waking that took so long, nanoseconds: moved towards it by a quarter.
fn price(old_ns: u64, woke_ns: u64) -> u64 {
    let kick_ns = (woke_ns * WAKING_WEIGHT + GUEST_NS).clamp(KICK_NS_MIN, KICK_NS_MAX);
    (old_ns * (WEIGHT - 1) + kick_ns) / WEIGHT
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rest::eventfd;

    #[test]
    fn a_stamp_is_for_a_sleeper_and_is_taken_once() {
        let start = crate::thread::instant();
        let knock = Knock::default();
        let bell = Bell::new(&Arc::new(eventfd().unwrap()));
        let at = |ns| start + Duration::from_nanos(ns);
        knock.begin(start);
        assert!(!knock.stamp(at(5_000), &bell), "nobody sleeps");
        assert_eq!(knock.took(Nanos(9_000)), None);
        bell.sleep();
        assert!(knock.stamp(at(5_000), &bell));
        assert_eq!(knock.took(Nanos(9_000)), Some(4_000));
        assert_eq!(knock.took(Nanos(9_000)), None, "taken");
        assert!(knock.stamp(at(5_000), &bell));
        assert_eq!(knock.took(Nanos(1_005_001)), None, "it was awake then");
        assert!(knock.stamp(at(5_000), &bell));
        assert_eq!(knock.took(Nanos(4_000)), None, "before it was stamped");
    }

    #[test]
    fn the_price_follows_what_is_measured_within_bounds() {
        let after = |woke_ns| (0..100).fold(40_000, |old_ns, _| price(old_ns, woke_ns));
        assert!((21_990..=22_004).contains(&after(4_000)));
        assert!((2_000..=2_004).contains(&after(0)));
        assert!((199_990..=200_000).contains(&after(1_000_000)));
        assert_eq!(price(10_000, 12_000), 23_000);
    }
}
