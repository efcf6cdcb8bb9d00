//! What operators may ask of a running daemon, and what it answers.
//!
//! [`Call`] and [`Answer`] are what the API's thread and the control loop exchange;
//! [`crate::routes`] says which HTTP request is which call. The views are what `--json` prints. All numbers are totals
//! since the disk or the daemon started, unless they say otherwise. Not here: HTTP (`manager::api`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::{
    BackendKind, Cache, DiskChange, DiskMove, DiskResize, DiskSpec, GroupChange, GroupSpec,
    LinkState, Mode, NicChange, NicMove, NicSpec, Policy, SwitchSpec,
};

mod daemon;
mod group;
mod held;
mod net;

pub use daemon::*;
pub use group::*;
pub use held::HeldView;
pub use net::*;

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
    AddDisk(DiskSpec),
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
    },
    /// Remove a disk made through the API. Answer: [`Answer::Disk`], as it last was.
    RemoveDisk {
        /// Its name.
        id: String,
    },
    /// An operator has seen to a disk that could not make data stable: it may flush again. Answer:
    /// [`Answer::Disk`].
    ClearDisk {
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
    SetLink {
        /// Its name.
        id: String,
        /// Whether it is in from now on.
        link: LinkState,
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
    /// The daemon itself. Answer: [`Answer::Daemon`].
    ShowDaemon,
    /// Every sidecore. Answer: [`Answer::Sidecores`].
    ListSidecores,
    /// Read the configuration file again. Answer: [`Answer::Reloaded`].
    Reload,
    /// Have a new process of the program take over. Answer: [`Answer::Upgraded`].
    Upgrade,
    /// Which program this is. Answer: [`Answer::Version`].
    Version,
}

/// What came of a [`Call`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// Every disk.
    Disks(DiskList),
    /// One disk.
    Disk(Box<DiskView>),
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
    /// Every sidecore.
    Sidecores(SidecoreList),
    /// What a reload did.
    Reloaded(ReloadView),
    /// Who serves now.
    Upgraded(UpgradeView),
    /// Which program answers.
    Version(VersionView),
    /// The daemon itself.
    Daemon(DaemonView),
}

/// Why a request was refused. Nothing was changed.
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
        ApiError { kind, error: error.into(), hint: hint.into() }
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

/// Every disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiskList {
    /// The disks, in the order they were declared; without their queues.
    pub disks: Vec<DiskView>,
}

/// One disk as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiskView {
    /// Its name.
    pub id: String,
    /// Where it was declared: `api`, or the file and line.
    pub declared: String,
    /// How far it is.
    pub state: DiskState,
    /// Why it does not serve, if something is wrong: what happened and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Its Unix socket.
    pub socket: String,
    /// Who opens the socket.
    pub mode: Mode,
    /// What it is made of.
    pub backend: BackendKind,
    /// The image or block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Whether the host's page cache is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
    /// Capacity, in bytes.
    pub size_bytes: u64,
    /// Logical block size that the guest sees, in bytes.
    pub block_size_bytes: u32,
    /// The guest may not write.
    pub readonly: bool,
    /// Serial number that the guest sees.
    pub serial: String,
    /// Queues offered.
    pub queues_max: u16,
    /// Queues that a sidecore serves now.
    pub queues_attached: u16,
    /// Those of them that an operator moved, and that stay where they are, whatever the loads.
    #[serde(default)]
    pub queues_by_hand: u16,
    /// Share of a busy core, for each queue.
    pub share: u32,
    /// When its queues are polled.
    pub policy: Policy,
    /// That policy with its numbers, in words, such as `es2 (quota 4)`; absent where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_as: Option<String>,
    /// Most microseconds that a request is to wait in its queue; absent without a target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_target_us: Option<u32>,
    /// Microseconds for which the call for a completion may wait for others; absent where none waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moderate_us: Option<u32>,
    /// Most requests a second; absent without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_iops: Option<u32>,
    /// Most bytes a second; absent without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// What may be used at once after a pause, as milliseconds of the full limit; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_burst_ms: Option<u32>,
    /// The group whose limit holds for it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Memory that is not sealed against shrinking is accepted.
    pub allow_unsealed_memory: bool,
    /// Its image is locked only while a guest here runs on it, so that the guest may move to another
    /// daemon.
    #[serde(default)]
    pub migratable: bool,
    /// The image is locked by this daemon now; absent of what has no locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<bool>,
    /// Seconds that a front-end waits for requests that the disk does not answer.
    #[serde(default)]
    pub drain_timeout: u32,
    /// How it is served, in words, once it is open: `null`, `memory`, `file, direct`, `file, page
    /// cache`, or `file, in memory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_as: Option<String>,
    /// What the disk did besides answering.
    #[serde(default)]
    pub faults: FaultsView,
    /// Of all its queues together.
    pub counters: CountersView,
    /// Its queues that are or were set up; absent in a list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<QueueView>,
}

/// What requests met at the disk since it was opened, and how often data was made stable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FaultsView {
    /// Requests that the medium failed, and flushes that failed.
    pub eio: u64,
    /// Requests for which the file system had no space.
    pub enospc: u64,
    /// Transfers that the kernel did in part; most went on and ended well.
    pub short: u64,
    /// Requests that failed otherwise: the guest's memory was gone, the disk was taken away.
    pub other: u64,
    /// Times that the kernel was asked to make data stable, and did.
    pub syncs: u64,
}

/// How far a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DiskState {
    /// No front-end is connected; or, with a `problem`, requests of an earlier process are still with
    /// the disk, and it has no socket before they end, or a guest waits for the image of a
    /// `migratable` disk that another process has locked.
    Waiting,
    /// A front-end is connected; no queue runs.
    Connected,
    /// At least one queue runs.
    Running,
    /// A queue or the session broke the rules, or the back-end is gone; see `problem`.
    Failed,
}

impl DiskState {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            DiskState::Waiting => "waiting",
            DiskState::Connected => "connected",
            DiskState::Running => "running",
            DiskState::Failed => "failed",
        }
    }
}

/// One queue of a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueView {
    /// Its number.
    pub index: u16,
    /// The sidecore that serves it; absent while none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecore: Option<u16>,
    /// An operator moved it there: it stays, whatever the loads, until it is moved again, let go, or its
    /// front-end starts it anew.
    #[serde(default)]
    pub by_hand: bool,
    /// What it took of that sidecore's time at the last look, in percent.
    #[serde(default)]
    pub busy_percent: u32,
    /// Entries of its ring.
    pub size: u16,
    /// `split` or `packed`.
    pub format: String,
    /// The first rule that its driver broke; it is not served since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub violation: Option<String>,
    /// What it did.
    pub counters: CountersView,
}

/// What a queue, or all of a disk's queues, did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CountersView {
    /// Requests answered.
    pub requests: u64,
    /// Reads among them.
    pub reads: u64,
    /// Writes among them.
    pub writes: u64,
    /// Flushes among them.
    pub flushes: u64,
    /// Discards and write-zeroes among them.
    pub discards: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Kicks: guest to us.
    pub kicks: u64,
    /// Calls: us to guest.
    pub calls: u64,
    /// Turns in the sidecore's loop.
    pub visits: u64,
    /// Requests that waited in their queue for longer than its latency target, at most: counted by when
    /// the ring was looked at before. Waiting for a limit does not count.
    #[serde(default)]
    pub missed: u64,
    /// What it waited for limits.
    #[serde(flatten)]
    pub held: HeldView,
    /// Requests taken and not yet answered, now.
    pub in_flight: u32,
    /// Half of the requests were answered within so many nanoseconds, from when the daemon took them to
    /// their completion: waiting in the ring, also for a limit, is not in it.
    pub latency_p50_ns: u64,
    /// The same for 99 of 100 requests.
    pub latency_p99_ns: u64,
}

/// Every sidecore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SidecoreList {
    /// The sidecores, by number.
    pub sidecores: Vec<SidecoreView>,
}

/// Whether a sidecore is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SidecoreState {
    /// It has queues, or gets the next ones.
    #[default]
    InUse,
    /// There is too little to do: its queues are being moved to others, then it is parked.
    Leaving,
    /// It sleeps, until the load asks for it or a queue is moved there.
    Parked,
}

impl SidecoreState {
    /// As it is shown.
    pub fn word(self) -> &'static str {
        match self {
            SidecoreState::InUse => "in use",
            SidecoreState::Leaving => "leaving",
            SidecoreState::Parked => "parked",
        }
    }
}

/// One sidecore as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SidecoreView {
    /// Its number.
    pub index: u16,
    /// The cpu it is pinned to; absent if it is not pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Its NUMA node; absent on a host that has one only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// Whether it is in use.
    #[serde(default)]
    pub state: SidecoreState,
    /// Time it worked, of the time between the last two looks, in percent; looking at empty queues is no
    /// work. A look is made every 100 ms while there is load, else every second.
    #[serde(default)]
    pub busy_percent: u32,
    /// Time in which it looked at empty queues, of the same, in percent: it took its cpu, and worked nothing.
    /// What these two leave of 100 it slept.
    #[serde(default)]
    pub poll_percent: u32,
    /// Queues it serves.
    pub queues: u16,
    /// Trips of its loop.
    pub passes: u64,
    /// Time in trips that found work, in nanoseconds.
    pub busy_ns: u64,
    /// Time in trips that found none, in nanoseconds; sleep is not counted.
    pub idle_ns: u64,
    /// How often it slept.
    pub sleeps: u64,
    /// Time asleep, in nanoseconds; of sleeps that have ended.
    #[serde(default)]
    pub asleep_ns: u64,
    /// Kicks it took.
    pub kicks: u64,
    /// Requests and frames it took from rings.
    #[serde(default)]
    pub requests: u64,
    /// Requests and frames that needed no kick: those it took, less its kicks.
    #[serde(default)]
    pub kicks_avoided: u64,
    /// Queues that came from another sidecore while they ran.
    #[serde(default)]
    pub moves_in: u64,
    /// Queues that went to another sidecore while they ran.
    #[serde(default)]
    pub moves_out: u64,
    /// Queues of disks, and NICs, that were to go to another sidecore and stayed, most because requests or
    /// frames under way did not end in time.
    #[serde(default)]
    pub moves_stayed: u64,
    /// Half of the queues that came were looked at by nobody for no longer than so many nanoseconds.
    #[serde(default)]
    pub move_pause_p50_ns: u64,
    /// The same for 99 of 100.
    #[serde(default)]
    pub move_pause_p99_ns: u64,
    /// The same for all.
    #[serde(default)]
    pub move_pause_max_ns: u64,
    /// Times that the kernel took no requests at all; they were tried again.
    #[serde(default)]
    pub io_errors: u64,
}

/// What a reload did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReloadView {
    /// The file that was read.
    pub file: String,
    /// What was changed, in order, in words.
    pub changes: Vec<String>,
    /// What is different in the file and comes into force only when the daemon is restarted.
    pub restart_needed: Vec<String>,
}

/// What an upgrade led to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UpgradeView {
    /// The process that serves now.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// How long queues stood still; without, none was served, or the new process did not say.
    #[serde(default)]
    pub pause: Option<PauseView>,
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
    /// The API's version: the first part of every path.
    pub api: String,
}
