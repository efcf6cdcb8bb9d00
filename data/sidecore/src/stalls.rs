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
//! Answers that a stage holds (`backend::fault`) are in the same list. A queue that leaves, or goes to another sidecore,
//! gives them at once.
//!
//! Not here: which failures stall (`backend`), and what is said of it (`manager`).

use std::collections::VecDeque;

use backend::{Io, Stall, Started};
use request::{Status, Tag};
use schedule::{Budget, Nanos, Visited};
use virtqueue::Chain;

use crate::done::Done;
use crate::finish::Tally;
use crate::inbox::Event;
use crate::places::{Place, disk_at};
use crate::served::{DiskRole, Ring, Served};
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
    /// How many of them, from the front, are still to be tried in this round.
    tries: u16,
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
            tries: 0,
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

    /// What control was told of `before`, of the same queue, which has nothing that waits.
    pub(crate) fn go_on_from(&mut self, before: &Stalls) {
        self.is_told = before.is_told;
        self.is_unshown = before.is_told;
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

    /// Whether a round is under way.
    pub(crate) fn is_trying(&self) -> bool {
        self.tries > 0
    }

    /// The slot that is to be tried next in this round. A slot is in the line once, and what comes to its end
    /// meanwhile is of the next round.
    fn next_try(&mut self) -> Option<u16> {
        self.tries = self.tries.checked_sub(1)?;
        self.slots.pop_front()
    }

    /// The ring stops, and may go on elsewhere.
    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Its queue leaves the sidecore.
    pub(crate) fn leave(&mut self, io: &mut Io, place: u16) {
        self.is_listed = false;
        io.forget_stalled(place);
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
        let is_unshown = std::mem::replace(&mut self.is_unshown, true);
        if !std::mem::replace(&mut self.is_listed, true) || !is_unshown {
            io.note_stalled(place);
        }
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
        self.end_round();
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

    /// All that waits is to be tried again. Whether the large request may go on with its queue's next visit.
    fn begin_round(&mut self, now: Nanos) -> bool {
        self.stalls.pause_ns = (self.stalls.pause_ns * 2).min(PAUSE_NS_MAX);
        self.stalls.due = now.after(self.stalls.pause_ns);
        self.stalls.tries = self.stalls.in_slots();
        self.large.keep_under_way(self.stalls.is_trying());
        std::mem::take(&mut self.stalls.holds_large)
    }

    /// Nothing more is tried in this round.
    fn end_round(&mut self) {
        self.stalls.tries = 0;
        self.large.keep_under_way(false);
    }

    /// The rest of a piece in which a round is under way, and in which `visited` was done so far: some are tried
    /// again, within `budget`, and then new requests are taken, as many as if there were no round. Without that a
    /// guest's reads would wait for all its writes that wait.
    #[cold]
    #[inline(never)]
    pub(crate) fn fetch_beside(
        &mut self,
        ring: &mut Ring,
        io: &mut Io,
        chain: &mut Chain,
        (budget, slice_bytes, visited): (Budget, u64, Visited),
        now: Nanos,
    ) -> Done {
        let (requests, bytes) = self.try_again(ring, io, budget, now);
        let (requests, bytes) = (visited.requests + requests, visited.bytes + bytes);
        let is_trying = self.stalls.is_trying();
        if ring.gate.is_some() {
            // For new ones its limit was not asked.
            let visited = Visited { requests, bytes, more: true, held: requests == 0, ..visited };
            return Done::new(visited, 0);
        }
        self.large.keep_under_way(false);
        let done = self.fetch(ring, io, chain, budget, slice_bytes, now);
        self.large.keep_under_way(is_trying);
        let beside = done.visited();
        let goes_on = is_trying && requests > 0;
        let visited = Visited {
            requests: requests + beside.requests,
            bytes: bytes + beside.bytes,
            more: beside.more || is_trying,
            // With no slot left what was tried may still go on.
            held: beside.held && !goes_on,
            ..beside
        };
        Done::new(visited, done.ended())
    }

    /// Goes on with the round, within `budget` and as far as there is room: how many requests that were, and how
    /// many bytes.
    fn try_again(
        &mut self,
        ring: &mut Ring,
        io: &mut Io,
        budget: Budget,
        now: Nanos,
    ) -> (u32, u64) {
        let (mut requests, mut bytes) = (0, 0);
        while requests < budget.requests
            && bytes < budget.bytes
            && io.room() > 0
            && self.backend.has_room(io)
            && let Some(slot) = self.stalls.next_try()
        {
            requests += 1;
            match self.slots.may_go_on(slot) {
                true => bytes += self.try_slot(ring, io, slot, now),
                false => self.stalls.slots.push_back(slot),
            }
        }
        if !self.stalls.is_trying() {
            self.end_round();
            self.stalls.due = now.after(self.stalls.pause_ns);
            io.note_due(self.place, self.stalls.due.0);
        }
        (requests, bytes)
    }

    /// Tries one of them; how many bytes that was.
    fn try_slot(&mut self, ring: &mut Ring, io: &mut Io, slot: u16, now: Nanos) -> u64 {
        let Some(tag) = self.slots.tag(self.place, slot) else { return 0 };
        let Some((request, owed)) = self.slots.find(tag) else { return 0 };
        let progress = &mut owed.progress;
        let (bytes, started) =
            self.backend.resume(io, &request, &ring.memory, tag, progress, now.0);
        match started {
            Started::Pending => {}
            Started::Turn => self.large.line_up(tag),
            Started::Stalled(stall) => self.stall(ring, io, slot, stall, now),
            Started::Done(status) => {
                let took = self.end(ring, tag, status, now);
                ring.counters.latency.add(took, 1);
            }
        }
        if io.is_laden() {
            // What it costs is this queue's. An error comes again at the pass's own `enter`.
            let _ = io.hand_over();
        }
        bytes
    }

    /// Gives the answers that were held until `until` at most. Bounded by the slots.
    #[cold]
    pub(crate) fn answer_held(&mut self, ring: &mut Ring, until: Nanos, now: Nanos) {
        while let Some((slot, status)) = self.backend.take_due(until.0, now.0) {
            let Some(tag) = self.slots.tag(self.place, slot) else { continue };
            if let Some((request, _)) = self.slots.find(tag) {
                self.backend.release(&request, tag, status, now.0);
            }
            let took = self.end(ring, tag, status, now);
            ring.counters.latency.add(took, 1);
        }
    }

    /// When something of it is to be looked at next, as it is after a look.
    fn next_look(&self, now: Nanos) -> Option<Nanos> {
        let Stalls { is_listed, is_told, is_unshown, due, .. } = self.stalls;
        let tries = is_listed.then_some(match !is_told || is_unshown {
            true => Nanos(0),
            // Its visits say when that is over.
            false if self.stalls.is_trying() => now.after(PAUSE_NS_MAX),
            false => due,
        });
        let answer = self.backend.next_due().map(Nanos);
        [tries, answer].into_iter().flatten().min()
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
        self.end_round();
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
    /// Looks at the queues with requests that wait, and something that is due: tells of them, and begins a round. To be
    /// called when [`Io::stalled_due`] has come.
    #[cold]
    #[inline(never)]
    pub(crate) fn look_at_stalled(&mut self, now: Nanos) {
        let mut left = self.io.stalled();
        while let Some(place) = self.io.take_stalled(now.0, &mut left) {
            self.answer_due(place, now);
            self.look_at_stalls(place, now);
            let served = self.places.get(usize::from(place)).and_then(Place::served);
            let due = served.and_then(Served::disk_role).and_then(|disk| disk.next_look(now));
            if let Some(due) = due {
                self.io.note_due(place, due.0);
            }
        }
    }

    /// The answers at one place that were held until now are given.
    fn answer_due(&mut self, place: u16, now: Nanos) {
        let Some((ring, disk)) = disk_at(&mut self.places, place) else { return };
        if disk.backend.next_due().is_none_or(|due| due > now.0) {
            return;
        }
        disk.answer_held(ring, now, now);
        if ring.publish_reaped(&mut self.alarm, now) {
            self.calls.wait(place);
        }
        self.schedule.completed(place);
    }

    /// The same for one place, as far as requests wait there.
    fn look_at_stalls(&mut self, place: u16, now: Nanos) {
        let Some((ring, disk)) = disk_at(&mut self.places, place) else { return };
        if !disk.stalls.is_listed {
            return;
        }
        let key = ring.key;
        if disk.stalls.is_unshown {
            disk.show_stalled(ring);
        }
        if !disk.stalls.is_told {
            disk.stalls.is_told = true;
            self.send(Event::Stalls(key));
            return;
        }
        // Its visits go on with a round, and end it.
        if disk.stalls.is_trying() || disk.stalls.due > now {
            return;
        }
        if ring.leaving {
            disk.stalls.is_listed = false;
            return;
        }
        if disk.show_stalled(ring) == 0 {
            (disk.stalls.is_listed, disk.stalls.is_told) = (false, false);
            self.send(Event::Stalls(key));
            return;
        }
        if disk.begin_round(now) {
            self.schedule.completed(place);
        }
        if disk_at(&mut self.places, place).is_some_and(|(_, disk)| disk.stalls.is_trying()) {
            self.poll_begun(place, now);
        }
    }
}
