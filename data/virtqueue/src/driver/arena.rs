//! Lays out rings in a piece of guest memory, one after the other.
//!
//! For callers that have memory and want a queue; a test of odd placements makes its own areas.

use guest_memory::{Area, GuestMap};

use super::{Driver, DriverError, DriverSpec, IndirectTables};
use crate::QueueSpec;
use crate::layout::{self, Format};

/// A piece of guest memory that is given out front to back and never taken back.
#[derive(Clone, Debug)]
pub struct Arena {
    area: Area,
    gpa: u64,
    next: usize,
}

/// What a ring should be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSpec {
    /// Entries.
    pub size: u16,
    /// Which of the two formats.
    pub format: Format,
    /// Whether VIRTIO_F_EVENT_IDX was negotiated.
    pub event_index: bool,
    /// Descriptors of each indirect table; 0 for requests laid out in the ring itself.
    pub indirect_entries: u16,
}

/// Where a ring was put, guest addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Split: descriptor table. Packed: ring.
    pub descriptors: u64,
    /// Split: available ring. Packed: driver event structure.
    pub driver: u64,
    /// Split: used ring. Packed: device event structure.
    pub device: u64,
}

impl RingSpec {
    /// What the device's side of this ring is made of, without an in-flight record. `None` when
    /// `places` are not in a `map` whose front-end addresses are its guest addresses, as those of
    /// [`GuestMap::anonymous`] are.
    pub fn queue_spec(self, map: &GuestMap, places: Places, base: u32) -> Option<QueueSpec> {
        let RingSpec { size, format, event_index, indirect_entries } = self;
        let Places { descriptors, driver, device } = places;
        Some(QueueSpec {
            size,
            format,
            event_index,
            indirect: indirect_entries > 0,
            descriptors: map.area_at_user(descriptors, layout::descriptors_len(format, size))?,
            driver: map.area_at_user(driver, layout::driver_len(format, size, event_index))?,
            device: map.area_at_user(device, layout::device_len(format, size, event_index))?,
            base,
            inflight: None,
        })
    }
}

impl Arena {
    /// All of `area`, whose first byte the guest sees at `gpa`.
    pub fn new(area: Area, gpa: u64) -> Arena {
        Arena { area, gpa, next: 0 }
    }

    /// The next `len` bytes at a guest address that is a multiple of `align` (a power of two), and
    /// that address; `None` when they are not left.
    pub fn take(&mut self, len: usize, align: usize) -> Option<(Area, u64)> {
        let start =
            self.gpa.checked_add(self.next as u64)?.checked_next_multiple_of(align as u64)?;
        let at = usize::try_from(start - self.gpa).ok()?;
        let area = self.area.window(at, len)?;
        self.next = at + len;
        Some((area, start))
    }

    /// An empty ring laid out in this arena: each part on cache lines of its own.
    ///
    /// # Errors
    /// [`DriverError`]: an impossible size, or no room left.
    pub fn driver(&mut self, ring: RingSpec) -> Result<(Driver, Places), DriverError> {
        let RingSpec { size, format, event_index, indirect_entries } = ring;
        if !layout::is_size(format, size) {
            return Err(DriverError::Size { size, format });
        }
        let mut part = |part, needed_bytes: u64| {
            let align = 64;
            let taken = self.take(needed_bytes as usize, align);
            taken.ok_or(DriverError::Place { part, needed_bytes, align })
        };
        let (descriptors, descriptors_gpa) =
            part("descriptor", layout::descriptors_len(format, size))?;
        let (driver, driver_gpa) = part("driver", layout::driver_len(format, size, event_index))?;
        let (device, device_gpa) = part("device", layout::device_len(format, size, event_index))?;
        let indirect = match indirect_entries {
            0 => None,
            entries => {
                let (area, gpa) = part("indirect", u64::from(size) * u64::from(entries) * 16)?;
                Some(IndirectTables { area, gpa, entries })
            }
        };
        let spec = DriverSpec { size, format, event_index, indirect, descriptors, driver, device };
        let places =
            Places { descriptors: descriptors_gpa, driver: driver_gpa, device: device_gpa };
        Ok((Driver::new(spec)?, places))
    }
}

/// The base of a ring that was never used, as in `SET_VRING_BASE`: of a packed one, both lap
/// counters are 1 (2.8.1).
pub fn first_base(format: Format) -> u32 {
    match format {
        Format::Split => 0,
        Format::Packed => 1 << 15 | 1 << 31,
    }
}

/// Alignments of the three parts that the specification asks for (2.7 and 2.8), bytes.
pub(super) fn aligns(format: Format) -> [usize; 3] {
    match format {
        Format::Split => [16, 2, 4],
        Format::Packed => [16, 4, 4],
    }
}
