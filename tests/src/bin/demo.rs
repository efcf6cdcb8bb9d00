//! `./x demo [remote]`: guests on daemons that are killed meanwhile, for a person who looks on.
//!
//! A process of its own (`demo --inside FOLDER [remote]`) makes the machines and checks them; this one says what it says,
//! with the seconds since the beginning, and in the end what was checked. `demo --sweep` removes what a demo that was
//! interrupted left.
//!
//! The machines of `./x demo remote` are those of the case `remote/guest`.
#![expect(clippy::disallowed_macros, reason = "a program prints")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use testing::bed::{Bed, Kind, OUTCOMES, Outcome};
use testing::namespace::Namespace;
use testing::scratch::Scratch;
use testing::vm::build_folder;
use tests::demo::screen::{Screen, all_checks};
use tests::demo::{local, table};
use tests::suite::cases::remote::guest::World;

/// Between two looks at the seconds.
const TICK: Duration = Duration::from_secs(1);
/// What is larger is a disk, and no log.
const LOG_BYTES_MAX: u64 = 16 << 20;

fn main() -> Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => watch(""),
        ["remote"] => watch("remote"),
        ["--inside", folder, what] => inside(Path::new(folder), what),
        ["--sweep"] => {
            Namespace::sweep();
            drop(Scratch::new(&std::env::temp_dir(), "sweep")?);
            drop(Scratch::new(Path::new(local::MEMORY), "sweep")?);
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            eprintln!("usage: demo [remote]; run it by ./x demo");
            Ok(ExitCode::from(2))
        }
    }
}

/// The machines. An error is told by the process that looks on.
fn inside(folder: &Path, what: &str) -> Result<ExitCode> {
    let bed = Bed::new(folder, Vec::new())?;
    let shown = if what == "remote" { remote(&bed) } else { local::show(&bed) };
    if let Err(error) = shown {
        bed.failed("", format_args!("{error:#}"));
    }
    Ok(if bed.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn remote(bed: &Bed) -> Result<()> {
    let mut world = World::new(bed, false)?;
    world.work(bed)?;
    for (who, text) in world.status()? {
        bed.say(format!("sidecore remote status at {who}:\n\n{}\n", table(&text)));
    }
    bed.say("the guest ends its work");
    world.end(bed)
}

/// Looks on: whether all was as it should be.
fn watch(what: &str) -> Result<ExitCode> {
    Namespace::sweep();
    let folder = Scratch::new(&std::env::temp_dir(), "demo")?;
    let mut screen = Screen::of_stderr();
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .arg(std::env::current_exe()?)
        .arg("--inside")
        .args([folder.path(), Path::new(what)])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting setpriv (Debian: apt-get install util-linux)")?;
    let said = BufReader::new(child.stderr.take().context("a pipe was asked for")?);
    let (sender, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        said.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
    });
    loop {
        match lines.recv_timeout(TICK) {
            Ok(line) => screen.line(&line),
            Err(mpsc::RecvTimeoutError::Timeout) => screen.tick(),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    let _ = reader.join();
    let status = child.wait()?;
    let checks = outcomes(folder.path())?;
    screen.end();
    println!("{}", all_checks(&checks));
    if status.success() && !checks.is_empty() && checks.iter().all(|one| one.kind() != Kind::Fail) {
        screen.verdict(what);
        return Ok(ExitCode::SUCCESS);
    }
    screen.failure(what, &keep(folder.path())?);
    Ok(ExitCode::FAILURE)
}

fn outcomes(folder: &Path) -> Result<Vec<Outcome>> {
    let text = std::fs::read_to_string(folder.join(OUTCOMES)).unwrap_or_default();
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// Keeps the logs of a demo that found something wrong: where they are.
fn keep(folder: &Path) -> Result<PathBuf> {
    let to = build_folder().join("demo");
    let _ = std::fs::remove_dir_all(&to);
    std::fs::create_dir_all(&to)?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        if about.is_file() && about.len() < LOG_BYTES_MAX {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(to)
}
