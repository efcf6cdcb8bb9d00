//! A number of a ring that changes with every chain, in a word of its own.
//!
//! A compiler may load a 16-bit field together with its neighbour. When one of the two was just
//! stored, the processor cannot hand that on: the load waits until the store, and every store before
//! it, is in the cache. Before it are stores into lines that the guest's core has, so each such load
//! cost as much as half a small frame. Stored and loaded as 32 bits, it is handed on at once.

/// Sixteen bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(u32);

impl Word {
    #[inline(always)]
    pub(crate) fn new(value: u16) -> Word {
        Word(u32::from(value))
    }

    #[inline(always)]
    pub(crate) fn get(self) -> u16 {
        self.0 as u16
    }

    #[inline(always)]
    pub(crate) fn set(&mut self, value: u16) {
        self.0 = u32::from(value);
    }

    /// Adds, as the indices of rings do.
    #[inline(always)]
    pub(crate) fn add(&mut self, more: u16) {
        self.set(self.get().wrapping_add(more));
    }
}
