//! virtio-net (VIRTIO 1.2, 5.1): what a NIC offers, and one queue's view of it.
//!
//! [`Shape`] and [`Live`] are the NIC; [`offered`] its features; [`Net`] what one driver made of them,
//! for its queues. Not here: frames and their headers (`frame`), where they go (`switch`), rings
//! (`virtqueue`), the control queue (the VMM serves it). Called by `sidecore` for each frame, and by
//! `manager` for features and the config space.

mod config_space;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use frame::Offloads;

pub use config_space::{CONFIG_SPACE_SIZE, read_config, write_config};

use crate::features as bit;

/// Pairs of queues of one NIC.
pub const PAIRS_MAX: u16 = 16;
/// Smallest MTU, bytes: what IPv4 needs at least (5.1.4.1).
pub const MTU_MIN: u16 = 68;

/// What does not change while the NIC exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its address, unicast.
    pub mac: [u8; 6],
    /// Largest IP packet, bytes, [`MTU_MIN`] to 65535. One that is still to be cut may be longer.
    pub mtu: u16,
    /// Pairs of queues offered, 1 to [`PAIRS_MAX`].
    pub pairs: u16,
    /// Whether the driver may have frames that are not finished ([`GUEST_OFFLOADS`]).
    pub guest_offloads: bool,
}

/// The features by which a driver takes frames that are not cut, or whose checksum is not filled in.
pub const GUEST_OFFLOADS: u64 = bit::NET_GUEST_CSUM
    | bit::NET_GUEST_TSO4
    | bit::NET_GUEST_TSO6
    | bit::NET_GUEST_ECN
    | bit::NET_GUEST_USO4
    | bit::NET_GUEST_USO6;

/// What changes while the NIC runs. Shared by its queues and control; plain loads and stores.
#[derive(Debug)]
pub struct Live {
    is_up: AtomicBool,
    mtu: AtomicU16,
    /// Little-endian, in the low six bytes.
    mac: AtomicU64,
}

impl Live {
    /// A NIC of this shape with its link up.
    pub fn new(shape: &Shape) -> Arc<Live> {
        let live = Live {
            is_up: AtomicBool::new(true),
            mtu: AtomicU16::new(shape.mtu),
            mac: AtomicU64::new(0),
        };
        live.set_mac(shape.mac);
        Arc::new(live)
    }

    /// Whether the link is up.
    #[inline]
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// The operator's choice.
    pub fn set_up(&self, is_up: bool) {
        self.is_up.store(is_up, Ordering::Relaxed);
    }

    /// Largest IP packet that the guest may send and gets, bytes.
    #[inline]
    pub fn mtu(&self) -> u16 {
        self.mtu.load(Ordering::Relaxed)
    }

    /// What the front-end chose (`NET_SET_MTU`). False, and nothing changed, when that is below
    /// [`MTU_MIN`] or above the NIC's own.
    pub fn set_mtu(&self, shape: &Shape, mtu: u64) -> bool {
        match u16::try_from(mtu) {
            Ok(mtu) if (MTU_MIN..=shape.mtu).contains(&mtu) => {
                self.mtu.store(mtu, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// The address in the config space.
    pub fn mac(&self) -> [u8; 6] {
        let [a, b, c, d, e, f, ..] = self.mac.load(Ordering::Relaxed).to_le_bytes();
        [a, b, c, d, e, f]
    }

    /// Another address in the config space: a legacy driver's choice, or the NIC's own at reset.
    pub fn set_mac(&self, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        self.mac.store(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]), Ordering::Relaxed);
    }
}

/// The virtio features of a NIC; without vhost-user's own bits. With one pair, `MQ` says so in the
/// config space.
///
/// Those of the control queue are offered since the VMM serves it, and takes away what we do not
/// offer. All is completed in order, so `IN_ORDER` costs nothing. `RING_RESET` is absent: a driver
/// that has it resets a ring by the front-end alone, which has no message for that (0023).
pub fn offered(shape: &Shape) -> u64 {
    let finished = bit::NET_CSUM
        | bit::NET_MTU
        | bit::NET_MAC
        | bit::NET_HOST_TSO4
        | bit::NET_HOST_TSO6
        | bit::NET_HOST_ECN
        | bit::NET_MRG_RXBUF
        | bit::NET_STATUS
        | bit::NET_CTRL_VQ
        | bit::NET_CTRL_RX
        | bit::NET_CTRL_VLAN
        | bit::NET_GUEST_ANNOUNCE
        | bit::NET_MQ
        | bit::NET_CTRL_MAC_ADDR
        | bit::NET_HOST_USO
        | bit::ANY_LAYOUT
        | bit::INDIRECT_DESC
        | bit::EVENT_IDX
        | bit::VERSION_1
        | bit::RING_PACKED
        | bit::IN_ORDER;
    if shape.guest_offloads { finished | GUEST_OFFLOADS } else { finished }
}

/// What one driver negotiated, for the queues that it set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Net {
    accepts: Offloads,
    has: Offloads,
    header_size: usize,
    merges: bool,
}

impl Net {
    /// For a driver that accepted `negotiated`. A feature without the one that it depends on counts
    /// as not accepted (5.1.3.1): no driver may do that, so none can rely on it.
    pub fn new(negotiated: u64) -> Net {
        let has = |feature| negotiated & feature != 0;
        let merges = has(bit::NET_MRG_RXBUF);
        let short = !merges && !has(bit::VERSION_1);
        Net {
            accepts: offloads(
                has(bit::NET_CSUM),
                has(bit::NET_HOST_TSO4),
                has(bit::NET_HOST_TSO6),
                has(bit::NET_HOST_ECN),
                [has(bit::NET_HOST_USO); 2],
            ),
            has: offloads(
                has(bit::NET_GUEST_CSUM),
                has(bit::NET_GUEST_TSO4),
                has(bit::NET_GUEST_TSO6),
                has(bit::NET_GUEST_ECN),
                [has(bit::NET_GUEST_USO4), has(bit::NET_GUEST_USO6)],
            ),
            header_size: if short { frame::HEADER_SIZE - 2 } else { frame::HEADER_SIZE },
            merges,
        }
    }

    /// What a frame from this guest may leave to us.
    #[inline]
    pub fn accepts_from_guest(&self) -> Offloads {
        self.accepts
    }

    /// What a frame for this guest may leave to it.
    #[inline]
    pub fn guest_has(&self) -> Offloads {
        self.has
    }

    /// Bytes of the header before each frame, both ways: 12; 10, without `num_buffers`, for a legacy
    /// driver that does not merge buffers (5.1.6.1).
    #[inline]
    pub fn header_size(&self) -> usize {
        self.header_size
    }

    /// Whether a frame may lie in several receive buffers (`MRG_RXBUF`, 5.1.6.4).
    #[inline]
    pub fn merges(&self) -> bool {
        self.merges
    }
}

/// One direction's offloads, without those that lack what they depend on.
fn offloads(csum: bool, tso4: bool, tso6: bool, ecn: bool, uso: [bool; 2]) -> Offloads {
    let mut all = Offloads::NONE;
    for (has, offload) in [
        (csum, Offloads::CSUM),
        (csum && tso4, Offloads::TSO4),
        (csum && tso6, Offloads::TSO6),
        (csum && ecn && (tso4 || tso6), Offloads::ECN),
        (csum && uso[0], Offloads::USO4),
        (csum && uso[1], Offloads::USO6),
    ] {
        all = if has { all.union(offload) } else { all };
    }
    all
}

#[cfg(test)]
mod tests;
