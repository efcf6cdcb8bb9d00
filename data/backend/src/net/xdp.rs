//! An AF_XDP socket on one queue of an interface.
//!
//! Frames bypass most of the host's network stack, and have no offloads: each is whole, and at most
//! one chunk of the rings' memory long. Called by [`super::HostPort`]; a link's socket (`link::xdp`) is
//! attached in the same ways.
//!
//! What an interface must not do for it, since the kernel tells nothing of it here: take VLAN tags out
//! (`ethtool -K NAME rxvlan off`) and, a veth's other end, leave checksums undone (`tx off`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use frame::Header;
use rustix::io::Errno;

use super::errors::is_name;
use super::watch::Watch;
use super::{FRAME_MIN, HostOpenError, Losses, Received, Rest, Sent, Why};
use crate::sys::Interfaces;
use crate::sys::bpf::{Place, QUEUES_MAX, Redirect, Taken};
use crate::sys::interface::{hold_promiscuous, packet_socket};
use crate::sys::xsk::{BATCH, Refused, Way, Xsk};

/// Shortest frame on Ethernet, bytes without its checksum: what is shorter is padded, which drivers leave to
/// whoever gives them bytes alone.
const ETHERNET_MIN: usize = 60;
/// Frames of no use that are passed over in one call.
const SKIPPED_MAX: usize = 32;
/// Calls of the kernel for one batch, when it sends only a part of it.
const KICKS_MAX: usize = 4;
pub(crate) const NEEDS: &str = "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF";

/// An AF_XDP socket on one queue.
#[derive(Debug)]
pub struct Xdp {
    /// Before the program, so that no frame is sent to a socket that has gone.
    socket: Xsk,
    program: Arc<Program>,
    watch: Watch,
    way: Way,
    /// Frames are in the kernel's ring of which it may not know.
    unsent: bool,
    mtu: u32,
    losses: Losses,
    /// Losses that were told.
    drops: u64,
}

/// What all queues of an interface share.
#[derive(Debug)]
struct Program {
    interface: String,
    index: u32,
    place: Place,
    redirect: Redirect,
    /// The interface is promiscuous as long as this is open.
    _promiscuous: OwnedFd,
}

impl Xdp {
    /// Opens a socket on a queue of the interface, in the fastest way that works.
    pub(crate) fn open(interface: &str, queue: u32) -> Result<Xdp, HostOpenError> {
        open(interface, queue).map_err(|why| why.of("interface", interface))
    }

    /// Opens a socket on another queue, which is served by the same program.
    pub(crate) fn open_beside(&self, queue: u32) -> Result<Xdp, HostOpenError> {
        let open = || {
            let interfaces = interfaces()?;
            open_queue(interfaces, &self.program, queue, self.way)
        };
        open().map_err(|why| why.of("interface", self.interface()))
    }

    pub(crate) fn interface(&self) -> &str {
        &self.program.interface
    }

    #[inline]
    pub(crate) fn receive(&mut self, now_ns: u64) -> Option<Received<'_>> {
        for _ in 0..SKIPPED_MAX {
            if !self.socket.next() {
                if self.unsent {
                    self.kick();
                }
                self.watch.look(self.socket.fd(), now_ns);
                return None;
            }
            if self.socket.shown().is_some_and(|bytes| bytes.len() >= FRAME_MIN) {
                let header = Header::default();
                return self.socket.shown().map(|bytes| Received { header, bytes });
            }
            self.losses.received += 1;
        }
        None
    }

    #[inline]
    pub(crate) fn send(&mut self, head: &[u8], rest: Rest<'_>) -> Sent {
        let len = head.len() + rest.len();
        if len > self.socket.longest() {
            return Sent::TooLong;
        }
        if self.watch.is_gone {
            return Sent::Gone;
        }
        if self.socket.staged() == BATCH {
            self.flush();
        }
        let written = self.socket.stage(len.max(ETHERNET_MIN), |frame| {
            let (frame, padding) = frame.split_at_mut_checked(len).unwrap_or_default();
            padding.fill(0);
            frame.split_at_mut_checked(head.len()).is_some_and(|(to_head, to_rest)| {
                to_head.copy_from_slice(head);
                rest.copy_to(to_rest)
            })
        });
        match written {
            Some(true) => Sent::Done,
            Some(false) => Sent::Fault,
            None => Sent::Full,
        }
    }

    /// Sends what was gathered.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if self.socket.staged() > 0 {
            self.socket.push();
            self.unsent = true;
        }
        if self.unsent {
            self.kick();
        }
    }

    fn kick(&mut self) {
        for _ in 0..KICKS_MAX {
            match self.socket.kick() {
                Ok(()) => {
                    self.unsent = false;
                    return;
                }
                // It sent 32 frames, or its driver has no room: the next visit goes on.
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {}
                // Down, or gone. The frames go out when it is up again and somebody visits.
                Err(errno) => {
                    if Sent::from_errno(errno) == Sent::Gone {
                        self.watch.check();
                    }
                    return;
                }
            }
        }
    }

    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.watch.poll_fd()
    }

    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.watch.is_gone
    }

    pub(crate) fn losses(&mut self) -> Losses {
        let drops = self.socket.drops();
        self.losses.received += drops.saturating_sub(self.drops);
        self.drops = drops;
        self.losses.take()
    }

    pub(crate) fn mtu(&self) -> u32 {
        self.mtu
    }

    pub(crate) fn describe(&self) -> &'static str {
        describe(self.program.place, self.way)
    }
}

/// Where frames are taken, and how they are moved, from the fastest on: the first that works is it.
pub(crate) const WAYS: [(Place, Way); 3] =
    [(Place::Native, Way::ZeroCopy), (Place::Native, Way::Copy), (Place::Generic, Way::Copy)];

/// One of them in words.
pub(crate) fn describe(place: Place, way: Way) -> &'static str {
    match (place, way) {
        (Place::Native, Way::ZeroCopy) => "xdp, native, zero-copy",
        (Place::Native, Way::Copy) => "xdp, native, copy",
        (Place::Generic, _) => "xdp, generic, copy",
    }
}

fn interfaces() -> Result<Interfaces, Why> {
    Interfaces::new().map_err(|e| Why::os("ask for interfaces", NEEDS, e))
}

fn open(interface: &str, queue: u32) -> Result<Xdp, Why> {
    if !is_name(interface) {
        return Err(Why::Name);
    }
    if queue >= QUEUES_MAX {
        return Err(Why::NoQueue(queue));
    }
    let index = interfaces()?.index(interface).map_err(|e| Why::os("look for it", NEEDS, e))?;
    let index = index.ok_or(Why::Missing)?;
    let mut last = Why::Missing;
    for (place, way) in WAYS {
        let program = match Program::attach(interface, index, place) {
            Ok(program) => Arc::new(program),
            Err(why) => {
                last = why;
                continue;
            }
        };
        match open_queue(interfaces()?, &program, queue, way) {
            Ok(port) => return Ok(port),
            Err(why) => last = why,
        }
    }
    Err(last)
}

fn open_queue(
    interfaces: Interfaces,
    program: &Arc<Program>,
    queue: u32,
    way: Way,
) -> Result<Xdp, Why> {
    let socket =
        Xsk::open(program.index, queue, way).map_err(|refused| why_refused(refused, queue))?;
    program
        .redirect
        .set(queue, socket.fd())
        .map_err(|e| Why::os("give its frames to the AF_XDP socket", NEEDS, e))?;
    let mtu = interfaces.mtu(&program.interface);
    let mtu = mtu.map_err(|e| Why::os("read its MTU", NEEDS, e))?;
    let watch = Watch::new(interfaces, program.index, socket.fd())
        .map_err(|e| Why::os("watch it", NEEDS, e))?;
    Ok(Xdp {
        socket,
        program: Arc::clone(program),
        watch,
        way,
        unsent: false,
        mtu,
        losses: Losses::default(),
        drops: 0,
    })
}

impl Program {
    fn attach(interface: &str, index: u32, place: Place) -> Result<Program, Why> {
        let socket = packet_socket().map_err(|e| Why::os("make a packet socket", NEEDS, e))?;
        hold_promiscuous(socket.as_fd(), index)
            .map_err(|e| Why::os("set it promiscuous", NEEDS, e))?;
        let redirect = attach(index, place, Taken::All)?;
        let interface = interface.to_owned();
        Ok(Program { interface, index, place, redirect, _promiscuous: socket })
    }
}

/// A program on the interface that takes these frames.
pub(crate) fn attach(index: u32, place: Place, taken: Taken) -> Result<Redirect, Why> {
    Redirect::attach(index, place, taken).map_err(|errno| match errno {
        Errno::BUSY | Errno::EXIST => Why::ProgramInUse,
        Errno::INVAL => Why::Kernel { what: "attach an XDP program to it", since: "5.9" },
        errno => Why::os("attach an XDP program to it", NEEDS, errno),
    })
}

/// Why there is no socket on that queue.
pub(crate) fn why_refused((what, errno): Refused, queue: u32) -> Why {
    match errno {
        Errno::BUSY => Why::QueueInUse(queue),
        // Of `bind`: the queue is beyond those that there are.
        Errno::INVAL => Why::NoQueue(queue),
        Errno::NOBUFS => Why::Memory(errno),
        Errno::AFNOSUPPORT => {
            Why::Kernel { what: "make an AF_XDP socket", since: "5.9, with CONFIG_XDP_SOCKETS" }
        }
        errno => Why::os(what, NEEDS, errno),
    }
}
