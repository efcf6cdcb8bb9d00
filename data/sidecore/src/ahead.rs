//! What the next turns will need is asked for while this one is served.
//!
//! With thousands of queues nothing of one is in the processor's own cache any more when its turn comes, and
//! what it needs is found only one thing after another. Not for few queues: theirs is there. Called by
//! `sidecore`, for each visit.

use guest_memory::prefetch_value;

use crate::places::Tenant;
use crate::served::Role;
use crate::sidecore::Sidecore;

/// Polled queues whose state, some 2 KiB each, is more than a core's own cache keeps beside what they work on.
const CROWD: usize = 128;

impl Sidecore {
    /// Asks for the state of the queue whose turn is the next but one, and for the ring of the next.
    #[inline]
    pub(crate) fn look_ahead(&self) {
        if self.schedule.polled() >= CROWD {
            self.ask_ahead();
        }
    }

    #[inline(never)]
    fn ask_ahead(&self) {
        let [next, second] = self.schedule.coming();
        let tenant = |queue: u16| Some(&self.places.get(usize::from(queue))?.tenant);
        if let Some(Tenant::Queue(served)) = second.and_then(tenant) {
            prefetch_value::<crate::served::Served>(served);
        }
        if let Some(Tenant::Queue(served)) = next.and_then(tenant) {
            served.ring.queue.prefetch();
            prefetch_value::<guest_memory::GuestMap>(&served.ring.memory);
            if let Role::Disk(disk) = &served.role {
                prefetch_value::<crate::served::DiskRole>(disk);
            }
        }
    }
}
