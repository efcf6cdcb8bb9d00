//! Where a guest's exits come from: counted by programs in the kernel, told by the guest's functions.
//!
//! - [`Vm`] finds the process of a VM, and the kernel's own counter of it.
//! - [`Watch`] loads the programs, arms and disarms them, and reads what they counted.
//! - [`Tally`] understands that; [`Symbols`] name addresses; [`Report`] is rows of both.
//!
//! Not here: how it looks, and who is asked for a disk's socket (`bin/sidecore`). The daemon runs none of it.
//! Why it is so: docs/decisions/0030-exits.md.
#![forbid(unsafe_code)]

mod formats;
mod layout;
mod names;
mod program;
mod refusal;
mod report;
mod rules;
mod symbols;
mod tally;
mod vm;
mod watch;

pub use refusal::Refusal;
pub use report::{About, Check, Counted, Edge, Lost, Report, Row};
pub use symbols::{Symbols, TEXT_BYTES_MAX, Unusable};
pub use tally::Tally;
pub use vm::{Counter, Vm};
pub use watch::Watch;
