//! What the back-ends of one sidecore share: an io_uring.
//!
//! Made on the sidecore's thread and used by it alone: the ring belongs to the thread that makes
//! it. The ring is made for the first back-end that needs one, so that null and memory need no
//! io_uring at all.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use request::Tag;

use crate::file::Opened;
use crate::sys::{Command, Ring};

/// Submission entries at most; more gain nothing, since a pass submits a visit's budget a queue.
const ENTRIES_MAX: u32 = 4096;

/// One sidecore's way to the kernel.
#[derive(Debug)]
pub struct Io {
    ring: Option<Ring>,
    entries: u32,
    /// Tells the users of one `Io` from those of another.
    identity: u32,
    /// The disks with queues here, each at its place.
    joined: Vec<Option<Joined>>,
}

/// A disk, for as long as it has queues here. Keeps its descriptors open for what is queued.
#[derive(Debug)]
struct Joined {
    file: Arc<Opened>,
    users: u32,
}

/// A disk's place in one `Io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    identity: u32,
    at: usize,
}

impl Io {
    /// One without an io_uring yet, which will have `entries` submission entries (a power of two
    /// from 32 to 4,096 is made of it) and four times as many completion entries.
    ///
    /// # Errors
    /// None today; the kernel is not asked before it is needed ([`crate::Backend::join`]).
    pub fn new(entries: u32) -> io::Result<Io> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let identity = NEXT.fetch_add(1, Ordering::Relaxed);
        let entries = entries.clamp(32, ENTRIES_MAX).next_power_of_two();
        Ok(Io { ring: None, entries, identity, joined: Vec::new() })
    }

    /// Requests that can be submitted now. Each takes at most one.
    #[inline]
    pub fn room(&self) -> usize {
        self.ring.as_ref().map_or(self.entries as usize, Ring::room)
    }

    /// Requests submitted and not reaped.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.ring.as_ref().map_or(0, Ring::in_flight)
    }

    /// Hands what was submitted to the kernel and lets it post what has completed. No system call
    /// when there is neither.
    ///
    /// # Errors
    /// What the kernel said. What was submitted stays queued for the next call; being told to come
    /// again (interrupted, short of memory) is no error.
    #[inline]
    pub fn enter(&mut self) -> io::Result<()> {
        self.ring.as_mut().map_or(Ok(()), Ring::enter)
    }

    /// The next completion that the kernel has posted: whose it is, and what it said. Reads memory
    /// only.
    #[inline]
    pub fn reap_one(&mut self) -> Option<(Tag, i32)> {
        self.ring.as_mut()?.reap_one()
    }

    /// At most `most` completions; how many there were.
    pub fn reap(&mut self, most: usize, mut each: impl FnMut(Tag, i32)) -> usize {
        let mut reaped = 0;
        while reaped < most
            && let Some((tag, result)) = self.reap_one()
        {
            each(tag, result);
            reaped += 1;
        }
        reaped
    }

    /// Readable (level) while completions wait to be reaped. Whoever sleeps on it may also be
    /// interrupted (`EINTR`) by a completion: enter, reap, and look again. `None` as long as there
    /// is no ring; the descriptor never changes afterwards.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().map(AsFd::as_fd)
    }

    /// After [`Self::poll_fd`] was readable: lets the kernel post what it has. Nothing needs to be
    /// read from the descriptor; reaping makes it unreadable again.
    pub fn acknowledge(&mut self) {
        // An error comes again at the pass's own `enter`, where it is counted.
        let _ = self.enter();
    }

    /// Whether `place` was given by this `Io`.
    #[inline]
    pub(crate) fn gave(&self, place: Place) -> bool {
        place.identity == self.identity
    }

    /// Gives a disk a place, or counts another user of it.
    pub(crate) fn join(&mut self, file: &Arc<Opened>) -> io::Result<Place> {
        if self.ring.is_none() {
            self.ring = Some(Ring::new(self.entries)?);
        }
        let identity = self.identity;
        let known = self.joined.iter_mut().enumerate().find_map(|(at, joined)| {
            joined.as_mut().filter(|joined| Arc::ptr_eq(&joined.file, file)).map(|one| (at, one))
        });
        if let Some((at, joined)) = known {
            joined.users += 1;
            return Ok(Place { identity, at });
        }
        let joined = Some(Joined { file: Arc::clone(file), users: 1 });
        let at = match self.joined.iter_mut().position(|place| place.is_none()) {
            Some(at) => {
                self.joined[at] = joined;
                at
            }
            None => {
                self.joined.push(joined);
                self.joined.len() - 1
            }
        };
        Ok(Place { identity, at })
    }

    /// One user less; with the last the disk goes.
    pub(crate) fn leave(&mut self, place: Place) {
        let Some(here) = self.joined.get_mut(place.at) else { return };
        if let Some(joined) = here {
            joined.users -= 1;
            if joined.users == 0 {
                *here = None;
            }
        }
    }

    /// Queues one command. Where the ring is full, it is entered first.
    #[inline]
    pub(crate) fn push(&mut self, file: BorrowedFd<'_>, command: &Command<'_>, tag: Tag) -> bool {
        self.ring.as_mut().is_some_and(|ring| ring.push(file, command, tag))
    }
}
