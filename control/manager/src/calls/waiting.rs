//! Operators' calls that wait, and how each is answered in the end.
//!
//! Not here: their lives (`control::call`), and what is done meanwhile.

use std::time::{Duration, Instant};

use config::DiskSpec;
use config::api::{Answer, ApiError, ErrorKind};
use control::call::{Calls, Wait};
use sidecore::{instant_of, nanos_of};

use super::{Answered, STOPPING, TAKEN_OVER};
use crate::api::{ANSWER_S_MAX, Reply};
use crate::opening::openers::FIRST_WAIT;
use crate::turn::Turn;

/// How long a call waits for queues that do not come back; less than the API's own patience.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// What of a call has come about, a daemon that stops does not say.
const SEEN_NEXT: &str = "`sidecore ls` of the next one says what came of it";
/// What of stages has come about, a daemon that hands over does not say. They are kept, and so are not asked for again.
const STAGED_NEXT: &str =
    "it is kept, and queues have it there; `sidecore disk stage ls` of the next one says which";
/// How long one waits for what it began to be undone, whose answer is known: it may have waited for an image before.
const UNDOING_TIME_MAX: Duration = Duration::from_secs(3);
/// Of the time after which its caller gives up, which is left to whatever else a daemon has to do.
const SPARE: Duration = Duration::from_secs(5);
const _: () = {
    let longest = FIRST_WAIT.as_secs() + UNDOING_TIME_MAX.as_secs() + SPARE.as_secs();
    assert!(longest <= ANSWER_S_MAX, "an answer comes well within its caller's time");
};

/// Calls that wait. A reload waits for resizes as operators do, and gets no answer.
#[derive(Default)]
pub(crate) struct WaitingCalls(Calls<DiskSpec, Answer, Option<Reply>>);

/// What is to be done about a call that waits no longer.
pub(crate) enum Next {
    /// A disk is added: it is known what became of its image, or that was waited for long enough.
    Add(Box<DiskSpec>, Reply),
    /// A device that is to be resized does not let its queues go in time.
    Sizing(u32, Option<Reply>),
    /// The queues of one do not get their stages in time.
    Staging(u32, Option<Reply>),
    /// One that is removed does not let its queues go.
    Removing(u32, Option<Reply>),
}

impl WaitingCalls {
    /// A disk is added when its image is open, or after `wait` in any case.
    pub(crate) fn add(&mut self, spec: DiskSpec, reply: Reply, wait: Duration, turn: &mut Turn) {
        let until = nanos_of(turn.tick() + wait);
        self.0.wait(Wait::Opening(spec), until, Some(reply));
    }

    /// A disk is resized when its queues are back.
    pub(crate) fn resize(&mut self, device: u32, reply: Option<Reply>, turn: &mut Turn) {
        self.wait(Wait::Sizing(device), reply, turn);
    }

    /// A disk has other stages when its queues have them.
    pub(crate) fn stage(&mut self, device: u32, reply: Reply, turn: &mut Turn) {
        self.wait(Wait::Staging(device), Some(reply), turn);
    }

    /// Whether somebody waits for that.
    pub(crate) fn stages(&self, device: u32) -> bool {
        self.0.stages(device)
    }

    /// They have.
    pub(crate) fn staged(&mut self, device: u32, answer: &Answered) {
        while let Some(reply) = self.0.staged(device) {
            reply.into_iter().for_each(|reply| reply.answer(answer.clone()));
        }
    }

    /// A device goes when its queues are back.
    pub(crate) fn remove(&mut self, device: u32, reply: Option<Reply>, turn: &mut Turn) {
        self.wait(Wait::Removing(device), reply, turn);
    }

    fn wait(&mut self, wait: Wait<DiskSpec, Answer>, reply: Option<Reply>, turn: &mut Turn) {
        let time = match reply.as_ref().is_some_and(Reply::is_refusing) {
            true => UNDOING_TIME_MAX,
            false => ANSWER_TIME_MAX,
        };
        // A call may have waited for an image in this turn.
        let until = nanos_of(turn.tick() + time);
        self.0.wait(wait, until, reply);
    }

    /// When one is answered in any case.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.0.due_at().map(instant_of)
    }

    /// Whether a disk of that name is being added.
    pub(crate) fn adds(&self, id: &str) -> bool {
        self.0.adds(|spec| spec.id == id)
    }

    /// A disk has its new size, or was refused it.
    pub(crate) fn resized(&mut self, device: u32, answer: Answered) {
        if let Some(reply) = self.0.sized(device).flatten() {
            reply.answer_logged(answer);
        }
    }

    /// A device that was removed is gone. If its image is being closed, that is waited for.
    pub(crate) fn gone(&mut self, device: u32, id: &str, view: Answer, is_closing: bool) {
        for (wait, reply) in self.0.gone(device, is_closing.then_some(&view)) {
            let answer = match wait {
                Wait::Sizing(_) => Err(ApiError::no_such_disk(id)),
                Wait::Staging(_) => Err(went_meanwhile(id)),
                _ => Ok(view.clone()),
            };
            reply.into_iter().for_each(|reply| reply.answer(answer.clone()));
        }
    }

    /// The image of a device that is gone is closed.
    pub(crate) fn closed(&mut self, device: u32) {
        while let Some((view, reply)) = self.0.closed(device) {
            reply.into_iter().for_each(|reply| reply.answer(Ok(view.clone())));
        }
    }

    /// The next call that waits no longer; of which disks' images are it is `known` what became of them.
    pub(crate) fn next(&mut self, now: Instant, known: impl Fn(&str) -> bool) -> Option<Next> {
        loop {
            let opened = self.0.opened(|spec| known(&spec.id));
            let opened = opened.map(|(spec, reply)| (Wait::Opening(spec), reply));
            let (wait, reply) = opened.or_else(|| self.0.due(nanos_of(now)))?;
            match (wait, reply) {
                (Wait::Opening(spec), Some(reply)) => {
                    return Some(Next::Add(Box::new(spec), reply));
                }
                (Wait::Sizing(device), reply) => return Some(Next::Sizing(device, reply)),
                (Wait::Staging(device), reply) => return Some(Next::Staging(device, reply)),
                (Wait::Removing(device), reply) => return Some(Next::Removing(device, reply)),
                // Its file system does not let it be closed.
                (Wait::Closing(_, view), Some(reply)) => reply.answer(Ok(view)),
                (Wait::Closing(..) | Wait::Opening(_), None) => {}
            }
        }
    }

    /// No disk is added or changed any more: the daemon stops, with which all devices go, and that of no call is gone.
    pub(crate) fn stop_changing(&mut self) {
        answer_stopped(self.0.give_up_changes(), SEEN_NEXT);
    }

    /// Nothing is waited for any more: the daemon ends.
    pub(crate) fn stop(&mut self) {
        answer_stopped(self.0.give_up(), SEEN_NEXT);
    }

    /// Nobody is answered any more: another process takes over. Who waits for stages is told what comes of them.
    pub(crate) fn clear(&mut self) {
        for reply in self.0.give_up_stages().into_iter().flatten() {
            reply.answer(Err(ApiError::new(ErrorKind::Busy, TAKEN_OVER, STAGED_NEXT)));
        }
        self.0.give_up();
    }
}

/// A disk has gone while its queues were to get other stages: for good, or to be made anew with these.
fn went_meanwhile(id: &str) -> ApiError {
    let error = format!("disk {id:?} was removed, or is made anew, before all its queues had them");
    let hint = format!("`sidecore disk stage ls {id}` says what came of it");
    ApiError::new(ErrorKind::Conflict, error, hint)
}

fn answer_stopped(replies: Vec<Option<Reply>>, hint: &str) {
    for reply in replies.into_iter().flatten() {
        reply.answer(Err(ApiError::new(ErrorKind::Busy, STOPPING, hint)));
    }
}

#[cfg(test)]
mod tests;
