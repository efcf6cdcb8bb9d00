//! The remote protocol, sans-IO: frames and times in, frames and finished requests out.
//!
//! Not sockets, clocks or threads (`docs/decisions/0013-remote.md`; used by `backend`, `sidecore` and `manager`). Times are
//! those of a clock that goes on while the machine sleeps (`CLOCK_BOOTTIME`): leases end then, too. Both ends are
//! here, so that a test can put a lossy wire between them. Control runs `handshake`, but for its gate; what comes of
//! it goes to the sidecore that has the [`client::Client`] or the [`iohost::Host`], which run all the rest:
//!
//! ```text
//! handshake --Established--> client | iohost     attachments: slots, turns, bytes; who has a device
//!                                session         one counter, one window, one key
//!                     received | loss | seal     what came; what is under way; what keeps a frame whole
//!                                 wire           what a frame looks like
//! ```
#![forbid(unsafe_code)]

mod bits;
pub mod client;
pub mod handshake;
pub mod iohost;
mod loss;
mod net;
mod outbox;
mod received;
#[cfg(feature = "rogue")]
pub mod rogue;
mod round;
pub mod saved;
mod seal;
mod session;
mod times;
pub mod wire;

pub use loss::SessionStats;
pub use net::Assembly;
pub use seal::{Cipher, Keys};

#[cfg(test)]
mod tests;

/// Attachments of one client in one session.
pub const ATTACHMENTS_MAX: u16 = 4096;
/// Outstanding requests of one attachment.
pub const SLOTS_MAX: u16 = 256;

/// What a device is called on the wire: 64 bits of its name (FNV-1a), the same at both ends.
pub fn device_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What records of one binding of an attachment say: its place at the client, and which binding it is. It comes
/// again after a million bindings.
fn handle(index: u16, binding: u64) -> u32 {
    u32::from(index % ATTACHMENTS_MAX) | (binding << 12) as u32
}

/// The client's place in a handle.
fn index_of(handle: u32) -> u16 {
    (handle % u32::from(ATTACHMENTS_MAX)) as u16
}
