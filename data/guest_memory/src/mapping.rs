//! One `mmap`: of a descriptor that a front-end sent, or of anonymous memory.
//!
//! Not the place where addresses are looked up (`map`) or bytes are touched (`area`, `map`).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, readlink};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::faults::Watched;
use crate::health::Health;

/// Why a piece of memory could not be mapped. The text is for the operator.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// A length of zero, or one whose end does not fit in an address.
    #[error("a length of {len} bytes at offset {offset} cannot be mapped")]
    Length {
        /// Offset in the file, bytes.
        offset: u64,
        /// Length asked for, bytes.
        len: u64,
    },
    /// The file ends before the piece does.
    #[error("the file has {size} bytes, but {needed} were announced")]
    Short {
        /// The file's size, bytes.
        size: u64,
        /// Offset plus length, bytes.
        needed: u64,
    },
    /// A file whose pages another process may have to bring: a fault in it could wait for ever.
    #[error(
        "the memory is not a memfd, nor a file of tmpfs or hugetlbfs: use memory-backend-memfd, or \
         put the file on one of these"
    )]
    NotMemory,
    /// The file may be shrunk by its owner (reliability F4).
    #[error(
        "the memory is not sealed against shrinking: use memory-backend-memfd, \
         or set allow_unsealed_memory for this device"
    )]
    Unsealed,
    /// Two regions overlap, or an address wraps.
    #[error("region {index} overlaps another or wraps around the address space")]
    Overlap {
        /// Place of the region in the table given.
        index: usize,
    },
    /// More regions than [`crate::REGIONS_MAX`].
    #[error("{0} memory regions; at most {max} are supported", max = crate::REGIONS_MAX)]
    TooMany(usize),
    /// A dirty log that ends before the memory does.
    #[error("the dirty log has no bit for memory up to {end:#x}")]
    LogShort {
        /// One past the highest guest address.
        end: u64,
    },
    /// What the kernel said.
    #[error("cannot map memory: {0}")]
    Os(#[from] rustix::io::Errno),
}

/// Gives nothing back.
const KEEP: Advice = Advice::Normal;

/// Whether a file's owner may shrink it under our mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// Only files sealed with `F_SEAL_SHRINK` are mapped.
    Required,
    /// Any file that lives in memory is mapped; shrinking it costs that device its queues. So is what a kernel lends
    /// by VDUSE.
    Any,
}

/// A mapped range. Unmapped when the last `Arc` of it goes.
#[derive(Debug)]
pub struct Mapping {
    /// What `mmap` returned.
    start: NonNull<u8>,
    /// What was given to `mmap`, bytes.
    mapped: usize,
    /// First byte asked for: `start` plus the part that only alignment added.
    base: NonNull<u8>,
    /// Bytes asked for.
    len: usize,
    /// Its place in the fault handler's list, and whose it is; `None` for memory of our own.
    watched: Option<Watched>,
    /// What gives pages back to the kernel.
    release: Advice,
}

// SAFETY: a `Mapping` is an address range that stays mapped until drop; it has no thread affinity,
// and all access to its bytes goes through `Area` and `GuestMap`, which use volatile or atomic
// operations only.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out addresses and lengths only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` at `offset`, shared and writable, without touching a page.
    ///
    /// `offset` need not be aligned: the range is widened down to the file's block size (which for
    /// hugetlbfs is the huge page). A page that the file's owner takes away later is replaced by
    /// zeroes and makes `health` lost, once [`crate::recover_from_sigbus`] was called.
    ///
    /// # Errors
    /// [`MapError`]: an impossible length, a file that is too short or not sealed, or the kernel's
    /// refusal. Nothing stays mapped.
    pub fn shared(
        fd: impl AsFd,
        offset: u64,
        len: u64,
        seal: Seal,
        health: &Health,
    ) -> Result<Arc<Mapping>, MapError> {
        let fd = fd.as_fd();
        let block = Self::check_file(fd, offset, len, seal)?;
        let (aligned, end) = (offset & !(block - 1), (offset + len).next_multiple_of(block));
        let bad = |_| MapError::Length { offset, len };
        let mapped = usize::try_from(end - aligned).map_err(bad)?;
        let block = usize::try_from(block).map_err(bad)?;
        // SAFETY: a fresh range chosen by the kernel; no Rust object lives in it.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                aligned,
            )?
        };
        let whose = Some((block, health));
        Self::adopt(start, mapped, (offset - aligned) as usize, len as usize, whose, KEEP)
    }

    /// Maps `len` bytes of zeroes that no other process sees; pages are taken when first written.
    ///
    /// # Errors
    /// [`MapError`]: zero length, or the kernel's refusal.
    pub fn anonymous(len: u64) -> Result<Arc<Mapping>, MapError> {
        let size = usize::try_from(len).map_err(|_| MapError::Length { offset: 0, len })?;
        if size == 0 {
            return Err(MapError::Length { offset: 0, len });
        }
        // SAFETY: a fresh range chosen by the kernel; no Rust object lives in it.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        Self::adopt(start, size, 0, size, None, Advice::LinuxDontNeed)
    }

    /// Maps `len` bytes of a memory file of our own at `offset`, which nobody else may cut off; pages are
    /// taken when first written.
    ///
    /// # Errors
    /// [`MapError`]: an impossible length, a file that is no sealed memory or too short, or the kernel's
    /// refusal.
    pub fn own(fd: impl AsFd, offset: u64, len: u64) -> Result<Arc<Mapping>, MapError> {
        let fd = fd.as_fd();
        let block = Self::check_file(fd, offset, len, Seal::Required)?;
        let size = usize::try_from(len).map_err(|_| MapError::Length { offset, len })?;
        if !offset.is_multiple_of(block) {
            return Err(MapError::Length { offset, len });
        }
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a fresh range chosen by the kernel; no Rust object lives in it.
        let start = unsafe { mmap(std::ptr::null_mut(), size, access, flags, fd, offset)? };
        // Private pages would come back from the file; these are taken out of it.
        Self::adopt(start, size, 0, size, None, Advice::LinuxRemove)
    }

    /// Bytes that may be touched.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: an empty range is refused when it is made.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the pages that lie wholly within `at..at + len` back to the kernel; they read as
    /// zeroes afterwards. Bytes outside whole pages are untouched. Not for memory of a front-end, which
    /// stays as it is.
    ///
    /// # Errors
    /// What `madvise` said; the range is then unchanged.
    pub fn release_pages(&self, at: usize, len: usize) -> Result<(), rustix::io::Errno> {
        let page = rustix::param::page_size();
        let end = at.saturating_add(len).min(self.len) / page * page;
        let first = at.min(self.len).next_multiple_of(page);
        if first >= end {
            return Ok(());
        }
        // SAFETY: the range lies within this mapping (both ends were clamped to `len`), and
        // dropping pages that are private or of our own file only changes their bytes to zero.
        unsafe { madvise(self.base.as_ptr().add(first).cast(), end - first, self.release) }
    }

    /// Whose memory it is; `None` for our own.
    pub fn health(&self) -> Option<&Health> {
        self.watched.as_ref().map(Watched::health)
    }

    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The file's block size, a power of two, outward to which the range must be rounded: hugetlbfs
    /// maps a part of a huge page but refuses to unmap one. `offset + len`, so rounded, fits.
    fn check_file(fd: BorrowedFd<'_>, offset: u64, len: u64, seal: Seal) -> Result<u64, MapError> {
        let bad = MapError::Length { offset, len };
        let Some(end) = offset.checked_add(len).filter(|end| *end <= i64::MAX as u64 / 2) else {
            return Err(bad);
        };
        if len == 0 {
            return Err(bad);
        }
        // First of all: only memory files have seals, and asking one never waits for another
        // process, as asking a FUSE file for its size may.
        let Ok(seals) = fcntl_get_seals(fd) else {
            // Of no size: each page is there from when the kernel's driver uses it.
            return match seal == Seal::Any && is_vduse(fd) {
                true => Ok(rustix::param::page_size() as u64),
                false => Err(MapError::NotMemory),
            };
        };
        if seal == Seal::Required && !seals.contains(SealFlags::SHRINK) {
            return Err(MapError::Unsealed);
        }
        let stat = fstat(fd)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size < end {
            return Err(MapError::Short { size, needed: end });
        }
        let page = rustix::param::page_size() as u64;
        let block = u64::try_from(stat.st_blksize).unwrap_or(page).max(page);
        Ok(if block.is_power_of_two() { block } else { page })
    }

    fn adopt(
        start: *mut core::ffi::c_void,
        mapped: usize,
        skip: usize,
        len: usize,
        whose: Option<(usize, &Health)>,
        release: Advice,
    ) -> Result<Arc<Mapping>, MapError> {
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            return Err(MapError::Os(rustix::io::Errno::NOMEM));
        };
        // Large pages cost a third of the TLB misses where the kernel has them; refusal is fine.
        // SAFETY: the range was just mapped and advice changes no byte of it.
        let _ = unsafe { madvise(start.as_ptr().cast(), mapped, Advice::LinuxHugepage) };
        // SAFETY: `skip < mapped`, because `len > 0` and `mapped >= skip + len`.
        let base = unsafe { start.add(skip) };
        let watched = whose.map(|(block, health)| {
            Watched::new(start.expose_provenance().get(), mapped, block, health)
        });
        Ok(Arc::new(Mapping { start, mapped, base, len, watched, release }))
    }
}

/// Whether it is the memory of a device that this machine's own kernel drives (VDUSE). A file cannot have such a name:
/// that of a file begins with its path.
fn is_vduse(fd: BorrowedFd<'_>) -> bool {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let name = readlink(link, Vec::new());
    name.is_ok_and(|name| name.as_bytes() == b"anon_inode:[vduse-domain]")
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before the addresses can be somebody else's.
        drop(self.watched.take());
        // SAFETY: `start..start + mapped` is exactly what `mmap` gave us; every `Area` and
        // `GuestMap` over it holds an `Arc`, so none is left.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok(), "munmap of {} bytes: {unmapped:?}", self.mapped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_has_the_name_of_vduse_s_memory() {
        let folder = std::env::temp_dir().join(format!("guest-memory-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("anon_inode:[vduse-domain]");
        let file = std::fs::File::create(&path).unwrap();
        assert!(!is_vduse(file.as_fd()));
        std::fs::remove_dir_all(&folder).unwrap();
        // Its path now ends in another word.
        assert!(!is_vduse(file.as_fd()));
    }
}
