//! The only place of this crate that hands addresses to the kernel, and of system calls that rustix
//! does not have.
//!
//! Called by `io` and `file`, and by `net` and `link` for their sockets (`bpf`, `datagrams`, `gather`, `interface`,
//! `packet_ring`, `steer`, `tun`, `xsk`), whose memory is our own or read within the call. Of disks, two ways to run the same [`Command`]: [`Ring`], which the kernel
//! completes later, and [`run_now`], which waits.
//!
//! # What makes it sound
//!
//! Every address of guest memory comes from [`GuestMap::host`], which checked it. The kernel reads
//! and writes there until it posts the completion. So the map must live that long, and that is the
//! promise of ownership that the whole data path stands on: a `Served` queue holds its map and is
//! given back only when nothing of it is in flight; a panic ends the process. Dropping a [`Ring`]
//! waits for what is in flight. The memory is the guest's: no Rust reference to it exists.
#![expect(unsafe_code, reason = "addresses are given to the kernel, which writes to them")]

mod bounce;
pub(crate) mod bpf;
pub(crate) mod datagrams;
mod gather;
pub(crate) mod interface;
mod lock;
mod now;
pub(crate) mod packet_ring;
mod ring;
pub(crate) mod steer;
pub(crate) mod tun;
mod turns;
pub(crate) mod xsk;

pub(crate) use bounce::{BOUNCE_BYTES, Bounce};
pub(crate) use gather::{Gather, SEND_MANY, send_many};
pub(crate) use interface::Interfaces;
pub(crate) use lock::{lock_against, lock_bytes, unlock_bytes};
pub(crate) use now::run_now;
pub(crate) use ring::{Effort, Ring, is_restricted};
pub use turns::take_short_turns;

use guest_memory::{GuestMap, Span};

/// Pieces of guest memory in one command; a request with more goes on after its first ones.
pub(crate) const PIECES_MAX: usize = 256;

/// One thing asked of the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command<'a> {
    /// Between the file and guest memory.
    Transfer {
        /// To the file.
        write: bool,
        /// Stable when it ends (`RWF_DSYNC`).
        stable: bool,
        /// Where in the file, bytes.
        offset: u64,
        /// Bytes of the segments that come before, already transferred.
        skip: u64,
        /// Bytes at most.
        most: u64,
        /// Where in guest memory.
        segments: &'a [Span],
        /// What the segments belong to.
        memory: &'a GuestMap,
    },
    /// Between the file and a buffer of ours ([`Bounce`]), which is lent for it.
    Bounced {
        /// To the file.
        write: bool,
        /// As above.
        stable: bool,
        /// Where in the file, bytes.
        offset: u64,
        /// The buffer, as it was lent.
        piece: Lent,
    },
    /// Zeroes, written like data.
    Zeroes {
        /// Where in the file, bytes.
        offset: u64,
        /// At most [`ZEROES_MAX`] of them are written.
        len: u64,
    },
    /// `fdatasync`.
    Sync,
    /// `fallocate`.
    Allocate {
        /// What is to become of the range.
        mode: Allocate,
        /// Where in the file, bytes.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

impl Command<'_> {
    /// Whether the kernel runs it on a thread of a pool that all disks share.
    pub(crate) fn is_slow(&self) -> bool {
        matches!(self, Command::Sync | Command::Allocate { .. })
    }
}

/// Modes of `fallocate`; none changes the file's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allocate {
    /// Space is given back; the range reads as zeroes.
    PunchHole,
    /// The range reads as zeroes; its space is kept.
    ZeroRange,
    /// The range has space.
    Reserve,
}

impl Allocate {
    fn bits(self) -> i32 {
        match self {
            Allocate::PunchHole => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            Allocate::ZeroRange => libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
            Allocate::Reserve => libc::FALLOC_FL_KEEP_SIZE,
        }
    }
}

/// A piece of memory as the kernel wants it: `struct iovec`, but plain numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    base: usize,
    len: usize,
}

/// A buffer of ours that the kernel may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent(Piece);

impl Bounce {
    /// The first `len` bytes of a request's buffer, for one command. To be followed by [`Bounce::was_ended`],
    /// once that has completed or was not taken.
    pub(crate) fn lent(&mut self, at: u8, len: u64) -> Option<Lent> {
        self.lend(at, len).map(Lent)
    }
}

const _: () = assert!(size_of::<Piece>() == size_of::<libc::iovec>());

/// Bytes of zeroes written by one [`Command::Zeroes`].
pub(crate) const ZEROES_MAX: u64 = (ZERO_PIECES * size_of::<ZeroPages>()) as u64;
const ZERO_PIECES: usize = 16;

/// Read by the kernel only. Aligned for transfers past the page cache.
#[repr(align(4096))]
struct ZeroPages([u8; 64 << 10]);
static ZERO_PAGES: ZeroPages = ZeroPages([0; 64 << 10]);

/// The pieces of `segments` after the first `skip` bytes, of `most` bytes in all, each given to `put`; stops
/// after [`PIECES_MAX`]. False when a segment is not in the map: nothing must be done then.
#[inline]
fn pieces(
    memory: &GuestMap,
    segments: &[Span],
    skip: u64,
    most: u64,
    mut put: impl FnMut(Piece),
) -> bool {
    let (mut skip, mut left) = (skip, most);
    let mut count = 0;
    for &segment in segments {
        let skipped = skip.min(segment.len().into()) as u32;
        skip -= u64::from(skipped);
        let segment = segment.after(skipped);
        if segment.is_empty() {
            continue;
        }
        if left == 0 {
            break;
        }
        let segment = segment.first(left.min(segment.len().into()) as u32);
        left -= u64::from(segment.len());
        let Some(host) = memory.host(segment) else {
            return false;
        };
        if count == PIECES_MAX {
            break;
        }
        count += 1;
        put(Piece { base: host.as_ptr() as usize, len: segment.len() as usize });
    }
    true
}

/// The pieces of `len` zeroes, at most [`ZEROES_MAX`].
fn zero_pieces(len: u64, mut put: impl FnMut(Piece)) {
    let mut left = len.min(ZEROES_MAX) as usize;
    while left > 0 {
        let len = left.min(ZERO_PAGES.0.len());
        put(Piece { base: ZERO_PAGES.0.as_ptr() as usize, len });
        left -= len;
    }
}
