//! What the operator wrote: one schema for the file, the API and the command line.
//!
//! The comments on the fields are what `sidecore disk add --help`, `/openapi.json`, `docs/config.md`
//! and `docs/api.md` say; nothing else describes them. Defaults that depend on something else are
//! `None` here and filled in by [`crate::plan`]. Not here: whether the values make sense together.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

#[macro_use]
pub(crate) mod told;

mod disk;
mod failure;
mod limit;
mod link;
mod net;
mod nic;
mod policy;
mod rights;
mod stage;

pub use disk::*;
pub use failure::*;
pub use limit::*;
pub use link::*;
pub use net::*;
pub use nic::*;
pub use policy::*;
pub use rights::*;
pub use stage::*;

/// Largest share of one disk or NIC.
pub const SHARE_MAX: u32 = 10_000;
/// Share of a disk or NIC that says nothing.
pub const SHARE_DEFAULT: u32 = 100;
/// Microseconds for which a NIC's call for sent frames may wait where nothing is said: some dozens of frames, as
/// drivers of Ethernet cards wait by default (decision 7 has the price).
pub const NIC_MODERATE_DEFAULT_US: u32 = 64;
/// Seconds for which a front-end waits for a disk that does not answer where nothing is said.
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
    /// Unix socket on which the API only shows: whoever may open it sees what there is, and changes nothing. What
    /// a trace has recorded is not shown there. For monitoring. Default: there is none.
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
    pub api_read_mode: Option<ReadMode>,
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

/// The share of what says nothing.
fn usual_share() -> u32 {
    SHARE_DEFAULT
}

words! {
    Policy {
        Adaptive => "adaptive", Poll => "poll", Notify => "notify", Es2 => "es2", Elvis => "elvis"
    }
    Mode { Listen => "listen", Connect => "connect" }
}
