//! The walk: one loop that serves the queues of many guests, on a core of its own.
//!
//! ARCHITECTURE.md draws it ("The walk"); [`Sidecore::pass`] is one trip, of the steps that are drawn there.
//!
//! [`Sidecore`] owns its queues: each [`Served`] is moved in by [`Command::Attach`] and moved out
//! by [`Event::Detached`]. Nothing is shared with control but the two rings of a [`Handle`], the
//! counters (written here, read there), and a device's `Live` facts. After attach the path takes no
//! lock and allocates nothing; it never blocks but in `rest`; the clock is read once a pass, by the
//! caller.
//!
//! Not here: where queues and their memory come from (`manager`), and what a policy is (`schedule`).
mod ahead;
mod alarm;
mod answered;
mod bell;
mod commands;
mod counters;
mod done;
mod fetch;
mod finish;
mod frames;
mod hear;
mod inbox;
mod knock;
mod large;
mod latency;
mod leaving;
mod limited;
mod link;
mod moderation;
mod moves;
mod net;
mod places;
mod publish;
mod reap;
mod rest;
mod sample;
mod served;
mod sidecore;
#[cfg(feature = "simulated")]
mod simulated;
mod slots;
mod stalls;
mod thread;
mod visit;

pub use alarm::Alarm;
pub use counters::{
    AttachmentCounters, AttachmentSnapshot, HostLinkCounters, HostLinkSnapshot, SessionCounters,
    SessionSnapshot,
};
pub use counters::{DropsSnapshot, PortCounters, PortSnapshot};
pub use counters::{QueueCounters, QueueSnapshot, SidecoreCounters, SidecoreSnapshot};
pub use inbox::{Command, Event, Handle, Refusal, build_road};
pub use latency::LatencySnapshot;
pub use link::{Address, ClientLink, FromClient, FromHost, Link, LinkKey, ToClient, ToHost};
pub use link::{AttachmentMemory, Greeting, HostLink, HostLinkSpec, Opened};
pub use moves::{Arrival, Departure, MoveId, Stay, handover};
pub use net::{BRIDGES_MAX, BridgeId, BridgeKind, HostKey, HostServed, HostSpec, MacTable};
pub use net::{Inbound, Lanes, Outbound, PAIRS_MAX, PortSpec, Redirect, Relocation, relocation};
pub use served::{NicQueue, QueueKey, RoleSpec, Room, Served, ServedSpec, Service};
pub use sidecore::{Progress, Sidecore, SidecoreSpec};
pub use thread::{instant_of, launch, nanos_of};

#[cfg(test)]
mod tests;
