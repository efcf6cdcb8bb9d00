//! One queue of a device, as control sees it: its life, and what is known of its ring.
//!
//! Not here: how it is made (`start`), who moves it (`moves`, `network::travel`), and when it starts (`manager`).

pub(crate) mod left;
mod staged;
mod weighed;

use std::sync::Arc;
use std::time::Instant;

use control::Passes;
use control::queue::Life;
pub(crate) use control::queue::{Asked, Back, Moved, Owner, Place};
use schedule::Gate;
use sidecore::{Command, Departure, MoveId, QueueCounters, instant_of, nanos_of};
use virtqueue::Format;

pub(crate) use left::Left;
pub(crate) use staged::{Staged, Through};
pub(crate) use weighed::{Found, Weighed, portion};

/// Of a front-end: its connection, and how often it has said something new of its rings.
pub(crate) type Said = (u32, u64);

/// What passes through control in this daemon.
#[derive(Debug)]
pub(crate) struct Daemon;

impl Passes for Daemon {
    type MoveId = MoveId;
    type Departure = Box<Departure>;
    type Command = Command;
}

/// A move of a queue to another sidecore.
pub(crate) type Move = control::queue::Move<MoveId>;

pub(crate) struct Queue {
    counters: Arc<QueueCounters>,
    /// What is done to its requests on their way to a disk.
    staged: Staged,
    life: Life<Daemon>,
    /// What it asks of its sidecore.
    weighed: Weighed,
    /// A sidecore had it before, in this process or in those that it took over from.
    was_attached: bool,
    /// Where it goes again, and whether an operator brought it there.
    again: Option<(usize, bool)>,
    /// When it was asked for last.
    asked_at: Option<Instant>,
    /// The process before this one served it when it handed it over.
    is_inherited: bool,
    /// A start that failed. Not tried again before more was said.
    gave_up: Option<Said>,
    /// Where its ring stood last.
    left: Option<Left>,
    /// What it held of its limits when it was served last.
    gate: Option<Box<Gate>>,
    size: u16,
    format: Format,
    violation: Option<String>,
    /// Why it is not served though its front-end wants it to be.
    problem: Option<String>,
    /// Another start of its guest is what mends that.
    is_guests: bool,
}

/// What a process that takes over is told of a queue.
pub(crate) struct Known {
    pub(crate) was_attached: bool,
    pub(crate) again: Option<(usize, bool)>,
    pub(crate) left: Option<Left>,
    pub(crate) violation: Option<String>,
    pub(crate) problem: Option<String>,
}

impl Queue {
    pub(crate) fn new() -> Queue {
        Queue {
            counters: Arc::new(QueueCounters::default()),
            staged: Staged::default(),
            life: Life::default(),
            weighed: Weighed::default(),
            was_attached: false,
            again: None,
            asked_at: None,
            is_inherited: false,
            gave_up: None,
            left: None,
            gate: None,
            size: 0,
            format: Format::Split,
            violation: None,
            problem: None,
            is_guests: false,
        }
    }

    pub(crate) fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    /// Where it is served, if it is.
    pub(crate) fn place(&self) -> Option<Place> {
        self.life.place()
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.life.place().is_some()
    }

    pub(crate) fn is_by_hand(&self) -> bool {
        self.place().is_some_and(|place| place.by_hand)
    }

    /// Since when it is asked for, and not back.
    pub(crate) fn leaving_since(&self) -> Option<Instant> {
        self.life.leaving_since().map(instant_of)
    }

    /// Which sidecore it is going to.
    pub(crate) fn moving_to(&self) -> Option<usize> {
        self.life.moving().map(|moving| moving.to)
    }

    /// Whether it is going to where it is, to be served through other stages there.
    pub(crate) fn is_restaged(&self) -> bool {
        self.moving_to().is_some_and(|to| self.place().is_some_and(|place| place.core == to))
    }

    /// What is done to its requests.
    pub(crate) fn staged(&self) -> &Staged {
        &self.staged
    }

    pub(crate) fn staged_mut(&mut self) -> &mut Staged {
        &mut self.staged
    }

    /// Whether it is on its way to another sidecore, or back.
    pub(crate) fn is_underway(&self) -> bool {
        self.life.moving().is_some() || self.leaving_since().is_some()
    }

    pub(crate) fn weighed(&self) -> &Weighed {
        &self.weighed
    }

    pub(crate) fn weighed_mut(&mut self) -> &mut Weighed {
        &mut self.weighed
    }

    pub(crate) fn was_attached(&self) -> bool {
        self.was_attached
    }

    /// When it was asked for last.
    pub(crate) fn asked_at(&self) -> Option<Instant> {
        self.asked_at
    }

    /// Whether the process before this one served it when it handed it over.
    pub(crate) fn is_inherited(&self) -> bool {
        self.is_inherited
    }

    pub(crate) fn left(&self) -> Option<Left> {
        self.left
    }

    /// Entries of its ring; 0 before it was made.
    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Why its sidecore has stopped it.
    pub(crate) fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// Why it is not served.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Whether it is stopped, or not served though it is to be.
    pub(crate) fn is_bad(&self) -> bool {
        self.violation.is_some() || self.problem.is_some()
    }

    /// Whether the start that failed last was of what that front-end says now.
    pub(crate) fn gave_up(&self, said: Said) -> bool {
        self.gave_up == Some(said)
    }
}

/// Its life.
impl Queue {
    /// A sidecore is given it. False: one has it.
    #[must_use]
    pub(crate) fn attach(&mut self, place: Place) -> bool {
        let is_new = self.life.attach(place);
        self.was_attached |= is_new;
        is_new
    }

    /// It is wanted back: see [`Life::ask`].
    pub(crate) fn ask(&mut self, finishes: bool, now: Instant) -> Asked<MoveId> {
        self.life.ask(finishes, nanos_of(now))
    }

    /// It is back, at `base` of its ring. With `returns` it goes where it was, if nobody asks for another place.
    pub(crate) fn come_back(
        &mut self,
        base: u32,
        gate: Option<Box<Gate>>,
        returns: bool,
    ) -> Option<Back<MoveId>> {
        self.gate = gate;
        let back = self.life.come_back()?;
        if back.was.owner != Owner::Link {
            self.again = returns.then_some((back.was.core, back.was.by_hand));
            self.asked_at = back.asked_at.map(instant_of);
            self.left = self.left.map(|left| left.at(base));
        }
        Some(back)
    }

    /// Where it goes again, which is forgotten.
    pub(crate) fn take_again(&mut self) -> Option<(usize, bool)> {
        self.again.take()
    }

    /// See [`Life::prepare`].
    #[must_use]
    pub(crate) fn prepare(&mut self, to: Move, departure: Box<Departure>) -> bool {
        self.life.prepare(to, departure)
    }

    /// See [`Life::prepared`].
    pub(crate) fn prepared(&mut self, id: MoveId) -> Option<(usize, Box<Departure>)> {
        self.life.prepared(id)
    }

    /// See [`Life::moved`].
    pub(crate) fn moved(&mut self, id: MoveId, stayed: bool) -> Option<Moved<Command>> {
        let moved = self.life.moved(id, stayed)?;
        self.staged.is_moved(stayed);
        Some(moved)
    }

    /// See [`Life::tell`].
    pub(crate) fn tell(&mut self, command: Command) -> Option<(usize, Command)> {
        self.life.tell(command)
    }

    /// See [`Life::rehome`].
    pub(crate) fn rehome(&mut self, core: usize) {
        self.life.rehome(core);
    }

    /// See [`Life::stays_at`].
    pub(crate) fn stays_at(&mut self, core: usize) -> bool {
        self.life.stays_at(core)
    }

    /// See [`Life::let_go`].
    pub(crate) fn let_go(&mut self) {
        self.life.let_go();
    }
}

/// Its ring.
impl Queue {
    /// It was made, and is about to start. Gives what it held of its limits.
    pub(crate) fn is_made(&mut self, left: Left, size: u16, format: Format) -> Option<Box<Gate>> {
        (self.size, self.format, self.violation) = (size, format, None);
        (self.left, self.problem, self.gave_up) = (Some(left), None, None);
        self.gate.take()
    }

    /// It was to start, and could not be made of what its front-end says.
    pub(crate) fn is_not_made(
        &mut self,
        said: Said,
        problem: Option<String>,
        (size, format): (u16, Format),
    ) {
        (self.size, self.format, self.violation) = (size, format, None);
        (self.problem, self.gave_up, self.is_guests) = (problem, Some(said), false);
    }

    /// Whether another start of its guest, and nothing else, mends why it could not be made.
    pub(crate) fn waits_for_another_guest(&mut self, is_so: bool) {
        self.is_guests = is_so;
    }

    /// Its guest is gone, and so is what another one does not have.
    pub(crate) fn lose_guest(&mut self) {
        self.violation = None;
        if std::mem::take(&mut self.is_guests) {
            self.problem = None;
        }
    }

    /// One of a link is about to start. Gives what it held of its limits.
    pub(crate) fn is_exported(&mut self, size: u16) -> Option<Box<Gate>> {
        self.size = size;
        self.gate.take()
    }

    /// Its sidecore refused it, or gave it back for that reason.
    pub(crate) fn is_refused(&mut self, problem: &str, said: Option<Said>) {
        (self.problem, self.is_guests) = (Some(format!("is not served: {problem}")), false);
        self.gave_up = said.or(self.gave_up);
    }

    /// Its place is lost: it does not start before its front-end says more, or another guest comes.
    pub(crate) fn lose_place(&mut self, at: Left, problem: String) {
        (self.left, self.problem, self.is_guests) = (Some(at), Some(problem), true);
    }

    fn is_lost(&self) -> bool {
        self.left.is_some_and(|left| left.base().is_none())
    }

    /// Its ring is found anew, as after a crash.
    pub(crate) fn forget_left(&mut self) {
        self.left = None;
    }

    /// It is tried again, though nothing was said: by which no place is found.
    pub(crate) fn try_again(&mut self) {
        self.gave_up = None;
        if !self.is_lost() {
            self.problem = None;
        }
    }

    pub(crate) fn forget_problem(&mut self) {
        self.problem = None;
    }

    /// Its sidecore takes nothing more from it.
    pub(crate) fn stop(&mut self, violation: &str) {
        self.violation = Some(violation.to_string());
    }

    /// No guest was ever served by it.
    pub(crate) fn forget_guest(&mut self) {
        self.was_attached = false;
    }

    /// An upgrade begins: how long it stands still is counted anew.
    pub(crate) fn forget_asked(&mut self) {
        self.asked_at = None;
    }

    /// What a successor is told.
    pub(crate) fn known(&self) -> Known {
        Known {
            was_attached: self.was_attached,
            again: self.again,
            left: self.left,
            violation: self.violation.clone(),
            problem: self.problem.clone(),
        }
    }

    /// What a predecessor told of it, and whether it served it until now.
    pub(crate) fn go_on_as(&mut self, known: Known, is_inherited: bool) {
        let Known { was_attached, again, left, violation, problem } = known;
        // What it asked of its sidecore so far is nothing that it asks of the next look.
        self.weighed = Weighed::after(self.counters.work_ns());
        (self.was_attached, self.again, self.left) = (was_attached, again, left);
        (self.violation, self.problem) = (violation, problem);
        (self.is_inherited, self.is_guests) = (is_inherited, self.is_lost());
    }
}

#[cfg(test)]
mod tests;
