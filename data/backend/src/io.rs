//! What the back-ends of one sidecore share: an io_uring and its table of files.
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
use crate::sys::{Command, Ring, Target};

/// Submission entries at most; more gain nothing, since a pass submits a visit's budget a queue.
const ENTRIES_MAX: u32 = 4096;

/// One sidecore's way to the kernel.
#[derive(Debug)]
pub struct Io {
    ring: Option<Ring>,
    entries: u32,
    /// Tells the users of one `Io` from those of another.
    identity: u32,
    /// Files in the ring's table, and for how many queues.
    joined: Vec<Joined>,
}

#[derive(Debug)]
struct Joined {
    file: Arc<Opened>,
    users: u32,
    places: Places,
}

/// How a file is named in commands to one `Io`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    identity: u32,
    /// Through the page cache.
    pub(crate) cached: Target,
    /// Past it, when the file can be opened so.
    pub(crate) direct: Option<Target>,
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

    /// Whether `places` were given by this `Io`.
    #[inline]
    pub(crate) fn gave(&self, places: &Places) -> bool {
        places.identity == self.identity
    }

    /// Puts a file into the table, or counts another user of it.
    pub(crate) fn join(&mut self, file: &Arc<Opened>) -> io::Result<Places> {
        let ring = match &mut self.ring {
            Some(ring) => ring,
            none => none.insert(Ring::new(self.entries)?),
        };
        if let Some(joined) = self.joined.iter_mut().find(|joined| Arc::ptr_eq(&joined.file, file))
        {
            joined.users += 1;
            return Ok(joined.places);
        }
        let cached = ring.register(file.cached());
        let direct = file.direct().map(|fd| ring.register(fd));
        let places = Places { identity: self.identity, cached, direct };
        self.joined.push(Joined { file: Arc::clone(file), users: 1, places });
        Ok(places)
    }

    /// One user less; the last takes the file out of the table.
    pub(crate) fn leave(&mut self, file: &Arc<Opened>) {
        let same = |joined: &Joined| Arc::ptr_eq(&joined.file, file);
        let Some(at) = self.joined.iter().position(same) else { return };
        let Some(joined) = self.joined.get_mut(at) else { return };
        joined.users -= 1;
        if joined.users > 0 {
            return;
        }
        let joined = self.joined.swap_remove(at);
        if let Some(ring) = &mut self.ring {
            ring.unregister(joined.places.cached);
            if let Some(direct) = joined.places.direct {
                ring.unregister(direct);
            }
        }
    }

    /// Queues one command. Where the ring is full, it is entered first.
    #[inline]
    pub(crate) fn push(&mut self, target: Target, command: &Command<'_>, tag: Tag) -> bool {
        self.ring.as_mut().is_some_and(|ring| ring.push(target, command, tag))
    }
}
