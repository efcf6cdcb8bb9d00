//! What is said of disks whose requests wait for space, or for a medium that fails.
//!
//! A line in the log when it begins and when it is over, be it that requests go on or that an operator had them
//! fail, and what is shown meanwhile. Not here: which requests wait, and when they are tried again (`sidecore`,
//! `stalls`), nor errors of requests that did not wait (`failures`).

use std::time::Instant;

use backend::FaultSnapshot;
use config::Origin;
use config::plan::DiskPlan;
use config::spec::OnFailure;
use tracing::{info, warn};

use crate::device::Device;
use crate::disk::DiskParts;
use crate::failures::since;
use crate::queue::Queue;

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
        let attached = device.queues.iter().filter(|queue| queue.is_attached());
        let (mut full, mut failed) = (0, 0);
        for queue in attached {
            let counters = queue.counters().snapshot();
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

/// What was said of requests that wait, and what their disk had counted then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    stall: Stall,
    faults: FaultSnapshot,
}

impl Said {
    /// Requests that were failed since, because an operator has chosen that: the plan says `error` now.
    fn failed(self, disk: &DiskParts) -> Option<(u64, &'static str)> {
        let came = since(disk.disk.faults(), self.faults);
        let (on, count, field) = match self.stall {
            Stall::Full(_) => (disk.plan.on_full, came.enospc, "on_full"),
            Stall::Failed(_) => (disk.plan.on_error, came.eio + came.other, "on_error"),
        };
        (on == OnFailure::Error && count > 0).then_some((count, field))
    }

    /// What is to be said when none waits any more, and whether that is bad.
    fn over(self, disk: &DiskParts, is_served: bool) -> (bool, String) {
        match self.failed(disk) {
            Some((count, field)) => {
                let requests =
                    if count == 1 { "1 request was" } else { &format!("{count} requests were") };
                (
                    true,
                    format!(
                        "{requests} failed, since `{field}` is \"error\" now; none waits any more"
                    ),
                )
            }
            None if is_served => (false, "its requests go on".to_string()),
            None => {
                let text = "its queues stop; requests that still waited are in their record, for \
                            whoever serves them next, or have ended with an error";
                (false, text.to_string())
            }
        }
    }
}

/// A queue of the device has begun to wait, or has ceased to, or is back.
pub(crate) fn say(device: &mut Device, now: Instant) {
    let stall = Stall::of(device);
    let is_served = device.queues.iter().any(Queue::is_attached);
    let Some(disk) = device.kind.disk_mut() else { return };
    let before = disk.stall_said;
    let faults = disk.disk.faults();
    let is_same = before.map(|said| std::mem::discriminant(&said.stall))
        == stall.map(|stall| std::mem::discriminant(&stall));
    if is_same {
        return;
    }
    disk.stall_said = stall.map(|stall| Said { stall, faults });
    let (is_bad, words) = match (stall, before) {
        (Some(stall), _) => (true, stall.problem(&disk.plan)),
        (None, Some(said)) => said.over(disk, is_served),
        (None, None) => return,
    };
    if is_bad && stall.is_none() {
        // Those that this line tells of.
        disk.failures.were_told(faults, now);
    }
    if !device.may_log(now) {
        return;
    }
    let id = &device.facts.id;
    match is_bad {
        true => warn!(disk = id, "{words}"),
        false => info!(disk = id, "{words}"),
    }
}
