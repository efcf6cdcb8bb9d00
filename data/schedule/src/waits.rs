//! Queues that wait for a moment, the first one first: a binary heap of which any queue can be taken
//! out. Each step costs the logarithm of the length; memory is taken in `new`.
//!
//! Not why a queue waits (`limit`), nor what it does afterwards (`schedule`).

use crate::nanos::Nanos;

/// Not in the heap.
const NONE: u16 = u16::MAX;

/// The moments of the queues `0..queues_max`, at most one each.
#[derive(Debug)]
pub(crate) struct Waits {
    /// No moment is before that of its parent, which stands at half its index.
    heap: Vec<(Nanos, u16)>,
    /// Where each queue stands in it.
    places: Vec<u16>,
}

impl Waits {
    pub(crate) fn new(queues_max: u16) -> Waits {
        let queues = usize::from(queues_max);
        Waits { heap: Vec::with_capacity(queues), places: vec![NONE; queues] }
    }

    /// The first moment.
    #[inline]
    pub(crate) fn first(&self) -> Option<Nanos> {
        self.heap.first().map(|(moment, _)| *moment)
    }

    /// `queue` waits until `moment`, whatever it waited for before.
    pub(crate) fn insert(&mut self, queue: u16, moment: Nanos) {
        self.remove(queue);
        if usize::from(queue) >= self.places.len() {
            return;
        }
        self.heap.push((moment, queue));
        self.rise(self.heap.len() - 1);
    }

    /// It waits no longer.
    pub(crate) fn remove(&mut self, queue: u16) {
        let Some(place) = self.places.get_mut(usize::from(queue)) else { return };
        let at = usize::from(std::mem::replace(place, NONE));
        let Some(last) = self.heap.len().checked_sub(1).filter(|_| at < self.heap.len()) else {
            return;
        };
        self.heap.swap(at, last);
        self.heap.truncate(last);
        if at < last {
            self.sink(at);
            self.rise(at);
        }
    }

    /// Takes out one whose moment has come, the first one first.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<u16> {
        let (moment, queue) = *self.heap.first()?;
        if moment > now {
            return None;
        }
        self.remove(queue);
        Some(queue)
    }

    fn rise(&mut self, mut at: usize) {
        while let Some(parent) = at.checked_sub(1).map(|before| before / 2)
            && self.is_before(at, parent)
        {
            self.heap.swap(at, parent);
            self.note(at);
            at = parent;
        }
        self.note(at);
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let child = if self.is_before(right, left) { right } else { left };
            if !self.is_before(child, at) {
                return self.note(at);
            }
            self.heap.swap(at, child);
            self.note(at);
            at = child;
        }
    }

    fn is_before(&self, one: usize, other: usize) -> bool {
        match (self.heap.get(one), self.heap.get(other)) {
            (Some((one, _)), Some((other, _))) => one < other,
            _ => false,
        }
    }

    fn note(&mut self, at: usize) {
        let Some((_, queue)) = self.heap.get(at) else { return };
        if let Some(place) = self.places.get_mut(usize::from(*queue)) {
            *place = at as u16;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_moment_comes_first(
            steps in prop::collection::vec((0..10u16, 0..40u64, 0..4u8), 1..300),
        ) {
            let mut waits = Waits::new(8);
            let mut model = BTreeMap::new();
            for (queue, moment, what) in steps {
                match what {
                    0 => {
                        waits.remove(queue);
                        model.remove(&queue);
                    }
                    1 => {
                        let due = waits.pop_due(Nanos(moment));
                        let first = model.values().min().copied();
                        prop_assert_eq!(due.is_some(), first.is_some_and(|at| at <= Nanos(moment)));
                        if let Some(queue) = due {
                            prop_assert_eq!(model.remove(&queue), first);
                        }
                    }
                    _ => {
                        waits.insert(queue, Nanos(moment));
                        // The queues from 8 do not exist.
                        if queue < 8 {
                            model.insert(queue, Nanos(moment));
                        }
                    }
                }
                prop_assert_eq!(waits.first(), model.values().min().copied());
                prop_assert!(waits.heap.capacity() == 8, "memory was taken");
            }
        }
    }
}
