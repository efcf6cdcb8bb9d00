//! The daemon served by our own front-end: rings, dirty log, memory, resize, idle cost, attach, NICs.
//!
//! `./x test frontend` runs each module in a process of its own: its tests may count what the process
//! has, and take its processors for themselves.

mod access;
mod arrival;
mod attach;
mod block_size;
mod confined;
mod connect;
mod cores;
mod dirty_log;
mod dirty_log_net;
mod front_end;
mod host;
mod idle;
mod image_formats;
mod image_identity;
mod image_remote;
mod large_requests;
mod latency_target;
mod limits;
mod limits_nic;
mod memory;
mod moves;
mod moves_nic;
mod nic_control;
mod nic_offloads;
mod resize;
mod rivals;
mod run_state;
mod run_state_qmp;
mod run_time;
mod stages;
mod under_guests;
