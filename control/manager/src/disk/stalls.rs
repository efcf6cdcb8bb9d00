//! What is said of disks whose requests wait for space, or for a medium that fails.
//!
//! A line in the log when it begins and when it is over, be it that requests go on or that an operator had them
//! fail, and what is shown meanwhile. Not here: which requests wait, and when they are tried again (`sidecore`,
//! `stalls`), nor errors of requests that did not wait (`failures`).

use backend::FaultSnapshot;
use config::Origin;
use config::plan::DiskPlan;
use config::spec::OnFailure;

use crate::devices::queue::Queue;
use crate::disk::failures::since;

/// Why requests of a disk wait, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stall {
    /// There is no space; some may wait for the medium, too.
    Full(u64),
    /// The medium fails.
    Failed(u64),
}

impl Stall {
    /// As the counters of those queues have it that are attached.
    pub(crate) fn of(queues: &[Queue]) -> Option<Stall> {
        let attached = queues.iter().filter(|queue| queue.is_attached());
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
    /// Some of them are in no in-flight record.
    is_unrecorded: bool,
}

impl Said {
    /// Requests that were failed since, because an operator has chosen that: the plan says `error` now.
    fn failed(self, (plan, faults): (&DiskPlan, FaultSnapshot)) -> Option<(u64, &'static str)> {
        let came = since(faults, self.faults);
        let (on, count, field) = match self.stall {
            Stall::Full(_) => (plan.on_full, came.enospc, "on_full"),
            Stall::Failed(_) => (plan.on_error, came.eio + came.other, "on_error"),
        };
        (on == OnFailure::Error && count > 0).then_some((count, field))
    }

    /// What is to be said when none waits any more, and whether that is bad.
    fn over(self, now: (&DiskPlan, FaultSnapshot), is_served: bool) -> (bool, String) {
        match self.failed(now) {
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
            None if self.is_unrecorded => {
                let text = "its queues stop; requests that still waited have ended with an error, since their \
                            front-end keeps no in-flight record";
                (true, text.to_string())
            }
            None => {
                let text = "its queues stop; requests that still waited are in their record, for \
                            whoever serves them next, or have ended with an error";
                (false, text.to_string())
            }
        }
    }
}

/// What is to be said of requests that wait now, and whether that is bad; nothing, if that was said.
#[derive(Clone, Debug)]
pub(crate) struct News {
    /// Nothing waits any more.
    pub(crate) is_over: bool,
    pub(crate) is_bad: bool,
    pub(crate) words: String,
}

/// Compares with what was `said`, which becomes what is said now.
pub(crate) fn look(
    said: &mut Option<Box<Said>>,
    (queues, is_unrecorded): (&[Queue], bool),
    (plan, faults): (&DiskPlan, FaultSnapshot),
) -> Option<News> {
    let (stall, before) = (Stall::of(queues), said.as_deref().copied());
    let kind = |stall: Option<Stall>| stall.as_ref().map(std::mem::discriminant);
    if kind(before.map(|said| said.stall)) == kind(stall) {
        return None;
    }
    *said = stall.map(|stall| Box::new(Said { stall, faults, is_unrecorded }));
    let (is_bad, words) = match (stall, before) {
        (Some(stall), _) => (true, stall.problem(plan)),
        (None, before) => before?.over((plan, faults), queues.iter().any(Queue::is_attached)),
    };
    Some(News { is_over: stall.is_none(), is_bad, words })
}
