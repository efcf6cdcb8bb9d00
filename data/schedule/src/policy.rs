//! When a queue is polled and when it is armed: the five policies.
//!
//! A queue's part is told of visits, kicks, and completions, and answers *poll on* or *arm*. Not the
//! arming itself, which needs the ring: the caller enables kicks and looks again. Called by `schedule`.

mod adaptive;
mod elvis;

use crate::budget::Visited;
use crate::nanos::Nanos;

use adaptive::{Adaptive, Patience};
use elvis::Elvis;

/// When to poll a queue and when to wait for its kick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Poll always: the least latency, for a core that is never free.
    Poll,
    /// Poll only while there is work: the fewest cycles, a kick for each burst.
    Notify,
    /// Poll on for as long as that pays by what a kick costs and what the last gaps were: in sum at
    /// most twice what the better of the two above would have cost, but for one look a gap.
    #[default]
    Adaptive,
    /// As ES2 does: arm when a visit leaves the ring empty and took fewer requests than the quota.
    Es2 {
        /// Requests. 0 never arms.
        quota: u16,
    },
    /// As ELVIS does: poll from a rate of kicks on, until too few requests come.
    Elvis {
        /// Kicks a second from which on it is polled; taken over a millisecond.
        rate_in: u32,
        /// Requests a second below which it is armed again; the same.
        rate_out: u32,
    },
}

impl Policy {
    /// ES2 for streams that go one way (its authors': UDP).
    pub const ES2_ONE_WAY: Policy = Policy::Es2 { quota: 8 };
    /// ES2 for requests whose answers are awaited, which come in shorter bursts (its authors': TCP).
    pub const ES2_AWAITED: Policy = Policy::Es2 { quota: 4 };
    /// ELVIS with rates of ours: its authors name none.
    pub const ELVIS: Policy = Policy::Elvis { rate_in: 10_000, rate_out: 5_000 };

    /// Whether a queue that is held, and took nothing for `waited_ns`, may wait for a completion
    /// without being polled. It is polled for as long as a kick takes: a fast disk answers sooner.
    #[inline]
    pub(crate) fn waits(self, visited: Visited, waited_ns: u64, kick: u32) -> bool {
        self != Policy::Poll && visited.is_stuck() && waited_ns >= u64::from(kick)
    }
}

/// What things cost in the pass under way, nanoseconds of the core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prices {
    /// A kick: waking, and the guest's exit.
    pub(crate) kick: u32,
    /// A look that finds nothing.
    look: u32,
    /// The time for which it was one look.
    pass: u32,
}

impl Prices {
    /// When the last pass took `pass_ns` and a look takes `look_ns`; a queue that alone keeps its core
    /// awake costs all of the time.
    #[inline]
    pub(crate) fn of_pass(kick: u32, look_ns: u32, pass_ns: u64, is_alone: bool) -> Prices {
        let pass = u32::try_from(pass_ns).unwrap_or(u32::MAX);
        if is_alone {
            // A thread that slept did not poll: so no pass costs as much as a kick.
            let pass = pass.min((kick / 2).max(1));
            return Prices { kick, look: pass, pass };
        }
        Prices { kick, look: look_ns.min(pass), pass }
    }

    /// What looking on for `time_ns` would cost.
    fn of_looking(self, time_ns: u64) -> u32 {
        let time = u128::from(time_ns) * u128::from(self.look) / u128::from(self.pass.max(1));
        u32::try_from(time).unwrap_or(u32::MAX)
    }
}

/// The state of one queue that its visits need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Polling {
    pub(crate) policy: Policy,
    /// Spent on looks in this gap, and when to arm, at the latest with a reason to wait.
    spent: u32,
    limit: u32,
    most: u32,
    /// Gaps that no look fell into, not yet told to the sums.
    at_once: u8,
    /// The last visit left the ring empty.
    emptied: bool,
    /// A kick came, and no visit since.
    kicked: bool,
}

/// The state that is needed only where a gap ends, or a window of `elvis`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Learned {
    adaptive: Adaptive,
    elvis: Elvis,
    armed_at: Nanos,
    /// Of the pass in which it was armed.
    prices: Prices,
}

impl Polling {
    /// Of a queue about which nothing is known: `adaptive` polls it for what a kick costs.
    pub(crate) fn new(policy: Policy, kick: u32) -> Polling {
        let Patience { usual: limit, most } = Adaptive::default().patience(kick);
        Polling { policy, spent: 0, limit, most, at_once: 0, emptied: false, kicked: false }
    }

    /// What a visit at `now` came to: true to arm the queue, if it is empty still.
    #[inline]
    pub(crate) fn visited(
        &mut self,
        learned: &mut Learned,
        visited: Visited,
        prices: Prices,
        now: Nanos,
    ) -> bool {
        let empty = visited.left_empty();
        match self.policy {
            Policy::Poll => false,
            Policy::Notify => empty,
            Policy::Es2 { quota } => empty && visited.requests < u32::from(quota),
            Policy::Elvis { rate_in, rate_out } => {
                let kicked = std::mem::take(&mut self.kicked);
                !learned.elvis.polls_on((rate_in, rate_out), visited.requests, kicked, now) && empty
            }
            Policy::Adaptive => {
                if visited.found_work() || self.kicked {
                    if self.kicked || self.spent > 0 {
                        self.ended(learned, prices.kick, now);
                    } else {
                        self.at_once = self.at_once.saturating_add(self.emptied.into());
                    }
                    self.emptied = empty;
                } else {
                    if self.at_once > 0 {
                        self.decide(learned, prices.kick);
                    }
                    self.spent = self.spent.saturating_add(prices.look);
                }
                empty && self.spent >= self.limit
            }
        }
    }

    /// It was armed, and now a kick came; a visit follows.
    #[inline]
    pub(crate) fn kicked(&mut self) {
        self.kicked = true;
    }

    /// It was armed after the visit at `now`.
    pub(crate) fn armed(&mut self, learned: &mut Learned, prices: Prices, now: Nanos) {
        (learned.armed_at, learned.prices) = (now, prices);
    }

    /// It was to be armed, and had something. No kick is paid.
    pub(crate) fn found(&mut self, learned: &mut Learned, kick: u32, now: Nanos) {
        if self.spent > 0 {
            self.ended(learned, kick, now);
        } else {
            self.at_once = self.at_once.saturating_add(self.emptied.into());
        }
        self.emptied = false;
    }

    /// Its back-end completed something, so its guest may ask again soon: a reason to spend another
    /// kick's price, as far as there is slack. False when it is to be armed all the same.
    #[inline]
    pub(crate) fn completed(&mut self, kick: u32) -> bool {
        if self.policy != Policy::Adaptive {
            return true;
        }
        if self.spent > 0 {
            self.limit = self.limit.max(self.spent.saturating_add(kick).min(self.most));
        }
        self.spent < self.limit
    }

    /// The gap is over: it is learned from.
    #[cold]
    fn ended(&mut self, learned: &mut Learned, kick: u32, now: Nanos) {
        let spent = std::mem::take(&mut self.spent);
        let kicked = std::mem::take(&mut self.kicked);
        let mut poll = spent;
        if kicked {
            // What is known is when it was visited, which is later than its request by about what a kick
            // takes.
            let time_ns = now.since(learned.armed_at).saturating_sub(kick.into());
            poll = poll.saturating_add(learned.prices.of_looking(time_ns));
        }
        learned.adaptive.ended(poll, spent, kicked, kick);
        self.decide(learned, kick);
    }

    /// How long to poll in the next gap, or in this one, which has just begun.
    #[cold]
    fn decide(&mut self, learned: &mut Learned, kick: u32) {
        learned.adaptive.ended_at_once(std::mem::take(&mut self.at_once), kick);
        let Patience { usual, most } = learned.adaptive.patience(kick);
        (self.limit, self.most) = (usual, most);
    }
}

#[cfg(test)]
mod tests;
