//! The process that starts heirs: a child of the daemon that keeps the rights which a start takes and the
//! daemon drops (docs/decisions/0009, "The launcher"; 0011, "The launcher").
//!
//! [`run`] is all that it does; [`Launcher`] is the daemon's end. It holds nothing of the daemon but
//! one socket, and ends with it.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::channel::Channel;

/// How long a request to it may take: starting a process takes a few milliseconds.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// It waits for its daemon.
const FOREVER: Duration = Duration::from_secs(1 << 30);
/// The word on the command line that makes a launcher.
pub const LAUNCHER_COMMAND: &str = "launcher";
/// The word that makes an heir.
pub const HEIR_OPTION: &str = "--heir";

/// The daemon asks for one thing: that an heir is started, whose standard input comes along.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    request: u64,
}

/// To that request: the daemon may have given it up, and asked again.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    request: u64,
    outcome: Outcome,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Outcome {
    Started { pid: u32 },
    Refused { why: String },
}

/// The daemon's end of its launcher.
#[derive(Debug)]
pub struct Launcher {
    channel: Channel,
    /// The last one that was made.
    request: Cell<u64>,
    /// Never waited for: it ends when the channel does, which is with this process.
    _child: Child,
}

impl Launcher {
    /// Starts one: this program again, as `launcher`, with the arguments of this process. To be called
    /// before rights are dropped, and before much is open.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn start() -> io::Result<Launcher> {
        let (channel, theirs) = Channel::pair()?;
        let program = program()?;
        // Not by its name: the file may have been replaced a moment ago.
        let child = Command::new("/proc/self/exe")
            .arg0(&program)
            .arg(LAUNCHER_COMMAND)
            .arg(&program)
            .args(std::env::args_os().skip(1).filter(|word| word != HEIR_OPTION))
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Launcher { channel, request: Cell::new(0), _child: child })
    }

    /// Has it start an heir whose standard input is `input`. Its process, which stays known by that
    /// number until the next one is started.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn launch(&self, input: BorrowedFd<'_>) -> Result<u32, String> {
        let ended = "the daemon's `sidecore launcher` process has ended, so nothing can be started: restart \
                     the daemon when its guests can wait";
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::BrokenPipe => ended.to_string(),
            _ => format!("the launcher does not answer: {error}"),
        };
        let request = self.request.get().wrapping_add(1);
        self.request.set(request);
        self.channel.send(&Start { request }, &[input], ANSWER_TIME_MAX).map_err(failed)?;
        // One that came too late is an answer to nothing, and the heir that it names has ended: so there
        // are no more of them than requests.
        for _ in 0..=request {
            let packet = self.channel.receive(ANSWER_TIME_MAX).map_err(failed)?;
            let packet = packet.ok_or(ended)?;
            let answer: Answer =
                serde_json::from_slice(&packet.bytes).map_err(|error| failed(error.into()))?;
            match answer.outcome {
                _ if answer.request != request => {}
                Outcome::Started { pid } => return Ok(pid),
                Outcome::Refused { why } => return Err(why),
            }
        }
        Err("the launcher answers to nothing that it was asked".to_string())
    }
}

/// The program by the name under which this process was started: a link may lead elsewhere when an heir is
/// started.
fn program() -> io::Result<PathBuf> {
    let name = std::env::args_os().next().map(PathBuf::from);
    match name.filter(|name| name.components().count() > 1) {
        Some(path) => std::path::absolute(path),
        None => std::env::current_exe().map(without_mark),
    }
}

/// Without what the kernel adds to the name of a file that was replaced.
fn without_mark(path: PathBuf) -> PathBuf {
    let name = path.to_str().and_then(|name| name.strip_suffix(" (deleted)"));
    name.map(PathBuf::from).unwrap_or(path)
}

/// The launcher itself: serves the daemon at its standard input until that is gone. `program` and
/// `arguments` are the daemon's own.
///
/// # Errors
/// Its standard input is no socket of a daemon.
pub fn run(program: &Path, arguments: &[OsString]) -> io::Result<()> {
    // Started as `/proc/self/exe`, it would be listed as `exe`.
    let _ = rustix::thread::set_name(c"sidecore");
    // It ends with its daemon, and not by what is said to all processes of a terminal or service.
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    confine::launcher(confine::Mode::of_environment()).map_err(io::Error::other)?;
    let channel = Channel::of(io::stdin().as_fd().try_clone_to_owned()?);
    let mut heir: Option<Child> = None;
    while let Some(packet) = channel.receive(FOREVER)? {
        let Start { request } = serde_json::from_slice(&packet.bytes)?;
        if let Some(mut earlier) = heir.take() {
            // It was given up. If it has not ended yet it is left alone, as nobody's.
            let _ = earlier.try_wait();
        }
        let outcome = match packet.fds.into_iter().next() {
            Some(input) => match start(program, arguments, input) {
                Ok(child) => {
                    let pid = child.id();
                    heir = Some(child);
                    Outcome::Started { pid }
                }
                Err(error) => {
                    let program = program.display();
                    Outcome::Refused { why: format!("{program} cannot be started: {error}") }
                }
            },
            None => Outcome::Refused { why: "the heir would have no input".to_string() },
        };
        channel.send(&Answer { request, outcome }, &[], ANSWER_TIME_MAX)?;
    }
    Ok(())
}

fn start(program: &Path, arguments: &[OsString], input: OwnedFd) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.args(arguments).arg(HEIR_OPTION).env(confine::LAUNCHED, "");
    command.stdin(Stdio::from(input)).spawn()
}
