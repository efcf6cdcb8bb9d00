//! A link's socket: a port of UDP, or an EtherType of an interface by a packet socket or AF_XDP. Frames in place, in batches.
//!
//! Not what is in them (`remote`), nor who may speak here. Opened by control, moved to the sidecore that has the
//! link, and touched by nobody else then. Never waits, and allocates nothing after it was opened.
//!
//! # What the kernel does for it
//!
//! UDP and packet sockets are bound by the kernel: to a port, or to an interface and EtherType 0x88B5 (IEEE 802, local
//! experimental 1), of which frames for other stations are left out; nothing is set promiscuous. Of UDP, frames that
//! follow one another to one peer with one length go as one message that the kernel or the NIC cuts up, and those that
//! come are joined. A frame on the wire itself has its length before it, since short ones are padded there. AF_XDP is in `xdp`.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
#[cfg(feature = "simulated")]
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

use super::address::Family;
use super::kernel::{KernelSocket, LENGTH_BYTES};
#[cfg(feature = "simulated")]
use super::simulated::{LinkWire, SimulatedSocket};
use super::xdp::{self, Station, XdpSocket};
use super::{Address, LinkOpenError, LinkWhy};
use crate::net::is_name;
use crate::sys::Interfaces;
use crate::sys::datagrams::{ignore_outgoing, own_name};
use crate::sys::interface::bind as bind_packet;

/// The EtherType of a link without IP.
pub const ETHER_TYPE: u16 = 0x88b5;
/// The longest frame, bytes: one of jumbo frames' usual 9,000.
pub const FRAME_BYTES_MAX: usize = 9_000;
/// Of the shortest MTU: what both ends of the protocol can always take, and a length.
const MTU_MIN: u32 = 642;
const RAW: &str = "CAP_NET_RAW";

/// Where a link is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkSource {
    /// A port of UDP. Of a client's link any will do: port 0.
    Udp {
        /// This end's address and port.
        bind: SocketAddr,
    },
    /// An interface, without IP, by a packet socket.
    Interface {
        /// Its name.
        name: String,
    },
    /// The same by AF_XDP.
    Xdp {
        /// The interface's name.
        name: String,
    },
}

/// Frames that were lost here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkLosses {
    /// That came and were no frames of a link, or too long.
    pub received: u64,
    /// That came and found no room in the socket, as far as the kernel tells.
    pub overrun: u64,
    /// That the kernel refused to send: no memory, no room, no route.
    pub sent: u64,
}

/// A link's socket.
#[derive(Debug)]
pub struct LinkSocket(Inner);

#[derive(Debug)]
enum Inner {
    Kernel(Box<KernelSocket>),
    Xdp(Box<XdpSocket>),
    #[cfg(feature = "simulated")]
    Simulated(SimulatedSocket),
}

/// Calls the same of whichever it is.
macro_rules! each {
    ($inner:expr, $socket:ident => $call:expr) => {
        match $inner {
            Inner::Kernel($socket) => $call,
            Inner::Xdp($socket) => $call,
            #[cfg(feature = "simulated")]
            Inner::Simulated($socket) => $call,
        }
    };
}

impl LinkSocket {
    /// Opens it.
    ///
    /// # Errors
    /// [`LinkOpenError`], with what helps.
    pub fn open(source: &LinkSource) -> Result<LinkSocket, LinkOpenError> {
        let (at, opened) = match source {
            LinkSource::Udp { bind } => (format!("udp {bind}"), open_udp(*bind)),
            LinkSource::Interface { name } => (format!("interface {name}"), open_station(name)),
            LinkSource::Xdp { name } => (format!("interface {name}"), open_queue(name)),
        };
        opened.map_err(|why| LinkOpenError { at, why })
    }

    /// One that another process has opened so.
    ///
    /// # Errors
    /// [`LinkWhy::Elsewhere`]: it is at another address or interface.
    pub(super) fn inherit(source: &LinkSource, socket: OwnedFd) -> Result<LinkSocket, LinkWhy> {
        let failed = |what| move |errno| LinkWhy::os(what, "nothing", errno);
        match source {
            LinkSource::Udp { bind } => {
                let local = getsockname(&socket).map_err(failed("ask where a socket is"))?;
                let local = SocketAddr::try_from(local).map_err(|_| LinkWhy::Elsewhere)?;
                // A client's is at any port.
                let is_port = bind.port() == 0 || local.port() == bind.port();
                match (is_port && local.ip() == bind.ip(), bind) {
                    (false, _) => Err(LinkWhy::Elsewhere),
                    (true, SocketAddr::V4(_)) => Ok(LinkSocket::of_port(socket, Family::Ipv4)),
                    (true, SocketAddr::V6(_)) => Ok(LinkSocket::of_port(socket, Family::Ipv6)),
                }
            }
            // Of AF_XDP it is the packet socket beside, which has all frames once the program has gone.
            LinkSource::Interface { name } | LinkSource::Xdp { name } => {
                let (family, frame_bytes) = station_of(name)?;
                let bound = own_name(socket.as_fd()).map_err(failed("ask where a socket is"))?;
                let index = bound.interface().ok_or(LinkWhy::Elsewhere)?;
                if family != (Family::Station { index, kind: ETHER_TYPE }) {
                    return Err(LinkWhy::Elsewhere);
                }
                Ok(LinkSocket::of_station((socket, family, frame_bytes)))
            }
        }
    }

    /// Over a bound socket of UDP.
    pub(super) fn of_port(socket: OwnedFd, family: Family) -> LinkSocket {
        let socket = KernelSocket::new(socket, family, FRAME_BYTES_MAX);
        LinkSocket(Inner::Kernel(Box::new(socket)))
    }

    /// Over a bound packet socket.
    pub(super) fn of_station((socket, family, frame_bytes): Station) -> LinkSocket {
        LinkSocket::of_kernel(KernelSocket::new(socket, family, frame_bytes))
    }

    /// Over a socket of the kernel's.
    pub(super) fn of_kernel(socket: KernelSocket) -> LinkSocket {
        LinkSocket(Inner::Kernel(Box::new(socket)))
    }

    /// Over a queue of an interface.
    pub(super) fn of_queue(socket: XdpSocket) -> LinkSocket {
        LinkSocket(Inner::Xdp(Box::new(socket)))
    }

    /// One on a wire that a simulation has, where it is `at`.
    #[cfg(feature = "simulated")]
    pub fn simulated(wire: Arc<dyn LinkWire>, at: Address) -> std::io::Result<LinkSocket> {
        Ok(LinkSocket(Inner::Simulated(SimulatedSocket::new(wire, at)?)))
    }

    /// Where such a one is of which another process has handed over what it could ([`Self::handed`]).
    #[cfg(feature = "simulated")]
    pub fn simulated_at(handed: &OwnedFd) -> Option<Address> {
        SimulatedSocket::bound_to(handed)
    }

    /// Bytes of the longest frame that can be sent and received here.
    pub fn frame_bytes(&self) -> usize {
        each!(&self.0, socket => socket.frame_bytes())
    }

    /// Where it is, when that is a port.
    pub fn local(&self) -> Option<SocketAddr> {
        match &self.0 {
            Inner::Kernel(socket) => socket.local(),
            Inner::Xdp(_) => None,
            #[cfg(feature = "simulated")]
            Inner::Simulated(socket) => socket.local(),
        }
    }

    /// How frames come and go, for people: `udp`, `packet`, `xdp, native, copy`.
    pub fn describe(&self) -> &'static str {
        match &self.0 {
            Inner::Kernel(socket) => socket.describe(),
            Inner::Xdp(socket) => socket.describe(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(_) => "simulated",
        }
    }

    /// Whether so much waits to be sent that what is for strangers should not be. A call of the kernel.
    pub fn is_congested(&self) -> bool {
        match &self.0 {
            Inner::Kernel(socket) => socket.is_congested(),
            Inner::Xdp(_) => false,
            #[cfg(feature = "simulated")]
            Inner::Simulated(_) => false,
        }
    }

    /// The next frame, to be opened in place, and who sent it. `None` when there is none now.
    #[inline]
    pub fn receive(&mut self) -> Option<(Address, &mut [u8])> {
        each!(&mut self.0, socket => socket.receive())
    }

    /// Whether frames are here that the kernel no longer has, so that its descriptor says nothing of them.
    pub fn has_some(&self) -> bool {
        each!(&self.0, socket => socket.has_some())
    }

    /// Sends the frame that `fill` puts into its place: it says how long it is and where it goes, or `None` when
    /// there is nothing to send. True when there was. It leaves with [`Self::flush`], or before.
    #[inline]
    pub fn send(&mut self, fill: impl FnOnce(&mut [u8]) -> Option<(usize, Address)>) -> bool {
        each!(&mut self.0, socket => socket.send(fill))
    }

    /// Gives the kernel what waits. A message that it refuses is left out, and counted.
    #[inline]
    pub fn flush(&mut self) {
        each!(&mut self.0, socket => socket.flush());
    }

    /// Readable (level) while the kernel has frames.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        each!(&self.0, socket => socket.poll_fd())
    }

    /// What another process can go on with ([`super::LinkShards::inherit`]): the socket, or of AF_XDP the packet
    /// socket beside.
    pub fn handed(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Inner::Xdp(socket) => socket.beside().poll_fd(),
            Inner::Kernel(socket) => socket.poll_fd(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(socket) => socket.handed(),
        }
    }

    /// What was lost since it was opened. Asks the kernel: not for each pass.
    pub fn losses(&self) -> LinkLosses {
        each!(&self.0, socket => socket.losses())
    }
}

fn open_udp(at: SocketAddr) -> Result<LinkSocket, LinkWhy> {
    let needs = "CAP_NET_BIND_SERVICE for a port below 1024";
    let (socket, family) = datagram_socket(at)?;
    bind(&socket, &at).map_err(|errno| LinkWhy::os("bind to it", needs, errno))?;
    Ok(LinkSocket::of_port(socket, family))
}

fn open_station(name: &str) -> Result<LinkSocket, LinkWhy> {
    Ok(LinkSocket::of_station(station_socket(name)?))
}

fn open_queue(name: &str) -> Result<LinkSocket, LinkWhy> {
    let opened = xdp::open(vec![station_socket(name)?])?;
    opened.into_iter().next().ok_or(LinkWhy::Missing)
}

/// A socket of UDP for an address of that kind, not bound.
pub(super) fn datagram_socket(at: SocketAddr) -> Result<(OwnedFd, Family), LinkWhy> {
    let (domain, family) = match at {
        SocketAddr::V4(_) => (AddressFamily::INET, Family::Ipv4),
        SocketAddr::V6(_) => (AddressFamily::INET6, Family::Ipv6),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(domain, SocketType::DGRAM, flags, None);
    let socket = socket.map_err(|errno| LinkWhy::os("make a socket", "nothing", errno))?;
    Ok((socket, family))
}

/// A packet socket that is bound to the interface, and the longest frame there.
pub(super) fn station_socket(name: &str) -> Result<Station, LinkWhy> {
    let (family, frame_bytes) = station_of(name)?;
    let Family::Station { index, .. } = family else { return Err(LinkWhy::Name) };
    let failed = |what| move |errno| LinkWhy::os(what, RAW, errno);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None);
    let socket = socket.map_err(failed("make a packet socket"))?;
    ignore_outgoing(socket.as_fd()).map_err(|errno| match errno {
        Errno::NOPROTOOPT => {
            LinkWhy::Kernel { what: "leave out what the host itself sends", since: "4.20" }
        }
        errno => LinkWhy::os("leave out what the host itself sends", RAW, errno),
    })?;
    bind_packet(socket.as_fd(), index as u32, ETHER_TYPE).map_err(failed("bind a socket to it"))?;
    Ok((socket, family, frame_bytes))
}

/// What sockets of an interface are, and the longest frame there.
fn station_of(name: &str) -> Result<(Family, usize), LinkWhy> {
    if !is_name(name) {
        return Err(LinkWhy::Name);
    }
    let failed = |what| move |errno| LinkWhy::os(what, RAW, errno);
    let interfaces = Interfaces::new().map_err(failed("ask for interfaces"))?;
    let index = interfaces.index(name).map_err(failed("look for it"))?;
    let index = index.ok_or(LinkWhy::Missing)?;
    let mtu = interfaces.mtu(name).map_err(failed("read its MTU"))?;
    if mtu < MTU_MIN {
        return Err(LinkWhy::Mtu(mtu));
    }
    let family = Family::Station { index: index as i32, kind: ETHER_TYPE };
    Ok((family, (mtu as usize - LENGTH_BYTES).min(FRAME_BYTES_MAX)))
}
