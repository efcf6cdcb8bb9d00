//! Requests of a block that are in flight at the same time: an io_uring, and memory that stays while the
//! kernel may reach it.
//!
//! Not which requests, nor how long they take. Used by `block`, which knows a request by its slot: its place
//! in the memory.
#![expect(unsafe_code, reason = "io_uring takes addresses, not borrows")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode};

use super::block::{BLOCK_SIZE, Block, Way};

/// An io_uring of as many entries as there are slots, so that nothing that is started finds it full.
pub(super) struct Flight {
    ring: IoUring,
    file: File,
    way: Way,
    /// From `Box::into_raw`; nobody has a reference into it.
    memory: *mut [Block],
    /// Which slots have a request in flight.
    busy: Vec<bool>,
}

impl Flight {
    /// One slot for each block of `memory`; writes write what is in it.
    ///
    /// # Errors
    /// The kernel's: it has no io_uring, or no memory.
    pub(super) fn new(file: File, way: Way, memory: Box<[Block]>) -> io::Result<Flight> {
        let slots = memory.len();
        let ring = IoUring::new(u32::try_from(slots).map_err(io::Error::other)?)?;
        let memory = Box::into_raw(memory);
        Ok(Flight { ring, file, way, memory, busy: vec![false; slots] })
    }

    pub(super) fn way(&self) -> Way {
        self.way
    }

    /// Takes a request at byte `offset`; the next `wait` hands it to the kernel.
    ///
    /// # Errors
    /// There is no such slot, or a request is in it.
    #[inline]
    pub(super) fn start(&mut self, slot: usize, offset: u64) -> io::Result<()> {
        let free = self.busy.get_mut(slot).filter(|busy| !**busy);
        let busy = free.ok_or_else(|| io::Error::other(format!("slot {slot} is not free")))?;
        let file = Fd(self.file.as_raw_fd());
        let bytes = self.memory.cast::<Block>().wrapping_add(slot).cast::<u8>();
        let entry = match self.way {
            Way::Read => opcode::Read::new(file, bytes, BLOCK_SIZE as u32).offset(offset).build(),
            Way::Write => opcode::Write::new(file, bytes, BLOCK_SIZE as u32).offset(offset).build(),
        };
        // SAFETY: `bytes` is a whole block of `memory` (`busy` is as long), to which nobody has a reference,
        // and which with `file` stays until no request is in flight (`drop`).
        unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) }
            .map_err(io::Error::other)?;
        *busy = true;
        Ok(())
    }

    /// Hands over what was started, and waits until something has finished.
    ///
    /// # Errors
    /// The kernel's.
    #[inline]
    pub(super) fn wait(&mut self) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                waited => return waited.map(|_| ()),
            }
        }
    }

    /// A request that has finished: its slot, and the bytes moved.
    #[inline]
    pub(super) fn finished(&mut self) -> Option<(usize, io::Result<usize>)> {
        let entry = self.ring.completion().next()?;
        let slot = entry.user_data() as usize;
        self.busy[slot] = false;
        let result = entry.result();
        let moved = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        Some((slot, moved))
    }
}

impl Drop for Flight {
    /// Waits for what is in flight: the kernel may still reach its memory.
    fn drop(&mut self) {
        while self.busy.contains(&true) {
            if self.wait().is_err() {
                // The memory is left to the process: better lost than written to when it is another's.
                return;
            }
            while self.finished().is_some() {}
        }
        // SAFETY: from `Box::into_raw`, given back once, and no request is in flight.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}
