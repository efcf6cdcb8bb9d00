//! L1: a machine that QEMU emulates, with KVM, where the host has none. It runs the lab from the host's own files.
//!
//! One that hangs or dies is ended and started anew; what it has finished stays in the file of rows, and the next one
//! skips it. What L1 does is in `guest/l1_init` and `guest/l1_run`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use testing::server::CpuTime;

use super::said::{Said, printable};
use super::{LOOK, Lab, NOT_ALL, Outcome};
use crate::children::Children;
use crate::place::Choice;
use crate::waiting;

/// A machine is started anew until so many in a row have finished no configuration.
const TRIES: u32 = 3;
/// L1 leaves a beat in its share every few seconds; without one for so long it hangs.
const SILENT: Duration = Duration::from_secs(60);
/// The first comes when it has booted.
const BOOTS: Duration = Duration::from_secs(120);
/// For one experiment, and for one that is quick.
const LIMIT: Duration = Duration::from_secs(5400);
const QUICK_LIMIT: Duration = Duration::from_secs(900);
/// What the machine may write to a file, of which its console is one, and the share of results has others.
const FILE_MAX: u64 = 64 << 20;
/// Lines of its console that are shown.
const LINES: usize = 15;
const WORDS: &str =
    "console=ttyS0 quiet mitigations=off clocksource=tsc tsc=reliable no_timer_check panic=-1";

/// The machine, one after the other.
pub(super) struct Machine<'a> {
    lab: &'a Lab,
    limit: Duration,
    /// CPU time of those that have ended.
    time: CpuTime,
}

/// How one ended.
enum End {
    /// By itself, or it died.
    Own,
    Late,
    Silent,
}

impl Machine<'_> {
    pub(super) fn new<'a>(lab: &'a Lab, choice: &Choice) -> Machine<'a> {
        let one = if choice.is_quick() { QUICK_LIMIT } else { LIMIT };
        let limit = one * choice.experiments().len() as u32;
        Machine { lab, limit, time: CpuTime::default() }
    }

    /// Runs the lab in it to the lab's end.
    ///
    /// # Errors
    /// QEMU does not start.
    pub(super) fn run(mut self) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut tried = 0;
        while tried < TRIES {
            tried += 1;
            outcome.retried += u32::from(outcome.failed.is_some());
            let before = self.lab.stands_done();
            let (end, retries) = self.once()?;
            outcome.retried += retries;
            let status = std::fs::read_to_string(self.lab.out().join("status")).unwrap_or_default();
            match status.trim() {
                "" => {}
                "0" => outcome.failed = None,
                _ => outcome.failed = Some(NOT_ALL.to_string()),
            }
            if !status.trim().is_empty() {
                break;
            }
            // One that finished something is the first of a new row. One that had no more time is not.
            if !matches!(end, End::Late) && self.lab.stands_done() > before {
                tried = 0;
            }
            let failed = match end {
                End::Own => "L1 died".to_string(),
                End::Late => format!("L1 did not come to its end in {} s", self.limit.as_secs()),
                End::Silent => format!("L1 hung: it gave no sign for {} s", SILENT.as_secs()),
            };
            self.lab.progress.say(&format!("{failed} ({} tries are left)", TRIES - tried));
            self.show_console();
            outcome.failed = Some(failed);
        }
        let all = self.time.used_ns + self.time.waited_ns;
        outcome.waited = (all > 0).then(|| self.time.waited_ns as f64 * 100.0 / all as f64);
        Ok(outcome)
    }

    /// From its start to its end, with what the lab says in it meanwhile; gives how often that started a configuration
    /// once more.
    fn once(&mut self) -> Result<(End, u32)> {
        for name in ["said", "status", "beat"] {
            let _ = std::fs::remove_file(self.lab.out().join(name));
        }
        self.lab
            .progress
            .say("starting L1: no KVM of hardware here, so an emulated machine with KVM");
        let mut children = Children::default();
        let pid = children.start("L1", &self.lab.folder.join("l1.qemu"), &self.command()?)?;
        let mut said = Said::of(self.lab.said());
        let mut time = CpuTime::default();
        let (began, mut beat) = (waiting::now(), None);
        let mut silent_at = began + BOOTS;
        let end = loop {
            said.show(&self.lab.progress);
            // None of its CPUs are left when it has just ended: then the last look counts.
            time = CpuTime::of_threads(pid, "CPU")
                .ok()
                .filter(|seen| seen.used_ns > 0)
                .unwrap_or(time);
            let now = waiting::now();
            let seen = last_beat(&self.lab.out().join("beat"));
            if seen != beat {
                beat = seen;
                silent_at = now + SILENT;
            }
            if children.are_alive().is_err() {
                break End::Own;
            } else if now.duration_since(began) >= self.limit {
                break End::Late;
            } else if now > silent_at {
                break End::Silent;
            }
            waiting::pause(LOOK);
        };
        drop(children);
        self.time.used_ns += time.used_ns;
        self.time.waited_ns += time.waited_ns;
        said.show(&self.lab.progress);
        Ok((end, said.retries()))
    }

    /// Without virtual GIF, with which it may stand still more often, and with four levels of pages, which is faster.
    fn command(&self) -> Result<Command> {
        let lab = self.lab.folder.display();
        let root = repository()?;
        let mut command = Command::new("prlimit");
        command
            .arg(format!("--fsize={FILE_MAX}"))
            .args([
                "qemu-system-x86_64",
                "-name",
                "l1,debug-threads=on",
                "-accel",
                "tcg,thread=multi",
            ])
            .args(["-cpu", "max,la57=off,vgif=off", "-smp", "2", "-m", "4000"])
            .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            .args(["-kernel", &format!("{lab}/vmlinuz"), "-initrd", &format!("{lab}/l1.cpio")])
            .args(["-append", &format!("{WORDS} lab.root={} lab.out={lab}/out", root.display())])
            .args(["-serial", &format!("file:{lab}/l1.console")])
            .args([
                "-virtfs",
                "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap",
            ])
            .args(["-virtfs", &format!("local,path={lab}/out,mount_tag=out,security_model=none")]);
        Ok(command)
    }

    fn show_console(&self) {
        let path = self.lab.folder.join("l1.console");
        let text = std::fs::read(&path).unwrap_or_default();
        let text = printable(&String::from_utf8_lossy(&text));
        let lines: Vec<&str> = text.lines().collect();
        eprintln!("  --- the console of L1 ({}):", path.display());
        for line in &lines[lines.len().saturating_sub(LINES)..] {
            eprintln!("  | {line}");
        }
    }
}

/// When it last gave a sign.
fn last_beat(beat: &Path) -> Option<SystemTime> {
    std::fs::metadata(beat).and_then(|about| about.modified()).ok()
}

/// The repository, which L1 finds under the same path.
fn repository() -> Result<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    path.canonicalize().with_context(|| format!("{}", path.display()))
}
