//! What a thread and a process do for a sidecore, done by a simulation: it sleeps without waiting, and it
//! ends in the middle of things. Only with the feature `simulated`.

use schedule::Nanos;

use crate::places::{Place, Tenant};
use crate::served::Served;
use crate::sidecore::Sidecore;

impl Sidecore {
    /// [`Self::rest`] up to the sleep, which a simulation does not do: true when it would sleep now, until
    /// [`Self::is_woken`] or [`Self::wakes_at`]. Then comes [`Self::wake_up`].
    pub fn lie_down(&mut self, now: Nanos) -> bool {
        let asleep = self.falls_asleep(now);
        if !asleep {
            self.rest.bell().awake();
        }
        asleep
    }

    /// Whether something came that ends its sleep.
    pub fn is_woken(&self) -> bool {
        self.rest.has_some()
    }

    /// When its sleep ends even if nothing comes.
    pub fn wakes_at(&self) -> Option<Nanos> {
        self.next_due()
    }

    /// The end of its sleep.
    pub fn wake_up(&mut self, now: Nanos) {
        self.look(now);
        self.rest.bell().awake();
    }

    /// Whether it has a queue, a link, or descriptors of the host's.
    pub fn serves(&self) -> bool {
        let serves = |place: &Place| matches!(place.tenant, Tenant::Queue(_) | Tenant::Host(_));
        self.has_links() || self.places.iter().any(serves)
    }

    /// Its process was killed: nothing more is done or said, least of all to a guest.
    pub fn die(mut self) {
        let queues: Vec<Box<Served>> =
            self.places.iter_mut().filter_map(Place::take_queue).collect();
        let queues = queues.into_iter().chain(self.moves.take_handed());
        queues.for_each(|served| drop(served.into_spec()));
        for place in &mut self.places {
            place.tenant = Tenant::Empty;
        }
    }
}
