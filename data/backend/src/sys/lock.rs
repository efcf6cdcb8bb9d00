//! A lock of an open file description over its bytes.
//!
//! Called by `file::lock`. `flock` needs no `unsafe` and is asked for there.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Takes `F_OFD_SETLK` on `len` bytes from the first on (0: all there can ever be) without waiting:
/// shared, or exclusive (the file must be writable). Ends with the description, thus not before the
/// last request in flight through it.
///
/// # Errors
/// `AGAIN` or `ACCESS`: somebody else holds one that collides. Others as the file system says.
pub(crate) fn lock_bytes(fd: BorrowedFd<'_>, exclusive: bool, len: i64) -> Result<(), Errno> {
    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: len,
        // Must be zero for a lock of a description.
        l_pid: 0,
    };
    // SAFETY: `fd` is open, and the kernel only reads `lock`, which outlives the call.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result == 0 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))
}
