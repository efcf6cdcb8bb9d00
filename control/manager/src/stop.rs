//! The end of a daemon in order: nobody is served any more, and what is in flight is waited for.
//!
//! Not here: when the loop ends (`manager`). Called by the control loop.

use std::time::Duration;

use tracing::info;

use crate::defects::found;
use crate::device::Device;
use crate::manager::Manager;
use crate::poll::Token;
use crate::upgrade::error::UpgradeError;

/// How long a stop waits for what is in flight.
const STOP_TIME_MAX: Duration = Duration::from_millis(1500);

impl Manager {
    /// Begins to stop, on a signal.
    pub(crate) fn begin_stop(&mut self) {
        self.rooms.poll.clear_signals(Token::Stop);
        if self.stop_by.is_some() {
            return;
        }
        self.settle_for_good();
        info!("stopping");
        (self.rooms.options.stopping)();
        self.give_up_upgrade(&UpgradeError::Stopping);
        self.rooms.shut.clear();
        self.rooms.waiting.forget_added();
        self.rooms.network.give_up_uplinks(&mut self.rooms.cores);
        self.stop_by = Some(self.rooms.turn.now() + STOP_TIME_MAX);
        let devices: Vec<u32> = self.rooms.devices.keys().copied().collect();
        for number in devices {
            let device = self.rooms.devices.get_mut(number);
            let device = found!(self.rooms.turn.defects, device, "device to stop");
            device.close_socket();
            // Its queues must not start again, and its front-end sees the end at once.
            device.go();
            if !device.detach_all(&mut self.rooms.turn, &mut self.rooms.cores) {
                self.links(|remote, around| remote.release_remote(number, around));
            }
        }
    }

    pub(crate) fn close_all(&mut self) {
        self.rooms.devices.values_mut().for_each(Device::close_socket);
    }
}
