//! Limits: at most so many units a second, of a device or of a group, whoever serves its queues.
//!
//! A [`Meter`] is one word that all queues of a device or a group share, on whatever sidecore; a
//! [`Gate`] is what one queue holds of its meters. Not here: which queue waits until when
//! (`schedule`), and what a unit is: `sidecore` counts requests of disks, packets of NICs, and bytes.
//! What is said of requests here goes for packets too.
//!
//! The rule is GCRA (ITU-T I.371): the word is the moment at which all that was taken so far is
//! earned. Whoever takes moves it on by what that costs, and may use it from a burst before that
//! moment on; that moment is its own, so who came first is first, and nobody asks twice. What is taken
//! is never given back: others have built on it.

use std::sync::Arc;
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::budget::Budget;
use crate::nanos::Nanos;

/// The shortest burst, as time at the full rate. A sidecore that wakes later than this after a queue's
/// moment loses allowance; a sleep is late by one tick of the timer, up to 1 ms.
pub const BURST_MS_MIN: u32 = 4;
/// What a queue takes at once at most, as time at the full rate, unless one unit is more.
const CHUNK_NS: u64 = 1_000_000;
/// How many chunks more it takes when nobody waits for them: a queue that is looked at every 4 ms only
/// still gets its rate.
const CHUNKS_MORE: u64 = 3;
/// How long it may use that, once it may. Where nobody waits for a moment, as at a receiver, frames of
/// a slow rate come milliseconds apart.
const LAPSE_NS: u64 = 4_000_000;
/// Binary places of [`Meter::unit_cost`].
const FRACTION: u32 = 32;

/// So many units a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Units a second. 0 counts as 1.
    pub per_s: u64,
    /// How much may be used at once after a pause, as time at the full rate, nanoseconds.
    pub burst_ns: u64,
}

/// The count of one unit for everybody who shares a limit.
#[derive(Debug)]
pub struct Meter {
    /// When all that was taken is earned, nanoseconds.
    earned: AtomicU64,
    /// Of one unit, in nanoseconds with `FRACTION` binary places.
    unit_cost: u64,
    burst_ns: u64,
    chunk_max: u64,
}

impl Meter {
    /// A meter of which nothing was taken.
    pub fn new(rate: Rate) -> Meter {
        let per_s = rate.per_s.max(1);
        // At most 10^9 * 2^32, which is below 2^62.
        let unit_cost = (1_000_000_000u64 << FRACTION).div_ceil(per_s);
        let chunk_max = per_s.div_ceil(1_000_000_000 / CHUNK_NS);
        let mut meter = Meter { earned: AtomicU64::new(0), unit_cost, burst_ns: 0, chunk_max };
        // Where one unit is more than the burst, one may be had at once after a pause.
        meter.burst_ns = rate.burst_ns.max(meter.cost_ns(chunk_max));
        meter
    }

    /// Takes `units`; the answer is when they may be used, which can be past. Lock-free; a retry means
    /// that somebody else took some.
    pub fn take(&self, units: u64, now: Nanos) -> Nanos {
        let cost_ns = self.cost_ns(units);
        let mut earned = self.earned.load(Relaxed);
        loop {
            let next = earned.max(now.0).saturating_add(cost_ns);
            match self.earned.compare_exchange_weak(earned, next, Relaxed, Relaxed) {
                Ok(_) => return Nanos(next.saturating_sub(self.burst_ns)),
                Err(seen) => earned = seen,
            }
        }
    }

    /// Takes at most `units`, of which it says how many, that may be used now.
    fn take_due(&self, units: u64, now: Nanos) -> u64 {
        let mut earned = self.earned.load(Relaxed);
        loop {
            let from = earned.max(now.0);
            let room_ns = now.0.saturating_add(self.burst_ns).saturating_sub(from);
            let room = (u128::from(room_ns) << FRACTION) / u128::from(self.unit_cost);
            let granted = u64::try_from(room).unwrap_or(u64::MAX).min(units);
            if granted == 0 {
                return 0;
            }
            let next = from.saturating_add(self.cost_ns(granted));
            match self.earned.compare_exchange_weak(earned, next, Relaxed, Relaxed) {
                Ok(_) => return granted,
                Err(seen) => earned = seen,
            }
        }
    }

    /// Rounded up. A cost beyond the type counts as its end: 584 years.
    fn cost_ns(&self, units: u64) -> u64 {
        let cost = u128::from(units) * u128::from(self.unit_cost);
        u64::try_from(cost.div_ceil(1 << FRACTION)).unwrap_or(u64::MAX)
    }
}

/// The meters of one device or one group, for queues of one kind.
#[derive(Debug)]
pub struct Meters {
    requests: Option<Meter>,
    bytes: Option<Arc<Meter>>,
}

impl Meters {
    /// Those that are wanted, of which nothing was taken; `None` when none is.
    pub fn new(requests: Option<Rate>, bytes: Option<Rate>) -> Option<Arc<Meters>> {
        Meters::with_bytes(requests, bytes.map(|rate| Arc::new(Meter::new(rate))))
    }

    /// The same with a meter of bytes that others count on too: requests of disks and packets of NICs
    /// are different things, their bytes are not.
    pub fn with_bytes(requests: Option<Rate>, bytes: Option<Arc<Meter>>) -> Option<Arc<Meters>> {
        let any = requests.is_some() || bytes.is_some();
        any.then(|| Arc::new(Meters { requests: requests.map(Meter::new), bytes }))
    }
}

/// Which limits hold for the queues of a device.
#[derive(Clone, Debug, Default)]
pub struct Limited {
    /// Its own.
    pub device: Option<Arc<Meters>>,
    /// Those of its group.
    pub group: Option<Arc<Meters>>,
}

/// What one queue holds of one meter.
#[derive(Clone, Copy, Debug, Default)]
struct Hold {
    /// Units it may still use; 0: nothing is held.
    left: u64,
    /// From when on.
    due: Nanos,
    used: u64,
    /// What its last request was larger than was held, and is not paid yet.
    owed: u64,
    /// What it takes next: what it had use for, so that a queue which asks seldom keeps no others
    /// waiting with what lapses.
    want: u64,
}

impl Hold {
    /// Pays what is owed: what is there now, and then, of more than a chunk, one, whose moment is
    /// waited for. Not all at once: who shares the limit would wait for it, and one with many queues
    /// would have others wait for seconds.
    fn repay(&mut self, meter: &Meter, now: Nanos) {
        if self.owed > 0 {
            self.owed -= meter.take_due(self.owed, now);
        }
        if self.owed > meter.chunk_max {
            self.owed -= meter.chunk_max;
            self.due = meter.take(meter.chunk_max, now);
        }
    }
}

/// What a queue may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// A visit with this budget, at most as large as the one it would have.
    Go(Budget),
    /// Nothing before this moment, which lies ahead.
    Wait(Nanos),
}

/// Whose limit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitOf {
    /// The device's own.
    Device,
    /// That of its group.
    Group,
}

/// A wait for a limit, which is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// For whose.
    pub limit: LimitOf,
    /// How long, nanoseconds: until it asked again, which is a little after the moment that it waited for.
    pub ns: u64,
}

/// A wait for a limit.
#[derive(Clone, Copy, Debug)]
struct Wait {
    limit: LimitOf,
    since: Nanos,
}

impl Wait {
    /// For the meter of that index.
    fn new(meter: usize, since: Nanos) -> Wait {
        let limit = if meter < 2 { LimitOf::Device } else { LimitOf::Group };
        Wait { limit, since }
    }
}

/// What one queue holds of the meters that count it: first those of its device, then those of its
/// group; while it waits for one it keeps what it has of those before.
///
/// A queue's use in any time T is at most the rate times T, the burst, what it may hold at the start
/// of T (a chunk), and what its last request is larger than was held (which the next ones repay).
#[derive(Debug)]
pub struct Gate {
    limited: Limited,
    holds: [Hold; 4],
    /// When what is held lapses; `None` while it waits.
    until: Option<Nanos>,
    /// What was answered last, when that was to wait, and nobody has asked how long it did.
    wait: Option<Wait>,
}

impl Gate {
    /// A gate that holds nothing; `None` when nothing is limited.
    pub fn new(limited: Limited) -> Option<Gate> {
        let any = limited.device.is_some() || limited.group.is_some();
        any.then(|| Gate { limited, holds: [Hold::default(); 4], until: None, wait: None })
    }

    /// Whether it counts on the meters that `other` counts on.
    pub fn is_like(&self, other: &Gate) -> bool {
        let same = |one: &Option<Arc<Meters>>, other: &Option<Arc<Meters>>| match (one, other) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        same(&self.limited.device, &other.limited.device)
            && same(&self.limited.group, &other.limited.group)
    }

    /// Whether a visit is possible without taking anything.
    #[inline]
    pub fn is_open(&self, now: Nanos) -> bool {
        self.until.is_some_and(|until| now <= until)
            && self.meters().zip(&self.holds).all(|(meter, hold)| meter.is_none() || hold.left > 0)
    }

    /// Its wait is over, if it waits: its moment has come, or is waited for no longer. For who counts
    /// that; whoever does not ask is told nothing else.
    pub fn end_wait(&mut self, now: Nanos) -> Option<Waited> {
        let Wait { limit, since } = self.wait.take()?;
        Some(Waited { limit, ns: now.since(since) })
    }

    /// What the queue may do of `budget` now. To be asked only when it has something to do: what is
    /// taken here and not used within 4 ms is lost.
    pub fn admit(&mut self, budget: Budget, now: Nanos) -> Admission {
        self.lapse(now);
        let mut granted = budget;
        let Gate { limited, holds, until, wait } = self;
        for (index, (meter, hold)) in meters(limited).zip(holds).enumerate() {
            let Some(meter) = meter else { continue };
            if hold.left == 0 {
                if hold.due <= now {
                    hold.repay(meter, now);
                }
                if hold.due > now {
                    (*until, *wait) = (None, Some(Wait::new(index, now)));
                    return Admission::Wait(hold.due);
                }
                let units = hold.want.clamp(1, meter.chunk_max);
                // With what little is still owed, so that it is waited for once.
                let due = meter.take(units.saturating_add(hold.owed), now);
                *hold = Hold { left: units, due, used: 0, owed: 0, ..*hold };
            }
            if hold.due > now {
                (*until, *wait) = (None, Some(Wait::new(index, now)));
                return Admission::Wait(hold.due);
            }
            if hold.used == 0 && hold.want > hold.left {
                let more = (hold.want - hold.left).min(CHUNKS_MORE.saturating_mul(meter.chunk_max));
                hold.left = hold.left.saturating_add(meter.take_due(more, now));
                hold.want = hold.left;
            }
            if index % 2 == 0 {
                let left = u32::try_from(hold.left).unwrap_or(u32::MAX);
                granted.requests = granted.requests.min(left);
            } else {
                granted.bytes = granted.bytes.min(hold.left);
            }
        }
        until.get_or_insert(now.after(LAPSE_NS));
        Admission::Go(granted)
    }

    /// A visit took so many requests, of so many bytes together; `more`: the ring may hold more.
    pub fn charge(&mut self, requests: u32, bytes: u64, more: bool, now: Nanos) {
        let Gate { limited, holds, .. } = self;
        for (index, (meter, hold)) in meters(limited).zip(holds).enumerate() {
            let Some(meter) = meter else { continue };
            let units = if index % 2 == 0 { u64::from(requests) } else { bytes };
            let excess = units.saturating_sub(hold.left);
            if excess > 0 {
                hold.owed = hold.owed.saturating_add(excess - meter.take_due(excess, now));
            }
            hold.used = hold.used.saturating_add(units);
            hold.left = hold.left.saturating_sub(units);
            if hold.left == 0 {
                let growth = if more { hold.used / 8 + 1 } else { 0 };
                hold.want = hold.used.saturating_add(growth);
            }
        }
    }

    fn lapse(&mut self, now: Nanos) {
        if self.until.is_none_or(|until| now <= until) {
            return;
        }
        self.until = None;
        for hold in &mut self.holds {
            if hold.left > 0 {
                (hold.left, hold.want) = (0, hold.used);
            }
        }
    }

    fn meters(&self) -> impl Iterator<Item = Option<&Meter>> {
        meters(&self.limited)
    }
}

/// Requests and bytes in turn, of the device, then of the group.
fn meters(limited: &Limited) -> impl Iterator<Item = Option<&Meter>> {
    [limited.device.as_deref(), limited.group.as_deref()].into_iter().flat_map(|meters| {
        let of = |pick: fn(&Meters) -> Option<&Meter>| meters.and_then(pick);
        [of(|meters| meters.requests.as_ref()), of(|meters| meters.bytes.as_deref())]
    })
}

#[cfg(test)]
mod tests;
#[cfg(all(test, loom))]
mod together;
