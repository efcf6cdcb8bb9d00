//! SIGBUS: memory that its owner took away while we have it mapped (reliability F4).
//!
//! A mapping of a front-end's file is in a list that the signal handler reads. On a fault inside one,
//! the handler marks the mapping's [`Health`](crate::Health) lost and puts memory of our own over the
//! page of the address; the instruction is then tried again and goes on. On any other fault the
//! default action follows: it is our own.
//!
//! One page at a time, or one huge page: other requests may be on their way from the pages beside it.
//! Not the whole mapping, which takes 35 ms for each populated GiB. What bounds the faults is that
//! whoever finds the health lost stops.
//!
//! # The list
//!
//! Nodes are added at the head and never freed, so a reader needs no lock and never waits; a node
//! whose mapping is gone is used again. A reader that meets a node in change (an odd `version`, or one
//! that moved) passes over it: it can only be another mapping's, because whoever touches a mapping
//! keeps it, and its node was complete before anybody could.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering, fence,
};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

use crate::health::{Health, Loss, lose};

/// After so many faults of one mapping, what one fault replaces is twice as large. A sidecore stops
/// before that; this is for whoever does not, so that a mapping of 16 TiB is never cut into more than
/// 2 x 64 x 32 parts. The kernel allows a process 65,530.
const FAULTS_PER_SIZE: u32 = 64;
/// The scratch file, bytes: more than any mapping. It is sparse.
const SCRATCH_BYTES: u64 = 64 << 40;

/// One mapping, as the handler sees it.
struct Node {
    next: *const Node,
    /// Whether a mapping has it.
    taken: AtomicBool,
    /// Odd while the fields below change.
    version: AtomicU32,
    start: AtomicUsize,
    end: AtomicUsize,
    /// The file's block: a power of two, at least a page; a huge page for hugetlbfs.
    block: AtomicUsize,
    health: AtomicPtr<AtomicU8>,
    faults: AtomicU32,
}

static HEAD: AtomicPtr<Node> = AtomicPtr::new(ptr::null_mut());
/// A file of our own that can be mapped when the kernel grants no more private memory
/// (`vm.overcommit_memory = 2` counts that even before it is used). Open as long as the process.
static SCRATCH: AtomicI32 = AtomicI32::new(-1);

/// A mapping's place in the list, for as long as it is mapped.
#[derive(Debug)]
pub(crate) struct Watched {
    node: &'static Node,
    /// Keeps the flag that the node points to.
    health: Health,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("faults", &self.faults).finish_non_exhaustive()
    }
}

// SAFETY: a node is never freed, `next` is never changed after it is published, and all else in it is
// atomic.
unsafe impl Sync for Node {}
// SAFETY: as above.
unsafe impl Send for Node {}

impl Watched {
    /// Takes in `start..start + len`, which was just mapped and which nobody else knows yet. `block`
    /// is a power of two and `start` and `len` are multiples of it.
    pub(crate) fn new(start: usize, len: usize, block: usize, health: &Health) -> Watched {
        let node = free_node().unwrap_or_else(new_node);
        let health = health.clone();
        node.change(start, start + len, block, health.flag().cast_mut());
        Watched { node, health }
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }
}

impl Drop for Watched {
    /// Before the range is unmapped: somebody else may be given its addresses then.
    fn drop(&mut self) {
        self.node.change(0, 0, 0, ptr::null_mut());
        self.node.taken.store(false, Ordering::Release);
    }
}

impl Node {
    fn change(&self, start: usize, end: usize, block: usize, health: *mut AtomicU8) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.block.store(block, Ordering::Relaxed);
        self.health.store(health, Ordering::Relaxed);
        self.faults.store(0, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Whether `address` is in the mapping that has this node.
    fn holds(&self, address: usize) -> bool {
        let version = self.version.load(Ordering::Acquire);
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let unchanged = self.version.load(Ordering::Relaxed) == version;
        version.is_multiple_of(2) && unchanged && start <= address && address < end
    }

    /// Marks the loss, and puts memory where `address` is. False when the kernel refuses.
    ///
    /// Async-signal-safe: atomics and `mmap`. Called by the thread that touched the mapping, which
    /// keeps it mapped.
    fn recover(&self, address: usize) -> bool {
        // First, so that no other thread finds what is put there and a healthy mapping.
        // SAFETY: the flag lives as long as the `Watched` of this mapping, which its `Arc<Mapping>`
        // keeps, which the thread that touched it holds.
        if let Some(flag) = unsafe { self.health.load(Ordering::Relaxed).as_ref() } {
            lose(flag, Loss::Memory);
        }
        let faults = self.faults.fetch_add(1, Ordering::Relaxed);
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        let block = self.block.load(Ordering::Relaxed);
        let piece = piece_bytes(faults, block);
        let first = (address & !(piece - 1)).max(start);
        let last = (address | (piece - 1)).saturating_add(1).min(end);
        // Last, when the kernel has no room for more mappings: one in place of all, at whatever cost.
        put_zeroes(first, last - first)
            || put_scratch(first, last - first)
            || put_scratch(start, end - start)
    }
}

/// Bytes replaced at fault number `faults` (from 0) of a mapping in blocks of `block`: a power of two.
fn piece_bytes(faults: u32, block: usize) -> usize {
    let block = block.clamp(1, 1 << 62);
    block << (faults / FAULTS_PER_SIZE).min(62 - block.ilog2())
}

/// Maps the scratch file: what was written there for one mapping may be read through another, all of
/// which have lost their health.
fn put_scratch(start: usize, len: usize) -> bool {
    let fd = SCRATCH.load(Ordering::Relaxed);
    if fd < 0 {
        return false;
    }
    // SAFETY: it was opened for this and is never closed.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let at = ptr::with_exposed_provenance_mut(start);
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: as in `put_zeroes`.
    unsafe { mmap(at, len, ProtFlags::READ | ProtFlags::WRITE, flags, fd, 0) }.is_ok()
}

fn put_zeroes(start: usize, len: usize) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    let at = ptr::with_exposed_provenance_mut(start);
    // SAFETY: the range lies within one mapping of ours that stays mapped (see `recover`), no Rust
    // reference into it exists, and its bytes may change at any time anyway.
    unsafe { mmap_anonymous(at, len, ProtFlags::READ | ProtFlags::WRITE, flags) }.is_ok()
}

fn nodes() -> impl Iterator<Item = &'static Node> {
    let mut next: *const Node = HEAD.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: null, or a node that was published whole and is never freed.
        let node: &'static Node = unsafe { next.as_ref() }?;
        next = node.next;
        Some(node)
    })
}

fn free_node() -> Option<&'static Node> {
    nodes().find(|node| {
        !node.taken.load(Ordering::Relaxed) && !node.taken.swap(true, Ordering::Acquire)
    })
}

/// A node more, already taken. There are never more than mappings at one time.
fn new_node() -> &'static Node {
    let node = Box::into_raw(Box::new(Node {
        next: ptr::null(),
        taken: AtomicBool::new(true),
        version: AtomicU32::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        block: AtomicUsize::new(0),
        health: AtomicPtr::new(ptr::null_mut()),
        faults: AtomicU32::new(0),
    }));
    let mut head = HEAD.load(Ordering::Relaxed);
    loop {
        // SAFETY: nobody else has the node before the exchange below succeeds.
        unsafe { (*node).next = head };
        match HEAD.compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed) {
            // SAFETY: it was just made and is never freed.
            Ok(_) => return unsafe { &*node },
            Err(other) => head = other,
        }
    }
}

/// From now on, memory that a front-end takes away costs it its queues and not us our process. For the
/// whole process, once; a second time changes nothing.
///
/// # Errors
/// What the kernel said to `sigaction`, or to making a file in memory.
pub fn recover_from_sigbus() -> io::Result<()> {
    make_scratch()?;
    // SAFETY: all zeroes is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
    action.sa_sigaction = handler as usize;
    // On the alternate stack where a thread has one, as Rust's own handler would be. Restarted,
    // because no system call shall fail for it.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: `action` is whole, and its handler does only what is async-signal-safe.
    match unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn make_scratch() -> io::Result<()> {
    let fd = rustix::fs::memfd_create("sidecore-scratch", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, SCRATCH_BYTES)?;
    let none_yet =
        SCRATCH.compare_exchange(-1, fd.as_raw_fd(), Ordering::Relaxed, Ordering::Relaxed);
    if none_yet.is_ok() {
        // `SCRATCH` has it now, for as long as the process lives.
        std::mem::forget::<OwnedFd>(fd);
    }
    Ok(())
}

/// Recovers, or lets the default action follow. Async-signal-safe: no allocation, no lock, no panic;
/// `errno` stays as it was.
extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the location of this thread's `errno` is always valid.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid `siginfo`, and SIGBUS from the
    // kernel (a positive code) carries an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // Only a notice: memory has broken that nobody has touched yet. The access itself will come here.
    if code == libc::BUS_MCEERR_AO {
        return;
    }
    let of_kernel = code > 0;
    let recovered =
        of_kernel && nodes().find(|node| node.holds(address)).is_some_and(|n| n.recover(address));
    if !recovered {
        die(signal, of_kernel);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Restores the default action. A fault repeats when the handler returns, and so ends the process with
/// its own address in the core; what a process sent is sent again.
fn die(signal: i32, repeats: bool) {
    // SAFETY: both are async-signal-safe, and the default action needs no handler.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        if !repeats {
            libc::raise(signal);
        }
    }
}

#[cfg(test)]
mod tests;
