//! Which queues may be served in the middle of another's visit, and how often.
//!
//! A queue is *light* when its visits take little: at most a few small requests, on average of the last
//! eight that found some. A few light queues that had work lately are *watched*: between the pieces of a
//! longer visit the caller looks at their rings, and serves what it finds. All interruptions together may
//! take a fixed part of the time, so that what the others lose by them is bounded, whatever arrives.
//!
//! Not the looking and serving (the caller's), nor how a visit is cut into pieces.

use crate::budget::{Budget, Visited};
use crate::nanos::Nanos;
use crate::schedule::Entry;

/// Queues watched at a time. Each costs a look, some nanoseconds, for each piece of a visit.
pub const WATCHED_MAX: usize = 8;
/// What one interruption may do: less than a piece of the visit that it interrupts.
pub const INTERRUPTION: Budget =
    Budget { requests: LIGHT_REQUESTS, bytes: LIGHT_BYTES, nanos: 3_000 };

/// A light queue's visit takes so much at most, on average.
const LIGHT_REQUESTS: u32 = 4;
const LIGHT_BYTES: u64 = 16 << 10;
/// Visits of the average, as a power of two.
const MEMORY_SHIFT: u32 = 3;
/// Requests are averaged in sixteenths.
const REQUEST: u32 = 16;
/// A watched queue without work for so long is watched no longer, nanoseconds.
const STALE_NS: u64 = 2_000_000;
/// Interruptions take at most this part of the time (in 256ths: 9%), over any time longer than
/// [`SAVED_NS`]. The streams of a sidecore lose so much at most to those that ask little.
const PART: u64 = 23;
/// Time for interruptions that can be saved up, nanoseconds.
const SAVED_NS: u64 = 20_000;

/// What a queue usually takes at a visit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habit {
    requests: u32,
    bytes: u32,
    /// Whose it is: of the queues of one owner, one is watched at a time. `None`: it never is.
    pub(crate) owner: Option<u32>,
    pub(crate) is_watched: bool,
}

impl Habit {
    /// That of a queue nobody has seen at work: not light.
    pub(crate) fn new(owner: Option<u32>) -> Habit {
        let bytes = 2 * LIGHT_BYTES as u32;
        Habit { requests: 2 * LIGHT_REQUESTS * REQUEST, bytes, owner, is_watched: false }
    }

    /// A visit that found work.
    #[inline]
    fn note(&mut self, visited: Visited) {
        let requests = visited.requests.min(1 << 16) * REQUEST;
        let bytes = visited.bytes.min(1 << 30) as u32;
        self.requests =
            self.requests - (self.requests >> MEMORY_SHIFT) + (requests >> MEMORY_SHIFT);
        self.bytes = self.bytes - (self.bytes >> MEMORY_SHIFT) + (bytes >> MEMORY_SHIFT);
    }

    #[inline]
    fn is_light(self) -> bool {
        self.requests <= LIGHT_REQUESTS * REQUEST && u64::from(self.bytes) <= LIGHT_BYTES
    }
}

/// The watched queues of a sidecore, and the time left for them.
#[derive(Debug)]
pub(crate) struct Urgency {
    is_on: bool,
    watched: [u16; WATCHED_MAX],
    len: usize,
    /// The one that is looked at for staleness next.
    checked: usize,
    saved_ns: u64,
    /// Until when `saved_ns` was worked out.
    since: Nanos,
}

impl Urgency {
    pub(crate) fn new() -> Urgency {
        Urgency {
            is_on: true,
            watched: [0; WATCHED_MAX],
            len: 0,
            checked: 0,
            saved_ns: SAVED_NS,
            since: Nanos(0),
        }
    }

    /// The watched queues.
    #[inline]
    pub(crate) fn watched(&self) -> &[u16] {
        self.watched.get(..self.len).unwrap_or_default()
    }

    pub(crate) fn turn(&mut self, on: bool, entries: &mut [Entry]) {
        self.is_on = on;
        while let Some(queue) = self.watched().first().copied() {
            self.forget(queue, entries);
        }
    }

    /// `queue` was visited and did something.
    #[inline]
    pub(crate) fn note(&mut self, queue: u16, visited: Visited, entries: &mut [Entry]) {
        let Some(Entry { habit, .. }) = entries.get_mut(usize::from(queue)) else { return };
        habit.note(visited);
        if habit.is_light() != habit.is_watched && (habit.is_watched || self.len < WATCHED_MAX) {
            self.change(queue, entries);
        }
    }

    /// It became light, or is so no longer, or found another of its owner's watched when it did.
    #[cold]
    fn change(&mut self, queue: u16, entries: &mut [Entry]) {
        let Some(Entry { habit, .. }) = entries.get_mut(usize::from(queue)) else { return };
        if habit.is_watched {
            return self.forget(queue, entries);
        }
        let owner = habit.owner;
        let is_owners = |other: &u16| {
            entries.get(usize::from(*other)).is_some_and(|other| other.habit.owner == owner)
        };
        if !self.is_on || owner.is_none() || self.watched().iter().any(is_owners) {
            return;
        }
        if let (Some(place), Some(entry)) =
            (self.watched.get_mut(self.len), entries.get_mut(usize::from(queue)))
        {
            (*place, entry.habit.is_watched) = (queue, true);
            self.len += 1;
        }
    }

    /// `queue` is watched no longer.
    pub(crate) fn forget(&mut self, queue: u16, entries: &mut [Entry]) {
        if let Some(entry) = entries.get_mut(usize::from(queue)) {
            entry.habit.is_watched = false;
        }
        let Some(at) = self.watched().iter().position(|other| *other == queue) else { return };
        self.len -= 1;
        self.watched.swap(at, self.len);
    }

    /// A pass starts: one of the watched queues is looked at, and let go when it had no work for long.
    #[inline]
    pub(crate) fn begin(&mut self, now: Nanos, entries: &mut [Entry]) {
        if self.len == 0 {
            return;
        }
        self.checked = if self.checked + 1 < self.len { self.checked + 1 } else { 0 };
        let Some(queue) = self.watched().get(self.checked).copied() else { return };
        let entry = entries.get(usize::from(queue));
        if entry.is_none_or(|entry| now.since(entry.last_work) > STALE_NS) {
            self.forget(queue, entries);
        }
    }

    /// Whether an interruption may begin now. Its time is then taken by [`Self::took`], and may be more
    /// than was saved up; the next one waits longer for that.
    #[inline]
    pub(crate) fn may_interrupt(&mut self, now: Nanos) -> bool {
        let gained = now.since(self.since).min(1 << 32) * PART / 256;
        // What is too little to count is kept for the next time.
        if gained > 0 {
            self.since = now;
            self.saved_ns = (self.saved_ns + gained).min(2 * SAVED_NS);
        }
        self.saved_ns > SAVED_NS
    }

    /// An interruption took so long.
    #[inline]
    pub(crate) fn took(&mut self, ns: u64) {
        self.saved_ns = self.saved_ns.saturating_sub(ns);
    }
}
