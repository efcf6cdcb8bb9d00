//! The first second of a process that took over: its predecessor stays, with all that it had, and takes its
//! devices back if that process ends meanwhile.
//!
//! It can as long as nobody has said anything to the heir that it does not know. So the heir lets it go, by
//! COMMITTED, before it hears a front-end or the other end of a link, or changes anything for an operator, and else
//! after [`PROBATION_TIME`].
//! Where rings stand is then known as after a crash: by the in-flight record, or by the ring's used index. Not here:
//! how it came to that (`predecessor`, `heir`).

use std::time::{Duration, Instant};

use config::api::{ApiError, ErrorKind};
use virtqueue::Format;

use super::channel::Channel;
use super::error::{ProbationError, TakeBackError};
use super::heir::Heir;
use super::wire::{FromHeir, WITH_LOST};
use crate::devices::device::Device;
use crate::devices::queue::Left;
use crate::devices::start::{self, RingError, format_of};
use crate::poll::{Poll, Token};

/// How long a predecessor can take back what it has given.
const PROBATION_TIME: Duration = Duration::from_secs(1);
/// How long it waits for a word of a process that lives: one that was stopped, or a machine that stands still.
const WORD_TIME_MAX: Duration = Duration::from_secs(10);
/// Words of one that has ended: it said that it serves, and more, or nonsense.
const LAST_WORDS_MAX: usize = 64;

/// Which rings an heir may have served before it committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those that were served when it took over.
    Served,
    /// All that could be served: it is of a program that starts these too.
    Ready,
}

impl Reach {
    /// Of an heir that was told in that format.
    pub(crate) fn of(format: u32) -> Reach {
        if format >= WITH_LOST { Reach::Served } else { Reach::Ready }
    }
}

/// An heir that its predecessor still watches.
pub(crate) struct Probation {
    heir: Heir,
    until: Instant,
}

impl Probation {
    /// Of one that serves since just now. Its predecessor's end is heard: nobody has to wait for the time to come.
    pub(crate) fn begin(heir: Heir, poll: &Poll, now: Instant) -> Probation {
        let _ = poll.add(heir.channel(), Token::Guard);
        Probation { heir, until: now + PROBATION_TIME }
    }

    /// When the predecessor is let go of.
    pub(crate) fn due_at(&self) -> Instant {
        self.until
    }

    /// Lets the predecessor go: from now on it could not take anything back.
    pub(crate) fn end(mut self, poll: &Poll) {
        poll.remove(self.heir.channel());
        self.heir.commit();
    }
}

/// A predecessor's end of one, for tests.
#[cfg(test)]
pub(crate) struct Predecessor(Channel);

#[cfg(test)]
impl Predecessor {
    /// Whether it was let go since this was asked last.
    pub(crate) fn is_let_go(&self) -> bool {
        let heard = self.0.receive(Duration::ZERO).ok().flatten();
        heard.is_some_and(|word| {
            matches!(serde_json::from_slice(&word.bytes), Ok(FromHeir::Committed {}))
        })
    }
}

#[cfg(test)]
impl Probation {
    /// One that begins now, and who watches.
    pub(crate) fn watched(poll: &Poll, now: Instant) -> (Probation, Predecessor) {
        let (ours, theirs) = Channel::pair().expect("a channel");
        let theirs = Predecessor(Channel::of(theirs));
        (Probation::begin(Heir::watched(ours), poll, now), theirs)
    }
}

/// Waits until the heir has committed.
///
/// # Errors
/// It has ended, or makes no sense, and must not go on.
pub(super) fn watch(channel: &Channel) -> Result<(), ProbationError> {
    let mut has_served = false;
    loop {
        let packet = match channel.receive(PROBATION_TIME + WORD_TIME_MAX) {
            Ok(Some(packet)) => packet,
            Ok(None) => return Err(ProbationError::Ended),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                return Err(ProbationError::Silent);
            }
            Err(error) => return Err(ProbationError::Receive(error)),
        };
        match serde_json::from_slice(&packet.bytes) {
            Ok(FromHeir::Committed {}) => return Ok(()),
            // Who waited for it longer than it was to take; once, or it could be said for ever.
            Ok(FromHeir::Serving { .. }) if !has_served => has_served = true,
            Ok(word) => return Err(ProbationError::OutOfOrder(word)),
            Err(error) => return Err(ProbationError::Nonsense(error)),
        }
    }
}

/// Whether the heir, which has ended, had committed though that was not heard: while it was being ended.
pub(super) fn has_committed(channel: &Channel) -> bool {
    let heard = std::iter::from_fn(|| channel.receive(Duration::ZERO).ok().flatten());
    let mut words = heard.take(LAST_WORDS_MAX);
    words.any(|word| matches!(serde_json::from_slice(&word.bytes), Ok(FromHeir::Committed {})))
}

/// What the operator is told when the devices are back here.
pub(crate) fn taken_back(why: &ProbationError) -> ApiError {
    ApiError::new(
        ErrorKind::Refused,
        format!("the daemon was not replaced: the new process took over, and {why}"),
        "this daemon has taken its devices back; requests that were under way are done again; what the new \
         process said is in the daemon's log",
    )
}

/// The same, when they are not.
pub(crate) fn lost(why: &ProbationError, more: &TakeBackError) -> ApiError {
    ApiError::new(
        ErrorKind::Internal,
        format!("the daemon has ended: the new process took over, and {why}; {more}"),
        "start the daemon again, of the version before; its supervisor may have done so already",
    )
}

/// What the dead process had in flight lands before anything else: its requests hold the description that is
/// open here too, so that is given up, and the disk opened again when its locks are free (0005, "The fence").
/// Whether it is, and its locks are to be taken.
pub(crate) fn fence(device: &mut Device) -> bool {
    // A NIC has no image.
    let Some(parts) = device.disk_mut() else { return false };
    let has_image = parts.plan.source.path().is_some();
    if parts.locks.is_fenced() {
        // That process may have had it: who has it is not who had it before.
        parts.locks.forget();
        return has_image;
    }
    let is_fenced = has_image && parts.locks.fence();
    if is_fenced {
        parts.was_empty = false;
        // Whoever has let it go is asked again when it is here.
        parts.forget_unbegun();
    }
    is_fenced
}

/// Each ring that an heir may have served goes on as after a crash; any other stands where it stood.
pub(crate) fn find_rings(device: &mut Device, reach: Reach) {
    let (runner, queues) = device.running_mut();
    let Some((_, connection)) = runner else { return };
    let features = connection.session.features();
    let (session, front_end) = (&mut connection.session, &connection.front_end);
    for (index, queue) in (0u16..).zip(queues) {
        // It was asked for, for that heir.
        let is_reached = queue.asked_at().is_some() || reach == Reach::Ready;
        let Some(facts) = session.ready(index).filter(|_| is_reached) else { continue };
        queue.forget_left();
        if front_end.inflight.is_some() {
            // Where it stood before the dead process is no answer to a front-end that stops it now: its record is.
            session.served_elsewhere(index);
            continue;
        }
        match (format_of(features), start::used_index(&facts, front_end)) {
            (Format::Split, Some(used)) => session.stopped_at(index, used.into()),
            (Format::Packed, _) if !start::was_used(&facts, features, front_end) => {}
            _ => {
                queue.lose_place(Left::lost(&facts), RingError::PlaceLost.to_string());
                session.lost(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_heir_commits_by_its_word_alone_and_not_by_its_end() {
        let (ours, theirs) = Channel::pair().expect("a channel");
        let theirs = Channel::of(theirs);
        let limit = Duration::from_secs(60);
        theirs.send(&FromHeir::Serving { pause: None }, &[], limit).expect("sent");
        theirs.send(&FromHeir::Committed {}, &[], limit).expect("sent");
        watch(&ours).expect("it has committed");
        drop(theirs);
        assert_eq!(watch(&ours).expect_err("it ended").to_string(), "it ended");
    }

    #[test]
    fn an_heir_that_commits_while_it_is_ended_has_committed() {
        for (words, has) in [(0, false), (1, false), (2, true)] {
            let (ours, theirs) = Channel::pair().expect("a channel");
            let theirs = Channel::of(theirs);
            let said = [FromHeir::Serving { pause: None }, FromHeir::Committed {}];
            for word in said.iter().take(words) {
                theirs.send(word, &[], Duration::from_secs(60)).expect("sent");
            }
            drop(theirs);
            assert_eq!(has_committed(&ours), has, "{words} words");
        }
    }

    #[test]
    fn an_heir_that_repeats_itself_is_not_waited_for() {
        let (ours, theirs) = Channel::pair().expect("a channel");
        let theirs = Channel::of(theirs);
        let limit = Duration::from_secs(60);
        for _ in 0..2 {
            theirs.send(&FromHeir::Serving { pause: None }, &[], limit).expect("sent");
        }
        let repeated = watch(&ours).expect_err("it said it twice");
        assert_eq!(repeated.to_string(), "it said Serving { pause: None }");
    }
}
