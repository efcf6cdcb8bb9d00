//! What a disk or NIC of another machine waits for, as operators are told it; and that sessions and numbers came to an end.
//!
//! Not here: what its IOhost said is wrong with it, which is the device's problem (`using`, `nics`).

use std::time::{Duration, Instant};

use backend::link::{LinkKey, LinkSnapshot};
use tracing::{info, warn};

use super::Manager;
use super::using::{Asked, Using};
use crate::defects::found;

/// An IOhost that is there answers sooner, also when a session only becomes old; unless it keeps the question until
/// somebody else has let go.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// Since when it waits, and for what.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waits {
    /// Nothing is heard, so a new session is wanted; or there is none.
    pub(super) silent_since: Option<Instant>,
    /// Its IOhost was asked for it, and has said neither yes nor no.
    pub(super) asked_at: Option<Instant>,
}

impl Waits {
    /// The session has begun, or ended. In a new one what was had is asked for once more.
    pub(super) fn note_session(&mut self, is_there: bool, is_asked_for: bool, now: Instant) {
        self.silent_since = (!is_there).then_some(self.silent_since.unwrap_or(now));
        self.asked_at = (is_there && is_asked_for).then_some(now);
    }

    /// In words, with what that means for its guest; nothing while all is as it should be.
    pub(crate) fn text(&self, now: Instant, means: &str) -> Option<String> {
        let time = now.saturating_duration_since(self.silent_since.or(self.asked_at)?);
        let time_s = time.as_secs();
        (time >= PATIENCE).then(|| match self.silent_since {
            Some(_) => format!(
                "its IOhost has been silent for {time_s} s: {means}; `sidecore remote status` has the link"
            ),
            None => format!(
                "its IOhost has not given it for {time_s} s: {means} until another machine, or a former daemon of \
                 this one, has given it back or was silent for its lease"
            ),
        })
    }
}

fn heard(seen: &LinkSnapshot) -> u64 {
    seen.frames_in.saturating_sub(seen.strange + seen.dropped)
}

/// Whether there is a session, and more was heard than then.
fn goes_on(heard_then: u64, seen: &LinkSnapshot) -> bool {
    seen.is_up > 0 && heard(seen) > heard_then
}

impl Using {
    /// Whether disks were given back, and whoever is to let go of them is there.
    pub(super) fn is_giving_back(&self) -> bool {
        let is_up = self.counters.as_ref().is_some_and(|one| one.snapshot().is_up > 0);
        is_up && self.numbers.values().any(|asked| matches!(asked, Asked::Disk(..)))
    }

    /// When the log is to say that its IOhost is silent.
    pub(super) fn told_at(&self) -> Option<Instant> {
        self.silent_since.filter(|_| !self.is_told).map(|since| since + PATIENCE)
    }

    /// Frames that were not a stranger's.
    pub(super) fn heard(&self) -> u64 {
        self.counters.as_ref().map_or(0, |counters| heard(&counters.snapshot()))
    }

    /// Whether its session, which it still has, was heard since it was taken for silent.
    pub(super) fn is_heard_again(&self) -> bool {
        let seen = self.counters.as_ref().map(|counters| counters.snapshot());
        self.silent_since.is_some() && seen.is_some_and(|seen| goes_on(self.heard_then, &seen))
    }
}

impl Manager {
    /// There is a session of that link, or none any more.
    pub(super) fn note_session(&mut self, key: LinkKey, is_there: bool) {
        let now = self.rooms.turn.now();
        for device in self.rooms.devices.values_mut() {
            let parts = device.kind.disk_mut().and_then(|disk| disk.remote.as_mut());
            let Some(parts) = parts.filter(|parts| parts.link == key) else { continue };
            parts.waits.note_session(is_there, parts.number.is_some(), now);
        }
        self.note_session_of_nics(key, is_there, now);
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        let using = found!(self.rooms.turn.defects, link.using(), "client's end of that link");
        using.silent_since = (!is_there).then_some(using.silent_since.unwrap_or(now));
        using.heard_then = using.heard();
        using.is_told &= !is_there;
        let peer = using.peer.map(|peer| peer.to_string());
        match is_there {
            true => info!(link = link.plan.id, peer, "its IOhost answers"),
            false => info!(link = link.plan.id, peer, "the session with its IOhost has ended"),
        }
    }

    /// Says in the log which IOhosts have been silent for longer than one takes to answer, once of each silence.
    pub(super) fn tell_of_silence(&mut self, now: Instant) {
        let is_due = |using: &Using| using.told_at().is_some_and(|at| at <= now);
        if !self
            .rooms
            .remote
            .links
            .iter_mut()
            .any(|link| link.using().is_some_and(|using| is_due(using)))
        {
            return;
        }
        // What was heard meanwhile has no event.
        self.note_heard();
        for link in &mut self.rooms.remote.links {
            let id = link.plan.id.clone();
            let Some(using) = link.using().filter(|using| is_due(using)) else { continue };
            using.is_told = true;
            let peer = using.peer.map(|peer| peer.to_string());
            warn!(link = id, peer, "its IOhost is silent: requests wait");
        }
    }

    /// A link wants a new session: its IOhost may be gone long before the session is over.
    pub(super) fn note_silence(&mut self, key: LinkKey) {
        // Of the one before.
        self.note_heard();
        let now = self.rooms.turn.now();
        for device in self.rooms.devices.values_mut() {
            let parts = device.kind.disk_mut().and_then(|disk| disk.remote.as_mut());
            if let Some(parts) = parts.filter(|parts| parts.link == key) {
                parts.waits.silent_since.get_or_insert(now);
            }
        }
        self.note_silence_of_nics(key, now);
        let using = found!(
            self.rooms.turn.defects,
            self.rooms.remote.using(key),
            "client's end of that link"
        );
        using.silent_since.get_or_insert(now);
        using.heard_then = using.heard();
    }

    /// A session that was silent for a while, and goes on without a new one, has no event that says so. To be asked
    /// before anybody is told who is silent.
    pub(crate) fn note_heard(&mut self) {
        let links = self.rooms.remote.links.iter_mut();
        let heard: Vec<String> = links
            .filter_map(|link| {
                let id = link.plan.id.clone();
                let using = link.using()?;
                using
                    .is_heard_again()
                    .then(|| (using.silent_since, using.is_told) = (None, false))?;
                Some(id)
            })
            .collect();
        for key in heard.iter().filter_map(|id| self.rooms.remote.key_of(id)).collect::<Vec<_>>() {
            for device in self.rooms.devices.values_mut() {
                let parts = device.kind.disk_mut().and_then(|disk| disk.remote.as_mut());
                if let Some(parts) = parts.filter(|parts| parts.link == key) {
                    parts.waits.silent_since = None;
                }
            }
            self.note_heard_of_nics(key);
        }
    }

    /// A number is nobody's any more.
    pub(super) fn is_free(&mut self, key: LinkKey, number: u16) {
        let using = found!(
            self.rooms.turn.defects,
            self.rooms.remote.using(key),
            "client's end of that link"
        );
        if let Some(Asked::Nic(port)) = using.numbers.get(&number).cloned()
            && self.nic_is_given_back(port, number)
        {
            return;
        }
        // A NIC whose port was made anew is told of twice.
        let using = found!(
            self.rooms.turn.defects,
            self.rooms.remote.using(key),
            "client's end of that link"
        );
        using.numbers.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now;

    #[test]
    fn what_is_waited_for_is_told_and_ends() {
        let begin = now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let mut waits = Waits::default();
        assert_eq!(waits.text(at(0), "x"), None);
        waits.asked_at = Some(at(0));
        // An answer is on its way.
        assert_eq!(waits.text(at(500), "x"), None);
        let told = waits.text(at(3500), "requests wait").unwrap();
        let expected = "its IOhost has not given it for 3 s: requests wait until another machine, or a former \
                        daemon of this one, has given it back or was silent for its lease";
        assert_eq!(told, expected);
        waits.note_session(false, true, at(4000));
        // A session that only became old has a successor sooner.
        assert_eq!(waits.text(at(4500), "x"), None);
        // What is known already stays known since then.
        waits.note_session(false, true, at(6000));
        let told = waits.text(at(6500), "requests wait").unwrap();
        let expected = "its IOhost has been silent for 2 s: requests wait; `sidecore remote status` has the link";
        assert_eq!(told, expected);
        // It is asked for once more, and answered in time; or nobody wants it.
        waits.note_session(true, true, at(7000));
        assert_eq!(waits.text(at(7500), "x"), None);
        assert!(waits.text(at(9000), "x").is_some());
        waits.note_session(true, false, at(7000));
        assert_eq!(waits.text(at(60_000), "x"), None);
    }

    #[test]
    fn a_session_that_goes_on_is_not_silent_any_more() {
        let mut seen = LinkSnapshot { is_up: 1, frames_in: 10, ..LinkSnapshot::default() };
        assert!(!goes_on(10, &seen));
        // A stranger is nobody's answer.
        (seen.frames_in, seen.strange) = (13, 3);
        assert!(!goes_on(10, &seen));
        seen.frames_in = 14;
        assert!(goes_on(10, &seen));
        // What comes of a session that is over begins none.
        seen.is_up = 0;
        assert!(!goes_on(10, &seen));
    }
}
