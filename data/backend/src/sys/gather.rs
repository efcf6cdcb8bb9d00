//! One frame out of several places of memory, given to the kernel in one call.
//!
//! Called by `net`'s ports. The pieces live until the call returns, in which the kernel copies them.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use guest_memory::{GuestMap, Span};
use rustix::io::Errno;

use super::interface::{last_errno, result};
use super::{PIECES_MAX, Piece, pieces};

/// Header, head, and as many pieces of guest memory as a chain has.
const GATHER_MAX: usize = PIECES_MAX + 2;

/// Frames in one call of [`send_many`].
pub(crate) const SEND_MANY: usize = 32;

/// The pieces of one frame. Only the first `count` were set.
pub(crate) struct Gather<'a> {
    pieces: [MaybeUninit<Piece>; GATHER_MAX],
    count: usize,
    /// All pieces are of this lifetime.
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Gather<'a> {
    #[inline]
    pub(crate) fn new() -> Gather<'a> {
        let pieces = [const { MaybeUninit::uninit() }; GATHER_MAX];
        Gather { pieces, count: 0, memory: PhantomData }
    }

    /// Adds bytes of ours. False when there are too many pieces.
    #[inline]
    pub(crate) fn put(&mut self, bytes: &'a [u8]) -> bool {
        bytes.is_empty() || self.push(Piece { base: bytes.as_ptr() as usize, len: bytes.len() })
    }

    /// Adds pieces of guest memory. False when one is not in the map, or there are too many: nothing
    /// must be sent then.
    #[inline]
    pub(crate) fn put_guest(&mut self, map: &'a GuestMap, spans: &[Span]) -> bool {
        spans.len() <= PIECES_MAX && {
            let mut fit = true;
            let checked = pieces(map, spans, 0, u64::MAX, |piece| fit &= self.push(piece));
            checked && fit
        }
    }

    #[inline]
    fn push(&mut self, piece: Piece) -> bool {
        let place = self.pieces.get_mut(self.count);
        self.count += usize::from(place.is_some());
        place.map(|place| place.write(piece)).is_some()
    }

    /// Writes all of it in one `writev`: bytes.
    ///
    /// # Errors
    /// The kernel's.
    #[inline]
    pub(crate) fn write(&self, fd: BorrowedFd<'_>) -> Result<usize, Errno> {
        let list = self.pieces.as_ptr().cast::<libc::iovec>();
        // SAFETY: `count` pieces were set, laid out as `iovec`s; each is memory that is borrowed for
        // `'a`, or guest memory that its map keeps mapped for `'a`. The kernel only reads it.
        let written = unsafe { libc::writev(fd.as_raw_fd(), list, self.count as i32) };
        usize::try_from(written).map_err(|_| last_errno())
    }

    /// Sends all of it as one message, without waiting: bytes.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn send(&self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        // SAFETY: plain numbers and pointers, of which zeroes are valid.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = self.pieces.as_ptr().cast::<libc::iovec>().cast_mut();
        message.msg_iovlen = self.count as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: as in `write`; the message outlives the call, and names no address.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
        usize::try_from(sent).map_err(|_| last_errno())
    }
}

/// Sends each of `frames`, at most [`SEND_MANY`], as one message, without waiting: how many of the
/// first ones went.
///
/// # Errors
/// The kernel's, when the first one did not go.
pub(crate) fn send_many<'a>(
    socket: BorrowedFd<'_>,
    frames: impl Iterator<Item = &'a [u8]>,
) -> Result<usize, Errno> {
    let mut pieces = [Piece::default(); SEND_MANY];
    // SAFETY: plain numbers and pointers, of which zeroes are valid.
    let mut messages: [libc::mmsghdr; SEND_MANY] = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut count = 0;
    for ((frame, piece), message) in frames.zip(&mut pieces).zip(&mut messages) {
        *piece = Piece { base: frame.as_ptr() as usize, len: frame.len() };
        message.msg_hdr.msg_iov = (&raw mut *piece).cast();
        message.msg_hdr.msg_iovlen = 1;
        count += 1;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `count` messages were set, each with one piece, which is borrowed for `'a`; the kernel
    // writes to nothing but the messages' lengths.
    let sent =
        unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, flags as _) };
    result(sent).map(|sent| sent as usize)
}
