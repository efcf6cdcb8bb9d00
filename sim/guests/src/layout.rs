//! Where everything is in a simulated guest's memory: each part of a ring, and what the guest writes and
//! what the device writes, on pages of their own, so that a page tells who changed it.

use guest_memory::{Area, Health, Mapping, Seal};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::OwnedFd;
use vhost_user::MemoryRegion;
use virtqueue::driver::{Arena, Driver, DriverSpec, IndirectTables, RingSpec};
use virtqueue::layout;

pub(crate) const PAGE: u64 = 4096;
/// Guest memory, bytes.
pub(crate) const MEMORY: u64 = 768 << 10;
/// Descriptors of an indirect table.
pub(crate) const TABLE: u16 = 10;
/// Requests that one queue has in flight at most.
pub(crate) const SLOTS: usize = 8;
/// Bytes for the data of one request, with what must not be touched around it.
pub(crate) const ROOM: usize = 8192;
/// What is there otherwise.
pub(crate) const CANARY: u8 = 0xc5;
/// Bytes for the header, or the status, of one request.
pub(crate) const LINE: usize = 64;
/// Front-end addresses of the two regions, far from guest addresses and from each other.
const USER_AT: [u64; 2] = [0x7f00_0000_0000, 0x7e00_0000_0000];
/// Where the second region begins.
const SECOND_AT: u64 = MEMORY / 2;

/// The memory of a guest and its file.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) file: OwnedFd,
    /// The guest's own view.
    pub(crate) whole: Area,
}

impl Memory {
    pub(crate) fn new() -> Result<Memory, String> {
        let file = sealed("guest", MEMORY)?;
        let map = Mapping::shared(&file, 0, MEMORY, Seal::Required, &Health::default());
        Ok(Memory { whole: Area::whole(map.map_err(|e| e.to_string())?), file })
    }

    /// As the front-end tells of it: two regions, one behind the other in guest addresses only.
    pub(crate) fn regions() -> [MemoryRegion; 2] {
        let region =
            |gpa: u64, user: u64| MemoryRegion { gpa, size: MEMORY / 2, user, offset: gpa };
        [region(0, USER_AT[0]), region(SECOND_AT, USER_AT[1])]
    }

    /// The front-end's address of a guest address.
    pub(crate) fn user(gpa: u64) -> u64 {
        match gpa < SECOND_AT {
            true => USER_AT[0] + gpa,
            false => USER_AT[1] + gpa - SECOND_AT,
        }
    }

    pub(crate) fn page(&self, page: u64) -> Vec<u8> {
        let mut bytes = vec![0; PAGE as usize];
        let _ = self.whole.read((page * PAGE) as usize, &mut bytes);
        bytes
    }
}

/// A memory file that cannot be cut off.
pub(crate) fn sealed(name: &str, len: u64) -> Result<OwnedFd, String> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create(name, flags).map_err(|e| e.to_string())?;
    ftruncate(&file, len).map_err(|e| e.to_string())?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).map_err(|e| e.to_string())?;
    Ok(file)
}

/// One part of memory: bytes, and their guest address.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) area: Area,
    pub(crate) gpa: u64,
}

/// What belongs to one queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueLayout {
    pub(crate) ring: RingSpec,
    pub(crate) descriptors: Part,
    pub(crate) driver: Part,
    pub(crate) device: Part,
    pub(crate) tables: Part,
    /// Headers, and ranges of discards.
    pub(crate) lines: Part,
    pub(crate) statuses: Part,
    /// Data that the device reads.
    pub(crate) out: Part,
    /// Data that the device writes.
    pub(crate) into: Part,
}

impl QueueLayout {
    pub(crate) fn take(arena: &mut Arena, ring: RingSpec) -> Option<QueueLayout> {
        let RingSpec { size, format, event_index, .. } = ring;
        let mut part = |len: u64| {
            let (area, gpa) = arena.take(len as usize, PAGE as usize)?;
            Some(Part { area, gpa })
        };
        Some(QueueLayout {
            ring,
            descriptors: part(layout::descriptors_len(format, size))?,
            driver: part(layout::driver_len(format, size, event_index))?,
            device: part(layout::device_len(format, size, event_index))?,
            tables: part(u64::from(size) * u64::from(TABLE) * 16)?,
            lines: part((SLOTS * LINE) as u64)?,
            statuses: part((SLOTS * LINE) as u64)?,
            out: part((SLOTS * ROOM) as u64)?,
            into: part((SLOTS * ROOM) as u64)?,
        })
    }

    /// An empty ring.
    pub(crate) fn driver(&self) -> Result<Driver, String> {
        let tables =
            IndirectTables { area: self.tables.area.clone(), gpa: self.tables.gpa, entries: TABLE };
        let RingSpec { size, format, event_index, indirect_entries } = self.ring;
        let spec = DriverSpec {
            size,
            format,
            event_index,
            indirect: (indirect_entries > 0).then_some(tables),
            descriptors: self.descriptors.area.clone(),
            driver: self.driver.area.clone(),
            device: self.device.area.clone(),
        };
        Driver::new(spec).map_err(|e| e.to_string())
    }
}
