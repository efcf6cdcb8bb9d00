//! CPU of a daemon with a thousand attached queues that have no work: as many devices of one queue.
//!
//! By the kernel's own count (`/proc/PID/task/*/schedstat`), over all of the time.

use std::time::Duration;

use anyhow::{Result, ensure};
use testing::clock::now_ns;
use testing::frontend::{FrontendSpec, LINUX_FEATURES};
use testing::report::Row;
use testing::server::CpuTime;
use virtqueue::driver::RingSpec;

use super::daemon::{Daemon, Disk};
use super::{Options, USUAL_RING, row};

const DEVICES: u16 = 1000;
/// Parts of the time, for the spread.
const PARTS: u32 = 5;
/// From the last attach until the sidecore has come to rest, with room for a slow machine.
const SETTLE: Duration = Duration::from_secs(1);

pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    eprintln!("bench: schedule.idle1000: attaching {DEVICES} devices");
    let ids: Vec<String> = (0..DEVICES).map(|number| format!("idle{number}")).collect();
    let disks: Vec<Disk> = ids.iter().map(|id| Disk::null(id.clone(), 1)).collect();
    let daemon = Daemon::start(options, "idle1000", "", &disks)?;
    let spec = FrontendSpec {
        memory_bytes: 64 << 10,
        ring: RingSpec { indirect_entries: 0, ..USUAL_RING },
        features: LINUX_FEATURES,
        ..FrontendSpec::default()
    };
    // Attached for as long as it is measured.
    let _idle = daemon.frontends(&ids, &spec)?;
    let queues = daemon.counters()?.queues;
    ensure!(queues == DEVICES, "{queues} queues are attached instead of {DEVICES}");
    wait(SETTLE);
    let part = Duration::from_secs(if options.quick { 3 } else { 10 }) / PARTS;
    eprintln!("bench: schedule.idle1000: watching for {} s", (part * PARTS).as_secs());
    let first = Look::now(&daemon)?;
    let known = first.cpu.iter().all(|cpu| cpu.used_ns > 0);
    ensure!(known, "the kernel does not tell the CPU time of threads (schedstat)");
    let (mut last, mut parts) = (first, Vec::new());
    for _ in 0..PARTS {
        wait(part);
        let now = Look::now(&daemon)?;
        parts.push(now.percent_since(last));
        last = now;
    }
    let all = last.percent_since(first);
    let told = |what: &str, which: usize| {
        let values: Vec<f64> = parts.iter().map(|part| part[which]).collect();
        // Not the median of the parts: what happens in one of them counts too.
        Row { value: all[which], ..row(format!("idle1000.{what}"), "%", &values) }
    };
    Ok(vec![told("cpu_percent", 0), told("sidecore_percent", 1)])
}

/// CPU time of the whole process and of its sidecore at one moment.
#[derive(Clone, Copy)]
struct Look {
    at_ns: u64,
    cpu: [CpuTime; 2],
}

impl Look {
    fn now(daemon: &Daemon) -> Result<Look> {
        Ok(Look { cpu: daemon.cpu()?, at_ns: now_ns() })
    }

    /// Parts of one core, percent.
    fn percent_since(&self, before: Look) -> [f64; 2] {
        let elapsed_ns = self.at_ns.saturating_sub(before.at_ns).max(1) as f64;
        let used = |which: usize| self.cpu[which].since(before.cpu[which]).used_ns as f64;
        [0, 1].map(|which| used(which) * 100.0 / elapsed_ns)
    }
}

#[expect(clippy::disallowed_methods, reason = "nothing happens for as long as it should")]
fn wait(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percent_is_of_one_core() {
        let cpu = |used_ns| CpuTime { used_ns, waited_ns: 0 };
        let before = Look { at_ns: 1_000, cpu: [cpu(50), cpu(0)] };
        let after = Look { at_ns: 2_000, cpu: [cpu(2_050), cpu(5)] };
        assert_eq!(after.percent_since(before), [200.0, 0.5]);
        assert_eq!(before.percent_since(before), [0.0, 0.0]);
    }
}
