//! What `./x lab` does on the host: packs the guests, has the lab run where there is real KVM, and shows what it found.
//!
//! With hardware KVM that place is the host itself, otherwise an emulated machine. Not here: packages and downloads
//! (`x.d/lab.sh`), what is measured (`place`), and how it is shown (`report`).

mod emulated;
mod images;
mod said;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use testing::daemon::sidecore_binary;
use testing::vm::{build_folder, has_kvm};

use crate::place::{Choice, configurations};
use crate::report::{self, Conditions, ReportArguments};
use crate::rows::{self, Line};
use crate::waiting;
use said::{Progress, Said};

/// Between two looks at what the lab says.
const LOOK: Duration = Duration::from_millis(300);
/// What is wrong when the lab itself says so.
const NOT_ALL: &str = "the lab could not measure all of it";

/// What to measure, and how to show it.
#[derive(Debug, clap::Args)]
#[command(
    about = "What a guest's I/O costs on real KVM, counted by the kernel that runs it",
    long_about = "What a guest's I/O costs on real KVM, counted by the kernel that runs it, with QEMU, vhost-net and Sidecore. \
        On hardware KVM the guests run on it; elsewhere on an emulated machine with KVM, whose counts hold and whose time \
        does not: what takes time is then shown as ratios only. Tables on the terminal, plots in build/lab/report.html.",
    override_usage = "./x lab [EXPERIMENT]... [--quick] [--only NAME] [--json]",
    after_help = after_help()
)]
pub(crate) struct HostArguments {
    #[command(flatten)]
    choice: Choice,
    /// One JSON object a line, on standard output
    #[arg(long)]
    json: bool,
}

/// What the place left, and what it was like.
#[derive(Debug, Default)]
struct Outcome {
    /// What is wrong if rows are missing.
    failed: Option<String>,
    /// How often something was started once more.
    retried: u32,
    /// Of an emulated machine: how much of their time its CPUs waited for one of the host, percent.
    waited: Option<f64>,
}

/// The lab on the host: what is where.
struct Lab {
    /// `build/lab`.
    folder: PathBuf,
    progress: Progress,
}

/// Measures, and shows what came of it.
///
/// # Errors
/// The lab runs already, something is missing, or not all could be measured.
pub(crate) fn measure(arguments: &HostArguments) -> Result<()> {
    let build = build_folder();
    let build = build
        .canonicalize()
        .with_context(|| format!("{}: start this by ./x lab", build.display()))?;
    let lab = Lab { folder: build.join("lab"), progress: Progress::begin() };
    std::fs::create_dir_all(lab.out())?;
    let lock = File::create(lab.folder.join("lock"))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .context("the lab runs already: wait for its end, or end that ./x lab")?;
    // Not where the next build writes while a guest runs it.
    let program = lab.program();
    let _ = std::fs::remove_file(&program);
    std::fs::copy(std::env::current_exe()?, &program).context("copying this program")?;
    lab.pack_l2()?;
    let _ = std::fs::remove_file(lab.rows());
    let outcome = lab.run(&arguments.choice)?;
    let has_rows =
        !rows::read(&std::fs::read_to_string(lab.rows()).unwrap_or_default())?.is_empty();
    if let Some(failed) = outcome.failed.as_ref().filter(|_| !has_rows) {
        bail!("{failed}: read what it said above");
    }
    let Outcome { waited, retried, .. } = outcome;
    report::show(&ReportArguments {
        rows: lab.rows(),
        html: lab.folder.join("report.html"),
        json: arguments.json,
        conditions: Conditions { emulated: !has_kvm(), waited, retried },
    })?;
    match outcome.failed {
        Some(failed) => {
            bail!("{failed}: what was measured is in the report; read what the lab said above")
        }
        None => Ok(()),
    }
}

impl Lab {
    /// What is shared with an emulated machine.
    fn out(&self) -> PathBuf {
        self.folder.join("out")
    }

    fn program(&self) -> PathBuf {
        self.out().join("lab")
    }

    fn rows(&self) -> PathBuf {
        self.out().join("rows.json")
    }

    /// What the lab has said to its end.
    fn said(&self) -> PathBuf {
        self.out().join("said")
    }

    fn run(&self, choice: &Choice) -> Result<Outcome> {
        let words = self.words(choice)?;
        if has_kvm() {
            return self.run_here(&words);
        }
        self.pack_l1()?;
        std::fs::write(self.out().join("arguments"), words.join("\n") + "\n")?;
        emulated::Machine::new(self, choice).run()
    }

    /// The arguments of `lab run`: the same here and in an emulated machine, which sees this host's files.
    fn words(&self, choice: &Choice) -> Result<Vec<String>> {
        let sidecore = std::path::absolute(sidecore_binary()?)?;
        let mut words = vec!["run".to_string()];
        for (name, path) in [
            ("--sidecore", sidecore.as_path()),
            ("--kernel", &self.folder.join("vmlinuz")),
            ("--initramfs", &self.folder.join("l2.cpio")),
            ("--dir", Path::new("/run/sidecore-lab")),
            ("--rows", &self.rows()),
        ] {
            words.extend([name.to_string(), path.display().to_string()]);
        }
        words.extend(choice.words());
        Ok(words)
    }

    /// On the host's own KVM. What interrupts this ends the lab, whose keeper puts back what it has changed, and is waited
    /// for.
    fn run_here(&self, words: &[String]) -> Result<Outcome> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
        }
        let mut command = Command::new(self.program());
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null());
        let mut lab =
            command.stderr(File::create(self.said())?).spawn().context("starting the lab")?;
        let mut said = Said::of(self.said());
        let status = loop {
            let ended = lab.try_wait()?;
            said.show(&self.progress);
            if let Some(status) = ended {
                break status;
            }
            if interrupted.swap(false, Ordering::Relaxed) {
                kill_process(Pid::from_child(&lab), Signal::TERM)?;
            }
            waiting::pause(LOOK);
        };
        let failed = (!status.success()).then(|| NOT_ALL.to_string());
        Ok(Outcome { failed, retried: said.retries(), waited: None })
    }

    /// How many configurations have their rows, or have failed for good.
    fn stands_done(&self) -> usize {
        let text = std::fs::read_to_string(self.rows()).unwrap_or_default();
        let is_done = |line: &&str| matches!(serde_json::from_str(line), Ok(Line::Done(_)));
        text.lines().filter(is_done).count()
    }

    /// A file that `./x` has downloaded.
    fn downloaded(&self, path: &str) -> Result<PathBuf> {
        let path = self.folder.join(path);
        ensure!(path.exists(), "there is no {}: start this by ./x lab", path.display());
        Ok(path)
    }
}

/// What stands below the help's options.
fn after_help() -> String {
    let mut text = "Configurations:".to_string();
    let mut wide = usize::MAX;
    for name in configurations::names() {
        if wide.saturating_add(name.len()) > 98 {
            text += "\n ";
            wide = 1;
        }
        text += &format!(" {name}");
        wide += name.len() + 1;
    }
    text += "\n\nExamples:\n  ./x lab smoke\n  ./x lab exits quota --quick\n  ./x lab exits --only sidecore --json >rows.json";
    text
}
