//! How loaded each sidecore was between the last two looks at its counters, and when the next look is.
//!
//! How loads are counted is the sidecores' affair; what follows from them is `balance`.

use std::time::{Duration, Instant};

use schedule::LOAD_FULL;
use sidecore::SidecoreSnapshot;

use crate::devices::queue::{Found, portion};

/// Between two looks while there is load, or a sidecore that may be parked.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// And otherwise: a look at a thousand queues takes 0.1 ms.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// Counts of a sidecore at the last look.
#[derive(Clone, Copy, Default)]
struct Seen {
    busy_ns: u64,
    idle_ns: u64,
    looks_ns: u64,
    work_ns: u64,
    /// What it worked between the last two looks, thousandths of the time.
    load: u32,
    /// What it was awake for without work, of the same.
    polled: u32,
}

/// What is known of the sidecores' loads.
pub(crate) struct Loads {
    last: Instant,
    next: Instant,
    seen: Vec<Seen>,
}

impl Loads {
    /// `count` sidecores that begin now.
    pub(crate) fn from(count: usize, now: Instant) -> Loads {
        Loads { last: now, next: now + IDLE_INTERVAL, seen: vec![Seen::default(); count] }
    }

    /// What one worked at the last look, thousandths of its time.
    pub(crate) fn load(&self, core: usize) -> u32 {
        self.seen.get(core).map_or(0, |seen| seen.load)
    }

    /// What it was awake for without work at the last look, thousandths of its time.
    pub(crate) fn polled(&self, core: usize) -> u32 {
        self.seen.get(core).map_or(0, |seen| seen.polled)
    }

    /// When the next look is.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// It was looked at; another look tells more soon, or does not.
    pub(crate) fn looked(&mut self, is_restless: bool, now: Instant) {
        self.next = now + if is_restless { LOOK_INTERVAL } else { IDLE_INTERVAL };
    }

    /// What the sidecores did since the last look, by their counters.
    pub(crate) fn measure(
        &mut self,
        counters: impl Iterator<Item = SidecoreSnapshot>,
        now: Instant,
    ) -> Vec<Found> {
        let time_ns = now.saturating_duration_since(self.last).as_nanos().max(1) as u64;
        self.last = now;
        let found = counters.zip(&mut self.seen).map(|(counters, seen)| {
            let now = Seen {
                busy_ns: counters.busy_ns,
                idle_ns: counters.idle_ns,
                looks_ns: counters.looks_ns,
                work_ns: counters.work_ns,
                load: 0,
                polled: 0,
            };
            seen.follow(now, time_ns)
        });
        found.collect()
    }
}

impl Seen {
    /// The counts are `now` after so long: what was done since the last look.
    fn follow(&mut self, now: Seen, time_ns: u64) -> Found {
        let before = std::mem::replace(self, now);
        let since = |of: fn(&Seen) -> u64| of(&now).saturating_sub(of(&before));
        let awake_ns = since(|seen| seen.busy_ns);
        // From samples: now and then a little more than all of it.
        let looks_ns = since(|seen| seen.looks_ns).min(awake_ns);
        let load = portion(awake_ns - looks_ns, time_ns, LOAD_FULL);
        let polled_ns = since(|seen| seen.idle_ns).saturating_add(looks_ns);
        self.load = load;
        self.polled = portion(polled_ns, time_ns, LOAD_FULL).min(LOAD_FULL - load);
        Found { load, work_ns: since(|seen| seen.work_ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecore_works_or_polls_or_sleeps() {
        let mut seen = Seen::default();
        let at = |busy_ns, idle_ns, looks_ns| Seen { busy_ns, idle_ns, looks_ns, ..seen };
        let counts =
            [at(300, 500, 100), at(300, 1500, 100), at(300, 1500, 100), at(1400, 1500, 200)];
        let of = |now: &Seen| (seen.follow(*now, 1000).load, seen.polled);
        let found: Vec<(u32, u32)> = counts.iter().map(of).collect();
        // It slept for 200; polled; slept; was found busy for longer than the time that went by.
        assert_eq!(found, [(200, 600), (0, 1000), (0, 0), (1000, 0)]);
    }
}
