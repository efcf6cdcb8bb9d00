//! A link's socket of the kernel's: messages taken and given in batches, and what is done about those that it
//! refuses.
//!
//! Called by `socket`, which opens it.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{getsockname, sockopt};

use super::address::Family;
use super::{Address, FRAME_BYTES_MAX, LinkLosses};
use crate::sys::datagrams::{
    Burst, Came, MANY, dropped, join_datagrams, own_name, receive_many, send_bursts, unsent,
};

/// What the kernel joins at most, of UDP; and one frame of a wire.
const JOINED_BYTES: usize = 64 << 10;
const ALONE_BYTES: usize = FRAME_BYTES_MAX + LENGTH_BYTES + 6;
/// Before each frame of a wire.
pub(super) const LENGTH_BYTES: usize = 2;
/// Frames that wait to be sent.
const STAGED_MAX: usize = 64;
const STAGE_BYTES: usize = STAGED_MAX * (FRAME_BYTES_MAX + LENGTH_BYTES);
/// Of one message that is cut up: the kernel takes no more (`UDP_MAX_SEGMENTS` of old), nor longer ones.
const SEGMENTS_MAX: usize = 64;
const BURST_BYTES_MAX: usize = 65_000;
/// What the kernel keeps of frames that come, or are to go, bytes.
const KEPT_BYTES: usize = 4 << 20;
/// A route that does not cut up may get better, or was one of many: so many flushes later it is tried again.
const APART_FLUSHES: u32 = 4096;
/// One part in so many of what the kernel keeps may wait for neighbours that are being looked for: strangers can name
/// such that there are not.
const STRANGERS_PART: u64 = 4;

/// A link's socket.
#[derive(Debug)]
pub(super) struct KernelSocket {
    socket: OwnedFd,
    family: Family,
    /// This end, when it is a station: what comes in its name is not from there.
    own: Option<Address>,
    /// Bytes of the longest frame.
    frame_bytes: usize,
    /// The kernel cuts up what is sent.
    cuts: bool,
    /// It did not cut up something that it took apart: it is tried again after so many flushes.
    apart: u32,
    /// Bytes that the kernel keeps of what is to go, at most.
    send_bytes: u64,
    places: Box<[u8]>,
    place_bytes: usize,
    came: Box<[Came; MANY]>,
    /// Of the messages that came, so many are there, and this one is next, from that byte on.
    count: usize,
    next: usize,
    at: usize,
    /// The kernel had no more, a moment ago.
    is_drained: bool,
    stage: Box<[u8]>,
    staged_bytes: usize,
    bursts: Box<[Burst; STAGED_MAX]>,
    staged: usize,
    losses: LinkLosses,
}

impl KernelSocket {
    /// Over a socket that is bound, of frames of at most so many bytes.
    pub(super) fn new(socket: OwnedFd, family: Family, frame_bytes: usize) -> KernelSocket {
        let is_station = matches!(family, Family::Station { .. });
        let is_joined = !is_station && join_datagrams(socket.as_fd()).is_ok();
        let place_bytes = if is_joined { JOINED_BYTES } else { ALONE_BYTES };
        // The limit of unprivileged sockets is the fallback.
        let forced = sockopt::set_socket_send_buffer_size_force(&socket, KEPT_BYTES);
        let _ = forced.or_else(|_| sockopt::set_socket_send_buffer_size(&socket, KEPT_BYTES));
        let forced = sockopt::set_socket_recv_buffer_size_force(&socket, KEPT_BYTES);
        let _ = forced.or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, KEPT_BYTES));
        let send_bytes = sockopt::socket_send_buffer_size(&socket).unwrap_or(KEPT_BYTES) as u64;
        KernelSocket {
            own: own_name(socket.as_fd()).ok().and_then(|name| Address::of_name(&name)),
            socket,
            family,
            frame_bytes,
            cuts: !is_station,
            apart: 0,
            send_bytes,
            places: vec![0; place_bytes * MANY].into(),
            place_bytes,
            came: Box::new([Came::default(); MANY]),
            count: 0,
            next: 0,
            at: 0,
            is_drained: false,
            stage: vec![0; STAGE_BYTES].into(),
            staged_bytes: 0,
            bursts: Box::new([Burst::default(); STAGED_MAX]),
            staged: 0,
            losses: LinkLosses::default(),
        }
    }

    /// Bytes of the longest frame that can be sent and received here.
    pub(super) fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// How frames come and go.
    pub(super) fn describe(&self) -> &'static str {
        if matches!(self.family, Family::Station { .. }) { "packet" } else { "udp" }
    }

    /// Where it is, when that is a port.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        getsockname(&self.socket).ok()?.try_into().ok()
    }

    /// The next frame, to be opened in place, and who sent it. `None` when there is none now.
    pub(super) fn receive(&mut self) -> Option<(Address, &mut [u8])> {
        let (from, start, len) = self.find()?;
        Some((from, self.frame(start, len)?))
    }

    /// A frame that was found.
    pub(super) fn frame(&mut self, start: usize, len: usize) -> Option<&mut [u8]> {
        self.places.get_mut(start..start + len)
    }

    /// The next frame: who sent it, and where it is.
    pub(super) fn find(&mut self) -> Option<(Address, usize, usize)> {
        // A message that is no use is passed over: at most all of one batch, and the rest of another.
        for _ in 0..2 * MANY {
            if self.next >= self.count && !self.fetch() {
                return None;
            }
            if let Some(found) = self.take() {
                return Some(found);
            }
        }
        None
    }

    /// Whether frames are here that the kernel no longer has, so that its descriptor says nothing of them.
    pub(super) fn has_some(&self) -> bool {
        self.next < self.count
    }

    fn fetch(&mut self) -> bool {
        if std::mem::take(&mut self.is_drained) {
            return false;
        }
        let (place_bytes, came) = (self.place_bytes, &mut *self.came);
        let found = receive_many(self.socket.as_fd(), &mut self.places, place_bytes, came);
        // Any error is nothing here: what ails an interface or a route may be over with the next frame.
        self.count = found.unwrap_or(0);
        self.is_drained = (1..MANY).contains(&self.count);
        (self.next, self.at) = (0, 0);
        self.count > 0
    }

    /// The next frame of the message whose turn it is: who sent it, and where it is.
    fn take(&mut self) -> Option<(Address, usize, usize)> {
        let place = self.next * self.place_bytes;
        let came = self.came.get(self.next)?;
        let left = came.len.saturating_sub(self.at);
        let len = if came.segment == 0 { left } else { left.min(came.segment) };
        let start = place + self.at;
        self.at += len;
        let from = Address::of_name(&came.from);
        let from = from.filter(|from| !came.is_cut && len > 0 && Some(*from) != self.own);
        if self.at >= came.len || from.is_none() {
            (self.next, self.at) = (self.next + 1, 0);
        }
        let found = from.and_then(|from| match self.family {
            Family::Station { .. } => {
                let head = self.places.get(start..start + len)?.first_chunk::<LENGTH_BYTES>()?;
                let said = usize::from(u16::from_be_bytes(*head));
                (said > 0 && said + LENGTH_BYTES <= len).then_some((
                    from,
                    start + LENGTH_BYTES,
                    said,
                ))
            }
            Family::Ipv4 | Family::Ipv6 => Some((from, start, len)),
        });
        self.losses.received += u64::from(found.is_none());
        found
    }

    /// Sends the frame that `fill` puts into its place: it says how long it is and where it goes, or `None` when
    /// there is nothing to send. True when there was. It leaves with `flush`, or before.
    pub(super) fn send(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Option<(usize, Address)>,
    ) -> bool {
        if self.staged == STAGED_MAX || self.staged_bytes + self.longest() > STAGE_BYTES {
            self.flush();
        }
        let (start, head) = (self.staged_bytes, self.head_bytes());
        let end = start + head + self.frame_bytes;
        let Some(place) = self.stage.get_mut(start + head..end) else { return false };
        let Some((len, to)) = fill(place) else { return false };
        let len = len.min(self.frame_bytes);
        let Some(to) = to.name(self.family) else {
            self.losses.sent += 1;
            return true;
        };
        if let Some(place) = self.stage.get_mut(start..start + head) {
            place.copy_from_slice((len as u16).to_be_bytes().get(..head).unwrap_or_default());
        }
        self.put(Burst { to, start, len: head + len, segment: head + len, frames: 1 });
        true
    }

    /// Adds a frame to the last message, or begins another one.
    fn put(&mut self, frame: Burst) {
        self.staged_bytes += frame.len;
        if self.cuts
            && self.apart == 0
            && let Some(last) = self.staged.checked_sub(1).and_then(|at| self.bursts.get_mut(at))
        {
            // A shorter one is the last of its message.
            let goes_on = last.len == last.segment * last.frames && frame.len <= last.segment;
            let has_room = last.frames < SEGMENTS_MAX && last.len + frame.len <= BURST_BYTES_MAX;
            if goes_on && has_room && last.to == frame.to {
                last.len += frame.len;
                last.frames += 1;
                return;
            }
        }
        if let Some(place) = self.bursts.get_mut(self.staged) {
            *place = frame;
            self.staged += 1;
        }
    }

    /// Gives the kernel what waits. A message that it refuses is left out, and counted.
    pub(super) fn flush(&mut self) {
        let mut done = 0;
        self.apart = self.apart.saturating_sub(1);
        // Each turn ends one message at least.
        while let Some(bursts) = self.bursts.get(done..self.staged).filter(|left| !left.is_empty())
        {
            match send_bursts(self.socket.as_fd(), &self.stage, bursts) {
                Ok(sent) => done += sent.max(1),
                Err(errno) => {
                    let Some(first) = bursts.first().copied() else { break };
                    done += 1;
                    match errno {
                        // No room for one is no room for the next.
                        Errno::AGAIN => {
                            let left = self.bursts.get(done - 1..self.staged).unwrap_or_default();
                            let frames: usize = left.iter().map(|burst| burst.frames).sum();
                            self.losses.sent += frames as u64;
                            break;
                        }
                        // This route or NIC does not cut up, or not to such a length.
                        Errno::INVAL | Errno::IO | Errno::OPNOTSUPP | Errno::MSGSIZE
                            if first.frames > 1 =>
                        {
                            // A place that nothing can be sent to says nothing of others.
                            if self.send_apart(first) > 0 {
                                self.apart = APART_FLUSHES;
                            }
                        }
                        _ => self.losses.sent += first.frames as u64,
                    }
                }
            }
        }
        (self.staged, self.staged_bytes) = (0, 0);
    }

    /// Sends each frame of a message by itself. How many went.
    #[cold]
    fn send_apart(&mut self, burst: Burst) -> usize {
        let mut went = 0;
        for number in 0..burst.frames {
            let at = number * burst.segment;
            let len = burst.segment.min(burst.len - at);
            let one = Burst { start: burst.start + at, len, frames: 1, ..burst };
            let sent = send_bursts(self.socket.as_fd(), &self.stage, &[one]);
            self.losses.sent += u64::from(sent.is_err());
            went += usize::from(sent.is_ok());
        }
        went
    }

    /// Whether so much waits in the kernel that what is for strangers should not.
    pub(super) fn is_congested(&self) -> bool {
        unsent(self.socket.as_fd()).is_ok_and(|bytes| bytes > self.send_bytes / STRANGERS_PART)
    }

    fn longest(&self) -> usize {
        self.frame_bytes + self.head_bytes()
    }

    fn head_bytes(&self) -> usize {
        if matches!(self.family, Family::Station { .. }) { LENGTH_BYTES } else { 0 }
    }

    /// Readable (level) while the kernel has frames.
    pub(super) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What was lost since it was opened. Asks the kernel: not for each pass.
    pub(super) fn losses(&self) -> LinkLosses {
        let overrun = dropped(self.socket.as_fd()).unwrap_or(0);
        LinkLosses { overrun, ..self.losses }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened() -> KernelSocket {
        let flags = rustix::net::SocketFlags::NONBLOCK;
        let (domain, kind) = (rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM);
        let socket = rustix::net::socket_with(domain, kind, flags, None).expect("a socket");
        rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        KernelSocket::new(socket, Family::Ipv4, FRAME_BYTES_MAX)
    }

    /// Lengths of so many frames that come, or of those before a minute without any.
    fn lens_of(socket: &mut KernelSocket, count: usize) -> Vec<usize> {
        let mut lens = Vec::new();
        while lens.len() < count {
            if let Some((_, frame)) = socket.receive() {
                lens.push(frame.len());
            } else if !socket.has_some() {
                let limit = rustix::fs::Timespec { tv_sec: 60, tv_nsec: 0 };
                let fd = rustix::event::PollFlags::IN;
                let fd = rustix::event::PollFd::from_borrowed_fd(socket.poll_fd(), fd);
                if rustix::event::poll(&mut [fd], Some(&limit)).expect("a socket") == 0 {
                    break;
                }
            }
        }
        lens
    }

    fn put(socket: &mut KernelSocket, to: Address, len: usize) {
        assert!(socket.send(|place| {
            place[..len].fill(len as u8);
            Some((len, to))
        }));
    }

    /// What makes a burst one message, and what ends it.
    #[test]
    fn frames_of_one_length_to_one_peer_go_as_one_message_and_come_as_one() {
        let (mut one, mut other, third) = (opened(), opened(), opened());
        let [to, elsewhere] =
            [&other, &third].map(|socket| Address::udp(socket.local().expect("a port")));
        let lens = [1000, 1000, 1000, 400];
        lens.iter().for_each(|len| put(&mut one, to, *len));
        assert_eq!(one.staged, 1, "the last may be shorter");
        put(&mut one, to, 400);
        put(&mut one, to, 500);
        put(&mut one, elsewhere, 500);
        assert_eq!(one.staged, 4);
        one.flush();
        assert!(one.cuts, "the loopback interface can");
        assert_eq!(lens_of(&mut other, 6), [1000, 1000, 1000, 400, 400, 500]);
        assert_eq!(other.came[0].segment, 1000, "joined again");
    }

    /// 8,000 bytes are more than a message of 65,000 holds nine times.
    #[test]
    fn a_message_and_what_waits_are_bounded() {
        let (mut one, mut other) = (opened(), opened());
        let to = Address::udp(other.local().expect("a port"));
        for _ in 0..9 {
            put(&mut one, to, 8000);
        }
        assert_eq!(one.staged, 2);
        for _ in 0..55 {
            put(&mut one, to, 100);
        }
        assert_eq!((one.staged, one.bursts[1].frames), (3, 2));
        one.flush();
        assert_eq!(lens_of(&mut other, 64).len(), 64);
        for _ in 0..8 {
            // No more at once than a socket of usual size holds.
            (0..8).for_each(|_| put(&mut one, to, FRAME_BYTES_MAX));
            one.flush();
            assert_eq!(lens_of(&mut other, 8), [FRAME_BYTES_MAX; 8]);
        }
        assert_eq!(one.losses(), LinkLosses::default());
    }

    /// A route that does not cut up: each frame goes by itself, from then on at once.
    #[test]
    fn what_cannot_be_cut_up_goes_apart() {
        let (mut one, mut other) = (opened(), opened());
        let to = Address::udp(other.local().expect("a port"));
        (0..4).for_each(|_| put(&mut one, to, 300));
        one.send_apart(one.bursts[0]);
        (one.staged, one.staged_bytes, one.apart) = (0, 0, 2);
        (0..4).for_each(|_| put(&mut one, to, 300));
        assert_eq!(one.staged, 4);
        one.flush();
        assert_eq!(lens_of(&mut other, 8), [300; 8]);
        one.flush();
        (0..4).for_each(|_| put(&mut one, to, 300));
        assert_eq!(one.staged, 1, "it is tried again");
        assert_eq!(one.losses(), LinkLosses::default());
    }
}
