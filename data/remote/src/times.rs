//! When: a time for each of many small numbers, the earliest at hand. A heap that knows where each of them is.
//!
//! To change one costs the logarithm of how many there are. Called by `client` and `iohost`.

/// The times.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Each is not later than the two below it.
    heap: Vec<(u64, usize)>,
    /// By number: its place in the heap.
    places: Vec<Option<usize>>,
}

impl Times {
    /// Takes the memory for all numbers below `count`.
    pub(crate) fn fit(&mut self, count: usize) {
        if self.places.len() < count {
            self.places.resize(count, None);
            self.heap.reserve(count - self.heap.len());
        }
    }

    /// The earliest, and whose it is.
    pub(crate) fn first(&self) -> Option<(u64, usize)> {
        self.heap.first().copied()
    }

    /// The time of `one` from now on.
    pub(crate) fn set(&mut self, one: usize, at: u64) {
        self.fit(one + 1);
        let place = match self.places[one] {
            Some(place) => {
                self.heap[place].0 = at;
                place
            }
            None => {
                self.heap.push((at, one));
                self.heap.len() - 1
            }
        };
        self.places[one] = Some(place);
        self.settle(place);
    }

    /// It has none any more.
    pub(crate) fn remove(&mut self, one: usize) {
        let Some(place) = self.places.get_mut(one).and_then(Option::take) else { return };
        self.heap.swap_remove(place);
        if let Some((_, moved)) = self.heap.get(place) {
            self.places[*moved] = Some(place);
            self.settle(place);
        }
    }

    /// Moves what is at `place` to where it belongs.
    fn settle(&mut self, mut place: usize) {
        while place > 0 && self.heap[place] < self.heap[(place - 1) / 2] {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
        loop {
            let below = [2 * place + 1, 2 * place + 2];
            let least = below.into_iter().filter(|one| *one < self.heap.len());
            let Some(least) = least.min_by_key(|one| self.heap[*one]) else { return };
            if self.heap[place] <= self.heap[least] {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        for place in [one, other] {
            self.places[self.heap[place].1] = Some(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use random::Random;

    use super::*;

    #[test]
    fn the_first_is_the_earliest_whatever_was_set_and_removed() {
        for seed in 0..20 {
            let mut random = Random::new(seed, 0);
            let (mut times, mut truth) = (Times::default(), BTreeMap::new());
            for _ in 0..2000 {
                let one = random.below(40) as usize;
                if random.one_in(3) {
                    times.remove(one);
                    truth.remove(&one);
                } else {
                    let at = random.below(1000);
                    times.set(one, at);
                    truth.insert(one, at);
                }
                let earliest = truth.values().min().copied();
                assert_eq!(times.first().map(|(at, _)| at), earliest);
                assert!(times.first().is_none_or(|(at, one)| truth[&one] == at));
                assert_eq!(times.heap.len(), truth.len());
            }
        }
    }
}
