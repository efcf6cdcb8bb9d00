//! Commands and programs of tests that a case runs as its checks; what they print goes into the case's log.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use testing::bed::{Bed, Outcome};
use testing::clock::now_ns;

use crate::suite::found::{End, of_tests};
use crate::suite::programs::Program;

/// A command of these words.
pub fn command(words: &[&str]) -> Command {
    let (program, words) = words.split_first().unwrap_or((&"false", &[]));
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null());
    command
}

/// Runs a command; how long it took.
///
/// # Errors
/// It cannot be started, or fails.
pub fn done(command: &mut Command) -> Result<String> {
    let start_ns = now_ns();
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(format!("{:.1} s", seconds_since(start_ns)))
}

/// Runs a command that must succeed; what it printed.
///
/// # Errors
/// It cannot be started, or fails.
pub fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let _ = std::io::stderr().write_all(&output.stderr);
    let _ = std::io::stderr().write_all(text.as_bytes());
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(text)
}

/// A program of tests as cargo runs it, started by the words of `through`.
pub fn test_command(through: &[&str], program: &Program, words: &[&str]) -> Command {
    let mut command = match through {
        [] => Command::new(&program.path),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(&program.path);
            command
        }
    };
    command.args(words).current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    command
}

/// Runs a program of tests, and records as `check` what it came to.
///
/// # Errors
/// It cannot be started.
pub fn tested(bed: &Bed, check: &str, command: &mut Command) -> Result<()> {
    bed.say(check);
    let start_ns = now_ns();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("starting {command:?}"))?;
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    text += &String::from_utf8_lossy(&output.stdout);
    let _ = std::io::stderr().write_all(text.as_bytes());
    let seconds = seconds_since(start_ns);
    let end = End { status: output.status, was_ended: false, seconds };
    for outcome in of_tests(&text, &end) {
        record(bed, check, &outcome);
    }
    Ok(())
}

fn record(bed: &Bed, check: &str, outcome: &Outcome) {
    use testing::bed::Kind::{Fail, Pass, Skip};
    match outcome.kind() {
        Pass => bed.passed(check, outcome.detail()),
        Fail => bed.failed(check, outcome.detail()),
        Skip => bed.skipped(check, outcome.detail()),
    }
}

fn seconds_since(start_ns: u64) -> f64 {
    (now_ns() - start_ns) as f64 / 1e9
}
