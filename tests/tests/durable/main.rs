//! Power cuts, disks that fail or are full, and what cannot be opened.
//!
//! `./x test durable` runs each module in a process of its own: its tests may count what the process
//! has, and take its processors for themselves.

mod failing_disk;
mod lost_sync;
mod no_space;
mod power_cut;
mod unusable_disk;
