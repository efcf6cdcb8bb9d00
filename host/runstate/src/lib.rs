//! Which vCPU threads run now: a program in the kernel writes it, sidecores read it by plain loads.
//!
//! - [`Tracker`] loads the program (softly: [`Unavailable`] says why not) and has the table.
//! - [`Table`] is what the program writes: a [`Slot`] for each thread, read without a system call, and for each
//!   [`Vm`] how many of its vCPUs have a processor.
//! - [`Roster`] says which threads have a slot; it belongs to control.
//! - [`vcpus`] finds the vCPU threads of a VMM, by their names or among those that it says.
//!
//! Not here: what is done with it (`sidecore`, `manager`). Why it is so: docs/decisions/0016-runstate.md.

mod btf;
mod program;
mod roster;
#[expect(unsafe_code, reason = "bpf(2), and a map's memory, have no safe form")]
mod sys;
mod table;
mod tracker;
mod unavailable;
pub mod vcpus;

pub use roster::{Full, Roster};
pub use table::{Activity, Pulse, SLOTS_MAX, Slot, State, Table, Turn, VMS_MAX, Vm};
pub use tracker::{Cost, Tracker};
pub use unavailable::Unavailable;
