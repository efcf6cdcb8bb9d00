//! A case as a process: started in a session of its own, ended when its time is over, with all that it started.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use testing::clock::now_ns;

use crate::suite::choose::Chosen;
use crate::suite::found::End;
use crate::suite::programs::{PROGRAMS, Programs};
use crate::suite::session::{Sessions, kill_rest, signal_all, worked_seconds};
use crate::suite::stutter;
use crate::suite::{Raw, What};

/// This program, also when cargo has put another one in its place.
const SELF: &str = "/proc/self/exe";
/// So many times as long as usual a case may run, on whatever machine.
const SLOWER: u64 = 20;
/// With `--all` a case may run so many times as long.
const LONGER: u64 = 24;
/// For so many seconds a case whose time is over may tidy up.
const TIDYING_SECONDS: u64 = 60;

/// What a case's environment is made of.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// The repository.
    pub root: PathBuf,
    /// What is built and downloaded, and logs.
    pub build: PathBuf,
    /// The daemon.
    pub daemon: PathBuf,
    /// Whether what is slow is done too.
    pub all: bool,
}

/// A command that becomes these words, in a session of its own, and dies with the thread that starts it.
pub fn apart(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(SELF);
    command.arg("--apart").args(words);
    command
}

/// Leaves the session and the process group of whoever started this process, and dies with it.
///
/// # Errors
/// The kernel's.
pub fn leave() -> Result<()> {
    stutter::join()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::setsid().context("this process has a session of its own already")?;
    Ok(())
}

/// Becomes the program that the words name.
///
/// # Errors
/// There is no such program.
pub fn become_program(words: &[String]) -> Result<()> {
    leave()?;
    let (program, words) = words.split_first().context("--apart: which program?")?;
    Err(Command::new(program).args(words).exec()).with_context(|| format!("starting {program}"))
}

/// The command that is a case, in its `folder`.
///
/// # Errors
/// Its program was not built.
pub fn command(
    chosen: &Chosen,
    of: &Surroundings,
    programs: &Programs,
    folder: &Path,
) -> Result<Command> {
    let case = chosen.case();
    let mut command = match case.what {
        What::Run(_) => {
            let mut command = Command::new(SELF);
            command.args(["--case", &chosen.name()]).arg(folder).args(chosen.checks());
            command
        }
        What::Raw(raw) => {
            let program = programs.tests(raw.package, raw.program)?;
            let mut command = apart([&program.path]);
            command.args(raw_words(&raw, chosen.checks())).current_dir(&program.folder);
            command
        }
        What::Command(words) => apart(words),
        What::Shell => {
            let mut command = apart([of.root.join("x")]);
            command.args(["test-shell", chosen.group().name]);
            command.args(Some(case.name).filter(|name| !name.is_empty())).args(chosen.checks());
            command
        }
    };
    if !matches!(case.what, What::Raw(_)) {
        command.current_dir(&of.root);
    }
    let yes = if of.all { "yes" } else { "" };
    command
        .env("SIDECORE_CONFINE", "strict")
        .env("RUST_LIB_BACKTRACE", "0")
        .env("TEST_ALL", yes)
        .env("JUDGE_TIMES", std::env::var_os("JUDGE_TIMES").unwrap_or(yes.into()))
        .env("SIDECORE", &of.daemon)
        .env("SIDECORE_BIN", &of.daemon)
        .env("ROOT", &of.root)
        .env("BUILD", &of.build)
        .env(PROGRAMS, of.build.join("test").join("programs"))
        .env("TEST_DIR", folder)
        .env("TMPDIR", folder);
    Ok(command)
}

/// The words of a program of tests.
fn raw_words(raw: &Raw, checks: &[String]) -> Vec<String> {
    let mut words: Vec<String> = match (raw.module, checks) {
        ("", checks) => checks.to_vec(),
        (module, []) => vec![format!("{module}::")],
        (module, checks) => checks.iter().map(|check| format!("{module}::{check}")).collect(),
    };
    words.extend(raw.words.iter().map(|word| (*word).to_owned()));
    words.push("--nocapture".to_owned());
    words.extend(raw.threads.map(|threads| format!("--test-threads={threads}")));
    words
}

/// After how many seconds a case is ended.
pub fn bound_seconds(chosen: &Chosen, all: bool) -> u64 {
    let case = chosen.case();
    case.bound_seconds.max(SLOWER * case.usual_seconds) * if all { LONGER } else { 1 }
}

/// A case that runs.
#[derive(Debug)]
pub struct Running {
    process: Child,
    leader: Pid,
    start_ns: u64,
}

impl Running {
    /// Starts it; what it prints is added to `log`.
    ///
    /// # Errors
    /// The log cannot be opened, or the process cannot be started.
    pub fn start(mut command: Command, log: &Path, sessions: &Sessions) -> Result<Running> {
        let log = File::options().create(true).append(true).open(log)?;
        let process = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting a case")?;
        let leader = Pid::from_child(&process);
        sessions.add(leader);
        Ok(Running { process, leader, start_ns: now_ns() })
    }

    /// Waits for its end, which comes when its time is over at the latest. Nothing that it started is left.
    ///
    /// # Errors
    /// The kernel's.
    pub fn end(mut self, bound_seconds: u64, sessions: &Sessions) -> Result<End> {
        let was_ended = !self.is_over_in(bound_seconds)?;
        if was_ended {
            signal_all(self.leader, Signal::TERM);
            self.is_over_in(TIDYING_SECONDS)?;
        }
        kill_rest(self.leader);
        let worked_seconds = worked_seconds(self.leader);
        // Once it has been waited for, its number may be anybody's.
        sessions.remove(self.leader);
        let status: ExitStatus = self.process.wait()?;
        let seconds = (now_ns() - self.start_ns) as f64 / 1e9;
        Ok(End { status, was_ended, seconds, worked_seconds })
    }

    fn is_over_in(&self, seconds: u64) -> Result<bool> {
        let descriptor = pidfd_open(self.leader, PidfdFlags::empty())?;
        let until_ns = now_ns() + seconds * 1_000_000_000;
        loop {
            let left_ns = until_ns.saturating_sub(now_ns());
            let left = Timespec {
                tv_sec: (left_ns / 1_000_000_000) as i64,
                tv_nsec: (left_ns % 1_000_000_000) as i64,
            };
            match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&left)) {
                Ok(0) if left_ns == 0 => return Ok(false),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: Raw = Raw {
        package: "tests",
        program: "hostile",
        module: "bad_rings",
        words: &["--ignored"],
        threads: Some(1),
    };

    #[test]
    fn a_module_or_some_of_its_tests_are_run() {
        let words = |raw: &Raw, checks: &[&str]| {
            let checks: Vec<String> = checks.iter().map(|check| (*check).to_owned()).collect();
            raw_words(raw, &checks).join(" ")
        };
        assert_eq!(words(&RAW, &[]), "bad_rings:: --ignored --nocapture --test-threads=1");
        assert_eq!(
            words(&RAW, &["b01", "b02"]),
            "bad_rings::b01 bad_rings::b02 --ignored --nocapture --test-threads=1"
        );
        let all = Raw { module: "", words: &[], threads: None, ..RAW };
        assert_eq!(words(&all, &[]), "--nocapture");
    }

    /// Not by `apart`: this program is not `suite`.
    fn started(script: &str, log: &Path) -> Running {
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", script]);
        Running::start(command, log, &Sessions::default()).unwrap()
    }

    #[test]
    fn a_case_whose_time_is_over_may_tidy_up() {
        let folder = testing::scratch::Scratch::new(&std::env::temp_dir(), "child-over").unwrap();
        let log = folder.path().join("log");
        let script = "trap 'echo tidied; exit 3' TERM; echo begun; while :; do sleep 0.05; done";
        let case = started(script, &log);
        testing::daemon::await_that("the trap to be set", || {
            Ok(std::fs::read_to_string(&log)?.starts_with("begun"))
        })
        .unwrap();
        let end = case.end(1, &Sessions::default()).unwrap();
        assert!(end.was_ended && end.seconds >= 1.0, "{end:?}");
        assert_eq!(end.status.code(), Some(3));
        let said = std::fs::read_to_string(&log).unwrap();
        assert!(said.starts_with("begun") && said.ends_with("tidied\n"), "{said}");
    }

    #[test]
    fn a_case_that_ends_is_not_ended() {
        let folder = testing::scratch::Scratch::new(&std::env::temp_dir(), "child-ends").unwrap();
        let case = started("sleep 1000 & exit 4", &folder.path().join("log"));
        let end = case.end(60, &Sessions::default()).unwrap();
        assert_eq!((end.was_ended, end.status.code()), (false, Some(4)));
    }
}
