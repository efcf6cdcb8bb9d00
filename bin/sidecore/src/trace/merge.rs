//! Requests of several queues, in the order in which they were taken.
//!
//! Of each queue they come in the order in which they ended, so one that took long comes late. It is awaited for a while;
//! what took longer is given out of its order. Bounded by the requests of that while.

use std::collections::BTreeMap;

use config::api::TracedView;

#[derive(Default)]
pub(super) struct Merge {
    /// By when they were taken, and which came first.
    held: BTreeMap<(u64, u64), TracedView>,
    /// Of all that came, the latest moment.
    newest_ns: u64,
    count: u64,
}

impl Merge {
    pub(super) fn add(&mut self, entry: TracedView) {
        self.newest_ns = self.newest_ns.max(entry.at_ns);
        self.held.insert((entry.at_ns, self.count), entry);
        self.count += 1;
    }

    /// Those that were taken so long before the newest one.
    pub(super) fn before(&mut self, time_ns: u64) -> Vec<TracedView> {
        let until = self.newest_ns.saturating_sub(time_ns);
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
        let mut merge = Merge::default();
        let add = |merge: &mut Merge, all: &[u64]| {
            all.iter().for_each(|at| merge.add(entry(*at, TracedOp::Read, *at, 512)));
        };
        let at = |all: Vec<TracedView>| all.iter().map(|it| it.at_ns).collect::<Vec<_>>();
        add(&mut merge, &[10, 30, 20, 20]);
        assert_eq!(at(merge.before(10)), [10, 20, 20]);
        assert!(merge.before(10).is_empty());
        add(&mut merge, &[25, 5, 45]);
        assert_eq!(at(merge.before(10)), [5, 25, 30]);
        assert!(merge.before(1_000).is_empty());
        assert_eq!(at(merge.rest()), [45]);
    }
}
