//! Guests and front-ends that lie, stall, storm and vanish, beside a disk that must not notice.
//!
//! `./x test hostile` runs each module in a process of its own: its tests may count what the process
//! has, and take its processors for themselves.

mod attacks;
mod bad_connection;
mod bad_front_end;
mod bad_memory;
mod bad_rings;
mod bounds;
mod connections;
mod crowd;
mod dead_disk;
mod dead_mount;
mod hostile_blk;
mod hostile_packed;
mod hostile_races;
mod hostile_split;
mod hostile_storm;
mod lost_memory;
mod names;
mod nic_storm;
mod soak;
