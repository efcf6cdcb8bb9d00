//! What a guest asks the peer's sources for, as bytes.
//!
//! Not who asks when (`guest`), nor who sends (`peer`). Datagrams come only where they were asked for, so a
//! guest is never sent more than it takes. Used by both ends.

use std::ops::{Range, RangeInclusive};

/// Bytes of a datagram that can be asked for: its number, and what a frame of Ethernet holds.
pub(crate) const DATAGRAM_SIZES: RangeInclusive<u32> = 8..=1472;
/// Bytes of a write of the source of connections.
pub(crate) const WRITE_SIZES: RangeInclusive<u32> = 1..=1 << 20;
/// Datagrams that are asked for at once.
pub(crate) const COUNT_MAX: u32 = 64;
/// Bytes of a grant.
pub(crate) const GRANT_SIZE: usize = 20;
/// What begins a grant: nothing else does, that may come to this port.
const MAGIC: [u8; 4] = *b"LABg";

/// Datagrams that a guest has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The number of the first, in the first 8 bytes of it; the others count on.
    pub(crate) from: u64,
    /// 1 to `COUNT_MAX`.
    pub(crate) count: u32,
    /// Of each.
    pub(crate) bytes: u32,
}

impl Grant {
    pub(crate) fn encode(self) -> [u8; GRANT_SIZE] {
        let mut line = [0; GRANT_SIZE];
        line[..4].copy_from_slice(&MAGIC);
        line[4..12].copy_from_slice(&self.from.to_le_bytes());
        line[12..16].copy_from_slice(&self.count.to_le_bytes());
        line[16..].copy_from_slice(&self.bytes.to_le_bytes());
        line
    }

    /// Nothing where it is none, or asks for too much.
    pub(crate) fn decode(line: &[u8]) -> Option<Grant> {
        let (magic, line) = line.split_first_chunk()?;
        let (from, line) = line.split_first_chunk()?;
        let (count, line) = line.split_first_chunk()?;
        let bytes = u32::from_le_bytes(line.try_into().ok()?);
        let (from, count) = (u64::from_le_bytes(*from), u32::from_le_bytes(*count));
        from.checked_add(u64::from(count))?;
        let is_one =
            *magic == MAGIC && (1..=COUNT_MAX).contains(&count) && DATAGRAM_SIZES.contains(&bytes);
        is_one.then_some(Grant { from, count, bytes })
    }

    /// Those asked for.
    pub(crate) fn numbers(self) -> Range<u64> {
        self.from..self.from + u64::from(self.count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_asks_for_too_much_is_no_grant() {
        let good = Grant { from: 7, count: 64, bytes: 1472 };
        assert_eq!(Grant::decode(&good.encode()), Some(good));
        assert_eq!(good.numbers(), 7..71);
        for bad in [
            Grant { count: 0, ..good },
            Grant { count: 65, ..good },
            Grant { bytes: 7, ..good },
            Grant { bytes: 1473, ..good },
            Grant { from: u64::MAX - 63, ..good },
        ] {
            assert_eq!(Grant::decode(&bad.encode()), None, "{bad:?}");
        }
        let mut other = good.encode();
        other[0] ^= 1;
        assert_eq!(Grant::decode(&other), None);
        for bytes in 0..GRANT_SIZE {
            assert_eq!(Grant::decode(&good.encode()[..bytes]), None);
        }
        assert_eq!(Grant::decode(&[&good.encode()[..], b"x"].concat()), None);
    }

    proptest! {
        /// Whatever comes is none, or within the bounds.
        #[test]
        fn any_bytes_are_bounded(
            magic in any::<bool>(),
            mut bytes in proptest::collection::vec(any::<u8>(), 0..24),
        ) {
            if magic && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&MAGIC);
            }
            if let Some(grant) = Grant::decode(&bytes) {
                prop_assert!(grant.numbers().count() <= 64 && grant.bytes <= 1472);
                prop_assert_eq!(&grant.encode()[..], &bytes[..]);
            }
        }
    }
}
