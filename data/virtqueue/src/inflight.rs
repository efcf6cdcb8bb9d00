//! The record of what is in flight, in memory that outlives this process (vhost-user, "Inflight I/O
//! tracking"): after a crash the next process resubmits what it names.
//!
//! The memory belongs to the front-end and is hostile, stale or torn: every value read from it is
//! checked, and what the running process needs it keeps for itself. Not here: where the memory comes
//! from (`vhost_user`, `manager`), and what a ring is (`split`, `packed` of the crate).
//!
//! Both records begin with features at 0, version at 8 and number of descriptors at 10. Bounded by
//! the ring's size in every loop; allocates when a queue is made, not after.

pub(crate) mod packed;
pub(crate) mod split;

use guest_memory::Area;

use crate::layout::Format;
use crate::shared::Shared;
use crate::violation::SetupError;

const VERSION: usize = 8;
const DESCRIPTORS: usize = 10;
const VERSION_NOW: u16 = 1;
/// Records of several queues lie one behind the other at this alignment, bytes.
const ALIGN: u64 = 64;

/// Bytes of the record of one queue of `size`, with the padding to the next queue's.
pub fn queue_region_len(format: Format, size: u16) -> u64 {
    let (header, state) = match format {
        Format::Split => (split::HEADER, split::STATE),
        Format::Packed => (packed::HEADER, packed::STATE),
    };
    (header as u64 + state as u64 * u64::from(size)).next_multiple_of(ALIGN)
}

/// The record of one queue, as the front-end gave it. Nothing is written before a queue is made.
#[derive(Debug)]
pub struct Inflight {
    area: Shared,
    format: Format,
    size: u16,
    /// No process has used it yet.
    fresh: bool,
}

impl Inflight {
    /// The record in `area`, for a ring of this format and size.
    ///
    /// # Errors
    /// [`SetupError::Short`], [`SetupError::Unaligned`], [`SetupError::Inflight`] and
    /// [`SetupError::InflightVersion`] when the area, or what its header says, does not fit.
    pub fn new(area: Area, format: Format, size: u16) -> Result<Inflight, SetupError> {
        let (part, align) = ("in-flight", 8);
        let need = queue_region_len(format, size);
        let have = area.len() as u64;
        if have < need {
            return Err(SetupError::Short { part, have, need });
        }
        if !area.is_aligned(align) {
            return Err(SetupError::Unaligned { part, align });
        }
        let (version, have) = (area.load_u16(VERSION), area.load_u16(DESCRIPTORS));
        match version {
            0 => {}
            VERSION_NOW if have == size => {}
            VERSION_NOW => return Err(SetupError::Inflight { have, need: size }),
            other => return Err(SetupError::InflightVersion(other)),
        }
        Ok(Inflight { area: area.into(), format, size, fresh: version == 0 })
    }

    /// Whether no process has used it yet: it says nothing of the ring.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Whether it was made for such a ring.
    pub(crate) fn is_for(&self, format: Format, size: u16) -> Result<(), SetupError> {
        if self.format != format || self.size != size {
            return Err(SetupError::Inflight { have: self.size, need: size });
        }
        Ok(())
    }

    /// Ends the beginning of a fresh record: from now on the next process believes it.
    fn begun(&self) {
        self.area.store_u16(DESCRIPTORS, self.size);
        self.area.store_u16(VERSION, VERSION_NOW);
    }

    /// Makes a fresh record empty, whatever it holds.
    fn clear(&self) {
        let len = queue_region_len(self.format, self.size) as usize;
        self.area.zero(0, len);
    }
}
