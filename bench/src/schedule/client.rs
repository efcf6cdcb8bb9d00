//! One guest of a mixed load: a front-end with one queue on which a set number of requests is kept in
//! flight, taken a few at a time so that one thread can go round several of them.

use anyhow::Result;
use testing::clock::now_ns;
use testing::content;
use testing::frontend::{Frontend, FrontendSpec};
use testing::histogram::Histogram;
use testing::load::Load;
use testing::slots::{Kind, Slots};

use super::USUAL_RING;
use super::daemon::Daemon;

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wants {
    pub(super) kind: Kind,
    pub(super) block_bytes: u32,
    /// Requests in flight.
    pub(super) depth: u16,
    /// Completions taken at one look.
    pub(super) batch: usize,
    /// Between an answer and the next request, nanoseconds; with a depth of 1 only.
    pub(super) think_ns: u64,
}

pub(super) struct Client {
    frontend: Frontend,
    slots: Slots,
    load: Load,
    depth: u16,
    think_ns: u64,
    /// It thinks until then.
    until_ns: Option<u64>,
}

impl Client {
    /// Connects to the disk `id`; fills it first if it `keeps` what is written, so that reads find
    /// more than one page of zeroes.
    pub(super) fn connect(
        daemon: &mut Daemon,
        id: &str,
        wants: Wants,
        keeps: bool,
    ) -> Result<Client> {
        let Wants { kind, block_bytes, depth, batch, think_ns } = wants;
        let needed = u64::from(depth) * u64::from(block_bytes) + content::MEMORY_BYTES;
        let spec = FrontendSpec {
            memory_bytes: (needed + (1 << 20)).next_multiple_of(2 << 20),
            ring: USUAL_RING,
            ..FrontendSpec::linux()
        };
        let mut frontend = daemon.frontend(id, &spec)?;
        let capacity_sectors = frontend.capacity_sectors()?;
        if keeps {
            content::fill(&mut frontend, capacity_sectors)?;
        }
        let slots = Slots::new(frontend.memory(), depth, block_bytes)?;
        let driver = &mut frontend.queue(0).driver;
        driver.disarm_calls();
        let load = Load::new(driver, &slots, kind, depth, capacity_sectors)?.with_batch(batch);
        Ok(Client { frontend, slots, load, depth, think_ns, until_ns: None })
    }

    /// Sends the first requests.
    pub(super) fn start(&mut self) -> Result<()> {
        self.until_ns = None;
        self.load.start(&mut self.frontend.queue(0).driver, &self.slots);
        self.publish()
    }

    /// Takes at most a batch of completions and sends each request again; gives how many. Nothing is
    /// there when the client was not started.
    #[inline]
    pub(super) fn look(&mut self) -> Result<usize> {
        if self.think_ns > 0 {
            return self.look_and_think();
        }
        let taken = self.load.turn(&mut self.frontend.queue(0).driver, &self.slots);
        if taken > 0 {
            self.publish()?;
        }
        Ok(taken)
    }

    /// As [`Self::look`], but the next request is sent after a pause.
    fn look_and_think(&mut self) -> Result<usize> {
        match self.until_ns {
            Some(until_ns) if now_ns() < until_ns => return Ok(0),
            Some(_) => self.start()?,
            None if self.load.take(&mut self.frontend.queue(0).driver, &self.slots) => {
                self.until_ns = Some(self.load.last_ns() + self.think_ns);
                return Ok(1);
            }
            None => {}
        }
        Ok(0)
    }

    /// Forgets the latencies seen so far.
    pub(super) fn forget_latencies(&mut self) {
        self.load.forget_latencies();
    }

    /// The latencies seen so far, nanoseconds.
    pub(super) fn latencies(&self) -> &Histogram {
        self.load.latencies()
    }

    /// Waits for what is in flight; gives how many that were.
    ///
    /// # Errors
    /// A failed request, or a device that broke the ring's rules or stopped answering.
    pub(super) fn stop(&mut self) -> Result<u64> {
        let queue = self.frontend.queue(0);
        let in_flight = queue.driver.in_flight();
        self.until_ns = Some(u64::MAX);
        self.load.drain(queue)?;
        self.load.check(&queue.driver)?;
        Ok(in_flight.into())
    }

    /// Requests in flight while it runs.
    pub(super) fn depth(&self) -> u16 {
        self.depth
    }

    #[inline]
    fn publish(&mut self) -> Result<()> {
        let queue = self.frontend.queue(0);
        if queue.driver.publish() {
            queue.kick()?;
        }
        Ok(())
    }
}
