//! Commands and programs of tests that a case runs as its checks; what they print goes into the case's log.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitStatus, Stdio};

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

/// Runs a command that must succeed; all that it printed.
///
/// # Errors
/// It cannot be started, or fails.
pub fn said(command: &mut Command) -> Result<String> {
    let (status, text) = heard(command)?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(text)
}

/// Runs a command to its end, with all that it prints, which goes into the case's log as it comes.
fn heard(command: &mut Command) -> Result<(ExitStatus, String)> {
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut process = command.spawn().with_context(|| format!("starting {command:?}"))?;
    // Only with the last writer does the reader come to an end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut text = String::new();
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        std::io::stderr().write_all(&line)?;
        text += &String::from_utf8_lossy(&line);
        line.clear();
    }
    Ok((process.wait()?, text))
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
    let (status, text) = heard(command)?;
    let end =
        End { status, was_ended: false, seconds: seconds_since(start_ns), worked_seconds: 0.0 };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_a_command_prints_is_heard() {
        let both = "echo out; echo err >&2; printf end";
        let text = said(&mut command(&["sh", "-c", both])).unwrap();
        assert_eq!(text, "out\nerr\nend");
        let error = said(&mut command(&["sh", "-c", "exit 3"])).unwrap_err().to_string();
        assert!(error.ends_with("exit status: 3"), "{error}");
        assert!(done(&mut command(&["no-such-program-here"])).is_err());
    }
}
