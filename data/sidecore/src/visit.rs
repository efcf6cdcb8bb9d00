//! A visit in pieces: what is looked after between them is the time, and the rings of queues that ask
//! little.
//!
//! Not what is done in a piece (`fetch` for disks, `frames` for NICs), nor whose turn it is and who may
//! interrupt whom (`schedule`). Called by `sidecore`.

use schedule::{Budget, Clock, INTERRUPTION, Nanos, Piece, Visit, Visited};

use crate::places::{disk_at, served_at};
use crate::sidecore::{Progress, Sidecore};

/// How far a visit is.
#[derive(Clone, Copy, Debug)]
struct Course {
    total: Visited,
    /// What `total` was when the clock was read last.
    clocked: Visited,
    /// When the visit began, moved on by what interrupted it.
    since: Nanos,
    at: Nanos,
}

/// What visits leave to the next one.
#[derive(Debug, Default)]
pub(crate) struct Visiting {
    /// Of the watched queues, the one that was looked at first.
    first_watched: usize,
    /// Until when the queue that is served may take nothing.
    limited_until: Option<Nanos>,
}

impl Visiting {
    /// The queue that is served may take nothing until then.
    pub(crate) fn limit(&mut self, until: Nanos) {
        self.limited_until = Some(until);
    }
}

impl Sidecore {
    /// The step in which each queue has its turn that is polled; of a few passes each turn is timed. Gives the
    /// time afterwards.
    #[inline]
    pub(crate) fn visit_all(
        &mut self,
        now: Nanos,
        clock: &impl Clock,
        progress: &mut Progress,
    ) -> Nanos {
        let mut now = now;
        let is_sample = self.sampling.begin();
        while let Some(visit) = self.schedule.next() {
            self.look_ahead();
            let begun = if is_sample { self.begin_timing(clock) } else { now };
            let (requests, then) = self.visit(visit, begun, clock);
            now = then;
            if is_sample {
                now = self.end_timing(visit.queue, begun, requests, clock);
            }
            progress.requests += requests;
        }
        now
    }

    /// A turn of whatever is at that place: how many requests it had, and what time it is then.
    #[inline]
    fn visit(&mut self, visit: Visit, now: Nanos, clock: &impl Clock) -> (u32, Nanos) {
        let Visit { queue, budget } = visit;
        let is_watchful = self.schedule.watches_others(queue);
        let is_disk = disk_at(&mut self.places, queue).is_some();
        let nothing = Visited::default();
        let mut course = Course { total: nothing, clocked: nothing, since: now, at: now };
        loop {
            let piece = match is_disk {
                true => self.schedule.piece(is_watchful, course.at),
                false => Piece::FRAMES,
            };
            let visited =
                self.serve(queue, piece.of(budget, course.total), piece, course.at, clock);
            course.add(visited);
            if piece.is_to_be_clocked(visited) || course.total.is_to_be_clocked(course.clocked) {
                course.read(clock);
            }
            if !visited.wants_more() || !course.is_within(budget) {
                let Course { total, at, .. } = course;
                self.end_visit(queue, total, at);
                // What comes next may begin with a piece as long as this one was.
                if is_watchful && (total.took_long() || total.later) {
                    if visited.took_long() {
                        self.look_around(queue, &mut course, clock);
                    }
                    self.rest_from_copies(queue, course.at);
                }
                return (total.requests, course.at);
            }
            self.between(queue, is_watchful, &mut course, clock);
        }
    }

    /// A piece of a visit. What was completed is not shown.
    #[inline]
    fn serve(
        &mut self,
        queue: u16,
        budget: Budget,
        piece: Piece,
        at: Nanos,
        clock: &impl Clock,
    ) -> Visited {
        let Some((ring, disk)) = disk_at(&mut self.places, queue) else {
            return self.visit_frames(queue, budget, at);
        };
        let (io, chain) = (&mut self.io, &mut self.chain);
        let done = if ring.is_plain() {
            disk.fetch(ring, io, chain, budget, piece.slice_bytes, at)
        } else {
            let waited_ns = self.schedule.waited_ns(queue, at);
            let how_far = (budget, piece.slice_bytes);
            let when = (at, self.schedule.turn_began(), waited_ns);
            match disk.fetch_specially(ring, io, chain, how_far, when, clock) {
                Ok(done) => done,
                Err(until) => {
                    self.visiting.limited_until = Some(until);
                    return Visited::default();
                }
            }
        };
        let ended = done.ended();
        if ended > 0 && disk.answered.add(ended, at) {
            self.unclocked.push(queue);
        }
        done.visited()
    }

    #[inline]
    fn end_visit(&mut self, queue: u16, total: Visited, at: Nanos) {
        if let Some((ring, _)) = disk_at(&mut self.places, queue) {
            ring.publish(&mut self.alarm);
            if total.requests > 0 {
                ring.counters.visits.add(1);
            }
            if ring.queue.violation().is_some() || ring.health.is_lost() {
                self.examine(queue);
            }
        }
        self.schedule.advance(at);
        let until = self.visiting.limited_until.take();
        // Nothing was found out about its ring, when it may take nothing.
        if until.is_none() || total.requests > 0 {
            let missed = self.schedule.visited(queue, total);
            if missed > 0 {
                self.count_missed(queue, missed);
            }
        }
        if let Some(until) = until {
            self.schedule.wait_until(queue, until);
        }
    }

    /// After a piece that is not the last one.
    #[inline(never)]
    fn between(&mut self, queue: u16, is_watchful: bool, course: &mut Course, clock: &impl Clock) {
        if let Some((ring, _)) = disk_at(&mut self.places, queue)
            && !ring.health.is_lost()
        {
            ring.queue.show();
        }
        if is_watchful {
            self.schedule.cut(course.at);
            self.look_around(queue, course, clock);
        }
    }

    /// Serves the watched queues that have something, but `queue`, as far as there is time for them.
    fn look_around(&mut self, queue: u16, course: &mut Course, clock: &impl Clock) {
        let watched = self.schedule.watched().len();
        // Each is the first to be looked at in turn: the time for interruptions may not be enough for all.
        let first = self.visiting.first_watched + 1;
        let first = if first < watched { first } else { 0 };
        self.visiting.first_watched = first;
        for turn in 0..watched {
            let at = (first + turn) % watched;
            let Some(urgent) = self.schedule.watched().get(at).copied() else { break };
            if urgent == queue {
                continue;
            }
            if !self.has_new(urgent) {
                // The clock may have been read a piece or two ago: the wait is rather over- than underrated.
                self.schedule.found_empty(urgent, course.at);
                continue;
            }
            // By the time as it is known: a no must not cost those who are visited anything.
            if !self.schedule.may_interrupt(urgent, course.at) {
                if self.schedule.may_ask_for_others() {
                    continue;
                }
                break;
            }
            // What others have given to a disk is not on this one's account.
            self.hand_over_io();
            course.read(clock);
            self.schedule.advance(course.at);
            let before = course.at;
            course.at = self.interrupt(urgent, before, clock);
            course.since = course.since.after(course.at.since(before));
        }
        if let Some(one) = self.schedule.watched().get(first) {
            self.keep_near(*one);
        }
    }

    /// So many requests waited for longer than their queue's target.
    #[cold]
    fn count_missed(&mut self, queue: u16, missed: u32) {
        if let Some(served) = served_at(&mut self.places, queue) {
            served.ring.counters.missed.add(missed.into());
        }
    }

    /// Whether there is something in the ring of a watched queue.
    #[inline]
    fn has_new(&mut self, queue: u16) -> bool {
        let Some(served) = served_at(&mut self.places, queue) else { return false };
        let ring = &mut served.ring;
        !ring.health.is_lost() && ring.queue.has_new(&ring.memory)
    }

    /// Serves a queue that asks little in the middle of another's visit. Gives the time afterwards.
    fn interrupt(&mut self, queue: u16, at: Nanos, clock: &impl Clock) -> Nanos {
        if self.schedule.kicked(queue, at)
            && let Some(served) = served_at(&mut self.places, queue)
        {
            served.ring.queue.disarm();
        }
        let was_listed =
            disk_at(&mut self.places, queue).is_some_and(|(_, disk)| !disk.answered.is_empty());
        let mut visited = self.serve(queue, INTERRUPTION, Piece::WATCHFUL, at, clock);
        // What a disk was given goes to the kernel now: the pass may take long.
        self.hand_over_io();
        let after = if let Some((ring, disk)) = disk_at(&mut self.places, queue) {
            ring.publish(&mut self.alarm);
            let after = clock.now();
            // With those of an earlier visit in this pass it is left to the next.
            if !was_listed && !disk.answered.is_empty() {
                disk.answered.clock(&ring.counters.latency, after);
                self.unclocked.pop();
            }
            ring.counters.visits.add(u64::from(visited.requests > 0));
            if ring.queue.violation().is_some() || ring.health.is_lost() {
                self.examine(queue);
            }
            after
        } else {
            clock.now()
        };
        visited.nanos = after.since(at);
        self.sampling.interrupted_ns += visited.nanos;
        if let Some(served) = served_at(&mut self.places, queue) {
            served.ring.counters.work_ns.add(visited.nanos);
        }
        self.counters.work_ns.add(visited.nanos);
        self.counters.interruptions.add(1);
        let missed = self.schedule.interrupted(queue, visited);
        if missed > 0 {
            self.count_missed(queue, missed);
        }
        if let Some(until) = self.visiting.limited_until.take() {
            self.schedule.wait_until(queue, until);
        }
        after
    }
}

impl Course {
    #[inline]
    fn add(&mut self, visited: Visited) {
        self.total.requests += visited.requests;
        self.total.bytes += visited.bytes;
        // How the last piece ended is how the visit ended.
        let Visited { more, held, later, .. } = visited;
        (self.total.more, self.total.held, self.total.later) = (more, held, later);
    }

    fn read(&mut self, clock: &impl Clock) {
        self.at = clock.now();
        self.total.nanos = self.at.since(self.since);
        self.clocked = self.total;
    }

    /// Whether the visit may begin another piece.
    #[inline]
    fn is_within(&self, budget: Budget) -> bool {
        let Visited { requests, bytes, nanos, .. } = self.total;
        requests < budget.requests && bytes < budget.bytes && nanos < budget.nanos
    }
}
