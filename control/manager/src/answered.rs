//! What control does when threads that open and close images have something to say, and which of them it
//! goes on waiting for.
//!
//! Not here: the threads (`openers`), and what an open image is for (`shut`, `follow`, `disk_calls`). Called
//! by the control loop.

use crate::device::Device;
use crate::disk::DiskParts;
use crate::manager::Manager;
use crate::shut::Shut;

impl Manager {
    /// Threads of the openers have something to say.
    pub(crate) fn hear_openers(&mut self) {
        self.rooms.openers.hear();
        for number in self.rooms.openers.closed() {
            self.image_is_closed(number);
        }
        let (now, answered) = (self.rooms.turn.now(), self.rooms.openers.answered());
        for shut in self.rooms.shut.iter_mut().filter(|shut| is_one_of(shut.plan.id(), &answered)) {
            shut.retry.iter_mut().for_each(|retry| retry.hurry(now));
        }
        for device in
            self.rooms.devices.values_mut().filter(|it| is_one_of(&it.facts.id, &answered))
        {
            if let Some(retry) = device.kind.disk_mut().and_then(DiskParts::asks) {
                retry.hurry(now);
            }
        }
    }

    /// Lets go what was being opened and nobody waits for any more: a thread that is not asked would keep the locks of
    /// its image from whoever needs them.
    pub(crate) fn drop_unwanted(&mut self) {
        let waits = |shut: &Shut, id: &str| shut.retry.is_some() && shut.plan.id() == id;
        let asks = |device: &Device, id: &str| {
            let disk = device.kind.disk().filter(|_| device.facts.id == id && !device.removing);
            disk.is_some_and(|disk| disk.asks_at().is_some())
        };
        self.rooms.openers.keep_only(|id| {
            self.rooms.shut.iter().any(|shut| waits(shut, id))
                || self.rooms.devices.values().any(|device| asks(device, id))
                || self.adding.iter().any(|adding| adding.id == id)
        });
    }
}

fn is_one_of(id: &str, ids: &[String]) -> bool {
    ids.iter().any(|other| other == id)
}
