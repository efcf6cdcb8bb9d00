//! The program's parts that touch the guest: files, messages about NICs, loads; and its command line.
//!
//! What is decided is `tuning`'s. A library so that tests can stop it at any write; nobody else uses it.
#![forbid(unsafe_code)]

pub mod cli;
mod clock;
mod commands;
mod documents;
mod load;
mod netlink;
pub mod output;
pub mod tree;

pub use commands::run;
