//! What a disk or NIC of another machine waits for, as operators are told it.
//!
//! Not here: what its IOhost said is wrong with it (`availability`, `ports`).

use std::time::{Duration, Instant};

/// An IOhost that is there answers sooner, also when a session only becomes old; unless it keeps the question until
/// somebody else has let go.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// Since when it waits, and for what.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
    /// Nothing is heard, so a new session is wanted; or there is none.
    silent_since: Option<Instant>,
    /// Its IOhost was asked for it, and has said neither yes nor no.
    asked_at: Option<Instant>,
}

impl Waits {
    /// Of what is known first while its link is silent, or is not.
    pub(super) fn since(silent_since: Option<Instant>) -> Waits {
        Waits { silent_since, asked_at: None }
    }

    /// It is asked for. While there is no session the question waits as well.
    pub(super) fn ask(&mut self, now: Instant) {
        self.asked_at = self.silent_since.is_none().then_some(now);
    }

    /// It was answered, or is asked for no more.
    pub(super) fn end_asking(&mut self) {
        self.asked_at = None;
    }

    /// The session has begun, or ended. In a new one what was had is asked for once more.
    pub(super) fn note_session(&mut self, is_there: bool, is_asked_for: bool, now: Instant) {
        self.silent_since = (!is_there).then_some(self.silent_since.unwrap_or(now));
        self.asked_at = (is_there && is_asked_for).then_some(now);
    }

    /// Its link wants a new session.
    pub(super) fn note_silence(&mut self, now: Instant) {
        self.silent_since.get_or_insert(now);
    }

    /// Its link goes on without one.
    pub(super) fn note_heard(&mut self) {
        self.silent_since = None;
    }

    /// Whether nothing is heard for longer than an IOhost takes to answer.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        is_long(self.silent_since, now)
    }

    /// Whether it is heard, and has said neither yes nor no for as long.
    pub(super) fn is_unanswered(&self, now: Instant) -> bool {
        self.silent_since.is_none() && is_long(self.asked_at, now)
    }

    /// In words, with what that means for its guest; nothing while all is as it should be.
    pub(super) fn text(&self, now: Instant, means: &str) -> Option<String> {
        let since = self.silent_since.or(self.asked_at)?;
        let time_s = now.saturating_duration_since(since).as_secs();
        is_long(Some(since), now).then(|| match self.silent_since {
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

fn is_long(since: Option<Instant>, now: Instant) -> bool {
    since.is_some_and(|since| now.saturating_duration_since(since) >= PATIENCE)
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
        waits.ask(at(0));
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
}
