//! `adaptive`: how long polling pays, from what the last gaps cost.
//!
//! A *gap* is the time from a visit that left the ring empty to the next request. Everything here is
//! in nanoseconds of a core's time, the one currency. For a gap whose polling costs p, and a kick of
//! price C, the fixed choices pay
//!
//! ```text
//!   poll    p                               never armed
//!   notify  C                               armed at once
//!   spin    p, or 2 C when p is above C     polled until C is spent, then armed
//! ```
//!
//! and a queue that is armed after it spent T pays p when that is at most T, else T + C.
//!
//! # Why it pays at most twice the better of `poll` and `notify`
//!
//! Let A be what was paid, P and N what `poll` and `notify` would have paid. With A <= 2 P and
//! A <= 2 N before a gap, both hold after it, whatever p is, for every T with
//!
//! ```text
//!   C - (2 P - A)  <=  T  <=  C + (2 N - A)
//! ```
//!
//! for p <= T because P grows by p, and N by C where p <= C + (2 N - A); for p > T because A grows by
//! T + C, N by C, and P by more than T. T = C is always among them, and what the two slacks in
//! brackets allow is used for what looks best: the longest T where `poll` was cheapest lately, the
//! shortest where `notify` was. A kick is paid when it comes, so in a gap that never ends A is at most
//! 2 N + C. Forgetting makes the slacks smaller and changes nothing else.
//!
//! Every gap is seen whole, armed or not, so no choice has to be tried for what it would tell.
//!
//! Not the time at which a queue polls, nor what a look costs (`policy`).

/// Polling that is not known to be cheaper ends here at the latest, and no gap counts for more: in
/// prices of a kick. From 2 on this takes nothing from what `poll` should win.
const LONGEST: u32 = 4;
/// Gaps after which what came before them counts half.
const HALVED_AFTER: u16 = 64;

/// The sums of one queue. Nanoseconds of a core, saturating.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Adaptive {
    /// What the last gaps cost each of the fixed choices.
    poll: u32,
    notify: u32,
    spin: u32,
    /// 2 P - A and 2 N - A, or less.
    slack_poll: u32,
    slack_notify: u32,
    /// Gaps since the last halving.
    gaps: u16,
}

/// When to stop polling in a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// Arm when so much was spent.
    pub(crate) usual: u32,
    /// What may be spent at most, when there is a reason to wait longer.
    pub(crate) most: u32,
}

impl Adaptive {
    /// Most that a gap counts for.
    #[inline]
    pub(crate) fn gap_max(kick: u32) -> u32 {
        kick.saturating_mul(LONGEST)
    }

    /// For the next gap. `usual` is at most `most`.
    pub(crate) fn patience(&self, kick: u32) -> Patience {
        let most = kick.saturating_add(self.slack_notify);
        let usual = if self.spin <= self.poll && self.spin <= self.notify {
            kick
        } else if self.poll <= self.notify {
            Adaptive::gap_max(kick).min(most)
        } else {
            kick.saturating_sub(self.slack_poll)
        };
        Patience { usual, most }
    }

    /// Gaps that ended before the ring was looked at again: free for who polls.
    pub(crate) fn ended_at_once(&mut self, gaps: u8, kick: u32) {
        let gaps = u16::from(gaps).min(HALVED_AFTER);
        let kicks = kick.saturating_mul(gaps.into());
        self.notify = self.notify.saturating_add(kicks);
        self.slack_notify = self.slack_notify.saturating_add(kicks.saturating_mul(2));
        self.age(gaps);
    }

    /// A gap whose polling cost, or would have cost, `poll`. Of this `spent` was spent, and then, when
    /// `kicked`, a kick.
    pub(crate) fn ended(&mut self, poll: u32, spent: u32, kicked: bool, kick: u32) {
        let poll = poll.min(Adaptive::gap_max(kick)).max(spent);
        let spin = if poll <= kick { poll } else { kick.saturating_mul(2) };
        let paid = if kicked { spent.saturating_add(kick) } else { spent };
        self.poll = self.poll.saturating_add(poll);
        self.notify = self.notify.saturating_add(kick);
        self.spin = self.spin.saturating_add(spin);
        let slack =
            |had: u32, fixed: u32| had.saturating_add(fixed.saturating_mul(2)).saturating_sub(paid);
        self.slack_poll = slack(self.slack_poll, poll);
        self.slack_notify = slack(self.slack_notify, kick);
        self.age(1);
    }

    fn age(&mut self, gaps: u16) {
        self.gaps += gaps;
        if self.gaps < HALVED_AFTER {
            return;
        }
        self.gaps = 0;
        let sums = [&mut self.poll, &mut self.notify, &mut self.spin];
        for sum in sums.into_iter().chain([&mut self.slack_poll, &mut self.slack_notify]) {
            *sum /= 2;
        }
    }
}

#[cfg(test)]
mod tests;
