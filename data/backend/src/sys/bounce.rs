//! Aligned buffers of one disk, through which transfers go whose guest buffers the kernel would refuse
//! past the page cache.
//!
//! Taken when the disk joins a sidecore, so that no request allocates. Not here: who may take one, and what is copied (`file::way`).

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use super::Piece;

/// Bytes of one buffer: some 10 us of copying, which is done in one go.
pub(crate) const BOUNCE_BYTES: u64 = 64 << 10;
/// Buffers of one disk on one sidecore: one is copied while the device works on the other. With their memory
/// every disk pays for drivers that are rare.
const BOUNCES: u8 = 2;

const TOTAL: usize = BOUNCE_BYTES as usize * BOUNCES as usize;
/// A page: no device asks for more of an address.
const LAYOUT: Layout = match Layout::from_size_align(TOTAL, 4096) {
    Ok(layout) => layout,
    Err(_) => Layout::new::<u8>(),
};
const _: () = assert!(LAYOUT.size() == TOTAL);

/// Who has a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Nobody,
    /// A request, which may read and write it.
    Request,
    /// The kernel, until the completion.
    Kernel,
}

/// The buffers.
#[derive(Debug)]
pub(crate) struct Bounce {
    base: NonNull<u8>,
    holders: [Holder; BOUNCES as usize],
}

// SAFETY: the memory is its own, and goes with it.
unsafe impl Send for Bounce {}

impl Bounce {
    /// `None`: there is no memory.
    pub(crate) fn new() -> Option<Bounce> {
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(LAYOUT) })?;
        Some(Bounce { base, holders: [Holder::Nobody; BOUNCES as usize] })
    }

    /// Whether one is free.
    pub(crate) fn has_some(&self) -> bool {
        self.holders.contains(&Holder::Nobody)
    }

    /// One for a request, to be given back by [`Self::give_back`].
    pub(crate) fn take(&mut self) -> Option<u8> {
        let at = self.holders.iter().position(|holder| *holder == Holder::Nobody)?;
        *self.holders.get_mut(at)? = Holder::Request;
        Some(at as u8)
    }

    /// The bytes of a request's buffer; `None` while the kernel has it.
    pub(crate) fn bytes(&mut self, at: u8) -> Option<&mut [u8]> {
        if *self.holders.get(usize::from(at))? != Holder::Request {
            return None;
        }
        // SAFETY: the buffer lies within the memory, which was zeroed; the kernel does not have it, and the
        // reference lives as long as the borrow of `self`, without which it cannot be lent.
        Some(unsafe {
            let first = self.base.as_ptr().add(usize::from(at) * BOUNCE_BYTES as usize);
            std::slice::from_raw_parts_mut(first, BOUNCE_BYTES as usize)
        })
    }

    /// The kernel may use the first `len` bytes of a request's buffer from now on, until
    /// [`Self::was_ended`].
    pub(super) fn lend(&mut self, at: u8, len: u64) -> Option<Piece> {
        let holder = self.holders.get_mut(usize::from(at))?;
        if *holder != Holder::Request || len > BOUNCE_BYTES {
            return None;
        }
        *holder = Holder::Kernel;
        let base = self.base.as_ptr() as usize + usize::from(at) * BOUNCE_BYTES as usize;
        Some(Piece { base, len: len as usize })
    }

    /// The command with this buffer has completed, or was never handed over: the request has it again.
    pub(crate) fn was_ended(&mut self, at: u8) {
        if let Some(holder) = self.holders.get_mut(usize::from(at))
            && *holder == Holder::Kernel
        {
            *holder = Holder::Request;
        }
    }

    /// A request needs its buffer no longer. What the kernel has stays the kernel's.
    pub(crate) fn give_back(&mut self, at: u8) {
        if let Some(holder) = self.holders.get_mut(usize::from(at))
            && *holder == Holder::Request
        {
            *holder = Holder::Nobody;
        }
    }
}

impl Drop for Bounce {
    /// Memory that the kernel may still write to is never anybody else's.
    fn drop(&mut self) {
        if !self.holders.contains(&Holder::Kernel) {
            // SAFETY: it was given by `alloc_zeroed` with this layout, and nobody refers to it.
            unsafe { dealloc(self.base.as_ptr(), LAYOUT) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_has_one_holder() {
        let mut bounce = Bounce::new().expect("memory");
        let all: Vec<u8> = (0..BOUNCES).map(|_| bounce.take().expect("free")).collect();
        assert_eq!((bounce.take(), bounce.has_some()), (None, false));
        bounce.bytes(all[0]).expect("the request's").fill(7);
        assert!(bounce.lend(all[0], BOUNCE_BYTES + 1).is_none(), "more than it has");
        let piece = bounce.lend(all[0], 512).expect("the request's");
        assert_eq!((piece.base % 4096, piece.len), (0, 512));
        assert!(bounce.bytes(all[0]).is_none(), "the kernel's");
        assert!(bounce.lend(all[0], 512).is_none());
        bounce.give_back(all[0]);
        assert!(!bounce.has_some(), "what the kernel has is not free");
        bounce.was_ended(all[0]);
        assert!(bounce.bytes(all[0]).expect("again").iter().all(|byte| *byte == 7));
        assert!(bounce.bytes(all[1]).expect("its own").iter().all(|byte| *byte == 0));
        bounce.give_back(all[0]);
        assert!(bounce.has_some());
        // Lent when it is dropped: kept, which a checker of memory sees as a leak and not as a fault.
        let _ = bounce.lend(all[1], 1);
    }
}
