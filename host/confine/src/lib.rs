//! What this process gives up once it has started: capabilities, system calls, files.
//!
//! [`process`] is called once, by `serve`, before the first thread; [`thread`] first of all by each
//! thread. Nothing of it can be taken back. Why these rights and no others:
//! `docs/decisions/0011-confinement.md`. Not here: what a tenant may use up (`manager::bounds`), and
//! what an io_uring may do (`backend`).
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::thread::CapabilitySet;

mod calls;
mod capabilities;
mod files;
mod filter;

pub use capabilities::names as capability_names;
pub use files::{Landlock, landlock_abi, refuses_image};

/// What decides how strict the lists are: `strict` or `off`; anything else, and nothing, is the usual.
pub const ENVIRONMENT: &str = "SIDECORE_CONFINE";

/// Set for whatever a confined launcher starts.
pub const LAUNCHED: &str = "SIDECORE_LAUNCHED";

/// What is done with a system call that is not on a thread's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// EPERM.
    On,
    /// The process is killed: for tests, so that a call that is missing is seen.
    Strict,
    /// Nothing is confined.
    Off,
}

impl Mode {
    /// As the environment of this process has it.
    pub fn of_environment() -> Mode {
        match std::env::var(ENVIRONMENT).as_deref() {
            Ok("strict") => Mode::Strict,
            Ok("off") => Mode::Off,
            _ => Mode::On,
        }
    }

    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Mode::On => "on",
            Mode::Strict => "strict",
            Mode::Off => "off",
        }
    }
}

/// What kind of thread asks: each has its own list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Serves queues.
    Sidecore,
    /// Owns the plan; opens sockets, interfaces and what the daemon keeps, and no image.
    Control,
    /// Speaks HTTP.
    Api,
    /// Closes what front-ends sent.
    Closer,
    /// Makes a disk stable and closes it.
    Parting,
    /// Shakes hands for links.
    Greeter,
    /// Opens an image, finds who has it, and looks whether it is where it was.
    Opener,
}

/// What this process may need later of what not every daemon does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// There are links: sockets of IP.
    pub speaks_ip: bool,
    /// Sockets are another user's or group's than its own: CAP_CHOWN, if it has that.
    pub gives_sockets_away: bool,
}

/// Files that can be opened. All are absolute and exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Folders of images: what is in them is read, written and made.
    pub images: Vec<PathBuf>,
    /// Folders of sockets and state: what is in them is read, written, made and removed.
    pub own: Vec<PathBuf>,
    /// Single files and devices that are read and written.
    pub devices: Vec<PathBuf>,
    /// Files and folders that are read.
    pub read: Vec<PathBuf>,
}

/// What the process has given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confined {
    /// What becomes of calls that are not on a list.
    pub mode: Mode,
    /// What control still may.
    pub capabilities: CapabilitySet,
    /// Whether control may make sockets of IP: there are links.
    pub speaks_ip: bool,
    /// What landlock does.
    pub landlock: Landlock,
    /// Which files it may open; nothing, any.
    pub files: Option<Files>,
    /// Its number, to which its threads may send signals.
    pid: u32,
}

/// Why something could not be given up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// capabilities cannot be given up: {0}
    #[error("capabilities cannot be given up: {0}")]
    Capabilities(rustix::io::Errno),
    /// The kernel, or a container's own filter, takes no filter.
    #[error(
        "a seccomp filter cannot be installed: {0}; use a kernel with CONFIG_SECCOMP_FILTER, let the \
         container call seccomp and prctl, or start with SIDECORE_CONFINE=off"
    )]
    Filter(String),
    /// A folder that is named is not there, or the kernel refused.
    #[error("files cannot be restricted: {0}")]
    Files(String),
}

static CONFINED: OnceLock<Confined> = OnceLock::new();

/// Confines this process: what it does not need any more is gone for good, for the threads that it
/// makes too. With `files` only those can be opened, and none executed; without, any.
///
/// To be called while there is one thread. A second call does nothing.
///
/// # Errors
/// [`Error`]; then the process should end, for part of it may be done.
pub fn process(
    mode: Mode,
    files: Option<&Files>,
    needs: Needs,
) -> Result<&'static Confined, Error> {
    let Needs { speaks_ip, gives_sockets_away } = needs;
    if let Some(confined) = CONFINED.get() {
        return Ok(confined);
    }
    let confined = match mode {
        Mode::Off => Confined {
            mode,
            capabilities: capabilities::of_this_thread().map_err(Error::Capabilities)?,
            speaks_ip,
            landlock: Landlock::Off,
            files: None,
            pid: std::process::id(),
        },
        Mode::On | Mode::Strict => {
            rustix::thread::set_no_new_privs(true).map_err(Error::Capabilities)?;
            let capabilities =
                capabilities::reduce(gives_sockets_away).map_err(Error::Capabilities)?;
            let landlock = files::restrict(files)?;
            filter::process()?;
            let files = files.cloned();
            Confined { mode, capabilities, speaks_ip, landlock, files, pid: std::process::id() }
        }
    };
    Ok(CONFINED.get_or_init(|| confined))
}

/// Confines the process that starts heirs to what these need at their start, which it hands on: all that it gives up
/// they lack too. A second call, in a process that such a one has started, does nothing.
///
/// # Errors
/// [`Error`]; then the process should end.
pub fn launcher(mode: Mode) -> Result<(), Error> {
    if mode == Mode::Off {
        return Ok(());
    }
    capabilities::reduce_to_a_start().map_err(Error::Capabilities)?;
    // What writes this process's memory has its rights: nobody may whose rights are fewer.
    let hidden = rustix::process::DumpableBehavior::NotDumpable;
    rustix::process::set_dumpable_behavior(hidden).map_err(Error::Capabilities)?;
    // Filters are inherited, and each one costs all system calls of all heirs: one is enough.
    if std::env::var_os(LAUNCHED).is_some() {
        return Ok(());
    }
    rustix::thread::set_no_new_privs(true).map_err(Error::Capabilities)?;
    filter::launcher()
}

/// Confines the calling thread, and those that it makes, to what `kind` needs. Does nothing in a
/// process that was not confined.
///
/// # Errors
/// [`Error`]; then the thread should not go on.
pub fn thread(kind: Kind) -> Result<(), Error> {
    let Some(confined) = confined().filter(|confined| confined.mode != Mode::Off) else {
        return Ok(());
    };
    match kind {
        Kind::Control => {}
        Kind::Opener => capabilities::keep_for_files().map_err(Error::Capabilities)?,
        _ => capabilities::drop_all().map_err(Error::Capabilities)?,
    }
    filter::thread(kind, confined)
}

/// What this process has given up, if it was asked to.
pub fn confined() -> Option<&'static Confined> {
    CONFINED.get()
}
