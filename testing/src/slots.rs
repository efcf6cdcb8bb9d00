//! virtio-blk requests at fixed places of guest memory (VIRTIO 1.2, 5.2.6).
//!
//! As Linux's driver does, the header and the status byte of a request share one cache line; the
//! data follows elsewhere, page-aligned. A slot is one request at a time.

use anyhow::{Context, Result};
use guest_memory::Area;
use virtqueue::driver::{Arena, Buffer};

/// Bytes of a sector, the unit of [`Slots::write_header`].
pub const SECTOR_SIZE: u64 = 512;
/// The status of a request that was done.
pub const STATUS_OK: u8 = 0;
/// What a status byte says before the device has written it.
pub const STATUS_UNWRITTEN: u8 = 0xff;

const LINE_SIZE: usize = 64;
const HEADER_SIZE: u32 = 16;
const STATUS_AT: usize = 16;

/// What is asked of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// VIRTIO_BLK_T_IN
    Read = 0,
    /// VIRTIO_BLK_T_OUT
    Write = 1,
    /// VIRTIO_BLK_T_FLUSH
    Flush = 4,
    /// VIRTIO_BLK_T_GET_ID
    GetId = 8,
}

/// A number of requests with a data buffer each.
#[derive(Debug)]
pub struct Slots {
    lines: Area,
    lines_gpa: u64,
    data: Area,
    data_gpa: u64,
    data_bytes: u32,
    count: u16,
}

impl Slots {
    /// `count` slots with buffers of `data_bytes` each, taken from `arena`.
    ///
    /// # Errors
    /// The arena has not that much left.
    pub fn new(arena: &mut Arena, count: u16, data_bytes: u32) -> Result<Slots> {
        let lines_len = usize::from(count) * LINE_SIZE;
        let data_len = usize::from(count) * data_bytes as usize;
        let full = "guest memory is too small for these requests";
        let (lines, lines_gpa) = arena.take(lines_len, LINE_SIZE).context(full)?;
        let (data, data_gpa) = arena.take(data_len, 4096).context(full)?;
        // Touched once, so that no page fault falls into a measurement.
        lines.zero(0, lines.len());
        data.zero(0, data.len());
        Ok(Slots { lines, lines_gpa, data, data_gpa, data_bytes, count })
    }

    /// How many.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Bytes of each slot's data buffer.
    pub fn data_bytes(&self) -> u32 {
        self.data_bytes
    }

    /// The pieces of a request of that kind.
    pub fn buffers(&self, slot: u16, kind: Kind) -> ([Buffer; 3], usize) {
        let line = self.lines_gpa + u64::from(slot) * LINE_SIZE as u64;
        let header = Buffer { gpa: line, len: HEADER_SIZE, device_writes: false };
        let status = Buffer { gpa: line + STATUS_AT as u64, len: 1, device_writes: true };
        let data = Buffer {
            gpa: self.data_gpa + u64::from(slot) * u64::from(self.data_bytes),
            len: if kind == Kind::GetId { 20 } else { self.data_bytes },
            device_writes: kind != Kind::Write,
        };
        match kind {
            Kind::Flush => ([header, status, status], 2),
            _ => ([header, data, status], 3),
        }
    }

    /// Writes a request's whole header and spoils its status.
    pub fn write_header(&self, slot: u16, kind: Kind, sector: u64) {
        let at = usize::from(slot) * LINE_SIZE;
        self.lines.store_u64(at, kind as u64);
        self.set_sector(slot, sector);
    }

    /// Gives a request of the same kind another place on the disk and spoils its status.
    #[inline]
    pub fn set_sector(&self, slot: u16, sector: u64) {
        let at = usize::from(slot) * LINE_SIZE;
        self.lines.store_u64(at + 8, sector);
        self.lines.store_u8(at + STATUS_AT, STATUS_UNWRITTEN);
    }

    /// What the device wrote there.
    #[inline]
    pub fn status(&self, slot: u16) -> u8 {
        self.lines.load_u8(usize::from(slot) * LINE_SIZE + STATUS_AT)
    }

    /// Copies bytes into the slot's data buffer, from its start; no more than fit.
    pub fn write_data(&self, slot: u16, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.data_bytes as usize)];
        self.data.write(usize::from(slot) * self.data_bytes as usize, bytes);
    }

    /// Copies bytes out of the slot's data buffer, from its start; no more than it has.
    pub fn read_data(&self, slot: u16, into: &mut [u8]) {
        let len = into.len().min(self.data_bytes as usize);
        self.data.read(usize::from(slot) * self.data_bytes as usize, &mut into[..len]);
    }
}
