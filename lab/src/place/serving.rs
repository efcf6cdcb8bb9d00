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
    use std::process::Command;
    use std::time::Duration;

    use super::super::waiting;
    use super::*;

    #[test]
    fn time_of_a_program_that_works_is_there_and_grows() {
        // Not this process: of its threads some end meanwhile, and their time with them.
        let mut works = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let served = Serving { pids: vec![works.id()] };
        let grown = waiting::until("more time", Duration::from_secs(20), || {
            let before = served.cpu_ns();
            Ok((before > 0 && served.cpu_ns() > before).then_some(()))
        });
        let _ = works.kill();
        let _ = works.wait();
        grown.unwrap();
        assert_eq!(Serving { pids: vec![u32::MAX] }.cpu_ns(), 0);
    }
}
