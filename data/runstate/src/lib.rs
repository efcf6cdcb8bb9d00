//! Which vCPU threads run now, as sidecores read it: by plain loads of a table that a program in the kernel writes.
//!
//! - [`Table`]: a [`Row`] for each thread, read without a system call.
//! - [`layout`]: where what is in it, for whoever writes it.
//!
//! Not here: the program, and whom it follows (`vcpu_tracker`); what is done with it (`sidecore`, `manager`). Why it is so:
//! docs/decisions/0016-runstate.md.

pub mod layout;
#[expect(unsafe_code, reason = "a map's memory has no safe form")]
mod mapping;
mod table;

pub use layout::ROWS_MAX;
pub use table::{Activity, Row, State, Table, Turn};
