//! What is said of disks whose requests wait for space, or for a medium that fails.
//!
//! A line in the log when it begins and when it is over, and what is shown meanwhile. Not here: which requests
//! wait, and when they are tried again (`sidecore`, `stalls`).

use config::Origin;
use config::plan::DiskPlan;
use tracing::{info, warn};

use crate::device::Device;
use crate::manager::Manager;

/// Why requests of a disk wait, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stall {
    /// There is no space; some may wait for the medium, too.
    Full(u64),
    /// The medium fails.
    Failed(u64),
}

impl Stall {
    /// As the counters of its attached queues have it.
    pub(crate) fn of(device: &Device) -> Option<Stall> {
        let attached = device.queues.iter().filter(|queue| queue.attached.is_some());
        let (mut full, mut failed) = (0, 0);
        for queue in attached {
            let counters = queue.counters.snapshot();
            full += counters.waiting_full;
            failed += counters.waiting_failed;
        }
        match (full, failed) {
            (0, 0) => None,
            (0, failed) => Some(Stall::Failed(failed)),
            (full, _) => Some(Stall::Full(full)),
        }
    }

    /// What an operator can do about it.
    pub(crate) fn problem(self, disk: &DiskPlan) -> String {
        let fails = |field: &str, option: &str| match &disk.origin {
            Origin::Api => {
                format!("`sidecore disk set {} {option} error` fails them instead", disk.id)
            }
            file => format!("`{field} = \"error\"` in {file} and a reload fail them instead"),
        };
        let waits = |count| match count {
            1 => "1 request waits".to_string(),
            _ => format!("{count} requests wait"),
        };
        match self {
            Stall::Full(count) => format!(
                "there is no space for what its guest writes, and {}: make room where its image is \
                 (delete something, grow the file system, the quota or the thin pool), and they go on by \
                 themselves; {}",
                waits(count),
                fails("on_full", "--on-full")
            ),
            Stall::Failed(count) => format!(
                "its medium fails, and {}: mend it, and they go on by themselves; {}",
                waits(count),
                fails("on_error", "--on-error")
            ),
        }
    }
}

impl Manager {
    /// A queue of the device has begun to wait, or has ceased to.
    pub(crate) fn say_stalls(&mut self, number: u32) {
        let Some(device) = self.devices.get_mut(&number) else { return };
        let now = Stall::of(device);
        let id = device.facts.id.clone();
        let Some(disk) = device.kind.disk_mut() else { return };
        let before = std::mem::replace(&mut disk.stall_said, now);
        let is_news = before.map(|stall| std::mem::discriminant(&stall))
            != now.map(|stall| std::mem::discriminant(&stall));
        let problem = now.map(|stall| stall.problem(&disk.plan));
        if !is_news || !device.may_log() {
            return;
        }
        match problem {
            Some(problem) => warn!(disk = id, "{problem}"),
            None => info!(disk = id, "its requests go on"),
        }
    }
}
