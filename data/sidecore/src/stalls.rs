//! Requests that wait for space, or for a medium that fails: tried again from time to time, for as long as
//! the disk's `on_full` and `on_error` say so.
//!
//! A request that stalls keeps its ticket and, of a back-end that keeps requests, its slot; other requests of
//! its queue go on as long as there are slots. Of a file in memory, which answers in order, it has the place of
//! the large request, and all behind it wait. Nothing is looked at before the next try is due, so a queue full
//! of such requests costs its sidecore a timer. What is tried again and does not come back here by the next
//! look has ended: so the usual way of a request knows nothing of this file.
//!
//! A queue that leaves does not wait for them. With an in-flight record they stay in that, and whoever serves
//! the ring next takes them from there; without one, or where the ring goes on elsewhere without it (a
//! front-end asks where the ring stands while the dirty log is on: a migration), they end with an error.
//!
//! Not here: which failures stall (`backend`), and what is said of it (`manager`).

use std::collections::VecDeque;

use backend::{Io, Outcome, Stall};
use request::Status;
use schedule::Nanos;

use crate::fetch::Tally;
use crate::inbox::Event;
use crate::places::disk_at;
use crate::served::{DiskRole, Ring};
use crate::sidecore::Sidecore;

/// Until the first try, nanoseconds; each further one waits twice as long as the one before.
const PAUSE_NS_MIN: u64 = 100_000_000;
/// Between two tries at most, nanoseconds: how late a guest goes on when there is room again.
const PAUSE_NS_MAX: u64 = 1_000_000_000;

/// The requests of one queue that wait.
#[derive(Debug)]
pub(crate) struct Stalls {
    /// Their slots, in the order in which they stalled.
    slots: VecDeque<(u16, Stall)>,
    /// The large request is one of them.
    large: Option<Stall>,
    due: Nanos,
    pause_ns: u64,
    /// The sidecore has it in its list.
    is_listed: bool,
    /// Control was told that something waits.
    is_told: bool,
    /// The front-end has asked where the ring stands.
    is_stopped: bool,
}

impl Stalls {
    /// Room for a queue of so many slots.
    pub(crate) fn new(slots: usize) -> Stalls {
        Stalls {
            slots: VecDeque::with_capacity(slots),
            large: None,
            due: Nanos(0),
            pause_ns: PAUSE_NS_MIN,
            is_listed: false,
            is_told: false,
            is_stopped: false,
        }
    }

    /// How many wait in slots.
    pub(crate) fn in_slots(&self) -> u16 {
        self.slots.len() as u16
    }

    /// Whether the large request waits.
    #[inline]
    pub(crate) fn has_large(&self) -> bool {
        self.large.is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.large.is_none()
    }

    /// The ring stops, and may go on elsewhere.
    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Another sidecore has the queue from now on, and tries at once.
    pub(crate) fn come(&mut self, io: &mut Io, place: u16) {
        (self.is_listed, self.due) = (false, Nanos(0));
        if self.is_told || !self.is_empty() {
            self.list(io, place);
        }
    }

    fn list(&mut self, io: &mut Io, place: u16) {
        if !std::mem::replace(&mut self.is_listed, true) {
            io.note_stalled(place);
        }
    }

    /// One more waits, since `now`.
    fn begin(&mut self, io: &mut Io, place: u16, now: Nanos) {
        if self.is_empty() {
            // The first one in a long time is tried again soon.
            if now.since(self.due) > PAUSE_NS_MAX {
                self.pause_ns = PAUSE_NS_MIN;
            }
            self.due = now.after(self.pause_ns);
        }
        self.list(io, place);
    }

    /// Shows how many wait, and for what.
    pub(crate) fn show(&self, ring: &Ring) {
        let of = |stall| {
            let in_slots = self.slots.iter().filter(|(_, why)| *why == stall).count();
            in_slots as u64 + u64::from(self.large == Some(stall))
        };
        ring.counters.waiting_full.set(of(Stall::Full));
        ring.counters.waiting_failed.set(of(Stall::Failed));
    }
}

impl DiskRole {
    /// The request in `slot` waits.
    #[cold]
    pub(crate) fn stall(&mut self, ring: &Ring, io: &mut Io, slot: u16, stall: Stall, now: Nanos) {
        self.stalls.begin(io, self.place, now);
        self.stalls.slots.push_back((slot, stall));
        self.stalls.show(ring);
        ring.counters.stalls.add(1);
    }

    /// The large request waits.
    #[cold]
    pub(crate) fn stall_large(&mut self, ring: &Ring, io: &mut Io, stall: Stall, now: Nanos) {
        self.stalls.begin(io, self.place, now);
        self.stalls.large = Some(stall);
        self.stalls.show(ring);
        ring.counters.stalls.add(1);
    }

    /// Tries all again, as far as there is room. True when something ended or may be visited again.
    fn retry(&mut self, ring: &mut Ring, io: &mut Io, now: Nanos) -> bool {
        self.stalls.pause_ns = (self.stalls.pause_ns * 2).min(PAUSE_NS_MAX);
        self.stalls.due = now.after(self.stalls.pause_ns);
        let mut goes_on = self.stalls.large.take().is_some();
        let mut tally = Tally::default();
        for _ in 0..self.stalls.slots.len() {
            if io.room() == 0 || !self.backend.has_room(io) {
                self.stalls.due = now.after(PAUSE_NS_MIN);
                break;
            }
            let Some((slot, _)) = self.stalls.slots.pop_front() else { break };
            let Some(tag) = self.slots.tag(self.place, slot) else { continue };
            let Some((request, owed)) = self.slots.find(tag) else { continue };
            let progress = &mut owed.progress;
            match self.backend.resume(io, &request, &ring.memory, tag, progress) {
                Outcome::Pending => {}
                Outcome::Turn => self.large.line_up(tag),
                Outcome::Stalled(stall) => self.stall(ring, io, slot, stall, now),
                Outcome::Done(status) => {
                    if let Some(owed) = self.slots.take(tag) {
                        goes_on = true;
                        self.finish(ring, owed.ticket, owed.work.reply, status, &mut tally);
                    }
                }
            }
        }
        tally.add_to(ring);
        goes_on
    }

    /// Whether what waits may stay in the queue's record when it leaves.
    pub(crate) fn stays_recorded(&self, ring: &Ring) -> bool {
        let goes_without = self.stalls.is_stopped && ring.memory.is_logged();
        ring.queue.is_recorded() && !goes_without
    }

    /// The queue leaves: what waits stays in its record, or ends.
    #[cold]
    pub(crate) fn part_with_stalled(&mut self, ring: &mut Ring) {
        if self.stalls.is_empty() {
            return;
        }
        let stays_recorded = self.stays_recorded(ring);
        let mut tally = Tally::default();
        while let Some((slot, _)) = self.stalls.slots.pop_front() {
            let owed = self.slots.tag(self.place, slot).and_then(|tag| self.slots.take(tag));
            let Some(owed) = owed else { continue };
            match stays_recorded {
                true => ring.queue.abandon(owed.ticket),
                false => {
                    let (ticket, reply) = (owed.ticket, owed.work.reply);
                    self.finish(ring, ticket, reply, Status::IoError, &mut tally);
                }
            }
        }
        if self.stalls.large.take().is_some()
            && let Some((ticket, reply)) = self.large.take()
        {
            match stays_recorded {
                true => ring.queue.abandon(ticket),
                false => self.finish(ring, ticket, reply, Status::IoError, &mut tally),
            }
        }
        tally.add_to(ring);
        self.stalls.show(ring);
    }
}

impl Sidecore {
    /// Looks at the queues with requests that wait: tells of them, and tries again what is due.
    #[cold]
    #[inline(never)]
    pub(crate) fn look_at_stalled(&mut self, now: Nanos) {
        for _ in 0..self.io.stalled() {
            let Some(place) = self.io.take_stalled() else { return };
            if self.look_at_stalls(place, now) {
                self.io.note_stalled(place);
            }
        }
    }

    /// The same for one place. Whether it is to be looked at again.
    fn look_at_stalls(&mut self, place: u16, now: Nanos) -> bool {
        let Some((ring, disk)) = disk_at(&mut self.places, place) else { return false };
        if !disk.stalls.is_listed {
            return false;
        }
        let key = ring.key;
        if !disk.stalls.is_told {
            disk.stalls.is_told = true;
            self.send(Event::Stalls(key));
            return true;
        }
        if disk.stalls.due > now {
            return true;
        }
        if ring.leaving {
            disk.stalls.is_listed = false;
            return false;
        }
        if disk.stalls.is_empty() {
            (disk.stalls.is_listed, disk.stalls.is_told) = (false, false);
            disk.stalls.show(ring);
            self.send(Event::Stalls(key));
            return false;
        }
        if disk.retry(ring, &mut self.io, now) {
            if ring.unshown && ring.publish_reaped(&mut self.alarm, now) {
                self.put_off.push(place);
            }
            self.schedule.completed(place);
            self.examine(place);
        }
        true
    }

    /// When a queue with requests that wait is looked at next.
    pub(crate) fn stalled_due(&self) -> Option<Nanos> {
        let due = |place: u16| {
            let served = self.places.get(usize::from(place))?.served()?;
            let stalls = &served.disk_role()?.stalls;
            Some(if stalls.is_told { stalls.due } else { Nanos(0) })
        };
        // A place that has nobody any more is struck off by the next look.
        self.io.stalled_places().map(|place| due(place).unwrap_or(Nanos(0))).min()
    }
}
