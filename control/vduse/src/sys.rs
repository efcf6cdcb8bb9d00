//! The one system call that has no safe form: the ioctls of VDUSE.
//!
//! Not their meaning (`abi`). Called by `device` and `create` only.
#![expect(unsafe_code, reason = "ioctls of VDUSE, whose bytes are made in `abi`")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::abi::{Op, Request};

/// Does one ioctl. The kernel reads the request's bytes, and writes into them where its number says so.
pub(crate) fn call<O: Op>(fd: impl AsFd, request: &mut Request<O>) -> io::Result<i32> {
    let bytes = request.bytes_mut();
    // SAFETY: the kernel reads and writes as many bytes as the number says, and reads behind them as many as a length in
    // them says: `Request` is made with all of these, and never shortened. The descriptor is open while it is borrowed.
    let answer = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), O::NUMBER as _, bytes.as_mut_ptr()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// The same, for one that answers with a new descriptor.
pub(crate) fn call_for_fd<O: Op>(fd: impl AsFd, request: &mut Request<O>) -> io::Result<OwnedFd> {
    const { assert!(O::GIVES_FD) };
    let answer = call(fd, request)?;
    // SAFETY: the number is of an ioctl that makes a descriptor for us alone, and it did not fail.
    Ok(unsafe { OwnedFd::from_raw_fd(answer) })
}
