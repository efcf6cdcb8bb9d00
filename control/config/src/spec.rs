//! What the operator wrote: one schema for the file, the API and the command line.
//!
//! The comments on the fields are what `sidecore disk add --help`, `/openapi.json`, `docs/config.md`
//! and `docs/api.md` say; nothing else describes them. Defaults that depend on something else are
//! `None` here and filled in by [`crate::plan`]. Not here: whether the values make sense together.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::size::Size;
use crate::target::Target;

/// The word that stands for a value in the file, the API and the command line.
macro_rules! words {
    ($($type:ident { $($variant:ident => $word:literal),+ })+) => {$(
        impl $type {
            /// As it is written.
            pub fn word(self) -> &'static str {
                match self { $($type::$variant => $word),+ }
            }
        }
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }
    )+};
}

mod failure;
mod limit;
mod link;
mod net;
mod policy;
mod rights;

pub use failure::*;
pub use limit::*;
pub use link::*;
pub use net::*;
pub use policy::*;
pub use rights::*;

/// Most queues of one disk: more than any guest has vCPUs that would gain from one each.
pub const QUEUES_MAX: u16 = 64;
/// Largest share of one disk or NIC.
pub const SHARE_MAX: u32 = 10_000;
/// Share of a disk or NIC that says nothing.
pub const SHARE_DEFAULT: u32 = 100;
/// Shortest and longest latency target, microseconds: less than a piece of another queue's turn nobody can
/// have.
pub const LATENCY_TARGET_US: (u32, u32) = (10, 1_000_000);
/// Shortest and longest time for which a disk's call may wait, microseconds: the sidecore is awake meanwhile.
pub const MODERATE_US: (u32, u32) = (1, 1000);
/// The same of a NIC's call for sent frames; with 0 none waits.
pub const NIC_MODERATE_US: (u32, u32) = (0, 1000);
/// The same of a NIC that says nothing: some dozens of frames, as drivers of Ethernet cards wait by default
/// (decision 7 has the price).
pub const NIC_MODERATE_DEFAULT_US: u32 = 64;
const _: () = assert!(NIC_MODERATE_DEFAULT_US <= NIC_MODERATE_US.1);
/// Longest wait for a disk that does not answer, seconds.
pub const DRAIN_TIMEOUT_MAX_S: u32 = 86_400;
/// The same for a disk that says nothing, seconds.
pub const DRAIN_TIMEOUT_DEFAULT_S: u32 = 60;
/// Most disks of one daemon, so that a script in a loop cannot fill the host.
pub const DISKS_MAX: usize = 4096;

/// The whole configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Spec {
    /// Where the daemon keeps its sockets and its state.
    pub daemon: DaemonSpec,
    /// Which cores do the work.
    pub sidecores: SidecoresSpec,
    /// The disks, one `[[disk]]` each.
    pub disk: Vec<DiskSpec>,
    /// Disks and NICs that have a limit together, one `[[group]]` each.
    pub group: Vec<GroupSpec>,
    /// The network switches, one `[[switch]]` each.
    pub switch: Vec<SwitchSpec>,
    /// The NICs, one `[[nic]]` each.
    pub nic: Vec<NicSpec>,
    /// The ways to other machines, one `[[link]]` each.
    pub link: Vec<LinkSpec>,
}

/// Where the daemon keeps its sockets and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DaemonSpec {
    /// Unix socket of the API. The commands look for it here unless told with `--api`.
    pub api: String,
    /// Folder for the sockets of disks and NICs that name none.
    pub run_dir: String,
    /// Folder in which disks, NICs and switches made through the API survive a restart.
    pub state_dir: String,
    /// Folders of images, or single images and block devices. If any is named, the daemon gives up at its
    /// start all other files but its own (landlock, Linux 5.13), and refuses a disk whose image, wherever
    /// links lead, is in none of them. In one of another user only that user's own files are images, as with
    /// `allow_user_folder`. A socket is then in `run_dir`, or in a folder that the file has for a socket at the
    /// start.
    pub image_folders: Vec<String>,
    /// Owner of the API's socket: a user's name or number. Whoever may open that socket may do everything, and
    /// have the daemon open any file that it can open itself. Default: the daemon's own user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_owner: Option<String>,
    /// Group of the API's socket: a group's name or number, that of operators, and not one of VMMs. Default: the
    /// daemon's own group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    /// Who may open the API's socket: `"0600"`, its owner, or `"0660"`, its group too. Default: `"0660"` with
    /// `api_group`, else `"0600"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_mode: Option<SocketMode>,
    /// Unix socket on which the API only shows: whoever may open it sees what there is, and changes nothing. For
    /// monitoring. Default: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_read: Option<String>,
    /// Owner of that socket. Default: the daemon's own user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_read_owner: Option<String>,
    /// Group of that socket. Default: the daemon's own group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_read_group: Option<String>,
    /// Who may open that socket: `"0600"`, `"0660"`, or `"0666"`, every user of this host. Default: `"0660"` with
    /// `api_read_group`, else `"0600"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_read_mode: Option<SocketMode>,
    /// Owner of the sockets of disks and NICs that name none: the user that all VMMs run as. VMMs of tenants
    /// that are not to open each other's sockets are users of their own, named at their disks and NICs. Default:
    /// the daemon's own user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_owner: Option<String>,
    /// Group of the sockets of disks and NICs that name none. Every member of it may open all of them, and so be
    /// any of their guests. Default: the daemon's own group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_group: Option<String>,
    /// Who may open the sockets of disks and NICs that say nothing: `"0600"`, the owner, or `"0660"`, the group
    /// too. Default: `"0660"` with `socket_group`, else `"0600"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<SocketMode>,
}

impl Default for DaemonSpec {
    fn default() -> DaemonSpec {
        DaemonSpec {
            api: "/run/sidecore/api.sock".to_string(),
            run_dir: "/run/sidecore".to_string(),
            state_dir: "/var/lib/sidecore".to_string(),
            image_folders: Vec::new(),
            api_owner: None,
            api_group: None,
            api_mode: None,
            api_read: None,
            api_read_owner: None,
            api_read_group: None,
            api_read_mode: None,
            socket_owner: None,
            socket_group: None,
            socket_mode: None,
        }
    }
}

/// Which cores do the work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SidecoresSpec {
    /// The cores given to I/O: a list such as `"2,3"` or `"2-5"`, or `"auto"`. `auto` takes the
    /// isolated cores if there are any, otherwise as few as suit the machine, never the first core
    /// if there is another.
    pub cpus: String,
    /// Fewest sidecores in use: when there is little to do the others sleep, and their queues are moved
    /// away. Refused if the host cannot give so many. Default: 1.
    #[schemars(range(min = 1, max = 1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u16>,
    /// Most sidecores: of `cpus`, the first so many are used, between `min` and all of them as the load
    /// asks for. Refused if the host cannot give so many. Without it, all of a list, or what `auto` finds
    /// suitable.
    #[schemars(range(min = 1, max = 1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u16>,
    /// When queues are polled, for disks and NICs that do not say.
    pub policy: Policy,
    /// When the policy `es2` waits for a kick.
    pub es2: Es2Spec,
    /// When the policy `elvis` polls and when it waits for a kick.
    pub elvis: ElvisSpec,
    /// Whether queues that ask little are served in the middle of other queues' turns.
    pub urgency: Urgency,
}

impl Default for SidecoresSpec {
    fn default() -> SidecoresSpec {
        SidecoresSpec {
            cpus: "auto".to_string(),
            min: None,
            max: None,
            policy: Policy::default(),
            es2: Es2Spec::default(),
            elvis: ElvisSpec::default(),
            urgency: Urgency::default(),
        }
    }
}

/// Whether queues that ask little are served in the middle of other queues' turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Urgency {
    /// They are: a guest that waits for each answer stays fast beside guests that stream. All that is
    /// taken from the others for it is 9% of the time at most.
    #[default]
    Watch,
    /// They wait for their turn.
    Off,
}

/// One disk of one guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[serde(deny_unknown_fields)]
pub struct DiskSpec {
    /// Name of the disk: 1 to 64 lower-case letters, digits, `-`, `_`, `.`, beginning with a letter or
    /// digit.
    pub id: String,
    /// Unix socket on which the VMM reaches the disk. Default: `<run_dir>/<id>.sock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "SOCKET"))]
    pub socket: Option<String>,
    /// Who opens that socket.
    #[serde(default)]
    #[cfg_attr(feature = "cli", arg(long, value_enum, default_value_t, value_name = "MODE"))]
    pub mode: Mode,
    /// Owner of that socket: a user's name or number, that of the VMM. Default: `socket_owner` of `[daemon]`, else
    /// the daemon's own user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "USER"))]
    pub socket_owner: Option<String>,
    /// Group of that socket: a group's name or number. Every member of it may open the socket. Default:
    /// `socket_group` of `[daemon]`, else the daemon's own group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "GROUP"))]
    pub socket_group: Option<String>,
    /// Who may open that socket: `"0600"`, its owner, or `"0660"`, its group too. Default: `"0660"` with a
    /// `socket_group`, else `socket_mode` of `[daemon]`, else `"0600"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "MODE"))]
    pub socket_mode: Option<SocketMode>,
    /// What the disk is made of. Default: `file` if there is a path, `remote` if there is a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "KIND"))]
    pub backend: Option<BackendKind>,
    /// `file`: the raw image or block device. In the file, relative to the file's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "PATH"))]
    pub path: Option<String>,
    /// `file`: the image may lie in a folder that belongs to another user than root and the daemon's, if
    /// that user owns the image: links of that user are not followed, and nothing is made there. Needless
    /// for what is in `image_folders`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "cli", arg(long))]
    pub allow_user_folder: bool,
    /// `file`: whether the host's page cache is used. Default: `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "CACHE"))]
    pub cache: Option<Cache>,
    /// `file`: the format of the image, if it is said. An image that no disk has served yet, and that begins
    /// as qcow2, QED, VMDK, VHDX, VHD, VDI, Parallels, Bochs, cloop or LUKS, is refused without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "FORMAT"))]
    pub format: Option<Format>,
    /// Capacity, such as `10G` (powers of 1024); a multiple of 512 bytes. Needed for `null` and `memory`;
    /// for `file`, the image's own size if it is not given, which then must be a multiple of 512, too. With it, an image that is shorter is made
    /// longer, and one that is missing is made, empty: also at a restart. So leave it out once the image
    /// is there, if its file system may be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "SIZE",
        value_parser = crate::number::size))]
    pub size: Option<Size>,
    /// `remote`: the link to the machine that has the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "LINK"))]
    pub link: Option<String>,
    /// `remote`: the disk's name there. Default: the same as here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "DISK"))]
    pub remote: Option<String>,
    /// Logical block size that the guest sees, in bytes: 512, or 4096 for an image that was partitioned on a disk
    /// with such sectors. The size of the disk is a multiple of it. Default: 512; of a remote disk what its
    /// IOhost says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 512, max = 4096))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "BYTES",
        value_parser = crate::number::of::<u32>("block_size", 512..=4096)))]
    pub block_size: Option<u32>,
    /// `file`: what becomes of a request for which there is no space (the file system, a quota or a thin pool
    /// is full): `wait` until there is some, or `error`. Default: `wait`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "WHAT"))]
    pub on_full: Option<OnFailure>,
    /// `file`: what becomes of a request that the medium fails: `error`, or `wait` until it is well again. A
    /// flush that fails is an error in either case: what it lost does not come back. Default: `error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "WHAT"))]
    pub on_error: Option<OnFailure>,
    /// The guest may not write.
    #[serde(default)]
    #[cfg_attr(feature = "cli", arg(long))]
    pub readonly: bool,
    /// Serial number that the guest sees: at most 20 printable ASCII characters. Default: the
    /// first 20 of the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "TEXT"))]
    pub serial: Option<String>,
    /// Queues offered to the guest; one for each vCPU is usual.
    #[serde(default = "one_queue")]
    #[schemars(range(min = 1, max = 64))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N", default_value_t = 1,
        value_parser = crate::number::of::<u16>("queues", 1..=64)))]
    pub queues: u16,
    /// How much of a busy core each queue gets, against the others' shares.
    #[serde(default = "usual_share")]
    #[schemars(range(min = 1, max = 10000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N", default_value_t = SHARE_DEFAULT,
        value_parser = crate::number::of::<u32>("share", 1..=10_000)))]
    pub share: u32,
    /// When its queues are polled. Default: the policy of `[sidecores]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "POLICY"))]
    pub policy: Option<Policy>,
    /// Most microseconds that a request is to wait in its queue before the daemon takes it. A queue
    /// that misses this is served in the middle of other queues' turns, for which its own share pays, so
    /// nobody else gets less; with `urgency = "off"` misses are only counted. Waiting for a limit does not
    /// count. Default: no target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 1_000_000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "US",
        value_parser = crate::number::of::<u32>("latency_target_us", 10..=1_000_000)))]
    pub latency_target_us: Option<u32>,
    /// Microseconds for which the call that tells the guest of a completion may wait, while at least four
    /// more of the same queue's requests are with the disk: fewer interrupts, for disks with many requests
    /// in flight. With fewer it never waits. Default: calls do not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "US",
        value_parser = crate::number::of::<u32>("moderate_us", 1..=1000)))]
    pub moderate_us: Option<u32>,
    /// Most requests a second of all its queues together. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u32>("limit_iops", 1..=1_000_000_000)))]
    pub limit_iops: Option<u32>,
    /// Most bytes a second, read and written, of all its queues together: `4K` or more (powers of 1024).
    /// Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "SIZE",
        value_parser = crate::number::size))]
    pub limit_bytes: Option<Size>,
    /// What may be used at once after a pause, as milliseconds of the full limit. A request
    /// that is larger is served whole, and those after it wait until it is earned. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 4, max = 60000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "MS",
        value_parser = crate::number::of::<u32>("limit_burst_ms", 4..=60_000)))]
    pub limit_burst_ms: Option<u32>,
    /// The group whose limit holds for it too. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "GROUP"))]
    pub group: Option<String>,
    /// Serve guests whose memory is not sealed against shrinking. Such a front-end can make the
    /// daemon's accesses fail by truncating its memory; leave it off unless a VMM needs it.
    #[serde(default)]
    #[cfg_attr(feature = "cli", arg(long))]
    pub allow_unsealed_memory: bool,
    /// Its guest may move to another daemon, on this host or another: the image is locked only while
    /// a guest here runs on it, so that two daemons can have the disk and one at a time uses it. For a
    /// file or block device that both can reach; a `memory` disk stays where it is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "cli", arg(long))]
    pub migratable: bool,
    /// Seconds that a front-end that stops a queue waits for requests that the disk does not answer;
    /// then its connection is closed, and the disk serves nobody before it has answered.
    #[serde(default = "usual_drain_timeout")]
    #[schemars(range(min = 1, max = 86400))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "SECONDS",
        default_value_t = DRAIN_TIMEOUT_DEFAULT_S,
        value_parser = crate::number::of::<u32>("drain_timeout", 1..=86_400)))]
    pub drain_timeout: u32,
}

impl DiskSpec {
    /// A disk of that name with every default.
    pub fn new(id: &str) -> DiskSpec {
        DiskSpec {
            id: id.to_string(),
            queues: 1,
            share: SHARE_DEFAULT,
            drain_timeout: DRAIN_TIMEOUT_DEFAULT_S,
            ..DiskSpec::default()
        }
    }
}

/// Who opens the socket of a disk or NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The daemon listens; the VMM connects (`server=off` in QEMU, the usual way).
    #[default]
    Listen,
    /// The VMM listens; the daemon connects, and again after a loss.
    Connect,
}

/// What a disk is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// Answers at once and keeps nothing: measures the path itself.
    Null,
    /// Sparse memory of the daemon; gone with it.
    Memory,
    /// A raw image or a block device.
    File,
    /// A disk of another machine, by a link.
    Remote,
}

/// Whether the host's page cache is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Past the page cache where the file system can do that, otherwise through it.
    #[default]
    Auto,
    /// Past the page cache (`O_DIRECT`); refused where that does not work.
    Direct,
    /// Through the page cache.
    Page,
}

/// How the bytes of an image are a disk's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One by one, whatever the image begins with.
    Raw,
}

/// What may be changed on a running disk. What is not named stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[cfg_attr(feature = "cli", group(required = true, multiple = true))]
#[serde(deny_unknown_fields)]
pub struct DiskChange {
    /// How much of a busy core each queue gets, against the others' shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u32>("share", 1..=10_000)))]
    pub share: Option<u32>,
    /// When its queues are polled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "POLICY"))]
    pub policy: Option<Policy>,
    /// Most microseconds that a request is to wait in its queue; 0 for no target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "US",
        value_parser = crate::number::of::<u32>("latency_target_us", 0..=1_000_000)))]
    pub latency_target_us: Option<u32>,
    /// Microseconds for which the call that tells the guest of a completion may wait for others; 0 for no
    /// waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "US",
        value_parser = crate::number::of::<u32>("moderate_us", 0..=1000)))]
    pub moderate_us: Option<u32>,
    /// Most requests a second of all its queues together; 0 for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u32>("limit_iops", 0..=1_000_000_000)))]
    pub limit_iops: Option<u32>,
    /// Most bytes a second, read and written, of all its queues together (K, M, G, T: powers of 1024); 0
    /// for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "SIZE",
        value_parser = crate::number::size))]
    pub limit_bytes: Option<Size>,
    /// What may be used at once after a pause, as milliseconds of the full limit. It stays when the limit
    /// is taken away, for the next one, also over a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 4, max = 60000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "MS",
        value_parser = crate::number::of::<u32>("limit_burst_ms", 4..=60_000)))]
    pub limit_burst_ms: Option<u32>,
    /// Owner of its socket, whoever is connected stays; an empty name for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "USER"))]
    pub socket_owner: Option<String>,
    /// Group of its socket; an empty name for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "GROUP"))]
    pub socket_group: Option<String>,
    /// Who may open its socket: `"0600"`, its owner, or `"0660"`, its group too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "MODE"))]
    pub socket_mode: Option<SocketMode>,
    /// The group whose limit holds for it too; an empty name for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "GROUP"))]
    pub group: Option<String>,
    /// What becomes of a request for which there is no space. With `error`, those that wait end so within a
    /// second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "WHAT"))]
    pub on_full: Option<OnFailure>,
    /// What becomes of a request that the medium fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "WHAT"))]
    pub on_error: Option<OnFailure>,
}

/// A new capacity for a running disk. The guest is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskResize {
    /// The new capacity; a multiple of 512 bytes.
    pub size: Size,
}

/// Another sidecore for queues of a disk, while they run. They stay there, whatever the loads, until they
/// are moved again, are let go (`auto`), or their front-end starts them anew; meanwhile that sidecore is not
/// parked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[serde(deny_unknown_fields)]
pub struct DiskMove {
    /// Number of the sidecore to move to; `auto`: stay for now, and be moved by the loads again.
    #[cfg_attr(feature = "cli", arg(long, value_name = "SIDECORE"))]
    pub to: Target,
    /// The queue to move. Without it, all that are served.
    #[cfg_attr(feature = "cli", arg(long, value_name = "QUEUE",
        value_parser = crate::number::of::<u16>("queue", 0..=65_535)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u16>,
}

/// Another sidecore for a NIC of a switch, with all its queues, while they run. It stays there, whatever the
/// loads, until it is moved again, is let go (`auto`), or its front-end goes; meanwhile that sidecore is not
/// parked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[serde(deny_unknown_fields)]
pub struct NicMove {
    /// Number of the sidecore to move to; `auto`: stay for now, and be moved by the loads again.
    #[cfg_attr(feature = "cli", arg(long, value_name = "SIDECORE"))]
    pub to: Target,
}

fn one_queue() -> u16 {
    1
}

fn usual_share() -> u32 {
    SHARE_DEFAULT
}

fn usual_drain_timeout() -> u32 {
    DRAIN_TIMEOUT_DEFAULT_S
}

words! {
    Policy {
        Adaptive => "adaptive", Poll => "poll", Notify => "notify", Es2 => "es2", Elvis => "elvis"
    }
    Mode { Listen => "listen", Connect => "connect" }
    BackendKind { Null => "null", Memory => "memory", File => "file", Remote => "remote" }
    Cache { Auto => "auto", Direct => "direct", Page => "page" }
}
