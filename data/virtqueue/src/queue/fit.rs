//! Whether what a queue stands on fits, before anything in the ring is changed.
//!
//! Called by `queue`, which serves it afterwards.

use super::QueueSpec;
use crate::layout::{self, Format};
use crate::packed::Place;
use crate::violation::SetupError;

/// Where a packed ring goes on by `base`: its next available place, and its next used one.
pub(super) fn packed_places(base: u32, size: u16) -> Result<(Place, Place), SetupError> {
    let next = Place::of_bits(base as u16);
    let high = (base >> 16) as u16;
    let used = if high == 0 { next } else { Place::of_bits(high) };
    if next.index >= size || used.index >= size {
        return Err(SetupError::Base(base));
    }
    Ok((next, used))
}

/// That the parts of a queue are as long and as aligned as its rings are (VIRTIO 1.2, 2.7 and 2.8).
pub(super) fn check(spec: &QueueSpec) -> Result<(), SetupError> {
    if !layout::is_size(spec.format, spec.size) {
        return Err(SetupError::Size(spec.size));
    }
    let (format, size) = (spec.format, spec.size);
    if let Some(inflight) = &spec.inflight {
        inflight.is_for(format, size)?;
    }
    if format == Format::Split && spec.base > u32::from(u16::MAX) {
        return Err(SetupError::Base(spec.base));
    }
    let aligns = if format == Format::Split { (2, 4) } else { (4, 4) };
    let parts = [
        ("descriptor", &spec.descriptors, layout::descriptors_len(format, size), 16),
        ("driver", &spec.driver, layout::driver_len(format, size, spec.event_index), aligns.0),
        ("device", &spec.device, layout::device_len(format, size, spec.event_index), aligns.1),
    ];
    for (part, area, need, align) in parts {
        let have = area.len() as u64;
        if have < need {
            return Err(SetupError::Short { part, have, need });
        }
        if !area.is_aligned(align) {
            return Err(SetupError::Unaligned { part, align });
        }
    }
    Ok(())
}
