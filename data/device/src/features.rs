//! Feature bits as masks, by their names in VIRTIO 1.2 (5.1.3, 5.2.3 and 6); the segmentation of UDP
//! (`USO`) is of VIRTIO 1.3 (5.1.3).

/// `VIRTIO_BLK_F_SIZE_MAX`: the largest segment is in the config space.
pub const BLK_SIZE_MAX: u64 = 1 << 1;
/// `VIRTIO_BLK_F_SEG_MAX`: the most segments are in the config space.
pub const BLK_SEG_MAX: u64 = 1 << 2;
/// `VIRTIO_BLK_F_RO`: the device is read-only.
pub const BLK_RO: u64 = 1 << 5;
/// `VIRTIO_BLK_F_BLK_SIZE`: the block size is in the config space.
pub const BLK_BLK_SIZE: u64 = 1 << 6;
/// `VIRTIO_BLK_F_FLUSH`: there is a flush command.
pub const BLK_FLUSH: u64 = 1 << 9;
/// `VIRTIO_BLK_F_TOPOLOGY`: alignment facts are in the config space.
pub const BLK_TOPOLOGY: u64 = 1 << 10;
/// `VIRTIO_BLK_F_CONFIG_WCE`: the driver chooses write-back or write-through.
pub const BLK_CONFIG_WCE: u64 = 1 << 11;
/// `VIRTIO_BLK_F_MQ`: more than one queue.
pub const BLK_MQ: u64 = 1 << 12;
/// `VIRTIO_BLK_F_DISCARD`: there is a discard command.
pub const BLK_DISCARD: u64 = 1 << 13;
/// `VIRTIO_BLK_F_WRITE_ZEROES`: there is a write-zeroes command.
pub const BLK_WRITE_ZEROES: u64 = 1 << 14;
/// `VIRTIO_NET_F_CSUM`: the device takes frames whose checksum is not filled in.
pub const NET_CSUM: u64 = 1 << 0;
/// `VIRTIO_NET_F_GUEST_CSUM`: the driver takes such frames.
pub const NET_GUEST_CSUM: u64 = 1 << 1;
/// `VIRTIO_NET_F_MTU`: the largest packet is in the config space.
pub const NET_MTU: u64 = 1 << 3;
/// `VIRTIO_NET_F_MAC`: the address is in the config space.
pub const NET_MAC: u64 = 1 << 5;
/// `VIRTIO_NET_F_GUEST_TSO4`: the driver takes TCP segments over IPv4 that are not cut.
pub const NET_GUEST_TSO4: u64 = 1 << 7;
/// `VIRTIO_NET_F_GUEST_TSO6`: the same over IPv6.
pub const NET_GUEST_TSO6: u64 = 1 << 8;
/// `VIRTIO_NET_F_GUEST_ECN`: the driver takes such segments with congestion marks.
pub const NET_GUEST_ECN: u64 = 1 << 9;
/// `VIRTIO_NET_F_HOST_TSO4`: the device takes TCP segments over IPv4 that are not cut.
pub const NET_HOST_TSO4: u64 = 1 << 11;
/// `VIRTIO_NET_F_HOST_TSO6`: the same over IPv6.
pub const NET_HOST_TSO6: u64 = 1 << 12;
/// `VIRTIO_NET_F_HOST_ECN`: the device takes such segments with congestion marks.
pub const NET_HOST_ECN: u64 = 1 << 13;
/// `VIRTIO_NET_F_MRG_RXBUF`: a frame may lie in several receive buffers.
pub const NET_MRG_RXBUF: u64 = 1 << 15;
/// `VIRTIO_NET_F_STATUS`: whether the link is up is in the config space.
pub const NET_STATUS: u64 = 1 << 16;
/// `VIRTIO_NET_F_CTRL_VQ`: there is a control queue.
pub const NET_CTRL_VQ: u64 = 1 << 17;
/// `VIRTIO_NET_F_CTRL_RX`: it takes wishes for which frames are received.
pub const NET_CTRL_RX: u64 = 1 << 18;
/// `VIRTIO_NET_F_CTRL_VLAN`: it takes VLAN filters.
pub const NET_CTRL_VLAN: u64 = 1 << 19;
/// `VIRTIO_NET_F_GUEST_ANNOUNCE`: the driver announces itself when asked.
pub const NET_GUEST_ANNOUNCE: u64 = 1 << 21;
/// `VIRTIO_NET_F_MQ`: more than one pair of queues.
pub const NET_MQ: u64 = 1 << 22;
/// `VIRTIO_NET_F_CTRL_MAC_ADDR`: the control queue takes another address.
pub const NET_CTRL_MAC_ADDR: u64 = 1 << 23;
/// `VIRTIO_NET_F_GUEST_USO4`: the driver takes UDP over IPv4 that is not cut.
pub const NET_GUEST_USO4: u64 = 1 << 54;
/// `VIRTIO_NET_F_GUEST_USO6`: the same over IPv6.
pub const NET_GUEST_USO6: u64 = 1 << 55;
/// `VIRTIO_NET_F_HOST_USO`: the device takes UDP, over either, that is not cut.
pub const NET_HOST_USO: u64 = 1 << 56;
/// `VIRTIO_F_ANY_LAYOUT`: a legacy driver may frame a request as it likes.
pub const ANY_LAYOUT: u64 = 1 << 27;
/// `VIRTIO_F_INDIRECT_DESC`: chains may be in tables of their own.
pub const INDIRECT_DESC: u64 = 1 << 28;
/// `VIRTIO_F_EVENT_IDX`: either side says from where on it wants to be told.
pub const EVENT_IDX: u64 = 1 << 29;
/// `VIRTIO_F_VERSION_1`: not a legacy driver.
pub const VERSION_1: u64 = 1 << 32;
/// `VIRTIO_F_RING_PACKED`: the packed ring.
pub const RING_PACKED: u64 = 1 << 34;
/// `VIRTIO_F_IN_ORDER`: buffers are used in the order they were made available.
pub const IN_ORDER: u64 = 1 << 35;
/// `VIRTIO_F_RING_RESET`: a queue can be reset alone. Never offered: vhost-user has no message for it.
pub const RING_RESET: u64 = 1 << 40;
