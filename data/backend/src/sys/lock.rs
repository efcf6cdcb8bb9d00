//! A lock of an open file description over its bytes.
//!
//! Called by `file::lock`. `flock` needs no `unsafe` and is asked for there.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Whether somebody holds a lock of any of the first `len` bytes (0: all there can ever be) that one of ours, shared or
/// exclusive, would collide with (`F_OFD_GETLK`). None is asked for.
///
/// # Errors
/// As the file system says: it may have no such locks.
pub(crate) fn has_lock_against(
    fd: BorrowedFd<'_>,
    exclusive: bool,
    len: i64,
) -> Result<bool, Errno> {
    let mut lock = of_bytes(exclusive, len);
    // SAFETY: `fd` is open, and the kernel writes no more than `lock`, which outlives the call.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    told(result).map(|()| lock.l_type != libc::F_UNLCK as i16)
}

/// Takes `F_OFD_SETLK` on `len` bytes from the first on (0: all there can ever be) without waiting:
/// shared, or exclusive (the file must be writable). Ends with the description, thus not before the
/// last request in flight through it.
///
/// # Errors
/// `AGAIN` or `ACCESS`: somebody else holds one that collides. Others as the file system says.
pub(crate) fn lock_bytes(fd: BorrowedFd<'_>, exclusive: bool, len: i64) -> Result<(), Errno> {
    let lock = of_bytes(exclusive, len);
    // SAFETY: `fd` is open, and the kernel only reads `lock`, which outlives the call.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    told(result)
}

fn of_bytes(exclusive: bool, len: i64) -> libc::flock {
    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: len,
        // Must be zero for a lock of a description.
        l_pid: 0,
    }
}

fn told(result: i32) -> Result<(), Errno> {
    if result == 0 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))
}
