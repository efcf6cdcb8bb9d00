//! A guest that moves between two daemons under load.
//!
//! `./x test migrate` runs each module in a process of its own: its tests may count what the process
//! has, and take its processors for themselves.

mod migrate;
