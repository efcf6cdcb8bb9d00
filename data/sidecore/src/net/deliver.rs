//! One frame to one port: into a guest's receive buffers, to the host, or not at all.
//!
//! Not who gets it (`route`), nor what a receiver lacks (`finish`). A receiver's ring is looked at
//! before anything is written, and put back as it was when the frame does not fit.

use backend::net::{Rest, Sent};
use frame::{HEADER_SIZE, Header, Offload};
use guest_memory::Span;
use schedule::Nanos;
use switch::DropReason;
use virtqueue::Violation;

use crate::net::desk::{Desk, WALK_BYTES};
use crate::net::frames::Frame;
use crate::net::gather::{Short, WALKED_MAX};
use crate::net::host::HostServed;
use crate::net::port::{Choice, Port, Sink};
use crate::places::{Place, host_at, receive_at};
use crate::served::{Receive, Ring};

/// Frames after which a receive ring shows what is in it, so that a guest that polls works on these
/// while we work on the next.
const SHOW_EVERY: u32 = 32;

/// The header of a frame of which nothing is undone, in one buffer.
pub(crate) const PLAIN: [u8; HEADER_SIZE] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// What became of a frame at one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// The port has it.
    Done,
    /// It has no buffers or no room, since the time that the desk notes; nothing changed, and nothing
    /// was counted.
    Full(DropReason),
    /// It went nowhere, which was counted.
    Dropped,
    /// To be delivered to where it came from, addresses swapped.
    Echo,
    /// The sender's memory was lost: nothing of it is believed.
    Lost,
}

impl Desk {
    /// Delivers `frame` to `port`, and counts it there. What it costs is added to the visit.
    #[inline(always)]
    pub(crate) fn deliver(
        &mut self,
        places: &mut [Place],
        port: &Port,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Delivered {
        if frame.len > port.surely_fits
            && let Some(delivered) = self.look_at(places, port, frame, now)
        {
            return delivered;
        }
        self.give(places, port, frame, now)
    }

    /// [`Self::deliver`] of a frame that may be delivered.
    #[inline(always)]
    pub(crate) fn give(
        &mut self,
        places: &mut [Place],
        port: &Port,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Delivered {
        match port.sink {
            Sink::Queue(place) => self.give_queue(places, place, port, frame, now),
            Sink::Host(place) => self.give_host(places, place, port, frame, now),
            Sink::Queues => {
                let place = port.place_of(frame.head());
                self.give_queue(places, place, port, frame, now)
            }
            Sink::Steered => self.give_steered(places, port, frame, now),
            Sink::Hosts => {
                let place = port.place_of(frame.head());
                self.give_host(places, place, port, frame, now)
            }
            Sink::Echo => {
                port.counters.delivered(frame.len, frame.is_multicast());
                Delivered::Echo
            }
            // Never asked for: those are handed over before their rules are looked at.
            Sink::Elsewhere => Delivered::Dropped,
            Sink::Nobody => self.has_nobody(DropReason::NoBuffer),
        }
    }

    /// To the queue whose vCPU can take it.
    #[inline(never)]
    fn give_steered(
        &mut self,
        places: &mut [Place],
        port: &Port,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Delivered {
        let choice = port.steer(frame.head(), places, now);
        let delivered = self.give_chosen(places, port, &choice, frame, now);
        // A queue that its guest does not use has no buffer, whatever its vCPU does.
        match (delivered, choice.back_home()) {
            (Delivered::Full(_), Some(home)) => self.give_chosen(places, port, &home, frame, now),
            _ => delivered,
        }
    }

    /// To the queue that was chosen.
    pub(crate) fn give_chosen(
        &mut self,
        places: &mut [Place],
        port: &Port,
        choice: &Choice,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Delivered {
        let delivered = self.give_queue(places, choice.place, port, frame, now);
        // Of one that was dropped, some may have got there: it was cut.
        if matches!(delivered, Delivered::Done | Delivered::Dropped) {
            port.note_choice(choice, places, now);
        }
        delivered
    }

    /// [`Self::deliver`], where it is not the only thing that happens.
    #[inline(never)]
    pub(crate) fn deliver_to(
        &mut self,
        places: &mut [Place],
        port: &Port,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Delivered {
        self.deliver(places, port, frame, now)
    }

    /// Nobody is there who could be waited for.
    #[cold]
    fn has_nobody(&mut self, reason: DropReason) -> Delivered {
        self.full_since = None;
        Delivered::Full(reason)
    }

    /// What becomes of a frame that is too long, or that a limit counts; `None` for all others.
    #[cold]
    fn look_at(
        &mut self,
        places: &mut [Place],
        port: &Port,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Option<Delivered> {
        if self.is_over_mtu(port, frame) {
            return Some(Delivered::Dropped);
        }
        port.is_limited().then(|| self.deliver_limited(places, port, frame, now))
    }

    fn is_over_mtu(&mut self, port: &Port, frame: &Frame<'_>) -> bool {
        let is_over = frame.offload.packet_len(frame.head(), frame.len) > port.mtu();
        if is_over {
            port.counters.dropped(DropReason::OverMtu);
        }
        is_over
    }

    #[inline(always)]
    fn give_queue(
        &mut self,
        places: &mut [Place],
        place: u16,
        port: &Port,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Delivered {
        let Some((ring, receive)) = receive_at(places, place) else {
            return self.has_nobody(DropReason::NoBuffer);
        };
        if frame.is_plain()
            && self.put_plain(ring, receive, place, port, frame.head(), frame.health)
        {
            return Delivered::Done;
        }
        if !receive.nic.net.guest_has().contains(frame.offload.needs()) {
            return self.finish_for_queue(ring, receive, place, port, frame, now);
        }
        self.put(ring, receive, place, port, frame, now)
    }

    /// Puts a frame that the receiver can take as it is into its buffers.
    #[inline]
    pub(crate) fn put(
        &mut self,
        ring: &mut Ring,
        receive: &mut Receive,
        place: u16,
        port: &Port,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Delivered {
        let total = receive.nic.net.header_size() as u32 + frame.len;
        if total >= receive.unfit_from {
            port.counters.dropped(DropReason::SmallBuffers);
            return Delivered::Dropped;
        }
        if !ring.queue.peek(&ring.memory, &mut self.chain) {
            return self.is_full(ring, receive, place, now);
        }
        if self.chain.walked() > WALKED_MAX {
            // Its sender would pay for it, again and again: no driver has such buffers.
            ring.queue.latch(Violation::ChainLoop { limit: WALKED_MAX });
            return self.is_full(ring, receive, place, now);
        }
        let first = self.chain.writable().first().copied().unwrap_or_default();
        if first.len() < total {
            return self.put_in_pieces(ring, receive, place, port, frame, now);
        }
        let offload = frame.offload;
        let header = header_of(&offload, receive, 1);
        let size = total - frame.len;
        let written = size + frame.head().len() as u32;
        // Apart, and the usual header of fixed size: what was just written in small pieces and is read
        // in a large one has to wait until all stores before it, into lines that the guest still has,
        // are done (a processor forwards only what one store wrote).
        let mut fits = match size as usize {
            HEADER_SIZE => ring.memory.write(first, 0, &header),
            _ => ring.memory.write(first, 0, header.get(..size as usize).unwrap_or_default()),
        };
        fits &= ring.memory.write(first, size, frame.head());
        if written < total {
            fits &= copy_rest(ring, first.after(written), &frame.rest);
        }
        if !fits || ring.health.is_lost() || frame.is_lost() {
            return self.is_lost(ring, receive, place, frame);
        }
        let ticket = ring.queue.advance(&self.chain);
        ring.queue.complete(ticket, total);
        self.cost.bytes += WALK_BYTES * u64::from(self.chain.walked());
        self.has_put(ring, receive, place, port, frame.len, frame.is_multicast());
        Delivered::Done
    }

    /// One frame in several buffers, or in a buffer of several pieces.
    #[inline(never)]
    fn put_in_pieces(
        &mut self,
        ring: &mut Ring,
        receive: &mut Receive,
        place: u16,
        port: &Port,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Delivered {
        let size = receive.nic.net.header_size();
        let total = size as u32 + frame.len;
        if self.chain.writable_bytes() < size as u64 {
            // No driver may do that (VIRTIO 5.1.6.3.1), and no frame could ever pass it.
            ring.queue.latch(Violation::NoRoom { need: "frame header" });
            return self.is_full(ring, receive, place, now);
        }
        let found = self.gather.find(ring, &mut self.chain, total, receive.nic.net.merges());
        self.cost.bytes += WALK_BYTES * u64::from(self.gather.walked());
        match found {
            Ok(()) => {}
            Err(Short::NoBuffer) => return self.is_full(ring, receive, place, now),
            Err(Short::SmallBuffers) => {
                // The ring stays as it is until a shorter frame takes a buffer out of it.
                receive.unfit_from = total;
                port.counters.dropped(DropReason::SmallBuffers);
                return Delivered::Dropped;
            }
        }
        let chains = if receive.nic.net.merges() { self.gather.chains() } else { 1 };
        let offload = frame.offload;
        let header = header_of(&offload, receive, chains);
        let rest = frame.rest;
        let fits = self.gather.fill(&ring.memory, frame.with_header(&header, size), &rest);
        if !fits || ring.health.is_lost() || frame.is_lost() {
            self.gather.put_back(ring);
            return self.is_lost(ring, receive, place, frame);
        }
        self.gather.complete(ring);
        self.has_put(ring, receive, place, port, frame.len, frame.is_multicast());
        Delivered::Done
    }

    /// A frame is in the ring: counts it, and shows it with others.
    #[inline(always)]
    pub(crate) fn has_put(
        &mut self,
        ring: &mut Ring,
        receive: &mut Receive,
        place: u16,
        port: &Port,
        len: u32,
        is_multicast: bool,
    ) {
        self.cost.requests += 1;
        self.cost.bytes += u64::from(len);
        port.counters.delivered(len, is_multicast);
        receive.has_buffers();
        receive.fresh += 1;
        if receive.fresh.is_multiple_of(SHOW_EVERY) {
            ring.queue.show();
        }
        if !ring.unshown {
            ring.unshown = true;
            self.touched.push(place);
        }
    }

    #[cold]
    #[inline(never)]
    fn is_full(
        &mut self,
        ring: &mut Ring,
        receive: &mut Receive,
        place: u16,
        now: Nanos,
    ) -> Delivered {
        if ring.queue.violation().is_some() {
            self.see(receive, place);
            return self.has_nobody(DropReason::NoBuffer);
        }
        self.full_since = Some(*receive.full_since.get_or_insert(now));
        Delivered::Full(DropReason::NoBuffer)
    }

    /// The copy is not to be believed, or went to memory that is no longer the receiver's.
    #[cold]
    #[inline(never)]
    fn is_lost(
        &mut self,
        ring: &Ring,
        receive: &mut Receive,
        place: u16,
        frame: &Frame<'_>,
    ) -> Delivered {
        if ring.health.is_lost() {
            self.see(receive, place);
        }
        match frame.is_lost() {
            true => Delivered::Lost,
            false => self.has_nobody(DropReason::NoBuffer),
        }
    }

    #[inline(always)]
    fn give_host(
        &mut self,
        places: &mut [Place],
        place: u16,
        port: &Port,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Delivered {
        let Some(host) = host_at(places, place) else {
            return self.has_nobody(DropReason::HostFull);
        };
        if frame.offload != Offload::NONE && !host.spec.port.has().contains(frame.offload.needs()) {
            return self.finish_for_host(host, place, port, frame, now);
        }
        self.send(host, place, port, frame, now)
    }
    /// A broken or lost queue is looked at by the sidecore once, at the end of the visit.
    fn see(&mut self, receive: &mut Receive, place: u16) {
        if !std::mem::replace(&mut receive.is_seen, true) {
            self.examined.push(place);
        }
    }

    /// Sends a frame that the host port can take as it is.
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        host: &mut HostServed,
        place: u16,
        port: &Port,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Delivered {
        let header = match frame.offload == Offload::NONE {
            true => Header::default(),
            false => frame.offload.header(host.spec.port.has(), 0),
        };
        let reason = match host.spec.port.send(&header, frame.head(), frame.rest) {
            Sent::Done => {
                self.cost.requests += 1;
                self.cost.bytes += u64::from(frame.len);
                port.counters.delivered(frame.len, frame.is_multicast());
                host.full_since = None;
                if !host.is_unflushed {
                    host.is_unflushed = true;
                    self.unflushed.push(place);
                }
                return Delivered::Done;
            }
            Sent::Full => {
                self.full_since = Some(*host.full_since.get_or_insert(now));
                return Delivered::Full(DropReason::HostFull);
            }
            Sent::TooLong => DropReason::TooLong,
            Sent::Down => DropReason::CarrierDown,
            // The caller looks at its sender's memory, below.
            Sent::Failed | Sent::Fault => DropReason::HostError,
            Sent::Gone => {
                if !host.is_unflushed {
                    host.is_unflushed = true;
                    self.unflushed.push(place);
                }
                DropReason::HostError
            }
        };
        if frame.is_lost() {
            return Delivered::Lost;
        }
        port.counters.dropped(reason);
        Delivered::Dropped
    }
}

/// The header for a receiver, in so many buffers.
#[inline]
fn header_of(offload: &Offload, receive: &Receive, buffers: u16) -> [u8; HEADER_SIZE] {
    if *offload == Offload::NONE && buffers == 1 {
        return PLAIN;
    }
    offload.header(receive.nic.net.guest_has(), buffers).encode()
}

/// What follows the head, into one buffer. False when some of it is not in its map, or does not fit.
#[inline]
fn copy_rest(ring: &Ring, mut to: Span, rest: &Rest<'_>) -> bool {
    match *rest {
        Rest::Private(bytes) => ring.memory.write(to, 0, bytes),
        Rest::Guest(map, spans) => spans.iter().all(|span| {
            let fits = ring.memory.copy_from(to.first(span.len()), map, *span);
            to = to.after(span.len());
            fits
        }),
    }
}
