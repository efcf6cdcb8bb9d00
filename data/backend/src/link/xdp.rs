//! A link's socket over AF_XDP: frames of the link's EtherType go between the interface's driver and memory of ours,
//! beside the host's network stack.
//!
//! Not the AF_XDP socket itself (`sys::xsk`), nor the program that says which frames come here (`sys::bpf`). Opened
//! by `socket` and `shards`.
//!
//! # Frames that come another way
//!
//! An AF_XDP socket has the frames of one queue of the interface, and of a link with several shards each has one. The
//! program gives a shard's frames to its socket where they came by that queue. What it does not take (another queue,
//! which the NIC chooses; an address that was changed since; a program that goes) the host's stack gives to the packet
//! socket that each shard has beside it. So no frame is lost for having come by the wrong queue: it is only slower.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::address::Family;
use super::kernel::{KernelSocket, LENGTH_BYTES};
use super::{Address, ETHER_TYPE, LinkLosses, LinkSocket, LinkWhy};
use crate::net::xdp::{NEEDS, WAYS, attach, describe, why_refused};
use crate::sys::bpf::{OfLink, Place, Redirect, Taken};
use crate::sys::datagrams::own_name;
use crate::sys::xsk::{BATCH, Way, Xsk};

/// Two addresses and a type.
const ETHERNET_BYTES: usize = 14;
const HEAD_BYTES: usize = ETHERNET_BYTES + LENGTH_BYTES;
/// Shortest frame on Ethernet: what is shorter is padded.
const ETHERNET_MIN: usize = 60;
/// Frames of no use that are passed over in one call.
const SKIPPED_MAX: usize = 2 * BATCH;
/// Calls of the kernel for what was given to it: it sends 32 frames in each, where it copies.
const KICKS_MAX: usize = 4;
/// How often nothing is found before the packet socket is asked, which is a call of the kernel. After it had a frame it
/// is asked each time, until one comes by the queue.
const LOOKS: u32 = 32;

/// And it is asked after so many calls, whatever comes by the queue: strangers could keep that from being empty.
const BESIDE_EVERY: u32 = 32;

/// A bound packet socket, and the longest frame there.
pub(super) type Station = (OwnedFd, Family, usize);

/// A link's socket.
#[derive(Debug)]
pub(super) struct XdpSocket {
    /// Before the program, so that no frame is sent to a socket that has gone.
    xsk: Xsk,
    program: Arc<Program>,
    way: Way,
    /// Has what the program lets through.
    beside: KernelSocket,
    /// Turns in which `beside` is not asked yet.
    looks: Cell<u32>,
    /// The last frame came by `beside`.
    is_beside: bool,
    /// Calls since it was asked in any case.
    since_beside: u32,
    frame_bytes: usize,
    /// The kernel has not sent all that it was given: it is to be called again.
    is_unsent: bool,
    /// Where a frame is written for which there is no place.
    lost: Box<[u8]>,
    /// Readable when either socket is.
    epoll: OwnedFd,
    losses: LinkLosses,
}

/// What all shards of an interface share.
#[derive(Debug)]
struct Program {
    place: Place,
    station: [u8; 6],
    /// Detached when the last of them has gone.
    _redirect: Redirect,
}

/// Sockets over AF_XDP beside these, in the fastest way that works: the first is of queue 0, the second of queue 1, and so on.
/// Where the interface has no such queue it is the packet socket alone.
pub(super) fn open(stations: Vec<Station>) -> Result<Vec<LinkSocket>, LinkWhy> {
    let (index, station) = match stations.first() {
        Some((socket, Family::Station { index, .. }, _)) => {
            let name = own_name(socket.as_fd());
            let name = name.map_err(|errno| LinkWhy::os("read its address", NEEDS, errno))?;
            let station = Address::of_name(&name).and_then(|own| own.as_station());
            let station = station.filter(|station| *station != [0; 6]);
            (*index as u32, station.ok_or(LinkWhy::NoEthernet)?)
        }
        _ => return Err(LinkWhy::Missing),
    };
    let mut last = LinkWhy::Missing;
    for (place, way) in WAYS {
        match open_queues((index, station), (place, way), stations.len()) {
            Ok((program, queues)) => return sockets(&program, way, queues, stations),
            Err(why) => last = why,
        }
    }
    Err(last)
}

fn open_queues(
    (index, station): (u32, [u8; 6]),
    (place, way): (Place, Way),
    shards: usize,
) -> Result<(Arc<Program>, Vec<Xsk>), LinkWhy> {
    let (kind, head, shards) = (ETHER_TYPE, LENGTH_BYTES as u16, shards as u8);
    let redirect = attach(index, place, Taken::Link(OfLink { station, kind, head, shards }))?;
    let mut queues = Vec::with_capacity(shards.into());
    for queue in 0..u32::from(shards) {
        let xsk = match Xsk::open(index, queue, way) {
            Ok(xsk) => xsk,
            // The interface has no more.
            Err((_, Errno::INVAL)) if queue > 0 => break,
            Err(refused) => return Err(why_refused(refused, queue).into()),
        };
        let set = redirect.set(queue, xsk.fd());
        set.map_err(|errno| LinkWhy::os("give its frames to the AF_XDP socket", NEEDS, errno))?;
        queues.push(xsk);
    }
    Ok((Arc::new(Program { place, station, _redirect: redirect }), queues))
}

fn sockets(
    program: &Arc<Program>,
    way: Way,
    queues: Vec<Xsk>,
    stations: Vec<Station>,
) -> Result<Vec<LinkSocket>, LinkWhy> {
    let longest = queues.first().map_or(0, |xsk| xsk.longest().saturating_sub(HEAD_BYTES));
    let mut queues = queues.into_iter();
    let socket = |(socket, family, frame_bytes): Station| {
        let beside = KernelSocket::new(socket, family, frame_bytes.min(longest));
        Ok(match queues.next() {
            Some(xsk) => LinkSocket::of_queue(XdpSocket::new(xsk, program, way, beside)?),
            None => LinkSocket::of_kernel(beside),
        })
    };
    stations.into_iter().map(socket).collect()
}

impl XdpSocket {
    fn new(
        xsk: Xsk,
        program: &Arc<Program>,
        way: Way,
        beside: KernelSocket,
    ) -> Result<XdpSocket, LinkWhy> {
        let watch = || {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            epoll::add(&epoll, xsk.fd(), EventData::new_u64(0), EventFlags::IN)?;
            epoll::add(&epoll, beside.poll_fd(), EventData::new_u64(1), EventFlags::IN)?;
            Ok(epoll)
        };
        let epoll = watch().map_err(|errno| LinkWhy::os("watch its sockets", "nothing", errno))?;
        let frame_bytes = beside.frame_bytes();
        Ok(XdpSocket {
            xsk,
            program: Arc::clone(program),
            way,
            beside,
            looks: Cell::new(0),
            is_beside: false,
            since_beside: 0,
            frame_bytes,
            is_unsent: false,
            lost: vec![0; frame_bytes].into(),
            epoll,
            losses: LinkLosses::default(),
        })
    }

    /// Bytes of the longest frame that can be sent and received here.
    pub(super) fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// The packet socket that has what does not come by the queue.
    pub(super) fn beside(&self) -> &KernelSocket {
        &self.beside
    }

    /// How frames are taken and moved.
    pub(super) fn describe(&self) -> &'static str {
        let Program { place, .. } = &*self.program;
        describe(*place, self.way)
    }

    /// The next frame, to be opened in place, and who sent it. `None` when there is none now.
    #[inline]
    pub(super) fn receive(&mut self) -> Option<(Address, &mut [u8])> {
        // A queue that is never empty must not be the only one that is heard.
        self.since_beside += 1;
        if self.since_beside >= BESIDE_EVERY {
            self.since_beside = 0;
            if let Some((from, start, len)) = self.beside.find() {
                return Some((from, self.beside.frame(start, len)?));
            }
        }
        for _ in 0..SKIPPED_MAX {
            if !self.xsk.next() {
                if self.is_unsent {
                    self.kick();
                }
                return self.receive_beside();
            }
            if let Some((from, len)) = self.xsk.shown().and_then(read)
                && from != self.program.station
            {
                self.is_beside = false;
                let frame = self.xsk.shown_mut()?.get_mut(HEAD_BYTES..HEAD_BYTES + len)?;
                return Some((Address::station(from), frame));
            }
            self.losses.received += 1;
        }
        self.receive_beside()
    }

    fn receive_beside(&mut self) -> Option<(Address, &mut [u8])> {
        if !self.is_beside && !self.beside.has_some() {
            let looks = self.looks.get();
            if looks > 0 {
                self.looks.set(looks - 1);
                return None;
            }
            self.looks.set(LOOKS);
        }
        let came = self.beside.receive();
        self.is_beside = came.is_some();
        came
    }

    /// Whether frames are here that the kernel no longer has, so that its descriptors say nothing of them; or some that
    /// it still has to send. Asked before a sleep: what ends that may be a frame beside the queue.
    pub(super) fn has_some(&self) -> bool {
        self.looks.set(0);
        self.xsk.has_some() || self.beside.has_some() || self.is_unsent
    }

    /// As [`KernelSocket::send`].
    #[inline]
    pub(super) fn send(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Option<(usize, Address)>,
    ) -> bool {
        if self.xsk.staged() == BATCH {
            self.flush();
        }
        let (station, frame_bytes) = (self.program.station, self.frame_bytes);
        if !self.xsk.has_place() {
            // It may have been down, and has not been told since.
            self.kick();
        }
        if !self.xsk.has_place() {
            let is_some = fill(&mut self.lost).is_some();
            self.losses.sent += u64::from(is_some);
            return is_some;
        }
        let (mut is_some, mut is_lost) = (false, true);
        self.xsk.stage_up_to((HEAD_BYTES + frame_bytes).max(ETHERNET_MIN), |place| {
            let (len, to) = fill(place.get_mut(HEAD_BYTES..HEAD_BYTES + frame_bytes)?)?;
            is_some = true;
            let len = write(place, station, to.as_station()?, len.min(frame_bytes))?;
            is_lost = false;
            Some(len)
        });
        self.losses.sent += u64::from(is_some && is_lost);
        is_some
    }

    /// Gives the kernel what waits.
    #[inline]
    pub(super) fn flush(&mut self) {
        if self.xsk.staged() > 0 {
            self.xsk.push();
            self.is_unsent = true;
        }
        if self.is_unsent {
            self.kick();
        }
    }

    fn kick(&mut self) {
        for _ in 0..KICKS_MAX {
            match self.xsk.kick() {
                // It sent 32 frames, or its driver has no room now: the next turn goes on.
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {}
                // Down, or gone: they go with later ones, or never.
                Ok(()) | Err(_) => {
                    self.is_unsent = false;
                    return;
                }
            }
        }
    }

    /// Readable (level) while the kernel has frames.
    pub(super) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// What was lost since it was opened. Asks the kernel: not for each pass.
    pub(super) fn losses(&self) -> LinkLosses {
        let beside = self.beside.losses();
        LinkLosses {
            received: self.losses.received + beside.received,
            overrun: self.xsk.drops() + beside.overrun,
            sent: self.losses.sent + beside.sent,
        }
    }
}

/// Who sent what came by the queue, and bytes of the link's frame in it. The program has looked at whom it is for.
fn read(bytes: &[u8]) -> Option<([u8; 6], usize)> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let from = head.get(6..12)?.first_chunk()?;
    let len = usize::from(u16::from_be_bytes(*head.last_chunk()?));
    (len > 0 && len <= rest.len()).then_some((*from, len))
}

/// Writes what goes before a frame, and padding behind it: bytes of all of it.
fn write(place: &mut [u8], from: [u8; 6], to: [u8; 6], len: usize) -> Option<usize> {
    let [kind, said] = [ETHER_TYPE, len as u16].map(u16::to_be_bytes);
    let parts = [&to[..], &from, &kind, &said];
    let mut at = 0;
    for part in parts {
        place.get_mut(at..at + part.len())?.copy_from_slice(part);
        at += part.len();
    }
    let end = (at + len).max(ETHERNET_MIN);
    place.get_mut(at + len..end)?.fill(0);
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_short_frames_are_padded() {
        let (from, to) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        for (len, wanted) in [(1, 60), (44, 60), (45, 61), (1498, 1514)] {
            let mut place = vec![0xaa; 1600];
            assert_eq!(write(&mut place, from, to, len), Some(wanted));
            assert_eq!(place[..6], to);
            assert_eq!(read(&place[..wanted]), Some((from, len)));
            assert!(place[HEAD_BYTES + len..wanted].iter().all(|byte| *byte == 0));
            assert_eq!(place[wanted], 0xaa);
        }
        // No room for the padding.
        assert_eq!(write(&mut [0; 59], from, to, 1), None);
    }

    #[test]
    fn a_length_that_lies_is_no_frame() {
        let mut place = vec![0; 60];
        assert_eq!(read(&place), None, "of nothing");
        place[15] = 44;
        assert_eq!(read(&place), Some(([0; 6], 44)));
        place[15] = 45;
        assert_eq!(read(&place), None, "more than there is");
        assert_eq!(read(&place[..15]), None, "shorter than its head");
    }
}
