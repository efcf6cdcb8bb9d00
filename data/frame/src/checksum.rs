//! The Internet checksum (RFC 1071).
//!
//! Called by `finish`, and by whoever makes or checks packets.

/// The checksum of `bytes` after `start`, a sum so far (of a pseudo-header, say): what belongs in the
/// field when the field is zero, or zero over bytes whose checksum is right. In network byte order.
pub fn checksum(start: u32, bytes: &[u8]) -> u16 {
    !fold(sum(u64::from(start), bytes))
}

/// Adds `bytes` to a sum of big-endian 16-bit words, the last one filled up with zero. The result is
/// right only when folded. Exact for up to 2^31 bytes.
#[inline]
pub(crate) fn sum(start: u64, bytes: &[u8]) -> u64 {
    // A sum of 32-bit words is congruent to that of their halves, and so is one in the other byte
    // order, turned round at the end (RFC 1071 2.B). Four sums, so that they are added side by side.
    let mut sums = [0u64; 4];
    let (blocks, rest) = bytes.as_chunks::<16>();
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let (pairs, odd) = rest.as_chunks::<2>();
    let mut total: u64 = sums.iter().sum();
    for pair in pairs {
        total += u64::from(u16::from_ne_bytes(*pair));
    }
    if let [last] = odd {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    start + u64::from(u16::from_be(fold(total)))
}

/// A sum as 16 bits, with all carries brought in.
#[inline]
pub(crate) fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}
