//! A ring whose commands a simulation runs instead of the kernel: when, in what order and with what
//! result is its choice. Only with the feature `simulated`, which no shipped crate asks for (tidy,
//! `unshipped`).
//!
//! All above the ring is the product: what a request needs, whose turn it is, what an answer means. The
//! file that is opened and locked is a real one, of which nothing is read or written. A command holds its
//! description, as the kernel does, so that its locks last as long as what was submitted.
//!
//! Called by `io` (a ring for the first disk that joins) and `file::open` (facts of such a file).

use std::cell::RefCell;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use guest_memory::{GuestMap, Span};
use request::Tag;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::thread::CpuSet;

use crate::file::Holder;
use crate::sys::{self, Allocate, Command, Effort, PIECES_MAX, ZEROES_MAX};
use crate::wake::Waker;

/// Commands in flight and entries of one simulated ring: few, so that a ring that is full is met.
const IN_FLIGHT_MAX: usize = 255;

/// What stands in for the kernel and the devices beneath it.
pub trait Kernel: Debug + Send + Sync {
    /// A file was opened: through the page cache, and past it if that is another description.
    fn opened(&self, path: &Path, cached: BorrowedFd<'_>, direct: Option<BorrowedFd<'_>>);
    /// Everything that was written to a file so far is to be stable: whether it is.
    fn sync(&self, file: BorrowedFd<'_>) -> bool;
    /// Who keeps the locks of a file, if it is not the process that asks: all of them are one to the machine. And whether
    /// requests of a process that has ended may be under way beside somebody who lives.
    fn holder(&self, file: BorrowedFd<'_>) -> Option<(Holder, bool)>;
    /// A ring more, and its number. `done` is to be readable while it has completions.
    fn ring(&self, done: Arc<OwnedFd>) -> u64;
    /// A ring hands over a command for `file`, as it was opened; `held` is the same description. What it asks
    /// for may happen from now on, even when its ring is gone.
    fn submit(&self, ring: u64, file: RawFd, held: OwnedFd, asked: Asked, tag: u64);
    /// The next completion of a ring: tag, and bytes or a negated errno.
    fn reap(&self, ring: u64) -> Option<(u64, i32)>;
    /// The ring is gone: nobody is told of what it submitted.
    fn gone(&self, ring: u64);
}

thread_local! {
    static HERE: RefCell<Option<Arc<dyn Kernel>>> = const { RefCell::new(None) };
}

/// Sidecores of a simulation at most, whose eventfds are made at its start: those stay, so a simulation that counts
/// descriptors is to find them there before.
const SIDECORES_MAX: usize = 16;

/// From now on whatever file this thread opens, or takes over, has its commands run by `kernel`; nobody's without.
pub fn stand_in(kernel: Option<Arc<dyn Kernel>>) {
    drop((0..SIDECORES_MAX).map(|_| Waker::new()).collect::<Vec<_>>());
    drop(HERE.replace(kernel));
}

/// What runs the commands of files that this thread opens, if a simulation does.
pub(crate) fn here() -> Option<Arc<dyn Kernel>> {
    HERE.with(|here| here.borrow().clone())
}

/// A command as the kernel has it once it was submitted.
#[derive(Clone, Debug)]
pub enum Asked {
    /// Between file and guest memory.
    Transfer {
        /// To the file.
        write: bool,
        /// Stable when it ends.
        stable: bool,
        /// Where in the file, bytes.
        offset: u64,
        /// Where in guest memory, at most 256 pieces.
        spans: Vec<Span>,
        /// What they belong to; its dirty log is not the kernel's business.
        memory: GuestMap,
    },
    /// Zeroes, written like data.
    Zeroes {
        /// Where in the file, bytes.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// `fdatasync`.
    Sync,
    /// A hole.
    PunchHole {
        /// Where in the file, bytes.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The file system's own zeroes.
    ZeroRange {
        /// Where in the file, bytes.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Space, without changing what is read.
    Reserve,
}

impl Asked {
    /// `None` when a segment is not in its map.
    fn new(command: &Command<'_>) -> Option<Asked> {
        Some(match *command {
            Command::Transfer { write, stable, offset, skip, most, segments, memory } => {
                let (mut skip, mut left, mut spans) = (skip, most, Vec::new());
                for &segment in segments {
                    let skipped = skip.min(segment.len().into()) as u32;
                    skip -= u64::from(skipped);
                    let span = segment.after(skipped);
                    let span = span.first(left.min(span.len().into()) as u32);
                    left -= u64::from(span.len());
                    memory.host(span)?;
                    if !span.is_empty() && spans.len() < PIECES_MAX {
                        spans.push(span);
                    }
                }
                let memory = memory.with_log(None).ok()?;
                Asked::Transfer { write, stable, offset, spans, memory }
            }
            // A simulated file has no buffers (`file::open`).
            Command::Bounced { .. } => return None,
            Command::Zeroes { offset, len } => Asked::Zeroes { offset, len: len.min(ZEROES_MAX) },
            Command::Sync => Asked::Sync,
            Command::Allocate { mode, offset, len } => match mode {
                Allocate::PunchHole => Asked::PunchHole { offset, len },
                Allocate::ZeroRange => Asked::ZeroRange { offset, len },
                Allocate::Reserve => Asked::Reserve,
            },
        })
    }
}

/// The kernel's ring, or a simulation's.
#[derive(Debug)]
pub(crate) enum Ring {
    Kernel(Box<sys::Ring>),
    Simulated(InMadeUpTime),
}

/// One ring of a simulation.
#[derive(Debug)]
pub(crate) struct InMadeUpTime {
    kernel: Arc<dyn Kernel>,
    number: u64,
    done: Arc<OwnedFd>,
    /// Readable when `done` or what is watched is.
    set: OwnedFd,
    watched: Option<BorrowedFd<'static>>,
    /// Not handed over yet.
    queued: Vec<(RawFd, OwnedFd, Asked, u64)>,
    in_flight: usize,
}

impl Ring {
    pub(crate) fn new(entries: u32, workers: Option<&CpuSet>) -> io::Result<Ring> {
        Ok(Ring::Kernel(Box::new(sys::Ring::new(entries, workers)?)))
    }

    pub(crate) fn of(kernel: &Arc<dyn Kernel>) -> io::Result<Ring> {
        let done = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&set, &done, EventData::new_u64(0), EventFlags::IN)?;
        let number = kernel.ring(Arc::clone(&done));
        let kernel = Arc::clone(kernel);
        let (watched, queued, in_flight) = (None, Vec::new(), 0);
        Ok(Ring::Simulated(InMadeUpTime { kernel, number, done, set, watched, queued, in_flight }))
    }

    pub(crate) fn room(&self) -> usize {
        match self {
            Ring::Kernel(ring) => ring.room(),
            Ring::Simulated(ring) => IN_FLIGHT_MAX.saturating_sub(ring.in_flight),
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        match self {
            Ring::Kernel(ring) => ring.in_flight(),
            Ring::Simulated(ring) => ring.in_flight,
        }
    }

    pub(crate) fn free_256ths(&self) -> usize {
        match self {
            Ring::Kernel(ring) => ring.free_256ths(),
            Ring::Simulated(_) => self.room() * 256 / IN_FLIGHT_MAX,
        }
    }

    pub(crate) fn queued(&self) -> usize {
        match self {
            Ring::Kernel(ring) => ring.queued(),
            Ring::Simulated(ring) => ring.queued.len(),
        }
    }

    pub(crate) fn laden(&self) -> u64 {
        match self {
            Ring::Kernel(ring) => ring.laden(),
            Ring::Simulated(_) => 0,
        }
    }

    #[cfg(test)]
    pub(crate) fn laden_most(&self) -> u64 {
        match self {
            Ring::Kernel(ring) => ring.laden_most(),
            Ring::Simulated(_) => 0,
        }
    }

    pub(crate) fn watch(&mut self, fd: BorrowedFd<'static>) -> bool {
        match self {
            Ring::Kernel(ring) => ring.watch(fd),
            Ring::Simulated(ring) => {
                if ring.watched.is_none() {
                    let added =
                        epoll::add(&ring.set, fd, EventData::new_u64(1), EventFlags::IN).is_ok();
                    ring.watched = added.then_some(fd);
                }
                ring.watched.is_some()
            }
        }
    }

    pub(crate) fn watches(&self) -> bool {
        match self {
            Ring::Kernel(ring) => ring.watches(),
            Ring::Simulated(ring) => ring.watched.is_some(),
        }
    }

    /// What a command costs whom has no meaning in a simulation.
    pub(crate) fn push(
        &mut self,
        file: BorrowedFd<'_>,
        command: &Command<'_>,
        effort: Effort,
        tag: Tag,
    ) -> bool {
        match self {
            Ring::Kernel(ring) => ring.push(file, command, effort, tag),
            Ring::Simulated(ring) => ring.push(file, command, tag),
        }
    }

    pub(crate) fn enter(&mut self) -> io::Result<()> {
        match self {
            Ring::Kernel(ring) => ring.enter(),
            Ring::Simulated(ring) => {
                ring.enter();
                Ok(())
            }
        }
    }

    pub(crate) fn reap_one(&mut self) -> Option<(Tag, i32)> {
        match self {
            Ring::Kernel(ring) => ring.reap_one(),
            Ring::Simulated(ring) => ring.reap_one(),
        }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Ring::Kernel(ring) => ring.as_fd(),
            Ring::Simulated(ring) => ring.set.as_fd(),
        }
    }
}

impl InMadeUpTime {
    fn push(&mut self, file: BorrowedFd<'_>, command: &Command<'_>, tag: Tag) -> bool {
        if self.in_flight >= IN_FLIGHT_MAX {
            return false;
        }
        let (Some(asked), Ok(held)) = (Asked::new(command), file.try_clone_to_owned()) else {
            return false;
        };
        self.queued.push((file.as_raw_fd(), held, asked, tag.pack()));
        self.in_flight += 1;
        true
    }

    fn enter(&mut self) {
        for (file, held, asked, tag) in self.queued.drain(..) {
            self.kernel.submit(self.number, file, held, asked, tag);
        }
        self.end_watch();
    }

    /// What was watched has come.
    fn end_watch(&mut self) {
        let Some(fd) = self.watched else { return };
        let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&no_time)) == Ok(1) {
            // Only fails for what is not in the set.
            let _ = epoll::delete(&self.set, fd);
            self.watched = None;
        }
    }

    fn reap_one(&mut self) -> Option<(Tag, i32)> {
        let reaped = self.kernel.reap(self.number);
        match reaped {
            Some(_) => self.in_flight = self.in_flight.saturating_sub(1),
            // Only fails when it is not readable.
            None => drop(rustix::io::read(&self.done, &mut [0; 8])),
        }
        reaped.map(|(tag, result)| (Tag::unpack(tag), result))
    }
}

impl Drop for InMadeUpTime {
    /// Waits for nothing: a process that was killed does not either.
    fn drop(&mut self) {
        self.kernel.gone(self.number);
    }
}
