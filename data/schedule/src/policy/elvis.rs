//! `elvis`: polled from a rate of kicks on, until the rate of requests falls.
//!
//! Not what a window's time is (an argument), nor the arming.

use crate::nanos::Nanos;

/// Rates are taken over windows of so long.
const WINDOW_NS: u64 = 1_000_000;
/// Windows in a second.
const WINDOWS: u32 = 1000;

/// A queue's window. It begins at the first visit after the last one ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elvis {
    since: Nanos,
    kicks: u32,
    requests: u32,
    is_polled: bool,
}

impl Elvis {
    /// After a visit that took so many requests and, maybe, answered a kick: whether the queue is to
    /// be polled on. `rate_in` are kicks, `rate_out` requests a second; both count as a whole number
    /// of them in a millisecond, at least 1.
    pub(crate) fn polls_on(
        &mut self,
        (rate_in, rate_out): (u32, u32),
        requests: u32,
        kicked: bool,
        now: Nanos,
    ) -> bool {
        if now.since(self.since) >= WINDOW_NS {
            self.is_polled &= self.requests >= (rate_out / WINDOWS).max(1);
            *self = Elvis { since: now, is_polled: self.is_polled, ..Elvis::default() };
        }
        self.kicks += u32::from(kicked);
        self.requests = self.requests.saturating_add(requests);
        if !self.is_polled && self.kicks >= (rate_in / WINDOWS).max(1) {
            // A whole window from now on, before it is asked for requests.
            *self = Elvis { since: now, is_polled: true, requests, ..Elvis::default() };
        }
        self.is_polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: (u32, u32) = (10_000, 5_000);
    const MS: u64 = WINDOW_NS;

    #[test]
    fn ten_kicks_in_a_millisecond_make_it_polled_and_fewer_than_five_requests_end_that() {
        let mut queue = Elvis::default();
        let mut at = |ns: u64, requests, kicked| {
            queue.polls_on(RATES, requests, kicked, Nanos(10 * MS + ns))
        };
        // Nine in each of two windows.
        assert!((0..9).all(|kick| !at(kick, 1, true)));
        assert!((0..9).all(|kick| !at(MS + kick, 1, true)));
        // Ten in one.
        assert!((0..9).all(|kick| !at(2 * MS + kick, 1, true)));
        assert!(at(2 * MS + 9, 1, true));
        // What follows is asked of a whole window.
        assert!(at(3 * MS, 4, false));
        assert!(at(3 * MS + 9, 0, false), "five requests");
        assert!(at(4 * MS + 8, 4, false));
        assert!(!at(4 * MS + 9, 1, false), "four requests");
        assert!(!at(9 * MS, 1000, false), "requests without kicks were found by chance");
    }

    #[test]
    fn rates_below_one_in_a_window_are_one() {
        let mut queue = Elvis::default();
        assert!(queue.polls_on((0, 0), 0, true, Nanos(MS)));
        assert!(!queue.polls_on((0, 0), 0, false, Nanos(2 * MS)));
        let mut queue = Elvis::default();
        assert!(!queue.polls_on((u32::MAX, u32::MAX), u32::MAX, true, Nanos(MS)));
    }
}
