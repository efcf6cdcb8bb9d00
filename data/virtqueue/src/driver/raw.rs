//! The ring's memory without the rules: what a hostile or broken guest writes.
//!
//! Every place is given in the format's own terms; a place outside the ring is not written.

use guest_memory::Area;

use super::DriverSpec;
use crate::layout::Format;

/// A descriptor, field by field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawDescriptor {
    /// Guest physical address.
    pub gpa: u64,
    /// Bytes.
    pub len: u32,
    /// All 16 flag bits.
    pub flags: u16,
    /// Split: the next descriptor. Packed: the buffer id.
    pub next_or_id: u16,
}

/// Direct access to a ring's three areas.
#[derive(Clone, Debug)]
pub struct Raw {
    format: Format,
    size: u16,
    descriptors: Area,
    driver: Area,
    device: Area,
}

impl Raw {
    pub(super) fn new(spec: &DriverSpec) -> Raw {
        Raw {
            format: spec.format,
            size: spec.size,
            descriptors: spec.descriptors.clone(),
            driver: spec.driver.clone(),
            device: spec.device.clone(),
        }
    }

    /// Writes entry `index` of the descriptor table or packed ring, flags last.
    pub fn write_descriptor(&self, index: u16, descriptor: RawDescriptor) {
        self.write_descriptor_to(&self.descriptors, index, descriptor);
    }

    /// Writes entry `index` of an indirect table, in this ring's format.
    pub fn write_descriptor_to(&self, table: &Area, index: u16, descriptor: RawDescriptor) {
        let at = usize::from(index) * 16;
        if at + 16 > table.len() {
            return;
        }
        let (flags_at, other_at) = self.fields();
        table.store_u64(at, descriptor.gpa);
        table.store_u32(at + 8, descriptor.len);
        table.store_u16(at + other_at, descriptor.next_or_id);
        table.store_release_u16(at + flags_at, descriptor.flags);
    }

    /// Entry `index` of the descriptor table or packed ring; zeroes outside.
    pub fn read_descriptor(&self, index: u16) -> RawDescriptor {
        let at = usize::from(index) * 16;
        if index >= self.size {
            return RawDescriptor::default();
        }
        let (flags_at, other_at) = self.fields();
        RawDescriptor {
            flags: self.descriptors.load_acquire_u16(at + flags_at),
            gpa: self.descriptors.load_u64(at),
            len: self.descriptors.load_u32(at + 8),
            next_or_id: self.descriptors.load_u16(at + other_at),
        }
    }

    /// Split: writes `head` at `place` of the available ring (modulo its size).
    pub fn write_avail(&self, place: u16, head: u16) {
        if self.format == Format::Split {
            self.driver.store_u16(4 + 2 * usize::from(place % self.size), head);
        }
    }

    /// Split: the available index as the device sees it.
    pub fn avail_index(&self) -> u16 {
        if self.format == Format::Split { self.driver.load_u16(2) } else { 0 }
    }

    /// Split: sets the available index; everything before it is visible.
    pub fn set_avail_index(&self, index: u16) {
        if self.format == Format::Split {
            self.driver.store_release_u16(2, index);
        }
    }

    /// Split: the used index.
    pub fn used_index(&self) -> u16 {
        if self.format == Format::Split { self.device.load_acquire_u16(2) } else { 0 }
    }

    /// Split: sets the used index, which is the device's to write.
    pub fn set_used_index(&self, index: u16) {
        if self.format == Format::Split {
            self.device.store_release_u16(2, index);
        }
    }

    /// Split: the id and length at `place` of the used ring (modulo its size).
    pub fn read_used(&self, place: u16) -> (u32, u32) {
        if self.format != Format::Split {
            return (0, 0);
        }
        let at = 4 + 8 * usize::from(place % self.size);
        (self.device.load_u32(at), self.device.load_u32(at + 4))
    }

    /// The driver's part: available ring, or driver event structure.
    pub fn driver_area(&self) -> &Area {
        &self.driver
    }

    /// The device's part: used ring, or device event structure.
    pub fn device_area(&self) -> &Area {
        &self.device
    }

    /// The descriptor table or packed ring.
    pub fn descriptor_area(&self) -> &Area {
        &self.descriptors
    }

    /// Offsets of `flags` and of `next` or `id` in a descriptor.
    fn fields(&self) -> (usize, usize) {
        match self.format {
            Format::Split => (12, 14),
            Format::Packed => (14, 12),
        }
    }
}
