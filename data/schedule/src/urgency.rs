//! Which queues may be served in the middle of another's visit, and how often.
//!
//! A queue is *light* when its visits take little: at most a few small requests, on average of the last
//! eight that found some. A few light queues that had work lately are *watched*: between the pieces of a
//! longer visit the caller looks at their rings, and serves what it finds. All interruptions together may
//! take a fixed part of the time, so that what the others lose by them is bounded, whatever arrives.
//!
//! A queue that is late by its latency target ([`crate::aim`]) is watched too, light or not. What it is served
//! in interruptions its own credit pays for, as a visit's part: so nobody loses a share by it, and when the
//! credit is used up it waits for its turn.
//!
//! Not the looking and serving (the caller's), nor how a visit is cut into pieces.

use crate::budget::{Budget, Visited};
use crate::nanos::Nanos;
use crate::piece::Piece;
use crate::schedule::Entry;

/// Queues watched at a time. Each costs a look, some nanoseconds, for each piece of a visit.
pub const WATCHED_MAX: usize = 8;
/// What one interruption may do: two small pieces of a visit. Its time is not looked at while it lasts, but is
/// on the account afterwards.
pub const INTERRUPTION: Budget =
    Budget { requests: LIGHT_REQUESTS, bytes: LIGHT_BYTES, nanos: u64::MAX };

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
const SAVED_NS: i64 = 20_000;
/// What is owed at most: one that took longer was not at work all the time.
const OWED_NS_MAX: i64 = 100_000_000;
/// What a small piece costs beside a large one, nanoseconds: looking around, and beginning anew.
const CUT_NS: i64 = 80;
/// Small pieces may cost this part of the time (in 256ths), by that estimate; beyond it pieces are large,
/// whoever is expected. As for interruptions, time for them is saved up to [`SAVED_NS`].
const CUT_PART: u64 = 24;
/// An interruption that took longer, nanoseconds, counts as one of many requests: what is slow is not light.
const SLOW_NS: u64 = 20_000;
const SLOW_REQUESTS: u32 = 64;

// A part of the time; what is owed goes beyond what can be saved; and slow ones are beyond light ones even
// when the average has them once in eight.
const _: () = assert!(PART < 256 && CUT_PART < 256 && OWED_NS_MAX > SAVED_NS);
const _: () = assert!(SLOW_REQUESTS >> MEMORY_SHIFT > LIGHT_REQUESTS);

/// What a queue usually takes at a visit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habit {
    requests: u32,
    bytes: u32,
    /// Whose it is: of the queues of one owner, one is watched at a time. `None`: it never is.
    pub(crate) owner: Option<u32>,
    pub(crate) is_watched: bool,
    /// It is late, and a turn leaves it credit.
    pub(crate) presses: bool,
    /// When it was seen at work last, while it is watched.
    worked: Nanos,
    gaps: Gaps,
}

/// The least time from one time at work to the next, of the last eight to fifteen.
#[derive(Clone, Copy, Debug, Default)]
struct Gaps {
    /// Of the eight before, nanoseconds; 0 while there were fewer.
    least_ns: u32,
    /// Of those since.
    next_ns: u32,
    seen: u8,
}

impl Gaps {
    const EACH: u8 = 8;

    #[inline]
    fn note(&mut self, gap_ns: u64) {
        let gap_ns = gap_ns.min(u32::MAX.into()) as u32;
        self.next_ns = if self.seen == 0 { gap_ns } else { self.next_ns.min(gap_ns) };
        self.seen += 1;
        if self.seen == Gaps::EACH {
            (self.least_ns, self.seen) = (self.next_ns, 0);
        }
    }

    fn least_ns(self) -> u64 {
        let least_ns = if self.seen == 0 { self.least_ns } else { self.least_ns.min(self.next_ns) };
        least_ns.into()
    }
}

impl Habit {
    /// That of a queue nobody has seen at work: not light.
    pub(crate) fn new(owner: Option<u32>) -> Habit {
        let bytes = 2 * LIGHT_BYTES as u32;
        Habit {
            requests: 2 * LIGHT_REQUESTS * REQUEST,
            bytes,
            owner,
            is_watched: false,
            presses: false,
            worked: Nanos(0),
            gaps: Gaps::default(),
        }
    }

    /// Until when it will hardly ask again, going by its last times: an eighth of the least time between two
    /// is left for what comes a little sooner.
    fn quiet_until(self) -> Nanos {
        let least_ns = self.gaps.least_ns();
        self.worked.after(least_ns - least_ns / 8)
    }

    /// A visit that found work.
    #[inline]
    fn note(&mut self, visited: Visited) {
        let requests = if visited.nanos > SLOW_NS { SLOW_REQUESTS } else { visited.requests };
        let requests = requests.min(1 << 16) * REQUEST;
        let bytes = visited.bytes.min(1 << 30) as u32;
        self.requests =
            self.requests - (self.requests >> MEMORY_SHIFT) + (requests >> MEMORY_SHIFT);
        self.bytes = self.bytes - (self.bytes >> MEMORY_SHIFT) + (bytes >> MEMORY_SHIFT);
    }

    #[inline]
    fn is_light(self) -> bool {
        self.requests <= LIGHT_REQUESTS * REQUEST && u64::from(self.bytes) <= LIGHT_BYTES
    }

    #[inline]
    fn is_to_be_watched(self) -> bool {
        self.is_light() || self.presses
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
    /// Below 0 when one took more than there was.
    saved_ns: i64,
    /// Until when `saved_ns` was worked out.
    since: Nanos,
    /// Its own credit pays for the interruption under way.
    is_on_credit: bool,
    /// Until when nothing is to be expected of any watched queue.
    quiet_until: Nanos,
    /// How visits are cut from then on.
    piece: Piece,
    /// For small pieces; as `saved_ns` and `since`.
    cuts_ns: i64,
    cuts_since: Nanos,
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
            is_on_credit: false,
            quiet_until: Nanos(0),
            piece: Piece::WATCHFUL,
            cuts_ns: SAVED_NS,
            cuts_since: Nanos(0),
        }
    }

    /// How a visit is cut from `now` on while others are watched.
    #[inline]
    pub(crate) fn piece(&self, now: Nanos) -> Piece {
        let is_quiet = now.after(Piece::QUIET_NS) <= self.quiet_until;
        if is_quiet || self.cuts_ns <= 0 { Piece::QUIET } else { self.piece }
    }

    /// A visit was cut and goes on.
    #[inline]
    pub(crate) fn cut(&mut self, now: Nanos) {
        let gained = now.since(self.cuts_since).min(1 << 32) * CUT_PART / 256;
        if gained > 0 {
            self.cuts_since = now;
            self.cuts_ns = (self.cuts_ns + gained as i64).min(SAVED_NS);
        }
        self.cuts_ns = (self.cuts_ns - CUT_NS).max(-SAVED_NS);
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
    pub(crate) fn note(&mut self, queue: u16, visited: Visited, now: Nanos, entries: &mut [Entry]) {
        let Some(Entry { habit, .. }) = entries.get_mut(usize::from(queue)) else { return };
        habit.note(visited);
        self.seen(queue, now, entries);
        let Some(Entry { habit, .. }) = entries.get(usize::from(queue)) else { return };
        let may_change = habit.is_watched || habit.presses || self.len < WATCHED_MAX;
        if habit.is_to_be_watched() != habit.is_watched && may_change {
            self.change(queue, entries);
        }
    }

    /// A queue was at work; one that is watched is expected by that.
    #[inline]
    pub(crate) fn seen(&mut self, queue: u16, now: Nanos, entries: &mut [Entry]) {
        let Some(Entry { habit, .. }) = entries.get_mut(usize::from(queue)) else { return };
        if habit.is_watched {
            habit.gaps.note(now.since(habit.worked));
            habit.worked = now;
            self.foresee(entries);
        }
    }

    /// It became light or late, or is so no longer, or found another of its owner's watched when it did. One
    /// that is late takes the place of one that is only light.
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
        if self.len == WATCHED_MAX {
            let is_only_light = |other: &&u16| {
                entries.get(usize::from(**other)).is_some_and(|other| !other.habit.presses)
            };
            let Some(other) = self.watched().iter().find(is_only_light).copied() else { return };
            self.forget(other, entries);
        }
        if let (Some(place), Some(entry)) =
            (self.watched.get_mut(self.len), entries.get_mut(usize::from(queue)))
        {
            (*place, entry.habit.is_watched) = (queue, true);
            // What it did before is not known.
            entry.habit.gaps = Gaps::default();
            self.len += 1;
            self.foresee(entries);
        }
    }

    /// Works out when the first of the watched may ask again.
    fn foresee(&mut self, entries: &[Entry]) {
        let habits =
            || self.watched().iter().filter_map(|at| Some(entries.get(usize::from(*at))?.habit));
        let is_regular = |habit: Habit| habit.gaps.least_ns() >= Piece::REGULAR_NS;
        let are_regular = self.len > 0 && habits().all(is_regular);
        let first = habits().map(Habit::quiet_until).min();
        self.piece = if are_regular { Piece::NEAR } else { Piece::WATCHFUL };
        self.quiet_until = first.unwrap_or_default();
    }

    /// `queue` is watched no longer.
    pub(crate) fn forget(&mut self, queue: u16, entries: &mut [Entry]) {
        if let Some(entry) = entries.get_mut(usize::from(queue)) {
            entry.habit.is_watched = false;
        }
        let Some(at) = self.watched().iter().position(|other| *other == queue) else { return };
        self.len -= 1;
        self.watched.swap(at, self.len);
        self.foresee(entries);
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

    /// Whether an interruption for `queue` may begin now. Its time is then taken by [`Self::took`], and may be
    /// more than was saved up; the next one waits longer for that.
    #[inline]
    pub(crate) fn may_interrupt(&mut self, queue: u16, now: Nanos, entries: &[Entry]) -> bool {
        let gained = now.since(self.since).min(1 << 32) * PART / 256;
        // What is too little to count is kept for the next time.
        if gained > 0 {
            self.since = now;
            self.saved_ns = (self.saved_ns + gained as i64).min(SAVED_NS);
        }
        let Some(Entry { habit, account, .. }) = entries.get(usize::from(queue)) else {
            return false;
        };
        self.is_on_credit = habit.presses && (self.saved_ns <= 0 || !habit.is_light());
        if self.is_on_credit { account.has_credit() } else { self.saved_ns > 0 }
    }

    /// Whether somebody's own credit might pay for an interruption.
    pub(crate) fn some_press(&self, entries: &[Entry]) -> bool {
        let presses =
            |at: &u16| entries.get(usize::from(*at)).is_some_and(|entry| entry.habit.presses);
        self.watched().iter().any(presses)
    }

    /// An interruption for `queue` is over. Whether its own credit paid for it.
    #[inline]
    pub(crate) fn took(&mut self, queue: u16, visited: Visited, entries: &mut [Entry]) -> bool {
        if std::mem::take(&mut self.is_on_credit) {
            if let Some(Entry { account, .. }) = entries.get_mut(usize::from(queue)) {
                account.charge(visited.requests, visited.bytes, visited.nanos);
            }
            return true;
        }
        let ns = i64::try_from(visited.nanos).unwrap_or(i64::MAX);
        self.saved_ns = self.saved_ns.saturating_sub(ns).max(-OWED_NS_MAX);
        false
    }
}

#[cfg(test)]
mod tests;
