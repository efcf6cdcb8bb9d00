//! Numbers that are given out: of bridges, and of the ports of a switch.

use std::collections::BTreeSet;

/// Numbers below an end. One that was given back is the last to be given again: frames on their way to another
/// sidecore may name it.
#[derive(Debug)]
pub(crate) struct Numbers {
    taken: BTreeSet<u16>,
    last: u16,
    end: u16,
}

impl Numbers {
    /// Those below `end`, from 0 on.
    pub(crate) fn below(end: u16) -> Numbers {
        Numbers { taken: BTreeSet::new(), last: end.saturating_sub(1), end }
    }

    /// The one that was free for longest, if one is left.
    pub(crate) fn take(&mut self) -> Option<u16> {
        let next = self.last.saturating_add(1);
        let mut round = (next..self.end).chain(0..self.end.min(next));
        let free = round.find(|number| !self.taken.contains(number))?;
        self.last = free;
        self.taken.insert(free);
        Some(free)
    }

    pub(crate) fn give_back(&mut self, number: u16) {
        self.taken.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_given_back_is_the_last_to_be_given_again() {
        let mut numbers = Numbers::below(4);
        let taken: Vec<_> = std::iter::from_fn(|| numbers.take()).collect();
        assert_eq!(taken, [0, 1, 2, 3]);
        numbers.give_back(2);
        numbers.give_back(1);
        assert_eq!((numbers.take(), numbers.take(), numbers.take()), (Some(1), Some(2), None));
        numbers.give_back(1);
        numbers.give_back(3);
        assert_eq!((numbers.take(), numbers.take()), (Some(3), Some(1)));
    }
}
