//! What is built before cases can run, by cargo, and how far that is.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

use crate::suite::Built;
use crate::suite::child::apart;
use crate::suite::programs::Program;
use crate::suite::session::{Sessions, kill_rest};

/// Who compiles, in the repository.
const COMPILER: &str = "x.d/compiler";
/// The daemon as it is tested, and the programs of `tests/src/bin` that cases start. And one program of tests, since cargo
/// gives libraries other features where it builds any: without it the daemon would be built twice.
const PROGRAMS: &[&str] = &[
    "build",
    "--workspace",
    "--bin",
    "sidecore",
    "--bin",
    "bad_heir",
    "--bin",
    "bad_wire",
    "--bin",
    "clock_client",
    "--bin",
    "dialer",
    "--bin",
    "dm_client",
    "--bin",
    "relay_heir",
    "--bin",
    "without_io_uring",
    "--test",
    "foreign",
];

/// The program for guests, as `need_tune` of `x.d/build.sh` builds it.
const TUNE: &[&str] = &[
    "build",
    "--release",
    "-p",
    "sidecore-tune",
    "--target",
    if cfg!(target_arch = "aarch64") {
        "aarch64-unknown-linux-gnu"
    } else {
        "x86_64-unknown-linux-gnu"
    },
    "--config",
    "guest/tune/static.toml",
];

/// One call of cargo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The daemon with every check of a development build, and programs that cases start.
    Programs,
    /// The tests of the daemon.
    Tests,
    /// The tests of all crates, those of the daemon included, and the programs that cases run.
    Crates,
    /// The daemon, as it is shipped.
    Shipped,
    /// What counts the instructions of a request, built as what is shipped.
    Pass,
    /// The program for guests, as it is shipped.
    Tune,
}

impl Step {
    /// What it is called, in progress and in a failure.
    pub fn name(self) -> &'static str {
        match self {
            Step::Programs => "programs",
            Step::Tests => "tests",
            Step::Crates => "crates",
            Step::Shipped => "shipped daemon",
            Step::Pass => "bench pass",
            Step::Tune => "sidecore-tune",
        }
    }

    /// Whether [`COMPILER`], which is clippy, compiles: what it has to say costs no build of its own then. Not where it is to be fast, since
    /// clippy optimises less.
    fn is_linted(self) -> bool {
        matches!(self, Step::Programs | Step::Tests | Step::Crates)
    }

    /// Cargo's words. Crates are chosen so that each is built once a profile: their features depend on that choice.
    fn words(self) -> &'static [&'static str] {
        match self {
            Step::Programs => PROGRAMS,
            Step::Tests => &["test", "--no-run", "--workspace", "--test", "*"],
            // The tests of the other programs are all of these programs, for whoever compiles.
            Step::Crates => {
                &["build", "--workspace", "--tests", "--bin", "lives", "--bin", "xtask"]
            }
            Step::Shipped => &["build", "--release", "-p", "sidecore-bin"],
            Step::Pass => &["build", "--release", "-p", "pass"],
            Step::Tune => TUNE,
        }
    }
}

/// The steps that cases with such needs take, in their order: what takes longest and only some cases need is last.
/// The daemon is that of a development build, unless it `is_shipped`.
pub fn steps(needs: impl IntoIterator<Item = Built>, is_shipped: bool) -> Vec<Step> {
    let needs: Vec<Built> = needs.into_iter().collect();
    let is_needed = |step: &Step| {
        let is_left = *step == Step::Shipped && !is_shipped;
        // All crates are the tests of the daemon too.
        let is_part = *step == Step::Tests && needs.contains(&Built::Crates);
        !is_left && !is_part && needs.iter().any(|need| takes(*need).contains(step))
    };
    let all = [Step::Programs, Step::Crates, Step::Tests, Step::Tune, Step::Shipped, Step::Pass];
    all.into_iter().filter(is_needed).collect()
}

/// What a need takes; of the shipped daemon only where that one is tested.
fn takes(need: Built) -> &'static [Step] {
    match need {
        Built::Nothing => &[],
        Built::Crates => &[Step::Crates],
        Built::Daemon => &[Step::Programs, Step::Shipped],
        Built::Tests => &[Step::Programs, Step::Tests, Step::Shipped],
        Built::Pass => &[Step::Pass],
        Built::Tune => &[Step::Programs, Step::Tune, Step::Shipped],
    }
}

/// Whether a case with that need has to wait for a step.
pub fn waits_for(need: Built, step: Step) -> bool {
    // Where all crates are built, so are the tests of the daemon.
    takes(need).contains(&step) || need == Built::Tests && step == Step::Crates
}

/// How far the build is: told by whoever builds, shown by whoever shows.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<String>>);

impl Progress {
    /// What there is to say now; nothing if nothing is being built.
    pub fn words(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn say(&self, words: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = words;
    }
}

/// What came of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// The programs that there are now.
    pub programs: Vec<Program>,
    /// What the compiler, and clippy where it is who compiles, warn of.
    pub warnings: Vec<String>,
    /// The library of C that was built: words by which cargo takes it in another profile. To compile it takes longer than
    /// all of ours that `bench pass` is made of, and no request that it counts is sealed.
    pub native: Vec<String>,
}

/// Builds one step, with what [`Made::native`] of another one has; what cargo says is in `log`.
///
/// # Errors
/// Cargo cannot be started, or it fails.
pub fn build(
    step: Step,
    native: &[String],
    root: &Path,
    log: &Path,
    sessions: &Sessions,
    progress: &Progress,
) -> Result<Made> {
    progress.say(format!("building {}", step.name()));
    let mut log_file = std::fs::File::create(log)?;
    let mut command: Command = apart(["nice", "cargo"].iter().chain(step.words()));
    command
        .arg("--message-format=json")
        .current_dir(root)
        .env("CARGO_TERM_PROGRESS_WHEN", "always")
        .env("CARGO_TERM_PROGRESS_WIDTH", "120")
        .env("CARGO_TERM_COLOR", "never")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if step.is_linted() {
        command.env("RUSTC_WORKSPACE_WRAPPER", COMPILER);
    }
    if step == Step::Pass {
        command.args(native);
    }
    let mut cargo = command.spawn().context("starting cargo")?;
    let leader = Pid::from_child(&cargo);
    sessions.add(leader);
    let (stdout, stderr) = (cargo.stdout.take(), cargo.stderr.take());
    let reader = std::thread::spawn(move || stdout.map(made).unwrap_or_default());
    if let Some(stderr) = stderr {
        follow(stderr, &mut log_file, |words| {
            progress.say(format!("building {}: {words}", step.name()));
        });
    }
    let ended = await_end(leader);
    kill_rest(leader);
    sessions.remove(leader);
    let status = ended.and_then(|()| Ok(cargo.wait()?));
    progress.say(String::new());
    let made = reader.join().unwrap_or_default();
    for warning in &made.warnings {
        writeln!(log_file, "{warning}")?;
    }
    let status = status?;
    ensure!(status.success(), "`cargo {}`: {status}", step.words().join(" "));
    Ok(made)
}

/// Waits for a process to end, and leaves it to be waited for: until then its number is nobody else's.
fn await_end(process: Pid) -> Result<()> {
    let process = pidfd_open(process, PidfdFlags::empty())?;
    Ok(retry_on_intr(|| poll(&mut [PollFd::new(&process, PollFlags::IN)], None)).map(drop)?)
}

fn made(stdout: ChildStdout) -> Made {
    let mut made = Made::default();
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        made.programs.extend(Program::of_line(&line));
        // Of a library that is built with its tests too there are two.
        made.warnings.extend(warning_of(&line).filter(|text| !made.warnings.contains(text)));
        made.native.extend(native_of(&line).into_iter().flatten());
    }
    made
}

/// What cargo is told so that it takes the library of C that a line of its own tells of, of a build of aws-lc.
fn native_of(line: &str) -> Option<Vec<String>> {
    let said: Value = serde_json::from_str(line).ok()?;
    let first = |key: &str| said.get(key)?.get(0)?.as_str();
    let (library, path) = (first("linked_libs")?, first("linked_paths")?);
    let links = library.strip_prefix("static=")?.strip_suffix("_crypto")?;
    let include = format!("{}/include", path.strip_prefix("native=")?);
    let is_it = links.starts_with("aws_lc_") && said.get("reason")? == "build-script-executed";
    let cfgs = said.get("cfgs")?.to_string();
    let target = format!("target.{}-unknown-linux-gnu.{links}", std::env::consts::ARCH);
    let keys = [
        ("rustc-link-lib", format!("[{library:?}]")),
        ("rustc-link-search", format!("[{path:?}]")),
        ("rustc-cfg", cfgs),
        ("include", format!("{include:?}")),
    ];
    let words = |(key, value)| ["--config".to_owned(), format!("{target}.{key}={value}")];
    is_it.then(|| keys.into_iter().flat_map(words).collect())
}

/// What the compiler says in a line of cargo's, as people read it.
fn warning_of(line: &str) -> Option<String> {
    let said: Value = serde_json::from_str(line).ok()?;
    let is_message = said.get("reason")? == "compiler-message";
    let text = said.get("message")?.get("rendered")?.as_str()?;
    // The last one only counts the others.
    let counts = text.contains(" warning") && text.contains(" emitted");
    (is_message && !counts).then(|| text.trim_end().to_owned())
}

/// Tells how far cargo is, and writes the rest of what it says to its log.
fn follow(mut said: impl Read, log: &mut impl Write, mut tell: impl FnMut(&str)) {
    let mut line = Vec::new();
    let mut bytes = [0; 4096];
    while let Ok(length @ 1..) = said.read(&mut bytes) {
        for byte in &bytes[..length] {
            if !matches!(byte, b'\r' | b'\n') {
                line.push(*byte);
                continue;
            }
            let text = String::from_utf8_lossy(&line);
            // It wipes its line of progress before others.
            let text = text.trim_start_matches("\x1b[K").trim_end();
            match crates_done(text) {
                Some(words) => tell(&words),
                None if text.trim().is_empty() => {}
                None => {
                    let _ = writeln!(log, "{text}");
                }
            }
            line.clear();
        }
    }
}

/// How many crates are done of all, in a line of cargo's progress.
fn crates_done(line: &str) -> Option<String> {
    let (_, rest) = line.trim_start().strip_prefix("Building [")?.split_once("] ")?;
    let (counts, names) = rest.split_once(": ").unwrap_or((rest, ""));
    let (done, all) = counts.split_once('/')?;
    let count = |text: &str| text.trim().parse::<u32>().ok();
    let (done, all) = (count(done)?, count(all)?);
    Some(format!("{done} of {all} crates, {}", names.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_is_built() {
        assert_eq!(steps([Built::Nothing], false), []);
        assert_eq!(steps([Built::Daemon], true), [Step::Programs, Step::Shipped]);
        assert_eq!(steps([Built::Tests], false), [Step::Programs, Step::Tests]);
        assert_eq!(
            steps([Built::Tests, Built::Crates, Built::Nothing], true),
            [Step::Programs, Step::Crates, Step::Shipped]
        );
        assert_eq!(steps([Built::Pass, Built::Daemon], false), [Step::Programs, Step::Pass]);
        assert_eq!(steps([Built::Tune], false), [Step::Programs, Step::Tune]);
    }

    #[test]
    fn a_case_waits_for_what_it_needs() {
        let waits = |need, steps: &[Step]| steps.iter().any(|step| waits_for(need, *step));
        assert!(waits(Built::Tests, &[Step::Crates]) && waits(Built::Tests, &[Step::Tests]));
        assert!(!waits(Built::Daemon, &[Step::Crates, Step::Tests, Step::Pass]));
        assert!(waits(Built::Daemon, &[Step::Shipped]) && waits(Built::Daemon, &[Step::Programs]));
        assert!(!waits(Built::Crates, &[Step::Programs, Step::Shipped, Step::Pass]));
        assert!(!waits(Built::Nothing, &[Step::Programs, Step::Crates, Step::Shipped]));
    }

    #[test]
    fn what_the_compiler_says_is_kept() {
        let line = |reason: &str, text: &str| {
            serde_json::json!({ "reason": reason, "message": { "rendered": text } }).to_string()
        };
        let text = "warning: unused import: `a`\n --> b.rs:1:5\n\n";
        let kept = Some("warning: unused import: `a`\n --> b.rs:1:5".to_owned());
        assert_eq!(warning_of(&line("compiler-message", text)), kept);
        assert_eq!(warning_of(&line("compiler-message", "warning: 2 warnings emitted\n\n")), None);
        assert_eq!(warning_of(&line("compiler-artifact", text)), None);
        assert_eq!(warning_of("no json"), None);
    }

    #[test]
    fn the_library_of_c_is_taken_from_another_build() {
        let line = |library: &str| {
            serde_json::json!({
                "reason": "build-script-executed", "linked_libs": [library],
                "linked_paths": ["native=/out"], "cfgs": ["universal"],
            })
        };
        let told = native_of(&line("static=aws_lc_1_crypto").to_string()).unwrap();
        let target = format!("target.{}-unknown-linux-gnu.aws_lc_1", std::env::consts::ARCH);
        let wanted = [
            "rustc-link-lib=[\"static=aws_lc_1_crypto\"]",
            "rustc-link-search=[\"native=/out\"]",
            "rustc-cfg=[\"universal\"]",
            "include=\"/out/include\"",
        ];
        let wanted = wanted.map(|words| ["--config".to_owned(), format!("{target}.{words}")]);
        assert_eq!(told, wanted.concat());
        assert_eq!(native_of(&line("static=z").to_string()), None);
    }

    #[test]
    fn progress_is_told_and_the_rest_is_kept() {
        let said = "\x1b[K   Compiling a v1\n    Building [=>  ] 45/120: a, b(test)\r\
                    \x1b[K    Building [==> ] 46/120\rerror: no\n";
        let (mut log, mut told) = (Vec::new(), Vec::new());
        follow(said.as_bytes(), &mut log, |words| told.push(words.to_owned()));
        assert_eq!(told, ["45 of 120 crates, a, b(test)", "46 of 120 crates, "]);
        assert_eq!(String::from_utf8(log).unwrap(), "   Compiling a v1\nerror: no\n");
    }
}
