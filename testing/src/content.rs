//! Fills a disk through its front-end and looks whether it gives back what was written.
//!
//! Without it a sparse disk answers reads from one page of zeroes, and a server that moves no data
//! at all looks fast. Block `n` of 4 KiB is a sequence that only `n` has.

use anyhow::{Result, ensure};

use crate::clock::now_ns;
use crate::frontend::{FrontQueue, Frontend};
use crate::load::Random;
use crate::slots::{Kind, SECTOR_SIZE, STATUS_OK, Slots};

/// Bytes of a block that has content of its own.
pub const BLOCK_SIZE: usize = 4096;

const FILL_BYTES: u32 = 256 << 10;
const FILL_DEPTH: u16 = 4;
const PATIENCE_NS: u64 = 90_000_000_000;

/// Guest memory that [`fill`] and [`verify`] take each time, bytes.
pub const MEMORY_BYTES: u64 = FILL_BYTES as u64 * FILL_DEPTH as u64 + (64 << 10);

/// Writes the whole disk through queue 0.
///
/// # Errors
/// A request failed, or the device stopped answering.
pub fn fill(frontend: &mut Frontend, capacity_sectors: u64) -> Result<()> {
    let slots = Slots::new(frontend.memory(), FILL_DEPTH, FILL_BYTES)?;
    let queue = frontend.queue(0);
    let pieces = capacity_sectors * SECTOR_SIZE / u64::from(FILL_BYTES);
    let mut bytes = vec![0; FILL_BYTES as usize];
    let mut next = 0;
    let mut idle: Vec<u16> = (0..FILL_DEPTH).collect();
    while next < pieces || idle.len() < usize::from(FILL_DEPTH) {
        while next < pieces
            && let Some(slot) = idle.pop()
        {
            let first = next * u64::from(FILL_BYTES) / BLOCK_SIZE as u64;
            for (block, part) in (first..).zip(bytes.chunks_exact_mut(BLOCK_SIZE)) {
                block_content(block, part);
            }
            slots.write_data(slot, &bytes);
            add(queue, &slots, slot, Kind::Write, next * u64::from(FILL_BYTES) / SECTOR_SIZE)?;
            next += 1;
        }
        idle.push(wait(queue, &slots)?);
    }
    Ok(())
}

/// Reads `count` random blocks through queue 0 and compares every byte; writes some of them anew
/// and reads those again.
///
/// # Errors
/// A difference, a failed request, or a device that stopped answering.
pub fn verify(frontend: &mut Frontend, capacity_sectors: u64, count: u64) -> Result<()> {
    let slots = Slots::new(frontend.memory(), 1, BLOCK_SIZE as u32)?;
    let queue = frontend.queue(0);
    let sectors = BLOCK_SIZE as u64 / SECTOR_SIZE;
    let mut random = Random(0x5eed);
    let mut expected = vec![0; BLOCK_SIZE];
    let mut found = vec![0; BLOCK_SIZE];
    for turn in 0..count {
        let block = random.below(capacity_sectors / sectors);
        block_content(block, &mut expected);
        if turn % 4 == 3 {
            slots.write_data(0, &expected);
            add(queue, &slots, 0, Kind::Write, block * sectors)?;
            wait(queue, &slots)?;
        }
        slots.write_data(0, &[0xa5; BLOCK_SIZE]);
        add(queue, &slots, 0, Kind::Read, block * sectors)?;
        wait(queue, &slots)?;
        slots.read_data(0, &mut found);
        ensure!(found == expected, "block {block} is not what was written there");
    }
    Ok(())
}

/// What block `block` holds.
pub fn block_content(block: u64, into: &mut [u8]) {
    let mut word = block.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for place in into.as_chunks_mut().0 {
        *place = word.to_le_bytes();
        word = word.rotate_left(5).wrapping_add(block);
    }
}

/// What `seed` alone has from byte `at` on, a multiple of 8, in whole words.
pub fn large_content(seed: u64, at: usize, into: &mut [u8]) {
    for (number, place) in into.as_chunks_mut().0.iter_mut().enumerate() {
        *place = large_word(seed, at + number * 8).to_le_bytes();
    }
}

/// The word of [`large_content`] at that place.
pub fn large_word(seed: u64, at: usize) -> u64 {
    (seed << 40 ^ at as u64).wrapping_mul(0x9e37_79b9)
}

/// Sends one request.
fn add(queue: &mut FrontQueue, slots: &Slots, slot: u16, kind: Kind, sector: u64) -> Result<()> {
    slots.write_header(slot, kind, sector);
    let (buffers, count) = slots.buffers(slot, kind);
    queue.driver.add(&buffers[..count], slot.into())?;
    if queue.driver.publish() {
        queue.kick()?;
    }
    Ok(())
}

/// The slot of the next completed request, which must have gone well.
fn wait(queue: &mut FrontQueue, slots: &Slots) -> Result<u16> {
    let start = now_ns();
    loop {
        if let Some(used) = queue.driver.take_used() {
            let slot = used.token as u16;
            let status = slots.status(slot);
            ensure!(status == STATUS_OK, "a request ended with status {status}");
            return Ok(slot);
        }
        if let Some(fault) = queue.driver.fault() {
            anyhow::bail!("the device broke the rules of the ring: {fault}");
        }
        ensure!(now_ns() - start < PATIENCE_NS, "the device does not answer");
        std::hint::spin_loop();
    }
}
