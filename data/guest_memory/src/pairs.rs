//! A run of 16-byte entries in guest memory, checked once and read one by one: an indirect table.
//!
//! Not a copy: the guest may change entries at any time, and each read is of its own moment. Used by
//! `virtqueue`, where a guest decides how many entries there are, so that each has to be cheap.

use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::map::{GuestMap, Span};

/// Bytes of an entry.
const ENTRY: usize = 16;

/// Entries of two `u64`, at any address. Valid as long as the map that it came from.
#[derive(Clone, Copy, Debug)]
pub struct Pairs<'map> {
    first: NonNull<u8>,
    count: u32,
    map: PhantomData<&'map GuestMap>,
}

impl GuestMap {
    /// The whole entries of `span`; what is left over at its end is in none. `None` when the span is not
    /// in this map.
    #[inline]
    pub fn pairs(&self, span: Span) -> Option<Pairs<'_>> {
        let first = self.host(span)?;
        Some(Pairs { first, count: span.len() / ENTRY as u32, map: PhantomData })
    }
}

impl Pairs<'_> {
    /// How many entries there are.
    #[inline]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The two little-endian words of an entry, each read once. `None` beyond the last.
    #[inline(always)]
    pub fn get(&self, index: u32) -> Option<(u64, u64)> {
        if index >= self.count {
            return None;
        }
        // SAFETY: `pairs()` checked `count` entries from `first`, and the map keeps them mapped.
        let first = unsafe { self.first.add(index as usize * ENTRY) }.cast::<u64>();
        // SAFETY: as above, and no alignment is asked for.
        let pair = unsafe { (first.read_unaligned(), first.add(1).read_unaligned()) };
        Some((u64::from_le(settled(pair.0)), u64::from_le(settled(pair.1))))
    }
}

/// The same value, of which the compiler no longer knows where it was read: it cannot read it there again
/// (reliability P23). Not an instruction.
#[inline(always)]
fn settled(mut value: u64) -> u64 {
    // SAFETY: no instruction.
    unsafe {
        core::arch::asm!("/* {} */", inout(reg) value, options(nomem, nostack, preserves_flags));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_where_they_are_and_none_beyond() -> Result<(), Box<dyn std::error::Error>> {
        let map = GuestMap::anonymous(4096)?;
        // Three entries and a half, at an odd address.
        let span = map.span(33, 56).ok_or("in the map")?;
        let bytes: Vec<u8> = (0..56).collect();
        assert!(map.write(span, 0, &bytes));
        let pairs = map.pairs(span).ok_or("in the map")?;
        assert_eq!(pairs.count(), 3);
        let word = |from: u8| u64::from_le_bytes(std::array::from_fn(|at| from + at as u8));
        assert_eq!(pairs.get(0), Some((word(0), word(8))));
        assert_eq!(pairs.get(2), Some((word(32), word(40))));
        assert_eq!(pairs.get(3), None);
        assert_eq!(pairs.get(u32::MAX), None);
        Ok(())
    }

    #[test]
    fn a_span_of_another_map_has_none() -> Result<(), Box<dyn std::error::Error>> {
        let (small, large) = (GuestMap::anonymous(4096)?, GuestMap::anonymous(1 << 20)?);
        let span = large.span(0, 1 << 20).ok_or("in the map")?;
        assert!(small.pairs(span).is_none());
        Ok(())
    }
}
