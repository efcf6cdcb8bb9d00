//! SIGBUS: memory that its owner took away while we have it mapped (reliability F4).
//!
//! A mapping of a front-end's file is in a list that the signal handler reads. On a fault inside one,
//! the handler puts zero pages over the piece around the address and marks the mapping's
//! [`Health`](crate::Health) lost; the instruction is then tried again and goes on. On any other fault
//! the default action follows: it is our own.
//!
//! # The list
//!
//! Nodes are added at the head and never freed, so a reader needs no lock and never waits; a node
//! whose mapping is gone is used again. A reader that meets a node in change (an odd `version`, or one
//! that moved) passes over it: it can only be another mapping's, because whoever touches a mapping
//! keeps it, and its node was complete before anybody could.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::health::{Health, Loss, lose};

/// What the first faults of a mapping replace, bytes. One fault for each page would be thousands in
/// one request.
const PIECE_BYTES_MIN: usize = 2 << 20;
/// After so many faults of a mapping, pieces are twice as large. So no mapping is ever cut into more
/// than about 2 x 16 x 23 (16 TiB in pieces from 2 MiB on), while one fault costs no more than the
/// pages that are there to be dropped. The kernel allows a process 65,530 mappings.
const FAULTS_PER_SIZE: u32 = 16;

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

    /// Puts zero pages where `address` is, and marks the loss. False when the kernel refuses.
    ///
    /// Async-signal-safe: atomics and `mmap`. Called by the thread that touched the mapping, which
    /// keeps it mapped.
    fn recover(&self, address: usize) -> bool {
        let faults = self.faults.fetch_add(1, Ordering::Relaxed);
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        let block = self.block.load(Ordering::Relaxed);
        let piece = piece_bytes(faults, block);
        let first = (address & !(piece - 1)).max(start);
        let last = (address | (piece - 1)).saturating_add(1).min(end);
        // The kernel may have no room for more mappings; then one takes the place of all.
        let done = put_zeroes(first, last - first) || put_zeroes(start, end - start);
        // SAFETY: the flag lives as long as the `Watched` of this mapping, which its `Arc<Mapping>`
        // keeps, which the thread that touched it holds.
        if let Some(flag) = unsafe { self.health.load(Ordering::Relaxed).as_ref() } {
            lose(flag, Loss::Memory);
        }
        done
    }
}

/// Bytes replaced at fault number `faults` (from 0) of a mapping in blocks of `block`: a power of two.
fn piece_bytes(faults: u32, block: usize) -> usize {
    let doubled = (faults / FAULTS_PER_SIZE).min(usize::BITS - 2 - PIECE_BYTES_MIN.ilog2());
    (PIECE_BYTES_MIN << doubled).max(block)
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
/// What the kernel said to `sigaction`.
pub fn recover_from_sigbus() -> io::Result<()> {
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

/// Recovers, or lets the default action follow. Async-signal-safe: no allocation, no lock, no panic;
/// `errno` stays as it was.
extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the location of this thread's `errno` is always valid.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid `siginfo`, and SIGBUS from the
    // kernel (a positive code) carries an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
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
