//! Tests of the crate from outside, by what it makes public: one program, since each would link all of it.

mod faults;
mod harness;
mod link_allocations;
mod link_shards;
mod link_socket;
mod model;
mod net_link;
mod net_tap;
mod network;
mod opening;
mod remote_allocations;
mod ring;
mod sharing;

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Of all tests; those that count what it does run alone.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;
