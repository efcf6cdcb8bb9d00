//! Whether an interface is still there, for ports that are sockets; a tap's queue says it in each
//! answer.
//!
//! A socket tells that its interface went down, and of one that was down already, or an AF_XDP socket,
//! not that it was deleted. So the kernel's messages about interfaces are what is listened to.
//!
//! Called by `net::packet` and `net::xdp`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::sys::Interfaces;
use crate::sys::interface::take_error;

/// How often an idle port looks.
const LOOK_NS: u64 = 1_000_000;
/// Messages taken at a look; of more, the last do not differ from the next.
const MESSAGES_MAX: usize = 16;
/// `RTMGRP_LINK`: interfaces that come, change and go.
const LINKS: u32 = 1;

/// What a port knows of its interface's end.
#[derive(Debug)]
pub(crate) struct Watch {
    interfaces: Interfaces,
    index: u32,
    /// A netlink socket with messages about all interfaces.
    links: OwnedFd,
    /// Readable when the port's socket or `links` is.
    epoll: OwnedFd,
    looked_ns: Option<u64>,
    pub(crate) is_gone: bool,
}

impl Watch {
    /// Watches the interface with this index beside the port's `socket`.
    pub(crate) fn new(
        interfaces: Interfaces,
        index: u32,
        socket: BorrowedFd<'_>,
    ) -> Result<Watch, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 is `NETLINK_ROUTE`.
        let links = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&links, &SocketAddrNetlink::new(0, LINKS))?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, socket, EventData::new_u64(0), EventFlags::IN)?;
        epoll::add(&epoll, &links, EventData::new_u64(1), EventFlags::IN)?;
        // It may have gone before anybody listened.
        let is_gone = !interfaces.exists(index);
        Ok(Watch { interfaces, index, links, epoll, looked_ns: None, is_gone })
    }

    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// To be called when nothing was received. Asks the kernel once in a millisecond; what makes the
    /// descriptor readable beside frames is taken then.
    #[inline]
    pub(crate) fn look(&mut self, socket: BorrowedFd<'_>, now_ns: u64) {
        let is_due = |looked_ns| now_ns.wrapping_sub(looked_ns) >= LOOK_NS;
        if self.looked_ns.is_none_or(is_due) {
            self.looked_ns = Some(now_ns);
            self.look_now(socket);
        }
    }

    fn look_now(&mut self, socket: BorrowedFd<'_>) {
        let mut changed = take_error(socket).is_some();
        // What a message says does not matter; one byte of it takes it all.
        let mut byte = [0_u8];
        for _ in 0..MESSAGES_MAX {
            match recv(&self.links, &mut byte, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => break,
                // Messages were lost: also a change.
                Ok(_) | Err(_) => changed = true,
            }
        }
        if changed {
            self.check();
        }
    }

    /// Asks whether the interface is there.
    #[cold]
    pub(crate) fn check(&mut self) {
        self.is_gone |= !self.interfaces.exists(self.index);
    }
}
