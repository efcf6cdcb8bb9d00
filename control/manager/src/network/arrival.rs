//! A guest that has come with its driver running: its NIC's address is announced by this daemon.
//!
//! Whoever has moved here is still looked for at the host that it left, by every switch on the way. Guests
//! announce themselves when they come to it, some never, and a VMM leaves it to them where they are able to
//! (decision 10). So when the rings of a NIC start and were used before, wherever that was, its own address goes
//! out at once and four times more, as QEMU does for its own devices: what is lost where a port of the network
//! has just come up is said again. Nothing is said of a driver that starts anew, nor of a guest that another process of
//! this daemon had, nor once a ring is on its way back: then the guest may already run elsewhere.
//!
//! Here: when. Not here: that it is done, and what VMMs ask to be announced (`announce`).

use std::time::{Duration, Instant};

/// From the first announcement to the second; each further pause is longer by [`PAUSE_STEP`] (QEMU's
/// `announce-initial`, `announce-step`, `announce-rounds`).
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_STEP: Duration = Duration::from_millis(100);
/// Announcements of one arrival.
const ROUNDS: u32 = 5;

/// Where the driver of a NIC's guest is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// At none of its rings.
    #[default]
    Away,
    /// Here, with the front-end that this connection is to; what is left to be announced.
    Here(u32, Option<Rounds>),
}

/// Announcements that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounds {
    at: Instant,
    said: u32,
}

impl Rounds {
    fn from(now: Instant) -> Rounds {
        Rounds { at: now, said: 0 }
    }

    /// After one more was said, at `now`.
    fn next(self, now: Instant) -> Option<Rounds> {
        let pause = PAUSE_MIN + PAUSE_STEP * self.said;
        let said = self.said + 1;
        (said < ROUNDS).then_some(Rounds { at: now + pause, said })
    }
}

impl Arrival {
    /// Its driver is at the rings of this front-end now, or at none. `used`: whether rings that start were used
    /// before, or none starts.
    pub(crate) fn see(
        &mut self,
        connection: Option<u32>,
        used: impl FnOnce() -> Option<bool>,
        now: Instant,
    ) {
        *self = match (connection, *self) {
            (None, _) => Arrival::Away,
            (Some(connection), here @ Arrival::Here(same, _)) if connection == same => here,
            (Some(connection), _) => match used() {
                Some(used) => Arrival::Here(connection, used.then(|| Rounds::from(now))),
                None => Arrival::Away,
            },
        };
    }

    /// When the next announcement is due.
    pub(crate) fn due_at(self) -> Option<Instant> {
        match self {
            Arrival::Away => None,
            Arrival::Here(_, rounds) => Some(rounds?.at),
        }
    }

    /// Whether one is due; it is counted as said.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let Arrival::Here(connection, Some(rounds)) = *self else { return false };
        if now < rounds.at {
            return false;
        }
        *self = Arrival::Here(connection, rounds.next(now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrival_is_announced_five_times_with_growing_pauses() {
        let start = crate::clock::now();
        let mut arrival = Arrival::Here(1, Some(Rounds::from(start)));
        let said: Vec<u64> =
            (0..2000).filter(|ms| arrival.take(start + Duration::from_millis(*ms))).collect();
        assert_eq!(said, [0, 50, 200, 450, 800]);
        assert_eq!((arrival, arrival.due_at()), (Arrival::Here(1, None), None));
    }

    #[test]
    fn a_loop_that_was_late_does_not_catch_up() {
        let start = crate::clock::now();
        let mut arrival = Arrival::Here(1, Some(Rounds::from(start)));
        let late = start + Duration::from_secs(60);
        assert!(arrival.take(late));
        assert!(!arrival.take(late));
        assert_eq!(arrival.due_at(), Some(late + PAUSE_MIN));
    }

    #[test]
    fn a_driver_that_comes_is_announced_if_its_rings_were_used_and_once() {
        let start = crate::clock::now();
        let fresh = Rounds::from(start);
        for (before, connection, used, after) in [
            (Arrival::Away, None, Some(true), Arrival::Away),
            (Arrival::Away, Some(1), None, Arrival::Away),
            (Arrival::Away, Some(1), Some(false), Arrival::Here(1, None)),
            (Arrival::Away, Some(1), Some(true), Arrival::Here(1, Some(fresh))),
            (Arrival::Here(1, None), Some(1), Some(true), Arrival::Here(1, None)),
            (Arrival::Here(1, None), Some(2), Some(true), Arrival::Here(2, Some(fresh))),
            (Arrival::Here(1, Some(fresh)), Some(2), None, Arrival::Away),
            (Arrival::Here(1, Some(fresh)), None, Some(true), Arrival::Away),
        ] {
            let mut arrival = before;
            arrival.see(connection, || used, start);
            assert_eq!(arrival, after, "{before:?} {connection:?} {used:?}");
        }
    }

    #[test]
    fn who_is_away_is_not_announced() {
        let mut arrival = Arrival::Away;
        assert_eq!((arrival.take(crate::clock::now()), arrival.due_at()), (false, None));
    }
}
