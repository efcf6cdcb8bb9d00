//! What a VMM changes on a device that runs: its memory, its log, its features, its queues' owner.
//!
//! Each returns when the back-end has said that it is done.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use anyhow::Result;

use super::{FrontQueue, Frontend, MemoryRegion};

/// Writes to guest memory are to be logged.
pub const F_LOG_ALL: u64 = 1 << 26;

impl Frontend {
    /// Gives the queues away, to be driven elsewhere. [`Frontend::queue`] has none from then on,
    /// until [`Frontend::put_queues`].
    pub fn take_queues(&mut self) -> Vec<FrontQueue> {
        std::mem::take(&mut self.queues)
    }

    /// Takes the queues of [`Frontend::take_queues`] back, in their order.
    pub fn put_queues(&mut self, queues: Vec<FrontQueue>) {
        self.queues = queues;
    }

    /// Accepts other features.
    ///
    /// # Errors
    /// The session's.
    pub fn set_features(&mut self, features: u64) -> Result<()> {
        self.session.set_features(features)?;
        self.session.settle()?;
        self.features = features;
        Ok(())
    }

    /// Writes into the config space, as a guest does that chooses write-through.
    ///
    /// # Errors
    /// The session's, or the back-end refused.
    pub fn set_config(&mut self, offset: u32, bytes: &[u8]) -> Result<()> {
        self.session.set_config(offset, bytes)?;
        self.session.settle()
    }

    /// Has guest writes marked in the `len` bytes of `fd` while `F_LOG_ALL` is accepted.
    ///
    /// # Errors
    /// The session's.
    pub fn set_log(&mut self, fd: BorrowedFd<'_>, len: u64) -> Result<()> {
        self.session.set_log_base(len, fd)
    }

    /// Gives the back-end a channel of its own; what it sends comes out of the stream.
    ///
    /// # Errors
    /// The session's, or the system's.
    pub fn open_channel(&mut self) -> Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        self.session.set_backend_req_fd(theirs.as_fd())?;
        Ok(ours)
    }

    /// Resets the device; its queues stop.
    ///
    /// # Errors
    /// The session's.
    pub fn reset(&mut self) -> Result<()> {
        self.session.reset_device()
    }

    /// Announces one more piece of memory.
    ///
    /// # Errors
    /// The session's.
    pub fn add_region(&mut self, region: MemoryRegion, fd: BorrowedFd<'_>) -> Result<()> {
        self.session.add_mem_reg(region, fd)
    }

    /// Takes a piece of memory back.
    ///
    /// # Errors
    /// The session's.
    pub fn remove_region(&mut self, region: MemoryRegion) -> Result<()> {
        self.session.rem_mem_reg(region)
    }

    /// Announces guest memory again, at another address of the front-end, and with it where the
    /// rings of `queues` are now (as many as run).
    ///
    /// # Errors
    /// The session's.
    pub fn move_memory(
        &mut self,
        user_base: u64,
        queues: &[virtqueue::driver::Places],
    ) -> Result<()> {
        self.user_base = user_base;
        self.share_memory()?;
        for (index, places) in (0..).zip(queues) {
            self.tell_places(index, *places)?;
        }
        self.session.settle()
    }
}
