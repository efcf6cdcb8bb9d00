//! What a reload opens when other devices are gone, and what is served again if that fails.
//!
//! Not here: when it is given up (`control::reload`).

use std::fmt;

use config::plan::DevicePlan;
use control::mode::Mode;
use control::reload::Stands;
use tracing::{error, info, warn};

use crate::opening::not_open::NotOpen;
use crate::opening::open::{self, Socket};
use crate::opening::shut::{Shut, ShutDevices};
use crate::rooms::Rooms;

/// A device that is opened when another one is gone.
pub(crate) struct Late {
    pub(crate) plan: DevicePlan,
    /// What it waits for.
    pub(crate) why: String,
    /// The device of that name that went for it.
    pub(super) before: Option<DevicePlan>,
}

impl Late {
    /// How it stands.
    pub(super) fn stands(&self, shut: &ShutDevices) -> Stands {
        match shut.named(self.plan.id()).map(Shut::is_waiting) {
            Some(true) => Stands::Late,
            Some(false) => Stands::Failed,
            None => Stands::Open,
        }
    }
}

/// Serves what went for devices that could not be opened after all, at once or as soon as it can be opened.
pub(super) fn restore(late: &[Late], rooms: &mut Rooms, mode: Mode) -> Restored {
    let mut restored = Restored::default();
    for Late { plan, before, .. } in late {
        let has_failed = rooms.shut.named(plan.id()).is_some_and(|shut| !shut.is_waiting());
        let Some(before) = before.clone().filter(|_| has_failed) else { continue };
        // What stands among those that are not open is tried again, with the patience for that.
        let failed = rooms.shut.remove(plan.id());
        let opened = open::open(before.clone(), Socket::Own, rooms, mode);
        let why = match opened.and_then(|device| open::serve(device, rooms, mode)) {
            Ok(number) => {
                rooms.set_plan(before.clone());
                rooms.turn.touch(number);
                info!(device = plan.id(), "served as before");
                restored.served.push(before.title());
                continue;
            }
            Err(why) => why,
        };
        match why {
            NotOpen::Wrong(_) => {
                error!(device = plan.id(), "cannot be served as before either: {why}");
                failed.into_iter().for_each(|failed| rooms.shut.insert(failed));
            }
            // Who has its image may be about to let go of it.
            NotOpen::Ended(_) | NotOpen::Late(_) | NotOpen::Ours(_) | NotOpen::Living(_) => {
                warn!(device = plan.id(), "waits to be served as before: {why}");
                restored.waiting.push(format!("{} ({why})", before.title()));
                rooms.set_plan(before.clone());
                rooms.shut.insert(Shut::waiting_for(before, &why, rooms.turn.now()));
            }
        }
    }
    restored
}

/// Devices that went for others which could not be opened, in words.
#[derive(Default)]
pub(crate) struct Restored {
    /// Are served again.
    served: Vec<String>,
    /// Are as soon as they can be opened.
    waiting: Vec<String>,
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.served.is_empty() {
            write!(f, ", and served again as before: {}", self.served.join(", "))?;
        }
        if !self.waiting.is_empty() {
            let names = self.waiting.join(", ");
            write!(f, ", and served again as before as soon as it can be opened: {names}")?;
        }
        Ok(())
    }
}
