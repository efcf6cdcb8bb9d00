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
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let comm = std::fs::read_to_string(entry.path().join("comm")).ok()?;
            is_vhost_of(&comm, pids).then_some(pid)
        })
        .collect()
}

fn is_vhost_of(comm: &str, pids: &[u32]) -> bool {
    let of = comm.trim_end().strip_prefix("vhost-").and_then(|pid| pid.parse().ok());
    of.is_some_and(|pid: u32| pids.contains(&pid))
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
    use std::process::Command;
    use std::time::Duration;

    use super::*;
    use crate::waiting;

    #[test]
    fn time_of_a_program_that_works_is_there_and_grows() {
        // Not this process: of its threads some end meanwhile, and their time with them.
        let mut works = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let served = Serving { pids: vec![works.id()] };
        // From one look to another, between which it may have to wait for a CPU.
        let mut before = 0;
        let grown = waiting::until("more time", Duration::from_secs(60), || {
            let grown = before > 0 && served.cpu_ns() > before;
            before = served.cpu_ns();
            Ok(grown.then_some(()))
        });
        let _ = works.kill();
        let _ = works.wait();
        grown.unwrap();
        assert_eq!(Serving { pids: vec![u32::MAX] }.cpu_ns(), 0);
    }

    #[test]
    fn threads_of_the_kernel_are_known_by_whom_they_serve() {
        let is_one = |comm| is_vhost_of(comm, &[77, 8]);
        assert!(is_one("vhost-77\n") && is_one("vhost-8\n"));
        assert!(!is_one("vhost-7\n") && !is_one("vhost-\n") && !is_one("kvm-77\n"));
    }
}
