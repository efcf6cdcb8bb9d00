//! Feature bits that belong to vhost-user, as masks.

/// Among the virtio features: writes to guest memory are to be logged (`VHOST_F_LOG_ALL`).
pub const LOG_ALL: u64 = 1 << 26;
/// Among the virtio features: there are protocol features (`VHOST_USER_F_PROTOCOL_FEATURES`).
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Among the virtio features: `VIRTIO_F_RING_PACKED`, which decides what a ring size may be.
pub const RING_PACKED: u64 = 1 << 34;

/// Among the virtio features: `VIRTIO_F_RING_RESET`. Never offered, since no message carries it;
/// accepted, for a guest that took it when an earlier version of the daemon did offer it.
pub const RING_RESET: u64 = 1 << 40;

/// The bits that no virtio device sees.
pub const TRANSPORT: u64 = LOG_ALL | PROTOCOL_FEATURES;

/// More than one queue.
pub const MQ: u64 = 1 << 0;
/// The dirty log comes as a descriptor.
pub const LOG_SHMFD: u64 = 1 << 1;
/// The front-end tells which address a guest has taken along (`SEND_RARP`).
pub const RARP: u64 = 1 << 2;
/// Any message can be acknowledged.
pub const REPLY_ACK: u64 = 1 << 3;
/// The front-end tells the largest packet (`NET_SET_MTU`).
pub const NET_MTU: u64 = 1 << 4;
/// There is a channel from back-end to front-end.
pub const BACKEND_REQ: u64 = 1 << 5;
/// The config space is the back-end's.
pub const CONFIG: u64 = 1 << 9;
/// There is a record of what is in flight.
pub const INFLIGHT_SHMFD: u64 = 1 << 12;
/// The device can be reset by a message.
pub const RESET_DEVICE: u64 = 1 << 13;
/// Memory regions come and go one by one.
pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

/// What every device offers.
pub const OFFERED: u64 =
    MQ | LOG_SHMFD | REPLY_ACK | BACKEND_REQ | RESET_DEVICE | CONFIGURE_MEM_SLOTS;
/// What a disk offers.
pub const OFFERED_BY_DISK: u64 = OFFERED | CONFIG | INFLIGHT_SHMFD;
/// What a NIC offers. Its queues complete in order, so they need no record of what is in flight. VMMs
/// answer for its config space themselves, and QEMU warns of a back-end that would.
pub const OFFERED_BY_NIC: u64 = OFFERED | RARP | NET_MTU;
