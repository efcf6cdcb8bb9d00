//! Processor time of every thread that serves the guest's I/O: those of the server, and those of the guest's
//! QEMU but its vCPU's; the kernel's vhost threads are among these.

use std::path::Path;

/// The programs whose threads count.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) pids: Vec<u32>,
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
