//! Frames: taken from a port, decided on by its bridge, delivered to one port or many.
//!
//! ```text
//! transmit queue --transmit--> frame --route--> deliver --> receive queue of a port here
//! host port ------receive------^                    |-----> host port here
//! another sidecore --inbound---^                    '-----> parcel to another sidecore
//! ```
//!
//! Not the rules of a bridge (`switch`), nor the bytes of a frame (`frame`). Called by `sidecore` for
//! each visit of a transmit queue or a host port, and by `commands`.

mod accord;
pub(crate) mod commands;
mod deliver;
mod desk;
mod finish;
mod frames;
mod gather;
pub(crate) mod host;
pub(crate) mod inbound;
mod limited;
mod macs;
pub(crate) mod parcel;
mod plain;
mod port;
mod receive;
pub(crate) mod relocate;
pub(crate) mod roads;
pub(crate) mod route;
mod slices;
mod steer;
mod transmit;

pub use host::{HostKey, HostServed, HostSpec};
pub use macs::MacTable;
pub use parcel::{Inbound, Outbound};
pub use port::{BRIDGES_MAX, BridgeId, BridgeKind, PAIRS_MAX, PortSpec};
pub use relocate::{Relocation, relocation};
pub use steer::{Lanes, Redirect};

pub(crate) use transmit::Tally;

use desk::Desk;
use port::Replica;
use schedule::Nanos;

/// What a sidecore has for frames, besides its places.
#[derive(Debug)]
pub(crate) struct Net {
    /// By bridge.
    replicas: Vec<Option<Box<Replica>>>,
    /// This sidecore's index, for what is at home here.
    here: u16,
    pub(crate) desk: Desk,
    /// Places of host ports that leave when a frame of theirs has found room, or then.
    parting: Vec<(u16, Nanos)>,
}

impl Net {
    /// Without bridges.
    pub(crate) fn new(here: u16, places: usize) -> Net {
        let parting = Vec::with_capacity(places);
        Net { replicas: Vec::new(), here, desk: Desk::new(places), parting }
    }

    /// Whether a host port is to leave that still has a frame.
    #[inline]
    pub(crate) fn has_parting(&self) -> bool {
        !self.parting.is_empty()
    }

    #[inline]
    pub(crate) fn replica(&mut self, bridge: BridgeId) -> Option<&mut Replica> {
        self.replicas.get_mut(usize::from(bridge.0))?.as_deref_mut()
    }
}
