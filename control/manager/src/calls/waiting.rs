//! Operators' calls that wait, and how each is answered in the end.
//!
//! Not here: their lives (`control::call`), and what is done meanwhile.

use std::time::{Duration, Instant};

use config::DiskSpec;
use config::api::{Answer, ApiError};
use control::call::{Calls, Wait};
use sidecore::{instant_of, nanos_of};

use super::Answered;
use crate::api::Reply;
use crate::turn::Turn;

/// How long a call waits for queues that do not come back; less than the API's own patience.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Calls that wait. A reload waits for resizes as operators do, and gets no answer.
#[derive(Default)]
pub(crate) struct WaitingCalls(Calls<DiskSpec, Answer, Option<Reply>>);

/// What is to be done about a call that waits no longer.
pub(crate) enum Next {
    /// A disk is added: it is known what became of its image, or that was waited for long enough.
    Add(Box<DiskSpec>, Reply),
    /// A device does not let its queues go in time.
    Overdue(u32, Option<Reply>),
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

    /// A device goes when its queues are back.
    pub(crate) fn remove(&mut self, device: u32, reply: Option<Reply>, turn: &mut Turn) {
        self.wait(Wait::Removing(device), reply, turn);
    }

    fn wait(&mut self, wait: Wait<DiskSpec, Answer>, reply: Option<Reply>, turn: &mut Turn) {
        // A call may have waited for an image in this turn.
        let until = nanos_of(turn.tick() + ANSWER_TIME_MAX);
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
            reply.answer(answer);
        }
    }

    /// A device that was removed is gone. If its image is being closed, that is waited for.
    pub(crate) fn gone(&mut self, device: u32, id: &str, view: Answer, is_closing: bool) {
        for (wait, reply) in self.0.gone(device, is_closing.then_some(&view)) {
            let answer = match wait {
                Wait::Sizing(_) => Err(ApiError::no_such_disk(id)),
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
                (Wait::Sizing(device) | Wait::Removing(device), reply) => {
                    return Some(Next::Overdue(device, reply));
                }
                // Its file system does not let it be closed.
                (Wait::Closing(_, view), Some(reply)) => reply.answer(Ok(view)),
                (Wait::Closing(..) | Wait::Opening(_), None) => {}
            }
        }
    }

    /// No disk is added any more: the daemon stops.
    pub(crate) fn forget_added(&mut self) {
        self.0.forget_added();
    }

    /// Nobody is answered any more.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests;
