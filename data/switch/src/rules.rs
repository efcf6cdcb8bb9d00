//! What an operator says of a port and of a bridge.
//!
//! Not what was learned (`table`). Made by control, carried here by commands.

use crate::vlan::{VLAN_LAST, Vlan};

/// Ports of a switch at most.
pub const PORTS_MAX: u16 = 1024;

/// Addresses of a switch at most: 4 MiB of table on each sidecore.
pub const MACS_MAX: u32 = 65_536;

/// Addresses of one port, unless told otherwise.
pub const MACS_OF_PORT_USUAL: u16 = 1024;

/// A port of one bridge: a small number that its maker chose and uses again when the port is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

/// How a bridge treats one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Which VLANs it carries; ignored on a wire.
    pub vlan: Vlan,
    /// Addresses that may be learned there; ignored on a wire. With 0 nothing may be sent but from
    /// `mac`.
    pub macs_max: u16,
    /// The port's own address, which is known there before it sends, for as long as the port exists,
    /// and is never learned elsewhere; ignored on a wire. In VLANs that come with a tag it is so once
    /// the port has sent in them. Of two ports with one address, the one that was first has it.
    pub mac: Option<[u8; 6]>,
    /// Whether others may be its source; ignored on a wire.
    pub spoof: Spoof,
    /// Whether its link is up: frames from and to it are dropped when not.
    pub is_up: bool,
}

/// Whether a port may send from addresses that are not its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoof {
    /// From any that is not another port's own.
    Allow,
    /// From [`Rules::mac`] alone: without one, from none.
    Deny,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            vlan: Vlan::None,
            macs_max: MACS_OF_PORT_USUAL,
            mac: None,
            spoof: Spoof::Allow,
            is_up: true,
        }
    }
}

/// How large a switch may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Port numbers are below this; at most [`PORTS_MAX`].
    pub ports_max: u16,
    /// Addresses of all ports together; 1 to [`MACS_MAX`].
    pub macs_max: u32,
    /// How long an address is known after its last frame, in nanoseconds; exact to about 1 ms.
    pub ageing_ns: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { ports_max: PORTS_MAX, macs_max: 8192, ageing_ns: 300_000_000_000 }
    }
}

/// Why a port was not made, or not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPort {
    /// A number not below `ports_max`, or a third port of a wire.
    #[error("the bridge has no room for another port")]
    Full,
    /// Not a VLAN that can be used.
    #[error("VLAN {0} is not one of 1 to {VLAN_LAST}")]
    Vlan(u16),
}
