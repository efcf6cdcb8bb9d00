//! Keeps a number of random requests in flight on one queue, and measures them.
//!
//! The driver side polls: it asks for no calls and looks at the used ring without a pause. The
//! clock is read once for every batch of completions; a request's latency runs from the batch that
//! sent it to the batch that found it done, so it contains the load's own work on one batch.

use anyhow::{Result, bail, ensure};
use virtqueue::driver::{Driver, Prepared};

use crate::clock::now_ns;
use crate::frontend::FrontQueue;
use crate::histogram::Histogram;
use crate::slots::{Kind, SECTOR_SIZE, STATUS_OK, Slots};

/// Completions taken before what follows them is published, unless told: small enough that the
/// other side has work again soon, large enough that indices do not bounce for each one.
pub const BATCH: usize = 16;
/// A device that completes nothing for so long is given up.
const PATIENCE_NS: u64 = 90_000_000_000;
/// Empty looks between two looks at the clock.
const LOOKS: u32 = 1 << 16;

/// One workload on one queue, with its requests prepared.
#[derive(Debug)]
pub struct Load {
    requests: Vec<InFlight>,
    kind: Kind,
    batch: usize,
    blocks: u64,
    sectors_per_block: u64,
    random: Random,
    latencies: Histogram,
    /// When the last batch was taken.
    last_ns: u64,
    bad_status: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    prepared: Prepared,
    sent_ns: u64,
}

/// What one round showed.
#[derive(Clone, Debug)]
pub struct Round {
    /// Requests completed.
    pub requests: u64,
    /// Wall time, nanoseconds.
    pub elapsed_ns: u64,
    /// Median latency, nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile, nanoseconds.
    pub p99_ns: u64,
    /// Kicks that the device asked for.
    pub kicks: u64,
}

impl Round {
    /// Requests a second.
    pub fn iops(&self) -> f64 {
        self.requests as f64 * 1e9 / self.elapsed_ns as f64
    }
}

impl Load {
    /// Prepares `depth` requests of one kind in `slots`, on a device of `capacity_sectors`.
    ///
    /// # Errors
    /// The ring, the slots, or the disk are too small for it.
    pub fn new(
        driver: &mut Driver,
        slots: &Slots,
        kind: Kind,
        depth: u16,
        capacity_sectors: u64,
    ) -> Result<Load> {
        let sectors_per_block = u64::from(slots.data_bytes()) / SECTOR_SIZE;
        let blocks = capacity_sectors / sectors_per_block;
        ensure!(blocks > 0, "the disk is smaller than one request");
        ensure!(depth > 0 && depth <= slots.count(), "{depth} requests do not fit the slots");
        let mut requests = Vec::new();
        for slot in 0..depth {
            let (buffers, count) = slots.buffers(slot, kind);
            let prepared = driver.prepare(&buffers[..count])?;
            slots.write_header(slot, kind, 0);
            requests.push(InFlight { prepared, sent_ns: 0 });
        }
        Ok(Load {
            requests,
            kind,
            batch: BATCH,
            blocks,
            sectors_per_block,
            random: Random(0x9e37_79b9_7f4a_7c15),
            latencies: Histogram::default(),
            last_ns: 0,
            bad_status: None,
        })
    }

    /// Writes every header again, after another load has used the slots.
    pub fn reset(&mut self, slots: &Slots) {
        for slot in 0..self.requests.len() as u16 {
            slots.write_header(slot, self.kind, 0);
        }
    }

    /// Takes at most `batch` completions before publishing, instead of [`BATCH`].
    #[must_use]
    pub fn with_batch(self, batch: usize) -> Load {
        Load { batch, ..self }
    }

    /// Gives the prepared descriptors back.
    pub fn end(self, driver: &mut Driver) {
        for request in self.requests {
            driver.forget(request.prepared);
        }
    }

    /// The latencies recorded so far.
    pub fn latencies(&self) -> &Histogram {
        &self.latencies
    }

    /// Forgets the latencies recorded so far.
    pub fn forget_latencies(&mut self) {
        self.latencies.clear();
    }

    /// Adds every request once. Not published.
    pub fn start(&mut self, driver: &mut Driver, slots: &Slots) {
        let now = now_ns();
        for slot in 0..self.requests.len() as u16 {
            self.send(driver, slots, slot, now);
        }
    }

    /// Takes at most a batch of completions, adding each request again. Not published. Gives how
    /// many it took.
    #[inline]
    pub fn turn(&mut self, driver: &mut Driver, slots: &Slots) -> usize {
        let Some(first) = driver.take_used() else { return 0 };
        let now = now_ns();
        self.last_ns = now;
        let mut taken = 1;
        self.finish(driver, slots, first.token as u16, now);
        while taken < self.batch {
            let Some(used) = driver.take_used() else { break };
            self.finish(driver, slots, used.token as u16, now);
            taken += 1;
        }
        taken
    }

    /// Runs against a device in another process for `warm_ns` unmeasured and then `measured_ns`;
    /// `begin` and `finish` are called around the measured part.
    ///
    /// # Errors
    /// A failed request, a device that broke the ring's rules or stopped answering.
    pub fn run(
        &mut self,
        queue: &mut FrontQueue,
        slots: &Slots,
        [warm_ns, measured_ns]: [u64; 2],
        mut begin: impl FnMut(),
        mut finish: impl FnMut(),
    ) -> Result<Round> {
        queue.driver.disarm_calls();
        self.start(&mut queue.driver, slots);
        publish(queue)?;
        self.spin(queue, slots, now_ns() + warm_ns)?;
        self.latencies.clear();
        let kicks = queue.kicks();
        begin();
        let start = now_ns();
        let (requests, end) = self.spin(queue, slots, start + measured_ns)?;
        finish();
        let round = Round {
            requests,
            elapsed_ns: end - start,
            p50_ns: self.latencies.quantile(0.5),
            p99_ns: self.latencies.quantile(0.99),
            kicks: queue.kicks() - kicks,
        };
        self.drain(queue)?;
        Ok(round)
    }

    /// Sends and takes until the clock says `until`; gives the completions and the time it was.
    fn spin(&mut self, queue: &mut FrontQueue, slots: &Slots, until: u64) -> Result<(u64, u64)> {
        let (mut requests, mut empty, mut last) = (0, 0, now_ns());
        loop {
            let taken = self.turn(&mut queue.driver, slots);
            if taken > 0 {
                publish(queue)?;
                requests += taken as u64;
                last = self.last_ns;
                if last >= until {
                    self.check(&queue.driver)?;
                    return Ok((requests, last));
                }
                empty = 0;
                continue;
            }
            empty += 1;
            if empty % LOOKS == 0 {
                self.check(&queue.driver)?;
                let waited = now_ns().saturating_sub(last);
                ensure!(waited < PATIENCE_NS, "the device completed nothing for {waited} ns");
            }
        }
    }

    /// Waits until nothing is in flight; nothing is added again.
    ///
    /// # Errors
    /// A device that broke the ring's rules or stopped answering.
    pub fn drain(&mut self, queue: &mut FrontQueue) -> Result<()> {
        let start = now_ns();
        while queue.driver.in_flight() > 0 {
            if queue.driver.take_used().is_none() {
                self.check(&queue.driver)?;
                ensure!(now_ns() - start < PATIENCE_NS, "the device did not finish its requests");
            }
        }
        Ok(())
    }

    /// Whether everything went well so far.
    ///
    /// # Errors
    /// A failed request, or a device that broke the ring's rules.
    pub fn check(&self, driver: &Driver) -> Result<()> {
        if let Some(fault) = driver.fault() {
            bail!("the device broke the rules of the ring: {fault}");
        }
        if let Some(status) = self.bad_status {
            bail!("a request ended with status {status}");
        }
        Ok(())
    }

    /// Takes one completion, and adds nothing again. Whether there was one.
    #[inline]
    pub fn take(&mut self, driver: &mut Driver, slots: &Slots) -> bool {
        let Some(used) = driver.take_used() else { return false };
        self.last_ns = now_ns();
        self.record(slots, used.token as u16, self.last_ns);
        true
    }

    /// When the last completion was taken.
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }

    #[inline]
    fn finish(&mut self, driver: &mut Driver, slots: &Slots, slot: u16, now: u64) {
        self.record(slots, slot, now);
        self.send(driver, slots, slot, now);
    }

    #[inline]
    fn record(&mut self, slots: &Slots, slot: u16, now: u64) {
        let status = slots.status(slot);
        if status != STATUS_OK {
            self.bad_status = Some(status);
        }
        let sent = self.requests[usize::from(slot)].sent_ns;
        self.latencies.record(now.saturating_sub(sent));
    }

    #[inline]
    fn send(&mut self, driver: &mut Driver, slots: &Slots, slot: u16, now: u64) {
        let block = self.random.below(self.blocks);
        slots.set_sector(slot, block * self.sectors_per_block);
        let request = &mut self.requests[usize::from(slot)];
        request.sent_ns = now;
        // There is room: every request holds its descriptors, and this one is not in flight.
        let added = driver.add_prepared(request.prepared, slot.into());
        debug_assert_eq!(added, Ok(()));
    }
}

#[inline]
fn publish(queue: &mut FrontQueue) -> Result<()> {
    if queue.driver.publish() {
        queue.kick()?;
    }
    Ok(())
}

/// xorshift64*: a few cycles a number, and the same sequence in every run.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Evenly among `0..end`, for ends far below 2^64.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((u128::from(number) * u128::from(end)) >> 64) as u64
    }
}
