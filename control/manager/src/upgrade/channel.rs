//! Packets with descriptors over a `SOCK_SEQPACKET` pair, each way with a time limit.
//!
//! For the few moments of an upgrade, in which control waits; never otherwise. Not here: what a packet
//! says (`wire`).

use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_send_buffer_size, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use serde::Serialize;

use super::wire::{PACKET_BYTES_MAX, PACKET_FDS_MAX};
use crate::clock::now;
use crate::poll::timespec;

/// Room for the largest packet and a few more.
const SEND_BUFFER_BYTES: usize = 4 * PACKET_BYTES_MAX;

/// A wait is made of such steps, each with a look at its end: while the machine stands still, one passes.
const STEP: Duration = Duration::from_millis(500);

/// How long the other side may leave one packet unread.
pub(super) const SEND_TIME_MAX: Duration = Duration::from_secs(2);

/// One end.
#[derive(Debug)]
pub(crate) struct Channel {
    end: OwnedFd,
    /// No wait goes beyond it. It is put off by as long as this process, or the machine, stands still in a wait.
    until: Cell<Option<Instant>>,
}

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
        Ok((Channel::of(ours), theirs))
    }

    /// An end that was given to this process.
    pub(crate) fn of(end: OwnedFd) -> Channel {
        Channel { end, until: Cell::new(None) }
    }

    /// From now on no wait goes beyond that moment, whatever its own limit is.
    pub(crate) fn end_by(&self, until: Option<Instant>) {
        self.until.set(until);
    }

    /// That moment, as it is by now.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        self.until.get()
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
        let left = within(limit, self.until.get(), now());
        #[cfg(any(test, feature = "simulated"))]
        if !crate::simulated::is_ready(&self.end, PollFlags::OUT, left) {
            return Err(Errno::AGAIN.into());
        }
        set_socket_timeout(&self.end, Timeout::Send, Some(left))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        loop {
            match sendmsg(&self.end, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL) {
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
        let mut left = within(limit, self.until.get(), now());
        #[cfg(any(test, feature = "simulated"))]
        if !crate::simulated::is_ready(&self.end, PollFlags::IN, left) {
            return Err(Errno::AGAIN.into());
        }
        let mut bytes = vec![0; PACKET_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = loop {
            let step = left.min(STEP);
            set_socket_timeout(&self.end, Timeout::Recv, Some(step))?;
            let into = &mut [IoSliceMut::new(&mut bytes)];
            let began = now();
            let got = recvmsg(&self.end, into, &mut control, RecvFlags::CMSG_CLOEXEC);
            let counted = self.count(step, now().saturating_duration_since(began));
            match got {
                Ok(message) => break message,
                Err(Errno::INTR | Errno::AGAIN) if left > counted => left -= counted,
                Err(Errno::INTR) => return Err(Errno::AGAIN.into()),
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

    /// How much of a wait of one `step` that `took` so long counts; for the rest somebody stood still, and the moment
    /// beyond which no wait goes is put off.
    fn count(&self, step: Duration, took: Duration) -> Duration {
        let stood_still = took.saturating_sub(step + STEP);
        self.until.set(self.until.get().map(|until| until + stood_still));
        took.min(step)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

/// Whether that becomes readable within `limit`.
pub(super) fn is_readable(fd: &OwnedFd, limit: Duration) -> bool {
    #[cfg(any(test, feature = "simulated"))]
    if crate::simulated::now().is_some() {
        return crate::simulated::is_ready(fd, PollFlags::IN, limit);
    }
    let mut left = limit;
    loop {
        // While the machine stands still one step passes, and then there is another look.
        let step = left.min(STEP);
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        let began = now();
        let counted = match poll(&mut fds, Some(&timespec(step))) {
            Ok(1..) => return true,
            Err(Errno::INTR) => now().saturating_duration_since(began).min(step),
            Ok(0) | Err(_) => step,
        };
        left -= counted;
        if left.is_zero() {
            return false;
        }
    }
}

/// How long a wait may be, of itself and until that moment.
fn within(limit: Duration, until: Option<Instant>, now: Instant) -> Duration {
    let left = until.map_or(limit, |until| until.saturating_duration_since(now));
    // A limit of nothing would be none.
    limit.min(left).max(Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt::socket_timeout;

    use super::*;

    #[test]
    fn a_wait_ends_with_its_limit_or_with_all_waits_and_is_never_without_one() {
        let [ms, s] = [Duration::from_millis(1), Duration::from_secs(1)];
        let at = now();
        assert_eq!(within(3 * s, None, at), 3 * s);
        assert_eq!(within(3 * s, Some(at + 5 * s), at), 3 * s);
        assert_eq!(within(3 * s, Some(at + 2 * s), at), 2 * s);
        assert_eq!(within(3 * s, Some(at), at + s), ms);
        assert_eq!(within(Duration::ZERO, None, at), ms);
    }

    #[test]
    fn what_somebody_stood_still_for_is_not_counted() {
        let (ours, _theirs) = Channel::pair().unwrap();
        let at = now();
        ours.end_by(Some(at + 9 * STEP));
        assert_eq!(ours.count(STEP, STEP / 2), STEP / 2);
        // As late as a busy machine is.
        assert_eq!(ours.count(STEP, STEP * 2), STEP);
        assert_eq!(ours.ends_at(), Some(at + 9 * STEP));
        assert_eq!(ours.count(STEP, STEP * 40), STEP);
        assert_eq!(ours.ends_at(), Some(at + 47 * STEP));
    }

    #[test]
    fn nothing_is_waited_for_beyond_the_moment_and_then_what_came_is_still_taken() {
        let (ours, theirs) = Channel::pair().unwrap();
        let limit = Duration::from_secs(60);
        ours.end_by(Some(now()));
        let error = ours.receive(limit).expect_err("nothing came");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        // What the kernel was asked to wait for, and not how long that took: it counts in ticks.
        let asked = socket_timeout(&ours.end, Timeout::Recv).unwrap();
        assert!(asked.is_some_and(|asked| asked < Duration::from_secs(1)), "{asked:?}");
        Channel::of(theirs).send(&"word", &[], limit).unwrap();
        let packet = ours.receive(limit).unwrap().expect("it was sent");
        assert_eq!(packet.bytes, b"\"word\"");
    }
}
