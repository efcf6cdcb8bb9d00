//! A back-end that does something to requests on their way to the one below it, the *medium*.
//!
//! What it does is its [`Stages`], in the order of docs/decisions/0031-stages.md; today that is a trace. A medium has
//! one request under the guest's own tag at a time, so a completion needs no second name. Over a medium that answers at
//! once a long transfer goes in parts, each a turn of its queue, as a file's chunks are.
//!
//! Times come from whoever visits the queue ([`Look`]) and whoever reaps; no clock is read here.

use std::sync::Arc;

use guest_memory::GuestMap;
use request::{Op, Request, Status, Tag};

use crate::segments::Part;
use crate::trace::{Entry, Ring, Tracer};
use crate::{Backend, Io, Outcome, Progress, Started, Turn};

/// Slots of a queue, whose requests are known here.
const SLOTS: usize = 256;
/// Bytes that a medium that answers at once discards or zeroes in one go: it does that by whole pages.
const ZEROED_BYTES: u64 = 1 << 20;

/// What is done to requests of one queue.
#[derive(Clone, Debug, Default)]
pub struct Stages {
    /// Where they are recorded.
    pub trace: Option<Arc<Ring>>,
}

impl Stages {
    /// Whether nothing is done.
    pub fn is_none(&self) -> bool {
        self.trace.is_none()
    }
}

/// What whoever visits a queue says before it takes requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The time, nanoseconds of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// What is in the ring may have waited for so long, nanoseconds.
    pub waited_ns: u64,
    /// And was held by a limit for so long, nanoseconds.
    pub held_ns: u64,
    /// Bytes that may be copied in one go.
    pub slice_bytes: u64,
}

/// What is known of the request in a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Flight {
    look: Look,
    /// Bytes that a medium that answers at once has done.
    done: u64,
}

/// One queue's way to its disk, with something on it.
#[derive(Debug)]
pub struct Staged {
    /// No `Staged` itself: [`crate::Disk::backend_through`] alone makes these.
    medium: Backend,
    /// Whether it ends each request when it has it.
    is_at_once: bool,
    tracer: Option<Tracer>,
    look: Look,
    /// By slot.
    flights: Box<[Flight]>,
    part: Part,
}

impl Staged {
    pub(crate) fn new(medium: Backend, stages: Stages) -> Staged {
        Staged {
            is_at_once: medium.answers_at_once(),
            medium,
            tracer: stages.trace.map(Tracer::new),
            look: Look::default(),
            flights: vec![Flight::default(); SLOTS].into(),
            part: Part::new(),
        }
    }

    pub(crate) fn medium(&self) -> &Backend {
        &self.medium
    }

    pub(crate) fn medium_mut(&mut self) -> &mut Backend {
        &mut self.medium
    }

    /// What is known of requests that have stalled goes on here.
    pub(crate) fn come_from(&mut self, before: Staged) {
        self.flights = before.flights;
    }

    /// Requests are taken from here on.
    pub(crate) fn begin(&mut self, look: Look) {
        self.look = look;
    }

    /// They were held by a limit.
    pub(crate) fn held(&mut self, held_ns: u64) {
        self.look.held_ns = held_ns;
    }

    /// No more are, and it is `now_ns`.
    pub(crate) fn end(&mut self, now_ns: u64) {
        if let Some(tracer) = &mut self.tracer {
            tracer.show(now_ns);
        }
    }

    /// Bytes of a transfer that the first part has.
    pub(crate) fn first_bytes(&self, len: u64) -> u64 {
        match self.is_at_once {
            true => len.min(self.look.slice_bytes.max(1)),
            false => self.medium.first_bytes(len),
        }
    }

    pub(crate) fn submit(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
    ) -> Started {
        let look = self.look;
        if let Some(flight) = self.flights.get_mut(usize::from(tag.slot)) {
            *flight = Flight { look, done: 0 };
        }
        let started = match self.is_at_once {
            true => self.part(io, request, memory, tag),
            false => self.medium.submit(io, request, memory, tag),
        };
        if let (Started::Done(status), Some(tracer)) = (started, &mut self.tracer) {
            tracer.add_pending(&entry(request, status, look, look.now_ns));
        }
        started
    }

    #[expect(clippy::too_many_arguments, reason = "as the back-end below, and the time")]
    pub(crate) fn completed(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
        result: i32,
        progress: &mut Progress,
        now_ns: u64,
    ) -> Outcome {
        let outcome = self.medium.completed(io, request, memory, tag, result, progress, now_ns);
        self.note(request, tag, outcome, now_ns);
        outcome
    }

    pub(crate) fn resume(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
        progress: &mut Progress,
        now_ns: u64,
    ) -> (u64, Started) {
        let (bytes, started) = match self.is_at_once {
            true => {
                let before = self.done(tag);
                let started = self.part(io, request, memory, tag);
                (self.done(tag).saturating_sub(before), started)
            }
            false => self.medium.resume(io, request, memory, tag, progress, now_ns),
        };
        self.note(request, tag, started.into(), now_ns);
        (bytes, started)
    }

    pub(crate) fn go_on(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
        progress: &mut Progress,
        now_ns: u64,
    ) -> Turn {
        let turn = match self.is_at_once {
            true => {
                let before = self.done(tag);
                let outcome = self.part(io, request, memory, tag).into();
                Turn { bytes: self.done(tag).saturating_sub(before), copies: true, outcome }
            }
            false => self.medium.go_on(io, request, memory, tag, progress, now_ns),
        };
        self.note(request, tag, turn.outcome, now_ns);
        turn
    }

    /// The next part of a request, by a medium that answers at once.
    fn part(&mut self, io: &mut Io, request: &Request<'_>, memory: &GuestMap, tag: Tag) -> Started {
        let Staged { medium, flights, part, look, .. } = self;
        let Some(flight) = flights.get_mut(usize::from(tag.slot)) else {
            return Started::Done(Status::IoError);
        };
        let most = match request.op {
            Op::Read | Op::Write { .. } => medium.slice_bytes(look.slice_bytes.max(1)),
            Op::Discard | Op::WriteZeroes { .. } => ZEROED_BYTES,
            Op::Flush => u64::MAX,
        };
        if request.len <= most {
            return medium.submit(io, request, memory, tag);
        }
        let at = request.offset.saturating_add(flight.done);
        // Parts end where whole pages do.
        let len = (most - at % most).min(request.len.saturating_sub(flight.done));
        let Some(segments) = part.of(request.segments, flight.done, len) else {
            return Started::Done(Status::IoError);
        };
        let cut = Request { op: request.op, offset: at, len, segments };
        let started = medium.submit(io, &cut, memory, tag);
        if started == Started::Done(Status::Ok) {
            flight.done += len;
            if flight.done < request.len {
                return Started::Turn;
            }
        }
        started
    }

    fn done(&self, tag: Tag) -> u64 {
        self.flights.get(usize::from(tag.slot)).map_or(0, |flight| flight.done)
    }

    fn note(&mut self, request: &Request<'_>, tag: Tag, outcome: Outcome, now_ns: u64) {
        let Outcome::Done(status) = outcome else { return };
        let look = self.flights.get(usize::from(tag.slot)).map_or(self.look, |it| it.look);
        if let Some(tracer) = &mut self.tracer {
            tracer.add(&entry(request, status, look, now_ns), now_ns);
        }
    }
}

fn entry(request: &Request<'_>, status: Status, look: Look, now_ns: u64) -> Entry {
    Entry {
        taken_ns: look.now_ns,
        offset: request.offset,
        len: request.len,
        asked: request.op.into(),
        status,
        waited_ns: look.waited_ns,
        held_ns: look.held_ns,
        medium_ns: now_ns.saturating_sub(look.now_ns),
    }
}

#[cfg(test)]
mod tests;
