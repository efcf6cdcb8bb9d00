//! Whether what was written is stable: the last sync of an image, and that one has failed.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use rustix::fs::fdatasync;
use rustix::io::Errno;

use super::Opened;

impl Opened {
    /// Makes everything that was written stable, with nothing in flight. May take as long as the disk
    /// does. False when that failed, now or before.
    pub(crate) fn sync(&self) -> bool {
        if !self.readonly && !self.sync_failed() {
            self.faults.count_sync();
            if let Err(error) = self.fdatasync() {
                self.faults.count(error);
                self.latch_sync_failed();
            }
        }
        !self.sync_failed()
    }

    fn fdatasync(&self) -> Result<(), Errno> {
        #[cfg(feature = "simulated")]
        if let Some(kernel) = &self.kernel {
            return if kernel.sync(self.cached()) { Ok(()) } else { Err(Errno::IO) };
        }
        fdatasync(&self.cached)
    }

    /// See [`crate::Disk::sync_failed`].
    pub(crate) fn sync_failed(&self) -> bool {
        self.sync_failed.load(Ordering::SeqCst)
    }

    /// Remembers that data was lost, and tells control once.
    #[cold]
    pub(crate) fn latch_sync_failed(&self) {
        if !self.sync_failed.swap(true, Ordering::SeqCst) {
            // Ours alone, and written at most once between two reads: it never waits.
            let _ = rustix::io::write(&self.sync_failure, &1u64.to_ne_bytes());
        }
    }

    /// See [`crate::Disk::assume_sync_failed`] and [`crate::Disk::forget_sync_failure`].
    pub(crate) fn set_sync_failed(&self, failed: bool) {
        self.sync_failed.store(failed, Ordering::SeqCst);
    }

    /// See [`crate::Disk::sync_failure_fd`].
    pub(crate) fn sync_failure_fd(&self) -> BorrowedFd<'_> {
        self.sync_failure.as_fd()
    }
}
