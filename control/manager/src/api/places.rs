//! Who may be connected to the API at a time: bounded, and nobody keeps others out by being slow.
//!
//! State alone: time is an argument, and what is pushed out is for the caller to close. Used by `http`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a caller has its place for sure; after that one that has not sent its whole request, or does not
/// read its answer, gives way to another. A request of ours takes milliseconds.
const GRACE: Duration = Duration::from_secs(1);
/// Places of one user, but root and the daemon's own: others are to find some.
pub(super) const PER_USER_MAX: usize = 24;

/// How far a caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It sends its request: how long that takes is up to it.
    Asks,
    /// It waits for the control loop.
    Waits,
    /// It reads its answer: that is up to it, too.
    Reads,
}

#[derive(Clone, Copy, Debug)]
struct Caller {
    uid: u32,
    since: Instant,
    phase: Phase,
}

/// The places of one socket.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    /// Of them, for root and the daemon's own user alone.
    kept: usize,
    /// The daemon's own user.
    own: u32,
    here: BTreeMap<u64, Caller>,
    next: u64,
}

/// What becomes of a caller that has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It is there, by that number.
    Free(u64),
    /// It is there; the one of the other number is to be closed.
    Instead {
        /// The new one.
        id: u64,
        /// Who gives way.
        of: u64,
    },
    /// It is to come again.
    Full,
}

impl Places {
    /// So many, some of which are kept for root and for `own`, the daemon's user.
    pub(super) fn new(most: usize, kept: usize, own: u32) -> Places {
        Places { most, kept, own, here: BTreeMap::new(), next: 0 }
    }

    /// A caller of that user has connected.
    pub(super) fn enter(&mut self, uid: u32, now: Instant) -> Entry {
        let is_owner = self.is_owner(uid);
        let most = if is_owner { self.most } else { self.most - self.kept };
        let strangers = self.here.values().filter(|caller| !self.is_owner(caller.uid)).count();
        let there = if is_owner { self.here.len() } else { strangers };
        let same = self.here.values().filter(|caller| caller.uid == uid).count();
        let has_enough = !is_owner && same >= PER_USER_MAX;
        if there < most && self.here.len() < self.most && !has_enough {
            return Entry::Free(self.add(uid, now));
        }
        // Who has enough makes room for itself; strangers do not push out owners.
        let may_go = |caller: &Caller| {
            let is_slow = caller.phase != Phase::Waits && caller.since + GRACE <= now;
            let is_below = is_owner || !self.is_owner(caller.uid);
            is_slow && is_below && (!has_enough || caller.uid == uid)
        };
        let slow = self.here.iter().filter(|(_, caller)| may_go(caller));
        let slow = slow.min_by_key(|(_, caller)| (self.is_owner(caller.uid), caller.since));
        let Some(of) = slow.map(|(id, _)| *id) else { return Entry::Full };
        self.here.remove(&of);
        Entry::Instead { id: self.add(uid, now), of }
    }

    fn add(&mut self, uid: u32, now: Instant) -> u64 {
        let id = self.next;
        self.next += 1;
        self.here.insert(id, Caller { uid, since: now, phase: Phase::Asks });
        id
    }

    fn is_owner(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own
    }

    /// A caller's request is whole: what it waits for is the daemon's.
    pub(super) fn asked(&mut self, id: u64) {
        if let Some(caller) = self.here.get_mut(&id) {
            caller.phase = Phase::Waits;
        }
    }

    /// It is answered, and to read that.
    pub(super) fn answered(&mut self, id: u64, now: Instant) {
        if let Some(caller) = self.here.get_mut(&id) {
            (caller.phase, caller.since) = (Phase::Reads, now);
        }
    }

    /// A caller has gone.
    pub(super) fn leave(&mut self, id: u64) {
        self.here.remove(&id);
    }

    /// Whether nobody is there.
    pub(super) fn is_empty(&self) -> bool {
        self.here.is_empty()
    }

    /// Whether somebody is there whose request is whole: an answer is owed to it, or on its way.
    pub(super) fn owes(&self) -> bool {
        self.here.values().any(|caller| caller.phase != Phase::Asks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: u32 = 0;
    const OWN: u32 = 7;

    fn free(places: &mut Places, uid: u32, now: Instant) -> u64 {
        match places.enter(uid, now) {
            Entry::Free(id) => id,
            other => panic!("{uid}: {other:?}"),
        }
    }

    #[test]
    fn strangers_leave_places_for_owners() {
        let now = crate::clock::now();
        let mut places = Places::new(6, 2, OWN);
        let ids: Vec<u64> = (0..4).map(|uid| free(&mut places, 100 + uid, now)).collect();
        assert_eq!(places.enter(200, now), Entry::Full);
        free(&mut places, ROOT, now);
        free(&mut places, OWN, now);
        assert_eq!(places.enter(ROOT, now), Entry::Full, "all are new");
        places.leave(ids[0]);
        free(&mut places, 200, now);
    }

    #[test]
    fn who_is_slow_gives_way_and_who_waits_for_us_does_not() {
        let now = crate::clock::now();
        let mut places = Places::new(3, 1, OWN);
        let [first, second] = [now, now + GRACE].map(|at| free(&mut places, 100, at));
        assert!(!places.owes(), "nobody has asked yet");
        places.asked(first);
        assert!(places.owes());
        assert_eq!(places.enter(101, now + GRACE), Entry::Full, "one waits, the other is new");
        let later = now + 2 * GRACE;
        let Entry::Instead { id: third, of } = places.enter(101, later) else { panic!() };
        assert_eq!(of, second);
        places.answered(first, later);
        assert!(places.owes(), "it has not read its answer");
        assert_eq!(places.enter(101, later), Entry::Full, "it may read its answer");
        let owner = free(&mut places, ROOT, later);
        let last = later + GRACE;
        let Entry::Instead { of, .. } = places.enter(ROOT, last) else { panic!() };
        assert_eq!(of, first, "a stranger goes before an owner, the oldest first");
        assert!(places.here.contains_key(&owner) && places.here.contains_key(&third));
    }

    #[test]
    fn one_user_leaves_places_for_others() {
        let now = crate::clock::now();
        let mut places = Places::new(64, 8, OWN);
        let ids: Vec<u64> = (0..PER_USER_MAX).map(|_| free(&mut places, 100, now)).collect();
        assert_eq!(places.enter(100, now), Entry::Full);
        free(&mut places, 101, now);
        let Entry::Instead { of, .. } = places.enter(100, now + GRACE) else { panic!() };
        assert_eq!(of, ids[0], "its own");
        let owners = (0..39).map(|_| free(&mut places, ROOT, now + GRACE));
        assert_eq!(owners.count(), 39, "all that are left");
    }
}
