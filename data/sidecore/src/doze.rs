//! Waiting a moment, with `wait = "line"`, after a pass that found nothing while something is polled.
//!
//! With one ring polled, the core rests until the line of the ring's index changes. With several it only
//! pauses: a processor watches one line. A pause by the clock (`tpause`) would be paid for by whoever
//! is polled beside others: each look of theirs is charged as 100 ns, whatever the pass takes, so
//! `adaptive` would poll for ten times as long as a kick is worth.
//!
//! Nothing is put off that the sidecore knows of: it does not wait with anything due, in flight, on its way
//! from another sidecore, or in the inbox. What only a look would find (a command that comes meanwhile, a
//! kick of an armed queue) is found as much later as the wait is long, which ends where the next look for
//! kicks is due.
//!
//! Not sleeping (`rest`), nor the instructions (`guest_memory::LineWait`). Called by `thread`; off
//! unless the operator asks for it.

use guest_memory::{Area, LineWait};
use schedule::{Clock, LOOK_INTERVAL_NS, Nanos, Policy};

use crate::places::served_at;
use crate::served::Ring;
use crate::sidecore::Sidecore;

/// The longest wait: what a command from control may be late by.
const DOZE_NS_MAX: u64 = 10_000;
/// A wait is at most this part of the price of a kick where a policy weighs polling against kicks: it
/// decides at looks only, so what it spends too much is at most a wait.
const KICK_PART: u64 = 4;
/// And this part of a latency target: how long a request may have waited is counted from the last look
/// that found nothing, though it was seen as soon as it came.
const TARGET_PART: u64 = 8;

/// What a processor does to wait; a model of one is in the tests.
pub(crate) trait Waits {
    /// From now on a store to the line of byte `at` ends the next wait.
    fn watch(&mut self, area: &Area, at: usize);
    /// Waits for that, and at most so long. May end at any time.
    fn wait(&mut self, at_most_ns: u64);
    /// Lets the processor's other thread go first, for some nanoseconds.
    fn pause(&mut self);
}

impl Sidecore {
    /// After an idle pass that is not followed by a sleep, at `now`, the end of it: waits a moment, when
    /// nothing can be late by that.
    ///
    /// Nothing that comes is waited on only in this order: the line is watched, then the ring is looked
    /// at again, then the wait begins; a store after the first ends the last.
    #[cold]
    pub(crate) fn doze(&mut self, now: Nanos, waits: &mut impl Waits) {
        let Some(at_most_ns) = self.doze_at_most(now) else { return };
        match self.schedule.polled() {
            0 => return,
            1 => {}
            _ => return waits.pause(),
        }
        let Some(queue) = self.schedule.first_polled() else { return };
        // A host port has no line that says of a frame.
        let Some(served) = served_at(&mut self.places, queue) else { return waits.pause() };
        let is_slicing = served.role.is_slicing();
        let ring = &mut served.ring;
        if is_slicing || !ring.is_empty_handed() {
            return;
        }
        let at_most_ns = at_most_ns.min(ring.doze_at_most(self.kick_ns));
        let (area, at) = ring.queue.line();
        waits.watch(area, at);
        if !ring.queue.has_new(&ring.memory) {
            waits.wait(at_most_ns);
        }
    }

    /// How long nothing is due that is not a ring's; `None`: something is, or may be at any time.
    fn doze_at_most(&mut self, now: Nanos) -> Option<u64> {
        // Roads from other sidecores are rings too, and what was sent comes back on one. Frames of links are in none.
        let is_awaiting = !self.roads.is_empty()
            || self.io.has_links()
            || !self.links.is_empty()
            || self.moves.keep_awake()
            || self.moves.awaits();
        let has_more = !self.commands.is_empty()
            || !self.unsent.is_empty()
            || !self.put_off.is_empty()
            || !self.unshown.is_empty()
            || !self.unclocked.is_empty()
            || !self.leaving.is_empty();
        // A guest that wakes changes no line that is watched.
        let is_awaiting = is_awaiting || self.schedule.dormant() > 0;
        let is_busy = self.io.in_flight() > 0 || !self.io.may_rest();
        if is_awaiting || has_more || is_busy || self.stopping {
            return None;
        }
        let look = self.looked.after(LOOK_INTERVAL_NS);
        let due = self.schedule.next_due().map_or(look, |due| due.min(look));
        (due > now).then(|| due.since(now).min(DOZE_NS_MAX))
    }
}

impl Ring {
    /// Whether nothing of it is anywhere but in the ring, where the next thing will appear.
    fn is_empty_handed(&self) -> bool {
        self.queue.in_flight() == 0 && !self.unshown && !self.leaving && !self.health.is_lost()
    }

    fn doze_at_most(&self, kick_ns: u64) -> u64 {
        let by_price = match self.policy {
            Policy::Poll => u64::MAX,
            _ => kick_ns / KICK_PART,
        };
        by_price.min(self.target_ns.map_or(u64::MAX, |target_ns| target_ns / TARGET_PART))
    }
}

/// The processor of this thread.
#[derive(Debug)]
pub(crate) struct Processor {
    line: LineWait,
    ticks_a_us: u64,
}

impl Processor {
    /// To be made on the thread that waits; takes about a third of a millisecond.
    pub(crate) fn new(line: LineWait, clock: &impl Clock) -> Processor {
        Processor { line, ticks_a_us: ticks_a_us(clock, || line.ticks()) }
    }
}

impl Waits for Processor {
    #[inline]
    fn watch(&mut self, area: &Area, at: usize) {
        self.line.watch(area, at);
    }

    #[inline]
    fn wait(&mut self, at_most_ns: u64) {
        let ticks = at_most_ns.saturating_mul(self.ticks_a_us) / 1_000;
        self.line.wait(u32::try_from(ticks).unwrap_or(u32::MAX));
    }

    #[inline]
    fn pause(&mut self) {
        std::hint::spin_loop();
    }
}

/// Times that the ticks are measured, and for how long each.
const MEASUREMENTS: u32 = 3;
const MEASURED_NS: u64 = 100_000;
/// No processor counts faster: 10 GHz.
const TICKS_A_US_MAX: u64 = 10_000;

/// Ticks of a microsecond, never too many: they are read within the time, so a thread that is stopped in
/// between only makes it seem longer. The most of a few measurements is the nearest.
fn ticks_a_us(clock: &impl Clock, mut ticks: impl FnMut() -> u64) -> u64 {
    let measured = (0..MEASUREMENTS).map(|_| {
        let (start, first) = (clock.now(), ticks());
        loop {
            let (last, end) = (ticks(), clock.now());
            let took_ns = end.since(start);
            if took_ns >= MEASURED_NS {
                let counted = u128::from(last.saturating_sub(first)) * 1_000;
                return u64::try_from(counted / u128::from(took_ns)).unwrap_or(u64::MAX);
            }
        }
    });
    measured.max().unwrap_or(0).min(TICKS_A_US_MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    /// Each reading goes on by the next of these times, in turn.
    struct Uneven<'a> {
        now: &'a Cell<u64>,
        steps: &'a [u64],
        next: Cell<usize>,
    }

    impl Clock for Uneven<'_> {
        fn now(&self) -> Nanos {
            let step = self.steps[self.next.get() % self.steps.len()];
            self.next.set(self.next.get() + 1);
            self.now.set(self.now.get() + step);
            Nanos(self.now.get())
        }
    }

    proptest! {
        /// However long the thread is stopped between any two readings.
        #[test]
        fn a_microsecond_is_never_too_long(
            steps in prop::collection::vec(1..300_000u64, 1..20),
            between in 0..5_000u64,
            rate in 1_000..9_000u64,
        ) {
            let now = Cell::new(5);
            let clock = Uneven { now: &now, steps: &steps, next: Cell::new(0) };
            let ticks = || {
                now.set(now.get() + between);
                now.get() * rate / 1_000
            };
            // Rounding of the first tick.
            prop_assert!(ticks_a_us(&clock, ticks) <= rate + 1);
        }
    }

    #[test]
    fn a_microsecond_is_about_right_on_a_thread_that_runs() {
        let now = Cell::new(5);
        let clock = Uneven { now: &now, steps: &[20], next: Cell::new(0) };
        let measured = ticks_a_us(&clock, || now.get() * 3);
        assert!((2_990..=3_000).contains(&measured), "{measured}");
    }
}
