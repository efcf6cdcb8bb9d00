//! One bridge's rules: which port gets a frame. A learning switch with VLANs and limits, or a wire
//! between two ports.
//!
//! Not the bytes behind a frame's head, not queues, not what a port is. Pure: no clock (time is an
//! argument), no randomness (the hash's seed is one), no I/O; all memory is taken when a bridge is
//! made, and nothing is allocated for a frame.
//!
//! Called by `sidecore`, for each frame in this order:
//!
//! ```text
//!   decide(from, head, now) -> To | Flood | Drop       learns who sent, finds who gets it
//!   egress(to, vlan)        -> Keep | Push | ..        for each receiver: what becomes of the tag
//!   learn(from, head, now)                             where a frame was decided on elsewhere
//! ```
//!
//! # What a frame can cost
//!
//! Two look-ups of eight entries each, and once in a millisecond a part of the table is aged
//! ([`Bridge::decide`]). Addresses are found by a keyed hash, so nobody without the seed can aim many
//! at one place; where eight young ones meet by chance, the ninth is forwarded and not learned.
#![forbid(unsafe_code)]

mod bridge;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod reason;
mod rules;
mod switch;
mod table;
mod vlan;
mod wire;

pub use bridge::{Bridge, Verdict};
pub use reason::DropReason;
pub use rules::{BadPort, Limits, MACS_MAX, MACS_OF_PORT_USUAL, PORTS_MAX, PortId, Rules, Spoof};
pub use table::Mac;
pub use vlan::{Egress, VLAN_LAST, Vlan, VlanId, Vlans};

#[cfg(test)]
mod tests;
