//! The program as its users run it: one program of tests, since each would link all of theirs.

mod beside;
mod checking;
mod commands;
mod examples;
mod harness;
mod helps;
mod network_commands;
mod troubled_disks;
mod troubles;
mod upgrades;
mod version;
