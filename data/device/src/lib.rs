//! Virtio personalities: from a descriptor chain to a request, and from a status to the guest.
//!
//! Pure but for reads and writes of guest memory through [`guest_memory`]. Not here: rings
//! (`virtqueue`), where requests go (`backend`), and the protocol that negotiates features
//! (`vhost_user`). Called by `sidecore` for each chain, and by `manager` for the config space.
#![forbid(unsafe_code)]

pub mod blk;
pub mod features;
pub mod net;
