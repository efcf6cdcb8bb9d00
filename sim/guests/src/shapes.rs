//! What the drivers of a guest negotiate, drawn: rings, features, how much is in flight, and whether anybody looks without
//! being called.

use device::features as bit;
use random::Random;
use virtqueue::Format;
use virtqueue::driver::RingSpec;

use crate::guest::GuestSpec;
use crate::layout::{SLOTS, TABLE};

/// Of a disk.
pub(crate) fn disk_spec(number: u32, random: &mut Random) -> GuestSpec {
    let format = random.of(&[Format::Split, Format::Split, Format::Packed]);
    let size = match format {
        Format::Split => random.of(&[8, 16, 32]),
        Format::Packed => random.of(&[7, 8, 13, 32]),
    };
    let event_index = random.one_in(2);
    let indirect = random.one_in(2);
    let ring =
        RingSpec { size, format, event_index, indirect_entries: u16::from(indirect) * TABLE };
    let mut features = bit::VERSION_1 | bit::BLK_MQ;
    let mut also = |condition, feature| features |= if condition { feature } else { 0 };
    also(format == Format::Packed, bit::RING_PACKED);
    also(event_index, bit::EVENT_IDX);
    also(indirect, bit::INDIRECT_DESC);
    also(!random.one_in(6), bit::BLK_FLUSH);
    also(random.one_in(2), bit::BLK_CONFIG_WCE);
    also(random.one_in(2), bit::BLK_DISCARD);
    also(random.one_in(2), bit::BLK_WRITE_ZEROES);
    let queues = random.between(1, 3) as u16;
    let write_through = random.one_in(4);
    // Of one that waits for what it asked, and only looks when it is called, no kick and no call may be lost.
    let (depth, looks) = (random.of(&[1, 2, SLOTS, SLOTS]), random.one_in(2));
    let (number, vlan, is_recorded) = (number.into(), None, true);
    GuestSpec { number, vlan, queues, ring, features, write_through, depth, looks, is_recorded }
}

/// Of a NIC.
pub(crate) fn nic_spec(number: u32, random: &mut Random) -> GuestSpec {
    let disk = disk_spec(number, random);
    let mut features = bit::VERSION_1 | bit::NET_MAC;
    features |= disk.features & (bit::RING_PACKED | bit::EVENT_IDX | bit::INDIRECT_DESC);
    features |= if random.one_in(2) { bit::NET_MRG_RXBUF } else { 0 };
    let vlan = Some(random.of(&[0, 0, 7, 8]));
    let (write_through, looks, is_recorded) = (false, true, false);
    GuestSpec { vlan, queues: 2, features, write_through, looks, is_recorded, ..disk }
}
