//! Ethernet frames as bytes: the virtio-net header and the offloads it announces, VLAN tags,
//! checksums, segmentation, RARP, the hash of a flow.
//!
//! Not the memory of a guest, not ports, not who gets a frame (`switch`). Pure: no clock, no I/O,
//! nothing is allocated. All bytes are hostile; whatever they are, every function ends after work
//! that its docs bound, and none panics.
//!
//! Called by `device` (features), `switch` (tags), `backend` (host ports) and `sidecore` (each frame).
//!
//! Sections are those of VIRTIO 1.2.
#![forbid(unsafe_code)]

mod bytes;
mod checksum;
mod finish;
mod hash;
mod header;
mod headers;
mod made;
mod offload;
mod offloads;
pub mod tag;
mod tunnel;

pub use checksum::checksum;
pub use finish::{HEADERS_MAX, Unfinished, finish};
pub use hash::flow_hash;
pub use header::{HEADER_SIZE, HEADER_SIZE_LEGACY, Header};
pub use made::{RARP_SIZE, rarp, swap_addresses};
pub use offload::{BadOffload, Offload, SEGMENTS_MAX};
pub use offloads::Offloads;

/// Bytes of a frame that are read once into private memory; every decision is made on them.
/// Ethernet header, two tags, IPv6 and TCP with all options are 122.
pub const HEAD_MAX: usize = 128;

/// Bytes of the shortest frame: an Ethernet header and nothing behind it.
pub const FRAME_MIN: u32 = 14;

/// Bytes of the longest frame: an IP packet of 64 KiB, an Ethernet header and two tags.
pub const FRAME_MAX: u32 = 65_535 + 22;

const _: () = assert!(HEAD_MAX >= 22 + 40 + 60);

#[cfg(test)]
mod tests;
