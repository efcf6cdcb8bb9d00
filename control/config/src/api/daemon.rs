//! The daemon itself, as operators see it. Part of [`crate::api`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The daemon itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DaemonView {
    /// Number of its process.
    pub pid: u32,
    /// Its configuration file, an absolute path.
    #[serde(default)]
    pub file: String,
    /// What it has given up.
    pub confinement: ConfinementView,
    /// How much of it devices can use up.
    pub bounds: BoundsView,
    /// Where it keeps what outlives it.
    #[serde(default)]
    pub state: StateView,
    /// Its launchers, of which one is needed for an upgrade.
    #[serde(default)]
    pub launchers: LaunchersView,
    /// Faults of the daemon's own since it was started: what its control counted on and did not find.
    #[serde(default)]
    pub defects: Vec<DefectView>,
}

/// Where a daemon keeps what outlives it: devices made by command, and which image each guest is on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StateView {
    /// `state_dir`, an absolute path.
    pub folder: String,
    /// Why nothing can be kept there, as far as a look tells; nothing, when it can.
    pub problem: Option<String>,
    /// Disks whose guests are served though their images could not be kept: after a restart such a guest would be
    /// served from another image, too.
    pub unkept: Vec<String>,
}

/// The processes that start another daemon in an upgrade: `sidecore launcher`, children of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LaunchersView {
    /// How many it started.
    pub started: u16,
    /// How many of them have not ended.
    pub living: u16,
    /// The numbers of the processes of these.
    #[serde(default)]
    pub pids: Vec<u32>,
    /// The program that they start, an absolute path.
    #[serde(default)]
    pub program: String,
}

/// A fault of the daemon's own. It went on without what it lacked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DefectView {
    /// Where in its program: file and line.
    pub at: String,
    /// What there was none of.
    pub expected: String,
    /// How often.
    pub count: u64,
}

/// What devices are promised of what the daemon may have; a device for which too little is left is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BoundsView {
    /// Devices that were promised something.
    pub devices: u64,
    /// Open files; the limit is `LimitNOFILE`.
    pub descriptors: BoundView,
    /// Parts of the address space; the limit is `vm.max_map_count`.
    pub mappings: BoundView,
    /// Memory of the daemon's own, in bytes; the limit is its cgroup's, or `RLIMIT_AS`.
    pub memory_bytes: BoundView,
    /// RAM and swap of the daemon's host, in bytes, which set a limit where no other one does: what is promised beyond
    /// them can be written by guests until the kernel ends processes. Absent where it cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory_bytes: Option<u64>,
}

/// How one thing is shared out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BoundView {
    /// What the daemon itself may take.
    pub own: u64,
    /// What is promised to devices: each can have its part at any time.
    pub promised: u64,
    /// What front-ends took beyond that.
    pub extra: u64,
    /// How much there is; nothing is no limit.
    pub limit: Option<u64>,
}

/// What the daemon has given up since it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfinementView {
    /// What becomes of a system call that a thread has no use for: `on`, it is refused; `strict`, it ends
    /// the daemon; `off`, nothing is confined.
    pub mode: String,
    /// Capabilities that its control thread has kept; the others have none.
    pub capabilities: Vec<String>,
    /// What landlock holds it to: `folders`, to `image_folders` and its own files; `missing`, the kernel has none;
    /// `off`, it was not asked to, and any file is opened.
    pub files: String,
    /// Its io_urings take only the operations that it uses (Linux 5.10).
    pub rings: bool,
}
