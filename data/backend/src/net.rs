//! Host ports: where frames leave for the host and come from it. A tap, a packet socket on an
//! interface, an AF_XDP socket on one of its queues, a link to another machine, or nothing at all for measuring.
//!
//! A [`HostPort`] is opened by control, moves to the sidecore that owns it, and is touched by nobody
//! else then. Not here: who gets a frame (`switch`), what a frame needs (`frame`), queues of guests.
//!
//! Called by `sidecore` (`receive`, `send`, `flush`) and `manager` (`open`, `remove`).
//!
//! # What is promised
//!
//! - [`HostPort::receive`] and [`HostPort::send`] never wait and allocate nothing.
//! - A frame is sent whole or not at all. Guest memory is read at most once for it, and not after
//!   `send` has returned, so that the caller may give the buffers back.
//! - An interface that was deleted is a state ([`HostPort::is_gone`]), as is one that is down, of
//!   which frames are [`Sent::Failed`]. Neither ends in an error that has to be handled at once.
//!
//! # Restarts
//!
//! A tap that we made stays when the daemon ends, by whatever end, and with it its addresses and its
//! place in a bridge. [`HostPort::remove`] is what takes it away. Control saves
//! [`HostPort::was_made`], so that the next daemon knows it as its own.

mod errors;
mod linked;
mod null;
mod packet;
#[cfg(feature = "simulated")]
mod simulated;
mod tap;
mod watch;
pub(crate) mod xdp;

pub(crate) use errors::is_name;
pub use errors::{HostOpenError, Why};
pub(crate) use linked::Linked;
pub use null::{Null, NullMode};
pub use packet::Packet;
#[cfg(feature = "simulated")]
pub use simulated::{Simulated, Wire};
pub use tap::Tap;
pub use xdp::Xdp;

use std::os::fd::{BorrowedFd, OwnedFd};

use frame::{Header, Offloads};
use guest_memory::{GuestMap, Span};
use rustix::io::Errno;

use crate::sys::{Gather, Interfaces, PIECES_MAX};

/// Smallest and largest MTU of a tap, bytes: the kernel's own bounds (an IP packet of 64 KiB less the
/// Ethernet header).
pub const TAP_MTU_RANGE: std::ops::RangeInclusive<u16> = 68..=65_521;

/// Longest frame that is copied before it is sent, bytes: one of 1,500 with its tags. The kernel takes
/// one piece faster than several (1.47 us against 1.64 for 64 bytes to a tap, 1.94 against 2.08 for
/// 1,514), and copies can be sent together.
pub(crate) const STAGED_MAX: usize = 1_536;

/// Shortest frame that is handed on, bytes: an Ethernet header.
pub(crate) const FRAME_MIN: usize = frame::FRAME_MIN as usize;

/// What an operator asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostSource {
    /// A tap device: one descriptor of it. One that is missing is made, and stays.
    Tap {
        /// The interface, 1 to 15 bytes.
        name: String,
        /// Which of its queues, from 0. Each is a port of its own; 0 is opened first, and only when
        /// nobody else holds the tap.
        queue: u16,
        /// MTU of a tap that is made, or `ours`, bytes, within [`TAP_MTU_RANGE`]. `None`: as it is, which
        /// of a new one is 1,500.
        mtu: Option<u16>,
        /// An earlier daemon made it ([`HostPort::was_made`], saved): it is ours to remove.
        ours: bool,
    },
    /// A packet socket on an interface, which is set promiscuous. The host's own stack sees the same
    /// frames; what the host itself sends there is not received.
    Packet {
        /// The interface.
        interface: String,
    },
    /// An AF_XDP socket on one queue of an interface, which is set promiscuous. The host's own stack
    /// no longer sees what comes on that queue.
    Xdp {
        /// The interface.
        interface: String,
        /// Which of its receive queues. Of further ones see [`HostPort::open_beside`].
        queue: u32,
    },
    /// Nothing.
    Null {
        /// What it does instead.
        mode: NullMode,
    },
}

/// A frame from the host. Valid until the next call to its port.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// What the frame still needs, as the kernel said it; not checked. `buffers` means nothing.
    pub header: Header,
    /// The frame: at least 14 bytes.
    pub bytes: &'a [u8],
}

/// What follows the head of a frame that is sent.
#[derive(Clone, Copy, Debug)]
pub enum Rest<'a> {
    /// Pieces of a guest's memory, in order; at most 256. Each is checked again.
    Guest(&'a GuestMap, &'a [Span]),
    /// Bytes of ours.
    Private(&'a [u8]),
}

impl Rest<'_> {
    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Rest::Guest(_, spans) => spans.iter().map(|span| span.len() as usize).sum(),
            Rest::Private(bytes) => bytes.len(),
        }
    }

    /// Puts header, head, and all of it into `frame`.
    #[inline]
    pub(crate) fn gather<'a>(
        self,
        header: &'a [u8],
        head: &'a [u8],
        frame: &mut Gather<'a>,
    ) -> Result<(), Sent>
    where
        Self: 'a,
    {
        let fits = frame.put(header) && frame.put(head);
        match self {
            Rest::Private(bytes) if fits && frame.put(bytes) => Ok(()),
            Rest::Guest(_, spans) if spans.len() > PIECES_MAX => Err(Sent::TooLong),
            Rest::Guest(map, spans) if fits && frame.put_guest(map, spans) => Ok(()),
            Rest::Guest(..) => Err(Sent::Fault),
            Rest::Private(_) => Err(Sent::TooLong),
        }
    }

    /// Copies header, head, and all of it to the start of `place`: bytes.
    #[inline]
    pub(crate) fn stage(self, header: &[u8], head: &[u8], place: &mut [u8]) -> Result<usize, Sent> {
        let (to_header, place) = place.split_at_mut_checked(header.len()).ok_or(Sent::TooLong)?;
        let (to_head, place) = place.split_at_mut_checked(head.len()).ok_or(Sent::TooLong)?;
        let to_rest = place.get_mut(..self.len()).ok_or(Sent::TooLong)?;
        to_header.copy_from_slice(header);
        to_head.copy_from_slice(head);
        match self.copy_to(to_rest) {
            true => Ok(header.len() + head.len() + to_rest.len()),
            false => Err(Sent::Fault),
        }
    }

    /// Copies all of it into `into`, which has its length. False when a span is not in its map.
    #[inline]
    pub(crate) fn copy_to(&self, into: &mut [u8]) -> bool {
        match *self {
            Rest::Private(bytes) => {
                let Some(into) = into.get_mut(..bytes.len()) else {
                    return false;
                };
                into.copy_from_slice(bytes);
                true
            }
            Rest::Guest(map, spans) => {
                let mut into = into;
                for &span in spans {
                    let Some((first, after)) = into.split_at_mut_checked(span.len() as usize)
                    else {
                        return false;
                    };
                    if !map.read(span, 0, first) {
                        return false;
                    }
                    into = after;
                }
                true
            }
        }
    }
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Sent {
    /// The host has it, or will at the end of the visit ([`HostPort::flush`]).
    Done,
    /// No room now; the frame is not sent. Worth another try later.
    Full,
    /// Longer than the port can carry, or in more pieces; not sent.
    TooLong,
    /// Not sent, and no better with another try: the interface is down, or refuses this header.
    Failed,
    /// Not sent: the memory of its sender is not there. The sender's loss, nobody else's. A short
    /// frame, which is copied first, is sent with zeroes instead, and the map's health is lost.
    Fault,
    /// Not sent, and not before the other end has it: nobody has this NIC now.
    Down,
    /// Not sent: the interface no longer exists ([`HostPort::is_gone`]).
    Gone,
}

impl Sent {
    /// What the kernel's refusal of a frame means.
    #[cold]
    pub(crate) fn from_errno(errno: Errno) -> Sent {
        match errno {
            // The socket's room, or the kernel's memory.
            Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR => Sent::Full,
            Errno::MSGSIZE | Errno::TOOBIG => Sent::TooLong,
            Errno::FAULT => Sent::Fault,
            // A tap's queue answers the first; a socket the others.
            Errno::BADFD | Errno::NODEV | Errno::NXIO => Sent::Gone,
            // EIO, ENETDOWN: it is down. EINVAL: the header.
            _ => Sent::Failed,
        }
    }
}

/// Frames that went missing in a port, since it was asked last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Came to the host's interface and not to [`HostPort::receive`]: the kernel had no place for
    /// them, or they were cut off.
    pub received: u64,
    /// Were [`Sent::Done`], and the kernel refused them afterwards.
    pub sent: u64,
}

impl Losses {
    /// Counts since the last call, and forgets them.
    pub(crate) fn take(&mut self) -> Losses {
        std::mem::take(self)
    }
}

/// A port of a bridge that leads to the host.
#[derive(Debug)]
pub enum HostPort {
    /// One queue of a tap.
    Tap(Tap),
    /// A packet socket.
    Packet(Box<Packet>),
    /// An AF_XDP socket.
    Xdp(Box<Xdp>),
    /// Nothing.
    Null(Null),
    /// A NIC of another machine ([`crate::link::LinkNic`]).
    Linked(Box<Linked>),
    /// A simulation's.
    #[cfg(feature = "simulated")]
    Simulated(Box<Simulated>),
}

/// A port is opened by control and used by a sidecore.
const fn assert_send<T: Send>() {}
const _: () = assert_send::<HostPort>();

/// The number of an interface in this process's network namespace; `None`: there is none of that name.
///
/// # Errors
/// No socket can be had to ask by.
pub fn index_of(interface: &str) -> Result<Option<u32>, HostOpenError> {
    let failed = |error| Why::os("look for it", "a socket", error).of("interface", interface);
    Interfaces::new().and_then(|interfaces| interfaces.index(interface)).map_err(failed)
}

/// Why no frame passes an interface that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// It was set down.
    Down,
    /// Its cable is out, or whoever is at its other end is not there.
    NoCarrier,
}

/// Why no frame passes an interface of this process's network namespace now, if so. Of a tap, which has a carrier as
/// long as it is open, whether it is up; the carrier of others is up to a second late. Nothing of one that is not there.
pub fn silence_of(interface: &str, is_tap: bool) -> Option<Silence> {
    let flags = Interfaces::new().and_then(|interfaces| interfaces.flags(interface)).ok()?;
    let has = |flag: i32| flags & flag as i16 != 0;
    match (has(libc::IFF_UP), is_tap || has(libc::IFF_RUNNING)) {
        (false, _) => Some(Silence::Down),
        (true, false) => Some(Silence::NoCarrier),
        (true, true) => None,
    }
}

/// Whether a tap of this process's network namespace is there, is up, and somebody has it open, so that it can be had
/// by nobody else: it has a carrier then.
pub fn is_tap_taken(name: &str) -> bool {
    Interfaces::new().and_then(|interfaces| interfaces.has_carrier(name)) == Ok(true)
}

impl HostPort {
    /// Opens it. May block, allocate, and make a tap.
    ///
    /// # Errors
    /// [`HostOpenError`]; nothing is left behind then.
    pub fn open(source: &HostSource) -> Result<HostPort, HostOpenError> {
        match source {
            HostSource::Tap { name, queue, mtu, ours } => {
                Tap::open(name, *queue, *mtu, *ours).map(HostPort::Tap)
            }
            HostSource::Packet { interface } => {
                Ok(HostPort::Packet(Box::new(Packet::open(interface)?)))
            }
            HostSource::Xdp { interface, queue } => {
                Ok(HostPort::Xdp(Box::new(Xdp::open(interface, *queue)?)))
            }
            HostSource::Null { mode } => Ok(HostPort::Null(Null::new(*mode))),
        }
    }

    /// A queue of the tap `name` that another process had until now; `made`: a daemon made that tap.
    ///
    /// # Errors
    /// [`HostOpenError`]: the descriptor is of something else.
    pub fn inherit_tap(name: &str, fd: OwnedFd, made: bool) -> Result<HostPort, HostOpenError> {
        Tap::inherit(name, fd, made).map(HostPort::Tap)
    }

    /// What [`Self::inherit_tap`] takes, and whether a daemon made it; `None` for all but taps.
    pub fn tap(&self) -> Option<(BorrowedFd<'_>, bool)> {
        match self {
            HostPort::Tap(tap) => Some((tap.fd(), tap.was_made())),
            #[cfg(feature = "simulated")]
            HostPort::Simulated(port) => port.tap(),
            _ => None,
        }
    }

    /// Opens another queue of what `self` is open on: as [`Self::open`], but queues of one interface
    /// share its XDP program, of which there can be only one.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_beside(&self, source: &HostSource) -> Result<HostPort, HostOpenError> {
        match (self, source) {
            (HostPort::Xdp(first), HostSource::Xdp { interface, queue })
                if first.interface() == interface =>
            {
                Ok(HostPort::Xdp(Box::new(first.open_beside(*queue)?)))
            }
            _ => HostPort::open(source),
        }
    }

    /// The next frame; `None` when there is none now. Its bytes are valid until the next call.
    ///
    /// `None` also gives the last frame's place back to the kernel, so that a caller that is going
    /// to wait on [`Self::poll_fd`] calls until then.
    #[inline]
    pub fn receive(&mut self, now_ns: u64) -> Option<Received<'_>> {
        match self {
            HostPort::Tap(tap) => tap.receive(),
            HostPort::Packet(packet) => packet.receive(now_ns),
            HostPort::Xdp(xdp) => xdp.receive(now_ns),
            HostPort::Null(null) => null.receive(now_ns),
            HostPort::Linked(port) => port.receive(),
            #[cfg(feature = "simulated")]
            HostPort::Simulated(port) => port.receive(),
        }
    }

    /// Sends `head` and `rest` as one frame, which still needs what `header` says (within
    /// [`Self::has`]; `buffers` is left out). Both have been read when it returns.
    #[inline]
    pub fn send(&mut self, header: &Header, head: &[u8], rest: Rest<'_>) -> Sent {
        match self {
            HostPort::Tap(tap) => tap.send(header, head, rest),
            HostPort::Packet(packet) => packet.send(header, head, rest),
            HostPort::Xdp(xdp) => xdp.send(head, rest),
            // An echo is never asked to ([`Self::echoes`]), so that it would drop.
            HostPort::Null(_) => Sent::Done,
            HostPort::Linked(port) => port.send(head, rest),
            #[cfg(feature = "simulated")]
            HostPort::Simulated(port) => port.send(head, rest),
        }
    }

    /// Whether frames for it go back to where they came from, MAC addresses swapped.
    pub fn echoes(&self) -> bool {
        matches!(self, HostPort::Null(null) if null.echoes())
    }

    /// The end of a visit: what [`Self::send`] gathered goes out. Cheap when there is nothing.
    #[inline]
    pub fn flush(&mut self) {
        match self {
            HostPort::Packet(packet) => packet.flush(),
            HostPort::Xdp(xdp) => xdp.flush(),
            HostPort::Linked(port) => port.flush(),
            HostPort::Tap(_) | HostPort::Null(_) => {}
            #[cfg(feature = "simulated")]
            HostPort::Simulated(_) => {}
        }
    }

    /// Readable when [`Self::receive`] may have something, or the port has gone. `None`: nothing ever
    /// comes, or [`Self::is_clocked`].
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            HostPort::Tap(tap) => Some(tap.poll_fd()),
            HostPort::Packet(packet) => Some(packet.poll_fd()),
            HostPort::Xdp(xdp) => Some(xdp.poll_fd()),
            HostPort::Null(_) => None,
            HostPort::Linked(port) => Some(port.poll_fd()),
            #[cfg(feature = "simulated")]
            HostPort::Simulated(port) => Some(port.poll_fd()),
        }
    }

    /// Whether frames come with time alone, so that the port has to be visited again and again.
    pub fn is_clocked(&self) -> bool {
        matches!(self, HostPort::Null(null) if null.is_clocked())
    }

    /// What [`Self::send`] may leave to the host. A frame that needs more is to be finished before.
    #[inline]
    pub fn has(&self) -> Offloads {
        match self {
            HostPort::Tap(tap) => tap.has(),
            HostPort::Packet(packet) => packet.has(),
            // Nobody looks at what is dropped, and what is echoed never left.
            HostPort::Null(_) => Offloads::ALL,
            HostPort::Xdp(_) | HostPort::Linked(_) => Offloads::NONE,
            #[cfg(feature = "simulated")]
            HostPort::Simulated(_) => Offloads::NONE,
        }
    }

    /// Whether the interface was deleted, or moved where this process cannot see it. It does not come
    /// back: drop the port, and open one anew. Known after a call that met it; a descriptor that is
    /// readable for no other reason is followed by a [`Self::receive`] that finds out.
    #[inline]
    pub fn is_gone(&self) -> bool {
        match self {
            HostPort::Tap(tap) => tap.is_gone(),
            HostPort::Packet(packet) => packet.is_gone(),
            HostPort::Xdp(xdp) => xdp.is_gone(),
            HostPort::Null(_) => false,
            HostPort::Linked(port) => port.is_gone(),
            #[cfg(feature = "simulated")]
            HostPort::Simulated(port) => port.is_gone(),
        }
    }

    /// Frames lost in the port since the last call. Costs a system call: for once a second.
    pub fn losses(&mut self) -> Losses {
        match self {
            HostPort::Packet(packet) => packet.losses(),
            HostPort::Xdp(xdp) => xdp.losses(),
            HostPort::Tap(_) | HostPort::Null(_) | HostPort::Linked(_) => Losses::default(),
            #[cfg(feature = "simulated")]
            HostPort::Simulated(_) => Losses::default(),
        }
    }

    /// The interface's MTU when the port was opened, bytes; `None` for null.
    pub fn mtu(&self) -> Option<u32> {
        match self {
            HostPort::Tap(tap) => Some(tap.mtu()),
            HostPort::Packet(packet) => Some(packet.mtu()),
            HostPort::Xdp(xdp) => Some(xdp.mtu()),
            HostPort::Null(_) | HostPort::Linked(_) => None,
            #[cfg(feature = "simulated")]
            HostPort::Simulated(_) => None,
        }
    }

    /// Whether it is a tap that we made, now or (as [`HostSource::Tap`] told) in an earlier life.
    pub fn was_made(&self) -> bool {
        self.tap().is_some_and(|(_, was_made)| was_made)
    }

    /// Closes the port, and takes a tap that we made away: at once, or when its last queue is closed.
    /// One that was found, or an interface, stays as it is.
    pub fn remove(self) {
        match self {
            HostPort::Tap(tap) => tap.remove(),
            #[cfg(feature = "simulated")]
            HostPort::Simulated(port) => port.remove(),
            HostPort::Packet(_) | HostPort::Xdp(_) | HostPort::Null(_) | HostPort::Linked(_) => {}
        }
    }

    /// How it is served, in a few words for people: `tap`, `packet`, `xdp, native, zero-copy`, `null,
    /// echo`.
    pub fn describe(&self) -> &'static str {
        match self {
            HostPort::Tap(_) => "tap",
            HostPort::Packet(_) => "packet",
            HostPort::Xdp(xdp) => xdp.describe(),
            HostPort::Null(null) => null.describe(),
            HostPort::Linked(_) => "link",
            #[cfg(feature = "simulated")]
            HostPort::Simulated(_) => "simulated",
        }
    }
}
