//! A lock of an open file description over its bytes.
//!
//! Called by `file::lock`. `flock` needs no `unsafe` and is asked for there.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Where a lock begins that somebody holds of any of `len` bytes from `start` on (0: all there can ever be) and that one of
/// ours, shared or exclusive, would collide with (`F_OFD_GETLK`). None is asked for.
///
/// # Errors
/// As the file system says: it may have no such locks.
pub(crate) fn lock_against(
    fd: BorrowedFd<'_>,
    exclusive: bool,
    (start, len): (i64, i64),
) -> Result<Option<i64>, Errno> {
    let mut lock = of_bytes(kind_of(exclusive), (start, len));
    // SAFETY: `fd` is open, and the kernel writes no more than `lock`, which outlives the call.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    told(result).map(|()| (lock.l_type != libc::F_UNLCK as i16).then_some(lock.l_start))
}

/// Takes `F_OFD_SETLK` on `len` bytes from `start` on (0: all there can ever be) without waiting:
/// shared, or exclusive (the file must be writable). Ends with the description, thus not before the
/// last request in flight through it.
///
/// # Errors
/// `AGAIN` or `ACCESS`: somebody else holds one that collides. Others as the file system says.
pub(crate) fn lock_bytes(
    fd: BorrowedFd<'_>,
    exclusive: bool,
    range: (i64, i64),
) -> Result<(), Errno> {
    set(fd, of_bytes(kind_of(exclusive), range))
}

/// Gives up what `fd` has locked of `len` bytes from `start` on (0: all there can ever be).
///
/// # Errors
/// As the file system says.
pub(crate) fn unlock_bytes(fd: BorrowedFd<'_>, range: (i64, i64)) -> Result<(), Errno> {
    set(fd, of_bytes(libc::F_UNLCK, range))
}

fn set(fd: BorrowedFd<'_>, lock: libc::flock) -> Result<(), Errno> {
    // SAFETY: `fd` is open, and the kernel only reads `lock`, which outlives the call.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    told(result)
}

fn kind_of(exclusive: bool) -> i32 {
    if exclusive { libc::F_WRLCK } else { libc::F_RDLCK }
}

fn of_bytes(kind: i32, (start, len): (i64, i64)) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
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
