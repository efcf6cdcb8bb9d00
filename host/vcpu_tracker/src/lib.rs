//! Follows vCPU threads: a program in the kernel writes which of them run, into a table that others read (`runstate`).
//!
//! - [`Tracker`] loads the program (softly: [`Unavailable`] says why not) and has the table.
//! - [`Roster`] says which threads have a row; it belongs to control.
//! - [`vcpus`] finds the vCPU threads of a VMM, by their names or among those that it says.
//!
//! Not here: what is done with it (`sidecore`, `manager`). Why it is so: docs/decisions/0016-runstate.md.

mod btf;
mod program;
mod roster;
mod tracker;
mod unavailable;
pub mod vcpus;

pub use roster::{Full, Roster};
pub use tracker::{Cost, Tracker};
pub use unavailable::Unavailable;
