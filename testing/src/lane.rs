//! One of many busy queues: a few requests that are offered together and taken together.
//!
//! For `bench schedule`, and for `bench pass`, where it has no daemon on its other side. Nothing is
//! measured here; a queue has some hundred bytes on the driver's side, so that thousands fit.

use crate::load::Random;
use crate::slots::{Kind, SECTOR_SIZE, STATUS_OK, Slots};
use anyhow::{Result, ensure};
use virtqueue::Format;
use virtqueue::driver::{Driver, Prepared, RingSpec};

/// Requests of a queue.
pub const DEPTH: u16 = 4;
/// Bytes of a request.
pub const BLOCK_BYTES: u32 = 512;
/// Room for them, three descriptors each.
pub const RING: RingSpec =
    RingSpec { size: 16, format: Format::Split, event_index: true, indirect_entries: 0 };
/// Guest memory of one queue: a ring, and the lines and data of its requests, each from a new page.
pub const LANE_BYTES: u64 = 16 << 10;

/// The requests of one queue.
pub struct Lane {
    slots: Slots,
    prepared: Vec<Prepared>,
}

impl Lane {
    /// Prepares one request in each of `slots`.
    ///
    /// # Errors
    /// The ring is too small for them.
    pub fn new(driver: &mut Driver, slots: Slots) -> Result<Lane> {
        driver.disarm_calls();
        let mut prepared = Vec::new();
        for slot in 0..slots.count() {
            let (buffers, count) = slots.buffers(slot, Kind::Read);
            prepared.push(driver.prepare(&buffers[..count])?);
            slots.write_header(slot, Kind::Read, 0);
        }
        Ok(Lane { slots, prepared })
    }

    /// Sends every request, to one of `blocks` places each, and shows them at once; whether to kick.
    ///
    /// # Errors
    /// One of them is still in flight.
    pub fn offer(&self, driver: &mut Driver, random: &mut Random, blocks: u64) -> Result<bool> {
        for (slot, prepared) in (0..).zip(&self.prepared) {
            let sector = random.below(blocks) * u64::from(BLOCK_BYTES) / SECTOR_SIZE;
            self.slots.set_sector(slot, sector);
            driver.add_prepared(*prepared, slot.into())?;
        }
        Ok(driver.publish())
    }

    /// Takes what is answered; gives how many.
    ///
    /// # Errors
    /// A failed request, or a device that broke the ring's rules.
    pub fn take(&self, driver: &mut Driver) -> Result<u64> {
        let mut taken = 0;
        while let Some(used) = driver.take_used() {
            let status = self.slots.status(used.token as u16);
            ensure!(status == STATUS_OK, "a request ended with status {status}");
            taken += 1;
        }
        ensure!(driver.fault().is_none(), "the device broke the rules of the ring");
        Ok(taken)
    }
}
