//! The `ioctl`s of a tap.
//!
//! Called by `net::tap`.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::interface::{request, result};

/// Makes the descriptor of `/dev/net/tun` a queue of the tap `name`, whole frames with a
/// `virtio_net_hdr`; makes the tap when there is none.
pub(crate) fn attach(fd: BorrowedFd<'_>, name: &str, multi_queue: bool) -> Result<(), Errno> {
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    let mut request = request(name);
    let more = if multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    request.ifr_ifru.ifru_flags = (flags | more) as i16;
    // SAFETY: takes an `ifreq`, which outlives the call.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    result(answer).map(|_| ())
}

/// Has each frame preceded by a header of so many bytes, in little endian.
pub(crate) fn set_header(fd: BorrowedFd<'_>, size: usize) -> Result<(), Errno> {
    let size = size as libc::c_int;
    // SAFETY: takes a pointer to an int, which outlives the call.
    result(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const size) })?;
    let little: libc::c_int = 1;
    // SAFETY: as above.
    result(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETLE, &raw const little) })?;
    Ok(())
}

/// Which unfinished frames the host may give us: bits `TUN_F_*`.
pub(crate) fn set_offloads(fd: BorrowedFd<'_>, bits: u32) -> Result<(), Errno> {
    let bits = libc::c_ulong::from(bits);
    // SAFETY: takes a number.
    result(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, bits) }).map(|_| ())
}

/// Whether the tap stays when its last descriptor is closed.
pub(crate) fn set_persistent(fd: BorrowedFd<'_>, persistent: bool) -> Result<(), Errno> {
    let persistent = libc::c_ulong::from(persistent);
    // SAFETY: takes a number.
    result(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETPERSIST, persistent) }).map(|_| ())
}

/// The name of the tap that the descriptor is a queue of.
pub(crate) fn name(fd: BorrowedFd<'_>) -> Result<String, Errno> {
    let mut request = request("");
    // SAFETY: takes an `ifreq`, which outlives the call.
    result(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETIFF, &raw mut request) })?;
    let bytes = request.ifr_name.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0);
    String::from_utf8(bytes.collect()).map_err(|_| Errno::INVAL)
}
