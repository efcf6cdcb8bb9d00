//! A machine that stands still now and then (`--stutter`): all that cases have started is stopped for some seconds, again
//! and again. For whoever wants to know that no case fails because of it.
//!
//! By the kernel's freezer of control groups, the second version's or the first one's. Builds go on.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use testing::clock::now_ns;
use testing::daemon::pause;
use testing::load::Random;

/// The variable that names the group which a case joins.
pub const GROUP: &str = "SUITE_STUTTER_GROUP";
/// What the name of a group begins with; the number of its runner follows.
const PREFIX: &str = "sidecore-test-";
/// How often what must be done is tried, a tenth of a second apart.
const TRIES: u32 = 100;
/// Where groups of either version are, with the file that stops one, and what is written to it.
const FREEZERS: [Freezer; 3] = [
    Freezer { root: "/sys/fs/cgroup", file: "cgroup.freeze", stop: "1", go_on: "0" },
    Freezer { root: "/sys/fs/cgroup/unified", file: "cgroup.freeze", stop: "1", go_on: "0" },
    Freezer {
        root: "/sys/fs/cgroup/freezer",
        file: "freezer.state",
        stop: "FROZEN",
        go_on: "THAWED",
    },
];
/// Least and most seconds between two stops.
const RUNS: (u64, u64) = (15, 45);
/// Most seconds that all is stopped: CI's machine was seen to stand still for 20.
const STANDS_MAX: u64 = 20;

#[derive(Clone, Copy, Debug)]
struct Freezer {
    root: &'static str,
    file: &'static str,
    stop: &'static str,
    go_on: &'static str,
}

/// A group that is stopped now and then, until this is dropped.
#[derive(Debug)]
pub struct Stutter {
    folder: PathBuf,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<Vec<u64>>>,
}

impl Stutter {
    /// Makes the group, and begins.
    ///
    /// # Errors
    /// There is no such group to be had: it takes root.
    pub fn start() -> Result<Stutter> {
        let name = format!("{PREFIX}{}", std::process::id());
        let made = |freezer: &&Freezer| {
            let folder = Path::new(freezer.root).join(&name);
            let is_made = std::fs::create_dir(&folder).is_ok();
            let has_file = is_made && folder.join(freezer.file).exists();
            if is_made && !has_file {
                let _ = std::fs::remove_dir(&folder);
            }
            has_file
        };
        let freezer = *FREEZERS.iter().find(made).context(
            "--stutter: no control group that can be frozen could be made below /sys/fs/cgroup: it takes root",
        )?;
        let folder = Path::new(freezer.root).join(name);
        let (end, ended) = channel();
        let file = folder.join(freezer.file);
        let mut random = Random(now_ns().max(1));
        let thread = std::thread::spawn(move || {
            let mut stood = Vec::new();
            let mut runs = || RUNS.0 + random.below(RUNS.1 - RUNS.0 + 1);
            while ended.recv_timeout(Duration::from_secs(runs())) == Err(RecvTimeoutError::Timeout)
            {
                let stands = 1 + runs() % STANDS_MAX;
                let is_stopped = std::fs::write(&file, freezer.stop).is_ok();
                let _ = ended.recv_timeout(Duration::from_secs(stands));
                go_on(&file, &freezer);
                stood.extend(is_stopped.then_some(stands));
            }
            stood
        });
        Ok(Stutter { folder, end: Some(end), thread: Some(thread) })
    }

    /// What a case is told to join.
    pub fn group(&self) -> &Path {
        &self.folder
    }

    /// Ends it: for how many seconds all stood still, each time.
    pub fn finish(mut self) -> Vec<u64> {
        self.end()
    }

    fn end(&mut self) -> Vec<u64> {
        drop(self.end.take());
        let stood = self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        // Once nobody is in it.
        let _ = std::fs::remove_dir(&self.folder);
        stood
    }
}

impl Drop for Stutter {
    fn drop(&mut self) {
        self.end();
    }
}

/// Has all go on: nothing else may end what is frozen, so it is tried again.
fn go_on(file: &Path, freezer: &Freezer) {
    for _ in 0..TRIES {
        if std::fs::write(file, freezer.go_on).is_ok() {
            return;
        }
        pause(Duration::from_millis(100));
    }
}

/// Removes groups of runs that were killed, with all that is in them: it may be frozen, and would stay so.
pub fn sweep() {
    for freezer in FREEZERS {
        for entry in std::fs::read_dir(freezer.root).into_iter().flatten().flatten() {
            let (name, folder) = (entry.file_name(), entry.path());
            let owner =
                name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
            let file = folder.join(freezer.file);
            let is_gone = owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
            if !is_gone || !file.exists() {
                continue;
            }
            // What is killed while it is frozen ends when it goes on.
            for _ in 0..TRIES {
                let inside =
                    std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
                let inside = inside.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
                for pid in inside {
                    let _ = kill_process(pid, Signal::KILL);
                }
                // Of another user's, nothing can be.
                if std::fs::write(&file, freezer.go_on).is_err()
                    || std::fs::remove_dir(&folder).is_ok()
                {
                    break;
                }
                pause(Duration::from_millis(100));
            }
        }
    }
}

/// Joins the group that this process was told to join, if it was.
///
/// # Errors
/// It cannot.
pub fn join() -> Result<()> {
    let Some(group) = std::env::var_os(GROUP) else { return Ok(()) };
    let file = Path::new(&group).join("cgroup.procs");
    std::fs::write(&file, "0").with_context(|| format!("joining {}", file.display()))
}
