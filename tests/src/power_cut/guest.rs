//! The guest of a recording: one thread, several queues, writes of many sizes over one another.

use anyhow::{Context, Result, bail, ensure};
use guest_memory::Area;
use testing::clock::now_ns;
use testing::frontend::{FrontQueue, Frontend};
use testing::load::Random;
use virtqueue::driver::Buffer;

use super::{DISK_SECTORS, Mode, Plan, WCE_AT};
use crate::ledger::{Flushing, Ledger, Order, Reading, What, Writing};

/// In flight on each queue at most.
const DEPTH: usize = 8;
/// Longest transfer, sectors.
const SECTORS_MAX: u64 = 64;
const SIZES: [u64; 10] = [1, 1, 2, 3, 8, 8, 8, 16, 32, SECTORS_MAX];
/// Data begins on a page or this much after it: addresses that O_DIRECT does not take.
const SKEW: u64 = 512;
const DATA_BYTES: usize = SECTORS_MAX as usize * 512 + SKEW as usize;
const STATUS_AT: usize = 16;
const UNWRITTEN: u8 = 0xff;
/// Nothing here takes longer.
const PATIENCE_NS: u64 = 90_000_000_000;

const T_IN: u32 = 0;
const T_OUT: u32 = 1;
const T_FLUSH: u32 = 4;
const T_DISCARD: u32 = 11;
const T_WRITE_ZEROES: u32 = 13;

#[derive(Debug)]
enum Doing {
    Write(Writing),
    Read(Reading, u64, u64),
    Flush(Flushing),
}

#[derive(Debug)]
struct Slot {
    queue: usize,
    /// Header and status.
    line: Area,
    line_gpa: u64,
    data: Area,
    data_gpa: u64,
    doing: Option<Doing>,
    /// Sent before `writeback` was changed the last time.
    is_old: bool,
}

pub(super) struct Guest {
    frontend: Frontend,
    queues: Vec<FrontQueue>,
    slots: Vec<Slot>,
    ledger: Ledger,
    random: Random,
    mode: Mode,
    write_back: bool,
    left: u64,
    in_flight: usize,
}

impl Guest {
    pub(super) fn new(mut frontend: Frontend, plan: &Plan, order: Order) -> Result<Guest> {
        let queues = frontend.take_queues();
        let mut slots = Vec::new();
        for number in 0..queues.len() * DEPTH {
            let full = "guest memory is too small";
            let (line, line_gpa) = frontend.memory().take(64, 64).context(full)?;
            let (data, data_gpa) = frontend.memory().take(DATA_BYTES, 4096).context(full)?;
            let (queue, doing, is_old) = (number % queues.len(), None, false);
            slots.push(Slot { queue, line, line_gpa, data, data_gpa, doing, is_old });
        }
        let mut ledger = Ledger::new(DISK_SECTORS, order).with_history();
        let mut write_back = true;
        match plan.mode {
            Mode::NoFlush => ledger.set_write_through(true),
            Mode::WriteThrough => {
                frontend.set_config(WCE_AT, &[0])?;
                ledger.set_write_through(true);
                write_back = false;
            }
            _ => {}
        }
        let (mode, random) = (plan.mode, Random(plan.seed | 1));
        let left = plan.requests;
        Ok(Guest { frontend, queues, slots, ledger, random, mode, write_back, left, in_flight: 0 })
    }

    pub(super) fn run(&mut self) -> Result<()> {
        let mut moved_ns = now_ns();
        while self.left > 0 || self.in_flight > 0 {
            let ended = self.reap()?;
            if ended > 0 {
                moved_ns = now_ns();
            }
            if self.mode == Mode::Switching && self.left > 0 && self.random.below(60) == 0 {
                self.switch()?;
            }
            let sent = self.submit()?;
            if ended + sent == 0 {
                ensure!(now_ns() - moved_ns < PATIENCE_NS, "{} requests hang", self.in_flight);
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Ledger> {
        self.frontend.put_queues(self.queues);
        self.frontend.disconnect()?;
        Ok(self.ledger)
    }

    /// Changes `writeback` while requests are in flight; not before those of the last time ended.
    fn switch(&mut self) -> Result<()> {
        if self.slots.iter().any(|slot| slot.doing.is_some() && slot.is_old) {
            return Ok(());
        }
        self.write_back = !self.write_back;
        if self.write_back {
            self.ledger.set_write_through(false);
        }
        self.slots.iter_mut().for_each(|slot| slot.is_old = true);
        self.frontend.set_config(WCE_AT, &[u8::from(self.write_back)])?;
        if !self.write_back {
            self.ledger.set_write_through(true);
        }
        Ok(())
    }

    /// Sends up to four requests into random queues.
    fn submit(&mut self) -> Result<usize> {
        let mut sent = 0;
        while sent < 4 && self.left > 0 {
            let at = self.random.below(self.slots.len() as u64) as usize;
            if self.slots[at].doing.is_some() {
                break;
            }
            self.send(at)?;
            (sent, self.left, self.in_flight) = (sent + 1, self.left - 1, self.in_flight + 1);
        }
        for queue in &mut self.queues {
            if queue.driver.publish() {
                queue.kick()?;
            }
        }
        Ok(sent)
    }

    fn send(&mut self, at: usize) -> Result<()> {
        let chance = self.random.below(100);
        let sectors = SIZES[self.random.below(SIZES.len() as u64) as usize];
        let mut first = self.random.below(DISK_SECTORS - sectors);
        if self.random.below(4) > 0 {
            // Three of four lie as file systems lay them.
            first -= first % 8;
        }
        let skew = if self.random.below(8) == 0 { SKEW } else { 0 };
        let flushes = if self.mode == Mode::NoFlush { 0 } else { 6 };
        let slot = &mut self.slots[at];
        let len = sectors as usize * 512;
        let (doing, kind, data) = match chance {
            _ if chance < flushes => (Doing::Flush(self.ledger.flush()), T_FLUSH, None),
            6..12 => {
                let reading = self.ledger.read(first, sectors);
                let data =
                    Buffer { gpa: slot.data_gpa + skew, len: len as u32, device_writes: true };
                (Doing::Read(reading, skew, sectors), T_IN, Some(data))
            }
            12..18 => {
                let (what, kind) = match chance % 2 {
                    0 => (What::Zeroes, T_WRITE_ZEROES),
                    _ => (What::Discard, T_DISCARD),
                };
                slot.data.store_u64(0, first);
                // With `unmap` allowed for half of the zeroes.
                let unmap = u64::from(kind == T_WRITE_ZEROES && skew == 0);
                slot.data.store_u64(8, sectors | unmap << 32);
                let data = Buffer { gpa: slot.data_gpa, len: 16, device_writes: false };
                (Doing::Write(self.ledger.write(what, first, sectors)), kind, Some(data))
            }
            _ => {
                let writing = self.ledger.write(What::Data, first, sectors);
                let mut bytes = vec![0; len];
                self.ledger.fill(&writing, &mut bytes);
                slot.data.write(skew as usize, &bytes);
                let data =
                    Buffer { gpa: slot.data_gpa + skew, len: len as u32, device_writes: false };
                (Doing::Write(writing), T_OUT, Some(data))
            }
        };
        slot.line.store_u64(0, kind.into());
        slot.line.store_u64(8, if kind == T_IN || kind == T_OUT { first } else { 0 });
        slot.line.store_u8(STATUS_AT, UNWRITTEN);
        (slot.doing, slot.is_old) = (Some(doing), false);
        let header = Buffer { gpa: slot.line_gpa, len: 16, device_writes: false };
        let status = Buffer { gpa: slot.line_gpa + STATUS_AT as u64, len: 1, device_writes: true };
        let buffers: Vec<Buffer> =
            std::iter::once(header).chain(data).chain(std::iter::once(status)).collect();
        self.queues[slot.queue].driver.add(&buffers, at as u64)?;
        Ok(())
    }

    fn reap(&mut self) -> Result<usize> {
        let mut ended = 0;
        for queue in &mut self.queues {
            while let Some(used) = queue.driver.take_used() {
                let slot = self.slots.get_mut(used.token as usize).context("a strange token")?;
                let doing = slot.doing.take().context("a request that was not in flight ended")?;
                let status = slot.line.load_u8(STATUS_AT);
                ensure!(status == 0, "{doing:?} ended with status {status}");
                match doing {
                    Doing::Write(writing) => self.ledger.wrote(writing),
                    Doing::Flush(flushing) => self.ledger.flushed(flushing),
                    Doing::Read(reading, skew, sectors) => {
                        let mut bytes = vec![0; sectors as usize * 512];
                        slot.data.read(skew as usize, &mut bytes);
                        self.ledger.found(reading, &bytes)?;
                    }
                }
                (ended, self.in_flight) = (ended + 1, self.in_flight - 1);
            }
            if let Some(fault) = queue.driver.fault() {
                bail!("the device broke the rules of the ring: {fault}");
            }
        }
        Ok(ended)
    }
}
