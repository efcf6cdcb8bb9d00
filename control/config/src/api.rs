//! What operators may ask of a running daemon, and what it answers.
//!
//! [`Call`] and [`Answer`] are what the API's thread and the control loop exchange;
//! [`crate::routes`] says which HTTP request is which call. The views are what `--json` prints. All numbers are totals
//! since the disk or the daemon started, unless they say otherwise. Not here: HTTP (`manager::api`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::{
    Carrier, DiskChange, DiskMove, DiskResize, DiskSpec, GroupChange, GroupSpec, NicChange,
    NicMove, NicSpec, StageChange, StageKind, SwitchSpec,
};

mod alike;
mod daemon;
mod disk;
mod group;
mod held;
mod link;
mod net;
mod reload;
mod sidecores;
mod stage;
mod vcpus;

pub use alike::*;
pub use daemon::*;
pub use disk::*;
pub use group::*;
pub use held::HeldView;
pub use link::*;
pub use net::*;
pub use reload::*;
pub use sidecores::*;
pub use stage::*;
pub use vcpus::*;

/// One request of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Every disk, without its queues. Answer: [`Answer::Disks`].
    ListDisks,
    /// One disk with its queues. Answer: [`Answer::Disk`].
    ShowDisk {
        /// Its name.
        id: String,
    },
    /// Make a disk. Answer: [`Answer::Disk`].
    AddDisk {
        /// What it shall be.
        spec: DiskSpec,
        /// Also one that is shorter than its image, or would be longer than the file system of that.
        force: bool,
    },
    /// Change a disk made through the API. Answer: [`Answer::Disk`].
    ChangeDisk {
        /// Its name.
        id: String,
        /// What shall be different.
        change: DiskChange,
    },
    /// Give a disk made through the API another capacity. Answer: [`Answer::Disk`].
    ResizeDisk {
        /// Its name.
        id: String,
        /// The capacity.
        resize: DiskResize,
        /// Also a smaller one while a guest uses it, and one beyond what its file system holds.
        force: bool,
    },
    /// Remove a disk made through the API. Answer: [`Answer::Disk`], as it last was.
    RemoveDisk {
        /// Its name.
        id: String,
        /// Also while a guest uses it.
        force: bool,
    },
    /// An operator has seen to a disk that could not make data stable: it may flush again. Answer:
    /// [`Answer::Disk`].
    ClearDisk {
        /// Its name.
        id: String,
    },
    /// The guest of a disk goes on with the image that is there, though it was on another one. Answer:
    /// [`Answer::Disk`].
    AcceptDisk {
        /// Its name.
        id: String,
    },
    /// Move queues of a disk to another sidecore. Answer: [`Answer::Disk`].
    MoveDisk {
        /// Its name.
        id: String,
        /// Which queues, and where to.
        wish: DiskMove,
    },
    /// What is done to requests of a disk on their way. Answer: [`Answer::Stages`].
    ListStages {
        /// Its name.
        id: String,
    },
    /// Add a stage to a disk, or change it, while the disk runs. Answer: [`Answer::Stages`].
    SetStage {
        /// Its name.
        id: String,
        /// Which one.
        kind: StageKind,
        /// What it shall be.
        change: StageChange,
    },
    /// Take a stage away that a command has added. Answer: [`Answer::Stages`].
    RemoveStage {
        /// The disk's name.
        id: String,
        /// Which one.
        kind: StageKind,
    },
    /// What the trace of a disk has recorded. Answer: [`Answer::Trace`].
    ReadTrace {
        /// The disk's name.
        id: String,
        /// From where.
        from: TraceFrom,
    },
    /// Every NIC, without its queues. Answer: [`Answer::Nics`].
    ListNics,
    /// One NIC with its queues. Answer: [`Answer::Nic`].
    ShowNic {
        /// Its name.
        id: String,
    },
    /// Make a NIC. Answer: [`Answer::Nic`].
    AddNic(NicSpec),
    /// Change a NIC made through the API. Answer: [`Answer::Nic`].
    ChangeNic {
        /// Its name.
        id: String,
        /// What shall be different.
        change: NicChange,
    },
    /// Take a NIC's cable out or put it in, wherever the NIC was declared; for one made through the
    /// API that is kept. Answer: [`Answer::Nic`].
    SetCarrier {
        /// Its name.
        id: String,
        /// Whether it is in from now on.
        carrier: Carrier,
    },
    /// Move a NIC of a switch to another sidecore. Answer: [`Answer::Nic`].
    MoveNic {
        /// Its name.
        id: String,
        /// Where to.
        wish: NicMove,
    },
    /// Remove a NIC made through the API. Answer: [`Answer::Nic`], as it last was.
    RemoveNic {
        /// Its name.
        id: String,
        /// Also while a guest uses it.
        force: bool,
    },
    /// Every switch, without its table of addresses. Answer: [`Answer::Switches`].
    ListSwitches,
    /// One switch with its table of addresses. Answer: [`Answer::Switch`].
    ShowSwitch {
        /// Its name.
        id: String,
    },
    /// Make a switch. Answer: [`Answer::Switch`].
    AddSwitch(SwitchSpec),
    /// Remove a switch made through the API that has no NIC left. Answer: [`Answer::Switch`], as it
    /// last was.
    RemoveSwitch {
        /// Its name.
        id: String,
    },
    /// Every group. Answer: [`Answer::Groups`].
    ListGroups,
    /// One group. Answer: [`Answer::Group`].
    ShowGroup {
        /// Its name.
        id: String,
    },
    /// Make a group. Answer: [`Answer::Group`].
    AddGroup(GroupSpec),
    /// Give a group made through the API another limit. Answer: [`Answer::Group`].
    ChangeGroup {
        /// Its name.
        id: String,
        /// What shall be different.
        change: GroupChange,
    },
    /// Remove a group made through the API that nothing is in. Answer: [`Answer::Group`], as it last
    /// was.
    RemoveGroup {
        /// Its name.
        id: String,
    },
    /// Every link. Answer: [`Answer::Links`].
    ListLinks,
    /// The daemon itself. Answer: [`Answer::Daemon`].
    ShowDaemon,
    /// Every sidecore. Answer: [`Answer::Sidecores`].
    ListSidecores,
    /// Read the configuration file again. Answer: [`Answer::Reloaded`].
    Reload {
        /// Also where a guest loses by it.
        force: bool,
    },
    /// What that would do. Answer: [`Answer::Reloaded`].
    ShowReload,
    /// Have a new process of the program take over. Answer: [`Answer::Upgraded`].
    Upgrade {
        /// Also where requests that wait end with an error, and where a new disk does not fit its image.
        force: bool,
    },
    /// Which program this is. Answer: [`Answer::Version`].
    Version,
}

impl Call {
    /// What it asks to have changed, in words for a log; nothing for a call that only shows.
    pub fn change(&self) -> Option<String> {
        let (what, id) = match self {
            Call::ListDisks
            | Call::ShowDisk { .. }
            | Call::ListStages { .. }
            | Call::ReadTrace { .. }
            | Call::ListNics
            | Call::ShowNic { .. }
            | Call::ListSwitches
            | Call::ShowSwitch { .. }
            | Call::ListGroups
            | Call::ShowGroup { .. }
            | Call::ListLinks
            | Call::ShowDaemon
            | Call::ListSidecores
            | Call::ShowReload
            | Call::Version => return None,
            Call::Reload { force } => {
                return Some(if *force { "reload --force" } else { "reload" }.to_string());
            }
            Call::Upgrade { force } => {
                return Some(if *force { "upgrade --force" } else { "upgrade" }.to_string());
            }
            Call::AddDisk { spec: DiskSpec { id, path: Some(path), .. }, force } => {
                let force = if *force { " --force" } else { "" };
                // Whose file it is to be is what a reader of the log looks for.
                let whose =
                    format!("disk add{force} {} --path {}", shown(id, 64), shown(path, 256));
                return Some(whose + &self.details());
            }
            Call::AddDisk { spec, force: true } => ("disk add --force", &spec.id),
            Call::AddDisk { spec, .. } => ("disk add", &spec.id),
            Call::ChangeDisk { id, .. } => ("disk set", id),
            Call::ResizeDisk { id, force: true, .. } => ("disk resize --force", id),
            Call::ResizeDisk { id, .. } => ("disk resize", id),
            Call::RemoveDisk { id, force: true } => ("disk rm --force", id),
            Call::RemoveDisk { id, .. } => ("disk rm", id),
            Call::ClearDisk { id } => ("disk clear", id),
            Call::AcceptDisk { id } => ("disk accept", id),
            Call::MoveDisk { id, .. } => ("disk move", id),
            Call::SetStage { id, kind, .. } => {
                let change = self.details();
                return Some(format!("disk stage set {} {kind}{change}", shown(id, 64)));
            }
            Call::RemoveStage { id, kind } => {
                return Some(format!("disk stage rm {} {kind}", shown(id, 64)));
            }
            Call::AddNic(spec) => ("nic add", &spec.id),
            Call::ChangeNic { id, .. } => ("nic set", id),
            Call::SetCarrier { id, .. } => ("nic link", id),
            Call::MoveNic { id, .. } => ("nic move", id),
            Call::RemoveNic { id, force: true } => ("nic rm --force", id),
            Call::RemoveNic { id, .. } => ("nic rm", id),
            Call::AddSwitch(spec) => ("switch add", &spec.id),
            Call::RemoveSwitch { id } => ("switch rm", id),
            Call::AddGroup(spec) => ("group add", &spec.id),
            Call::ChangeGroup { id, .. } => ("group set", id),
            Call::RemoveGroup { id } => ("group rm", id),
        };
        // A name that a device can have is as short.
        Some(format!("{what} {}{}", shown(id, 64), self.details()))
    }

    /// What is to be different, as it was sent, but for what was left out.
    fn details(&self) -> String {
        let sent = match self {
            Call::AddDisk { spec, .. } => serde_json::to_value(spec),
            Call::ChangeDisk { change, .. } => serde_json::to_value(change),
            Call::ResizeDisk { resize, .. } => serde_json::to_value(resize),
            Call::MoveDisk { wish, .. } => serde_json::to_value(wish),
            Call::SetStage { change, .. } => serde_json::to_value(change),
            Call::AddNic(spec) => serde_json::to_value(spec),
            Call::ChangeNic { change, .. } => serde_json::to_value(change),
            Call::SetCarrier { carrier, .. } => serde_json::to_value(carrier),
            Call::MoveNic { wish, .. } => serde_json::to_value(wish),
            Call::AddSwitch(spec) => serde_json::to_value(spec),
            Call::AddGroup(spec) => serde_json::to_value(spec),
            Call::ChangeGroup { change, .. } => serde_json::to_value(change),
            _ => return String::new(),
        };
        let Ok(mut sent) = sent else { return String::new() };
        if let Some(fields) = sent.as_object_mut() {
            fields.retain(|name, value| !value.is_null() && name != "id" && name != "path");
        }
        format!(" {}", shown(&sent.to_string(), DETAILS_MAX).replace("\\\"", "\""))
    }
}

/// Characters of what was sent that a log has.
const DETAILS_MAX: usize = 512;

/// For one line of a log: what a request has may be any text.
fn shown(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).flat_map(char::escape_debug).collect()
}

/// What came of a [`Call`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// Every disk.
    Disks(DiskList),
    /// One disk.
    Disk(Box<DiskView>),
    /// The stages of a disk.
    Stages(StageList),
    /// What a trace has recorded, which is read when the answer is written.
    Trace(TraceReader),
    /// Every NIC.
    Nics(NicList),
    /// One NIC.
    Nic(Box<NicView>),
    /// Every switch.
    Switches(SwitchList),
    /// One switch.
    Switch(Box<SwitchView>),
    /// Every group.
    Groups(GroupList),
    /// One group.
    Group(Box<GroupView>),
    /// Every link.
    Links(LinkList),
    /// Every sidecore.
    Sidecores(SidecoreList),
    /// What a reload did.
    Reloaded(ReloadView),
    /// Who serves now.
    Upgraded(UpgradeView),
    /// Which program answers.
    Version(VersionView),
    /// The daemon itself.
    Daemon(Box<DaemonView>),
}

/// Why a request was refused. Nothing was changed, unless `hint` says that it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{error}")]
pub struct ApiError {
    /// What sort of refusal; decides the HTTP status.
    #[serde(skip)]
    pub kind: ErrorKind,
    /// What was wrong, and where.
    pub error: String,
    /// What to do about it.
    pub hint: String,
}

/// Sorts of refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorKind {
    /// 400: not a request that this API has.
    Malformed,
    /// 403: the socket that only shows changes nothing.
    Forbidden,
    /// 404: no such disk, NIC, switch, group, or place.
    NotFound,
    /// 409: does not go with what is there (the name is taken, the device is the file's).
    Conflict,
    /// 422: well formed, but not possible.
    Refused,
    /// 503: not now; the same request may do later.
    Busy,
    /// 500: the daemon's or the host's fault.
    #[default]
    Internal,
}

impl ErrorKind {
    /// The HTTP status.
    pub fn status(self) -> u16 {
        match self {
            ErrorKind::Malformed => 400,
            ErrorKind::Forbidden => 403,
            ErrorKind::NotFound => 404,
            ErrorKind::Conflict => 409,
            ErrorKind::Refused => 422,
            ErrorKind::Busy => 503,
            ErrorKind::Internal => 500,
        }
    }
}

impl ApiError {
    /// A refusal with what to do about it.
    pub fn new(kind: ErrorKind, error: impl Into<String>, hint: impl Into<String>) -> ApiError {
        let hint = hint.into();
        debug_assert!(!hint.is_empty(), "a refusal says what to do");
        ApiError { kind, error: error.into(), hint }
    }

    /// What was wrong in one line, as a log has it: without the lines of a file in which mistakes are shown.
    pub fn in_a_line(&self) -> String {
        let is_said = |line: &&str| {
            let behind = line.trim_start_matches(|letter: char| letter.is_ascii_digit());
            !line.is_empty() && !behind.trim_start().starts_with('|')
        };
        let lines = self.error.lines().map(str::trim).filter(is_said);
        let lines = lines.map(|line| line.strip_prefix("= ").unwrap_or(line));
        lines.collect::<Vec<_>>().join("; ")
    }

    /// What was asked about went while that was waited for.
    pub fn gone(what: &str) -> ApiError {
        let hint = "`sidecore ls` and `sidecore switch show` list what there is";
        ApiError::new(ErrorKind::NotFound, format!("the {what} is gone"), hint)
    }

    /// A call that came to where nobody answers it: a fault of the daemon's own.
    pub fn unanswerable() -> ApiError {
        let hint = "report it with the daemon's log";
        ApiError::new(ErrorKind::Internal, "nobody in the daemon answers that", hint)
    }

    /// There is no disk of that name.
    pub fn no_such_disk(id: &str) -> ApiError {
        ApiError::new(
            ErrorKind::NotFound,
            format!("there is no disk {id:?}"),
            "`sidecore ls` lists the disks there are",
        )
    }

    /// There is no NIC of that name.
    pub fn no_such_nic(id: &str) -> ApiError {
        ApiError::new(
            ErrorKind::NotFound,
            format!("there is no nic {id:?}"),
            "`sidecore ls` lists the nics there are",
        )
    }

    /// There is no group of that name.
    pub fn no_such_group(id: &str) -> ApiError {
        ApiError::new(
            ErrorKind::NotFound,
            format!("there is no group {id:?}"),
            "`sidecore group show` lists the groups there are",
        )
    }

    /// There is no switch of that name.
    pub fn no_such_switch(id: &str) -> ApiError {
        ApiError::new(
            ErrorKind::NotFound,
            format!("there is no switch {id:?}"),
            "`sidecore switch show` lists the switches there are",
        )
    }
}

/// What an upgrade led to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UpgradeView {
    /// The process that serves now.
    pub pid: u32,
    /// Its version, and its commit where that is known.
    pub version: String,
    /// How long queues stood still; without, none was served, or the new process did not say.
    #[serde(default)]
    pub pause: Option<PauseView>,
    /// Sessions of other machines with links of this IOhost. None goes over: each client begins another one, and what
    /// its guests ask for waits until then. How long that took is not known here.
    #[serde(default)]
    pub sessions_anew: u32,
    /// Launchers that did not answer within 5 s each, as those that are stopped, before one did: so much longer it took.
    /// They ended with the process that served before.
    #[serde(default)]
    pub launchers_late: u32,
    /// What was different in the file; absent from a program that does not say it.
    #[serde(default)]
    pub configuration: Option<TakenFileView>,
}

/// How long queues stood still in an upgrade: each from the moment at which its sidecore was told to let it go
/// until one of the new process had it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PauseView {
    /// How many.
    pub queues: u32,
    /// Half of them no longer than so many nanoseconds.
    pub p50_ns: u64,
    /// The same for all.
    pub max_ns: u64,
    /// Of the longest: until requests in flight had ended and all queues were back.
    pub drained_ns: u64,
    /// From there until the new process was told to serve.
    pub handed_ns: u64,
    /// From there until its sidecore had it.
    pub started_ns: u64,
}

/// Which program answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VersionView {
    /// The program: `sidecore`.
    pub program: String,
    /// Its version.
    pub version: String,
    /// The commit that it was built from, with `-dirty` when the sources were not as committed; without, it was not built
    /// in a git repository.
    #[serde(default)]
    pub commit: Option<String>,
    /// The API's version: the first part of every path.
    pub api: String,
}
