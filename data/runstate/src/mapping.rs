//! The memory of a map of the kernel's: all that is not safe here.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The value of a map of one value, as words that others write too.
#[derive(Debug)]
pub(crate) struct Mapping {
    at: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: all access is by atomics, and the memory stays until the drop.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `words` words of a map's value.
    pub(crate) fn new(map: impl AsFd, words: usize) -> Result<Mapping, Errno> {
        let (access, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at a place of the kernel's choice.
        let at = unsafe { mmap(std::ptr::null_mut(), 8 * words, access, shared, map, 0)? };
        let at = NonNull::new(at.cast::<AtomicU64>()).ok_or(Errno::NOMEM)?;
        Ok(Mapping { at, words })
    }

    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: so many words are mapped until the drop, page-aligned; any bytes are an `AtomicU64`; the
        // kernel and other threads change them only as atomics may be changed.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody borrows it any more. What it says can only be that the place is none.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), 8 * self.words) };
    }
}
