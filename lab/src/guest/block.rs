//! Random reads and writes of 4 KiB, past the page cache: one after the other by `pread` and `pwrite`, or
//! several in flight by io_uring (`flight`). Not of several threads (`mixed`).
//!
//! Writes overwrite whatever is there. Called by `guest`.

mod mixed;

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use rustix::fs::{FileType, Mode, OFlags};
use testing::clock::now_ns;
use testing::histogram::Histogram;

use super::flight::Flight;
use super::measure::{Amount, measure};
use crate::orders::Answer;
pub(super) use mixed::mixed;

/// Bytes of a request.
pub(super) const BLOCK_SIZE: usize = 4096;
/// Requests in flight: what a virtio-blk queue of 256 holds, and half of it free.
const DEPTH_MAX: u16 = 128;
/// The same requests in each turn.
const SEED: u64 = 0x4c41_4200;

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Read,
    Write,
}

/// Memory of a request, aligned as `O_DIRECT` wants it.
#[derive(Clone)]
#[repr(C, align(4096))]
pub(super) struct Block([u8; BLOCK_SIZE]);

impl Block {
    /// Bytes that are not all the same: a disk may make holes of zeroes.
    fn filled(places: &mut Places) -> Block {
        let mut block = Block([0; BLOCK_SIZE]);
        for chunk in block.0.chunks_exact_mut(8) {
            chunk.copy_from_slice(&places.draw().to_le_bytes());
        }
        block
    }
}

/// Opens `device`, and measures so many requests with `depth` of them in flight.
///
/// # Errors
/// What is wrong with the order or the device, or which request failed.
pub(super) fn load(device: &str, way: Way, depth: u16, amount: Amount) -> Result<Answer> {
    ensure!((1..=DEPTH_MAX).contains(&depth), "depth: {depth}, not 1 to {DEPTH_MAX}");
    let file = open(device, way, OFlags::DIRECT).with_context(|| format!("device {device}"))?;
    on(file, way, depth, amount).with_context(|| format!("device {device}"))
}

/// Opens what is a disk or stands for one; a pipe would let us wait for ever.
fn open(device: &str, way: Way, how: OFlags) -> Result<File> {
    let kind = FileType::from_raw_mode(rustix::fs::stat(device)?.st_mode);
    let is_disk = matches!(kind, FileType::BlockDevice | FileType::RegularFile);
    ensure!(is_disk, "neither a block device nor a file");
    let access = if way == Way::Read { OFlags::RDONLY } else { OFlags::RDWR };
    Ok(File::from(rustix::fs::open(device, access | OFlags::CLOEXEC | how, Mode::empty())?))
}

/// As [`load`], on what is open.
fn on(mut file: File, way: Way, depth: u16, amount: Amount) -> Result<Answer> {
    if depth == 1 {
        let mut one = One::new(file, way, SEED)?;
        return measure(amount, |count, latency| one.run(count, latency));
    }
    let mut places = Places::of(&mut file, SEED)?;
    let memory = (0..depth).map(|_| Block::filled(&mut places)).collect();
    let flight = Flight::new(file, way, memory).context("io_uring")?;
    let mut many = Many { since_ns: vec![0; usize::from(depth)], flight, places };
    measure(amount, |count, latency| many.run(count, latency))
}

/// Where requests go: splitmix64.
struct Places {
    state: u64,
    blocks: u64,
}

impl Places {
    fn of(file: &mut File, seed: u64) -> Result<Places> {
        let blocks = file.seek(SeekFrom::End(0))? / BLOCK_SIZE as u64;
        ensure!(blocks > 0, "smaller than a block of {BLOCK_SIZE} bytes");
        Ok(Places { state: seed, blocks })
    }

    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Byte offset of some block.
    fn next(&mut self) -> u64 {
        let block = (u128::from(self.draw()) * u128::from(self.blocks)) >> 64;
        block as u64 * BLOCK_SIZE as u64
    }
}

/// One request after the other.
struct One {
    file: File,
    way: Way,
    block: Box<Block>,
    places: Places,
}

impl One {
    fn new(mut file: File, way: Way, seed: u64) -> Result<One> {
        let mut places = Places::of(&mut file, seed)?;
        let block = Box::new(Block::filled(&mut places));
        Ok(One { file, way, block, places })
    }

    fn run(&mut self, operations: u64, latency: &mut Histogram) -> Result<u64> {
        let mut since = now_ns();
        for _ in 0..operations {
            self.once()?;
            // One look at the clock ends this one and starts the next.
            let now = now_ns();
            latency.record(now - since);
            since = now;
        }
        Ok(operations)
    }

    #[inline]
    fn once(&mut self) -> Result<()> {
        let offset = self.places.next();
        let moved = loop {
            let moved = match self.way {
                Way::Read => self.file.read_at(&mut self.block.0, offset),
                Way::Write => self.file.write_at(&self.block.0, offset),
            };
            if !matches!(&moved, Err(error) if error.kind() == io::ErrorKind::Interrupted) {
                break moved;
            }
        };
        whole(self.way, moved)
    }
}

/// Several at a time.
struct Many {
    flight: Flight,
    /// When the request of each slot began.
    since_ns: Vec<u64>,
    places: Places,
}

impl Many {
    fn run(&mut self, operations: u64, latency: &mut Histogram) -> Result<u64> {
        let first = operations.min(self.since_ns.len() as u64);
        let mut now = now_ns();
        for slot in 0..first as usize {
            self.start(slot, now)?;
        }
        let mut started = first;
        let mut done = 0;
        while done < operations {
            self.flight.wait().context("io_uring")?;
            now = now_ns();
            while let Some((slot, moved)) = self.flight.finished() {
                whole(self.flight.way(), moved)?;
                latency.record(now - self.since_ns[slot]);
                done += 1;
                if started < operations {
                    self.start(slot, now)?;
                    started += 1;
                }
            }
        }
        Ok(done)
    }

    fn start(&mut self, slot: usize, now: u64) -> Result<()> {
        self.since_ns[slot] = now;
        let offset = self.places.next();
        self.flight.start(slot, offset).context("io_uring")
    }
}

/// A request moves a block or has failed.
fn whole(way: Way, moved: io::Result<usize>) -> Result<()> {
    let verb = if way == Way::Read { "reading" } else { "writing" };
    let bytes = moved.context(verb)?;
    ensure!(bytes == BLOCK_SIZE, "{verb}: {bytes} bytes of {BLOCK_SIZE}");
    Ok(())
}

#[cfg(test)]
mod tests;
