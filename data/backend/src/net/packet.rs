//! A packet socket on an interface: frames come in a ring that the kernel shares, and go in batches.
//!
//! Both ways each frame has a header of virtio-net, so that what the interface's driver merged
//! (GRO) arrives as one frame, and long frames leave as they are. Called by [`super::HostPort`].
//!
//! Frames of up to [`STAGED_MAX`] bytes are copied when they are sent, and go out 32 at a time or at
//! the end of the visit: the call costs more than the copy. Longer ones go out at once, from where they
//! are, after those before them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use frame::{FRAME_MAX, Header, Offloads, tag};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::errors::is_name;
use super::watch::Watch;
use super::{FRAME_MIN, HostOpenError, Losses, Received, Rest, STAGED_MAX, Sent, Why};
use crate::sys::interface::{bind, hold_promiscuous, kernel_is, packet_socket};
use crate::sys::packet_ring::{self, PacketRing, RING_HEADER_SIZE};
use crate::sys::{Gather, Interfaces, SEND_MANY, send_many};

const STAGE_SIZE: usize = RING_HEADER_SIZE + STAGED_MAX;
/// Frames of no use that are passed over in one call.
const SKIPPED_MAX: usize = 32;
/// What the kernel keeps of frames that are not sent yet, bytes: 64 of the longest.
const SEND_BUFFER: usize = 4 << 20;
const RAW: &str = "CAP_NET_RAW";
/// Where a VLAN tag is put back: behind the addresses.
const ADDRESSES: usize = 12;

/// A packet socket on an interface.
#[derive(Debug)]
pub struct Packet {
    ring: PacketRing,
    socket: OwnedFd,
    watch: Watch,
    has: Offloads,
    mtu: u32,
    /// Frames to be sent, each in a place of [`STAGE_SIZE`].
    stages: Box<[u8]>,
    /// How long those are, header included. The first `staged` count.
    lens: [usize; SEND_MANY],
    staged: usize,
    losses: Losses,
}

impl Packet {
    /// Opens a socket on the interface.
    pub(crate) fn open(interface: &str) -> Result<Packet, HostOpenError> {
        open(interface).map_err(|why| why.of("interface", interface))
    }

    #[inline]
    pub(crate) fn receive(&mut self, now_ns: u64) -> Option<Received<'_>> {
        // A frame that is passed over keeps its place until the next turn, as one that is shown.
        for _ in 0..SKIPPED_MAX {
            if !self.ring.next() {
                self.watch.look(self.socket.as_fd(), now_ns);
                return None;
            }
            if self.ring.held().is_some_and(|found| is_whole(&found)) {
                return self.ring.held().and_then(read);
            }
            self.losses.received += 1;
        }
        None
    }

    #[inline]
    pub(crate) fn send(&mut self, header: &Header, head: &[u8], rest: Rest<'_>) -> Sent {
        let header = header.encode();
        let (header, len) = (&header[..RING_HEADER_SIZE], head.len() + rest.len());
        if self.watch.is_gone {
            return Sent::Gone;
        }
        if len > STAGED_MAX {
            return self.send_now(header, head, rest);
        }
        if self.staged == SEND_MANY {
            self.flush();
        }
        let mut places = self.stages.chunks_exact_mut(STAGE_SIZE).zip(&mut self.lens);
        let Some((place, place_len)) = places.nth(self.staged) else {
            return Sent::Full;
        };
        match rest.stage(header, head, place) {
            Ok(bytes) => *place_len = bytes,
            Err(sent) => return sent,
        }
        self.staged += 1;
        Sent::Done
    }

    fn send_now(&mut self, header: &[u8], head: &[u8], rest: Rest<'_>) -> Sent {
        self.flush();
        let mut frame = Gather::new();
        if let Err(sent) = rest.gather(header, head, &mut frame) {
            return sent;
        }
        let sent = match frame.send(self.socket.as_fd()) {
            Ok(_) => Sent::Done,
            Err(errno) => Sent::from_errno(errno),
        };
        self.watch.is_gone |= sent == Sent::Gone;
        sent
    }

    /// Sends what was gathered. A frame that is refused is left out, and counted.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if self.staged > 0 {
            self.send_staged();
        }
    }

    fn send_staged(&mut self) {
        let frames = || {
            let places = self.stages.chunks_exact(STAGE_SIZE).zip(&self.lens);
            places.take(self.staged).filter_map(|(place, &len)| place.get(..len))
        };
        let mut done = 0;
        while done < self.staged {
            match send_many(self.socket.as_fd(), frames().skip(done)) {
                // Each turn ends at least one frame, so there are at most 32.
                Ok(sent) => done += sent.max(1),
                Err(errno) => {
                    self.watch.is_gone |= Sent::from_errno(errno) == Sent::Gone;
                    // No room for one is no room for the next. ENOBUFS may also mean that a rule of the
                    // operator's dropped this one, which is nothing to the others.
                    let refused = match Sent::from_errno(errno) {
                        Sent::Full if errno == Errno::AGAIN => self.staged - done,
                        Sent::Gone => self.staged - done,
                        _ => 1,
                    };
                    self.losses.sent += refused as u64;
                    done += refused;
                }
            }
        }
        self.staged = 0;
    }

    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.watch.poll_fd()
    }

    #[inline]
    pub(crate) fn has(&self) -> Offloads {
        self.has
    }

    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.watch.is_gone
    }

    pub(crate) fn losses(&mut self) -> Losses {
        self.losses.received += packet_ring::drops(self.socket.as_fd()).unwrap_or(0);
        self.losses.take()
    }

    pub(crate) fn mtu(&self) -> u32 {
        self.mtu
    }
}

/// Whether it is a frame, and all of it, also with its tag.
#[inline]
fn is_whole(found: &packet_ring::InRing<'_>) -> bool {
    let len = found.bytes.len().saturating_sub(RING_HEADER_SIZE);
    let tag = if found.tag.is_some() { tag::SIZE } else { 0 };
    !found.is_cut && len >= FRAME_MIN && len + tag <= FRAME_MAX as usize
}

/// The frame in its place, with its tag put back.
#[inline]
fn read(found: packet_ring::InRing<'_>) -> Option<Received<'_>> {
    let (to_header, _) = found.bytes.split_first_chunk::<RING_HEADER_SIZE>()?;
    let mut header = Header::decode(to_header);
    let Some((kind, value)) = found.tag else {
        return Some(Received { header, bytes: found.bytes.get(RING_HEADER_SIZE..)? });
    };
    // The addresses move to the front, over the end of the header, which has been read.
    let start = RING_HEADER_SIZE - tag::SIZE;
    found.bytes.copy_within(RING_HEADER_SIZE..RING_HEADER_SIZE + ADDRESSES, start);
    let bytes = found.bytes.get_mut(start..)?;
    let [t0, t1] = kind.to_be_bytes();
    let [v0, v1] = value.to_be_bytes();
    bytes.get_mut(ADDRESSES..ADDRESSES + tag::SIZE)?.copy_from_slice(&[t0, t1, v0, v1]);
    // The kernel counted without it.
    if header.flags & Header::NEEDS_CSUM != 0 {
        header.csum_start = header.csum_start.saturating_add(tag::SIZE as u16);
    }
    if header.gso_type != Header::GSO_NONE {
        header.header_len = header.header_len.saturating_add(tag::SIZE as u16);
    }
    Some(Received { header, bytes })
}

fn open(interface: &str) -> Result<Packet, Why> {
    if !is_name(interface) {
        return Err(Why::Name);
    }
    let failed = |what| move |errno| Why::os(what, RAW, errno);
    let interfaces = Interfaces::new().map_err(failed("ask for interfaces"))?;
    let index = interfaces.index(interface).map_err(failed("look for it"))?;
    let index = index.ok_or(Why::Missing)?;
    let mtu = interfaces.mtu(interface).map_err(failed("read its MTU"))?;
    let socket = packet_socket().map_err(failed("make a packet socket"))?;
    let ring = PacketRing::new(socket.as_fd()).map_err(|errno| match errno {
        Errno::NOPROTOOPT => {
            Why::Kernel { what: "leave out what the host itself sends", since: "4.20" }
        }
        errno => Why::os("make a receive ring", RAW, errno),
    })?;
    hold_promiscuous(socket.as_fd(), index).map_err(failed("set it promiscuous"))?;
    bind(socket.as_fd(), index, libc::ETH_P_ALL as u16).map_err(failed("bind a socket to it"))?;
    // The limit of unprivileged sockets is the fallback.
    let forced = sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER);
    let _ = forced.or_else(|_| sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER));
    let mut has = Offloads::CSUM | Offloads::TSO4 | Offloads::TSO6 | Offloads::ECN;
    if kernel_is(6, 2) {
        has = has | Offloads::USO;
    }
    let watch = Watch::new(interfaces, index, socket.as_fd()).map_err(failed("watch it"))?;
    Ok(Packet {
        ring,
        socket,
        watch,
        has,
        mtu,
        stages: vec![0; STAGE_SIZE * SEND_MANY].into(),
        lens: [0; SEND_MANY],
        staged: 0,
        losses: Losses::default(),
    })
}
