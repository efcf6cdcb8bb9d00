//! What the fuzz targets are made of: bytes that become the doings of a guest, a network, a front-end,
//! an operator, a remote peer, and what must hold whatever they are.
//!
//! Not where bytes come from: libFuzzer (`src/bin/`), or seeds and their mutations (`tests/replay.rs`).

#![forbid(unsafe_code)]

pub mod bridge;
pub mod bytes;
pub mod estate;
pub mod net;
pub mod operator;
pub mod ring;
pub mod session;
pub mod wire;
