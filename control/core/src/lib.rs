//! What control decides: the lives of what it owns, as functions of events and of the time that it is told.
//!
//! The daemon's shell (`manager`) drives these lives (decision 0025), the simulator's (`sim/lives`) with it. Not here:
//! descriptors, threads, clocks, files, sockets, guest memory; what passes through is the caller's
//! ([`Passes`]).
//!
//! | module | |
//! |---|---|
//! | [`timers`] | what is due without an event |
//! | [`upgrade`] | what each side of one may do when, and when the other ends |
//! | [`device`] | whether a device stays, and how front-ends come to it |
//! | [`call`] | operators' calls that wait |
//! | [`connection`] | a front-end, and the message of it that waits |
//! | [`disk`] | where the locks of a disk are, and its image with them |
//! | [`drain`] | how queues and ports come back from sidecores, and go out again |
//! | [`mode`] | what is to become of the process |
//! | [`queue`] | which sidecore has a queue, for whom, and where it is going |
//! | [`port`] | where a NIC is plugged in, and where it is going with all of its queues |
//! | [`moves`] | moves that are under way, and who waits for them |
//! | [`placement`] | which sidecore something goes to |
//! | [`reload`] | the file read again: what is waited for, and when that is answered |
//! | [`retry`] | whether a device that could not be opened is tried again, and when |
//! | [`uplink`] | who has the descriptors of a port that leads to the host, and what becomes of it |
//! | [`shard`] | whether a sidecore has a shard of a link, and whether a client has a disk by it |
#![forbid(unsafe_code)]

pub mod call;
pub mod connection;
pub mod device;
pub mod disk;
pub mod drain;
mod held;
pub mod mode;
pub mod moves;
pub mod placement;
pub mod port;
pub mod queue;
pub mod reload;
pub mod retry;
pub mod shard;
pub mod timers;
pub mod upgrade;
pub mod uplink;

use std::fmt::Debug;

/// What passes through control, which does not look into it.
pub trait Passes {
    /// Names a move; never used again.
    type MoveId: Copy + Eq + Debug;
    /// What the old sidecore is given to let a queue go. Dropped, it calls the move off.
    type Departure: Debug;
    /// What is said of a queue to the sidecore that has it: an enum, whose variants are its kinds.
    type Command: Debug;
}
