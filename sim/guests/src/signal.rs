//! Eventfds, never waited for.

use std::os::fd::OwnedFd;

/// Adds one.
pub(crate) fn raise(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// What was counted since the last time.
pub(crate) fn take(fd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(fd, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
}
