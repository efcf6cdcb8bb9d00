//! What is asked of network interfaces by `ioctl`: flags, MTU, carrier, and a promiscuous hold.
//!
//! Called by `net`'s ports when they are opened. Names were checked there, and are cut here to what
//! fits.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

/// `ETHTOOL_GLINK`: whether the interface is up and has a carrier, as the driver knows it now.
const ETHTOOL_GLINK: u32 = 0x0a;

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// A socket through which interfaces of this network namespace are asked.
#[derive(Debug)]
pub(crate) struct Interfaces {
    socket: OwnedFd,
}

impl Interfaces {
    /// Any kind of socket does; one of this kind the service's hardening allows anyway.
    pub(crate) fn new() -> Result<Interfaces, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        Ok(Interfaces { socket })
    }

    /// The index of the interface with this name; `None` when there is none.
    pub(crate) fn index(&self, name: &str) -> Result<Option<u32>, Errno> {
        match netdevice::name_to_index(&self.socket, name) {
            Ok(index) => Ok(Some(index)),
            Err(Errno::NODEV | Errno::NXIO) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Whether the interface with this index exists here.
    pub(crate) fn exists(&self, index: u32) -> bool {
        netdevice::index_to_name_inlined(&self.socket, index).is_ok()
    }

    /// MTU, bytes.
    pub(crate) fn mtu(&self, name: &str) -> Result<u32, Errno> {
        let mut request = request(name);
        self.ask(libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: the kernel has set this member.
        Ok(u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).unwrap_or(0))
    }

    /// Sets the MTU, bytes.
    pub(crate) fn set_mtu(&self, name: &str, mtu: u32) -> Result<(), Errno> {
        let mut request = request(name);
        request.ifr_ifru.ifru_mtu = mtu as i32;
        self.ask(libc::SIOCSIFMTU, &mut request)
    }

    /// `IFF_UP` and the like, of which 16 bits are told. Waits for nobody.
    pub(crate) fn flags(&self, name: &str) -> Result<i16, Errno> {
        let mut request = request(name);
        self.ask(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: the kernel has set this member.
        Ok(unsafe { request.ifr_ifru.ifru_flags })
    }

    /// Has the interface up.
    pub(crate) fn set_up(&self, name: &str) -> Result<(), Errno> {
        let mut request = request(name);
        let flags = self.flags(name)?;
        request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as i16;
        self.ask(libc::SIOCSIFFLAGS, &mut request)
    }

    /// Whether it is up and has a carrier now. Not `IFF_RUNNING`, which is up to a second late.
    pub(crate) fn has_carrier(&self, name: &str) -> Result<bool, Errno> {
        let mut value = EthtoolValue { command: ETHTOOL_GLINK, data: 0 };
        let mut request = request(name);
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        self.ask(libc::SIOCETHTOOL, &mut request)?;
        Ok(value.data != 0)
    }

    fn ask(&self, what: libc::c_ulong, request: &mut libc::ifreq) -> Result<(), Errno> {
        // SAFETY: all of `what` take an `ifreq`; where it holds a pointer, the caller's value that it
        // points to outlives the call.
        result(unsafe { libc::ioctl(self.socket.as_raw_fd(), what as _, request) }).map(|_| ())
    }
}

/// An `ifreq` with a name and otherwise zeroes.
pub(super) fn request(name: &str) -> libc::ifreq {
    // SAFETY: plain numbers, of which zeroes are valid.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    // The last byte stays zero.
    let places = request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1);
    for (place, byte) in places.zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request
}

/// Keeps the interface promiscuous for as long as `socket`, a packet socket, is open: a guest's MAC
/// address is not the interface's own.
pub(crate) fn hold_promiscuous(socket: BorrowedFd<'_>, index: u32) -> Result<(), Errno> {
    let membership = libc::packet_mreq {
        mr_ifindex: index as i32,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
}

/// A packet socket that receives nothing yet.
pub(crate) fn packet_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
}

/// Has a packet socket receive frames of the interface from now on: those of one EtherType, or all
/// (`ETH_P_ALL`).
pub(crate) fn bind(socket: BorrowedFd<'_>, index: u32, kind: u16) -> Result<(), Errno> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: kind.to_be(),
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of the address, which outlives the call.
    result(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) }).map(|_| ())
}

/// Takes the error that the kernel has put on a socket, which makes it readable until then.
pub(crate) fn take_error(socket: BorrowedFd<'_>) -> Option<Errno> {
    rustix::net::sockopt::socket_error(socket).ok().and_then(Result::err)
}

/// `setsockopt` with a structure of the kernel's.
pub(super) fn set_option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: &T,
) -> Result<(), Errno> {
    let (value, len) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes of `value`, which outlives the call.
    result(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, len) }).map(|_| ())
}

/// What a call of libc's that answers below zero for an error means.
#[inline]
pub(super) fn result(value: i32) -> Result<i32, Errno> {
    if value >= 0 { Ok(value) } else { Err(last_errno()) }
}

#[inline]
pub(super) fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// Whether this kernel is at least `major.minor`.
pub(crate) fn kernel_is(major: u32, minor: u32) -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
    (next(), next()) >= (major, minor)
}

impl AsFd for Interfaces {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
