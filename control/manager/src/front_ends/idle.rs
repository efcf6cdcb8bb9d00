//! A look once a second at front-ends that have not come to a request, while there is one.
//!
//! Not here: what each lacks (`beginning`).

use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::devices::Devices;
use crate::devices::beginning::Stage;
use crate::devices::device::Device;

/// Between two looks at all.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Looks at all front-ends, while there is one that has not come to a request.
#[derive(Debug)]
pub(crate) struct Looks {
    at: Instant,
}

impl Looks {
    /// The first one is then.
    pub(crate) fn from(now: Instant) -> Looks {
        Looks { at: now }
    }

    /// When the next is due.
    pub(crate) fn due_at(&self, devices: &Devices) -> Option<Instant> {
        devices.values().any(Device::has_new_front_end).then_some(self.at)
    }

    /// Looks once a second, and says what each lacks.
    pub(crate) fn look(&mut self, now: Instant, devices: &mut Devices) {
        if now < self.at {
            return;
        }
        self.at = now + LOOK_INTERVAL;
        let new = devices.values_mut().filter(|device| device.has_new_front_end());
        for device in new {
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
}
