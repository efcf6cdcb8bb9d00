//! Disks and NICs of other machines: either daemon killed or replaced, a second IOhost, a bad wire.
//!
//! `./x test remote` runs each module in a process of its own: its tests may count what the process
//! has, and take its processors for themselves.

mod ethernet;
mod remote;
mod remote_nic;
mod remote_shards;
mod remote_upgrade;
mod xdp;
