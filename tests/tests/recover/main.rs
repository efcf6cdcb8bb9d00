//! `kill -9` of the daemon under load, the fence, and upgrades.
//!
//! `./x test recover` runs each module in a process of its own: its tests may count what the process
//! has, and take its processors for themselves.

mod attach;
mod fence;
mod recover;
mod recover_many;
mod upgrade;
mod upgrade_killed;
mod upgrade_kinds;
mod upgrade_refused;
