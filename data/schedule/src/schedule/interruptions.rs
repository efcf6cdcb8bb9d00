//! Who is served in the middle of another's visit: the schedule's part that is about it.
//!
//! Not the rules (`urgency`, `aim`), nor the looking and serving, which is the caller's between the pieces of
//! a visit.

use crate::aim::Aim;
use crate::budget::Visited;
use crate::nanos::Nanos;
use crate::piece::Piece;
use crate::schedule::Schedule;

impl Schedule {
    /// For how long a request may have waited in the ring of `queue`, nanoseconds, of one that has a target: since that was
    /// last found empty, or served. An upper bound.
    pub fn waited_ns(&self, queue: u16, now: Nanos) -> u64 {
        let aim = self.aims.get(usize::from(queue));
        let is_aimed = self.entries.get(usize::from(queue)).is_some_and(|entry| entry.is_aimed);
        aim.filter(|_| is_aimed).map_or(0, |aim| aim.waited_ns(now))
    }

    /// When the last turn began: that of the queue that is visited, or in whose visit another is served.
    pub fn turn_began(&self) -> Nanos {
        self.turn
    }

    /// A latency target for `queue`, nanoseconds, or none: how long a request waits in its ring at most. While
    /// it is missed the queue may be served in the middle of others' visits, which its own share pays for.
    pub fn set_target(&mut self, queue: u16, target_ns: Option<u64>) {
        let at = usize::from(queue);
        let (Some(entry), Some(aim)) = (self.entries.get_mut(at), self.aims.get_mut(at)) else {
            return;
        };
        *aim = Aim::new(target_ns.unwrap_or(0), self.now);
        entry.is_aimed = target_ns.is_some();
        entry.habit.presses = false;
    }

    /// The ring of a watched queue was empty.
    #[inline]
    pub fn found_empty(&mut self, queue: u16, at: Nanos) {
        let index = usize::from(queue);
        if self.entries.get(index).is_some_and(|entry| entry.is_aimed)
            && let Some(aim) = self.aims.get_mut(index)
        {
            aim.found_empty(at);
        }
    }

    /// Whose queue that is. Of the queues of one owner one is watched at a time; with `None` it never is;
    /// without this each is its own.
    pub fn set_owner(&mut self, queue: u16, owner: Option<u32>) {
        self.urgency.forget(queue, &mut self.entries);
        if let Some(entry) = self.entries.get_mut(usize::from(queue)) {
            entry.habit.owner = owner;
        }
    }

    /// Whether queues are watched at all; they are, until something else is said.
    pub fn watch(&mut self, on: bool) {
        self.urgency.turn(on, &mut self.entries);
    }

    /// Queues to look at between the pieces of a visit: at most [`WATCHED_MAX`](crate::WATCHED_MAX), armed
    /// ones among them.
    #[inline]
    pub fn watched(&self) -> &[u16] {
        self.urgency.watched()
    }

    /// Whether a queue other than `queue` is watched.
    #[inline]
    pub fn watches_others(&self, queue: u16) -> bool {
        match self.urgency.watched() {
            [] => false,
            [only] => *only != queue,
            _ => true,
        }
    }

    /// How the visit of a disk's queue is cut from `now` on, while others are watched or not.
    #[inline]
    pub fn piece(&self, is_watchful: bool, now: Nanos) -> Piece {
        match is_watchful {
            false => Piece::ALONE,
            true => self.urgency.piece(now),
        }
    }

    /// A visit was cut while others are watched, and goes on after a look at them.
    #[inline]
    pub fn cut(&mut self, now: Nanos) {
        self.urgency.cut(now);
    }

    /// Whether `queue`, which is watched and has something, may be served now, within
    /// [`INTERRUPTION`](crate::INTERRUPTION); then [`Schedule::interrupted`] is said.
    #[inline]
    pub fn may_interrupt(&mut self, queue: u16, now: Nanos) -> bool {
        self.advance(now);
        self.urgency.may_interrupt(queue, now, &self.entries)
    }

    /// Whether, after a no, another watched queue may get a yes: one that pays with its own share.
    #[inline]
    pub fn may_ask_for_others(&self) -> bool {
        self.urgency.some_press(&self.entries)
    }

    /// `queue` was served in the middle of another's visit, for `visited.nanos`, after
    /// [`Schedule::may_interrupt`] said yes. Its turn in the pass is as it was, and its credit, unless it is
    /// late by its latency target and all others' time for interruptions was used up, or it is not light.
    /// How many requests missed that target.
    #[inline]
    pub fn interrupted(&mut self, queue: u16, visited: Visited) -> u32 {
        let is_on_credit = self.urgency.took(queue, visited, &mut self.entries);
        let at = usize::from(queue);
        let mut missed = 0;
        if self.entries.get(at).is_some_and(|entry| entry.is_aimed)
            && let Some(aim) = self.aims.get_mut(at)
        {
            missed = aim.serve(visited.requests, self.now, self.now.after(visited.nanos));
        }
        if visited.requests > 0 {
            self.found(queue);
            // A queue that takes more than an interruption allows is not light for that.
            if is_on_credit {
                self.urgency.seen(queue, self.now, &mut self.entries);
            } else {
                self.urgency.note(queue, visited, self.now, &mut self.entries);
            }
        } else {
            // There is something that it cannot do now: looking again helps nobody.
            self.urgency.forget(queue, &mut self.entries);
        }
        missed
    }

    /// How `queue` does by its target.
    #[cfg(test)]
    pub(crate) fn aim(&self, queue: u16) -> Aim {
        self.aims.get(usize::from(queue)).copied().unwrap_or_default()
    }
}
