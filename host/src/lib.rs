//! What the host tells us: its cpus, and what it offers or lacks.
//!
//! Everything is read from a root folder that the caller names, so that tests bring a host of their
//! own; only [`doctor::Probes::of_this_process`] asks the kernel by system calls. What the kernel's
//! files say is not trusted to make sense: odd content reads as absent, and nothing here panics.
//! Not here: any decision that needs more than the host (`config::plan`, `manager`).
//!
//! Called by the program.
#![forbid(unsafe_code)]

pub mod accounts;
pub mod doctor;
mod files;
pub mod topology;

pub use accounts::Accounts;
pub use topology::Topology;
