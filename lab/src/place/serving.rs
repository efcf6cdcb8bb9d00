//! Processor time of every thread that serves the guests' I/O: those of the server, those of the guests'
//! QEMU but its vCPU's, and the kernel's vhost threads.

use std::path::Path;

/// The programs whose threads count.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) pids: Vec<u32>,
}

/// The kernel's threads that serve NICs of these programs. Before Linux 6.4 they are nobody's threads, and stay
/// where they like; since then they are the program's, as all others are.
pub(crate) fn vhost_threads(pids: &[u32]) -> Vec<u32> {
    let names: Vec<String> = pids.iter().map(|pid| format!("vhost-{pid}\n")).collect();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_one = |entry: &std::fs::DirEntry| {
        std::fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| names.contains(&comm))
    };
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            is_one(&entry).then_some(pid)
        })
        .collect()
}

impl Serving {
    /// So far, nanoseconds. A thread that ended is no longer in it.
    pub(crate) fn cpu_ns(&self) -> u64 {
        let of = |pid: &u32| {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
            tasks.into_iter().flatten().flatten().filter_map(|task| of_thread(&task.path()))
        };
        self.pids.iter().flat_map(of).sum()
    }
}

fn of_thread(task: &Path) -> Option<u64> {
    let name = std::fs::read_to_string(task.join("comm")).ok()?;
    if name.starts_with("CPU ") {
        return None;
    }
    let times = std::fs::read_to_string(task.join("schedstat")).ok()?;
    times.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_this_process_is_there_and_grows() {
        let own = Serving { pids: vec![std::process::id()] };
        let before = own.cpu_ns();
        let work = (0..3_000_000u64).fold(1, |sum: u64, at| sum.wrapping_mul(at | 1));
        assert!(own.cpu_ns() > before, "{work}");
        assert_eq!(Serving { pids: vec![u32::MAX] }.cpu_ns(), 0);
    }
}
