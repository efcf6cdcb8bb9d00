//! A look once a second at front-ends that are beginning, which is before their first request, while there is one.
//!
//! Not here: how far each is, and what to write (`devices::beginning`).

use std::time::Instant;

use tracing::{info, warn};

use crate::devices::Devices;
use crate::devices::beginning::Stage;
use crate::devices::device::Device;

/// Whether there is one.
pub(crate) fn is_any(devices: &Devices) -> bool {
    devices.values().any(Device::is_beginning)
}

/// Says at which stage each stays.
pub(crate) fn look(devices: &mut Devices, now: Instant) {
    for device in devices.values_mut().filter(|device| device.is_beginning()) {
        let Some(stage) = device.look_at_front_ends(now) else { continue };
        let (id, words) = (device.facts().id.clone(), stage.words(&device.facts().id));
        match stage {
            // A guest in its firmware is usual.
            Stage::NoMemory if device.may_log(now) => info!(device = id, "{words}"),
            _ if device.may_log(now) => warn!(device = id, "{words}"),
            _ => {}
        }
    }
}
