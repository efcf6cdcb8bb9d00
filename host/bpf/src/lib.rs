//! Programs in the kernel: assembled here as instructions, loaded by system calls alone.
//!
//! - [`Code`] is a list of instructions that grows; [`op`] has their codes.
//! - [`sys`] makes maps, loads programs, and attaches them.
//! - [`namespaces`] says whether numbers and times here are the kernel's own.
//!
//! Not here: what a program does (`vcpu_tracker`, `exits`). A hundred instructions need no compiler,
//! and no object file in the tree.

mod code;
mod namespaces;
#[expect(unsafe_code, reason = "bpf(2) and perf_event_open(2) have no safe form")]
pub mod sys;

pub use code::{Code, Instruction, helper, op};
pub use namespaces::{Own, namespaces};
