//! Facts of a block device that only sysfs and procfs tell.
//!
//! Called by `open`. Where a fact cannot be read, the answer is no.

use std::fs;
use std::path::PathBuf;

use rustix::fs::{Stat, major, minor, stat};

use crate::Grain;

/// Whether it takes discards, as its queue says; a partition has its disk's queue.
pub(super) fn discards(of: &Stat) -> bool {
    let folder = folder(&number(of.st_rdev));
    ["queue", "../queue"].iter().any(|queue| {
        let file = folder.join(queue).join("discard_max_bytes");
        fs::read_to_string(file).is_ok_and(|text| text.trim() != "0")
    })
}

/// Its physical block size, bytes, and how it is best used, as its queue says. 0 where that says nothing.
pub(super) fn grain(of: &Stat) -> (u32, Grain) {
    let folder = folder(&number(of.st_rdev));
    let read = |file: &str| {
        let text = fs::read_to_string(folder.join(file)).ok()?;
        text.trim().parse::<u32>().ok()
    };
    // A partition has its disk's queue.
    let queue = |file: &str| {
        read(&format!("queue/{file}")).or_else(|| read(&format!("../queue/{file}"))).unwrap_or(0)
    };
    let grain = Grain {
        // Of a device that has been put together wrongly it is -1.
        alignment_offset: read("alignment_offset").unwrap_or(0),
        io_min: queue("minimum_io_size"),
        io_best: queue("optimal_io_size"),
        discard: queue("discard_granularity"),
    };
    (queue("physical_block_size"), grain)
}

/// Whether the host itself uses it, or a partition of it: mounted, swapped to, or part of a RAID, a
/// volume group, a loop or multipath device.
pub(super) fn is_used_by_host(of: &Stat) -> bool {
    let own = number(of.st_rdev);
    let parts = fs::read_dir(folder(&own)).into_iter().flatten().flatten().filter_map(|entry| {
        let is_part = entry.path().join("partition").exists();
        is_part.then(|| fs::read_to_string(entry.path().join("dev")).ok()).flatten()
    });
    let mut devices: Vec<String> = parts.map(|number| number.trim().to_owned()).collect();
    devices.push(own);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mounted = mounts.lines().filter_map(|line| line.split_whitespace().nth(2));
    let swapped = swaps
        .lines()
        .skip(1)
        .filter_map(|line| Some(number(stat(line.split_whitespace().next()?).ok()?.st_rdev)));
    mounted.map(str::to_owned).chain(swapped).any(|number| devices.contains(&number))
        || devices.iter().any(|number| {
            let mut holders = fs::read_dir(folder(number).join("holders")).into_iter().flatten();
            holders.next().is_some()
        })
}

fn number(device: u64) -> String {
    format!("{}:{}", major(device), minor(device))
}

fn folder(number: &str) -> PathBuf {
    PathBuf::from("/sys/dev/block").join(number)
}
