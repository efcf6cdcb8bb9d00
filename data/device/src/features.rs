//! Feature bits as masks, by their names in VIRTIO 1.2 (5.2.3 and 6).

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
/// `VIRTIO_F_RING_RESET`: a queue can be reset alone.
pub const RING_RESET: u64 = 1 << 40;
