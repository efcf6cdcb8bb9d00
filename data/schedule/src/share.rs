//! Deficit round robin: what each queue may do in a pass, in proportion to its share.
//!
//! Credit is kept in three currencies, requests, bytes and time, and a queue stops when one is used up.
//! So a queue of small requests, one of large ones and one of slow ones each get their part of what they
//! use most.
//!
//! A pass gives a queue `visit maximum x share / largest share among the queues left wanting more
//! in the last pass`. The largest of the hungry gets whole visits; a queue without rivals gets them
//! too, whatever its share, so shares cost nothing until there is something to divide.

use crate::budget::{Budget, Limits};

/// The share of a queue that nobody set.
pub const SHARE_USUAL: u32 = 100;

/// The largest share; the least is 1.
pub const SHARE_MAX: u32 = 10_000;

/// A queue in debt has a visit in every so many passes, and what it still owes then is forgiven: one
/// huge request, or a very small share, starves nobody. Shares are therefore kept up to 64 times the
/// requests of a visit, 2048 to 1.
pub const REPAY_PASSES_MAX: u32 = 64;

/// A visit is charged the time of so many at most: what takes longer is a thread that others held up.
const TIME_VISITS_MAX: i64 = 8;

/// One request in the currency of `Credit::requests`: fractions let small shares add up.
const REQUEST: i64 = 1 << 16;

/// So much, of each currency.
#[derive(Clone, Copy, Debug, Default)]
struct Credit {
    requests: i64,
    bytes: i64,
    nanos: i64,
}

/// The account of one queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    share: u32,
    credit: Credit,
    /// What a pass gives, worked out for `rival`.
    quantum: Credit,
    /// The largest hungry share that `quantum` was worked out for; 0: none.
    rival: u32,
    /// Passes left out in a row.
    owing: u32,
}

impl Account {
    /// An account that holds nothing and owes nothing.
    pub(crate) fn new(share: u32, limits: &Limits) -> Account {
        let share = share.clamp(1, SHARE_MAX);
        let quantum = quantum(share, 0, limits);
        Account { share, credit: Credit::default(), quantum, rival: 0, owing: 0 }
    }

    pub(crate) fn share(&self) -> u32 {
        self.share
    }

    /// Another share from the next pass on. What it has and owes stays.
    pub(crate) fn set_share(&mut self, share: u32, limits: &Limits) {
        self.share = share.clamp(1, SHARE_MAX);
        self.quantum = quantum(self.share, self.rival, limits);
    }

    /// Gives what a pass gives, `rival` being the largest share among the hungry (0: nobody is).
    /// `None` when the queue still owes. What was not used before is not saved up.
    #[inline]
    pub(crate) fn budget(&mut self, rival: u32, limits: &Limits) -> Option<Budget> {
        if self.rival != rival {
            self.rival = rival;
            self.quantum = quantum(self.share, rival, limits);
        }
        let Credit { requests, bytes, nanos } = self.quantum;
        self.credit.requests = (self.credit.requests + requests).min(requests);
        self.credit.bytes = (self.credit.bytes + bytes).min(bytes);
        self.credit.nanos = (self.credit.nanos + nanos).min(nanos);
        if self.credit.requests <= 0 || self.credit.bytes <= 0 || self.credit.nanos <= 0 {
            self.owing += 1;
            if self.owing < REPAY_PASSES_MAX {
                return None;
            }
            self.credit = self.quantum;
        }
        self.owing = 0;
        // A fraction of a request is rounded up and owed.
        let requests = (self.credit.requests + REQUEST - 1) / REQUEST;
        let (bytes, nanos) = (self.credit.bytes as u64, self.credit.nanos as u64);
        Some(Budget { requests: requests as u32, bytes, nanos })
    }

    /// Whether something of its last turn is left, in each currency.
    pub(crate) fn has_credit(&self) -> bool {
        let Credit { requests, bytes, nanos } = self.credit;
        requests > 0 && bytes > 0 && nanos > 0
    }

    /// Takes off what was used. A request may be larger than the budget's rest: that is owed.
    #[inline]
    pub(crate) fn charge(&mut self, requests: u32, bytes: u64, nanos: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let nanos =
            i64::try_from(nanos).unwrap_or(i64::MAX).min(self.quantum.nanos * TIME_VISITS_MAX);
        self.credit.requests = self.credit.requests.saturating_sub(i64::from(requests) * REQUEST);
        self.credit.bytes = self.credit.bytes.saturating_sub(bytes);
        self.credit.nanos = self.credit.nanos.saturating_sub(nanos);
    }
}

/// What a pass gives to `share` when the largest hungry share is `rival`. At least 1 of each, and
/// at most a whole visit.
fn quantum(share: u32, rival: u32, limits: &Limits) -> Credit {
    let largest = i64::from(rival.max(share));
    let share = if rival == 0 { largest } else { i64::from(share) };
    let requests = i64::from(limits.visit_requests_max) * REQUEST * share / largest;
    let bytes = limits.visit_bytes_max as i64 * share / largest;
    let nanos = limits.visit_ns_max as i64 * share / largest;
    Credit { requests: requests.max(1), bytes: bytes.max(1), nanos: nanos.max(1) }
}

// The largest product above: a visit's bytes, or its time, times the largest share.
const _: () = assert!((1i64 << 40).checked_mul(SHARE_MAX as i64).is_some());
const _: () = assert!(((1i64 << 16) * REQUEST).checked_mul(SHARE_MAX as i64).is_some());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_rivals_every_share_gets_whole_visits() {
        let limits = Limits::default();
        for share in [1, 100, SHARE_MAX] {
            let budget = Account::new(share, &limits).budget(0, &limits);
            assert_eq!(budget, Some(Budget { requests: 32, bytes: 1 << 20, nanos: 25_000 }));
        }
    }

    #[test]
    fn fractions_of_a_request_add_up() {
        let limits = Limits::default();
        let mut account = Account::new(10, &limits);
        let mut taken = 0;
        for _ in 0..1000 {
            if let Some(budget) = account.budget(1000, &limits) {
                account.charge(budget.requests, 0, 0);
                taken += budget.requests;
            }
        }
        // 32 requests x 10 / 1000 = 0.32 a pass.
        assert!((319..=321).contains(&taken), "{taken}");
    }

    #[test]
    fn time_beyond_a_visit_is_repaid() {
        let limits = Limits::default();
        let mut account = Account::new(100, &limits);
        assert!(account.budget(100, &limits).is_some());
        account.charge(1, 4096, 3 * limits.visit_ns_max);
        let waits = (0..10).take_while(|_| account.budget(100, &limits).is_none()).count();
        assert_eq!(waits, 2);
    }

    #[test]
    fn a_huge_request_is_repaid_but_not_for_ever() {
        let limits = Limits::default();
        let mut account = Account::new(100, &limits);
        account.charge(1, 10 << 20, 0);
        let waits = (0..1000).take_while(|_| account.budget(100, &limits).is_none()).count();
        assert_eq!(waits, 10);
        account.charge(1, u64::MAX, 0);
        let waits = (0..1000).take_while(|_| account.budget(100, &limits).is_none()).count();
        assert_eq!(waits as u32, REPAY_PASSES_MAX - 1);
    }
}
