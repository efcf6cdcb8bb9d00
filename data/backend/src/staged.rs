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

use crate::fault::{Fate, FaultPlan, Faults};
use crate::segments::Part;
use crate::trace::{Entry, Ring, Tracer};
use crate::{Backend, Io, Outcome, Progress, Started, Turn};

/// Slots of a queue, whose requests are known here.
const SLOTS: usize = 256;
/// A request of so many bytes is done in one go, however short a turn is to be (`schedule::Piece::SMALL_BYTES`).
const SMALL_BYTES: u64 = 32 << 10;
/// Bytes that a medium that answers at once discards or zeroes in one go: it does that by whole pages.
const ZEROED_BYTES: u64 = 1 << 20;

/// What is done to requests of one queue.
#[derive(Clone, Debug, Default)]
pub struct Stages {
    /// Where they are recorded.
    pub trace: Option<Arc<Ring>>,
    /// Which of them are delayed, or fail.
    pub fault: Option<FaultPlan>,
}

impl Stages {
    /// Whether nothing is done.
    pub fn is_none(&self) -> bool {
        self.trace.is_none() && self.fault.is_none()
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
    fate: Fate,
    /// When its medium had done it, nanoseconds.
    done_ns: u64,
}

/// One queue's way to its disk, with something on it.
#[derive(Debug)]
pub struct Staged {
    /// No `Staged` itself: [`crate::Disk::backend_through`] alone makes these.
    medium: Backend,
    /// Whether it ends each request when it has it.
    is_at_once: bool,
    tracer: Option<Tracer>,
    faults: Option<Faults>,
    look: Look,
    /// When the turn began that `look` is of.
    turn_ns: u64,
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
            faults: stages.fault.map(|plan| Faults::new(plan, SLOTS)),
            look: Look::default(),
            turn_ns: 0,
            flights: vec![Flight::default(); SLOTS].into(),
            part: Part::new(),
        }
    }

    /// As the medium has. Out of the way of those that have no stages, as all that a request asks.
    #[cold]
    #[inline(never)]
    pub(crate) fn has_room(&self, io: &Io) -> bool {
        self.medium.has_room(io)
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
        if let (Some(faults), Some(before)) = (&mut self.faults, before.faults) {
            faults.go_on_from(&before);
        }
        // It may have been made long before, and what was recorded since is the other one's.
        if let Some(tracer) = &mut self.tracer {
            tracer.go_on();
        }
    }

    /// Requests are taken from here on.
    pub(crate) fn begin(&mut self, look: Look) {
        self.look = look;
    }

    /// Parts have so many bytes from here on.
    pub(crate) fn goes_on_by(&mut self, slice_bytes: u64) {
        self.look.slice_bytes = slice_bytes;
    }

    /// How long a limit held what is taken in that turn.
    pub(crate) fn held_in(&mut self, turn_ns: u64) -> u64 {
        let is_same = std::mem::replace(&mut self.turn_ns, turn_ns) == turn_ns;
        if is_same { self.look.held_ns } else { 0 }
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
    #[cold]
    #[inline(never)]
    pub(crate) fn first_bytes(&self, len: u64) -> u64 {
        match self.is_at_once {
            true if len <= self.most_bytes().max(SMALL_BYTES) => len,
            true => self.most_bytes(),
            false => self.medium.first_bytes(len),
        }
    }

    /// Bytes of a request that its first part has had, be it a transfer or not.
    pub(crate) fn begun_bytes(&self, tag: Tag, len: u64) -> u64 {
        match self.is_at_once {
            true => self.done(tag),
            false => self.medium.begun_bytes(tag, len),
        }
    }

    /// The slot whose answer was held until `until_ns` at most, and how its request ended; it is given at `now_ns`. To be
    /// followed by [`Self::release`].
    pub(crate) fn take_due(&mut self, until_ns: u64, now_ns: u64) -> Option<(u16, Status)> {
        self.faults.as_mut()?.take_due(until_ns, now_ns)
    }

    /// How many answers are held.
    pub(crate) fn held_answers(&self) -> u16 {
        self.faults.as_ref().map_or(0, Faults::held)
    }

    /// Its guest is answered now.
    pub(crate) fn release(&mut self, request: &Request<'_>, tag: Tag, status: Status, now_ns: u64) {
        self.note(request, tag, status, now_ns);
    }

    /// When the next answer that is held is due.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.faults.as_ref()?.next_due()
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn submit(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
    ) -> Started {
        let look = self.look;
        let fate = self.faults.as_mut().map_or(Fate::default(), |faults| faults.judge(request));
        if let Some(flight) = self.flights.get_mut(usize::from(tag.slot)) {
            *flight = Flight { look, done: 0, fate, done_ns: 0 };
        }
        let started = match (fate.fails, self.is_at_once) {
            (true, _) => Started::Done(Status::IoError),
            (false, true) => self.part(io, request, memory, tag),
            (false, false) => self.medium.submit(io, request, memory, tag),
        };
        let Started::Done(status) = started else { return started };
        if self.holds(io, tag, status, look.now_ns) {
            return Started::Pending;
        }
        if let Some(tracer) = &mut self.tracer {
            tracer.add_pending(&entry(request, status, look, (look.now_ns, look.now_ns)));
        }
        started
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn completed(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
        result: i32,
        progress: &mut Progress,
    ) -> Outcome {
        match self.medium.completed(io, request, memory, tag, result, progress) {
            Outcome::Done(status) => Outcome::Passed(status),
            other => other,
        }
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
        // One that stalled before there were stages.
        if let Some(flight) = self.flights.get_mut(usize::from(tag.slot))
            && flight.look.now_ns == 0
        {
            flight.look.now_ns = now_ns;
        }
        let (bytes, started) = match self.is_at_once {
            true => {
                let before = self.done(tag);
                let started = self.part(io, request, memory, tag);
                (self.done(tag).saturating_sub(before), started)
            }
            false => self.medium.resume(io, request, memory, tag, progress, now_ns),
        };
        match self.settle(io, request, tag, started.into(), now_ns) {
            Outcome::Pending => (bytes, Started::Pending),
            _ => (bytes, started),
        }
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
                // No rest follows, as after no slice of a medium that answers at once: they are short.
                Turn { bytes: self.done(tag).saturating_sub(before), copies: false, outcome }
            }
            false => self.medium.go_on(io, request, memory, tag, progress, now_ns),
        };
        Turn { outcome: self.settle(io, request, tag, turn.outcome, now_ns), ..turn }
    }

    /// What becomes of a request after its medium has said `outcome`.
    pub(crate) fn settle(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        tag: Tag,
        outcome: Outcome,
        now_ns: u64,
    ) -> Outcome {
        let Outcome::Done(status) = outcome else { return outcome };
        if self.holds(io, tag, status, now_ns) {
            return Outcome::Pending;
        }
        self.note(request, tag, status, now_ns);
        outcome
    }

    /// Its medium has done it. Whether its answer is held nevertheless.
    fn holds(&mut self, io: &mut Io, tag: Tag, status: Status, now_ns: u64) -> bool {
        let Some(flight) = self.flights.get_mut(usize::from(tag.slot)) else { return false };
        flight.done_ns = now_ns;
        let Some(faults) = self.faults.as_mut().filter(|_| flight.fate.delay_ns > 0) else {
            return false;
        };
        let until_ns = now_ns.saturating_add(flight.fate.delay_ns);
        if faults.next_due().is_none_or(|due| until_ns < due) {
            io.note_due(tag.queue, until_ns);
        }
        faults.hold(until_ns, tag.slot, status);
        true
    }

    /// The next part of a request, by a medium that answers at once.
    fn part(&mut self, io: &mut Io, request: &Request<'_>, memory: &GuestMap, tag: Tag) -> Started {
        let (most, whole) = match request.op {
            Op::Read | Op::Write { .. } => (self.most_bytes(), SMALL_BYTES),
            // One that does nothing does all of it at once, as without a stage.
            Op::Discard | Op::WriteZeroes { .. } => (self.medium.slice_bytes(ZEROED_BYTES), 0),
            Op::Flush => (u64::MAX, u64::MAX),
        };
        let Staged { medium, flights, part, .. } = self;
        let Some(flight) = flights.get_mut(usize::from(tag.slot)) else {
            return Started::Done(Status::IoError);
        };
        // Before each part: what it would write may no longer be the guest's bytes.
        if memory.health().is_lost() {
            return Started::Done(Status::IoError);
        }
        // Not what has begun in parts, however long they may be now.
        if flight.done == 0 && request.len <= most.max(whole) {
            let started = medium.submit(io, request, memory, tag);
            flight.done = if started == Started::Done(Status::Ok) { request.len } else { 0 };
            return started;
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

    /// Bytes of one part of a transfer, by a medium that answers at once.
    fn most_bytes(&self) -> u64 {
        self.medium.slice_bytes(self.look.slice_bytes.max(1))
    }

    fn done(&self, tag: Tag) -> u64 {
        self.flights.get(usize::from(tag.slot)).map_or(0, |flight| flight.done)
    }

    fn note(&mut self, request: &Request<'_>, tag: Tag, status: Status, now_ns: u64) {
        let Some(tracer) = &mut self.tracer else { return };
        let Some(flight) = self.flights.get(usize::from(tag.slot)) else { return };
        let entry = entry(request, status, flight.look, (flight.done_ns, now_ns));
        tracer.add(&entry, now_ns);
    }
}

fn entry(
    request: &Request<'_>,
    status: Status,
    look: Look,
    (done_ns, now_ns): (u64, u64),
) -> Entry {
    Entry {
        taken_ns: look.now_ns,
        offset: request.offset,
        len: request.len,
        asked: request.op.into(),
        status,
        waited_ns: look.waited_ns,
        held_ns: look.held_ns,
        medium_ns: done_ns.saturating_sub(look.now_ns),
        stages_ns: now_ns.saturating_sub(done_ns),
    }
}

#[cfg(test)]
mod tests;
