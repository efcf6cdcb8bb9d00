//! The time of an IOhost's leases: the sidecore's, and what the machine was suspended for beside.
//!
//! Called by `host`, once for a pass that has something to do with its link.

use schedule::Nanos;

/// A suspension of the machine that is shorter cannot be told from the two clocks being read one after the other.
const SUSPENDED_MIN_NS: u64 = 1_000_000;

/// What a link's clock says when the sidecore's says something: they go on alike but for suspensions.
pub(super) struct Clock {
    suspended_ns: fn() -> u64,
    suspended: u64,
}

impl Clock {
    /// By what `suspended_ns` says.
    pub(super) fn new(suspended_ns: fn() -> u64) -> Clock {
        Clock { suspended_ns, suspended: suspended_ns() }
    }

    /// That of `now`; reads how long the machine was suspended.
    pub(super) fn read(&mut self, now: Nanos) -> u64 {
        let suspended = (self.suspended_ns)();
        if suspended >= self.suspended.saturating_add(SUSPENDED_MIN_NS) {
            self.suspended = suspended;
        }
        self.known(now)
    }

    /// As far as it was read.
    pub(super) fn known(&self, now: Nanos) -> u64 {
        now.0.saturating_add(self.suspended)
    }

    /// When that is by the sidecore's clock.
    pub(super) fn sidecores(&self, at: u64) -> Nanos {
        Nanos(at.saturating_sub(self.suspended))
    }
}
