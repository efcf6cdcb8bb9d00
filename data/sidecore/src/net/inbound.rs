//! A visit of a road from another sidecore: parcels are unpacked into ports that are at home here.
//!
//! The bridge decided at the other end; here its replica learns, and the port's own rules say what
//! goes out. Whatever becomes of a frame, its parcel goes back.

use std::sync::Arc;

use backend::net::Rest;
use guest_memory::GuestMap;
use schedule::{Budget, Nanos, Policy, Visited};
use switch::{DropReason, PortId, VlanId};

use crate::net::Net;
use crate::net::deliver::Delivered;
use crate::net::desk::{Desk, Ended};
use crate::net::frames::Frame;
use crate::net::parcel::{Inbound, Parcel, To};
use crate::net::port::Replica;
use crate::net::route::{Routed, Scope};
use crate::places::{Place, Tenant, road_at, served_at};
use crate::sidecore::Sidecore;

impl Net {
    /// Unpacks parcels until there is none or the budget is used.
    pub(crate) fn unpack(
        &mut self,
        places: &mut [Place],
        road: &mut Inbound,
        budget: Budget,
        now: Nanos,
    ) -> Visited {
        let Net { replicas, desk, .. } = self;
        desk.begin(budget);
        let ended = loop {
            if !desk.may_go_on() {
                break Ended::Budget;
            }
            let Some((mut parcel, cursor)) = road.take() else { break Ended::Empty };
            let before = desk.cost.requests;
            let replica =
                replicas.get_mut(usize::from(parcel.bridge.0)).and_then(Option::as_deref_mut);
            let routed = match replica {
                Some(replica) => desk.unpack(places, replica, &mut parcel, cursor, now),
                None => Routed::Done,
            };
            if let Routed::Unfinished(cursor) = routed {
                road.kept = Some((parcel, cursor));
                break Ended::Budget;
            }
            desk.charge_frame(before);
            road.give_back(parcel);
        };
        road.ring();
        desk.visited(ended)
    }
}

impl Desk {
    fn unpack(
        &mut self,
        places: &mut [Place],
        replica: &mut Replica,
        parcel: &mut Parcel,
        cursor: u16,
        now: Nanos,
    ) -> Routed {
        let Parcel { from, to, vlan, head_len, len, offload, pair, .. } = *parcel;
        let (room, bytes, spans, memory) = parcel.parts();
        let memory: Option<&Arc<GuestMap>> = memory.as_ref();
        let rest = match memory {
            Some(memory) => Rest::Guest(memory, spans),
            None => Rest::Private(bytes),
        };
        let health = memory.map(|memory| memory.health());
        let mut frame = Frame { room, head_len, len, rest, offload, health, memory: None, pair };
        if cursor == 0 {
            // What may not be learned here was allowed, or refused, where it came from.
            let _ = replica.bridge.learn(from, frame.head(), now.0);
        }
        match to {
            To::All => {
                self.flood(places, replica, (from, Scope::Here), vlan, &mut frame, cursor, now)
            }
            To::Port(to) => {
                self.arrive(places, replica, to, vlan, &mut frame, now);
                Routed::Done
            }
        }
    }

    /// One frame for one port.
    fn arrive(
        &mut self,
        places: &mut [Place],
        replica: &Replica,
        to: PortId,
        vlan: VlanId,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) {
        // It may have gone, or moved, while the frame was on its way.
        let Some(port) = replica.ports.get(to).filter(|port| port.is_here()) else { return };
        match self.leave_by(places, replica, (to, port), vlan, frame, now) {
            Delivered::Full(reason) => port.counters.dropped(reason),
            Delivered::Echo => port.counters.dropped(DropReason::HostFull),
            Delivered::Done | Delivered::Dropped | Delivered::Lost => {}
        }
    }
}

/// Weight of a road among the queues of a sidecore: that of one usual queue.
const ROAD_SHARE: u32 = 100;

impl Sidecore {
    /// Takes the end of a road in. Without a place for it, its frames are dropped at the other end.
    pub(crate) fn add_road(&mut self, road: Box<Inbound>, now: Nanos) {
        let Some(at) = self.places.iter().position(Place::is_empty) else { return };
        if let Some(place) = self.places.get_mut(at) {
            place.epoch = place.epoch.wrapping_add(1);
            place.tenant = Tenant::Road(road);
            self.schedule.add(at as u16, ROAD_SHARE, Policy::Adaptive, now);
            self.schedule.set_owner(at as u16, None);
            self.roads.push(at as u16);
        }
    }

    /// Notes what other sidecores sent, and takes parcels back.
    #[inline]
    pub(crate) fn hear_roads(&mut self, now: Nanos) {
        for road in &self.roads {
            if road_at(&self.places, *road).is_some_and(Inbound::has_some) {
                self.schedule.kicked(*road, now);
            }
        }
        if self.net.desk.roads.has_back() {
            self.take_parcels_back(now);
        }
    }

    /// Whether another sidecore sent something, or gave something back.
    pub(crate) fn has_parcels(&self) -> bool {
        self.has_inbound() || self.net.desk.roads.has_back()
    }

    /// Whether another sidecore sent something that is not unpacked.
    pub(crate) fn has_inbound(&self) -> bool {
        let sent = |road: &u16| road_at(&self.places, *road).is_some_and(Inbound::has_some);
        self.roads.iter().any(sent)
    }

    /// Completes the chains whose parcels are back. Bounded by the parcels of all roads.
    #[cold]
    fn take_parcels_back(&mut self, now: Nanos) {
        while let Some(lender) = self.net.desk.roads.take_back() {
            let place = self.places.get(usize::from(lender.place));
            // A queue does not leave before its parcels are back.
            if place.is_none_or(|place| place.epoch != lender.epoch) {
                continue;
            }
            let served = served_at(&mut self.places, lender.place);
            let Some((ring, transmit)) = served.and_then(|served| served.transmit()) else {
                continue;
            };
            let was_shown = !ring.unshown;
            transmit.take_back(ring, lender.chain);
            if was_shown && ring.unshown {
                self.calls.note_unshown(lender.place);
            }
        }
        self.show_noted(|ring, alarm| ring.publish_sent(alarm, now));
    }
}
