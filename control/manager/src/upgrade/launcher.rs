//! The process that starts heirs: a child of the daemon that keeps the rights which a start takes and the
//! daemon drops (docs/decisions/0009, "The launcher"; 0011, "The launcher").
//!
//! [`run`] is all that it does; [`Launcher`] is the daemon's end, of two of them. One holds nothing of the daemon but
//! one socket, and ends with it.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::channel::Channel;

/// How long its answer may take to be sent.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Nobody waits for it.
const AT_ONCE: Duration = Duration::ZERO;
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
    Started {
        pid: u32,
    },
    Refused {
        why: String,
    },
    /// The heir of that request has ended, and how: a word more, which nobody asked for.
    Ended {
        how: String,
    },
}

/// Launchers of one daemon: when the first has ended or does not answer, the other one is asked.
pub const LAUNCHERS: usize = 2;

/// The daemon's end of its launchers.
#[derive(Debug)]
pub struct Launcher {
    ends: Vec<End>,
    /// What they start; empty of a simulation's.
    program: PathBuf,
    /// The last one that was made.
    request: Cell<u64>,
    /// How its heir has ended, as far as was heard.
    how_ended: RefCell<Option<String>>,
}

#[derive(Debug)]
struct End {
    channel: Channel,
    /// Never waited for: it ends when the channel does, which is with this process. A simulation's is none.
    child: Option<Child>,
    /// It has ended before.
    is_gone: Cell<bool>,
}

/// Failure of a launcher to start an heir, or to be asked for that.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LauncherError {
    /// Number above the last.
    #[error("there is no such launcher")]
    Unknown,
    /// Failure to send.
    #[error("it cannot be asked: {0}")]
    Send(#[source] io::Error),
    /// Failure to receive.
    #[error("it cannot be heard: {0}")]
    Receive(#[source] io::Error),
    /// Malformed answer.
    #[error("it makes no sense: {0}")]
    Nonsense(#[source] serde_json::Error),
    /// Refusal, in its words.
    #[error("{0}")]
    Refused(String),
}

/// What a launcher said.
#[derive(Debug)]
pub(crate) enum Said {
    /// Nothing that was asked.
    Nothing,
    /// The heir is a process of that number, which stays known by it until the next one is started.
    Started(u32),
    /// Why it has started none.
    Refused(LauncherError),
    /// It is gone.
    Ended,
}

impl Launcher {
    /// Starts them: this program again, as `launcher`, with the arguments of this process. To be called
    /// before rights are dropped, and before much is open.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn start() -> io::Result<Launcher> {
        let program = program()?;
        let ends = (0..LAUNCHERS).map(|_| End::start(&program)).collect::<io::Result<_>>()?;
        Ok(Launcher::with(ends, program))
    }

    /// Those at the other ends of these channels, which are no processes.
    #[cfg(any(test, feature = "simulated"))]
    pub(crate) fn of(channels: impl IntoIterator<Item = Channel>) -> Launcher {
        let end = |channel| End { channel, child: None, is_gone: Cell::new(false) };
        Launcher::with(channels.into_iter().map(end).collect(), PathBuf::new())
    }

    fn with(ends: Vec<End>, program: PathBuf) -> Launcher {
        let (request, how_ended) = Default::default();
        Launcher { ends, program, request, how_ended }
    }

    /// What is readable when one says something.
    pub(crate) fn ends(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ends.iter().map(|end| end.channel.as_fd())
    }

    /// Has launcher `at` start an heir whose standard input is `input`, and does not wait for it.
    ///
    /// # Errors
    /// Why it cannot be asked.
    pub(crate) fn ask(&self, at: usize, input: BorrowedFd<'_>) -> Result<(), LauncherError> {
        let end = self.ends.get(at).ok_or(LauncherError::Unknown)?;
        let request = self.request.get().wrapping_add(1);
        self.request.set(request);
        self.how_ended.take();
        let sent = end.channel.send(&Start { request }, &[input], AT_ONCE);
        sent.map_err(LauncherError::Send)
    }

    /// What launcher `at` says, which said something.
    pub(crate) fn heard(&self, at: usize) -> Said {
        let Some(end) = self.ends.get(at) else { return Said::Ended };
        let packet = match end.channel.receive(AT_ONCE) {
            Ok(Some(packet)) => packet,
            Ok(None) => {
                end.is_gone.set(true);
                return Said::Ended;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Said::Nothing,
            Err(error) => return Said::Refused(LauncherError::Receive(error)),
        };
        match serde_json::from_slice(&packet.bytes) {
            // One that came too late is an answer to nothing, and the heir that it names ends by itself.
            Ok(Answer { request, .. }) if request != self.request.get() => Said::Nothing,
            Ok(Answer { outcome: Outcome::Started { pid }, .. }) => Said::Started(pid),
            Ok(Answer { outcome: Outcome::Refused { why }, .. }) => {
                Said::Refused(LauncherError::Refused(why))
            }
            // Whoever hears the end of the heir itself takes it.
            Ok(Answer { outcome: Outcome::Ended { how }, .. }) => {
                self.how_ended.replace(Some(how));
                Said::Nothing
            }
            Err(error) => Said::Refused(LauncherError::Nonsense(error)),
        }
    }

    /// How many have not ended, as far as was heard.
    pub(crate) fn living(&self) -> usize {
        self.living_ends().count()
    }

    /// The processes of these.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.living_ends().filter_map(|end| end.child.as_ref()).map(Child::id).collect()
    }

    fn living_ends(&self) -> impl Iterator<Item = &End> {
        self.ends.iter().filter(|end| !end.is_gone.get())
    }

    /// What they start.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// How the heir ended that was asked for last, as far as its launcher has said that: it is a moment behind.
    pub(crate) fn how_ended(&self) -> Option<String> {
        self.how_ended.take()
    }
}

impl End {
    fn start(program: &Path) -> io::Result<End> {
        let (channel, theirs) = Channel::pair()?;
        // Not by its name: the file may have been replaced a moment ago.
        let child = Command::new("/proc/self/exe")
            .arg0(program)
            .arg(LAUNCHER_COMMAND)
            .arg(program)
            .args(std::env::args_os().skip(1).filter(|word| word != HEIR_OPTION))
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(End { channel, child: Some(child), is_gone: Cell::new(false) })
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
    // One that was stopped does not see that its daemon has gone, and would start nobody's heirs when it goes on.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let channel = Channel::of(io::stdin().as_fd().try_clone_to_owned()?);
    let mut start_heir = |request, input| {
        let child = start(program, arguments, input).map_err(|error| {
            io::Error::other(format!("{} cannot be started: {error}", program.display()))
        })?;
        let pid = child.id();
        tell_end(request, child, Channel::of(io::stdin().as_fd().try_clone_to_owned()?));
        Ok(pid)
    };
    while serve_one(&channel, FOREVER, &mut start_heir)? {}
    Ok(())
}

/// Waits for the end of an heir on a thread of its own, so that no process is left of one that was given up, and tells
/// the daemon how it ended.
fn tell_end(request: u64, mut heir: Child, channel: Channel) {
    std::thread::spawn(move || {
        let how = heir.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        // One that has handed over has gone, and this process goes with it.
        let _ = say_ended(&channel, request, how);
    });
}

/// Tells the daemon how the heir of that request ended.
pub(crate) fn say_ended(channel: &Channel, request: u64, how: String) -> io::Result<()> {
    channel.send(&Answer { request, outcome: Outcome::Ended { how } }, &[], AT_ONCE)
}

/// Does the next thing that the daemon asks for. False: the daemon is gone.
///
/// # Errors
/// What it says makes no sense, or it hears nothing.
pub(crate) fn serve_one(
    channel: &Channel,
    limit: Duration,
    start: &mut dyn FnMut(u64, OwnedFd) -> io::Result<u32>,
) -> io::Result<bool> {
    let Some(packet) = channel.receive(limit)? else { return Ok(false) };
    let Start { request } = serde_json::from_slice(&packet.bytes)?;
    let input = packet.fds.into_iter().next();
    let started = input
        .ok_or_else(|| io::Error::other("the heir would have no input"))
        .and_then(|input| start(request, input));
    let outcome = match started {
        Ok(pid) => Outcome::Started { pid },
        Err(why) => Outcome::Refused { why: why.to_string() },
    };
    channel.send(&Answer { request, outcome }, &[], ANSWER_TIME_MAX)?;
    Ok(true)
}

fn start(program: &Path, arguments: &[OsString], input: OwnedFd) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.args(arguments).arg(HEIR_OPTION).env(confine::LAUNCHED, "");
    command.stdin(Stdio::from(input)).spawn()
}
