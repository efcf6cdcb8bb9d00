//! Requests of several queues, in the order in which they were taken.
//!
//! Of each queue they come in the order in which they ended, so one that took long comes late. It is awaited for a while;
//! what took longer is given out of its order. Bounded by the requests of that while.

use std::collections::BTreeMap;
use std::time::Duration;

use config::api::TracedView;

#[derive(Default)]
pub(super) struct Merge {
    /// By when they were taken, and which came first.
    held: BTreeMap<(u64, u64), TracedView>,
    /// Of all that came, the latest moment.
    newest_ns: u64,
    /// When that came, since the command began.
    newest_came: Duration,
    count: u64,
}

impl Merge {
    /// One more, which came then.
    pub(super) fn add(&mut self, entry: TracedView, came: Duration) {
        if entry.at_ns > self.newest_ns {
            (self.newest_ns, self.newest_came) = (entry.at_ns, came);
        }
        self.held.insert((entry.at_ns, self.count), entry);
        self.count += 1;
    }

    /// Those that were taken so long before `asked`, when it was asked for all that have ended. The daemon's clock is at
    /// least as far behind the newest one by then as it is since that came.
    pub(super) fn before(&mut self, time_ns: u64, asked: Duration) -> Vec<TracedView> {
        let since_ns = u64::try_from(asked.saturating_sub(self.newest_came).as_nanos());
        let now_ns = self.newest_ns.saturating_add(since_ns.unwrap_or(u64::MAX));
        let until = now_ns.saturating_sub(time_ns);
        let later = self.held.split_off(&(until.saturating_add(1), 0));
        std::mem::replace(&mut self.held, later).into_values().collect()
    }

    /// All that are left.
    pub(super) fn rest(&mut self) -> Vec<TracedView> {
        std::mem::take(&mut self.held).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use config::api::TracedOp;

    use super::super::tests::entry;
    use super::*;

    #[test]
    fn requests_are_in_the_order_in_which_they_were_taken() {
        const NS: Duration = Duration::from_nanos(1);
        let (mut merge, at_once) = (Merge::default(), Duration::ZERO);
        let add = |merge: &mut Merge, all: &[u64], came: Duration| {
            all.iter().for_each(|at| merge.add(entry(*at, TracedOp::Read, *at, 512), came));
        };
        let at = |all: Vec<TracedView>| all.iter().map(|it| it.at_ns).collect::<Vec<_>>();
        add(&mut merge, &[10, 30, 20, 20], at_once);
        assert_eq!(at(merge.before(10, at_once)), [10, 20, 20]);
        assert!(merge.before(10, at_once).is_empty());
        add(&mut merge, &[25, 5, 45], at_once);
        assert_eq!(at(merge.before(10, at_once)), [5, 25, 30]);
        assert!(merge.before(1_000, at_once).is_empty());
        assert_eq!(at(merge.rest()), [45]);
        // The last ones come without another behind them.
        add(&mut merge, &[50, 60], 7 * NS);
        assert!(merge.before(20, 7 * NS).is_empty());
        add(&mut merge, &[55], 12 * NS);
        assert_eq!(at(merge.before(20, 17 * NS)), [50]);
        assert_eq!(at(merge.before(20, 22 * NS)), [55]);
        assert_eq!(at(merge.before(20, 27 * NS)), [60]);
    }
}
