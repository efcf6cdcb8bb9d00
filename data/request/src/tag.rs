//! The name of a pending request, small enough to travel as a kernel's `user_data`.

/// Which queue of this sidecore, which of its slots, and which use of that slot.
///
/// The generation makes a late completion of an earlier use find nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Place of the queue in its sidecore's table.
    pub queue: u16,
    /// Place in the queue's slot table.
    pub slot: u16,
    /// Counts uses of that slot, wrapping.
    pub generation: u32,
}

impl Tag {
    /// As one number.
    #[inline]
    pub fn pack(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.queue) << 16 | u64::from(self.slot)
    }

    /// The reverse of [`Tag::pack`]; every number is some tag.
    #[inline]
    pub fn unpack(bits: u64) -> Tag {
        Tag { queue: (bits >> 16) as u16, slot: bits as u16, generation: (bits >> 32) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::Tag;

    #[test]
    fn a_tag_survives_packing() {
        for bits in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
            assert_eq!(Tag::unpack(bits).pack(), bits);
        }
    }
}
