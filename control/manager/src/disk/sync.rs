//! A disk's sync, on a thread of its own, because that takes as long as the disk wants.
//!
//! With it goes what that thread holds of the disk: where nobody else has it, its last close. Called by `parting`, and
//! for links' clients.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

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

/// What is said when the thread ends, however it does: that it ended alone makes nothing stable.
struct Word {
    /// Nothing when what was written is stable.
    kept: Option<Arc<Disk>>,
    tell: SyncSender<Option<Arc<Disk>>>,
    end: OwnedFd,
}

impl DiskSync {
    /// Begins it.
    ///
    /// # Errors
    /// No descriptor or no thread is left; `disk` is as it was.
    pub(crate) fn begin(disk: &Arc<Disk>) -> std::io::Result<DiskSync> {
        let (sync, word) = DiskSync::with_word(disk)?;
        threads::begin("parting", Kind::Parting, move || word.sync())?;
        Ok(sync)
    }

    fn with_word(disk: &Arc<Disk>) -> std::io::Result<(DiskSync, Word)> {
        let done = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (tell, outcome) = sync_channel(1);
        let word = Word { kept: Some(Arc::clone(disk)), tell, end: done.try_clone()? };
        Ok((DiskSync { done, outcome }, word))
    }

    /// The disk, if what was written could not be made stable; nothing: it is not over, or that was said before.
    pub(crate) fn outcome(&self) -> Option<Option<Arc<Disk>>> {
        self.outcome.try_recv().ok()
    }
}

impl Word {
    fn sync(mut self) {
        if self.kept.as_ref().is_some_and(|disk| disk.sync()) {
            // The last close, with which the locks go, comes before the word of it.
            self.kept = None;
        }
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        let _ = self.tell.send(self.kept.take());
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
    }
}

impl AsFd for DiskSync {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use backend::Source;

    use super::*;

    /// A disk's locks hang on it, and what a client wrote.
    #[test]
    fn only_what_was_made_stable_is_said_to_be() {
        let ends_alone: fn(Word) = drop;
        for (ends, is_stable) in [(Word::sync as fn(Word), true), (ends_alone, false)] {
            let disk = Disk::open(&Source::Memory { size_bytes: 4096 }).expect("a disk");
            let (sync, word) = DiskSync::with_word(&disk).expect("descriptors");
            assert!(sync.outcome().is_none(), "it is under way");
            ends(word);
            assert_eq!(rustix::io::read(&sync.done, &mut [0; 8]), Ok(8), "it is told of");
            let kept = sync.outcome().expect("it is over");
            assert_eq!(kept.is_none(), is_stable);
            assert!(sync.outcome().is_none(), "it is said once");
        }
    }
}
