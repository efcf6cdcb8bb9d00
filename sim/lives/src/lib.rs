//! Lives of the real control from a seed, on one thread, in made-up time: the control loop of `manager` itself,
//! sidecores without threads, guests and their VMMs at its sockets, and operators who ask for anything.
//!
//! ```text
//!   operator  what is asked, and what is right to be answered       file     what is in the configuration file
//!      |                                                              |
//!   manager   the daemon's control, a turn at a time  (simulated)  ---+
//!      |  sockets                          |  commands, events
//!   vmm       guests and their VMMs       core     sidecores, a pass at a time
//! ```
//!
//! `life` decides what happens next, `life::judgement` whether it was right. The same seed gives the same trace. Real are the sockets, the memory
//! files, the epoll set and a folder in memory; nobody waits for any of them. Below the commands of
//! disks is `kernel`, with `medium` for what a power cut leaves. Why it is so: docs/decisions/0012 and 0025. Called by
//! `./x sim --seeds N` and by its own tests.
#![forbid(unsafe_code)]

mod core;
mod file;
mod interfaces;
mod kernel;
mod life;
mod medium;
mod operator;
mod rack;
mod vmm;
mod wire;

pub use life::{Outcome, is_linked, run};
