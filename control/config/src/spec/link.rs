//! What the operator wrote about links: disks of other machines, and disks for other machines.
//!
//! As for disks: the comments are the help texts. Not here: whether the values make sense together (`plan`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Via;
use crate::size::Size;

/// Most links of one daemon.
pub const LINKS_MAX: usize = 64;
/// Most clients of one link.
pub const LINK_CLIENTS_MAX: usize = 1024;
/// Most IOhosts of one link.
pub const IOHOSTS_MAX: usize = 8;
/// Smallest and largest MTU of the way between the ends, bytes.
pub const LINK_MTU: (u32, u32) = (700, 9000);
/// The largest by AF_XDP: a page, less what the kernel keeps before a frame (256 bytes) and an Ethernet header.
pub const LINK_XDP_MTU_MAX: u16 = 3826;
/// The same of a link that says nothing: plain Ethernet's.
pub const LINK_MTU_DEFAULT: u16 = 1500;
/// Shortest and longest lease, seconds.
pub const LEASE_S: (u32, u32) = (1, 600);
/// The same of a link that says nothing: well above a switch's reconvergence, well below what guests give
/// a disk (Linux: 30 s).
pub const LEASE_DEFAULT_S: u32 = 10;
/// What is kept of a disk's writes, unless said, and the bounds of it, but for 0: twice what may be under way, and more
/// than that no guest leaves without a flush for long.
pub const KEEP_DEFAULT: u64 = 64 << 20;
/// See [`KEEP_DEFAULT`].
pub const KEEP_BYTES: (u64, u64) = (32 << 20, 1 << 30);
/// Shortest and longest time after which requests fail, seconds.
pub const FAIL_AFTER_S: (u32, u32) = (1, 86_400);
/// Fewest and most sidecores of a link.
pub const LINK_SIDECORES: (u32, u32) = (1, 16);
/// Least memory of a link: one client with one disk.
pub const LINK_MEMORY_MIN: u64 = 16 << 20;
/// The same of a link that says nothing.
pub const LINK_MEMORY_DEFAULT: u64 = 256 << 20;

/// A way to other machines: this daemon serves its disks and ports of its switches to daemons there (`role = "iohost"`), or theirs
/// to its guests (`role = "client"`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// Name of the link: 1 to 64 lower-case letters, digits, `-`, `_`, `.`, beginning with a letter or
    /// digit.
    pub id: String,
    /// Which end this is.
    pub role: LinkRole,
    /// `iohost`: the address and UDP port that clients send to, such as `"10.0.0.1:7447"`; `0.0.0.0` and
    /// `[::]` are all addresses of this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<String>,
    /// The interface, for a link without IP: frames of EtherType 0x88B5, between machines on one Ethernet. Of
    /// an `iohost` instead of `udp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// With `interface`: how frames come from it and go to it. `xdp` (AF_XDP) goes by the driver's queues, beside the
    /// host's network stack, which gets whatever is not a frame of this link; for an `mtu` of at most 3826. Other
    /// XDP programs, NICs and uplinks with `via = "xdp"` cannot be on that interface. Default: `packet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<Via>,
    /// `client`: the IOhosts, as `address:port`, or with `interface` the Ethernet addresses of their interfaces. The
    /// first that answers is used; those after it when it falls silent. They serve the same disks on storage that they share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub iohosts: Vec<String>,
    /// Bytes of the longest packet that the network between the ends carries, all of which are used: 9000 where all of
    /// it has jumbo frames, 1492 with PPPoE, less in a tunnel. The smaller one of both ends is used.
    #[serde(default = "usual_mtu")]
    #[schemars(range(min = 700, max = 9000))]
    pub mtu: u16,
    /// Whether the two ends prove who they are, and what they say is sealed.
    #[serde(default)]
    pub security: LinkSecurity,
    /// File with this daemon's private key, as `sidecore link key` makes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
    /// `client`: the public key of the IOhosts, as `sidecore link key` prints it there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iohost_key: Option<String>,
    /// `client`: seconds for which an IOhost may be silent before requests fail with an I/O error; never
    /// before it is certain that they will not be executed later. Default: they wait for as long as it
    /// takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub fail_after_s: Option<u32>,
    /// `client`: memory for copies of each disk's writes that its guest has not flushed yet. When an IOhost's machine
    /// dies they are sent to its successor, or to itself when it is back, and the guest notices nothing. A flush is
    /// made when a quarter is used. 0: none, and a guest with such writes gets errors for its flushes. Default: 64M.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Size>,
    /// `iohost`: seconds after which a client that is silent loses what it has. Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600))]
    pub lease_s: Option<u32>,
    /// `iohost`: how many of the daemon's sidecores serve its clients, each of which is served by one of them. Default: all,
    /// up to 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16))]
    pub sidecores: Option<u32>,
    /// `iohost`: memory for what clients have outstanding, at most; a disk takes 16 MiB. Default: 256M.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// `iohost`: who may come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client: Vec<LinkClientSpec>,
}

/// One client of an IOhost, and what it may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkClientSpec {
    /// Its name, as messages have it.
    pub name: String,
    /// Its public key, as `sidecore link key` prints it there. Not with `security = "none"`, where whoever
    /// sends is taken for a client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The disks that it may have. They have no socket here. One that several clients may have is served to
    /// one of them at a time.
    #[serde(default)]
    pub disks: Vec<String>,
    /// The NICs that it may have: each is `remote` of an `uplink` of a switch. Of several clients one has it at a
    /// time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<String>,
}

/// Which end of a link this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LinkRole {
    /// Disks of this daemon are served to guests of other machines.
    Iohost,
    /// Disks of other machines are served to guests of this one.
    Client,
}

/// What keeps strangers out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LinkSecurity {
    /// Keys of both ends; all that is said is sealed.
    #[default]
    Noise,
    /// Nothing: for a cable that nobody else can reach. What is said has a checksum.
    None,
}

fn usual_mtu() -> u16 {
    LINK_MTU_DEFAULT
}

words! {
    LinkRole { Iohost => "iohost", Client => "client" }
    LinkSecurity { Noise => "noise", None => "none" }
}
