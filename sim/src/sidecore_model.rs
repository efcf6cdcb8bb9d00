//! A sidecore: the crate `schedule`, driven as `data/sidecore` drives it, with costs for memory.
//!
//! The order of the calls is that of `Sidecore::pass`, `Sidecore::visit` and `Sidecore::rest`, and only
//! this file makes them; why it is a copy is in docs/decisions/0012-simulator.md. Every queue is a disk's,
//! also where a load is called a stream; back-ends answer at once; commands, completions, and roads
//! between sidecores have no part.

use schedule::{
    Budget, INTERRUPTION, LOOK_EVENTS_MAX, LOOK_INTERVAL_NS, Limits, Nanos, Piece, Policy,
    SHARE_USUAL, Schedule, Visit, Visited,
};

use crate::costs::{ARM_NS, CLOCK_NS, KICKS_NS, LOOK_NS, PASS_NS, SLEEP_NS, VISIT_NS, WATCH_NS};
use crate::measure::{CoreMeasures, Sleep};
use crate::ring::Rings;
use crate::stuck::Stuck;
use crate::world::Core;

/// Between two looks whether the next in line is stuck; the daemon has no such piece.
const LOOKING: Piece = Piece { requests: 8, bytes: 16 << 10, slice_bytes: 16 << 10 };

/// How far a visit is.
#[derive(Clone, Copy, Debug)]
struct Course {
    visit: Visit,
    is_watchful: bool,
    is_over: bool,
    total: Visited,
    /// What `total` was when the clock was read last.
    clocked: Visited,
    /// When it began, moved on by what interrupted it.
    since: u64,
}

/// What is being served now.
#[derive(Clone, Copy, Debug)]
struct Part {
    queue: u16,
    budget: Budget,
    piece: Piece,
    done: Visited,
    is_over: bool,
}

/// A round of looks at the watched queues.
#[derive(Clone, Copy, Debug)]
struct Round {
    turn: usize,
    watched: usize,
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// The start of a pass.
    Pass,
    /// Between two visits.
    Next,
    /// In a piece of a visit.
    Piece(Course, Part),
    /// Between two pieces.
    Between(Course, Round),
    /// Serving a watched queue since that time.
    Interruption(Course, Round, Part, u64),
    /// Its answers are out.
    Interrupted(Course, Round, Part, u64),
    /// Back from a sleep, or from a wait that was none because something had come.
    Woken,
    Asleep,
}

#[derive(Debug)]
pub(crate) struct Sidecore {
    schedule: Schedule,
    at: At,
    due: u64,
    /// The clock as it was read last in this pass.
    now: Nanos,
    /// The clock at the start of the pass.
    begun: Nanos,
    looked: Nanos,
    /// Queues whose eventfd was written since the last look.
    signalled: Vec<u16>,
    /// Bytes done of a queue's first request.
    sliced: Vec<u64>,
    first_watched: usize,
    /// Whether the pass did anything.
    worked: bool,
    sleep: Sleep,
    stuck: Option<Stuck>,
}

impl Sidecore {
    /// With these of a host's `queues_all` queues; `watch`: light queues may interrupt visits.
    pub(crate) fn new(
        queues: Vec<u16>,
        queues_all: usize,
        policy: Policy,
        watch: bool,
    ) -> Sidecore {
        let mut schedule = Schedule::new(Limits::default(), queues_all as u16);
        schedule.watch(watch);
        for queue in queues {
            schedule.add(queue, SHARE_USUAL, policy, Nanos(0));
        }
        Sidecore {
            schedule,
            at: At::Pass,
            due: 0,
            now: Nanos(0),
            begun: Nanos(0),
            looked: Nanos(0),
            signalled: Vec::new(),
            sliced: vec![0; queues_all],
            first_watched: 0,
            worked: false,
            sleep: Sleep::default(),
            stuck: None,
        }
    }

    /// From now on a visit also ends when the queue that is next in line is stuck.
    pub(crate) fn end_early_for_stuck(&mut self) {
        self.stuck = Some(Stuck::default());
    }

    fn begin(&mut self, rings: &mut Rings) -> u64 {
        (self.now, self.begun) = (Nanos(self.due), Nanos(self.due));
        self.worked = false;
        self.at = At::Next;
        let mut took = PASS_NS;
        if self.now.since(self.looked) >= LOOK_INTERVAL_NS {
            self.look(rings, self.now);
            took += KICKS_NS;
        }
        self.schedule.begin(self.now);
        took
    }

    /// Takes kicks. After a sleep with the time before it, as the daemon does.
    fn look(&mut self, rings: &mut Rings, now: Nanos) {
        self.looked = now;
        for queue in self.signalled.drain(..self.signalled.len().min(LOOK_EVENTS_MAX)) {
            self.worked = true;
            if self.schedule.kicked(queue, now) {
                rings.arm(queue, false);
            }
        }
    }

    fn next(&mut self, rings: &mut Rings) -> u64 {
        let Some(visit) = self.schedule.next() else {
            return self.end(rings);
        };
        let is_watchful = self.stuck.is_some() || self.schedule.watches_others(visit.queue);
        let (total, since) = (Visited::default(), self.now.0);
        let is_over = false;
        let course = Course { visit, is_watchful, is_over, total, clocked: total, since };
        if rings.is_empty(visit.queue) {
            self.end_visit(&course);
            return LOOK_NS;
        }
        self.at = At::Piece(course, course.part(&self.schedule, self.now));
        VISIT_NS
    }

    /// One request, or one slice of one. None when the part is over.
    fn serve(&mut self, part: &mut Part, rings: &mut Rings) -> Option<u64> {
        let Part { queue, budget, piece, done, is_over } = part;
        if *is_over || done.requests >= budget.requests || done.bytes >= budget.bytes {
            return None;
        }
        let Some(bytes) = rings.first_bytes(*queue) else {
            done.more = false;
            return None;
        };
        let sliced = &mut self.sliced[usize::from(*queue)];
        let is_large =
            bytes > Piece::SMALL_BYTES && bytes > piece.slice_bytes.saturating_sub(done.bytes);
        if *sliced == 0 && is_large && done.bytes > 0 {
            return None;
        }
        done.requests += 1;
        let mut took = 0;
        if *sliced > 0 || is_large {
            let slice = piece.slice_bytes.min(bytes - *sliced);
            took +=
                if *sliced == 0 { rings.way.request_ns(slice) } else { rings.way.bytes_ns(slice) };
            *is_over = *sliced == 0 || *sliced + slice < bytes;
            *sliced += slice;
            done.bytes += slice;
            if *sliced < bytes {
                return Some(took);
            }
            *sliced = 0;
        } else {
            took += rings.way.request_ns(bytes);
            done.bytes += bytes;
        }
        rings.take(*queue);
        if done.requests.is_multiple_of(Piece::SHOW_EVERY) {
            rings.show(*queue, self.due + took + rings.way.reply_ns);
        }
        Some(took)
    }

    fn go_on(&mut self, mut course: Course, mut part: Part, rings: &mut Rings) -> u64 {
        if let Some(took) = self.serve(&mut part, rings) {
            self.at = At::Piece(course, part);
            return took;
        }
        let mut took = 0;
        course.add(part.done);
        let is_long = part.piece.is_to_be_clocked(part.done);
        if is_long || course.total.is_to_be_clocked(course.clocked) {
            self.read(&mut course);
            took += CLOCK_NS;
        }
        let queue = course.visit.queue;
        let ends_early = self.stuck.is_some() && part.done.wants_more() && {
            took += WATCH_NS + CLOCK_NS;
            self.is_next_stuck(rings, self.due + took)
        };
        if !part.done.wants_more() || !course.is_within() || ends_early {
            rings.show(queue, self.due + took + rings.way.call_ns + rings.way.reply_ns);
            self.end_visit(&course);
            if course.is_watchful && part.done.took_long() {
                course.is_over = true;
                self.look_around(course);
            }
            return took + rings.way.call_ns;
        }
        rings.show(queue, self.due + took + rings.way.reply_ns);
        if course.is_watchful {
            self.schedule.cut(self.now);
            self.look_around(course);
        } else {
            self.at = At::Piece(course, course.part(&self.schedule, self.now));
        }
        took
    }

    fn look_around(&mut self, course: Course) {
        let watched = self.schedule.watched().len();
        let first = self.first_watched + 1;
        self.first_watched = if first < watched { first } else { 0 };
        self.at = At::Between(course, Round { turn: 0, watched });
    }

    /// One look at whose turn is next.
    fn is_next_stuck(&mut self, rings: &Rings, now: u64) -> bool {
        let (Some(stuck), Some(next)) = (&mut self.stuck, self.schedule.next_in_line()) else {
            return false;
        };
        !rings.is_empty(next) && stuck.look(next, rings.offered(next), now)
    }

    /// Looks at watched queues, up to one that has something.
    fn between(&mut self, mut course: Course, mut round: Round, rings: &mut Rings) -> u64 {
        let mut took = 0;
        while round.turn < round.watched {
            let at = (self.first_watched + round.turn) % round.watched;
            let Some(urgent) = self.schedule.watched().get(at).copied() else { break };
            round.turn += 1;
            took += WATCH_NS;
            if urgent == course.visit.queue {
                continue;
            }
            if rings.is_empty(urgent) {
                self.schedule.found_empty(urgent, self.now);
                continue;
            }
            if !self.schedule.may_interrupt(urgent, self.now) {
                if self.schedule.may_ask_for_others() {
                    continue;
                }
                break;
            }
            self.read(&mut course);
            took += CLOCK_NS;
            self.schedule.advance(self.now);
            if self.schedule.kicked(urgent, self.now) {
                rings.arm(urgent, false);
            }
            let part = Part::new(urgent, INTERRUPTION, Piece::WATCHFUL);
            self.at = At::Interruption(course, round, part, self.due);
            return took + VISIT_NS;
        }
        self.at = if course.is_over {
            At::Next
        } else {
            At::Piece(course, course.part(&self.schedule, self.now))
        };
        took
    }

    fn interrupt(
        &mut self,
        (course, round): (Course, Round),
        mut part: Part,
        since: u64,
        rings: &mut Rings,
    ) -> u64 {
        if let Some(took) = self.serve(&mut part, rings) {
            self.at = At::Interruption(course, round, part, since);
            return took;
        }
        rings.show(part.queue, self.due + rings.way.call_ns + rings.way.reply_ns);
        self.at = At::Interrupted(course, round, part, since);
        rings.way.call_ns + CLOCK_NS
    }

    fn interrupted(&mut self, mut course: Course, round: Round, part: Part, since: u64) -> u64 {
        let nanos = self.due - since;
        self.schedule.interrupted(part.queue, Visited { nanos, ..part.done });
        course.since += nanos;
        self.now = Nanos(self.due);
        self.at = At::Between(course, round);
        0
    }

    fn read(&mut self, course: &mut Course) {
        self.now = Nanos(self.due);
        course.total.nanos = self.due - course.since;
        course.clocked = course.total;
    }

    fn end_visit(&mut self, course: &Course) {
        self.worked |= course.total.requests > 0;
        self.schedule.advance(self.now);
        self.schedule.visited(course.visit.queue, course.total);
        self.at = At::Next;
    }

    /// The end of a pass: idle queues are armed, and an idle sidecore sleeps.
    fn end(&mut self, rings: &mut Rings) -> u64 {
        let mut took = 0;
        while let Some(queue) = self.schedule.to_arm() {
            took += ARM_NS;
            rings.arm(queue, true);
            if rings.is_empty(queue) {
                self.schedule.armed(queue);
            } else {
                rings.arm(queue, false);
                self.schedule.found(queue);
            }
        }
        self.at = At::Pass;
        if self.worked || !self.schedule.may_rest() {
            return took;
        }
        if !self.signalled.is_empty() {
            self.at = At::Woken;
            return took + KICKS_NS;
        }
        self.at = At::Asleep;
        self.sleep.begin(self.due + took + SLEEP_NS);
        took
    }
}

impl Core for Sidecore {
    fn due(&self) -> Option<u64> {
        (!matches!(self.at, At::Asleep)).then_some(self.due)
    }

    fn step(&mut self, rings: &mut Rings) {
        self.due += match self.at {
            At::Pass => self.begin(rings),
            At::Next => self.next(rings),
            At::Piece(course, part) => self.go_on(course, part, rings),
            At::Between(course, round) => self.between(course, round, rings),
            At::Interruption(course, round, part, since) => {
                self.interrupt((course, round), part, since, rings)
            }
            At::Interrupted(course, round, part, since) => {
                self.interrupted(course, round, part, since)
            }
            At::Woken => {
                self.look(rings, self.begun);
                self.at = At::Pass;
                0
            }
            At::Asleep => 0,
        };
    }

    fn kicked(&mut self, queue: u16, now: u64) {
        self.signalled.push(queue);
        if let Some(first) = self.sleep.end(now) {
            self.due = first;
            self.at = At::Woken;
        }
    }

    fn measures(&self, now: u64) -> CoreMeasures {
        self.sleep.measures(now)
    }
}

impl Course {
    /// The next piece of what is left of the visit.
    fn part(&self, schedule: &Schedule, now: Nanos) -> Part {
        let piece = match schedule.watched() {
            // Only the next in line is looked at.
            [] if self.is_watchful => LOOKING,
            _ => schedule.piece(self.is_watchful, now),
        };
        let budget = piece.of(self.visit.budget, self.total);
        Part::new(self.visit.queue, budget, piece)
    }

    fn add(&mut self, done: Visited) {
        let Visited { requests, bytes, nanos, .. } = self.total;
        self.total = done;
        self.total.requests += requests;
        self.total.bytes += bytes;
        self.total.nanos = nanos;
    }

    fn is_within(&self) -> bool {
        let (total, budget) = (self.total, self.visit.budget);
        total.requests < budget.requests && total.bytes < budget.bytes && total.nanos < budget.nanos
    }
}

impl Part {
    fn new(queue: u16, budget: Budget, piece: Piece) -> Part {
        let done = Visited { more: true, ..Visited::default() };
        Part { queue, budget, piece, done, is_over: false }
    }
}
