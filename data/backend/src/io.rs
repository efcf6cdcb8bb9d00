//! What the back-ends of one sidecore share: an io_uring, each disk's share of it, and the requests
//! that wait for others of their disk.
//!
//! Made on the sidecore's thread and used by it alone: the ring belongs to the thread that makes
//! it. The ring is made for the first back-end that needs one, so that null and memory need no
//! io_uring at all. Clients' links are here, too (`links`), of which the kernel knows a socket alone.

mod links;

pub(crate) use links::LinkPlace;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use request::Tag;
use rustix::thread::CpuSet;

use crate::file::Opened;
#[cfg(feature = "simulated")]
use crate::simulated::Ring;
use crate::sys::Command;
#[cfg(not(feature = "simulated"))]
use crate::sys::Ring;
use crate::wake::Waker;
use links::Links;

/// Submission entries at most; more gain nothing, since a pass submits a visit's budget a queue.
const ENTRIES_MAX: u32 = 4096;

/// Commands of one disk with the kernel: a disk that answers late, or never, must leave completion
/// entries to the others. As many as a queue has slots.
const SHARE_MAX: u32 = 256;
/// The same when less than half, and less than a quarter, of the entries is free: however many disks
/// are dead, the next has a few.
const SHARE_HALF_FULL_MAX: u32 = 32;
const SHARE_FULL_MAX: u32 = 4;
/// Those of them that the kernel runs on threads of a pool (flushes, discards, zeroes): all disks
/// share it.
const SLOW_MAX: u32 = 4;

/// One sidecore's way to the kernel.
#[derive(Debug)]
pub struct Io {
    ring: Option<Ring>,
    entries: u32,
    /// Where the kernel's threads for it may run, if not anywhere.
    workers: Option<CpuSet>,
    /// Tells the users of one `Io` from those of another.
    identity: u32,
    /// The disks with queues here, each at its place.
    joined: Vec<Option<Joined>>,
    /// Requests that wait, of all disks.
    waiting: usize,
    /// Made with the ring; tried again before a sleep with requests that wait.
    waker: Option<Waker>,
    links: Links,
}

/// A disk, for as long as it has queues here. Keeps its descriptors open for what is queued.
#[derive(Debug)]
struct Joined {
    file: Arc<Opened>,
    users: u32,
    /// Commands with the kernel, and how many of them are slow ones.
    in_flight: u32,
    slow: u32,
    /// By [`Wait::list`], each in order of arrival.
    waiting: [VecDeque<Waiter>; 3],
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    tag: Tag,
    wait: Wait,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// That a flush of at least this number has ended well, or may begin.
    Flush(u64),
    /// That writes through the page cache may start.
    Write,
    /// That another slow command may begin.
    Slow,
}

impl Wait {
    fn list(self) -> usize {
        match self {
            Wait::Flush(_) => 0,
            Wait::Write => 1,
            Wait::Slow => 2,
        }
    }
}

impl Joined {
    fn new(file: &Arc<Opened>) -> Joined {
        let file = Arc::clone(file);
        Joined { file, users: 0, in_flight: 0, slow: 0, waiting: Default::default() }
    }

    /// Whether what a request waits for has come.
    fn is_ready(&self, wait: Wait) -> bool {
        let slow = self.slow < SLOW_MAX;
        match wait {
            Wait::Flush(needed) => {
                let flushes = &self.file.flushes;
                let ended = flushes.ended_well(needed) || self.file.sync_failed();
                ended || slow && !flushes.is_busy()
            }
            Wait::Write => self.file.writers.may_start(),
            Wait::Slow => slow,
        }
    }

    /// The list whose first may go on.
    fn ready(&self) -> Option<usize> {
        self.waiting.iter().position(|list| list.front().is_some_and(|one| self.is_ready(one.wait)))
    }
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
        let (joined, waiting, waker, links) = (Vec::new(), 0, None, Links::default());
        Ok(Io { ring: None, entries, workers: None, identity, joined, waiting, waker, links })
    }

    /// The threads on which the kernel does what it cannot do at once (flushes, discards) run on these
    /// processors alone. To be called before the first disk joins.
    pub fn keep_workers_on(&mut self, cpus: CpuSet) {
        self.workers = Some(cpus);
    }

    /// Requests that can be submitted now. Each takes at most one.
    #[inline]
    pub fn room(&self) -> usize {
        self.ring.as_ref().map_or(self.entries as usize, Ring::room)
    }

    /// Requests submitted and not reaped, those that wait for others included, and parts of requests to remote disks.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.ring.as_ref().map_or(0, Ring::in_flight) + self.waiting + self.links.in_flight()
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

    /// Hands over what was queued since, without asking for completions. No system call when that is
    /// nothing. To be called when all is reaped, because completions may have been resumed.
    ///
    /// # Errors
    /// As [`Self::enter`].
    #[inline]
    pub fn hand_over(&mut self) -> io::Result<()> {
        match &mut self.ring {
            Some(ring) if ring.queued() > 0 => ring.enter(),
            _ => Ok(()),
        }
    }

    /// The next completion that the kernel has posted: whose it is, and what it said; after those,
    /// requests that waited for another one and may go on; after those, parts of requests to remote disks. Reads
    /// memory only.
    #[inline]
    pub fn reap_one(&mut self) -> Option<(Tag, i32)> {
        let completed = self.ring.as_mut().and_then(Ring::reap_one);
        let completed = completed.or_else(|| match self.waiting {
            0 => None,
            _ => self.resume_one(),
        });
        completed.or_else(|| self.links.reap_one())
    }

    /// A request that may go on, as a completion that says nothing.
    fn resume_one(&mut self) -> Option<(Tag, i32)> {
        let waiter = self.joined.iter_mut().flatten().find_map(|joined| {
            let list = joined.ready()?;
            joined.waiting.get_mut(list)?.pop_front()
        })?;
        self.waiting -= 1;
        Some((waiter.tag, 0))
    }

    /// Whether its thread may sleep on [`Self::poll_fd`]: nothing is queued or may go on, and whoever
    /// ends what requests here wait for, on whatever thread, makes the descriptor readable. To be
    /// asked last before each sleep. Two loads when nothing waits.
    pub fn may_rest(&mut self) -> bool {
        if !self.links.may_rest() {
            return false;
        }
        let Some(ring) = &mut self.ring else { return true };
        if self.waiting == 0 {
            return ring.queued() == 0;
        }
        if self.waker.is_none() {
            self.waker = Waker::new();
        }
        let Some(waker) = &self.waker else { return false };
        if !ring.watches() {
            waker.reset();
            if !ring.watch(waker.event()) {
                return false;
            }
        }
        for joined in self.joined.iter().flatten() {
            if joined.waiting.iter().any(|list| !list.is_empty()) {
                joined.file.sleepers.add(waker);
            }
        }
        // An error leaves something queued.
        let _ = self.hand_over();
        self.ring.as_ref().is_some_and(|ring| ring.queued() == 0)
            && !self.joined.iter().flatten().any(|joined| joined.ready().is_some())
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
        // With nothing in flight nobody reaps, and what is there can only be the watch of an earlier
        // sleep. Left there, it would keep the descriptor readable.
        if self.in_flight() == 0
            && let Some(ring) = &mut self.ring
        {
            let none = ring.reap_one();
            debug_assert!(none.is_none(), "{none:?} completed, and nothing is in flight");
        }
    }

    /// Whether `place` was given by this `Io`.
    #[inline]
    pub(crate) fn gave(&self, place: Place) -> bool {
        place.identity == self.identity
    }

    /// Gives a disk a place, or counts another user of it, which has up to `slots` requests in flight.
    pub(crate) fn join(&mut self, file: &Arc<Opened>, slots: usize) -> io::Result<Place> {
        #[cfg(feature = "simulated")]
        if let (None, Some(kernel)) = (&self.ring, file.kernel()) {
            self.ring = Some(Ring::of(kernel)?);
        }
        if self.ring.is_none() {
            self.ring = Some(Ring::new(self.entries, self.workers.as_ref())?);
        }
        if self.waker.is_none() {
            // With the ring, not before the first sleep that needs it: that is in the midst of a pass.
            self.waker = Waker::new();
        }
        let identity = self.identity;
        let known = self.joined.iter().position(|joined| {
            joined.as_ref().is_some_and(|joined| Arc::ptr_eq(&joined.file, file))
        });
        let at = match known {
            Some(at) => at,
            None => match self.joined.iter().position(Option::is_none) {
                Some(at) => at,
                None => {
                    self.joined.push(None);
                    self.joined.len() - 1
                }
            },
        };
        if let Some(place) = self.joined.get_mut(at) {
            let joined = place.get_or_insert_with(|| Joined::new(file));
            joined.users += 1;
            // All that the queue has in flight may come to wait.
            joined.waiting.iter_mut().for_each(|list| list.reserve(joined.users as usize * slots));
        }
        Ok(Place { identity, at })
    }

    /// One user less; with the last the disk goes.
    pub(crate) fn leave(&mut self, place: Place) {
        let Some(here) = self.joined.get_mut(place.at) else { return };
        if let Some(joined) = here {
            joined.users -= 1;
            if joined.users == 0 {
                self.waiting -= joined.waiting.iter().map(VecDeque::len).sum::<usize>();
                *here = None;
            }
        }
    }

    /// See [`crate::Backend::has_room`].
    #[inline]
    pub(crate) fn has_room(&self, place: Place) -> bool {
        let (Some(joined), Some(ring)) = (self.joined(place), &self.ring) else { return true };
        let most = match ring.free_256ths() {
            128.. => SHARE_MAX,
            64..128 => SHARE_HALF_FULL_MAX,
            _ => SHARE_FULL_MAX,
        };
        joined.in_flight < most
    }

    /// Whether another slow command of this disk may be pushed.
    #[inline]
    pub(crate) fn has_room_for_slow(&self, place: Place) -> bool {
        self.joined(place).is_none_or(|joined| joined.slow < SLOW_MAX)
    }

    /// Keeps a request until what it waits for has come; [`Self::reap_one`] then yields its tag.
    /// `again`: it has waited, and another was faster.
    pub(crate) fn wait(&mut self, place: Place, tag: Tag, wait: Wait, again: bool) -> bool {
        let Some(joined) = self.joined.get_mut(place.at).and_then(Option::as_mut) else {
            return false;
        };
        let Some(list) = joined.waiting.get_mut(wait.list()) else { return false };
        if again {
            list.push_front(Waiter { tag, wait });
        } else {
            list.push_back(Waiter { tag, wait });
        }
        self.waiting += 1;
        true
    }

    /// The kernel has completed a command that was pushed.
    #[inline]
    pub(crate) fn ended(&mut self, place: Place, was_slow: bool) {
        if let Some(joined) = self.joined.get_mut(place.at).and_then(Option::as_mut) {
            joined.in_flight = joined.in_flight.saturating_sub(1);
            joined.slow = joined.slow.saturating_sub(was_slow.into());
        }
    }

    #[inline]
    fn joined(&self, place: Place) -> Option<&Joined> {
        self.joined.get(place.at)?.as_ref()
    }

    /// Queues one command. Where the ring is full, it is entered first.
    #[inline]
    pub(crate) fn push(
        &mut self,
        place: Place,
        file: BorrowedFd<'_>,
        command: &Command<'_>,
        tag: Tag,
    ) -> bool {
        let Some(joined) = self.joined.get_mut(place.at).and_then(Option::as_mut) else {
            return false;
        };
        let pushed = self.ring.as_mut().is_some_and(|ring| ring.push(file, command, tag));
        joined.in_flight += u32::from(pushed);
        joined.slow += u32::from(pushed && command.is_slow());
        pushed
    }
}
