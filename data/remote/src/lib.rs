//! The remote protocol, sans-IO: frames and times in, frames and finished requests out.
//!
//! Not sockets, clocks or threads. Both ends are here, so that a test can put a lossy wire between them.
#![forbid(unsafe_code)]

mod bits;
pub mod handshake;
mod loss;
mod outbox;
mod received;
mod seal;
mod session;
pub mod wire;

pub use seal::{Cipher, Keys};

/// Attachments of one client in one session.
pub const ATTACHMENTS_MAX: u16 = 4096;
/// Outstanding requests of one attachment.
pub const SLOTS_MAX: u16 = 256;
