//! A driver that this project did not write, without a VM.
//!
//! `./x test foreign` runs each module in a process of its own: its tests may count what the process
//! has, and take its processors for themselves.

mod libblkio;
