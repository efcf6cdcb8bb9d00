//! Packets with descriptors over a `SOCK_SEQPACKET` pair, each way with a time limit.
//!
//! For the few moments of an upgrade, in which control waits; never otherwise. Not here: what a packet
//! says (`wire`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_send_buffer_size, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use serde::Serialize;

use super::wire::{PACKET_BYTES_MAX, PACKET_FDS_MAX};

/// Room for the largest packet and a few more.
const SEND_BUFFER_BYTES: usize = 4 * PACKET_BYTES_MAX;

/// One end.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

/// A packet as it came.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

impl Channel {
    /// Both ends, closed on exec.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn pair() -> io::Result<(Channel, OwnedFd)> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        for end in [&ours, &theirs] {
            // Less is refused for a larger packet, which is an error like any other.
            let _ = set_socket_send_buffer_size(end, SEND_BUFFER_BYTES);
        }
        Ok((Channel(ours), theirs))
    }

    /// An end that was given to this process.
    pub(crate) fn of(end: OwnedFd) -> Channel {
        Channel(end)
    }

    /// Sends one packet, within `limit`.
    ///
    /// # Errors
    /// What the kernel said; `WouldBlock` when the other side did not read for so long.
    pub(crate) fn send(
        &self,
        packet: &impl Serialize,
        fds: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> io::Result<()> {
        let bytes = serde_json::to_vec(packet)?;
        if bytes.len() > PACKET_BYTES_MAX || fds.len() > PACKET_FDS_MAX {
            let what = format!("a packet of {} bytes and {} descriptors", bytes.len(), fds.len());
            return Err(io::Error::other(what));
        }
        set_socket_timeout(&self.0, Timeout::Send, Some(limit))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        loop {
            match sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next packet, within `limit`; `None` when the other side has closed.
    ///
    /// # Errors
    /// What the kernel said, `WouldBlock` when nothing came for so long, or a packet that was cut off.
    pub(crate) fn receive(&self, limit: Duration) -> io::Result<Option<Packet>> {
        set_socket_timeout(&self.0, Timeout::Recv, Some(limit))?;
        let mut bytes = vec![0; PACKET_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = loop {
            let into = &mut [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.0, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) => break message,
                Err(Errno::INTR) => {}
                // As from an end whose owner was killed.
                Err(Errno::CONNRESET) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        };
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights);
            }
        }
        if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::other("a packet was cut off, or no descriptor is left"));
        }
        if message.bytes == 0 {
            return Ok(None);
        }
        bytes.truncate(message.bytes);
        Ok(Some(Packet { bytes, fds }))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
