//! What is due without an event: one moment for each owner.
//!
//! It is made anew whenever it is asked for, of what owners say then: levels, as all that is settled. What is due and
//! how long nothing is are two questions to one table, so that nobody is woken for what nobody does.

use std::collections::BTreeMap;

/// Owners `K`, in the order in which what is due is done, and the moment `T` of each that has one.
#[derive(Clone, Debug)]
pub struct Timers<K, T>(BTreeMap<K, T>);

impl<K, T> Default for Timers<K, T> {
    fn default() -> Timers<K, T> {
        Timers(BTreeMap::new())
    }
}

impl<K: Ord + Copy, T: Ord + Copy> Timers<K, T> {
    /// Something of that owner is due at the earliest of these; nothing is, where there is none.
    pub fn set(&mut self, owner: K, at: impl IntoIterator<Item = T>) {
        let earliest = at.into_iter().chain(self.0.get(&owner).copied()).min();
        earliest.into_iter().for_each(|at| {
            self.0.insert(owner, at);
        });
    }

    /// When the first thing is due.
    pub fn next(&self) -> Option<T> {
        self.0.values().min().copied()
    }

    /// Whose time has come, in their order.
    pub fn due(&self, now: T) -> Vec<K> {
        self.0.iter().filter(|(_, at)| **at <= now).map(|(owner, _)| *owner).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_moment_of_an_owner_counts_and_whoever_is_due_comes_in_order() {
        let mut timers = Timers::default();
        assert_eq!((timers.next(), timers.due(9)), (None, vec![]));
        timers.set('b', [7, 5, 6]);
        timers.set('a', Some(8));
        timers.set('c', None);
        timers.set('b', [9]);
        timers.set('d', [5]);
        assert_eq!(timers.next(), Some(5));
        assert_eq!(timers.due(4), vec![]);
        assert_eq!(timers.due(5), vec!['b', 'd']);
        assert_eq!(timers.due(8), vec!['a', 'b', 'd']);
    }
}
