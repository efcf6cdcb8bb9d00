//! One queue of a tap: `read` and `writev` of whole frames, each after a header of virtio-net.
//!
//! Long frames cross unfinished in both directions, so that one call moves up to 64 KiB. Called by
//! [`super::HostPort`].
//!
//! Not through an io_uring: in batches of 32 it makes 1.16 us of 1.47 for 64 bytes that are written,
//! 0.55 of 0.65 for a read, and nothing of long frames; older kernels give such calls to other threads,
//! out of order.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use frame::{FRAME_MAX, HEADER_SIZE, Header, Offloads};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::errors::is_name;
use super::{FRAME_MIN, HostOpenError, Received, Rest, STAGED_MAX, Sent, TAP_MTU_RANGE, Why};
use crate::sys::{Gather, Interfaces, tun};

const BUFFER_SIZE: usize = HEADER_SIZE + FRAME_MAX as usize;
/// Frames of no use that are passed over in one call.
const SKIPPED_MAX: usize = 32;
const ADMIN: &str = "CAP_NET_ADMIN";

/// What the host may leave undone in frames for us, and we in frames for it.
const OFFLOADS: Offloads =
    Offloads::CSUM.union(Offloads::TSO4).union(Offloads::TSO6).union(Offloads::ECN);
const OFFLOAD_BITS: u32 =
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
/// Since 6.2.
const USO_BITS: u32 = libc::TUN_F_USO4 | libc::TUN_F_USO6;

/// One queue of a tap.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    /// Header and frame as they were read.
    buffer: Box<[u8]>,
    /// Header and short frame to be written.
    stage: Box<[u8]>,
    has: Offloads,
    mtu: u32,
    was_made: bool,
    is_gone: bool,
}

impl Tap {
    /// Opens a queue of the tap `name`, and makes the tap when it is missing.
    pub(crate) fn open(
        name: &str,
        queue: u16,
        mtu: Option<u16>,
        ours: bool,
    ) -> Result<Tap, HostOpenError> {
        open(name, queue, mtu, ours).map_err(|why| why.of("tap", name))
    }

    /// A queue that another process had until now. `made`: a daemon made the tap.
    pub(crate) fn inherit(name: &str, fd: OwnedFd, made: bool) -> Result<Tap, HostOpenError> {
        inherit(name, fd, made).map_err(|why| why.of("tap", name))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    #[inline]
    pub(crate) fn receive(&mut self) -> Option<Received<'_>> {
        let mut len = 0;
        for _ in 0..SKIPPED_MAX {
            match rustix::io::read(&self.fd, &mut *self.buffer) {
                Ok(bytes) if bytes >= HEADER_SIZE + FRAME_MIN => {
                    len = bytes;
                    break;
                }
                // Cannot happen with a tap, whose frames have an Ethernet header.
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    self.is_gone |= Sent::from_errno(errno) == Sent::Gone;
                    return None;
                }
            }
        }
        let (header, bytes) = self.buffer.get(..len)?.split_at_checked(HEADER_SIZE)?;
        let header = Header::decode(header.first_chunk()?);
        Some(Received { header, bytes })
    }

    #[inline]
    pub(crate) fn send(&mut self, header: &Header, head: &[u8], rest: Rest<'_>) -> Sent {
        let header = header.encode();
        let written = if head.len() + rest.len() <= STAGED_MAX {
            match rest.stage(&header, head, &mut self.stage) {
                Ok(bytes) => rustix::io::write(&self.fd, self.stage.get(..bytes).unwrap_or(&[])),
                Err(sent) => return sent,
            }
        } else {
            let mut frame = Gather::new();
            if let Err(sent) = rest.gather(&header, head, &mut frame) {
                return sent;
            }
            frame.write(self.fd.as_fd())
        };
        let sent = match written {
            Ok(_) => Sent::Done,
            Err(errno) => Sent::from_errno(errno),
        };
        self.is_gone |= sent == Sent::Gone;
        sent
    }

    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    #[inline]
    pub(crate) fn has(&self) -> Offloads {
        self.has
    }

    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone
    }

    pub(crate) fn mtu(&self) -> u32 {
        self.mtu
    }

    pub(crate) fn was_made(&self) -> bool {
        self.was_made
    }

    pub(crate) fn remove(self) {
        if self.was_made {
            // It fails when the tap is gone already.
            let _ = tun::set_persistent(self.fd.as_fd(), false);
        }
    }
}

/// Makes the descriptor a queue of the tap.
fn attach(fd: BorrowedFd<'_>, name: &str, queue: u16) -> Result<(), Why> {
    let refused = match tun::attach(fd, name, true) {
        Ok(()) => return Ok(()),
        Err(errno) => errno,
    };
    // EINVAL: it is not a tap, or one for one descriptor; as which it does for the first queue.
    if refused != Errno::INVAL {
        return Err(attach_error(refused));
    }
    match tun::attach(fd, name, false) {
        Ok(()) if queue == 0 => Ok(()),
        Ok(()) | Err(Errno::BUSY) if queue > 0 => Err(Why::OneQueue),
        Err(Errno::INVAL) => Err(Why::NotATap),
        Err(errno) => Err(attach_error(errno)),
        Ok(()) => Ok(()),
    }
}

fn attach_error(errno: Errno) -> Why {
    match errno {
        Errno::BUSY => Why::TapInUse,
        Errno::TOOBIG => Why::Os { what: "open one more of its queues", source: errno },
        errno => Why::os("open or make it", ADMIN, errno),
    }
}

fn open(name: &str, queue: u16, mtu: Option<u16>, ours: bool) -> Result<Tap, Why> {
    if !is_name(name) {
        return Err(Why::Name);
    }
    if let Some(mtu) = mtu.filter(|mtu| !TAP_MTU_RANGE.contains(mtu)) {
        return Err(Why::Mtu(mtu));
    }
    let interfaces = Interfaces::new().map_err(|e| Why::os("ask for interfaces", ADMIN, e))?;
    let index = interfaces.index(name).map_err(|e| Why::os("look for it", ADMIN, e))?;
    let is_new = index.is_none();
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(Why::NoTun)?;
    // Nothing stops a second process from taking queues of a tap, and half of its frames.
    let has_carrier = !is_new && queue == 0 && interfaces.has_carrier(name) == Ok(true);
    attach(fd.as_fd(), name, queue)?;
    if has_carrier {
        return Err(Why::TapInUse);
    }
    tun::set_header(fd.as_fd(), HEADER_SIZE).map_err(|e| Why::os("set its header", ADMIN, e))?;
    let has = set_offloads(fd.as_fd())?;
    // Also of one from an earlier life: the configuration may have changed since.
    if let Some(mtu) = mtu.filter(|_| is_new || ours) {
        interfaces.set_mtu(name, mtu.into()).map_err(|e| Why::os("set its MTU", ADMIN, e))?;
    }
    if is_new {
        interfaces.set_up(name).map_err(|e| Why::os("set it up", ADMIN, e))?;
        // Last, so that after an error nothing stays.
        tun::set_persistent(fd.as_fd(), true).map_err(|e| Why::os("keep it", ADMIN, e))?;
    }
    let mtu = interfaces.mtu(name).map_err(|e| Why::os("read its MTU", ADMIN, e))?;
    Ok(of(fd, has, mtu, is_new || ours))
}

fn of(fd: OwnedFd, has: Offloads, mtu: u32, was_made: bool) -> Tap {
    let buffer = vec![0; BUFFER_SIZE].into();
    let stage = vec![0; HEADER_SIZE + STAGED_MAX].into();
    Tap { fd, buffer, stage, has, mtu, was_made, is_gone: false }
}

fn set_offloads(fd: BorrowedFd<'_>) -> Result<Offloads, Why> {
    if tun::set_offloads(fd, OFFLOAD_BITS | USO_BITS).is_ok() {
        return Ok(OFFLOADS | Offloads::USO);
    }
    tun::set_offloads(fd, OFFLOAD_BITS).map_err(|e| Why::os("set its offloads", ADMIN, e))?;
    Ok(OFFLOADS)
}

fn inherit(name: &str, fd: OwnedFd, made: bool) -> Result<Tap, Why> {
    if tun::name(fd.as_fd()).ok().as_deref() != Some(name) {
        return Err(Why::NotATap);
    }
    let has = set_offloads(fd.as_fd())?;
    let interfaces = Interfaces::new().map_err(|e| Why::os("ask for interfaces", ADMIN, e))?;
    let mtu = interfaces.mtu(name).map_err(|e| Why::os("read its MTU", ADMIN, e))?;
    Ok(of(fd, has, mtu, made))
}
