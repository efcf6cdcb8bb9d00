//! Whether a queue is served as soon as its latency target says.
//!
//! Measured is how long a request may have *waited* in the ring: from the last time that the ring was looked
//! at, and found empty or served, until it is served again. That is an upper bound for every request but
//! those that a visit left behind, which wait for their queue's own share. What a back-end takes afterwards
//! is not in it: being served sooner does not change that.
//!
//! A queue is *late* from when more than one in sixteen of its services missed the target (on average of the
//! last 32), until its turns alone would do: of the last 64 or so hardly one came later than the target. The
//! second is not asked of services, which urgency makes early: so it neither stays late for ever nor stops
//! being late because it is helped. Turns of a queue that nobody used since the last one say nothing.
//!
//! Not what follows from it (`urgency`). Called by `schedule`.

use crate::nanos::Nanos;

/// All of an average.
const WHOLE: u32 = 1 << 16;
/// Services, and turns, of the averages, as powers of two.
const SERVICES_SHIFT: u32 = 5;
const TURNS_SHIFT: u32 = 6;
/// More services missed than this make a queue late.
const LATE_FROM: u32 = WHOLE / 16;
/// It is late no longer when fewer turns than this came too late.
const LATE_UNTIL: u32 = WHOLE / 32;

/// The target of one queue, and how it does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Aim {
    /// Nanoseconds; 0: none.
    target_ns: u64,
    /// When its ring was last found empty, or served.
    looked: Nanos,
    /// When its last turn began.
    turned: Nanos,
    /// Of the services, those that came too late.
    missed: u32,
    /// The same of its turns, since it is late.
    turns_missed: u32,
    is_late: bool,
    /// It was served since its last turn.
    is_used: bool,
}

impl Aim {
    pub(crate) fn new(target_ns: u64, now: Nanos) -> Aim {
        Aim { target_ns, looked: now, turned: now, ..Aim::default() }
    }

    /// Nothing was waiting until now.
    pub(crate) fn restart(&mut self, now: Nanos) {
        (self.looked, self.turned) = (now, now);
    }

    /// How long a request may have waited, nanoseconds.
    pub(crate) fn waited_ns(&self, now: Nanos) -> u64 {
        now.since(self.looked)
    }

    /// Its ring was empty.
    #[inline]
    pub(crate) fn found_empty(&mut self, at: Nanos) {
        self.looked = self.looked.max(at);
    }

    /// It had its turn, from `began` to `ended`, and so many requests were taken; of these, how many missed.
    pub(crate) fn turn(&mut self, requests: u32, began: Nanos, ended: Nanos) -> u32 {
        let gap_ns = began.since(self.turned);
        self.turned = began;
        let missed = self.serve(requests, began, ended);
        if std::mem::take(&mut self.is_used) && self.is_late {
            follow(&mut self.turns_missed, gap_ns > self.target_ns, TURNS_SHIFT);
            if self.turns_missed < LATE_UNTIL {
                // What was missed before is over, or it would be late again at once.
                (self.is_late, self.missed) = (false, 0);
            }
        }
        missed
    }

    /// It was served.
    pub(crate) fn serve(&mut self, requests: u32, began: Nanos, ended: Nanos) -> u32 {
        let is_missed = began.since(self.looked) > self.target_ns;
        self.looked = self.looked.max(ended);
        if requests == 0 {
            return 0;
        }
        self.is_used = true;
        follow(&mut self.missed, is_missed, SERVICES_SHIFT);
        if !self.is_late && self.missed > LATE_FROM {
            (self.is_late, self.turns_missed) = (true, WHOLE);
        }
        if is_missed { requests } else { 0 }
    }

    /// Whether urgency is called for.
    #[inline]
    pub(crate) fn is_late(&self) -> bool {
        self.is_late
    }
}

/// Moves an average towards all or nothing.
fn follow(average: &mut u32, is_so: bool, shift: u32) {
    let towards = if is_so { WHOLE >> shift } else { 0 };
    *average = *average - (*average >> shift) + towards;
}

#[cfg(test)]
mod tests;
