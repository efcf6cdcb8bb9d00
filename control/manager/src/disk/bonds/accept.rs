//! What an operator decides of a guest whose image is another one: that it goes on with it, or that its own is opened.

use backend::Astray;
use config::api::{ApiError, ErrorKind};
use config::plan::{DeviceKind, DevicePlan};
use config::{Change, Plan};

use super::Bonds;
use crate::defects::found;
use crate::devices::Devices;
use crate::devices::device::Device;
use crate::opening::not_open::NotOpen;
use crate::opening::openers::Openers;
use crate::remote::Remote;
use crate::turn::Turn;

/// What the path of a disk names now.
pub(crate) enum Named {
    /// What is open, or it has no path.
    Open,
    /// Another image.
    Another,
    /// None.
    Nothing,
    /// Nobody knows.
    Unknown(NotOpen),
}

impl Named {
    /// Whether what is open may be what a guest goes on with: an image that its path does not name is lost with
    /// the daemon.
    ///
    /// # Errors
    /// It is not, and what to do.
    pub(crate) fn may_be_accepted(self, id: &str) -> Result<(), ApiError> {
        let refused = |error, hint| Err(ApiError::new(ErrorKind::Refused, error, hint));
        match self {
            Named::Open => Ok(()),
            Named::Another => refused(
                format!("what the path of disk {id:?} names now is not the image that is open"),
                "`sidecore reload` opens it; what was open may have no name any more, and be lost with the daemon",
            ),
            Named::Nothing => refused(
                format!(
                    "the path of disk {id:?} names nothing now: what is open may have no name any more"
                ),
                "put the image of its guest there, and `sidecore reload` opens it; what is open would be lost with \
                 the daemon",
            ),
            Named::Unknown(why @ NotOpen::Late(_)) => {
                let hint = "try again when its file system answers";
                Err(ApiError::new(ErrorKind::Busy, why.to_string(), hint))
            }
            Named::Unknown(why) => {
                refused(why.to_string(), "correct that first: the image could not be opened again")
            }
        }
    }
}

/// Images that are open, and what their paths name.
pub(crate) struct Images<'a> {
    pub(crate) turn: &'a mut Turn,
    pub(crate) devices: &'a Devices,
    pub(crate) openers: &'a mut Openers,
    pub(crate) bonds: &'a Bonds,
    pub(crate) remote: &'a Remote,
}

impl Images<'_> {
    /// What the path of disk `number` names now.
    pub(crate) fn named(&mut self, number: u32) -> Named {
        let Some(parts) = self.devices.disk(number) else {
            self.turn.defects.note("disk whose path is looked at");
            return Named::Open;
        };
        let (plan, open) = (parts.plan.clone(), parts.file);
        if plan.source.path().is_none() || open.is_none() {
            return Named::Open;
        }
        match self.openers.check(&plan, self.bonds) {
            Ok(looked) if looked.lies.file() == open => Named::Open,
            Ok(looked) if looked.lies.file().is_some() => Named::Another,
            Ok(_) => Named::Nothing,
            Err(why) => Named::Unknown(why),
        }
    }

    /// Disks whose guests wait for their image, or that nobody has, and whose paths name another one by now than is open:
    /// a reload opens them anew, which takes nothing from a guest.
    pub(crate) fn opened_anew(&mut self, wanted: &Plan) -> Vec<Change> {
        let waits = |device: &&Device| {
            let disk = device.disk().filter(|_| !device.is_going());
            disk.is_some_and(|disk| disk.bond.refused().is_some())
        };
        let anew = self.devices.values().filter(|device| waits(device) || self.is_left(device));
        self.reopenings(anew.map(|device| device.number()).collect(), wanted)
    }

    /// Whether nobody has a disk whose path names another image than is open.
    pub(crate) fn is_left(&self, device: &Device) -> bool {
        let disk = device.disk().filter(|_| !device.is_going() && device.has_no_front_end());
        let is_astray = disk.is_some_and(|disk| disk.astray == Some(Astray::Replaced));
        is_astray && !self.remote.is_clients(device.number())
    }

    /// What opens those of `numbers` anew whose paths name another image.
    pub(crate) fn reopenings(&mut self, numbers: Vec<u32>, wanted: &Plan) -> Vec<Change> {
        let mut changes = Vec::new();
        for number in numbers {
            let device = self.devices.get(number);
            let id = found!(self.turn.defects, device, "disk to open anew").facts().id.clone();
            let Some(plan) = wanted.disk(&id).cloned() else { continue };
            // What cannot be looked at is told when it is opened.
            if let Named::Another = self.named(number) {
                changes.push(Change::Remove { kind: DeviceKind::Disk, id });
                changes.push(Change::Add(Box::new(DevicePlan::Disk(plan))));
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests;
