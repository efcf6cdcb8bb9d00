//! The guest's side of a virtqueue, split and packed: for unit tests, fuzzing, benches and
//! simulation. Never part of the daemon.
//!
//! Written from the specification (VIRTIO 1.2, 2.7 and 2.8) and sharing no arithmetic with the
//! device's side, so that a mistake in one is not mirrored in the other. It places no buffers: the
//! caller owns the memory and says where a request's pieces are. [`Arena`] lays out rings.
//!
//! # The order of calls
//!
//! [`Driver::add`] for each request, then [`Driver::publish`] once for all of them (true: kick the
//! device), then [`Driver::take_used`] until `None`. A caller that keeps the same buffers writes
//! their descriptors once with [`Driver::prepare`] and adds them with [`Driver::add_prepared`].
//! [`Driver::arm_calls`] before waiting for the call descriptor. Nothing is allocated after
//! [`Driver::new`] and `prepare`.
//!
//! A device that completes something it does not hold latches a [`Fault`]: from then on nothing is
//! used. [`Raw`] writes what no honest driver would.

mod arena;
mod packed;
mod raw;
mod split;

pub use arena::{Arena, Places, RingSpec, first_base};
pub use raw::{Raw, RawDescriptor};

use guest_memory::Area;

use crate::layout::{self, Format};
use packed::Packed;
use split::Split;

/// One piece of a request, in guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Guest physical address.
    pub gpa: u64,
    /// Bytes.
    pub len: u32,
    /// Whether the device writes it. Pieces that the device reads come first (2.7.4.2).
    pub device_writes: bool,
}

/// Where indirect tables are put: `entries` descriptors for every ring entry.
#[derive(Clone, Debug)]
pub struct IndirectTables {
    /// At least `ring size * entries * 16` bytes.
    pub area: Area,
    /// Guest address of its first byte.
    pub gpa: u64,
    /// Descriptors of one table; the most pieces a request can have.
    pub entries: u16,
}

/// What a driver is made from. The areas are zeroed by it.
#[derive(Clone, Debug)]
pub struct DriverSpec {
    /// Entries; a power of two for a split ring.
    pub size: u16,
    /// Which of the two formats.
    pub format: Format,
    /// Whether VIRTIO_F_EVENT_IDX was negotiated.
    pub event_index: bool,
    /// With tables, every request takes one ring entry (VIRTIO_F_INDIRECT_DESC).
    pub indirect: Option<IndirectTables>,
    /// Split: descriptor table. Packed: ring.
    pub descriptors: Area,
    /// Split: available ring. Packed: driver event structure.
    pub driver: Area,
    /// Split: used ring. Packed: device event structure.
    pub device: Area,
}

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// As given to [`Driver::add`].
    pub token: u64,
    /// Bytes that the device says it wrote.
    pub len: u32,
}

/// A request whose descriptors were written once. Belongs to the driver that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared(u16);

/// Why a driver could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// Zero, above 32768, or not a power of two for a split ring.
    #[error("a {format:?} ring cannot have {size} entries")]
    Size {
        /// Entries asked for.
        size: u16,
        /// Format asked for.
        format: Format,
    },
    /// An area is too short or misaligned.
    #[error("the {part} area needs {needed_bytes} bytes, aligned to {align}")]
    Place {
        /// Which of the areas.
        part: &'static str,
        /// Bytes needed.
        needed_bytes: u64,
        /// Alignment needed, bytes.
        align: usize,
    },
}

/// Why a request was not added; the ring is as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// Not enough free descriptors, or this prepared request is in flight already.
    #[error("no room in the ring")]
    Full,
    /// No pieces, or more than the ring or an indirect table has entries.
    #[error("a request of {0} pieces cannot be described")]
    Pieces(usize),
}

/// What a device did that no device may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It completed an id that is not in flight: unknown, or completed before.
    #[error("completed id {id}, which is not in flight")]
    NotInFlight {
        /// What it wrote.
        id: u32,
    },
    /// Its used index ran ahead of what it was given.
    #[error("used index moved from {from} to {to} with {in_flight} requests in flight")]
    UsedIndex {
        /// Before.
        from: u16,
        /// After.
        to: u16,
        /// Requests that it had.
        in_flight: u16,
    },
}

/// One virtqueue, seen from the guest.
#[derive(Debug)]
pub struct Driver {
    ring: Ring,
    raw: Raw,
    in_flight: u16,
    fault: Option<Fault>,
}

#[derive(Debug)]
enum Ring {
    Split(Split),
    Packed(Packed),
}

impl Driver {
    /// An empty ring over zeroed areas, calls on.
    ///
    /// # Errors
    /// [`DriverError`], when the size or an area is impossible.
    pub fn new(spec: DriverSpec) -> Result<Driver, DriverError> {
        check(&spec)?;
        for area in [&spec.descriptors, &spec.driver, &spec.device] {
            area.zero(0, area.len());
        }
        let raw = Raw::new(&spec);
        let ring = match spec.format {
            Format::Split => Ring::Split(Split::new(spec)),
            Format::Packed => Ring::Packed(Packed::new(spec)),
        };
        Ok(Driver { ring, raw, in_flight: 0, fault: None })
    }

    /// Adds a request; the device may see it from now on, and must from the next `publish`.
    /// `token` comes back in [`Used`].
    ///
    /// # Errors
    /// [`AddError`]; nothing was added.
    #[inline]
    pub fn add(&mut self, buffers: &[Buffer], token: u64) -> Result<(), AddError> {
        match &mut self.ring {
            Ring::Split(split) => split.add(buffers, token)?,
            Ring::Packed(packed) => packed.add(buffers, token)?,
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Writes the descriptors of a request that will be added many times. Its descriptors (split)
    /// or its id and indirect table (packed) stay taken.
    ///
    /// # Errors
    /// [`AddError`]; nothing was taken.
    pub fn prepare(&mut self, buffers: &[Buffer]) -> Result<Prepared, AddError> {
        match &mut self.ring {
            Ring::Split(split) => split.prepare(buffers),
            Ring::Packed(packed) => packed.prepare(buffers),
        }
        .map(Prepared)
    }

    /// As [`Driver::add`], for a prepared request that is not in flight.
    ///
    /// # Errors
    /// [`AddError::Full`]; nothing was added.
    #[inline]
    pub fn add_prepared(&mut self, prepared: Prepared, token: u64) -> Result<(), AddError> {
        match &mut self.ring {
            Ring::Split(split) => split.add_prepared(prepared.0, token)?,
            Ring::Packed(packed) => packed.add_prepared(prepared.0, token)?,
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Gives up what [`Driver::prepare`] took. False when the request is in flight or unknown.
    pub fn forget(&mut self, prepared: Prepared) -> bool {
        match &mut self.ring {
            Ring::Split(split) => split.forget(prepared.0),
            Ring::Packed(packed) => packed.forget(prepared.0),
        }
    }

    /// Shows everything added. True when the device asked to be kicked for it.
    #[inline]
    pub fn publish(&mut self) -> bool {
        match &mut self.ring {
            Ring::Split(split) => split.publish(),
            Ring::Packed(packed) => packed.publish(),
        }
    }

    /// The next completed request, if there is one.
    #[inline]
    pub fn take_used(&mut self) -> Option<Used> {
        if self.fault.is_some() {
            return None;
        }
        let taken = match &mut self.ring {
            Ring::Split(split) => split.take_used(self.in_flight),
            Ring::Packed(packed) => packed.take_used(),
        };
        match taken {
            Ok(Some(used)) => {
                self.in_flight -= 1;
                Some(used)
            }
            Ok(None) => None,
            Err(fault) => {
                self.fault = Some(fault);
                None
            }
        }
    }

    /// Asks for a call at the next completion, then looks again. True when one is there already:
    /// take it, and do not wait.
    pub fn arm_calls(&mut self) -> bool {
        match &mut self.ring {
            Ring::Split(split) => split.arm_calls(),
            Ring::Packed(packed) => packed.arm_calls(),
        }
    }

    /// Asks for no calls. With event indices on a split ring this is a place that has passed, so
    /// one call in 65536 completions may still come.
    pub fn disarm_calls(&mut self) {
        match &mut self.ring {
            Ring::Split(split) => split.disarm_calls(),
            Ring::Packed(packed) => packed.disarm_calls(),
        }
    }

    /// Requests added and not yet used.
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Descriptors of the ring that nothing holds.
    pub fn free_descriptors(&self) -> u16 {
        match &self.ring {
            Ring::Split(split) => split.free_descriptors(),
            Ring::Packed(packed) => packed.free_descriptors(),
        }
    }

    /// What the device did wrong, once it did.
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// The ring's memory, for hostile tests. The driver does not notice what is written there.
    pub fn raw(&self) -> &Raw {
        &self.raw
    }
}

/// What one id (packed) or one head descriptor (split) stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Held {
    /// Nothing: the id is free, or the descriptor is not a head.
    #[default]
    Free,
    /// A prepared request between two uses.
    Prepared,
    /// A request in flight, given up when used.
    Once,
    /// A prepared request in flight.
    Again,
}

/// VIRTIO 1.2, 2.7.7.2: moving from `old` to `new` passes `event`.
#[inline]
fn passes(event: u16, new: u16, old: u16) -> bool {
    let passed_since_event = new.wrapping_sub(event.wrapping_add(1));
    passed_since_event < new.wrapping_sub(old)
}

fn check(spec: &DriverSpec) -> Result<(), DriverError> {
    let DriverSpec { size, format, event_index, .. } = *spec;
    if !layout::is_size(format, size) {
        return Err(DriverError::Size { size, format });
    }
    let driver_len = layout::driver_len(format, size, event_index);
    let device_len = layout::device_len(format, size, event_index);
    let aligns = arena::aligns(format);
    check_place(&spec.descriptors, "descriptor", layout::descriptors_len(format, size), aligns[0])?;
    check_place(&spec.driver, "driver", driver_len, aligns[1])?;
    check_place(&spec.device, "device", device_len, aligns[2])?;
    if let Some(tables) = &spec.indirect {
        let needed = u64::from(size) * u64::from(tables.entries) * 16;
        check_place(&tables.area, "indirect", needed.max(16), 16)?;
    }
    Ok(())
}

fn check_place(
    area: &Area,
    part: &'static str,
    needed_bytes: u64,
    align: usize,
) -> Result<(), DriverError> {
    if (area.len() as u64) < needed_bytes || !area.is_aligned(align) {
        return Err(DriverError::Place { part, needed_bytes, align });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
