//! Whether the program that an upgrade would start is one that takes over: it is asked which version it is.
//!
//! A daemon's words may be in the hands of a guest, and those that a process was started with are its own choice, whoever
//! that is. So what a launcher of the daemon's is seen to start is run on two conditions: both are root's or the asker's
//! own, in all that they are; and nobody else could have put the file there. Called by `ready`.

use std::io::{ErrorKind, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::process::Process;

/// How long it may take to say that.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);
/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 4096;

/// What is known of such a program.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heir {
    /// It would take over.
    Fine,
    /// It would not, for that reason.
    None(String),
    /// It was not asked, for that reason.
    Unasked(String),
    /// Nobody is seen who starts it.
    Unknown,
}

/// Asks the program of these launchers of that daemon.
pub(super) fn ask(program: &Path, launchers: &[u32], daemon: u32) -> Heir {
    let starts = |pid: &&u32| Process::of(**pid).is_some_and(|it| is_of(&it, daemon, program));
    let Some(launcher) = launchers.iter().find(starts) else { return Heir::Unknown };
    let all = [("daemon", daemon), ("launcher", *launcher)];
    if let Some(why) = all.into_iter().find_map(|(who, pid)| of_another(who, pid)) {
        return Heir::Unasked(why);
    }
    if let Err(why) = names::look_at_own(program) {
        // The launchers may be allowed to look.
        return Heir::Unasked(why.to_string());
    }
    answer(program, ANSWER_TIME_MAX)
}

/// That a process is not root's or the asker's own in all that it is, if so.
fn of_another(who: &str, pid: u32) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    let Some(users) = Process::of(pid).and_then(|process| process.users()) else {
        return Some(format!("it is not seen whose its {who} is"));
    };
    let user = users.into_iter().find(|user| *user != own && *user != 0)?;
    Some(format!("its {who} is of user {user}: ask as that user"))
}

/// Whether that process is a launcher of that daemon's which says that it starts that program.
fn is_of(launcher: &Process, daemon: u32, program: &Path) -> bool {
    let words = launcher.words();
    let [_, word, starts, ..] = &*words else { return false };
    launcher.parent() == Some(daemon)
        && word == b"launcher"
        && starts == program.as_os_str().as_encoded_bytes()
}

/// What it says of itself.
fn answer(program: &Path, answer_time_max: Duration) -> Heir {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        // The launchers may be allowed to.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Heir::Unasked(format!("it may not be started here: {error}"));
        }
        Err(error) => return Heir::None(format!("cannot be started: {error}")),
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
        Ok(text) if text.starts_with(b"sidecore ") => Heir::Fine,
        Ok(_) => Heir::None(
            "is no sidecore that can be run: `--version` says nothing of one".to_string(),
        ),
        Err(_) => Heir::None(format!("does not say its version within {answer_time_max:?}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::process::CommandExt;

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
            write(&program, script);
            match (answer(&program, Duration::from_secs(120)), why) {
                (Heir::Fine, None) => {}
                (Heir::None(told), Some(why)) => assert!(told.starts_with(why), "{script}: {told}"),
                (told, _) => panic!("{script}: {told:?}"),
            }
        }
    }

    /// By another process: a child that another test starts just now has no descriptor of it, which the kernel would take
    /// for a program that is being written.
    fn write(program: &Path, script: &str) {
        let mut sh = Command::new("sh");
        sh.args(["-c", "printf '%s' \"$1\" >\"$2\" && chmod 755 \"$2\"", "sh", script]);
        assert!(sh.arg(program).status().expect("sh").success());
    }

    /// What is known of that program where a process of that user, or of one's own, says that it is its launcher.
    fn asked_of(program: &Path, user: Option<u32>) -> Option<Heir> {
        let mut child = Command::new("tail");
        child.arg0("x").arg("launcher").args([program, Path::new("-f")]).stderr(Stdio::null());
        if let Some(user) = user {
            child.uid(user);
        }
        let mut child = child.spawn().ok()?;
        // Between fork and exec it has this program's words.
        let shown = || Process::of(child.id()).map(|it| it.words());
        while shown().is_some_and(|words| words.first().is_none_or(|word| word != b"x")) {
            std::thread::yield_now();
        }
        let told = ask(program, &[child.id()], std::process::id());
        child.kill().expect("it ends");
        child.wait().expect("it has ended");
        Some(told)
    }

    #[test]
    fn nothing_is_run_that_a_process_of_another_user_is_seen_to_start() {
        let folder = tempfile::tempdir().expect("a folder");
        let (program, ran) = (folder.path().join("program"), folder.path().join("ran"));
        write(&program, &format!("#!/bin/sh\necho >{}; echo sidecore 9.9.9\n", ran.display()));
        // Such as it may be read by.
        let open = Command::new("chmod").arg("755").arg(folder.path()).status();
        assert!(open.is_ok_and(|status| status.success()));
        assert_eq!(asked_of(&program, None), Some(Heir::Fine));
        std::fs::remove_file(&ran).expect("it ran");
        let Some(told) = asked_of(&program, Some(65_534)) else {
            let why = b"skipped: to be another user takes root\n";
            return std::io::stderr().write_all(why).expect("written");
        };
        let why = "its launcher is of user 65534: ask as that user".to_string();
        assert_eq!(told, Heir::Unasked(why));
        assert!(!ran.exists());
    }

    #[test]
    fn nothing_is_run_that_others_could_have_put_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let (program, ran) = (folder.path().join("program"), folder.path().join("ran"));
        write(&program, &format!("#!/bin/sh\necho >{}; echo sidecore 9.9.9\n", ran.display()));
        let all = Command::new("chmod").arg("777").arg(&program).status();
        assert!(all.is_ok_and(|status| status.success()));
        let told = asked_of(&program, None);
        let is_said = |why: &String| why.contains("has mode 0777, so others than its owner");
        assert!(matches!(&told, Some(Heir::Unasked(why)) if is_said(why)), "{told:?}");
        assert!(!ran.exists());
    }

    #[test]
    fn nothing_is_run_that_no_launcher_of_the_daemon_is_seen_to_start() {
        let own = std::process::id();
        // A child of this process, and no launcher.
        let mut child = Command::new("sleep").arg("600").spawn().expect("a process");
        let told = ask(Path::new("/bin/false"), &[child.id(), own, u32::MAX], own);
        child.kill().expect("it ends");
        child.wait().expect("it has ended");
        assert_eq!(told, Heir::Unknown);
    }
}
