//! When a queue may stop being polled: the three policies.
//!
//! Not the arming itself, which needs the ring: the caller enables kicks and looks again.

use crate::budget::Visited;
use crate::nanos::Nanos;

/// When to poll a queue and when to wait for its kick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Poll always: the least latency, for a core that is never free.
    Poll,
    /// Poll only while there is work: the fewest cycles, a kick for each burst.
    Notify,
    /// Poll on for a while after the last work, then wait for a kick.
    #[default]
    Adaptive,
}

impl Policy {
    /// Whether a queue whose last work was at `last_work` should be armed after a visit at `now`.
    #[inline]
    pub(crate) fn arms(self, visited: Visited, last_work: Nanos, now: Nanos, spin_ns: u64) -> bool {
        match self {
            Policy::Poll => false,
            Policy::Notify => !visited.more && !visited.held && !visited.later,
            Policy::Adaptive => !visited.found_work() && now.since(last_work) >= spin_ns,
        }
    }
}

impl Policy {
    /// Whether a queue that is held, and took nothing since `last_work`, may wait for a completion
    /// without being polled. After as long as one without work is polled: a fast disk answers sooner.
    #[inline]
    pub(crate) fn waits(
        self,
        visited: Visited,
        last_work: Nanos,
        now: Nanos,
        spin_ns: u64,
    ) -> bool {
        self != Policy::Poll && visited.is_stuck() && now.since(last_work) >= spin_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_rests_when_it_should() {
        let empty = Visited::default();
        let worked = Visited { requests: 1, ..empty };
        let held = Visited { more: true, held: true, ..empty };
        let rests = |policy: Policy, visited, waited_ns: u64| {
            policy.arms(visited, Nanos(1000), Nanos(1000 + waited_ns), 50)
        };
        assert!(!rests(Policy::Poll, empty, 1 << 40));
        assert!(rests(Policy::Notify, empty, 0));
        assert!(rests(Policy::Notify, worked, 0));
        assert!(!rests(Policy::Notify, held, 1 << 40));
        assert!(!rests(Policy::Adaptive, empty, 49));
        assert!(rests(Policy::Adaptive, empty, 50));
        assert!(!rests(Policy::Adaptive, worked, 1 << 40));
        assert!(!rests(Policy::Adaptive, held, 1 << 40));
        let later = Visited { later: true, ..empty };
        for policy in [Policy::Poll, Policy::Notify, Policy::Adaptive] {
            assert!(!rests(policy, later, 1 << 40), "{policy:?}: nobody would kick for it");
            assert!(!policy.waits(later, Nanos(1000), Nanos(1 << 40), 50), "{policy:?}");
        }
        assert!(!Visited { later: true, more: true, ..empty }.wants_more());
    }

    #[test]
    fn what_is_held_waits_for_its_disk_and_not_for_a_kick() {
        let held = Visited { more: true, held: true, ..Visited::default() };
        let waits = |policy: Policy, visited, waited_ns: u64| {
            policy.waits(visited, Nanos(1000), Nanos(1000 + waited_ns), 50)
        };
        assert!(!waits(Policy::Poll, held, 1 << 40));
        assert!(!waits(Policy::Adaptive, held, 49));
        assert!(waits(Policy::Adaptive, held, 50));
        assert!(waits(Policy::Notify, held, 50));
        assert!(!waits(Policy::Adaptive, Visited { requests: 1, ..held }, 1 << 40));
        assert!(!waits(Policy::Adaptive, Visited::default(), 1 << 40));
    }
}
