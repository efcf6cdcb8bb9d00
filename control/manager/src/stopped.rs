//! Queues that their sidecore has stopped, and front-ends that made one wait.
//!
//! Not here: what a violation is (`virtqueue`), nor what a closed front-end leaves behind (`connections`).

use std::time::Duration;

use guest_memory::Loss;
use tracing::warn;

use crate::defects::{found, late};
use crate::lent::Lent;
use crate::manager::Manager;
use crate::queue::Owner;

/// How long no front-end is taken after one that made a sidecore wait.
const SHUT_OUT_TIME: Duration = Duration::from_secs(10);

impl Manager {
    /// A queue takes nothing more, for that reason.
    pub(crate) fn queue_failed(&mut self, key: sidecore::QueueKey, violation: &str) {
        // The sidecore that had it then may be heard after the one that it has moved to, and has gone home from.
        let Some(device) = self.rooms.devices.get_mut(key.device) else { return late("device") };
        let queue = device.queues.get_mut(usize::from(key.queue));
        let queue = found!(self.rooms.turn.defects, queue, "queue of the number that is stopped");
        let id = match queue.place().map(|place| place.owner) {
            Some(Owner::Connection(id)) => id,
            // Its ring is this daemon's own, and a link is its driver.
            Some(Owner::Link) => return self.rooms.turn.defects.note("sound ring of a link"),
            None => return late("service"),
        };
        // A front-end that has gone leaves no problem behind: the next one starts the queue anew.
        let Some(connection) = device.connections.get_mut(&id) else {
            return late("front-end");
        };
        queue.stop(violation);
        if device.log.allows(self.rooms.turn.now()) {
            warn!(device = device.facts.id, queue = key.queue, "it is stopped: {violation}");
        }
        // Without a descriptor left, only the counters and the log tell.
        if let Some(Ok(err)) = connection.session.failed(key.queue).map(Lent::try_clone) {
            device.closer.signal(err);
        }
        if connection.front_end.loss() == Some(Loss::Call) {
            self.shut_out(key.device, id);
        }
    }

    /// A front-end made a sidecore wait, which serves others too: it may do so once in a while.
    pub(crate) fn shut_out(&mut self, number: u32, connection: u32) {
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device whose front-end is shut out");
        let until = self.rooms.turn.now() + SHUT_OUT_TIME;
        device.shut_out(until);
        device.problem = Some(format!(
            "its front-end made a call descriptor block, which holds up others; no front-end is \
             taken for {} s",
            SHUT_OUT_TIME.as_secs()
        ));
        self.close_connection(number, connection, "its call descriptor was made to block");
    }
}
