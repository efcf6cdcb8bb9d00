//! What the back-ends of one sidecore share: an io_uring, each disk's share of it, and the requests
//! that wait for others of their disk.
//!
//! Made on the sidecore's thread and used by it alone: the ring belongs to the thread that makes
//! it. The ring is made for the first back-end that needs one, so that null and memory need no
//! io_uring at all. Clients' links are here, too (`links`), of which the kernel knows a socket alone.

mod links;
mod noted;

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
#[cfg(not(feature = "simulated"))]
use crate::sys::Ring;
use crate::sys::{Bounce, Command, Effort};
use crate::wake::Waker;
use links::Links;
use noted::Noted;

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
/// And long transfers through the page cache, which such threads do as well.
const BULK_MAX: u32 = 4;
/// Bytes of short transfers through the page cache that are with the kernel: those that wait for the device
/// are all copied in the one call that finds it has answered. What comes on top is given to threads. Of one
/// disk, and of all disks of a sidecore.
const SHORT_BYTES_MAX: u64 = 1 << 20;
const SHORT_BYTES_ALL_MAX: u64 = 4 << 20;
/// So much handed over as soon as it is queued: in bytes that the kernel copies meanwhile, some 10 us. Who
/// queued it is charged for the time.
const LADEN_BYTES: u64 = 64 << 10;

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
    /// Bytes of short transfers through the page cache, of all disks.
    short_bytes: u64,
    /// Made with the ring; tried again before a sleep with requests that wait.
    waker: Option<Waker>,
    links: Links,
    /// Places of queues with requests that stalled, or whose answers are held, for the sidecore.
    stalled: Noted,
}

/// A disk, for as long as it has queues here. Keeps its descriptors open for what is queued.
#[derive(Debug)]
struct Joined {
    file: Arc<Opened>,
    users: u32,
    /// Commands with the kernel, and how many of them are slow ones.
    in_flight: u32,
    slow: u32,
    bulk: u32,
    short_bytes: u64,
    /// Of a disk that goes past the page cache, and if there was memory.
    bounce: Option<Bounce>,
    /// By [`Wait::list`], each in order of arrival.
    waiting: [VecDeque<Waiter>; 5],
}

/// What of its disk's share a command takes while the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// One of its commands. What starting it costs, in bytes that are copied meanwhile.
    Light(u64),
    /// So many bytes through the page cache, copied by whoever finds them there.
    Short(u64),
    /// A transfer for a thread of the kernel's.
    Bulk,
    /// What such threads do anyway.
    Slow,
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
    /// That another long transfer through the page cache may begin.
    Bulk,
    /// That a buffer is free.
    Buffer,
}

impl Wait {
    fn list(self) -> usize {
        match self {
            Wait::Flush(_) => 0,
            Wait::Write => 1,
            Wait::Slow => 2,
            Wait::Bulk => 3,
            Wait::Buffer => 4,
        }
    }
}

impl Joined {
    fn new(file: &Arc<Opened>) -> Joined {
        let file = Arc::clone(file);
        let bounce = if file.bounces() { Bounce::new() } else { None };
        let (users, in_flight, slow, bulk, short_bytes) = (0, 0, 0, 0, 0);
        let waiting = Default::default();
        Joined { file, users, in_flight, slow, bulk, short_bytes, bounce, waiting }
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
            Wait::Bulk => self.bulk < BULK_MAX,
            Wait::Buffer => self.bounce.as_ref().is_none_or(Bounce::has_some),
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
        let (ring, workers, short_bytes, stalled) = (None, None, 0, Noted::new());
        let io = Io {
            ring,
            entries,
            workers,
            identity,
            joined,
            waiting,
            short_bytes,
            waker,
            links,
            stalled,
        };
        Ok(io)
    }

    /// The threads on which the kernel does what it cannot do at once (flushes, discards) run on these
    /// processors alone. To be called before the first disk joins.
    pub fn keep_workers_on(&mut self, cpus: CpuSet) {
        self.workers = Some(cpus);
    }

    /// Takes the memory for notes of so many places ([`Self::note_stalled`]): all that its sidecore has. To be
    /// called before the first queue is attached.
    pub fn expect_places(&mut self, places: usize) {
        self.stalled.reserve(places);
    }

    /// For how many places there is memory.
    pub fn expected_places(&self) -> usize {
        self.stalled.expected()
    }

    /// The queue at `place` of its sidecore has requests that stalled ([`crate::Outcome::Stalled`]), and is to be looked at
    /// at once, and when that look says so ([`Self::note_due`]), until it has none, or leaves ([`Self::forget_stalled`]).
    #[cold]
    pub fn note_stalled(&mut self, place: u16) {
        self.stalled.note(place, 0);
    }

    /// The same at that moment, nanoseconds, or before: something of it is to be tried again then, or an answer is held
    /// until then.
    #[cold]
    pub fn note_due(&mut self, place: u16, at_ns: u64) {
        self.stalled.note(place, at_ns);
    }

    /// How many places were noted so.
    pub fn stalled(&self) -> usize {
        self.stalled.len()
    }

    /// When one of them is to be looked at, nanoseconds; `u64::MAX` when there is none.
    #[inline]
    pub fn stalled_due(&self) -> u64 {
        self.stalled.first_ns()
    }

    /// One of them that is to be looked at now, and is noted no more. Each walk begins with `left` as [`Self::stalled`]
    /// and ends with `None`; what is noted meanwhile is of the next one.
    pub fn take_stalled(&mut self, now_ns: u64, left: &mut usize) -> Option<u16> {
        self.stalled.take(now_ns, left)
    }

    /// The queue at `place` leaves.
    #[cold]
    pub fn forget_stalled(&mut self, place: u16) {
        self.stalled.forget(place);
    }

    /// Requests that can be submitted now. Each takes at most one.
    #[inline]
    pub fn room(&self) -> usize {
        self.ring.as_ref().map_or(self.entries as usize, Ring::room)
    }

    /// Requests submitted and not reaped, those that wait for others included, and chunks of requests to remote disks.
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

    /// Whether handing over what is queued will take the calling thread so long that whoever queued it
    /// should be charged for it: it is to be handed over now.
    #[inline]
    pub fn is_laden(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.laden() >= LADEN_BYTES)
    }

    /// The most that one handing-over had to do, as [`Self::is_laden`] counts.
    #[cfg(test)]
    pub(crate) fn laden_most(&self) -> u64 {
        self.ring.as_ref().map_or(0, Ring::laden_most)
    }

    /// The next completion that the kernel has posted: whose it is, and what it said; after those,
    /// requests that waited for another one and may go on; after those, chunks of requests to remote disks. Reads
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
                self.short_bytes = self.short_bytes.saturating_sub(joined.short_bytes);
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

    /// How a transfer of `bytes` through the page cache is to go; `None`: it waits ([`Wait::Bulk`]). `is_short`:
    /// it may be copied by the sidecore, if not too much is. `resumed`: it has waited for that already.
    #[inline]
    pub(crate) fn cached(
        &self,
        place: Place,
        bytes: u64,
        is_short: bool,
        resumed: bool,
    ) -> Option<Load> {
        let joined = self.joined(place)?;
        let fits = joined.short_bytes + bytes <= SHORT_BYTES_MAX
            && self.short_bytes + bytes <= SHORT_BYTES_ALL_MAX;
        if is_short && fits {
            return Some(Load::Short(bytes));
        }
        let is_first = resumed || !self.has_waiting(place, Wait::Bulk);
        (is_first && joined.bulk < BULK_MAX).then_some(Load::Bulk)
    }

    /// Whether others of a disk wait for that already.
    pub(crate) fn has_waiting(&self, place: Place, wait: Wait) -> bool {
        let list = self.joined(place).and_then(|joined| joined.waiting.get(wait.list()));
        list.is_some_and(|list| !list.is_empty())
    }

    /// The buffers of a disk.
    #[inline]
    pub(crate) fn bounce(&mut self, place: Place) -> Option<&mut Bounce> {
        self.joined.get_mut(place.at)?.as_mut()?.bounce.as_mut()
    }

    /// Whether a disk has buffers.
    pub(crate) fn bounces(&self, place: Place) -> bool {
        self.joined(place).is_some_and(|joined| joined.bounce.is_some())
    }

    /// The kernel has completed a command that was pushed.
    #[inline]
    pub(crate) fn ended(&mut self, place: Place, load: Load) {
        self.load(place, load, false);
    }

    #[inline]
    fn load(&mut self, place: Place, load: Load, begins: bool) {
        let Some(joined) = self.joined.get_mut(place.at).and_then(Option::as_mut) else { return };
        let count = |count: &mut u32| {
            *count = if begins { *count + 1 } else { count.saturating_sub(1) };
        };
        count(&mut joined.in_flight);
        match load {
            Load::Light(_) => {}
            Load::Slow => count(&mut joined.slow),
            Load::Bulk => count(&mut joined.bulk),
            Load::Short(bytes) => {
                let sum = |sum: u64| {
                    if begins { sum + bytes } else { sum.saturating_sub(bytes) }
                };
                joined.short_bytes = sum(joined.short_bytes);
                self.short_bytes = sum(self.short_bytes);
            }
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
        load: Load,
        tag: Tag,
    ) -> bool {
        if self.joined(place).is_none() {
            return false;
        }
        let effort = match load {
            Load::Light(bytes) | Load::Short(bytes) => Effort::Here(bytes),
            Load::Bulk => Effort::Elsewhere,
            // Tried by the sidecore, and refused at once.
            Load::Slow => Effort::Here(0),
        };
        let pushed = self.ring.as_mut().is_some_and(|ring| ring.push(file, command, effort, tag));
        if pushed {
            self.load(place, load, true);
        }
        pushed
    }
}
