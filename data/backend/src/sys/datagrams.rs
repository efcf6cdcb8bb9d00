//! Datagrams of a socket, many in one call, each with its address. Where the kernel can (UDP), it joins those
//! that come, and cuts up those that go.
//!
//! Called by `link::socket`, whose memory the frames are in.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::Piece;
use super::interface::{result, set_option};

/// Messages in one call.
pub(crate) const MANY: usize = 16;
/// Bytes of the longest address of a socket that is used here (`sockaddr_in6`), and some.
pub(crate) const NAME_BYTES: usize = 32;
/// Room for one control message of a number.
const CONTROL_BYTES: usize = 32;
const CONTROL_HEAD: usize = size_of::<libc::cmsghdr>();
/// From `linux/sock_diag.h`: what `SO_MEMINFO` says, and where in it the bytes are that are to be sent, and the frames
/// that found no room.
const MEMINFO: usize = 9;
const MEMINFO_UNSENT: usize = 2;
const MEMINFO_DROPS: usize = 8;

const _: () = assert!(CONTROL_HEAD == 16 && CONTROL_BYTES >= CONTROL_HEAD + 8);

/// An address as the kernel writes it: `sockaddr_in`, `sockaddr_in6` or `sockaddr_ll`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub(crate) struct Name {
    pub(crate) bytes: [u8; NAME_BYTES],
    pub(crate) len: u32,
}

/// A message that came.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Came {
    pub(crate) from: Name,
    /// Bytes in its place.
    pub(crate) len: usize,
    /// Several datagrams of this length were joined, of which the last may be shorter; 0: it is one.
    pub(crate) segment: usize,
    /// It was longer than its place.
    pub(crate) is_cut: bool,
}

/// A message to be sent: datagrams that lie one behind the other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Burst {
    pub(crate) to: Name,
    /// Where in the memory that is sent from.
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// Of each datagram but the last, which may be shorter. Of no meaning when there is one.
    pub(crate) segment: usize,
    pub(crate) frames: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

impl Name {
    /// The interface that a packet socket of this name is bound to.
    pub(crate) fn interface(&self) -> Option<i32> {
        let bytes = self.bytes.get(..(self.len as usize).min(NAME_BYTES))?;
        let (family, rest) = bytes.split_first_chunk::<2>()?;
        let is_packet = i32::from(u16::from_ne_bytes(*family)) == libc::AF_PACKET;
        // Behind it the protocol (`struct sockaddr_ll`).
        let index = i32::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        is_packet.then_some(index)
    }
}

/// Has the kernel join datagrams of one sender (UDP, since 5.0).
pub(crate) fn join_datagrams(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, &1_i32)
}

/// Has a packet socket not see what this host sends (since 4.20).
pub(crate) fn ignore_outgoing(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    set_option(socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1_i32)
}

/// Datagrams that found no room in the socket since it was made (since 4.12).
pub(crate) fn dropped(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    Ok(memory_facts(socket)?.get(MEMINFO_DROPS).copied().unwrap_or(0).into())
}

/// Bytes of memory that what was sent takes until it has left (since 4.12).
pub(crate) fn unsent(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    Ok(memory_facts(socket)?.get(MEMINFO_UNSENT).copied().unwrap_or(0).into())
}

fn memory_facts(socket: BorrowedFd<'_>) -> Result<[u32; MEMINFO], Errno> {
    let mut facts = [0_u32; MEMINFO];
    let mut len = size_of_val(&facts) as libc::socklen_t;
    let place = facts.as_mut_ptr().cast();
    let (level, option) = (libc::SOL_SOCKET, libc::SO_MEMINFO);
    // SAFETY: the kernel writes at most `len` bytes to `facts`.
    result(unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, place, &raw mut len) })?;
    Ok(facts)
}

/// What a socket is bound to: of a packet socket with the address of its interface.
pub(crate) fn own_name(socket: BorrowedFd<'_>) -> Result<Name, Errno> {
    let mut name = Name::default();
    let mut len = NAME_BYTES as libc::socklen_t;
    let place = name.bytes.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `len` bytes to `name`, which is aligned for any of its addresses.
    result(unsafe { libc::getsockname(socket.as_raw_fd(), place, &raw mut len) })?;
    name.len = len.min(NAME_BYTES as u32);
    Ok(name)
}

/// Takes what has come, without waiting: a message for each place of `place_bytes` in `places`, at most [`MANY`].
///
/// # Errors
/// The kernel's; `EAGAIN` when there is nothing.
pub(crate) fn receive_many(
    socket: BorrowedFd<'_>,
    places: &mut [u8],
    place_bytes: usize,
    came: &mut [Came; MANY],
) -> Result<usize, Errno> {
    let mut pieces = [Piece::default(); MANY];
    let mut controls = [Control([0; CONTROL_BYTES]); MANY];
    // SAFETY: plain numbers and pointers, of which zeroes are valid.
    let mut messages: [libc::mmsghdr; MANY] = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut count = 0;
    let ours = pieces.iter_mut().zip(&mut controls).zip(came.iter_mut());
    let places = places.chunks_exact_mut(place_bytes);
    for ((place, ((piece, control), came)), message) in places.zip(ours).zip(&mut messages) {
        *piece = Piece { base: place.as_mut_ptr() as usize, len: place.len() };
        came.from = Name::default();
        let header = &mut message.msg_hdr;
        header.msg_name = came.from.bytes.as_mut_ptr().cast();
        header.msg_namelen = NAME_BYTES as libc::socklen_t;
        header.msg_iov = (&raw mut *piece).cast();
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_BYTES as _;
        count += 1;
    }
    let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: `count` messages were set: each has a place, a name and a control buffer of the lengths that it
    // says, which are borrowed mutably until the end of this function.
    let got = unsafe {
        libc::recvmmsg(fd, messages.as_mut_ptr(), count, flags as _, std::ptr::null_mut())
    };
    let got = result(got)? as usize;
    for ((message, came), control) in messages.iter().zip(came.iter_mut()).zip(&controls).take(got)
    {
        let header = &message.msg_hdr;
        came.from.len = header.msg_namelen.min(NAME_BYTES as u32);
        came.len = (message.msg_len as usize).min(place_bytes);
        came.is_cut = header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        came.segment = segment_of(control.0.get(..header.msg_controllen));
    }
    Ok(got)
}

/// What the kernel says of datagrams that it has joined.
fn segment_of(control: Option<&[u8]>) -> usize {
    let Some((head, data)) =
        control.and_then(|control| control.split_first_chunk::<CONTROL_HEAD>())
    else {
        return 0;
    };
    let number = |at: usize| head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    let is_ours = number(8).map(i32::from_ne_bytes) == Some(libc::SOL_UDP)
        && number(12).map(i32::from_ne_bytes) == Some(libc::UDP_GRO);
    let size = data.first_chunk::<4>().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    if is_ours { usize::try_from(size).unwrap_or(0) } else { 0 }
}

/// Sends the first of `bursts`, at most [`MANY`], out of `memory`, without waiting: how many went.
///
/// # Errors
/// The kernel's, when the first one did not go.
pub(crate) fn send_bursts(
    socket: BorrowedFd<'_>,
    memory: &[u8],
    bursts: &[Burst],
) -> Result<usize, Errno> {
    let mut pieces = [Piece::default(); MANY];
    let mut controls = [Control([0; CONTROL_BYTES]); MANY];
    // SAFETY: plain numbers and pointers, of which zeroes are valid.
    let mut messages: [libc::mmsghdr; MANY] = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut count = 0;
    let ours = pieces.iter_mut().zip(&mut controls).zip(&mut messages);
    for (burst, ((piece, control), message)) in bursts.iter().zip(ours) {
        let Some(bytes) = memory.get(burst.start..burst.start + burst.len) else { break };
        *piece = Piece { base: bytes.as_ptr() as usize, len: bytes.len() };
        let header = &mut message.msg_hdr;
        header.msg_name = burst.to.bytes.as_ptr().cast_mut().cast();
        header.msg_namelen = burst.to.len.min(NAME_BYTES as u32);
        header.msg_iov = (&raw mut *piece).cast();
        header.msg_iovlen = 1;
        if burst.frames > 1 {
            control.say_segment(burst.segment as u16);
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = (CONTROL_HEAD + 8) as _;
        }
        count += 1;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `count` messages were set: each has bytes within `memory`, a name within its burst, and a control
    // message of the length that it says; the kernel only reads them, and writes to the messages' lengths.
    let sent =
        unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, flags as _) };
    result(sent).map(|sent| sent as usize)
}

impl Control {
    /// `UDP_SEGMENT` with this length.
    fn say_segment(&mut self, segment: u16) {
        let len = CONTROL_HEAD + size_of::<u16>();
        let parts: [(usize, &[u8]); 4] = [
            (0, &len.to_ne_bytes()),
            (8, &libc::SOL_UDP.to_ne_bytes()),
            (12, &libc::UDP_SEGMENT.to_ne_bytes()),
            (CONTROL_HEAD, &segment.to_ne_bytes()),
        ];
        for (at, bytes) in parts {
            if let Some(place) = self.0.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        }
    }
}
