//! Which case begins next: as many at a time as the machine has lanes, the longest ones first.

use crate::suite::Takes;

/// A case that has not begun.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// What it takes.
    pub takes: Takes,
    /// How many seconds it is expected to take.
    pub seconds: u64,
    /// Whether what it needs has been built.
    pub is_ready: bool,
}

/// Least and most lanes, unless the command line says how many.
const LANES: (usize, usize) = (2, 8);

/// How many lanes a machine with so many processors has: what is tested has two threads that work, at least.
pub fn lanes_of(processors: usize) -> usize {
    (processors / 2).clamp(LANES.0, LANES.1)
}

/// The place of the case that begins next beside those that are `running`; none if all have to wait.
///
/// What takes the whole machine comes when nothing else can, so at the end.
pub fn next(waiting: &[Waiting], running: &[Takes], lanes: usize) -> Option<usize> {
    let count = |takes| running.iter().filter(|of| **of == takes).count();
    if count(Takes::Machine) > 0 {
        return None;
    }
    let fits = |takes| match takes {
        Takes::Little | Takes::Lane => count(takes) < lanes,
        Takes::Machine => false,
    };
    let longest = |may_begin: &dyn Fn(Takes) -> bool| {
        let ready = waiting.iter().enumerate().filter(|(_, of)| of.is_ready && may_begin(of.takes));
        // The first of those that are as long.
        ready.rev().max_by_key(|(_, of)| of.seconds).map(|(at, _)| at)
    };
    let beside = longest(&fits);
    let is_last = running.is_empty() && waiting.iter().all(|of| of.takes == Takes::Machine);
    beside.or_else(|| is_last.then(|| longest(&|_| true)).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use Takes::{Lane, Little, Machine};

    fn waiting(of: &[(Takes, u64, bool)]) -> Vec<Waiting> {
        let of = of.iter();
        of.map(|(takes, seconds, is_ready)| Waiting {
            takes: *takes,
            seconds: *seconds,
            is_ready: *is_ready,
        })
        .collect()
    }

    #[test]
    fn the_longest_that_fits_begins() {
        let all = waiting(&[(Lane, 5, true), (Lane, 9, true), (Little, 7, true), (Lane, 9, true)]);
        assert_eq!(next(&all, &[], 2), Some(1));
        assert_eq!(next(&all, &[Lane, Lane], 2), Some(2));
        assert_eq!(next(&all, &[Lane, Lane, Little, Little], 2), None);
        assert_eq!(next(&all, &[Lane, Lane, Little, Little], 3), Some(1));
    }

    #[test]
    fn what_is_not_built_waits() {
        let all = waiting(&[(Lane, 9, false), (Lane, 1, true), (Machine, 3, true)]);
        assert_eq!(next(&all, &[Lane], 2), Some(1));
        let all = waiting(&[(Lane, 9, false), (Machine, 3, true)]);
        assert_eq!(next(&all, &[Lane], 2), None);
    }

    #[test]
    fn what_takes_the_machine_runs_alone_and_last() {
        let all = waiting(&[(Machine, 90, true), (Lane, 1, true)]);
        assert_eq!(next(&all, &[], 2), Some(1));
        let all = waiting(&[(Machine, 3, true), (Machine, 9, true)]);
        assert_eq!(next(&all, &[Little], 2), None);
        assert_eq!(next(&all, &[], 2), Some(1));
        assert_eq!(next(&waiting(&[(Little, 3, true)]), &[Machine], 2), None);
    }

    #[test]
    fn all_of_a_run_begin_once() {
        // As a run does it, each ending before the next one is looked for.
        let mut left = waiting(&[(Lane, 3, true), (Machine, 9, true), (Little, 1, true)]);
        let mut begun = Vec::new();
        while let Some(at) = next(&left, &[], 1) {
            begun.push(left.remove(at).seconds);
        }
        assert_eq!(begun, [3, 1, 9]);
    }

    #[test]
    fn lanes_follow_the_processors() {
        assert_eq!([1, 2, 6, 64].map(lanes_of), [2, 2, 3, 8]);
    }
}
