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

    /// Has the file say itself that it has lost data, if it has and does not say so. Waits for its file system.
    pub(crate) fn mark_lost(&self) {
        if self.readonly || self.is_simulated() || !self.sync_failed() || self.mark.is_stable() {
            return;
        }
        if !self.mark.put(&self.cached, || self.sync_failed()) {
            // It is lost anew, if somebody has just cleared it.
            self.latch_sync_failed();
        }
    }

    /// See [`crate::Disk::clear_mark`].
    pub(crate) fn clear_mark(&self) -> Result<(), Errno> {
        let had_failed = self.sync_failed.swap(false, Ordering::SeqCst);
        let cleared = self.mark.take_off(&self.cached);
        if cleared.is_err() {
            self.sync_failed.store(had_failed, Ordering::SeqCst);
        }
        cleared
    }

    /// See [`crate::Disk::is_marked`].
    pub(crate) fn is_marked(&self) -> bool {
        self.mark.is_there()
    }

    /// See [`crate::Disk::unmarked`].
    pub(crate) fn unmarked(&self) -> Option<Errno> {
        self.mark.refused().filter(|_| self.sync_failed())
    }

    #[cfg(feature = "simulated")]
    fn is_simulated(&self) -> bool {
        self.kernel.is_some()
    }

    #[cfg(not(feature = "simulated"))]
    fn is_simulated(&self) -> bool {
        false
    }

    /// See [`crate::Disk::sync_failure_fd`].
    pub(crate) fn sync_failure_fd(&self) -> BorrowedFd<'_> {
        self.sync_failure.as_fd()
    }
}
