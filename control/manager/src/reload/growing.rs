//! What devices that stay come to need by a reload: promised as one sum, beside what it adds, before anything is done.
//!
//! Not here: what is promised to each when it is done (`apply`, `resizing`).

use config::Change;
use config::api::{ApiError, ErrorKind};
use config::plan::DevicePlan;

use crate::bounds::{Bounds, Claim, needs_more};
use crate::devices::Devices;
use crate::devices::device::Device;

/// The devices that come to need more than they were promised, as they are and as they are to be.
pub(super) struct Growing(Vec<(DevicePlan, DevicePlan)>);

impl Growing {
    /// Those of them that are open: to others nothing was promised. What others give back is not counted, since it is
    /// given back later.
    pub(super) fn of(changes: &[Change], devices: &Devices) -> Growing {
        let mut all: Vec<(DevicePlan, DevicePlan)> = Vec::new();
        for change in changes {
            let id = match change {
                Change::Set(after, _) => after.id(),
                Change::Resize { id, .. } => id,
                _ => continue,
            };
            let device = devices.number_of(id).and_then(|number| devices.get(number));
            let Some(before) = device.map(Device::plan) else { continue };
            match change {
                Change::Set(after, _) => all.push((before, (**after).clone())),
                // What is set has its new size, too.
                Change::Resize { size_bytes, .. } if all.iter().all(|(it, _)| it.id() != id) => {
                    let mut after = before.clone();
                    if let DevicePlan::Disk(disk) = &mut after {
                        disk.resized(*size_bytes);
                    }
                    all.push((before, after));
                }
                _ => {}
            }
        }
        all.retain(|(before, after)| needs_more(before, after));
        Growing(all)
    }

    /// What they are, as they were promised what they have.
    pub(super) fn before(&self) -> impl Iterator<Item = &DevicePlan> {
        self.0.iter().map(|(before, _)| before)
    }

    /// Promises all of them what they come to need, while what they have is lent.
    ///
    /// # Errors
    /// The first for which too little is left beside those before it.
    pub(super) fn promise(&self, bounds: &Bounds) -> Result<Vec<Claim>, ApiError> {
        let promise = |(_, after): &(DevicePlan, DevicePlan)| {
            bounds.promise(after).map_err(|why| {
                let error = format!("{}: {why}", after.title());
                let hint =
                    "give its trace fewer `entries`, or make it smaller; nothing was changed";
                ApiError::new(ErrorKind::Refused, error, hint)
            })
        };
        self.0.iter().map(promise).collect()
    }
}

#[cfg(test)]
mod tests;
