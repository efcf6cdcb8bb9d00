//! What the operator wrote about switches and NICs.
//!
//! As for disks: the comments are the help texts. Not here: whether the values make sense together
//! (`plan`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Mode, Policy, SHARE_DEFAULT, SocketMode};
use crate::mac::Mac;
use crate::mistake::{Mistake, Path};
use crate::schema;
use crate::size::Size;

/// Most pairs of queues of one NIC.
pub const PAIRS_MAX: u16 = 16;
/// Most NICs of one daemon, so that a script in a loop cannot fill the host.
pub const NICS_MAX: usize = 4096;
/// Most switches of one daemon.
pub const SWITCHES_MAX: usize = 256;
/// Most ports of one switch: its NICs and its uplinks.
pub const PORTS_MAX: usize = 1024;
/// Most uplinks of one switch.
pub const UPLINKS_MAX: usize = 16;
/// Largest VLAN number (IEEE 802.1Q; 4095 is reserved).
pub const VLAN_MAX: u16 = 4094;
/// Most addresses in the table of one switch.
pub const MACS_MAX: u16 = 32_768;
/// The same for a switch that says nothing.
pub const MACS_DEFAULT: u16 = 8192;
/// Addresses that one guest may use, for a NIC that says nothing.
pub const NIC_MACS_DEFAULT: u16 = 1024;
/// Longest time that an address is remembered, seconds.
pub const AGEING_MAX_S: u32 = 86_400;
/// The same for a switch that says nothing, seconds.
pub const AGEING_DEFAULT_S: u32 = 300;
/// Largest MTU of a NIC that comes by a link, bytes.
pub const REMOTE_MTU_MAX: u16 = 9000;
/// Smallest MTU (VIRTIO 1.2, 5.1.4.1), bytes.
pub const MTU_MIN: u16 = 68;
/// MTU of a NIC that says nothing, bytes.
pub const MTU_DEFAULT: u16 = 1500;
/// Smallest frame that `null = "generate"` makes: the least that Ethernet carries without its
/// checksum, bytes.
pub const FRAME_MIN: u32 = 60;
/// An Ethernet header, bytes.
pub const ETHERNET_HEADER: u32 = 14;

/// One network switch inside the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[serde(deny_unknown_fields)]
pub struct SwitchSpec {
    /// Name of the switch: 1 to 64 lower-case letters, digits, `-`, `_`, `.`, beginning with a letter or
    /// digit.
    pub id: String,
    /// Seconds for which the switch remembers where an address was last seen.
    #[serde(default = "usual_ageing")]
    #[schemars(range(min = 1, max = 86400))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "SECONDS",
        default_value_t = AGEING_DEFAULT_S,
        value_parser = crate::number::of::<u32>("ageing_s", 1..=86_400)))]
    pub ageing_s: u32,
    /// Addresses that the switch remembers. Frames to others go to every port.
    #[serde(default = "usual_macs")]
    #[schemars(range(min = 1, max = 32768))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N", default_value_t = MACS_DEFAULT,
        value_parser = crate::number::of::<u16>("macs_max", 1..=32_768)))]
    pub macs_max: u16,
    /// The ways out of the switch to this host and its networks. On the command line, once for each:
    /// `tap=NAME` or `interface=NAME`, then `via=`, `vlan=`, `trunk=10+20`, `native=`, `share=` after
    /// commas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "cli", arg(long = "uplink", value_name = "UPLINK"))]
    pub uplink: Vec<UplinkSpec>,
}

impl SwitchSpec {
    /// A switch of that name with every default and no uplink.
    pub fn new(id: &str) -> SwitchSpec {
        SwitchSpec {
            id: id.to_string(),
            ageing_s: AGEING_DEFAULT_S,
            macs_max: MACS_DEFAULT,
            uplink: Vec::new(),
        }
    }
}

/// One way out of a switch: a port that belongs to this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UplinkSpec {
    /// The tap interface that is this port's other side. It is made if it is not there; what was made
    /// is removed with the uplink, and stays when the daemon stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tap: Option<String>,
    /// The interface of this host whose network the port is connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// How frames come from that interface and go to it. Default: `packet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<Via>,
    /// The port is for a NIC of another machine's guest: a client of a link may have it that names it in `nics`. 1 to
    /// 64 lower-case letters, digits, `-`, `_`, `.`, beginning with a letter or digit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// `remote`: the NIC's Ethernet address, which no other port gets frames of. Default: made from the name, as the
    /// client's is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// `remote`: whether its guest may send from other addresses than that. Default: `allow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spoof: Option<Spoof>,
    /// The port's frames have no tag, and are of this VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4094))]
    pub vlan: Option<u16>,
    /// The port's frames carry the tag of one of these VLANs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(inner(range(min = 1, max = 4094)))]
    pub trunk: Option<Vec<u16>>,
    /// With `trunk`: frames without a tag are of this VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4094))]
    pub native: Option<u16>,
    /// Addresses that may be learned at this port. Default: as many as the switch remembers; `remote`: 1024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32768))]
    pub macs_max: Option<u16>,
    /// How much of a busy core the port gets, against the shares of queues and other ports.
    #[serde(default = "usual_share")]
    #[schemars(range(min = 1, max = 10000))]
    pub share: u32,
    /// When the port is polled. Default: the policy of `[sidecores]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
}

impl Default for UplinkSpec {
    fn default() -> UplinkSpec {
        UplinkSpec {
            tap: None,
            interface: None,
            via: None,
            remote: None,
            mac: None,
            spoof: None,
            vlan: None,
            trunk: None,
            native: None,
            macs_max: None,
            share: SHARE_DEFAULT,
            policy: None,
        }
    }
}

/// As on the command line: `tap=lan0,vlan=10`, or `interface=eth1,via=xdp,trunk=10+20,native=1`.
impl std::str::FromStr for UplinkSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<UplinkSpec, String> {
        let mut fields = serde_json::Map::new();
        for field in text.split(',') {
            let Some((name, value)) = field.split_once('=') else {
                return Err(format!("{field:?} is not NAME=VALUE, such as tap=lan0"));
            };
            let number = |digits: &str| digits.parse::<u64>().map(serde_json::Value::from);
            let value = match name {
                "trunk" => value
                    .split('+')
                    .map(number)
                    .collect::<Result<_, _>>()
                    .map_err(|_| format!("{value:?} is not a list of VLANs, such as 10+20"))?,
                // Names may be digits.
                "tap" | "interface" | "via" | "policy" | "remote" | "mac" | "spoof" => value.into(),
                _ => number(value).unwrap_or(value.into()),
            };
            if fields.insert(name.to_string(), value).is_some() {
                return Err(format!("`{name}` is given twice"));
            }
        }
        schema::read(fields.into(), &Path::root()).map_err(|mistakes: Vec<Mistake>| {
            let all = mistakes.iter().map(|mistake| match mistake.right.is_empty() {
                true => mistake.to_string(),
                false => format!("{mistake} ({})", mistake.right),
            });
            all.collect::<Vec<_>>().join("; ")
        })
    }
}

/// One network card of one guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[serde(deny_unknown_fields)]
pub struct NicSpec {
    /// Name of the NIC: 1 to 64 lower-case letters, digits, `-`, `_`, `.`, beginning with a letter or
    /// digit. No disk has the same.
    pub id: String,
    /// The switch that it is a port of. A NIC has one of `switch`, `tap`, `interface`, `by_link` and `null`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "ID"))]
    pub switch: Option<String>,
    /// The tap interface that it is wired to. It is made if it is not there; what was made is removed
    /// with the NIC, and stays when the daemon stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "NAME"))]
    pub tap: Option<String>,
    /// The interface of this host whose network it is wired to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "NAME"))]
    pub interface: Option<String>,
    /// `interface`: how frames come from it and go to it. Default: `packet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "VIA"))]
    pub via: Option<Via>,
    /// The link with whose IOhost it is: there it is a port of a switch, an `uplink` with `remote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "LINK"))]
    pub by_link: Option<String>,
    /// `by_link`: its name there. Default: its name here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "NAME"))]
    pub remote: Option<String>,
    /// Nothing is behind it: for measuring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "KIND"))]
    pub null: Option<NullKind>,
    /// `null = "generate"`: bytes of each frame, from 60 to the MTU and 14. Default: 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 65549))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "BYTES",
        value_parser = crate::number::of::<u32>("size", 60..=65_549)))]
    pub size: Option<u32>,
    /// `null = "generate"`: frames a second. Default: 0, as many as the guest takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4294967295_u32))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u32>("rate", 0..=u32::MAX)))]
    pub rate: Option<u32>,
    /// Its Ethernet address. Default: made from the id (`by_link`: from its name there), always the same for one; so
    /// write it where two hosts of one network have NICs of the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "MAC"))]
    pub mac: Option<Mac>,
    /// `switch`: its frames have no tag, and are of this VLAN. Without `vlan` and `trunk`, it reaches
    /// only ports without them; while no port of the switch has either, tags pass as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4094))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u16>("vlan", 1..=4094)))]
    pub vlan: Option<u16>,
    /// `switch`: its frames carry the tag of one of these VLANs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(inner(range(min = 1, max = 4094)))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N,N...", value_delimiter = ',',
        value_parser = crate::number::of::<u16>("trunk", 1..=4094)))]
    pub trunk: Option<Vec<u16>>,
    /// With `trunk`: frames without a tag are of this VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4094))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u16>("native", 1..=4094)))]
    pub native: Option<u16>,
    /// `switch`: addresses that the guest may use. Frames from more are dropped. Default: 1024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32768))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u16>("macs_max", 1..=32_768)))]
    pub macs_max: Option<u16>,
    /// `switch`: whether the guest may send from other addresses than the NIC's own. Default: `allow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "RULE"))]
    pub spoof: Option<Spoof>,
    /// Pairs of queues offered to the guest, each to receive and to transmit; one for each vCPU is
    /// usual.
    #[serde(default = "one_pair")]
    #[schemars(range(min = 1, max = 16))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N", default_value_t = 1,
        value_parser = crate::number::of::<u16>("queues", 1..=16)))]
    pub queues: u16,
    /// Largest IP packet, in bytes; `by_link`: up to 9000, whatever the link's own is. The guest is told.
    #[serde(default = "usual_mtu")]
    #[schemars(range(min = 68, max = 65535))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "BYTES", default_value_t = MTU_DEFAULT,
        value_parser = crate::number::of::<u16>("mtu", 68..=65_535)))]
    pub mtu: u16,
    /// Whether its cable is in when it is made. `sidecore nic link` changes it while it runs.
    #[serde(default)]
    #[cfg_attr(feature = "cli", arg(long, value_enum, default_value_t, value_name = "STATE"))]
    pub link: LinkState,
    /// Whether the guest is offered frames that are not cut and have no checksum yet (`GUEST_CSUM`, `GUEST_TSO4`,
    /// `GUEST_TSO6`, `GUEST_ECN`, `GUEST_USO4`, `GUEST_USO6`). `false` costs throughput, and is for a guest that
    /// attaches XDP or looks at frames with a program that cannot take such ones: the daemon finishes every frame.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "BOOL", default_value_t = true,
        action = clap::ArgAction::Set))]
    pub guest_offloads: bool,
    /// Unix socket on which the VMM reaches the NIC. Default: `<run_dir>/<id>.sock`.
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
    /// How much of a busy core each transmit queue gets, against the others' shares.
    #[serde(default = "usual_share")]
    #[schemars(range(min = 1, max = 10000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N", default_value_t = SHARE_DEFAULT,
        value_parser = crate::number::of::<u32>("share", 1..=10_000)))]
    pub share: u32,
    /// When its queues are polled. Default: the policy of `[sidecores]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "POLICY"))]
    pub policy: Option<Policy>,
    /// Most microseconds that a request is to wait in its queue before the daemon takes it, for its
    /// transmit queues. A queue that misses this is served in the middle of other queues' turns, for which its own share pays, so
    /// nobody else gets less; with `urgency = "off"` misses are only counted. Waiting for a limit does not
    /// count. Default: no target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 1_000_000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "US",
        value_parser = crate::number::of::<u32>("latency_target_us", 10..=1_000_000)))]
    pub latency_target_us: Option<u32>,
    /// Microseconds for which the call that tells the guest of frames it sent may wait after the last time
    /// when it was asked whether it wants one: fewer interrupts for guests that send much. A frame after a
    /// pause is told of at once, the last ones as soon as the queue is polled no longer, and what is received
    /// always at once. A guest that waits for room in its ring or its socket may wait as long (and a turn of
    /// the sidecore). 0 for no waiting. Default: 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "US",
        value_parser = crate::number::of::<u32>("moderate_us", 0..=1000)))]
    pub moderate_us: Option<u32>,
    /// When a frame for the guest goes to another of its queues than its flow's own, because the vCPU that
    /// this one interrupts has no core; with two `queues` or more. Frames of a flow stay in order. Default:
    /// `off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "WHEN"))]
    pub redirect: Option<Redirect>,
    /// The vCPU that each pair of queues interrupts, from the first pair on. Default: pair 0 vCPU 0, pair 1
    /// vCPU 1, as Linux guests do with as many queues as vCPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N,N...", value_delimiter = ',',
        value_parser = crate::number::of::<u16>("vcpus", 0..=65_535)))]
    pub vcpus: Option<Vec<u16>>,
    /// Unix socket of the VMM's QMP, of which the daemon asks which threads are the guest's vCPUs, where it goes by
    /// these (`redirect`). QEMU serves one client at a time there, so give it one for this
    /// alone: `-qmp unix:SOCKET,server=on,wait=off`. In the file, relative to the file's folder. Default: they
    /// are known by their names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "SOCKET"))]
    pub qmp: Option<String>,
    /// Most packets a second that all its queues together send, and as many that they receive: each way
    /// has an allowance of its own. A packet is what the guest's ring carries, up to 64 KiB with
    /// offloads. What the guest sends beyond it waits in its ring; what is sent to it is dropped, and
    /// counted as `over_limit`. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u32>("limit_packets", 1..=1_000_000_000)))]
    pub limit_packets: Option<u32>,
    /// Most bytes a second that all its queues together send, and as many that they receive, with
    /// Ethernet headers: `4K` or more (powers of 1024). Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "SIZE",
        value_parser = crate::number::size))]
    pub limit_bytes: Option<Size>,
    /// What may be used at once after a pause, as milliseconds of the full limit. A frame
    /// that is larger passes whole, and those after it wait until it is earned. Default: 100.
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
}

impl NicSpec {
    /// A NIC of that name with every default, connected to nothing yet.
    pub fn new(id: &str) -> NicSpec {
        NicSpec {
            id: id.to_string(),
            switch: None,
            tap: None,
            interface: None,
            via: None,
            by_link: None,
            remote: None,
            null: None,
            size: None,
            rate: None,
            mac: None,
            vlan: None,
            trunk: None,
            native: None,
            macs_max: None,
            spoof: None,
            queues: 1,
            mtu: MTU_DEFAULT,
            link: LinkState::Up,
            guest_offloads: true,
            socket: None,
            mode: Mode::Listen,
            socket_owner: None,
            socket_group: None,
            socket_mode: None,
            share: SHARE_DEFAULT,
            policy: None,
            latency_target_us: None,
            moderate_us: None,
            redirect: None,
            vcpus: None,
            qmp: None,
            limit_packets: None,
            limit_bytes: None,
            limit_burst_ms: None,
            group: None,
            allow_unsealed_memory: false,
        }
    }
}

/// How frames come from an interface of this host and go to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// A packet socket (`AF_PACKET`): every interface, with offloads; the host sees the frames too.
    #[default]
    Packet,
    /// An XDP socket (`AF_XDP`): less work for each frame, no offloads, frames of at most a page; the
    /// host no longer sees what comes in.
    Xdp,
}

/// What a NIC that is connected to nothing does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum NullKind {
    /// What the guest sends goes nowhere.
    Drop,
    /// What the guest sends comes back, its two addresses swapped.
    Echo,
    /// Frames come by themselves; what the guest sends goes nowhere.
    Generate,
}

/// Whether a guest may send from other addresses than its NIC's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Spoof {
    /// From any that is not another NIC's own on that switch: for guests that are bridges or hosts of
    /// guests themselves.
    #[default]
    Allow,
    /// From its own alone.
    Deny,
}

/// When a frame goes to another queue than its flow's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Redirect {
    /// When that one's vCPU waits for a core. One that its guest has halted is woken.
    Auto,
    /// Whenever that one's vCPU has no core, also when it is halted.
    Always,
    /// Never.
    #[default]
    Off,
}

/// Whether a NIC's cable is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// It is: frames pass.
    #[default]
    Up,
    /// It is not: frames are dropped, and the guest sees no carrier.
    Down,
}

/// What may be changed on a running NIC. What is not named stays; everything else a guest learns when
/// it connects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-fixed" = fixed_in_a_nic()))]
pub struct NicChange {
    /// How much of a busy core each transmit queue gets, against the others' shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u32>("share", 1..=10_000)))]
    pub share: Option<u32>,
    /// When its queues are polled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "POLICY"))]
    pub policy: Option<Policy>,
    /// Most microseconds that a request is to wait in its queue, for transmit queues; 0 for no target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "US",
        value_parser = crate::number::of::<u32>("latency_target_us", 0..=1_000_000)))]
    pub latency_target_us: Option<u32>,
    /// Microseconds for which the call that tells the guest of frames it sent may wait after the one before;
    /// 0 for no waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "US",
        value_parser = crate::number::of::<u32>("moderate_us", 0..=1000)))]
    pub moderate_us: Option<u32>,
    /// When a frame for the guest goes to another of its queues than its flow's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "WHEN"))]
    pub redirect: Option<Redirect>,
    /// The vCPU that each pair of queues interrupts, from the first pair on; of those that are not named pair 0 has
    /// vCPU 0, pair 1 vCPU 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N,N...", value_delimiter = ',',
        value_parser = crate::number::of::<u16>("vcpus", 0..=65_535)))]
    pub vcpus: Option<Vec<u16>>,
    /// Most packets a second that all its queues together send, and as many that they receive; 0 for no
    /// limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u32>("limit_packets", 0..=1_000_000_000)))]
    pub limit_packets: Option<u32>,
    /// Most bytes a second that all its queues together send, and as many that they receive (K, M,
    /// G, T: powers of 1024); 0 for no limit.
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
    /// Its frames have no tag, and are of this VLAN; 0 takes every rule about VLANs away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4094))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u16>("vlan", 0..=4094)))]
    pub vlan: Option<u16>,
    /// Its frames carry the tag of one of these VLANs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(inner(range(min = 1, max = 4094)))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N,N...", value_delimiter = ',',
        value_parser = crate::number::of::<u16>("trunk", 1..=4094)))]
    pub trunk: Option<Vec<u16>>,
    /// With `trunk`: frames without a tag are of this VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4094))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u16>("native", 1..=4094)))]
    pub native: Option<u16>,
    /// Addresses that the guest may use. Frames from more are dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32768))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u16>("macs_max", 1..=32_768)))]
    pub macs_max: Option<u16>,
    /// Whether the guest may send from other addresses than the NIC's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "RULE"))]
    pub spoof: Option<Spoof>,
}

/// What a running NIC keeps, and why, by the names of the fields. The schema of [`NicChange`] carries it,
/// for whoever tries.
pub fn fixed_in_a_nic() -> serde_json::Value {
    let told = "a guest learns it when it connects: remove the nic and add it again";
    let place = "it is where the nic is plugged in: remove the nic and add it again";
    let link = "`sidecore nic link` takes the cable out and puts it in";
    serde_json::json!({
        "id": "a nic keeps its name: remove it and add another",
        "mtu": told, "mac": told, "queues": told, "socket": told, "mode": told,
        "allow_unsealed_memory": told, "guest_offloads": told,
        "switch": place, "tap": place, "interface": place, "via": place, "null": place,
        "by_link": place, "remote": place,
        "size": place, "rate": place,
        "link": link,
    })
}

/// A NIC's cable, taken out or put in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkChange {
    /// Whether it is in from now on.
    pub link: LinkState,
}

fn yes() -> bool {
    true
}

/// Not written where it says nothing, so that an older daemon reads what this one has saved.
fn is_yes(said: &bool) -> bool {
    *said
}

fn one_pair() -> u16 {
    1
}

fn usual_share() -> u32 {
    SHARE_DEFAULT
}

fn usual_mtu() -> u16 {
    MTU_DEFAULT
}

fn usual_ageing() -> u32 {
    AGEING_DEFAULT_S
}

fn usual_macs() -> u16 {
    MACS_DEFAULT
}

words! {
    Via { Packet => "packet", Xdp => "xdp" }
    NullKind { Drop => "drop", Echo => "echo", Generate => "generate" }
    Spoof { Allow => "allow", Deny => "deny" }
    LinkState { Up => "up", Down => "down" }
}
