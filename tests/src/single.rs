//! One request at a time: sent, waited for, and how it ended.

use anyhow::{Result, ensure};
use testing::clock::now_ns;
use testing::content::block_content;
use testing::frontend::{FrontQueue, Frontend};
use testing::slots::{Kind, STATUS_OK, Slots};
use virtqueue::driver::Buffer;

/// Bytes of each request.
pub const BLOCK_SIZE: usize = 4096;
const SECTORS: u64 = BLOCK_SIZE as u64 / 512;
const CALL_MS: u32 = 90_000;
const TOKEN: u64 = 0x51;

/// Memory for one request.
#[derive(Debug)]
pub struct Single {
    slots: Slots,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The status byte.
    pub status: u8,
    /// From before the kick until it was seen, nanoseconds.
    pub took_ns: u64,
}

impl Single {
    /// Takes the memory.
    ///
    /// # Errors
    /// None is left.
    pub fn new(frontend: &mut Frontend) -> Result<Single> {
        Ok(Single { slots: Slots::new(frontend.memory(), 1, BLOCK_SIZE as u32)? })
    }

    /// Reads or writes block `block`; what is written is what only that block has.
    ///
    /// # Errors
    /// It did not end within 60 s, or the ring's rules were broken.
    pub fn send(&self, queue: &mut FrontQueue, kind: Kind, block: u64) -> Result<Ended> {
        let (buffers, count) = self.prepare(kind, block);
        let took_ns = complete(queue, &buffers[..count])?;
        Ok(Ended { status: self.slots.status(0), took_ns })
    }

    /// Sends the same request without waiting for it.
    ///
    /// # Errors
    /// The ring's rules were broken.
    pub fn offer(&self, queue: &mut FrontQueue, kind: Kind, block: u64) -> Result<()> {
        let (buffers, count) = self.prepare(kind, block);
        offer(queue, &buffers[..count])
    }

    /// The status of a request that was offered and has ended by now; nothing if it has not.
    pub fn ended(&self, queue: &mut FrontQueue) -> Option<u8> {
        queue.driver.take_used().map(|_| self.slots.status(0))
    }

    /// Puts the request into memory.
    fn prepare(&self, kind: Kind, block: u64) -> ([Buffer; 3], usize) {
        let mut bytes = vec![0x5a; BLOCK_SIZE];
        if kind == Kind::Write {
            block_content(block, &mut bytes);
        }
        self.slots.write_data(0, &bytes);
        self.slots.write_header(0, kind, block * SECTORS);
        self.slots.buffers(0, kind)
    }

    /// Reads block `block`, asking for no call: looks for it until it is there, as a guest does that polls.
    ///
    /// # Errors
    /// It did not end within 60 s, or the ring's rules were broken.
    pub fn poll(&self, queue: &mut FrontQueue, block: u64) -> Result<Ended> {
        self.slots.write_header(0, Kind::Read, block * SECTORS);
        let (buffers, count) = self.slots.buffers(0, Kind::Read);
        let start = now_ns();
        queue.driver.disarm_calls();
        queue.driver.add(&buffers[..count], TOKEN)?;
        if queue.driver.publish() {
            queue.kick()?;
        }
        let used = loop {
            if let Some(used) = queue.driver.take_used() {
                break used;
            }
            ensure!(now_ns() - start < u64::from(CALL_MS) * 1_000_000, "a request was lost");
            std::hint::spin_loop();
        };
        ensure!(used.token == TOKEN, "another request completed: {used:?}");
        Ok(Ended { status: self.slots.status(0), took_ns: now_ns() - start })
    }

    /// Writes a block, reads it again and compares.
    ///
    /// # Errors
    /// As [`Single::send`], or it was not done, or another content came back.
    pub fn exercise(&self, queue: &mut FrontQueue, block: u64) -> Result<()> {
        for kind in [Kind::Write, Kind::Read] {
            let ended = self.send(queue, kind, block)?;
            ensure!(ended.status == STATUS_OK, "{kind:?} of block {block}: {ended:?}");
        }
        self.compare(block)
    }

    /// Whether the last read found what [`Single::exercise`] has written to `block`.
    ///
    /// # Errors
    /// It did not.
    pub fn compare(&self, block: u64) -> Result<()> {
        let (mut found, mut expected) = (vec![0; BLOCK_SIZE], vec![0; BLOCK_SIZE]);
        self.slots.read_data(0, &mut found);
        block_content(block, &mut expected);
        ensure!(found == expected, "block {block} is not what was written there");
        Ok(())
    }
}

/// Sends one request of those pieces and waits for it; gives the nanoseconds it took.
///
/// # Errors
/// It did not end within 60 s, or the ring's rules were broken.
pub fn complete(queue: &mut FrontQueue, buffers: &[Buffer]) -> Result<u64> {
    let start = now_ns();
    offer(queue, buffers)?;
    loop {
        if let Some(used) = queue.driver.take_used() {
            ensure!(used.token == TOKEN, "another request completed: {used:?}");
            return Ok(now_ns() - start);
        }
        let fault = queue.driver.fault();
        ensure!(fault.is_none(), "the device broke the rules of the ring: {fault:?}");
        ensure!(queue.wait_for_call(CALL_MS)?, "a request was lost: no call in 90 s");
    }
}

fn offer(queue: &mut FrontQueue, buffers: &[Buffer]) -> Result<()> {
    ensure!(!queue.driver.arm_calls(), "something completed that was not asked for");
    queue.driver.add(buffers, TOKEN)?;
    if queue.driver.publish() {
        queue.kick()?;
    }
    Ok(())
}
