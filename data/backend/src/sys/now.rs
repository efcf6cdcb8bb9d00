//! A command run by a system call that returns when it is done.
//!
//! For files that live in memory, where the kernel copies and never waits for a device: a system
//! call is then 3x cheaper than a trip through an io_uring, which gives such files to a worker
//! thread (docs/decisions/0003-file-backend.md).

use std::os::fd::{AsRawFd, BorrowedFd};

use super::{Command, Lent, PIECES_MAX, Piece, pieces, zero_pieces};

/// Runs `command`; the result is what an io_uring would have posted: bytes, 0, or a negated errno.
#[inline]
pub(crate) fn run_now(fd: BorrowedFd<'_>, command: &Command<'_>) -> i32 {
    let raw = fd.as_raw_fd();
    let result = match *command {
        Command::Transfer { write, stable, offset, skip, most, segments, memory } => {
            let mut list = List::new();
            if !pieces(memory, segments, skip, most, |piece| list.put(piece)) {
                return -libc::EFAULT;
            }
            // A file in memory has no later moment at which it would be more stable.
            let _ = stable;
            list.transfer(raw, write, offset)
        }
        Command::Bounced { write, stable, offset, piece: Lent(piece) } => {
            let _ = stable;
            let mut list = List::new();
            list.put(piece);
            list.transfer(raw, write, offset)
        }
        Command::Zeroes { offset, len } => {
            let mut list = List::new();
            zero_pieces(len, |piece| list.put(piece));
            list.transfer(raw, true, offset)
        }
        // SAFETY: `fd` is open; no memory is involved.
        Command::Sync => unsafe { libc::fdatasync(raw) as isize },
        Command::Allocate { mode, offset, len } => {
            // SAFETY: `fd` is open; no memory is involved.
            unsafe { libc::fallocate(raw, mode.bits(), offset as i64, len as i64) as isize }
        }
    };
    if result < 0 {
        return -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    }
    // The kernel transfers at most 0x7fff_f000 bytes at once.
    i32::try_from(result).unwrap_or(i32::MAX)
}

/// Pieces for one call. Only the first `count` were set.
struct List {
    pieces: [std::mem::MaybeUninit<Piece>; PIECES_MAX],
    count: usize,
}

impl List {
    #[inline]
    fn new() -> List {
        List { pieces: [const { std::mem::MaybeUninit::uninit() }; PIECES_MAX], count: 0 }
    }

    #[inline]
    fn put(&mut self, piece: Piece) {
        if let Some(place) = self.pieces.get_mut(self.count) {
            place.write(piece);
            self.count += 1;
        }
    }

    #[inline]
    fn transfer(&self, fd: i32, write: bool, offset: u64) -> isize {
        let offset = offset as i64;
        if self.count == 1 {
            // SAFETY: the first piece was set.
            let Piece { base, len } = unsafe { self.pieces[0].assume_init() };
            let base = base as *mut libc::c_void;
            return if write {
                // SAFETY: the piece is memory that stays mapped during the call (`super`).
                unsafe { libc::pwrite64(fd, base, len, offset) }
            } else {
                // SAFETY: as above; the kernel may write to it, because it is guest memory.
                unsafe { libc::pread64(fd, base, len, offset) }
            };
        }
        let list = self.pieces.as_ptr().cast::<libc::iovec>();
        if write {
            // SAFETY: `count` pieces were set, each memory that stays mapped during the call, and a
            // `Piece` is laid out as an `iovec`.
            unsafe { libc::pwritev(fd, list, self.count as i32, offset) }
        } else {
            // SAFETY: as above; only guest memory is ever the target of a read.
            unsafe { libc::preadv(fd, list, self.count as i32, offset) }
        }
    }
}
