//! Whether the file system of an image makes holes, which is what a guest's discards need.
//!
//! No call of the kernel's tells that and changes nothing: a hole that is asked for behind the end of a file changes its
//! times, and a file that another process makes longer meanwhile would lose what that writes. So it is known of the file
//! systems that operators use, and tried of others by whoever has the image's locks. Called by `open`, once for each
//! opening.

use std::os::fd::OwnedFd;

use rustix::fs::{FallocateFlags, fallocate, fstatfs};

use super::{Opened, TMPFS_MAGIC};

/// File systems every file of which can have holes punched (linux/magic.h, and the sources of those that are not there).
/// An ext2 that its own driver serves, which hardly any kernel has, has ext4's number: there the first discard is
/// refused, and the guest told so.
const PUNCH: &[u64] = &[
    TMPFS_MAGIC,
    0xef53,      // ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0xf2f5_2010, // f2fs
    0xca45_1a4e, // bcachefs
    0x0116_1970, // gfs2
    0x7461_636f, // ocfs2
    0x2fc1_2fc1, // zfs
];

/// Whether its file system is one of those; nothing is asked of the file.
pub(super) fn are_known(file: &OwnedFd) -> bool {
    fstatfs(file).is_ok_and(|fs| PUNCH.contains(&(fs.f_type as u64 & u64::from(u32::MAX))))
}

impl Opened {
    /// Tries it where there is nothing to lose: behind the end, of which this process, which has the locks, is sure. On
    /// NFS, FUSE and overlays the answer is the server's, the process's, or that of what lies below.
    pub(super) fn punches(&self, size_bytes: u64) -> bool {
        let end = self.end().unwrap_or(size_bytes).max(size_bytes).next_multiple_of(1 << 20);
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.cached, mode, end, 4096).is_ok()
    }
}
