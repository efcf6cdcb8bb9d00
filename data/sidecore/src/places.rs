//! The table of what a sidecore has: a queue or nothing at each place.
//!
//! Not who is visited when (`schedule`), nor how a place is filled and emptied (`commands`).

use crate::net::{HostServed, Inbound};
use crate::served::{DiskRole, Receive, Ring, Served};

/// A place in the table.
#[derive(Debug, Default)]
pub(crate) struct Place {
    pub(crate) tenant: Tenant,
    /// Counts the tenants that were here; names their kicks and seeds their tags.
    pub(crate) epoch: u32,
    /// A queue is to come here from another sidecore.
    pub(crate) reserved: bool,
}

/// Who has a place.
#[derive(Debug, Default)]
pub(crate) enum Tenant {
    #[default]
    Empty,
    Queue(Box<Served>),
    Host(Box<HostServed>),
    /// The end of a road from another sidecore.
    Road(Box<Inbound>),
}

impl Place {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.tenant, Tenant::Empty) && !self.reserved
    }

    /// Whether nothing is here that control must have back.
    pub(crate) fn is_given_back(&self) -> bool {
        match &self.tenant {
            Tenant::Empty => true,
            Tenant::Road(road) => !road.has_some(),
            Tenant::Queue(_) | Tenant::Host(_) => false,
        }
    }

    pub(crate) fn served(&self) -> Option<&Served> {
        match &self.tenant {
            Tenant::Queue(served) => Some(served),
            Tenant::Host(_) | Tenant::Road(_) | Tenant::Empty => None,
        }
    }

    /// Takes the queue out, whatever is in flight of it.
    pub(crate) fn take_queue(&mut self) -> Option<Box<Served>> {
        match std::mem::take(&mut self.tenant) {
            Tenant::Queue(served) => Some(served),
            other => {
                self.tenant = other;
                None
            }
        }
    }

    /// Takes the queue out, when nothing of it is in flight, or nothing that is matters to anybody.
    pub(crate) fn take_idle(&mut self) -> Option<Box<Served>> {
        match std::mem::take(&mut self.tenant) {
            Tenant::Queue(served)
                if served.ring.queue.in_flight() == 0
                    && served.role.has_all_back()
                    && !served.is_amid_flood() =>
            {
                Some(served)
            }
            // What is in flight ends without it.
            Tenant::Queue(served) if served.is_given_up() => Some(served),
            other => {
                self.tenant = other;
                None
            }
        }
    }
}

#[inline]
pub(crate) fn served_at(places: &mut [Place], place: u16) -> Option<&mut Served> {
    match &mut places.get_mut(usize::from(place))?.tenant {
        Tenant::Queue(served) => Some(served),
        Tenant::Host(_) | Tenant::Road(_) | Tenant::Empty => None,
    }
}

/// The queue at `place`, when it is a disk's.
#[inline]
pub(crate) fn disk_at(places: &mut [Place], place: u16) -> Option<(&mut Ring, &mut DiskRole)> {
    served_at(places, place)?.disk()
}

/// The queue at `place`, when it is a receive queue.
#[inline]
pub(crate) fn receive_at(places: &mut [Place], place: u16) -> Option<(&mut Ring, &mut Receive)> {
    served_at(places, place)?.receive()
}

/// The host port at `place`.
#[inline]
pub(crate) fn host_at(places: &mut [Place], place: u16) -> Option<&mut HostServed> {
    match &mut places.get_mut(usize::from(place))?.tenant {
        Tenant::Host(host) => Some(host),
        Tenant::Queue(_) | Tenant::Road(_) | Tenant::Empty => None,
    }
}

/// The end of a road at `place`.
#[inline]
pub(crate) fn road_at(places: &[Place], place: u16) -> Option<&Inbound> {
    match &places.get(usize::from(place))?.tenant {
        Tenant::Road(road) => Some(road),
        Tenant::Queue(_) | Tenant::Host(_) | Tenant::Empty => None,
    }
}
