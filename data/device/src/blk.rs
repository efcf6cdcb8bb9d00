//! virtio-blk (VIRTIO 1.2, 5.2): one queue's view of the device.
//!
//! [`Blk::parse`] turns a chain into [`Parsed`]; [`Blk::answer`] writes the status byte. The
//! header is read once, into a copy; every number in it is checked before a back-end sees it.
//! Not here: the config space (`config_space`).

mod config_space;
mod parse;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use config_space::{CONFIG_SPACE_SIZE, read_config, write_config};
pub use parse::{Parsed, Reply, Work};

use crate::features as bit;

/// Unit of every sector number, bytes, whatever the block size (5.2.4).
pub const SECTOR_SIZE: u64 = 512;
/// Segments of one request that we offer to take. With header and status it fits a ring of 128.
pub const SEG_MAX: u32 = 126;
/// Bytes of one segment that we offer to take.
pub const SIZE_MAX: u32 = 128 << 10;
/// Bytes of the serial number (5.2.6, `VIRTIO_BLK_ID_BYTES`).
pub const SERIAL_SIZE: usize = 20;
/// Queues of one device.
pub const QUEUES_MAX: u16 = 64;

/// What the back-end can do in one command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Sectors of one discard; 0 when it cannot.
    pub discard_sectors_max: u32,
    /// Sectors of one write-zeroes; 0 when it cannot.
    pub zeroes_sectors_max: u32,
}

/// How requests are best cut, besides the physical block size. Of what is 0, nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Logical blocks from the start of the disk to the first physical block that is whole.
    pub alignment_offset: u8,
    /// The smallest request that costs no reading of neighbours, in logical blocks.
    pub io_min: u16,
    /// The best request, in logical blocks.
    pub io_best: u32,
    /// What a discard frees is a multiple of so many sectors of 512 bytes, aligned to it.
    pub discard_sectors: u32,
}

/// What does not change while the device exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Logical block size, bytes: a power of two from 512.
    pub block_size: u32,
    /// Physical block size is the logical one times two to this power.
    pub physical_block_exp: u8,
    /// How requests are best cut.
    pub topology: Topology,
    /// No write reaches the disk.
    pub readonly: bool,
    /// Queues offered, 1 to [`QUEUES_MAX`].
    pub queues: u16,
    /// Serial number, padded with zeroes.
    pub serial: [u8; SERIAL_SIZE],
    /// What the back-end can do.
    pub limits: Limits,
    /// The back-end answers in the order it is asked.
    pub in_order: bool,
}

/// What changes while the device runs. Shared by its queues and control; plain loads and stores.
#[derive(Debug)]
pub struct Live {
    capacity_sectors: AtomicU64,
    /// What the config space shows.
    writeback: AtomicBool,
    /// What writes go by.
    is_cached: AtomicBool,
}

impl Live {
    /// A device of `capacity_bytes`, with a write-back cache until the driver says otherwise.
    pub fn new(capacity_bytes: u64) -> Arc<Live> {
        let (writeback, is_cached) = (AtomicBool::new(true), AtomicBool::new(true));
        let live = Live { capacity_sectors: AtomicU64::new(0), writeback, is_cached };
        live.set_capacity(capacity_bytes);
        Arc::new(live)
    }

    /// Sectors of 512 bytes.
    pub fn capacity_sectors(&self) -> u64 {
        self.capacity_sectors.load(Ordering::Relaxed)
    }

    /// A new size, in bytes; part of a sector does not count.
    pub fn set_capacity(&self, bytes: u64) {
        self.capacity_sectors.store(bytes / SECTOR_SIZE, Ordering::Relaxed);
    }

    /// Whether a completed write may be in a volatile cache (the config space's `writeback`).
    pub fn writeback(&self) -> bool {
        self.writeback.load(Ordering::Relaxed)
    }

    /// The driver's choice, which holds for its next write.
    pub fn set_writeback(&self, writeback: bool) {
        self.writeback.store(writeback, Ordering::Relaxed);
        self.is_cached.store(writeback, Ordering::Relaxed);
    }

    /// The next driver starts anew, with a cache. What is still taken from the rings of the one before, until
    /// [`Self::begin`], goes by that one's choice: it may be told of that by a later front-end.
    pub fn reset(&self) {
        self.writeback.store(true, Ordering::Relaxed);
    }

    /// No ring of an earlier driver is served any more: from now on writes go by what the config space shows.
    pub fn begin(&self) {
        self.is_cached.store(self.writeback(), Ordering::Relaxed);
    }
}

/// The virtio features of a device of this shape; without vhost-user's own bits.
///
/// Whatever stands here reaches the driver through front-ends that do not know it, so a feature that
/// needs a message must have one: `RING_RESET` has none, and QEMU passes it on all the same (0023).
pub fn offered(shape: &Shape) -> u64 {
    let mut features = bit::BLK_SIZE_MAX
        | bit::BLK_SEG_MAX
        | bit::BLK_BLK_SIZE
        | bit::BLK_TOPOLOGY
        | bit::BLK_FLUSH
        | bit::BLK_CONFIG_WCE
        | bit::BLK_MQ
        | bit::ANY_LAYOUT
        | bit::INDIRECT_DESC
        | bit::EVENT_IDX
        | bit::VERSION_1
        | bit::RING_PACKED;
    let mut also = |condition, feature| features |= if condition { feature } else { 0 };
    also(shape.readonly, bit::BLK_RO);
    also(shape.limits.discard_sectors_max > 0 && !shape.readonly, bit::BLK_DISCARD);
    also(shape.limits.zeroes_sectors_max > 0 && !shape.readonly, bit::BLK_WRITE_ZEROES);
    // Where completions come out of order anyway, keeping them back would only cost time.
    also(shape.in_order, bit::IN_ORDER);
    features
}

/// The personality of one queue, with what its driver negotiated.
#[derive(Debug)]
pub struct Blk {
    live: Arc<Live>,
    negotiated: u64,
    readonly: bool,
    serial: [u8; SERIAL_SIZE],
    limits: Limits,
}

impl Blk {
    /// The queue's personality for a driver that accepted `negotiated`.
    pub fn new(shape: &Shape, live: Arc<Live>, negotiated: u64) -> Blk {
        Blk {
            live,
            negotiated,
            readonly: shape.readonly,
            serial: shape.serial,
            limits: shape.limits,
        }
    }

    /// Whether a write must be stable before it is reported done (5.2.6.2): without FLUSH, or with
    /// the cache switched off. Asked for each write, after its chain was seen: a driver that
    /// switches the cache off and then writes is obeyed.
    #[inline]
    fn syncs_writes(&self) -> bool {
        let is_cached = self.live.is_cached.load(Ordering::Relaxed);
        let writeback = !self.has(bit::BLK_CONFIG_WCE) || is_cached;
        !(writeback && self.has(bit::BLK_FLUSH))
    }

    #[inline]
    fn has(&self, feature: u64) -> bool {
        self.negotiated & feature != 0
    }
}

#[cfg(test)]
mod tests;
