//! One guest of the tests of recovery: a front-end whose memory outlives its back-ends, a mixed
//! load on its queues, and the ledger that judges it.
//!
//! On the caller's thread, step by step; who kills what and when is the test's.

use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, ensure};
use testing::clock::now_ns;
use testing::frontend::{Frontend, FrontendSpec};
use testing::load::Random;
use virtqueue::Format;
use virtqueue::driver::{Buffer, RingSpec};

use crate::ledger::{Ledger, Order, SECTOR_SIZE};
use crate::mixed::{DESCRIPTORS_MAX, Failure, Kind, MixSpec, Mixed};

/// A request or a call that takes longer is lost.
pub const PATIENCE_NS: u64 = 90_000_000_000;
/// Requests that [`work`] keeps in flight.
pub const DEPTH: u16 = 32;
/// Memory for rings and tables of a queue, bytes.
const RING_BYTES: u64 = 64 << 10;
/// Waiting for a call in the middle of a load: someone else may have work.
const CALL_MS: u32 = 1;

/// What a guest is like.
#[derive(Clone, Copy, Debug)]
pub struct TenantSpec {
    /// Its rings.
    pub ring: RingSpec,
    /// Its queues.
    pub queues: u16,
    /// Its requests.
    pub mix: MixSpec,
    /// Waits for calls, instead of looking at the rings all the time.
    pub calls: bool,
}

impl TenantSpec {
    /// Two queues, and requests of at most so many bytes, up to 64 at a time.
    pub fn usual(format: Format, request_bytes_max: u32) -> TenantSpec {
        let size = if format == Format::Packed { 200 } else { 256 };
        let ring = RingSpec { size, format, event_index: true, indirect_entries: 0 };
        let mix = MixSpec { depth_max: 64, request_bytes_max, cuts: false };
        TenantSpec { ring, queues: 2, mix, calls: false }
    }
}

/// Keeps a guest at work until `holds`; a back-end may be gone meanwhile.
///
/// # Errors
/// As [`Tenant::take`], that of `holds`, or it does not hold in time.
pub fn work_until(
    tenant: &mut Tenant,
    random: &mut Random,
    what: &str,
    mut holds: impl FnMut(&Tenant) -> Result<bool>,
) -> Result<()> {
    let start = now_ns();
    while !holds(tenant)? {
        tenant.send(DEPTH, random)?;
        if tenant.take()? == 0 {
            tenant.rest()?;
        }
        ensure!(now_ns() - start < PATIENCE_NS, "waited in vain for {what}");
    }
    Ok(())
}

/// Keeps a guest at work until so many requests have ended.
///
/// # Errors
/// As [`work_until`].
pub fn work(tenant: &mut Tenant, random: &mut Random, requests: u64) -> Result<()> {
    let until = tenant.done + requests;
    work_until(tenant, random, "requests to end", |tenant| Ok(tenant.done >= until))
}

/// A guest with its disk.
#[derive(Debug)]
pub struct Tenant {
    spec: TenantSpec,
    frontend: Frontend,
    mixed: Mixed,
    ledger: Ledger,
    /// Requests that came back.
    pub done: u64,
}

impl Tenant {
    /// Over a fresh connection, on a disk whose state is `ledger`'s.
    ///
    /// # Errors
    /// As [`Frontend::over`].
    pub fn over(stream: UnixStream, spec: TenantSpec, ledger: Ledger) -> Result<Tenant> {
        let memory = spec.mix.memory_bytes() + u64::from(spec.queues) * RING_BYTES;
        let mut frontend = Frontend::over(
            stream,
            FrontendSpec {
                memory_bytes: memory.next_multiple_of(2 << 20),
                queues: spec.queues,
                ring: spec.ring,
                inflight: true,
                ..FrontendSpec::linux()
            },
        )?;
        let capacity = frontend.capacity_sectors()?;
        ensure!(capacity == ledger.sectors(), "{capacity} sectors, not {}", ledger.sectors());
        let mixed = Mixed::new(frontend.memory(), spec.mix)?;
        if !spec.calls {
            frontend.queues().iter_mut().for_each(|queue| queue.driver.disarm_calls());
        }
        Ok(Tenant { spec, frontend, mixed, ledger, done: 0 })
    }

    /// A disk of zeroes.
    pub fn blank(disk_bytes: u64) -> Ledger {
        Ledger::new(disk_bytes / SECTOR_SIZE as u64, Order::default())
    }

    /// Another back-end takes over.
    ///
    /// # Errors
    /// As [`Frontend::reconnect`].
    pub fn reconnect(&mut self, stream: UnixStream) -> Result<()> {
        self.frontend.reconnect(stream)
    }

    /// It moves to another back-end, as in a live migration. Gives the old connection.
    ///
    /// # Errors
    /// As [`Frontend::migrate`].
    pub fn migrate(&mut self, stream: UnixStream) -> Result<impl Drop + use<>> {
        self.frontend.migrate(stream)
    }

    /// The connection.
    pub fn frontend(&mut self) -> &mut Frontend {
        &mut self.frontend
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u16 {
        self.mixed.in_flight()
    }

    /// Sends until `depth` requests are in flight or the rings are full.
    ///
    /// # Errors
    /// The system's.
    pub fn send(&mut self, depth: u16, random: &mut Random) -> Result<()> {
        while self.mixed.in_flight() < depth {
            let queue = random.below(self.spec.queues.into()) as u16;
            if self.frontend.queue(queue).driver.free_descriptors() < DESCRIPTORS_MAX {
                break;
            }
            let Some((number, buffers)) = self.mixed.next(&mut self.ledger, random) else { break };
            self.add(queue, number, &buffers)?;
        }
        Ok(())
    }

    /// Sends one request of that kind and place on that queue.
    ///
    /// # Errors
    /// The system's, or there is no room for it.
    pub fn send_one(
        &mut self,
        random: &mut Random,
        queue: u16,
        kind: Kind,
        place: [u64; 2],
    ) -> Result<()> {
        let prepared = self.mixed.prepare(&mut self.ledger, random, kind, place);
        let (number, buffers) = prepared.context("as many are in flight as may be")?;
        self.add(queue, number, &buffers)
    }

    /// Takes what has been completed; gives how much.
    ///
    /// # Errors
    /// A [`Failure`].
    pub fn take(&mut self) -> Result<u64, Failure> {
        let mut taken = 0;
        for queue in self.frontend.queues() {
            while let Some(used) = queue.driver.take_used() {
                self.mixed.ended(&mut self.ledger, used)?;
                taken += 1;
            }
            if let Some(fault) = queue.driver.fault() {
                return Err(Failure::Doubled(fault.to_string()));
            }
        }
        self.done += taken;
        Ok(taken)
    }

    /// Lets the other side work: for a moment, or until a call comes.
    ///
    /// # Errors
    /// The system's.
    pub fn rest(&mut self) -> Result<()> {
        if !self.spec.calls {
            std::thread::yield_now();
            return Ok(());
        }
        for queue in self.frontend.queues() {
            if queue.driver.in_flight() > 0 && !queue.driver.arm_calls() {
                queue.wait_for_call(CALL_MS)?;
                return Ok(());
            }
        }
        Ok(())
    }

    /// The same for one that waits for calls; nothing for one that does not.
    ///
    /// # Errors
    /// The system's.
    pub fn rest_if_called(&mut self) -> Result<()> {
        if self.spec.calls { self.rest() } else { Ok(()) }
    }

    /// Waits until nothing is in flight. A guest that waits for calls gets each completion by one.
    ///
    /// # Errors
    /// A [`Failure`].
    pub fn drain(&mut self) -> Result<()> {
        let start = now_ns();
        while self.in_flight() > 0 {
            if self.take()? > 0 {
                continue;
            }
            if self.spec.calls {
                self.await_call()?;
            } else {
                std::thread::yield_now();
            }
            let waited = now_ns() - start;
            if waited > PATIENCE_NS {
                let left = self.in_flight();
                return Err(Failure::Hung(format!("{left} requests after {waited} ns")).into());
            }
        }
        Ok(())
    }

    /// Waits for the call of the first queue that has something in flight.
    fn await_call(&mut self) -> Result<()> {
        for (index, queue) in self.frontend.queues().iter_mut().enumerate() {
            if queue.driver.in_flight() == 0 {
                continue;
            }
            if !queue.driver.arm_calls()
                && !queue.wait_for_call((PATIENCE_NS / 1_000_000) as u32)?
            {
                let left = queue.driver.in_flight();
                let there = queue.driver.take_used().is_some();
                return Err(Failure::Hung(format!(
                    "queue {index} with {left} requests was not called (completed: {there})"
                ))
                .into());
            }
            return Ok(());
        }
        Ok(())
    }

    /// Reads the whole disk and compares; nothing may be in flight.
    ///
    /// # Errors
    /// A [`Failure`].
    pub fn compare_all(&mut self, random: &mut Random) -> Result<()> {
        let most = u64::from(self.spec.mix.request_bytes_max) / SECTOR_SIZE as u64;
        let end = self.ledger.sectors();
        let mut next = 0;
        while next < end {
            let sectors = most.min(end - next);
            self.send_one(random, 0, Kind::Read, [next, sectors])?;
            next += sectors;
            if self.in_flight() >= self.spec.mix.depth_max / 2 || next >= end {
                self.drain()?;
            }
        }
        Ok(())
    }

    /// The front-end vanishes as it is. Gives the state of the disk.
    pub fn vanish(self) -> Ledger {
        let Tenant { mixed, mut ledger, .. } = self;
        mixed.abandon(&mut ledger);
        ledger
    }

    fn add(&mut self, queue: u16, number: u16, buffers: &[Buffer]) -> Result<()> {
        let queue = self.frontend.queue(queue);
        queue.driver.add(buffers, number.into())?;
        if queue.driver.publish() {
            queue.kick()?;
        }
        Ok(())
    }
}
