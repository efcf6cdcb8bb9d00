//! How an image is found by its name: whoever opens a disk says it, since the path may lead through folders
//! that others can change. Not here: whose folders are trusted (`control/names`).

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

/// Finds files by their names and opens them.
pub trait Names {
    /// Opens what `path` leads to. `flags` have the access mode, `O_NONBLOCK` and `O_CLOEXEC`, and at times
    /// `O_CREAT` (for mode 0600), `O_DIRECT`, `O_EXCL`, or `O_PATH` alone. Does not wait for anybody but the
    /// file system.
    ///
    /// # Errors
    /// [`Unopened`].
    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Unopened>;
}

/// Why a name was not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unopened {
    /// The kernel's word; `EAGAIN` when a lease is in the way.
    Os(Errno),
    /// It is neither a regular file nor a block device.
    NotADisk,
    /// The path may lead elsewhere than it should: why, and what to do.
    Refused(String),
}

/// As the kernel follows names, through every link: for paths that nobody else can change, as those of tests
/// and simulations.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelNames;

impl Names for KernelNames {
    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Unopened> {
        open(path, flags, Mode::from_raw_mode(0o600)).map_err(Unopened::Os)
    }
}
