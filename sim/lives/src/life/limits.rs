//! Limits of disks: over no time does one serve more than its limit allows.

use std::collections::BTreeMap;

use super::host::{Daemon, Host};
use super::lan::HEARD_AFTER;
use crate::core::Core;
use crate::rack;

/// Requests that one of its queues has taken and not ended, at most.
const IN_FLIGHT_MAX: u64 = 8;
/// What may be used at once where nothing else is said, as milliseconds of the limit.
const BURST_MS: u64 = 100;

/// A disk that is limited so, of whose queues each sidecore has heard that after so many passes.
#[derive(Debug)]
pub(super) struct Limited {
    /// Requests a second.
    limit: u32,
    pid: u32,
    heard: Vec<u64>,
    served: u64,
    /// What it has served less than it might have, at most so far: billionths of a request.
    spared: Option<i128>,
}

/// By disk.
pub(super) type Limits = BTreeMap<String, Limited>;

impl Host {
    /// Each disk has served no more than it may since any moment at which its limit was in force.
    ///
    /// # Errors
    /// One has.
    pub(super) fn judge_limits(&mut self, now_ns: u64) -> Result<(), String> {
        let alone = if self.newcomers.is_empty() { &self.daemons[..] } else { &[] };
        let [Daemon { control: Some(control), cores, pid, .. }] = alone else {
            // All queues may be taken back and given to others.
            self.limits.clear();
            return Ok(());
        };
        let heard = || cores.iter().map(|core| core.passes() + HEARD_AFTER).collect();
        for disk in control.plan().disks.iter().filter(|disk| !rack::is_lent(&disk.id)) {
            let limit = disk.spec.limit_iops;
            let (Some(limit), Some(served)) = (limit, control.served(&disk.id)) else {
                self.limits.remove(&disk.id);
                continue;
            };
            let new = || Limited { limit, pid: *pid, heard: heard(), served, spared: None };
            let limited = self.limits.entry(disk.id.clone()).or_insert_with(new);
            if (limited.limit, limited.pid) != (limit, *pid) || served < limited.served {
                *limited = new();
            }
            let is_heard = |(core, passes): (&Core, &u64)| core.passes() >= *passes;
            if cores.iter().zip(&limited.heard).all(is_heard) {
                let queues = u64::from(disk.spec.queues);
                limited
                    .judge(served, queues, now_ns)
                    .map_err(|why| format!("{}: {why}", disk.id))?;
            }
        }
        Ok(())
    }
}

impl Limited {
    fn judge(&mut self, served: u64, queues: u64, now_ns: u64) -> Result<(), String> {
        let per_s = u64::from(self.limit);
        let spared = i128::from(now_ns) * i128::from(per_s) - i128::from(served) * 1_000_000_000;
        let most = *self.spared.insert(self.spared.unwrap_or(spared).max(spared));
        self.served = served;
        // What a queue takes at once is for a millisecond, and for four where nobody waits (`schedule`).
        let ahead =
            per_s * BURST_MS / 1000 + queues * (IN_FLIGHT_MAX + 4 * per_s.div_ceil(1000)) + 1;
        let over = most - spared - i128::from(ahead) * 1_000_000_000;
        if over > 0 {
            let over = over / 1_000_000_000 + 1;
            return Err(format!("{over} requests more were served than {per_s} a second allow"));
        }
        Ok(())
    }
}
