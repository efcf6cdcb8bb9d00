//! The io_uring of one thread: entries out, completions in.
//!
//! One `io_uring_enter` hands over everything queued; none is made when nothing is queued and the
//! kernel has nothing to post. Lists of pieces lie in one block of memory, refilled from the start
//! after each handing-over, because the kernel copies them then (`IORING_FEAT_SUBMIT_STABLE`).

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use io_uring::register::Restriction;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, opcode, squeue};
use request::Tag;
use rustix::thread::CpuSet;

use super::{Command, Lent, PIECES_MAX, Piece, ZERO_PIECES, ZEROES_MAX, pieces, zero_pieces};

/// Pieces of all commands queued at one time: 256 KiB of memory.
const ARENA_SIZE: usize = 16_384;
/// Threads of the kernel's in which commands of this thread's rings wait that cannot go on at once: as
/// many as completions. There were four for each processor, so that some reads of a dead disk kept
/// every flush of all others waiting. One is made only when those that there are all wait.
const WORKERS_MAX: u32 = 4096;
/// Names the watch of [`Ring::watch`]; no queue has this number.
const WATCH: u64 = u64::MAX;

const _: () = assert!(ARENA_SIZE > 2 * PIECES_MAX && ZERO_PIECES <= PIECES_MAX);

/// What one handing-over costs its thread at most, in bytes that the kernel copies within the call; one
/// command may be more.
const LADEN_MAX: u64 = 256 << 10;

/// Who does the kernel's part of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// The thread that hands it over, for as long as copying so many bytes takes.
    Here(u64),
    /// A thread of the kernel's.
    Elsewhere,
}

/// An io_uring and what commands to it need.
pub(crate) struct Ring {
    ring: IoUring,
    /// Lists of pieces; never reallocated.
    arena: Vec<Piece>,
    in_flight: usize,
    in_flight_max: usize,
    /// Entries queued and not handed over.
    queued: usize,
    /// What they cost the thread that hands them over; see [`Effort`].
    laden: u64,
    /// The most that one handing-over had.
    #[cfg(test)]
    laden_most: u64,
    entries: usize,
    /// A watch is queued or with the kernel.
    watching: bool,
}

impl Ring {
    /// A ring of `entries` submission entries and four times as many completion entries. Belongs to
    /// the calling thread. The kernel's threads for it run on `workers`, or anywhere.
    ///
    /// # Errors
    /// What the kernel said; `ErrorKind::Unsupported` for a kernel that is too old (before 5.6).
    pub(crate) fn new(entries: u32, workers: Option<&CpuSet>) -> io::Result<Ring> {
        let (ring, disabled) = build(entries)?;
        let parameters = ring.params();
        if !(parameters.is_feature_submit_stable() && parameters.is_feature_nodrop()) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let (entries, completions) = (parameters.sq_entries(), parameters.cq_entries());
        // A kernel before 5.15 keeps to its own number.
        let _ = ring.submitter().register_iowq_max_workers(&mut [WORKERS_MAX, 0]);
        if let Some(cpus) = workers {
            // One before 5.14 has no such call: its threads run where its scheduler likes.
            let _ = ring.submitter().register_iowq_aff(&kernel_set(cpus));
        }
        if disabled {
            // The last registration that this ring takes.
            restrict(&ring)?;
        }
        Ok(Ring {
            ring,
            arena: Vec::with_capacity(ARENA_SIZE),
            in_flight: 0,
            // One is the watch's.
            in_flight_max: completions as usize - 1,
            queued: 0,
            laden: 0,
            #[cfg(test)]
            laden_most: 0,
            entries: entries as usize,
            watching: false,
        })
    }

    #[inline]
    pub(crate) fn room(&self) -> usize {
        let pieces = (ARENA_SIZE - self.arena.len()) / PIECES_MAX;
        let entries = self.entries - self.queued;
        pieces.min(entries).min(self.in_flight_max.saturating_sub(self.in_flight))
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The share of its completions that is free, in 256ths.
    #[inline]
    pub(crate) fn free_256ths(&self) -> usize {
        (self.in_flight_max.saturating_sub(self.in_flight)) * 256 / self.in_flight_max.max(1)
    }

    /// Commands queued and not handed over.
    #[inline]
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// What handing over what is queued will cost this thread, in bytes of [`Effort::Here`].
    #[inline]
    pub(crate) fn laden(&self) -> u64 {
        self.laden
    }

    #[cfg(test)]
    pub(crate) fn laden_most(&self) -> u64 {
        self.laden_most
    }

    /// Makes the ring readable once `fd` is, unless that is asked for already. False when it is full.
    pub(crate) fn watch(&mut self, fd: BorrowedFd<'static>) -> bool {
        if self.watching {
            return true;
        }
        let entry = opcode::PollAdd::new(Fd(fd.as_raw_fd()), libc::POLLIN as u32).build();
        // SAFETY: no memory is involved, and the descriptor is never closed.
        if unsafe { self.ring.submission().push(&entry.user_data(WATCH)) }.is_err() {
            return false;
        }
        self.queued += 1;
        self.watching = true;
        true
    }

    /// Whether a watch is on its way; false once what it was for has come.
    pub(crate) fn watches(&self) -> bool {
        self.watching
    }

    /// Queues a command. False, with nothing queued, when the ring stays full after entering it, or
    /// a segment is not in its map. `file` must stay open until the command was handed over; the
    /// kernel keeps it until the completion. What is queued is handed over before it would cost more than
    /// [`LADEN_MAX`] together.
    #[inline]
    pub(crate) fn push(
        &mut self,
        file: BorrowedFd<'_>,
        command: &Command<'_>,
        effort: Effort,
        tag: Tag,
    ) -> bool {
        let weight = match effort {
            Effort::Here(bytes) => bytes,
            Effort::Elsewhere => 0,
        };
        if self.laden + weight > LADEN_MAX && self.queued > 0 {
            // An error comes again at the pass's own `enter`, where it is counted.
            let _ = self.enter();
        }
        if self.queued == self.entries || self.arena.len() + PIECES_MAX > ARENA_SIZE {
            let entered = self.enter();
            if entered.is_err() || self.queued == self.entries || !self.arena.is_empty() {
                return false;
            }
        }
        let Some(entry) = self.entry(file, command) else {
            return false;
        };
        let entry = match effort {
            Effort::Here(_) => entry.user_data(tag.pack()),
            Effort::Elsewhere => entry.flags(squeue::Flags::ASYNC).user_data(tag.pack()),
        };
        // SAFETY: the entry's addresses are pieces of guest memory (or zero pages or lent buffers of ours) that
        // stay mapped until the completion (`super`), a list in `arena`, which is not touched
        // before the kernel took the entry, or a static.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return false;
        }
        self.queued += 1;
        self.laden += weight;
        #[cfg(test)]
        {
            self.laden_most = self.laden_most.max(self.laden);
        }
        self.in_flight += 1;
        true
    }

    /// See [`crate::Io::enter`].
    #[inline]
    pub(crate) fn enter(&mut self) -> io::Result<()> {
        let submission = self.ring.submission();
        if submission.is_empty() && !submission.taskrun() && !submission.cq_overflow() {
            return Ok(());
        }
        drop(submission);
        let result = self.ring.submit();
        self.queued = self.ring.submission().len();
        if self.queued == 0 {
            self.arena.clear();
            self.laden = 0;
        }
        match result {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    #[inline]
    pub(crate) fn reap_one(&mut self) -> Option<(Tag, i32)> {
        let mut entry = self.ring.completion().next()?;
        if entry.user_data() == WATCH {
            self.watching = false;
            entry = self.ring.completion().next()?;
        }
        self.in_flight = self.in_flight.saturating_sub(1);
        Some((Tag::unpack(entry.user_data()), entry.result()))
    }

    #[inline]
    fn entry(&mut self, file: BorrowedFd<'_>, command: &Command<'_>) -> Option<squeue::Entry> {
        // By descriptor: a table of files is given back late, and holds the locks of an idle disk
        // for that long (docs/decisions/0005, "The fence").
        let file = Fd(file.as_raw_fd());
        let start = self.arena.len();
        let arena = &mut self.arena;
        let (write, stable, offset) = match *command {
            Command::Transfer { write, stable, offset, skip, most, segments, memory } => {
                if !pieces(memory, segments, skip, most, |piece| arena.push(piece)) {
                    arena.truncate(start);
                    return None;
                }
                (write, stable, offset)
            }
            Command::Bounced { write, stable, offset, piece: Lent(piece) } => {
                arena.push(piece);
                (write, stable, offset)
            }
            Command::Zeroes { offset, len } => {
                zero_pieces(len.min(ZEROES_MAX), |piece| arena.push(piece));
                (true, false, offset)
            }
            Command::Sync => {
                return Some(opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build());
            }
            Command::Allocate { mode, offset, len } => {
                let allocate = opcode::Fallocate::new(file, len).offset(offset);
                return Some(allocate.mode(mode.bits()).build());
            }
        };
        let flags = if stable { libc::RWF_DSYNC } else { 0 };
        let list = self.arena.get(start..)?;
        let entry = transfer(file, list, write, offset, flags);
        // One piece travels in the entry itself.
        if self.arena.len() - start == 1 {
            self.arena.truncate(start);
        }
        Some(entry)
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the ring's own and open as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for Ring {
    /// Waits for what the kernel still reads or writes: closing a ring does not.
    fn drop(&mut self) {
        while self.in_flight > 0 {
            let submitted = self.ring.submit_and_wait(1);
            let retry = [io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock];
            if submitted.is_err_and(|error| !retry.contains(&error.kind())) {
                return;
            }
            while self.reap_one().is_some() {}
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Ring { entries, in_flight, queued, .. } = self;
        write!(f, "Ring {{ entries: {entries}, in_flight: {in_flight}, queued: {queued} }}")
    }
}

/// A set of processors as the C library has it.
fn kernel_set(cpus: &CpuSet) -> libc::cpu_set_t {
    // SAFETY: a set of bits, of which none is set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| cpus.is_set(*cpu)) {
        // SAFETY: it writes within the set; a number beyond `MAX_CPU`, its size, is not asked for.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    set
}

/// Whether this kernel lets a ring be restricted.
pub(crate) fn is_restricted() -> bool {
    build(1).is_ok_and(|(_, restricted)| restricted)
}

/// Restricts a ring, made disabled, to what [`Ring::entry`] and [`Ring::watch`] ask for, to descriptors
/// by number and to no registration, and enables it. A filter of system calls does not see what a ring does.
fn restrict(ring: &IoUring) -> io::Result<()> {
    let code = |code| Restriction::sqe_op(code);
    let mut allowed = [
        code(opcode::Read::CODE),
        code(opcode::Write::CODE),
        code(opcode::Readv::CODE),
        code(opcode::Writev::CODE),
        code(opcode::Fsync::CODE),
        code(opcode::Fallocate::CODE),
        code(opcode::PollAdd::CODE),
        Restriction::sqe_flags_allowed(squeue::Flags::ASYNC.bits()),
    ];
    ring.submitter().register_restrictions(&mut allowed)?;
    ring.submitter().register_enable_rings()
}

/// The best ring this kernel can make, and whether it is disabled until it is restricted (5.10):
/// completions wait for a system call of ours (5.19; 6.0 for the single issuer) and do not interrupt.
///
/// Not `DEFER_TASKRUN`: its completions do not wake who sleeps in `poll` or `epoll_wait` (seen on
/// 6.18; `tests/ring.rs`), and it was not faster here.
fn build(entries: u32) -> io::Result<(IoUring, bool)> {
    let mut old = IoUring::builder();
    old.setup_cqsize(entries * 4);
    let mut restricted = old.clone();
    restricted.setup_r_disabled();
    let mut later = restricted.clone();
    later.setup_submit_all();
    let mut quiet = later.clone();
    quiet.setup_single_issuer().setup_coop_taskrun().setup_taskrun_flag();
    for builder in [quiet, later, restricted] {
        if let Ok(ring) = builder.build(entries) {
            return Ok((ring, true));
        }
    }
    Ok((old.build(entries)?, false))
}

#[inline]
fn transfer(file: Fd, list: &[Piece], write: bool, offset: u64, flags: i32) -> squeue::Entry {
    if let [Piece { base, len }] = *list {
        let len = len as u32;
        return if write {
            opcode::Write::new(file, base as *const u8, len).offset(offset).rw_flags(flags).build()
        } else {
            opcode::Read::new(file, base as *mut u8, len).offset(offset).rw_flags(flags).build()
        };
    }
    let (list, count) = (list.as_ptr().cast::<libc::iovec>(), list.len() as u32);
    if write {
        opcode::Writev::new(file, list, count).offset(offset).rw_flags(flags).build()
    } else {
        opcode::Readv::new(file, list, count).offset(offset).rw_flags(flags).build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lacking::leave_out;

    /// What `entry` ended with in a ring of ours.
    fn ended(entry: squeue::Entry) -> i32 {
        let mut ring = Ring::new(2, None).expect("a ring");
        // SAFETY: the entries of this test have no memory.
        unsafe { ring.ring.submission().push(&entry) }.expect("room");
        ring.ring.submit_and_wait(1).expect("submitted");
        ring.ring.completion().next().expect("a completion").result()
    }

    #[test]
    fn a_ring_takes_what_it_is_for_and_nothing_else() {
        if !is_restricted() {
            let (name, why) = (
                "a_ring_takes_what_it_is_for_and_nothing_else",
                "this kernel cannot restrict a ring",
            );
            return leave_out(name, why, &std::env::temp_dir());
        }
        let null = std::fs::File::open("/dev/null").expect("/dev/null");
        let fd = Fd(null.as_raw_fd());
        // Not EACCES: it was tried.
        assert_ne!(ended(opcode::Fsync::new(fd).build()), -libc::EACCES);
        assert_eq!(ended(opcode::Nop::new().build()), -libc::EACCES);
        assert_eq!(ended(opcode::Close::new(fd).build()), -libc::EACCES);
        let path = c"/etc/passwd".as_ptr();
        assert_eq!(ended(opcode::OpenAt::new(fd, path).build()), -libc::EACCES);
        let ring = Ring::new(2, None).expect("a ring");
        let files = ring.ring.submitter().register_files(&[0]);
        assert_eq!(files.map_err(|error| error.raw_os_error()), Err(Some(libc::EACCES)));
    }
}
