//! The description past the page cache, and what requests must be aligned to for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Stat, StatxFlags, fstatfs, ioctl_blksszget, statx};
use rustix::io::Errno;

use super::is_block;
use crate::SECTOR_SIZE;

/// Alignment for `O_DIRECT` where the kernel (before 6.1) does not tell: no device needs more.
const ALIGN_UNKNOWN: u32 = 4096;
/// Larger blocks than these are not believed, bytes.
pub(super) const PHYSICAL_MAX: u32 = 1 << 20;

/// The way past the page cache, and what it demands.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) fd: OwnedFd,
    /// Of addresses, minus one.
    pub(super) memory_mask: u64,
    /// Of offsets and lengths, minus one.
    pub(super) offset_mask: u64,
}

impl Direct {
    /// What a description with `O_DIRECT` demands.
    pub(super) fn of(fd: OwnedFd, stat: &Stat) -> Result<Direct, Errno> {
        // None: it opens so, and goes through the cache all the same.
        let (memory, offset) = direct_align(fd.as_fd(), is_block(stat)).ok_or(Errno::OPNOTSUPP)?;
        Ok(Direct { fd, memory_mask: u64::from(memory) - 1, offset_mask: u64::from(offset) - 1 })
    }

    /// What the disk of a simulation demands: whole sectors.
    pub(super) fn simulated(fd: OwnedFd) -> Direct {
        let sector = SECTOR_SIZE - 1;
        Direct { fd, memory_mask: sector, offset_mask: sector }
    }
}

/// What a description with `O_DIRECT` demands of addresses, and of offsets and lengths, bytes.
fn direct_align(fd: BorrowedFd<'_>, is_block: bool) -> Option<(u32, u32)> {
    let (memory, offset) = match told_align(fd) {
        Some(told) => told,
        None if is_block => {
            let block = ioctl_blksszget(fd).unwrap_or(ALIGN_UNKNOWN);
            (block, block)
        }
        None => (ALIGN_UNKNOWN, ALIGN_UNKNOWN),
    };
    (memory.is_power_of_two() && offset.is_power_of_two()).then_some((memory, offset))
}

/// The same, where the kernel tells (6.1), and of some file systems alone.
pub(super) fn told_align(fd: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let facts = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let is_told = facts.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    is_told.then_some((facts.stx_dio_mem_align, facts.stx_dio_offset_align))
}

/// Bytes of a block of the file system; 0 when it says nothing that can be one.
pub(super) fn block_of(fd: BorrowedFd<'_>) -> u32 {
    let block = fstatfs(fd).map_or(0, |fs| u32::try_from(fs.f_bsize).unwrap_or(0));
    if block.is_power_of_two() && block <= PHYSICAL_MAX { block } else { 0 }
}
