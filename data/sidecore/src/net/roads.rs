//! The roads that leave a sidecore, and handing a frame over to one of them.
//!
//! Not what a parcel is (`parcel`), nor what becomes of it at the other end (`inbound`). Called by
//! `route`, and by `frames` when parcels are back.

use std::collections::VecDeque;

use backend::net::Rest;
use switch::{DropReason, PortId, VlanId};
use virtqueue::Ticket;

use crate::net::desk::{Desk, WALK_BYTES};
use crate::net::frames::Frame;
use crate::net::parcel::{Lender, Outbound, Parcel, SPANS, To};
use crate::net::port::Replica;
use crate::net::route::Routed;
use crate::served::{Ring, Transmit};

/// Frames of one transmit queue that are lent at a time, so that no queue has all parcels of a road.
const LENT_MAX: u16 = 16;
/// Chains of one transmit queue that were taken, and wait for one before them whose parcel is out.
const IN_FLIGHT_MAX: usize = 256;
/// A frame with more bytes behind its head is lent; a shorter one is copied, which costs less than the
/// way back of its chain.
const COPIED_MAX: usize = 1_536;

/// The roads of a sidecore, and whose frames are handed over in the present visit.
#[derive(Debug, Default)]
pub(crate) struct Roads {
    all: Vec<Outbound>,
    /// The transmit queue that is visited, and its present chain.
    pub(crate) lender: Lender,
    /// Parcels of that queue that are out, and of them those of that chain.
    pub(crate) lent: u16,
    pub(crate) of_chain: u16,
}

impl Roads {
    /// The next chain of a transmit queue is looked at.
    #[inline]
    pub(crate) fn begin(&mut self, role: &mut Transmit) {
        self.of_chain = std::mem::take(&mut role.in_flight.of_next);
        self.lender = Lender { chain: role.in_flight.next(), ..role.lender };
    }

    /// A visit of what is at `place` begins.
    #[inline]
    pub(crate) fn visit(&mut self, place: u16) {
        self.all.iter_mut().for_each(|road| road.visit(place));
    }

    /// The visit brought frames somewhere.
    #[inline]
    pub(crate) fn visited(&mut self) {
        self.all.iter_mut().for_each(Outbound::visited);
    }

    /// What is at `place` sends nothing any more.
    pub(crate) fn forget(&mut self, place: u16) {
        self.all.iter_mut().for_each(|road| road.forget(place));
    }

    pub(crate) fn add(&mut self, road: Outbound) {
        self.all.push(road);
    }

    /// Wakes whoever was sent something.
    #[inline]
    pub(crate) fn ring(&mut self) {
        self.all.iter_mut().for_each(Outbound::ring);
    }

    /// Notes how far each road is, in `marks`, which is empty.
    pub(crate) fn mark(&self, marks: &mut Vec<u64>) {
        marks.extend(self.all.iter().map(Outbound::mark));
    }

    /// Whether all that was sent before [`Self::mark`] is unpacked. Roads are only added, at the end.
    pub(crate) fn have_passed(&self, marks: &[u64]) -> bool {
        self.all.iter().zip(marks).all(|(road, mark)| road.has_passed(*mark))
    }

    /// Whether some parcel is back.
    #[inline]
    pub(crate) fn has_back(&self) -> bool {
        self.all.iter().any(Outbound::has_back)
    }

    /// The next chain that a parcel came back for.
    pub(crate) fn take_back(&mut self) -> Option<Lender> {
        self.all.iter_mut().find_map(Outbound::take_back)
    }
}

impl Desk {
    /// Hands a frame over to the sidecore `home`. `Later`: no parcel is free, enough are out, or the port
    /// moves.
    #[inline(never)]
    pub(crate) fn hand_over(
        &mut self,
        replica: &Replica,
        from: PortId,
        to: (To, u16),
        vlan: VlanId,
        frame: &Frame<'_>,
    ) -> Routed {
        let (to, home) = to;
        if replica.holds > 0 && replica.is_held(to) {
            return Routed::Later;
        }
        let roads = &mut self.roads;
        // Control links two sidecores before ports of a bridge are at home on both.
        let road = roads.all.iter_mut().find(|road| road.to == home && !road.is_dead());
        let Some(road) = road else {
            replica.dropped(from, DropReason::HandoverFull);
            return Routed::Done;
        };
        let copied = (frame.len as usize).saturating_sub(frame.head_len);
        let lends = copied > COPIED_MAX
            && frame.memory.is_some()
            && matches!(frame.rest, Rest::Guest(_, spans) if spans.len() <= SPANS);
        if lends && roads.lent >= LENT_MAX {
            return Routed::Later;
        }
        let Some(mut parcel) = road.take(if lends { 0 } else { copied }) else {
            return Routed::Later;
        };
        let is_whole = fill(&mut parcel, frame, lends);
        if !is_whole || frame.is_lost() {
            road.put_back(parcel);
            return Routed::Lost;
        }
        (parcel.bridge, parcel.from, parcel.to, parcel.vlan) = (replica.id, from, to, vlan);
        parcel.lender = lends.then_some(roads.lender);
        if road.send(parcel) && lends {
            roads.lent += 1;
            roads.of_chain += 1;
        }
        self.cost.requests += 1;
        self.cost.bytes += if lends { WALK_BYTES } else { copied as u64 };
        Routed::Done
    }
}

/// Puts a frame into a parcel. False when its sender's memory is not there.
fn fill(parcel: &mut Parcel, frame: &Frame<'_>, lends: bool) -> bool {
    parcel.room.copy_from_slice(&frame.room[..]);
    (parcel.head_len, parcel.len) = (frame.head_len, frame.len);
    (parcel.offload, parcel.pair) = (frame.offload, frame.pair);
    match (&frame.rest, frame.memory) {
        (Rest::Guest(_, spans), Some(memory)) if lends => parcel.lend(memory, spans),
        (Rest::Guest(map, spans), _) => parcel.copy_from(map, spans),
        (Rest::Private(bytes), _) => parcel.copy(bytes),
    }
}

/// Chains of a transmit queue that were taken and are not completed: one whose parcels are out, and
/// those behind it, since all are completed in order.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// The number of the first of them.
    first: u32,
    chains: VecDeque<(Ticket, u16)>,
    /// Parcels that are out, in all.
    pub(crate) lent: u16,
    /// And of the chain that is still in the ring, since its flood is not finished.
    pub(crate) of_next: u16,
}

impl InFlight {
    /// Takes the memory for all that may wait.
    pub(crate) fn new() -> InFlight {
        InFlight { first: 0, chains: VecDeque::with_capacity(IN_FLIGHT_MAX), lent: 0, of_next: 0 }
    }

    /// The number of the chain that is taken next.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.first.wrapping_add(self.chains.len() as u32)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// Whether no more may be taken for now.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.chains.len() >= IN_FLIGHT_MAX
    }

    /// A chain was taken, of which so many parcels are out.
    pub(crate) fn push(&mut self, ticket: Ticket, parcels: u16) {
        self.chains.push_back((ticket, parcels));
    }

    /// Gives up what waits: for a queue that never comes back to its driver.
    pub(crate) fn forfeit(&mut self) {
        self.chains.drain(..).for_each(|(ticket, _)| ticket.forfeit());
    }

    /// A parcel of chain `number` is back.
    fn take_back(&mut self, number: u32) {
        self.lent = self.lent.saturating_sub(1);
        let at = number.wrapping_sub(self.first) as usize;
        match self.chains.get_mut(at) {
            Some((_, parcels)) => *parcels = parcels.saturating_sub(1),
            None => self.of_next = self.of_next.saturating_sub(1),
        }
    }

    /// The next chain that is over.
    fn pop(&mut self) -> Option<Ticket> {
        if self.chains.front()?.1 > 0 {
            return None;
        }
        self.first = self.first.wrapping_add(1);
        self.chains.pop_front().map(|(ticket, _)| ticket)
    }
}

impl Transmit {
    /// A parcel of chain `number` is back: completes what is over by that, in order.
    pub(crate) fn take_back(&mut self, ring: &mut Ring, number: u32) {
        self.in_flight.take_back(number);
        while let Some(ticket) = self.in_flight.pop() {
            if ring.health.is_lost() {
                ring.queue.abandon(ticket);
            } else {
                ring.queue.complete(ticket, 0);
                ring.unshown = true;
            }
        }
    }
}
