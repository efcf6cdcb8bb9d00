//! When the call for what was completed may wait for more of it: one call then tells of many.
//!
//! That for requests of a disk waits only while the back-end still works on several of the same queue, which
//! will be completed and called for soon, and at most a set time. So neither a lone request nor the last ones
//! of a burst are ever told of later than without it. That for frames which were sent waits until the set time
//! has passed since the last one, or the queue is polled no longer: so one after a pause is told of at once, of
//! a stream as often as that, and no sidecore stays awake for it.
//! What is shown in the ring is shown at once, for guests that poll.
//!
//! Not the calling (`publish`), nor what the guest's event index says of it (`virtqueue`). Off for
//! disks that do not ask for it; NICs have it unless they say otherwise.

use schedule::Nanos;

/// A queue with fewer in flight is called at once: a guest that has few may wait for each of them.
const IN_FLIGHT_MIN: u16 = 4;

/// The moderation of one queue's calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moderation {
    /// How long a call may wait; 0: none does.
    wait_ns: u32,
    /// The latest time of the one that waits.
    due: Option<Nanos>,
    /// Of frames: the guest is not asked before whether it wants a call.
    quiet_until: Nanos,
    /// The queue is in the sidecore's list of those whose calls wait, maybe for one that was made since.
    is_listed: bool,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is made, if the guest wants one.
    Now,
    /// It waits from now on.
    Waits,
    /// One waits already.
    WaitsToo,
}

impl Moderation {
    pub(crate) fn new(wait_ns: u32) -> Moderation {
        Moderation { wait_ns, ..Moderation::default() }
    }

    /// What waits already is due when it was.
    pub(crate) fn set(&mut self, wait_ns: u32) {
        self.wait_ns = wait_ns;
    }

    pub(crate) fn wait_ns(&self) -> u32 {
        self.wait_ns
    }

    #[inline]
    pub(crate) fn is_off(&self) -> bool {
        self.wait_ns == 0
    }

    /// Something was completed, and so many requests of the queue are still with its back-end.
    pub(crate) fn completed(&mut self, in_flight: u16, now: Nanos) -> Fate {
        if self.is_off() || in_flight < IN_FLIGHT_MIN || self.due.is_some_and(|due| due <= now) {
            self.due = None;
            return Fate::Now;
        }
        self.wait_until(now.after(self.wait_ns.into()))
    }

    /// Frames were sent, and their buffers given back.
    pub(crate) fn sent(&mut self, now: Nanos) -> Fate {
        if self.is_off() || self.quiet_until <= now {
            self.due = None;
            self.quiet_until = now.after(self.wait_ns.into());
            return Fate::Now;
        }
        self.wait_until(self.quiet_until)
    }

    fn wait_until(&mut self, due: Nanos) -> Fate {
        if self.due.is_some() {
            return Fate::WaitsToo;
        }
        self.due = Some(due);
        Fate::Waits
    }

    /// Time has gone on: what becomes of a call that waits, if one does.
    pub(crate) fn passed(&mut self, now: Nanos) -> Option<Fate> {
        let due = self.due?;
        if due > now {
            return Some(Fate::WaitsToo);
        }
        self.due = None;
        self.quiet_until = now.after(self.wait_ns.into());
        Some(Fate::Now)
    }

    /// A call waits from now on: whether the queue has to be listed for it, which it is from now on.
    pub(crate) fn list(&mut self) -> bool {
        !std::mem::replace(&mut self.is_listed, true)
    }

    /// The queue was taken off the list.
    pub(crate) fn unlist(&mut self) {
        self.is_listed = false;
    }

    /// Whether a call was owed, which is now made.
    pub(crate) fn take(&mut self) -> bool {
        self.due.take().is_some()
    }

    /// The queue goes, and is in no list: whether a call is owed.
    pub(crate) fn end(&mut self) -> bool {
        self.unlist();
        self.take()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn few_in_flight_are_called_for_at_once() {
        let mut calls = Moderation::new(1000);
        for in_flight in 0..IN_FLIGHT_MIN {
            assert_eq!(calls.completed(in_flight, Nanos(5)), Fate::Now);
        }
        assert_eq!(calls.completed(IN_FLIGHT_MIN, Nanos(5)), Fate::Waits);
        assert_eq!(calls.completed(1, Nanos(6)), Fate::Now);
        assert_eq!(calls.passed(Nanos(1_000_000)), None, "that call told of all");
        let mut off = Moderation::new(0);
        assert_eq!(off.completed(100, Nanos(5)), Fate::Now);
    }

    #[test]
    fn a_frame_after_a_pause_is_told_of_at_once_and_of_a_stream_at_times() {
        let mut calls = Moderation::new(1000);
        assert_eq!(calls.sent(Nanos(5)), Fate::Now);
        assert_eq!(calls.sent(Nanos(6)), Fate::Waits);
        assert_eq!(calls.sent(Nanos(900)), Fate::WaitsToo);
        assert_eq!(calls.passed(Nanos(1004)), Some(Fate::WaitsToo));
        assert_eq!(calls.passed(Nanos(1005)), Some(Fate::Now));
        assert_eq!(calls.passed(Nanos(1006)), None, "that call told of all");
        assert_eq!(calls.sent(Nanos(2004)), Fate::Waits, "too soon after the last one");
        assert_eq!(calls.sent(Nanos(2005)), Fate::Now, "which tells of that, too");
        assert_eq!(calls.passed(Nanos(9999)), None);
        assert_eq!(calls.sent(Nanos(10_000)), Fate::Now, "after a pause");
        let mut off = Moderation::new(0);
        assert!((5..9).all(|now| off.sent(Nanos(now)) == Fate::Now));
    }

    proptest! {
        /// No frame is told of later than the time after it, none is forgotten, and no two calls are nearer.
        #[test]
        fn frames_are_told_of_in_time_and_rarely(
            wait_ns in 1..100_000u32,
            steps in prop::collection::vec((0..30_000u64, any::<bool>()), 1..200),
        ) {
            let mut calls = Moderation::new(wait_ns);
            let (mut now, mut untold, mut called) = (1, None, None);
            for (time_ns, is_sent) in steps {
                now += time_ns;
                let mut fates = vec![calls.passed(Nanos(now))];
                prop_assert_eq!(fates[0].is_some(), untold.is_some());
                if is_sent {
                    if fates[0] == Some(Fate::Now) {
                        untold = None;
                        prop_assert!(called.is_none_or(|at| now - at >= u64::from(wait_ns)));
                        called = Some(now);
                    }
                    fates = vec![Some(calls.sent(Nanos(now)))];
                    prop_assert_eq!(fates[0] == Some(Fate::WaitsToo), untold.is_some() && fates[0] != Some(Fate::Now));
                    untold = untold.or(Some(now));
                }
                if fates[0] == Some(Fate::Now) {
                    untold = None;
                    prop_assert!(called.is_none_or(|at| now - at >= u64::from(wait_ns)));
                    called = Some(now);
                }
                prop_assert!(untold.is_none_or(|since| now - since < u64::from(wait_ns)));
            }
            prop_assert_eq!(calls.end(), untold.is_some());
        }

        /// Of each completion is told within the time after the next look, whatever comes; at once when few
        /// are left; and one that waits is known to, so that nobody sleeps on it.
        #[test]
        fn no_call_is_lost_or_late(
            wait_ns in 1..100_000u32,
            steps in prop::collection::vec((0..30_000u64, prop::option::of(0..40u16)), 1..200),
        ) {
            let mut calls = Moderation::new(wait_ns);
            let (mut now, mut untold) = (1, None);
            for (time_ns, completed) in steps {
                now += time_ns;
                let fate = calls.passed(Nanos(now));
                prop_assert_eq!(fate.is_some(), untold.is_some());
                if fate == Some(Fate::Now) {
                    untold = None;
                }
                prop_assert!(untold.is_none_or(|since| now - since < u64::from(wait_ns)));
                let Some(in_flight) = completed else { continue };
                let fate = calls.completed(in_flight, Nanos(now));
                prop_assert_eq!(fate == Fate::Waits, untold.is_none() && fate != Fate::Now);
                prop_assert!(fate == Fate::Now || in_flight >= IN_FLIGHT_MIN);
                untold = if fate == Fate::Now { None } else { untold.or(Some(now)) };
            }
            prop_assert_eq!(calls.end(), untold.is_some());
        }
    }
}
