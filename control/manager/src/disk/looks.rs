//! A look once a second at all disks, while one is served: whose guests are given errors, or wait for an IOhost, and what
//! of them could not be kept.
//!
//! Not here: what is said of errors (`failures`).

use std::time::Instant;

use config::Plan;
use tracing::{info, warn};

use crate::devices::Devices;
use crate::devices::device::Device;
use crate::devices::queue::Queue;
use crate::disk::bonds::Bonds;
use crate::disk::failures::{News, words};

/// Whether one is served.
pub(crate) fn is_any(devices: &Devices) -> bool {
    let is_served =
        |device: &Device| device.disk().is_some() && device.queues().iter().any(Queue::is_attached);
    devices.values().any(is_served)
}

/// Says whose guests are given errors. What could not be kept is tried again.
pub(crate) fn look(devices: &mut Devices, now: Instant, (bonds, plan): (&mut Bonds, &Plan)) {
    let is_unkept =
        |device: &&Device| device.disk().is_some_and(|disk| disk.bond.unkept_why().is_some());
    let unkept = devices.values().filter(is_unkept).map(|device| device.number());
    for number in unkept.collect::<Vec<u32>>() {
        devices.keep_begun(number, bonds, plan);
    }
    for device in devices.values_mut() {
        device.say_remote(now);
        let Some(disk) = device.disk_mut() else { continue };
        let Some(news) = disk.failures.look(disk.disk.faults(), now) else { continue };
        if !device.may_log(now) {
            continue;
        }
        let (id, words) = (&device.facts().id, words(news));
        match news {
            News::Begun(_) => warn!(disk = id, "{words}"),
            News::Over(_) => info!(disk = id, "{words}"),
        }
    }
}

#[cfg(test)]
mod tests;
