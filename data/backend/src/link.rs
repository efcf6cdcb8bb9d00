//! Links: the remote protocol's sockets, and the client's end of it as a back-end.
//!
//! A [`LinkSocket`] is opened by control and moved to a sidecore, for a link of either role. A [`ClientLink`] is one with
//! the client's end of the protocol, and lives in the sidecore's [`Io`](crate::Io). Not here: the protocol itself
//! (`remote`), handshakes (control's greeter), and the IOhost's end (`sidecore`). A [`LinkNic`] is a NIC of either.

mod address;
mod attached_disk;
mod client;
mod counters;
mod errors;
mod greeting;
mod kernel;
mod nic;
mod nics;
pub(crate) mod pipe;
mod remote;
mod shards;
#[cfg(feature = "simulated")]
mod simulated;
mod socket;
mod xdp;

pub use self::remote::Remote;
pub use address::Address;
pub use client::{ClientLink, LinkEvent};
pub use counters::{LinkCounters, LinkSnapshot};
pub use errors::{LinkOpenError, LinkWhy};
pub use nic::{FRAMES_PER_PASS as NIC_FRAMES_PER_PASS, LinkNic, NicCounters, NicSnapshot, Way};
pub use shards::LinkShards;
#[cfg(feature = "simulated")]
pub use simulated::LinkWire;
pub use socket::{ETHER_TYPE, FRAME_BYTES_MAX, LinkLosses, LinkSocket, LinkSource};

/// The name of a link between control and its sidecores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkKey(pub u16);
