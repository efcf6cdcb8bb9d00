//! What the operator wrote about switches, and what networks are bounded by.
//!
//! As for disks: the comments are the help texts. Not here: whether the values make sense together
//! (`plan`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Policy, SHARE_DEFAULT, usual_share};
use crate::mac::Mac;
use crate::mistake::{Mistake, Path};
use crate::schema;

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
    /// `tap=NAME`, `interface=NAME` or `remote=NAME`, then `via=`, `vlan=`, `trunk=10+20`, `native=`,
    /// `share=`, `mac=`, `spoof=`, `macs_max=`, `policy=` after commas.
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
    /// is removed with the uplink, and stays when the daemon stops; a start removes what no port leads to any more.
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

/// Why a text is no uplink.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UplinkError {
    /// A part of it says nothing.
    #[error("{0:?} is not NAME=VALUE, such as tap=lan0")]
    NoValue(String),
    /// What is to be VLANs is something else.
    #[error("{0:?} is not a list of VLANs, such as 10+20")]
    NoVlans(String),
    /// Two parts are of one name.
    #[error("`{0}` is given twice")]
    Twice(String),
    /// What the file could not say either.
    #[error("{}", Mistake::in_one_line(.0))]
    Mistakes(Vec<Mistake>),
}

/// As on the command line: `tap=lan0,vlan=10`, or `interface=eth1,via=xdp,trunk=10+20,native=1`.
impl std::str::FromStr for UplinkSpec {
    type Err = UplinkError;

    fn from_str(text: &str) -> Result<UplinkSpec, UplinkError> {
        let mut fields = serde_json::Map::new();
        for field in text.split(',') {
            let Some((name, value)) = field.split_once('=') else {
                return Err(UplinkError::NoValue(field.to_string()));
            };
            let number = |digits: &str| digits.parse::<u64>().map(serde_json::Value::from);
            let value = match name {
                "trunk" => value
                    .split('+')
                    .map(number)
                    .collect::<Result<_, _>>()
                    .map_err(|_| UplinkError::NoVlans(value.to_string()))?,
                // Names may be digits.
                "tap" | "interface" | "via" | "policy" | "remote" | "mac" | "spoof" => value.into(),
                _ => number(value).unwrap_or(value.into()),
            };
            if fields.insert(name.to_string(), value).is_some() {
                return Err(UplinkError::Twice(name.to_string()));
            }
        }
        schema::read(fields.into(), &Path::root(), schema::Written::Json)
            .map_err(UplinkError::Mistakes)
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

fn usual_ageing() -> u32 {
    AGEING_DEFAULT_S
}

fn usual_macs() -> u16 {
    MACS_DEFAULT
}

words! {
    Via { Packet => "packet", Xdp => "xdp" }
    Spoof { Allow => "allow", Deny => "deny" }
}
