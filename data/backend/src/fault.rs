//! Delays and failures that an operator asks for, to see what a guest makes of them.
//!
//! Which request is meant is a function of the seed, the queue, and how many requests the queue has had: the same seed
//! and the same requests are the same faults. Not here: what becomes of a request meanwhile (`staged`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use request::{Op, Request, Status};

/// All of a probability.
pub const MILLION: u32 = 1_000_000;
/// A delay, and a jitter, at most, nanoseconds.
pub const DELAY_NS_MAX: u64 = 10_000_000_000;

/// Which requests are meant, by what they ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ops {
    /// Disk to guest.
    pub read: bool,
    /// Guest to disk.
    pub write: bool,
    /// What was written is made stable.
    pub flush: bool,
    /// Discards and write-zeroes.
    pub discard: bool,
}

impl Ops {
    /// Each request.
    pub const ALL: Ops = Ops { read: true, write: true, flush: true, discard: true };

    fn has(self, op: Op) -> bool {
        match op {
            Op::Read => self.read,
            Op::Write { .. } => self.write,
            Op::Flush => self.flush,
            Op::Discard | Op::WriteZeroes { .. } => self.discard,
        }
    }
}

/// What is done to requests of one queue.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// Each that is meant is answered so much later, nanoseconds; [`DELAY_NS_MAX`] at most.
    pub delay_ns: u64,
    /// And up to so much more, evenly, nanoseconds; [`DELAY_NS_MAX`] at most.
    pub jitter_ns: u64,
    /// So many of a [`MILLION`] fail, without being asked of the medium.
    pub errors_per_million: u32,
    /// Which are meant.
    pub ops: Ops,
    /// Those that touch these bytes; a flush touches all.
    pub range: Range<u64>,
    /// What chooses.
    pub seed: u64,
    /// Number of the queue.
    pub queue: u16,
    /// Where it is counted: of the same faults the same.
    pub counts: Arc<FaultCounts>,
}

/// What was done, of all queues of a disk.
#[derive(Debug, Default)]
pub struct FaultCounts {
    delayed: AtomicU64,
    failed: AtomicU64,
}

impl FaultCounts {
    /// Requests that were answered later, by all that was asked for.
    pub fn delayed(&self) -> u64 {
        self.delayed.load(Ordering::Relaxed)
    }

    /// Requests that were made to fail.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
}

/// What becomes of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) fails: bool,
    pub(crate) delay_ns: u64,
}

/// An answer that is held: until when, of which slot, and how the request ended.
type Held = Reverse<(u64, u16, u8)>;

/// The faults of one queue, and the answers that wait.
#[derive(Debug)]
pub(crate) struct Faults {
    plan: FaultPlan,
    /// Requests so far.
    number: u64,
    held: BinaryHeap<Held>,
}

impl Faults {
    /// With room for the answers of so many slots.
    pub(crate) fn new(plan: FaultPlan, slots: usize) -> Faults {
        Faults { plan, number: 0, held: BinaryHeap::with_capacity(slots) }
    }

    /// Goes on with the numbers of another back-end of the same queue, if the faults are the same.
    pub(crate) fn go_on_from(&mut self, before: &Faults) {
        if Arc::ptr_eq(&self.plan.counts, &before.plan.counts) {
            self.number = before.number;
        }
    }

    /// What becomes of the next request.
    pub(crate) fn judge(&mut self, request: &Request<'_>) -> Fate {
        let FaultPlan { seed, queue, .. } = self.plan;
        let number = self.number;
        self.number = self.number.wrapping_add(1);
        if !self.is_meant(request) {
            return Fate::default();
        }
        let drawn = mixed(seed ^ mixed(u64::from(queue) << 48 ^ number));
        let fails = within(drawn, u64::from(MILLION)) < u64::from(self.plan.errors_per_million);
        let jitter_ns = within(mixed(drawn), self.plan.jitter_ns.saturating_add(1));
        let delay_ns = self.plan.delay_ns.saturating_add(jitter_ns);
        self.plan.counts.failed.fetch_add(fails.into(), Ordering::Relaxed);
        Fate { fails, delay_ns }
    }

    fn is_meant(&self, request: &Request<'_>) -> bool {
        let Range { start, end } = self.plan.range;
        let touches = match request.op {
            Op::Flush => true,
            _ => request.offset < end && start < request.offset.saturating_add(request.len),
        };
        touches && self.plan.ops.has(request.op)
    }

    /// The answer of a slot waits.
    pub(crate) fn hold(&mut self, until_ns: u64, slot: u16, status: Status) {
        self.held.push(Reverse((until_ns, slot, status as u8)));
    }

    /// The next answer that waits until `until_ns` at most, by slot, which is given at `now_ns`. It counts as delayed
    /// unless it is given before its time.
    pub(crate) fn take_due(&mut self, until_ns: u64, now_ns: u64) -> Option<(u16, Status)> {
        let Reverse((due_ns, ..)) = *self.held.peek()?;
        if due_ns > until_ns {
            return None;
        }
        let Reverse((_, slot, status)) = self.held.pop()?;
        self.plan.counts.delayed.fetch_add((due_ns <= now_ns).into(), Ordering::Relaxed);
        let status = match status {
            0 => Status::Ok,
            2 => Status::Unsupported,
            _ => Status::IoError,
        };
        Some((slot, status))
    }

    /// How many answers wait.
    pub(crate) fn held(&self) -> u16 {
        self.held.len() as u16
    }

    /// When the next is due.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.held.peek().map(|Reverse((until_ns, ..))| *until_ns)
    }
}

/// The finalizer of SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014).
fn mixed(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Evenly below `end`.
fn within(drawn: u64, end: u64) -> u64 {
    ((u128::from(drawn) * u128::from(end)) >> 64) as u64
}

#[cfg(test)]
mod tests;
