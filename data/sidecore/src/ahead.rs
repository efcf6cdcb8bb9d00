//! What the next turns will need is asked for while this one is served.
//!
//! With thousands of queues nothing of one is in the processor's own cache any more when its turn comes, and
//! what it needs is found only one thing after another; the same holds for a queue that is watched beside
//! others that copy much. Not for few queues: theirs is there. Called by `visit`, for each turn and
//! between pieces.

use guest_memory::{GuestMap, prefetch_value};

use crate::counters::QueueCounters;
use crate::places::{Place, Tenant};
use crate::served::{DiskRole, Role, Served};
use crate::sidecore::Sidecore;

/// Polled queues whose state, some 2 KiB each, is more than a core's own cache keeps beside what they work on.
const CROWD: usize = 128;

// What is asked for at once is little beside a core's nearest cache.
const _: () = assert!(size_of::<Served>() + size_of::<DiskRole>() <= 2048);

impl Sidecore {
    /// Asks for the state of the queue whose turn is the next but one, and for the ring of the next.
    #[inline]
    pub(crate) fn look_ahead(&self) {
        if self.schedule.polled() >= CROWD {
            self.ask_ahead();
        }
    }

    /// Keeps near what the next request of a watched queue will need, whose ring was looked at just now.
    pub(crate) fn keep_near(&self, queue: u16) {
        let Some(served) = self.places.get(usize::from(queue)).and_then(Place::served) else {
            return;
        };
        prefetch_value(served);
        prefetch_value::<GuestMap>(&served.ring.memory);
        prefetch_value::<QueueCounters>(&served.ring.counters);
        if let Role::Disk(disk) = &served.role {
            prefetch_value::<DiskRole>(disk);
        }
    }

    #[inline(never)]
    fn ask_ahead(&self) {
        let [next, second] = self.schedule.coming();
        let tenant = |queue: u16| Some(&self.places.get(usize::from(queue))?.tenant);
        if let Some(Tenant::Queue(served)) = second.and_then(tenant) {
            prefetch_value::<Served>(served);
        }
        if let Some(Tenant::Queue(served)) = next.and_then(tenant) {
            served.ring.queue.prefetch();
            prefetch_value::<GuestMap>(&served.ring.memory);
            if let Role::Disk(disk) = &served.role {
                prefetch_value::<DiskRole>(disk);
            }
        }
    }
}
