//! A disk's sync, on a thread of its own, because that takes as long as the disk wants.
//!
//! With it goes what that thread holds of the disk: where nobody else has it, its last close. Called by `parting`, and
//! for links' clients.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use backend::Disk;
use confine::Kind;
use rustix::event::{EventfdFlags, eventfd};

use crate::threads;

/// It, under way.
#[derive(Debug)]
pub(crate) struct DiskSync {
    /// Readable when it is over.
    done: OwnedFd,
    /// The disk comes back when what was written could not be made stable.
    outcome: Receiver<Option<Arc<Disk>>>,
}

impl DiskSync {
    /// Begins it.
    ///
    /// # Errors
    /// No descriptor or no thread is left; `disk` is as it was.
    pub(crate) fn begin(disk: &Arc<Disk>) -> std::io::Result<DiskSync> {
        let done = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (end, disk) = (done.try_clone()?, Arc::clone(disk));
        let (tell, outcome) = sync_channel(1);
        threads::begin("parting", Kind::Parting, move || {
            let kept = if disk.sync() { None } else { Some(Arc::clone(&disk)) };
            // The last close, with which the locks go, comes before the word of it.
            drop(disk);
            let _ = tell.send(kept);
            let _ = rustix::io::write(&end, &1u64.to_ne_bytes());
        })?;
        Ok(DiskSync { done, outcome })
    }

    /// The disk, if what was written could not be made stable; nothing: it is not over yet.
    pub(crate) fn outcome(&self) -> Option<Option<Arc<Disk>>> {
        match self.outcome.try_recv() {
            Err(TryRecvError::Empty) => None,
            outcome => Some(outcome.ok().flatten()),
        }
    }
}

impl AsFd for DiskSync {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}
