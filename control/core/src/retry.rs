//! A device that could not be opened: whether it is tried again, and when.
//!
//! Not here: how it is opened, and who waits for it. Of an attempt that failed:
//!
//! | obstacle | first 2 s | later | later, and a device of ours goes |
//! |---|---|---|---|
//! | passing | again | again | again |
//! | ours | again | given up | again |
//! | living | again | given up | given up |
//! | lasting | given up | given up | given up |

use schedule::Nanos;

/// Before the second attempt; each further pause is twice as long, up to [`PAUSE_NS_MAX`]. A lock of an
/// ended process goes with its last request: within milliseconds on a disk that works.
const PAUSE_NS_MIN: u64 = 1_000_000;
const PAUSE_NS_MAX: u64 = 20_000_000;
/// On a disk that does not answer it may never go: then a pause is a sixteenth of what was waited
/// already, up to this. Each attempt opens a device for writing, which has udev look at it afterwards.
const LONG_PAUSE_NS_MAX: u64 = 1_000_000_000;
/// How long a holder that lives is waited for: a process that was just killed still counts as one,
/// and udev locks a block device for a moment after every close.
const LIVING_NS_MAX: u64 = 2_000_000_000;

/// What an attempt met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It passes by itself: what an ended process left in flight, a file system that is late.
    Passing,
    /// Another device of this daemon has it.
    Ours,
    /// A process that lives has it.
    Living,
    /// An operator has to see to it.
    Lasting,
}

/// When a device is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Since when.
    since: Nanos,
    at: Nanos,
    pause_ns: u64,
}

impl Retry {
    /// At once, then with growing pauses.
    pub fn from(now: Nanos) -> Retry {
        Retry { since: now, at: now, pause_ns: PAUSE_NS_MIN }
    }

    /// What it waits for has happened.
    pub fn hurry(&mut self, now: Nanos) {
        self.at = self.at.min(now);
    }

    /// When the next attempt is due.
    pub fn due_at(self) -> Nanos {
        self.at
    }

    /// After an attempt that failed.
    #[must_use]
    pub fn again(self, now: Nanos) -> Retry {
        let most = (now.since(self.since) / 16).clamp(PAUSE_NS_MAX, LONG_PAUSE_NS_MAX);
        let pause_ns = (self.pause_ns * 2).min(most);
        Retry { since: self.since, at: now.after(self.pause_ns), pause_ns }
    }

    /// The same, if the obstacle may still pass by itself. `goes`: some device of ours is about to let go.
    #[must_use]
    pub fn unless_given_up(self, met: Obstacle, goes: bool, now: Nanos) -> Option<Retry> {
        let is_early = now < self.since.after(LIVING_NS_MAX);
        let is_worth = match met {
            Obstacle::Passing => true,
            // The kernel lets go of what a sidecore had a moment after it has said so.
            Obstacle::Ours => goes || is_early,
            Obstacle::Living => is_early,
            Obstacle::Lasting => false,
        };
        is_worth.then(|| self.again(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn each_obstacle_is_waited_for_as_the_table_says() {
        let start = Nanos(7 * SECOND);
        let (early, later) = (Nanos(start.0 + SECOND), Nanos(start.0 + 2 * SECOND));
        let again = |met, now, goes| Retry::from(start).unless_given_up(met, goes, now).is_some();
        for (met, expected) in [
            (Obstacle::Passing, [true, true, true]),
            (Obstacle::Ours, [true, false, true]),
            (Obstacle::Living, [true, false, false]),
            (Obstacle::Lasting, [false, false, false]),
        ] {
            let found = [(early, false), (later, false), (later, true)];
            assert_eq!(found.map(|(now, goes)| again(met, now, goes)), expected, "{met:?}");
        }
        let next = Retry::from(start).unless_given_up(Obstacle::Passing, false, later);
        assert_eq!(next, Some(Retry::from(start).again(later)));
    }

    #[test]
    fn a_disk_that_answers_soon_is_found_soon_and_one_that_does_not_costs_little() {
        let start = Nanos(3);
        let (mut retry, mut attempts_in) = (Retry::from(start), [0, 0]);
        while retry.due_at().0 < start.0 + 120 * SECOND {
            let waited = retry.due_at().0 - start.0;
            attempts_in[usize::from(waited >= 60 * SECOND)] += 1;
            let next = retry.again(retry.due_at());
            assert!(next.at.0 - retry.at.0 <= PAUSE_NS_MAX.max(waited / 16), "{waited}");
            retry = next;
        }
        assert!(attempts_in[0] > 60, "{attempts_in:?}");
        assert_eq!(attempts_in[1], 60);
    }

    #[test]
    fn what_has_happened_is_not_waited_for() {
        let mut retry = Retry::from(Nanos(0)).again(Nanos(5));
        assert_eq!(retry.due_at(), Nanos(5 + PAUSE_NS_MIN));
        retry.hurry(Nanos(9));
        assert_eq!(retry.due_at(), Nanos(9));
        retry.hurry(Nanos(11));
        assert_eq!(retry.due_at(), Nanos(9));
    }
}
