//! A guest that has come with its driver running: its NIC's address is announced by this daemon.
//!
//! Whoever has moved here is still looked for at the host that it left, by every switch on the way. Guests
//! announce themselves when they come to it, some never, and a VMM leaves it to them where they are able to
//! (decision 10). So when the rings of a NIC start and were used before, wherever that was, its own address goes
//! out at once and four times more, as QEMU does for its own devices: what is lost where a port of the network
//! has just come up is said again. Nothing is said of a driver that starts anew, nor of a guest that another process of
//! this daemon had, nor once a ring is on its way back: then the guest may already run elsewhere.
//!
//! Not here: what VMMs ask to be announced, and what is done for one announcement (`nic_calls`). Called by
//! `manager`, when it settles a device and when time has come, and by `upgrade`.

use std::time::{Duration, Instant};

use tracing::warn;

use crate::defects::found;
use crate::device::Device;
use crate::kind::Kind;
use crate::manager::Manager;
use crate::network::nic::NicParts;
use crate::queue::Queue;
use crate::sidecores::Cores;
use crate::start;
use crate::turn::Turn;

/// From the first announcement to the second; each further pause is longer by [`PAUSE_STEP`] (QEMU's
/// `announce-initial`, `announce-step`, `announce-rounds`).
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_STEP: Duration = Duration::from_millis(100);
/// Between two announcements of a guest: VMMs leave 50 ms and more.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(20);
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
    /// When the next announcement is due.
    pub(crate) fn due_at(self) -> Option<Instant> {
        match self {
            Arrival::Away => None,
            Arrival::Here(_, rounds) => Some(rounds?.at),
        }
    }

    /// Whether one is due; it is counted as said.
    fn take(&mut self, now: Instant) -> bool {
        let Arrival::Here(connection, Some(rounds)) = *self else { return false };
        if now < rounds.at {
            return false;
        }
        *self = Arrival::Here(connection, rounds.next(now));
        true
    }
}

impl Device {
    /// Whether a ring starts now, and rings were used before: its guest was running elsewhere, or with an
    /// earlier daemon. `None`: none starts, or not yet, since a front-end before this one has not let go.
    fn brings_used_rings(&self) -> Option<bool> {
        let travels = self.kind.nic().is_some_and(NicParts::travels);
        if travels || !self.attached().is_empty() {
            return None;
        }
        let connection = self.runner.and_then(|id| self.connections.get(&id));
        let session = &connection.filter(|connection| connection.life.held().is_none())?.session;
        (0..self.facts.rings).find_map(|index| session.ready(index))?;
        let front_end = &connection?.front_end;
        let features = session.features();
        let mut rings = (0..self.facts.rings).filter_map(|index| session.set_up(index));
        Some(rings.any(|facts| start::was_used(&facts, features, front_end)))
    }

    /// This process has taken over from one where its guest was: the network knows.
    pub(crate) fn has_stayed(&mut self) {
        if self.is_started(None)
            && let (Some(connection), Kind::Nic(nic)) = (self.runner, &mut self.kind)
        {
            nic.arrival = Arrival::Here(connection, None);
        }
    }

    /// A guest has come here from another host, with its address: whoever is on its network learns where it is
    /// now.
    pub(crate) fn announce(&mut self, mac: [u8; 6], turn: &mut Turn, cores: &mut Cores) {
        let Kind::Nic(nic) = &mut self.kind else { return turn.defects.note("NIC to announce") };
        if !nic.may_announce(mac) {
            if self.log.allows(turn.now()) {
                warn!(nic = self.facts.id, "another address than its own was not announced");
            }
            return;
        }
        // Each is a flood: a VMM says it a few times, 50 ms and more apart.
        if nic.announced_at.is_some_and(|at| turn.now() < at + ANNOUNCE_INTERVAL) {
            return;
        }
        nic.announced_at = Some(turn.now());
        nic.say_announcement(mac, cores);
    }

    /// Whether its guest runs here for sure: a ring is served, and none was asked back.
    pub(crate) fn surely_runs(&self) -> bool {
        self.queues.iter().any(Queue::is_attached) && self.leaving_since().is_none()
    }
}

impl Manager {
    /// Notes that the driver of a NIC's guest has come or gone. To be called before its rings are served:
    /// then they stand as they came.
    pub(crate) fn note_arrival(&mut self, number: u32, now: Instant) {
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device whose guest may have come");
        let Some(before) = device.kind.nic().map(|nic| nic.arrival) else { return };
        let connection = device.runner.filter(|_| device.is_started(None));
        let after = match (connection, before) {
            (None, _) => Arrival::Away,
            (Some(connection), Arrival::Here(same, _)) if connection == same => before,
            (Some(connection), _) => match device.brings_used_rings() {
                Some(used) => Arrival::Here(connection, used.then(|| Rounds::from(now))),
                None => Arrival::Away,
            },
        };
        if let Kind::Nic(nic) = &mut device.kind {
            nic.arrival = after;
        }
    }

    /// Announces a NIC's address, if that is due.
    pub(crate) fn announce_arrival(&mut self, number: u32, now: Instant) {
        let is_frozen = self.mode().is_frozen();
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device whose guest may be announced");
        let may = device.surely_runs() && !is_frozen && device.is_started(None);
        if let Kind::Nic(NicParts { arrival, shape, .. }) = &mut device.kind
            && arrival.take(now)
            && may
        {
            let mac = shape.mac;
            device.announce(mac, &mut self.rooms.turn, &mut self.rooms.cores);
        }
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
    fn who_is_away_is_not_announced() {
        let mut arrival = Arrival::Away;
        assert_eq!((arrival.take(crate::clock::now()), arrival.due_at()), (false, None));
    }
}
