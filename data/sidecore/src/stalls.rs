//! Requests that wait for space, or for a medium that fails: tried again from time to time, for as long as
//! the disk's `on_full` and `on_error` say so.
//!
//! A request that stalls keeps its ticket and, of a back-end that keeps requests, its slot; other requests of
//! its queue go on as long as there are slots. Of a file in memory, which answers in order, it has the place of
//! the large request, and all behind it wait. Nothing is looked at before the next try is due, so a queue full
//! of such requests costs its sidecore a timer. What is tried again waits until it has ended: each look asks
//! its slot, so the usual way of a request knows nothing of this file.
//!
//! A queue that leaves does not wait for them. With an in-flight record they stay in that, and whoever serves
//! the ring next takes them from there; without one, or where the ring goes on elsewhere without it (a
//! front-end asks where the ring stands while the dirty log is on: a migration), they end with an error.
//!
//! Not here: which failures stall (`backend`), and what is said of it (`manager`).

use std::collections::VecDeque;

use backend::{Io, Stall, Started};
use request::{Status, Tag};
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
    /// Slots of those that are to be tried again, in the order in which they stalled.
    slots: VecDeque<u16>,
    /// By slot: the generation of the last request there that stalled, and why. As long as that one lives, it
    /// waits: the try that is under way may take its time, and come to nothing.
    known: Box<[Option<(u32, Stall)>]>,
    /// The large request waits, or is being tried again.
    large: Option<Stall>,
    /// It is to be tried again later.
    holds_large: bool,
    due: Nanos,
    pause_ns: u64,
    /// The sidecore has it in its list.
    is_listed: bool,
    /// What waits is not counted yet.
    is_unshown: bool,
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
            known: vec![None; slots].into_boxed_slice(),
            large: None,
            holds_large: false,
            due: Nanos(0),
            pause_ns: PAUSE_NS_MIN,
            is_listed: false,
            is_unshown: false,
            is_told: false,
            is_stopped: false,
        }
    }

    /// How many are to be tried again, of those in slots.
    pub(crate) fn in_slots(&self) -> u16 {
        self.slots.len() as u16
    }

    /// Whether the large request is to be tried again later.
    #[inline]
    pub(crate) fn has_large(&self) -> bool {
        self.holds_large
    }

    /// The large request has ended.
    #[inline]
    pub(crate) fn large_ended(&mut self) {
        self.large = None;
    }

    /// Whether something is to be tried again. What is being tried is not here, but with the back-end.
    pub(crate) fn has_some(&self) -> bool {
        !self.slots.is_empty() || self.holds_large
    }

    /// The ring stops, and may go on elsewhere.
    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Its queue leaves the sidecore.
    pub(crate) fn leave(&mut self, io: &mut Io, place: u16) {
        if std::mem::take(&mut self.is_listed) {
            io.forget_stalled(place);
        }
    }

    fn list(&mut self, io: &mut Io, place: u16) {
        if !std::mem::replace(&mut self.is_listed, true) {
            io.note_stalled(place);
        }
    }

    /// One more waits, since `now`.
    fn begin(&mut self, io: &mut Io, place: u16, now: Nanos) {
        if !self.has_some() {
            // The first one in a long time is tried again soon.
            if now.since(self.due) > PAUSE_NS_MAX {
                self.pause_ns = PAUSE_NS_MIN;
            }
            self.due = now.after(self.pause_ns);
        }
        self.is_unshown = true;
        self.list(io, place);
    }

    /// The request of that name is to be tried again. True when it had not waited before.
    fn note(&mut self, tag: Tag, stall: Stall) -> bool {
        self.slots.push_back(tag.slot);
        let Some(known) = self.known.get_mut(usize::from(tag.slot)) else { return true };
        let before = known.replace((tag.generation, stall));
        before.is_none_or(|(generation, _)| generation != tag.generation)
    }
}

impl DiskRole {
    /// The request in `slot` waits.
    #[cold]
    pub(crate) fn stall(&mut self, ring: &Ring, io: &mut Io, slot: u16, stall: Stall, now: Nanos) {
        let Some(tag) = self.slots.tag(self.place, slot) else { return };
        self.stalls.begin(io, self.place, now);
        self.slots.rests(slot);
        let is_new = self.stalls.note(tag, stall);
        ring.counters.stalls.add(is_new.into());
    }

    /// The large request waits.
    #[cold]
    pub(crate) fn stall_large(&mut self, ring: &Ring, io: &mut Io, stall: Stall, now: Nanos) {
        self.stalls.begin(io, self.place, now);
        let is_new = self.stalls.large.replace(stall).is_none();
        self.stalls.holds_large = true;
        ring.counters.stalls.add(is_new.into());
    }

    /// The queue is at a place of a sidecore from now on, and its slots have begun anew: all that waits is tried at
    /// once.
    pub(crate) fn come_stalled(&mut self, io: &mut Io) {
        let Stalls { slots, known, .. } = &mut self.stalls;
        for slot in slots.iter() {
            let tag = self.slots.tag(self.place, *slot);
            if let (Some(tag), Some(Some(known))) = (tag, known.get_mut(usize::from(*slot))) {
                known.0 = tag.generation;
            }
        }
        (self.stalls.is_listed, self.stalls.due) = (false, Nanos(0));
        if self.stalls.is_told || self.stalls.has_some() {
            self.stalls.list(io, self.place);
        }
    }

    /// Shows how many wait, and for what. Those that are being tried again wait, too.
    pub(crate) fn show_stalled(&mut self, ring: &Ring) -> u64 {
        let Stalls { known, large, .. } = &self.stalls;
        let (mut full, mut failed) = (0, 0);
        let in_slots = (0..).zip(known).filter_map(|(slot, known)| {
            let (generation, stall) = (*known)?;
            let tag = Tag { queue: self.place, slot, generation };
            self.slots.has(tag).then_some(stall)
        });
        for stall in in_slots.chain(*large) {
            match stall {
                Stall::Full => full += 1,
                Stall::Failed => failed += 1,
            }
        }
        ring.counters.waiting_full.set(full);
        ring.counters.waiting_failed.set(failed);
        self.stalls.is_unshown = false;
        full + failed
    }

    /// Tries all again, as far as there is room. True when something ended or may be visited again.
    fn retry(&mut self, ring: &mut Ring, io: &mut Io, now: Nanos) -> bool {
        self.stalls.pause_ns = (self.stalls.pause_ns * 2).min(PAUSE_NS_MAX);
        self.stalls.due = now.after(self.stalls.pause_ns);
        let mut goes_on = std::mem::take(&mut self.stalls.holds_large);
        let mut tally = Tally::default();
        for _ in 0..self.stalls.slots.len() {
            if io.room() == 0 || !self.backend.has_room(io) {
                self.stalls.due = now.after(PAUSE_NS_MIN);
                break;
            }
            let Some(slot) = self.stalls.slots.pop_front() else { break };
            if !self.slots.may_go_on(slot) {
                self.stalls.slots.push_back(slot);
                continue;
            }
            let Some(tag) = self.slots.tag(self.place, slot) else { continue };
            let Some((request, owed)) = self.slots.find(tag) else { continue };
            let progress = &mut owed.progress;
            match self.backend.resume(io, &request, &ring.memory, tag, progress) {
                Started::Pending => {}
                Started::Stalled(stall) => self.stall(ring, io, slot, stall, now),
                Started::Done(status) => {
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

    /// The queue leaves: what waits stays in its record, or ends. What is being tried ends first, or comes back.
    #[cold]
    pub(crate) fn part_with_stalled(&mut self, ring: &mut Ring) {
        if !self.stalls.has_some() {
            return;
        }
        let stays_recorded = self.stays_recorded(ring);
        let mut tally = Tally::default();
        while let Some(slot) = self.stalls.slots.pop_front() {
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
        if std::mem::take(&mut self.stalls.holds_large)
            && let Some((ticket, reply)) = self.large.take()
        {
            self.stalls.large_ended();
            match stays_recorded {
                true => ring.queue.abandon(ticket),
                false => self.finish(ring, ticket, reply, Status::IoError, &mut tally),
            }
        }
        tally.add_to(ring);
        self.show_stalled(ring);
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
        if disk.stalls.is_unshown {
            disk.show_stalled(ring);
        }
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
        if disk.show_stalled(ring) == 0 {
            (disk.stalls.is_listed, disk.stalls.is_told) = (false, false);
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
            let is_due = !stalls.is_told || stalls.is_unshown;
            Some(if is_due { Nanos(0) } else { stalls.due })
        };
        // A place that has nobody any more is struck off by the next look.
        self.io.stalled_places().map(|place| due(place).unwrap_or(Nanos(0))).min()
    }
}
