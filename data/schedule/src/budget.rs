//! How much one visit may do, and what it did.
//!
//! Not how that is divided among queues (`share`).

/// Bounds that hold for every queue of a sidecore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests of one visit at most. 32: some microseconds on a back-end that answers at once.
    pub visit_requests_max: u32,
    /// Bytes of one visit at most, except that the last request begun is finished. 1 MiB: about
    /// 0.1 ms of copying.
    pub visit_bytes_max: u64,
    /// Time of one visit at most, nanoseconds, as far as the caller measures it; what was begun is
    /// finished. 25 us: a hundredth of the slice of a scheduler that knows threads only.
    pub visit_ns_max: u64,
    /// What a kick costs, nanoseconds, until [`Schedule::set_kick_cost`](crate::Schedule) says what
    /// was measured. 40 us: an exit of the guest, a wake-up of ours, and, since a guest that waits is a
    /// core that does nothing, four times as much again as the wake-up.
    pub kick_ns: u32,
    /// What looking at an empty queue costs beside others, nanoseconds. 100: one line that is cold.
    pub look_ns: u32,
}

/// Whatever was measured, a kick costs no more than so many nanoseconds.
pub(crate) const KICK_NS_MAX: u32 = 1_000_000;

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            visit_requests_max: 32,
            visit_bytes_max: 1 << 20,
            visit_ns_max: 25_000,
            kick_ns: 40_000,
            look_ns: 100,
        }
    }
}

impl Limits {
    /// Values with which every sum in this crate stays far from its type's end.
    pub(crate) fn sane(self) -> Limits {
        Limits {
            visit_requests_max: self.visit_requests_max.clamp(1, 1 << 16),
            visit_bytes_max: self.visit_bytes_max.clamp(1, 1 << 40),
            visit_ns_max: self.visit_ns_max.clamp(1, 1 << 40),
            kick_ns: self.kick_ns.clamp(1, KICK_NS_MAX),
            look_ns: self.look_ns,
        }
    }
}

/// What a visit may do. None is ever 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Requests, at most.
    pub requests: u32,
    /// No request is begun once so many bytes were taken.
    pub bytes: u64,
    /// No request is begun once so many nanoseconds are over.
    pub nanos: u64,
}

/// What a visit did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visited {
    /// Requests taken.
    pub requests: u32,
    /// Their bytes.
    pub bytes: u64,
    /// How long it took, nanoseconds; 0 when it was too short to be measured, and is not charged.
    pub nanos: u64,
    /// The budget ended it: the ring may hold more.
    pub more: bool,
    /// No slot or no room in the back-end: what is there stays in the ring.
    pub held: bool,
    /// What is there stays in the ring for now, and only another visit will tell when it can go on:
    /// nothing is completed for it, nobody kicks. The queue stays polled and takes nothing from
    /// others meanwhile. Whoever says so bounds for how long.
    pub later: bool,
}

impl Visited {
    /// Whether the queue had anything to do, or has.
    #[inline]
    pub(crate) fn found_work(self) -> bool {
        self.requests > 0 || self.more || self.held || self.later
    }

    /// Whether it has nothing to do now, whatever it had.
    #[inline]
    pub(crate) fn left_empty(self) -> bool {
        !self.more && !self.held && !self.later
    }

    /// Whether it has something to do, and can do nothing about it: a completion of its back-end will
    /// change that, not time.
    #[inline]
    pub(crate) fn is_stuck(self) -> bool {
        self.held && self.requests == 0
    }

    /// Whether more would have been taken, had it been allowed to.
    #[inline]
    pub fn wants_more(self) -> bool {
        self.more && !self.held && !self.later
    }
}
