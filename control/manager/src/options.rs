//! What the program gives the control loop besides the plan.
//!
//! Not here: what is made of it (`begin`).

use config::Plan;
use config::api::ApiError;
use vcpu_tracker::{Tracker, Unavailable};

use crate::upgrade::heir::Heir;
use crate::upgrade::launcher::Launcher;

/// Reads the configuration file again, beside the plan in force.
pub(crate) type Load = dyn Fn(&Plan) -> Result<Plan, Unread>;

/// Why a file is none that a reload could do.
#[derive(Debug)]
pub struct Unread {
    /// What a reload is refused with.
    pub refused: ApiError,
    /// What a process that takes over makes of it, if that is something: it goes by `[daemon]` and the links of the file,
    /// and a reload by those in force.
    pub of_an_heir: Option<Box<Plan>>,
}

impl From<ApiError> for Unread {
    fn from(refused: ApiError) -> Unread {
        Unread { refused, of_an_heir: None }
    }
}

impl From<Unread> for ApiError {
    fn from(unread: Unread) -> ApiError {
        unread.refused
    }
}

/// The plan that a process makes of a file which takes over what `running` has: `read` reads it beside a plan, or alone.
pub fn of_an_heir(
    running: &Plan,
    read: impl Fn(Option<&Plan>) -> Option<Plan>,
) -> Option<Box<Plan>> {
    let Plan { daemon, links, .. } = read(None)?;
    let plan = read(Some(&Plan { daemon, links, ..running.clone() }))?;
    Some(Box::new(plan))
}

/// What the program gives the control loop besides the plan.
pub struct Options {
    /// The program's version.
    pub version: &'static str,
    /// The commit that it was built from, where that is known.
    pub commit: Option<&'static str>,
    /// The configuration file's name, for messages.
    pub file: String,
    /// The same as an absolute path.
    pub path: String,
    /// How the configuration file is read again.
    pub load: Box<Load>,
    /// Called once everything is open.
    pub ready: Box<dyn Fn()>,
    /// Called when a stop begins.
    pub stopping: Box<dyn Fn()>,
    /// What starts a successor; without it there is no upgrade.
    pub launcher: Option<Launcher>,
    /// What sees which vCPUs run, or why there is none; nothing where it was not tried.
    pub run_state: Option<Result<Tracker, Unavailable>>,
    /// Another daemon serves: this one is to take over from it.
    pub heir: Option<Heir>,
    /// Called when this process, which took over, is the one that serves from now on.
    pub committed: Box<dyn Fn()>,
    /// Called when process `.0` has taken over, just before this one ends.
    pub handed_over: Box<dyn Fn(u32)>,
}

impl Options {
    /// Which program it is, for operators.
    pub(crate) fn told(&self) -> String {
        match self.commit {
            Some(commit) => format!("{} ({commit})", self.version),
            None => self.version.to_string(),
        }
    }
}
