//! SPDK's bdevperf over its virtio-user driver: what it is told, and what its table says.
//!
//! Its memory is one file of huge pages, since a front-end of SPDK shares at most eight.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::Job;
use crate::spdk::CLIENT_MIB;

/// The file that says which disk.
pub(super) fn file(socket: &Path) -> String {
    let disk = json!({
        "method": "bdev_virtio_attach_controller",
        "params": {
            "name": "disk",
            "dev_type": "blk",
            "trtype": "user",
            "traddr": socket,
            "vq_count": 1,
            "vq_size": 512,
        },
    });
    json!({ "subsystems": [{ "subsystem": "bdev", "config": [disk] }] }).to_string()
}

/// Its options. It counts whole seconds, and has no time that is not measured.
pub(super) fn arguments(job: &Job, file: &Path) -> Vec<String> {
    let Job { core, is_write, depth, block_bytes, times_ms: [_, measured_ms], .. } = job;
    let workload = if *is_write { "randwrite" } else { "randread" };
    let seconds = measured_ms.div_ceil(1000);
    let words = format!(
        "-q {depth} -o {block_bytes} -w {workload} -t {seconds} -m [{core}] -s {CLIENT_MIB} \
         --single-file-segments --no-pci --disable-cpumask-locks -r bdevperf.sock --json"
    );
    words.split_whitespace().map(str::to_owned).chain([file.display().to_string()]).collect()
}

/// Requests a second of all its jobs: the line `Total`, where IOPS are seven columns before the end.
pub(super) fn rate(text: &str) -> Result<f64> {
    let heads = text.lines().any(|line| line.contains("IOPS") && line.contains("Fail/s"));
    ensure!(heads, "bdevperf printed no table that is known here: {text}");
    let mut lines = text.lines().map(|line| line.trim_start_matches(['\r', ' ']));
    let total = lines.rfind(|line| line.starts_with("Total"));
    let total = total.with_context(|| format!("bdevperf printed no total: {text}"))?;
    let numbers = total.rsplit(':').next().unwrap_or_default().split_whitespace();
    let numbers: Vec<f64> = numbers.filter_map(|word| word.parse().ok()).collect();
    // IOPS, MiB/s, Fail/s, TO/s, Average, min, max; before them may stand for how long it ran.
    let first = numbers.len().checked_sub(7).context("bdevperf's total has too few columns")?;
    let (iops, failed, late) = (numbers[first], numbers[first + 2], numbers[first + 3]);
    ensure!(failed == 0.0, "bdevperf had {failed} requests a second fail");
    ensure!(late == 0.0, "bdevperf had {late} requests a second time out");
    ensure!(iops > 0.0, "bdevperf had no request answered");
    Ok(iops)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of SPDK 24.01 on a null disk, from a page on tracing it.
    const SAID: &str = include_str!("bdevperf/said.txt");

    #[test]
    fn the_total_is_read() {
        assert_eq!(rate(SAID).unwrap(), 12_463_996.06);
        // With the time in the line, as jobs have it.
        let timed = SAID.replace("Total                       :           ", "Total : 5.00 ");
        assert_eq!(rate(&timed).unwrap(), 12_463_996.06);
    }

    #[test]
    fn requests_that_failed_and_other_tables_are_failures() {
        let failed = SAID.replace("48687.48       0.00     0.00", "48687.48       2.50     0.00");
        let said = rate(&failed).unwrap_err().to_string();
        assert_eq!(said, "bdevperf had 2.5 requests a second fail");
        let late = SAID.replace("48687.48       0.00     0.00", "48687.48       0.00     1.00");
        assert!(rate(&late).unwrap_err().to_string().contains("time out"));
        assert!(rate("NVMe0n1 : 103938.83 IO/s").is_err());
        let cut = SAID.replace("Total", "Totals of").replace("Totals of", "None");
        assert!(rate(&cut).unwrap_err().to_string().contains("no total"));
    }

    #[test]
    fn it_counts_whole_seconds_and_names_its_disk() {
        let job = Job {
            socket: "/run/disk.sock".into(),
            core: 1,
            is_write: false,
            depth: 128,
            block_bytes: 4096,
            times_ms: [100, 400],
        };
        let words = arguments(&job, Path::new("/run/a.json")).join(" ");
        assert!(words.starts_with("-q 128 -o 4096 -w randread -t 1 -m [1] "), "{words}");
        assert!(words.ends_with(" --json /run/a.json"), "{words}");
        let file: serde_json::Value = serde_json::from_str(&file(&job.socket)).unwrap();
        let disk = &file["subsystems"][0]["config"][0];
        assert_eq!(disk["method"], "bdev_virtio_attach_controller");
        assert_eq!(disk["params"]["traddr"], "/run/disk.sock");
    }
}
