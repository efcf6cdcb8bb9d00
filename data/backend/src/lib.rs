//! Where requests go: nothing (`null`), memory, a file or block device, a disk at an IOhost ([`link`]). And where frames
//! go that leave for the host: [`net`], which has nothing in common with the rest but `sys`.
//!
//! A [`Disk`] is opened once per device by control. Each of its queues gets a [`Backend`] that moves
//! with the queue, and each sidecore has one [`Io`], the io_uring its back-ends share. Not here:
//! rings of guests (`virtqueue`), what a request means (`device`), and whose turn it is (`schedule`).
//!
//! Called by `sidecore` (`submit`, `completed`) and `manager` (`Disk::open_by`, `resize`).
//!
//! # The life of a request
//!
//! 1. [`Io::room`] and [`Backend::has_room`] are asked, unless [`Backend::answers_at_once`].
//! 2. [`Backend::submit`] ends it, or says [`Started::Pending`].
//! 3. [`Io::enter`] hands everything submitted to the kernel: one system call a pass, none when there
//!    is nothing to hand over and nothing to fetch.
//! 4. [`Io::reap_one`] (or [`Io::reap`]) yields tags and results; [`Backend::completed`] ends the
//!    request or goes on with it (a short transfer, the next step). A request that waits for another
//!    one of its disk comes out here, too, when it may go on. A long one is done in chunks: it says
//!    [`Outcome::Turn`] after each, and goes on by [`Backend::go_on`] when its queue is visited.
//! 5. [`Io::hand_over`] when all is reaped, and [`Io::may_rest`] before sleep.
//!
//! # What is promised
//!
//! - A flush that ends `Ok` covers every write that ended before it was submitted. Once the kernel
//!   reported a failure to make data stable, no later flush of that disk ends `Ok`
//!   ([`Disk::sync_failed`]).
//! - Memory given to the kernel was checked against the guest's map. Whoever submits keeps that map
//!   until the request has ended; see `sys`.
//! - What `submit` itself reads into guest memory is marked in the dirty log; what a completion
//!   brought is marked by the caller, who knows the segments.

mod bytes;
mod disk;
pub mod fault;
mod file;
mod io;
#[cfg(test)]
mod lacking;
pub mod link;
mod memory;
mod names;
pub mod net;
mod null;
mod segments;
#[cfg(feature = "simulated")]
mod simulated;
mod staged;
mod sys;
pub mod trace;
mod wake;

pub use bytes::Bytes;
pub use disk::{
    Anchor, Cache, Disk, Grain, Handles, Inherited, Limits, OpenError, RemoteDisk, ResizeError,
    Source,
};
pub use file::{
    Astray, FaultSnapshot, File, Foreign, Holder, ImageFacts, LET_IT_MOVE, Progress, STOP_IT, Vet,
    lock_holder,
};
pub use io::Io;
pub use memory::Memory;
pub use names::{KernelNames, Names, Unopened};
pub use null::Null;
#[cfg(feature = "simulated")]
pub use simulated::{Asked, Kernel, stand_in};
pub use staged::{Look, Staged, Stages};
pub use sys::take_short_turns;

use guest_memory::GuestMap;
use request::{Request, Status, Tag};

/// Unit of sizes and limits, bytes.
pub const SECTOR_SIZE: u64 = 512;

/// Whether this kernel lets an io_uring be restricted to the operations that are used here (5.10).
/// Every one is, then.
pub fn rings_are_restricted() -> bool {
    sys::is_restricted()
}

/// What became of a request that was submitted, or tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// As [`Outcome::Done`].
    Done(Status),
    /// As [`Outcome::Pending`].
    Pending,
    /// As [`Outcome::Turn`]. Of a [`Backend::Staged`] alone.
    Turn,
    /// As [`Outcome::Stalled`].
    Stalled(Stall),
}

impl From<Started> for Outcome {
    #[inline]
    fn from(started: Started) -> Outcome {
        match started {
            Started::Done(status) => Outcome::Done(status),
            Started::Pending => Outcome::Pending,
            Started::Turn => Outcome::Turn,
            Started::Stalled(stall) => Outcome::Stalled(stall),
        }
    }
}

/// What became of a request of which something has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ended.
    Done(Status),
    /// Its medium has done it: [`Backend::settle`] is to be called, with the time. Of a [`Backend::Staged`] alone.
    Passed(Status),
    /// Its tag will come out of [`Io::reap_one`].
    Pending,
    /// Its next chunk waits for its queue's turn: [`Backend::go_on`] is to be called.
    Turn,
    /// It failed for now, and its disk's [`Waits`] say that it is to wait. Nothing is kept of it here:
    /// [`Backend::resume`] tries it again, or, of one that was submitted without a tag, `submit`.
    Stalled(Stall),
}

/// What became of a turn, and what that took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Bytes of the queue's share.
    pub bytes: u64,
    /// The caller's thread has copied a chunk, or will, of a request that takes many such turns.
    pub copies: bool,
    /// What became of the request.
    pub outcome: Outcome,
}

/// Why a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// There is no space for it (`ENOSPC`, `EDQUOT`).
    Full,
    /// The medium failed (`EIO` and its kin).
    Failed,
}

/// Which failures a request waits out instead of ending with an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// [`Stall::Full`].
    pub full: bool,
    /// [`Stall::Failed`].
    pub failed: bool,
}

/// One queue's way to its disk. Moves with the queue.
// Each request asks which one several times: with a number of its own that is one comparison.
#[derive(Debug)]
#[repr(u8)]
pub enum Backend {
    /// Answers without doing.
    Null(Null),
    /// A RAM disk.
    Memory(Memory),
    /// A file or block device.
    File(File),
    /// A disk at an IOhost.
    Remote(link::Remote),
    /// One of those, and something on the way to it.
    Staged(Box<Staged>),
}

impl Backend {
    /// Starts a request. To be called with [`Io::room`] above zero, unless
    /// [`Self::answers_at_once`]; `memory` must live until the request has ended.
    #[inline(always)]
    pub fn submit(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
    ) -> Started {
        match self {
            Backend::Null(null) => Started::Done(null.serve(request)),
            Backend::Memory(disk) => Started::Done(disk.serve(request, memory)),
            Backend::File(file) => file.submit(io, request, memory, tag),
            Backend::Remote(remote) => remote.submit(io, request, memory, tag),
            Backend::Staged(staged) => staged.submit(io, request, memory, tag),
        }
    }

    /// Goes on with a request of which the kernel said `result`. `Pending`: it was resumed, and
    /// [`Io::hand_over`] gives it to the kernel.
    pub fn completed(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
        result: i32,
        progress: &mut Progress,
    ) -> Outcome {
        match self {
            Backend::File(file) => file.completed(io, request, memory, tag, result, progress),
            Backend::Remote(remote) => remote.completed(io, request, memory, tag),
            Backend::Staged(staged) => staged.completed(io, request, memory, tag, result, progress),
            // Neither ever submits, so no tag of theirs completes.
            Backend::Null(_) | Backend::Memory(_) => Outcome::Done(Status::IoError),
        }
    }

    /// Tries a request again that stalled, and that has kept its `progress`. To be called with
    /// [`Io::room`] and [`Self::has_room`]. Also how many bytes of the queue's share that takes.
    pub fn resume(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
        progress: &mut Progress,
        now_ns: u64,
    ) -> (u64, Started) {
        match self {
            Backend::File(file) => file.resume(io, request, memory, tag, progress),
            Backend::Staged(staged) => staged.resume(io, request, memory, tag, progress, now_ns),
            // None of them stalls.
            Backend::Null(_) | Backend::Memory(_) | Backend::Remote(_) => {
                (request.len, self.submit(io, request, memory, tag))
            }
        }
    }

    /// Goes on with a request that waits for a turn: at most one chunk of it is copied, and the next one given
    /// to the kernel.
    pub fn go_on(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
        progress: &mut Progress,
        now_ns: u64,
    ) -> Turn {
        match self {
            Backend::File(file) => file.go_on(io, request, memory, tag, progress),
            Backend::Staged(staged) => staged.go_on(io, request, memory, tag, progress, now_ns),
            // None of them says that it waits for one.
            Backend::Null(_) | Backend::Memory(_) | Backend::Remote(_) => {
                Turn { bytes: 0, copies: false, outcome: Outcome::Done(Status::IoError) }
            }
        }
    }

    /// Bytes of a transfer of `len` bytes that [`Self::submit`] takes of its queue's share; what follows is
    /// told by [`Self::go_on`].
    #[inline]
    pub fn first_bytes(&self, len: u64) -> u64 {
        match self {
            Backend::File(_) => len.min(file::CHUNK_BYTES),
            Backend::Staged(staged) => staged.first_bytes(len),
            Backend::Null(_) | Backend::Memory(_) | Backend::Remote(_) => len,
        }
    }

    /// Bytes of a request of `len` bytes that [`Self::submit`] has done, or taken of its queue's share, where it said
    /// [`Started::Turn`]; what follows is told by [`Self::go_on`].
    #[cold]
    pub fn begun_bytes(&self, tag: Tag, len: u64) -> u64 {
        match self {
            Backend::Staged(staged) => staged.begun_bytes(tag, len),
            Backend::File(_) | Backend::Null(_) | Backend::Memory(_) | Backend::Remote(_) => {
                self.first_bytes(len)
            }
        }
    }

    /// Whether `submit` always ends the request, or has it stall, and needs neither room nor a tag: null, memory, and
    /// files that live in memory (tmpfs).
    pub fn answers_at_once(&self) -> bool {
        match self {
            Backend::Null(_) | Backend::Memory(_) => true,
            Backend::File(file) => file.answers_at_once(),
            Backend::Remote(_) | Backend::Staged(_) => false,
        }
    }

    /// Of a request to a back-end that answers at once, what is done in one go, where `wanted` bytes would
    /// suit the caller: for `null` all of it, since it takes no time; for a file in memory 64 KiB at least,
    /// since each chunk is a system call.
    pub fn slice_bytes(&self, wanted: u64) -> u64 {
        match self {
            Backend::Null(_) => u64::MAX,
            Backend::Memory(_) | Backend::Remote(_) | Backend::Staged(_) => wanted,
            Backend::File(_) => wanted.max(64 << 10),
        }
    }

    /// Whether another request may be submitted, as far as this disk's share of `io` goes: at most 256
    /// commands with the kernel, fewer when `io` is more than half full. False: leave the request in
    /// its ring. Cheap; to be asked beside [`Io::room`].
    #[inline]
    pub fn has_room(&self, io: &Io) -> bool {
        match self {
            Backend::Null(_) | Backend::Memory(_) => true,
            Backend::File(file) => file.has_room(io),
            Backend::Remote(remote) => remote.has_room(io),
            Backend::Staged(staged) => staged.has_room(io),
        }
    }

    /// Takes from `io` what serving will need (its io_uring, a place among its disks), so that
    /// the first request does not. Optional.
    ///
    /// # Errors
    /// What the kernel said to making an io_uring; `NotConnected`: the link of a remote disk, or that disk, is not here.
    pub fn join(&mut self, io: &mut Io) -> std::io::Result<()> {
        match self {
            Backend::Null(_) | Backend::Memory(_) => Ok(()),
            Backend::File(file) => file.join(io),
            Backend::Remote(remote) => remote.join(io),
            Backend::Staged(staged) => staged.medium_mut().join(io),
        }
    }

    /// Gives back what `join` (or the first request) took. To be called before the queue moves away
    /// from the sidecore, with nothing in flight; otherwise `io` keeps the file open. Of a remote disk requests may be
    /// under way: nobody is told of their ends, and no other request of that disk is taken before those.
    pub fn leave(&mut self, io: &mut Io) {
        match self {
            Backend::Null(_) | Backend::Memory(_) => {}
            Backend::File(file) => file.leave(io),
            Backend::Remote(remote) => remote.leave(io),
            Backend::Staged(staged) => staged.medium_mut().leave(io),
        }
    }

    /// Whether whoever visits its queue is to say so: [`Self::begin`] before requests are taken, [`Self::end`]
    /// afterwards.
    pub fn is_staged(&self) -> bool {
        matches!(self, Backend::Staged(_))
    }

    /// Requests are taken from here on.
    pub fn begin(&mut self, look: Look) {
        if let Backend::Staged(staged) = self {
            staged.begin(look);
        }
    }

    /// Parts of what was taken may have so many bytes from here on: those of the last visit, whose neighbours may be gone,
    /// do not count any more.
    pub fn goes_on_by(&mut self, slice_bytes: u64) {
        if let Backend::Staged(staged) = self {
            staged.goes_on_by(slice_bytes);
        }
    }

    /// How long what is taken was held by a limit before, as far as that was said in the turn that began at `turn_ns`. For
    /// [`Look::held_ns`] of each piece of a turn.
    pub fn held_in(&mut self, turn_ns: u64) -> u64 {
        match self {
            Backend::Staged(staged) => staged.held_in(turn_ns),
            Backend::Null(_) | Backend::Memory(_) | Backend::File(_) | Backend::Remote(_) => 0,
        }
    }

    /// What is taken from here on was held by a limit before, for so long.
    pub fn held(&mut self, held_ns: u64) {
        if let Backend::Staged(staged) = self {
            staged.held(held_ns);
        }
    }

    /// No more are, and it is `now_ns`.
    pub fn end(&mut self, now_ns: u64) {
        if let Backend::Staged(staged) = self {
            staged.end(now_ns);
        }
    }

    /// What becomes of a request that its medium has done at `now_ns`: its end, or [`Outcome::Pending`] where its answer is
    /// held.
    #[cold]
    pub fn settle(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        tag: Tag,
        status: Status,
        now_ns: u64,
    ) -> Outcome {
        match self {
            Backend::Staged(staged) => {
                staged.settle(io, request, tag, Outcome::Done(status), now_ns)
            }
            Backend::Null(_) | Backend::Memory(_) | Backend::File(_) | Backend::Remote(_) => {
                Outcome::Done(status)
            }
        }
    }

    /// The next slot whose answer was held until `until_ns` at most, and how its request ended; it is given at `now_ns`. To
    /// be followed by [`Self::release`].
    pub fn take_due(&mut self, until_ns: u64, now_ns: u64) -> Option<(u16, Status)> {
        match self {
            Backend::Staged(staged) => staged.take_due(until_ns, now_ns),
            Backend::Null(_) | Backend::Memory(_) | Backend::File(_) | Backend::Remote(_) => None,
        }
    }

    /// How many answers are held.
    pub fn held_answers(&self) -> u16 {
        match self {
            Backend::Staged(staged) => staged.held_answers(),
            Backend::Null(_) | Backend::Memory(_) | Backend::File(_) | Backend::Remote(_) => 0,
        }
    }

    /// The guest is told now how a request ended whose answer was held.
    pub fn release(&mut self, request: &Request<'_>, tag: Tag, status: Status, now_ns: u64) {
        if let Backend::Staged(staged) = self {
            staged.release(request, tag, status, now_ns);
        }
    }

    /// When the next answer that is held is due, nanoseconds.
    pub fn next_due(&self) -> Option<u64> {
        match self {
            Backend::Staged(staged) => staged.next_due(),
            Backend::Null(_) | Backend::Memory(_) | Backend::File(_) | Backend::Remote(_) => None,
        }
    }

    /// Its queue was served by `before` until now, of the same disk, with which nothing of it is any more. What is known
    /// of requests that have stalled goes on here.
    pub fn come_from(&mut self, before: Backend) {
        if let (Backend::Staged(staged), Backend::Staged(before)) = (self, before) {
            staged.come_from(*before);
        }
    }

    /// Whether nothing refers to a guest's memory between [`Self::submit`] and [`Self::completed`]: a queue whose
    /// memory is lost may leave at once.
    pub fn holds_no_memory(&self) -> bool {
        match self {
            Backend::Remote(_) => true,
            Backend::Staged(staged) => staged.medium().holds_no_memory(),
            Backend::Null(_) | Backend::Memory(_) | Backend::File(_) => false,
        }
    }
}
