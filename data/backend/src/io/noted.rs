//! Places of queues that are to be looked at at a moment, each once.
//!
//! A look at the moment that comes first is one load. What has come is found by a walk over the list, which is small and
//! in one piece; whoever is noted or forgotten is found at once. Memory is taken beforehand.

/// Not in the list.
const NONE: u16 = u16::MAX;

#[derive(Debug)]
pub(super) struct Noted {
    /// Moments, nanoseconds, and whose they are.
    list: Vec<(u64, u16)>,
    /// By place: where it stands in `list`.
    places: Vec<u16>,
    /// Not after the first of them; `u64::MAX` when there are none.
    first_ns: u64,
}

impl Noted {
    pub(super) fn new() -> Noted {
        Noted { list: Vec::new(), places: Vec::new(), first_ns: u64::MAX }
    }

    /// Takes the memory for so many places.
    pub(super) fn reserve(&mut self, places: usize) {
        self.list.reserve(places.saturating_sub(self.list.len()));
        self.places.resize(places.max(self.places.len()), NONE);
    }

    /// For how many places there is memory.
    pub(super) fn expected(&self) -> usize {
        self.list.capacity()
    }

    /// The place is to be looked at at that moment, or before.
    pub(super) fn note(&mut self, place: u16, at_ns: u64) {
        if usize::from(place) >= self.places.len() {
            self.reserve(usize::from(place) + 1);
        }
        self.first_ns = self.first_ns.min(at_ns);
        let known = self.places.get(usize::from(place)).map_or(NONE, |at| *at);
        if let Some((noted_ns, _)) = self.list.get_mut(usize::from(known)) {
            *noted_ns = at_ns.min(*noted_ns);
            return;
        }
        if let Some(at) = self.places.get_mut(usize::from(place)) {
            *at = self.list.len() as u16;
        }
        self.list.push((at_ns, place));
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    #[inline]
    pub(super) fn first_ns(&self) -> u64 {
        self.first_ns
    }

    /// The next place whose moment has come, which is noted no more. A walk begins with `left` as [`Self::len`] and ends
    /// with `None`; what is noted meanwhile is of the next one.
    pub(super) fn take(&mut self, now_ns: u64, left: &mut usize) -> Option<u16> {
        while let Some(at) = left.checked_sub(1) {
            *left = at;
            if let Some((due_ns, place)) = self.list.get(at).copied()
                && due_ns <= now_ns
            {
                self.strike(at, place);
                return Some(place);
            }
        }
        self.find_first();
        None
    }

    /// Nobody is to look at it.
    pub(super) fn forget(&mut self, place: u16) {
        let known = self.places.get(usize::from(place)).map_or(NONE, |at| *at);
        if known != NONE {
            self.strike(known.into(), place);
            self.find_first();
        }
    }

    fn strike(&mut self, at: usize, place: u16) {
        if at >= self.list.len() {
            return;
        }
        self.list.swap_remove(at);
        if let Some(stands) = self.places.get_mut(usize::from(place)) {
            *stands = NONE;
        }
        if let Some((_, moved)) = self.list.get(at)
            && let Some(stands) = self.places.get_mut(usize::from(*moved))
        {
            *stands = at as u16;
        }
    }

    fn find_first(&mut self) {
        self.first_ns = self.list.iter().map(|(at_ns, _)| *at_ns).min().unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(noted: &mut Noted, now_ns: u64) -> Vec<u16> {
        let mut left = noted.len();
        let mut taken: Vec<u16> = std::iter::from_fn(|| noted.take(now_ns, &mut left)).collect();
        taken.sort_unstable();
        taken
    }

    #[test]
    fn a_place_is_looked_at_when_its_moment_comes_and_not_before() {
        let mut noted = Noted::new();
        noted.reserve(8);
        let memory = noted.expected();
        assert_eq!((noted.first_ns(), taken(&mut noted, u64::MAX - 1)), (u64::MAX, vec![]));
        for (place, at_ns) in [(0, 30), (5, 10), (7, 20), (2, 10)] {
            noted.note(place, at_ns);
        }
        // The earlier of two moments counts, and none is there twice.
        noted.note(0, 15);
        noted.note(0, 40);
        assert_eq!((noted.first_ns(), noted.len(), taken(&mut noted, 9)), (10, 4, vec![]));
        assert_eq!(taken(&mut noted, 15), [0, 2, 5]);
        assert_eq!((noted.first_ns(), noted.len()), (20, 1));
        noted.note(5, 12);
        noted.forget(7);
        noted.forget(7);
        assert_eq!((noted.first_ns(), noted.len()), (12, 1));
        noted.forget(5);
        assert_eq!((noted.first_ns(), noted.len(), noted.expected()), (u64::MAX, 0, memory));
    }

    #[test]
    fn what_is_noted_in_a_walk_is_of_the_next_one() {
        let mut noted = Noted::new();
        (0..6).for_each(|place| noted.note(place, u64::from(place % 2)));
        let (mut left, mut walked) = (noted.len(), 0);
        while let Some(place) = noted.take(0, &mut left) {
            noted.note(place, 0);
            walked += 1;
        }
        assert_eq!((walked, noted.first_ns(), noted.len()), (3, 0, 6));
        assert_eq!(taken(&mut noted, 1), [0, 1, 2, 3, 4, 5]);
    }
}
