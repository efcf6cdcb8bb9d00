//! Disks, their queues, and what these did, as they are shown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AccessView, DiskServiceView, HeldView, StageView};
use crate::spec::{BackendKind, Cache, Format, OnFailure};

/// Every disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiskList {
    /// The disks, in the order they were declared; without their queues.
    pub disks: Vec<DiskView>,
}

/// What becomes of the requests of a disk that its IOhost has removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Removed {
    /// They fail: it was removed while this machine had it.
    Fails,
    /// They wait until it is there again: an IOhost that was started anew does not know it.
    Waits,
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
    /// A disk of another machine that its IOhost has removed, or lets this machine have no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed: Option<Removed>,
    /// Its socket.
    #[serde(flatten)]
    pub access: AccessView,
    /// What it is made of.
    pub backend: BackendKind,
    /// The image or block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The link to the IOhost that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Its name there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// Whether the host's page cache is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
    /// The format of its image, if it is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// Capacity, in bytes; null while nobody has said it: its image is not open, or its IOhost was not heard.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Bytes of its image, where that goes on behind the disk's end: its guest sees the first `size_bytes` of it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_bytes: Option<u64>,
    /// Logical block size that the guest sees, in bytes; null likewise.
    #[serde(default)]
    pub block_size_bytes: Option<u32>,
    /// The guest may not write.
    pub readonly: bool,
    /// Its image was missing or empty when it was opened, and no guest has used it since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_empty: bool,
    /// Serial number that the guest sees.
    pub serial: String,
    /// Queues offered.
    pub queues_max: u16,
    /// Queues that a sidecore serves now.
    pub queues_attached: u16,
    /// Those of them that an operator moved, and that stay where they are, whatever the loads.
    #[serde(default)]
    pub queues_by_hand: u16,
    /// How its queues are served.
    #[serde(flatten)]
    pub service: DiskServiceView,
    /// Its image may lie in a folder of another user, who owns it.
    #[serde(default)]
    pub allow_user_folder: bool,
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
    /// What becomes of a request for which there is no space; absent of what has no file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_full: Option<OnFailure>,
    /// What becomes of a request that the medium fails; likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnFailure>,
    /// How it is served, in words, once it is open: `null`, `memory`, `file, direct`, `file, page
    /// cache`, or `file, in memory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_as: Option<String>,
    /// Times since the disk was opened that a guest was not served because it was on another image.
    #[serde(default)]
    pub refusals: u64,
    /// What the disk did besides answering.
    #[serde(default)]
    pub faults: FaultsView,
    /// What is done to its requests on their way, in the order in which they come by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageView>,
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
    /// Requests that ended with an error since there was no space; those that wait are not among them.
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
    /// `migratable` disk that another process has locked, or for the image that it was on when another one is
    /// there, or for an IOhost that is silent or does not give the disk: requests wait.
    Waiting,
    /// A front-end is connected; no queue runs.
    Connected,
    /// At least one queue runs.
    Running,
    /// Queues run, and requests wait for space; see `problem`.
    #[serde(rename = "no space")]
    NoSpace,
    /// Queues run, and requests wait for a medium that fails; see `problem`.
    Failing,
    /// A queue or the session broke the rules, or the back-end is gone, as an IOhost's disk that was taken away: requests
    /// fail; see `problem`.
    Failed,
}

impl DiskState {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            DiskState::Waiting => "waiting",
            DiskState::Connected => "connected",
            DiskState::Running => "running",
            DiskState::NoSpace => "no space",
            DiskState::Failing => "failing",
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
    /// Those of them that wait for space.
    #[serde(default)]
    pub waiting_full: u32,
    /// Those of them that wait for a medium that fails.
    #[serde(default)]
    pub waiting_failed: u32,
    /// Requests that had to wait so, each counted once, however often it was tried again.
    #[serde(default)]
    pub stalls: u64,
    /// Half of the requests were answered within so many nanoseconds, from when the daemon took them to
    /// their completion: waiting in the ring, also for a limit, is not in it. Null before the first.
    #[serde(default)]
    pub latency_p50_ns: Option<u64>,
    /// The same for 99 of 100 requests.
    #[serde(default)]
    pub latency_p99_ns: Option<u64>,
}
