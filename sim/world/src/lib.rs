//! The whole system from a seed, on one thread, in made-up time: the data path's own code, between guests,
//! disks and wires that are simulated, while daemons are killed, upgraded and migrated from.
//!
//! ```text
//!   guest     honest, with a ledger of what it wrote and flushed;  hostile: neither keeps a rule nor its VMM
//!     |  rings (the driver's side), kicks, calls
//!   front_end -- bytes of vhost-user --> device, daemon: a small control   (session, queues: the product's)
//!     |                                     |
//!   layout: memory, log                   core: sidecores without threads  (passes: the product's)
//!                                           |
//!                                         backend's commands               (what they mean: the product's)
//!                                           |
//!                                         kernel, medium: when and how they run, and what a cut leaves
//! ```
//!
//! `world` decides what happens next and judges; `world::faults` is what goes wrong. The same seed gives the
//! same trace. No clock and no thread: what is real besides the product's code are eventfds, epoll sets,
//! memory files and locks of files, none of which is waited for. Its guests and their VMMs are `lives`' too, by
//! way of `tenant`. Why it is so: docs/decisions/0012. Called by
//! `./x sim --seeds N` and by its own tests.
#![forbid(unsafe_code)]

mod copying;
mod core;
mod daemon;
mod device;
mod front_end;
mod guest;
mod hostile;
mod kernel;
mod lan;
mod layout;
mod lent;
mod machine;
mod medium;
mod signal;
mod station;
mod tenant;
mod trace;
mod uplink;
mod world;

pub use kernel::{Killed, Look, Machinery};
pub use lan::{Lan, mac};
pub use tenant::{Sent, Tenant};
pub use trace::Trace;
pub use world::{Outcome, run};
