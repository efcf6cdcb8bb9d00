//! The table of what a sidecore has: a queue or nothing at each place.
//!
//! Not who is visited when (`schedule`), nor how a place is filled and emptied (`commands`).

use crate::served::{DiskRole, Ring, Served};

/// A place in the table.
#[derive(Debug, Default)]
pub(crate) struct Place {
    pub(crate) tenant: Tenant,
    /// Counts the tenants that were here; names their kicks and seeds their tags.
    pub(crate) epoch: u32,
}

/// Who has a place.
#[derive(Debug, Default)]
pub(crate) enum Tenant {
    #[default]
    Empty,
    Queue(Box<Served>),
}

impl Place {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.tenant, Tenant::Empty)
    }

    pub(crate) fn served(&self) -> Option<&Served> {
        match &self.tenant {
            Tenant::Queue(served) => Some(served),
            Tenant::Empty => None,
        }
    }

    /// The queue here, when it is still the one that attachment `epoch` put here.
    pub(crate) fn kicked(&mut self, epoch: u32) -> Option<&mut Served> {
        match &mut self.tenant {
            Tenant::Queue(served) if self.epoch == epoch => Some(served),
            _ => None,
        }
    }

    /// Takes the queue out, when nothing of it is in flight.
    pub(crate) fn take_idle(&mut self) -> Option<Box<Served>> {
        match std::mem::take(&mut self.tenant) {
            Tenant::Queue(served) if served.ring.queue.in_flight() == 0 => Some(served),
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
        Tenant::Empty => None,
    }
}

/// The queue at `place`, when it is a disk's.
#[inline]
pub(crate) fn disk_at(places: &mut [Place], place: u16) -> Option<(&mut Ring, &mut DiskRole)> {
    served_at(places, place)?.disk()
}
