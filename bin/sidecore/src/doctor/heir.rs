//! Whether the program that an upgrade would start is one that takes over: it is asked which version it is.
//!
//! What is run is what the kernel shows that the daemon's launchers were started with, and not what the daemon says, which
//! may be in the hands of a guest. Called by `ready`.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long it may take to say that.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);
/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 4096;

/// Why the program of these launchers of that daemon would not take over; nothing, where it would, or that cannot be
/// told.
pub(super) fn is_none(program: &Path, launchers: &[u32], daemon: u32) -> Option<String> {
    let starts = launchers.iter().find_map(|pid| starts(*pid, daemon))?;
    (starts == program).then(|| is_no_sidecore(program, ANSWER_TIME_MAX)).flatten()
}

/// What a launcher of that daemon starts.
fn starts(launcher: u32, daemon: u32) -> Option<PathBuf> {
    let stat = std::fs::read_to_string(format!("/proc/{launcher}/stat")).ok()?;
    // Behind the name, which may have anything in it, and the state.
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?;
    let line = std::fs::read(format!("/proc/{launcher}/cmdline")).ok()?;
    let mut words = line.split(|byte| *byte == 0).skip(1);
    let is_one = parent.parse() == Ok(daemon) && words.next() == Some(b"launcher");
    is_one
        .then(|| words.next().and_then(|word| std::str::from_utf8(word).ok()))
        .flatten()
        .map(PathBuf::from)
}

fn is_no_sidecore(program: &Path, answer_time_max: Duration) -> Option<String> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        // The launchers may be allowed to.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return None,
        Err(error) => return Some(format!("cannot be started: {error}")),
    };
    let (says, hears) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = out.take(ANSWER_BYTES_MAX).read_to_end(&mut text);
            says.send(text)
        });
    }
    let said = hears.recv_timeout(answer_time_max);
    // Whatever it is, it has nothing more to do.
    let _ = child.kill();
    let _ = child.wait();
    match said {
        Ok(text) if text.starts_with(b"sidecore ") => None,
        Ok(_) => {
            Some("is no sidecore that can be run: `--version` says nothing of one".to_string())
        }
        Err(_) => Some(format!("does not say its version within {answer_time_max:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_says_that_it_is_one_is_a_sidecore() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("program");
        for (script, why) in [
            ("#!/bin/sh\necho sidecore 9.9.9\n", None),
            ("#!/bin/sh\necho $1; exit 1\n", Some("is no sidecore")),
            ("#!/bin/sh\nkill -9 $$\n", Some("is no sidecore")),
            ("truncated", Some("cannot be started: Exec format error")),
        ] {
            // Written by another process: a child that another test starts just now has no descriptor of it, which the
            // kernel would take for a program that is being written.
            let mut sh = Command::new("sh");
            sh.args(["-c", "printf '%s' \"$1\" >\"$2\" && chmod 755 \"$2\"", "sh", script]);
            assert!(sh.arg(&program).status().expect("sh").success());
            let told = is_no_sidecore(&program, Duration::from_secs(120));
            assert_eq!(told.is_some(), why.is_some(), "{script}: {told:?}");
            assert!(told.unwrap_or_default().starts_with(why.unwrap_or_default()), "{script}");
        }
    }

    #[test]
    fn nothing_is_run_that_no_launcher_of_the_daemon_is_seen_to_start() {
        let own = std::process::id();
        // A child of this process, and no launcher.
        let mut child = Command::new("sleep").arg("600").spawn().expect("a process");
        let told = is_none(Path::new("/bin/false"), &[child.id(), own, u32::MAX], own);
        child.kill().expect("it ends");
        child.wait().expect("it has ended");
        assert_eq!(told, None);
    }
}
