//! The config space (VIRTIO 1.2, 5.2.4): 60 bytes, made anew for every read.

use super::{Live, SEG_MAX, SIZE_MAX, Shape, Topology};
use crate::features as bit;

/// Bytes of the config space; what lies beyond reads as zero.
pub const CONFIG_SPACE_SIZE: usize = 60;

const WRITEBACK: u32 = 32;

/// Reads `into.len()` bytes at `offset`. False, and nothing read, when that ends beyond 256 bytes
/// (the most that vhost-user carries); between 60 and 256 it is zero.
pub fn read_config(shape: &Shape, live: &Live, offset: u32, into: &mut [u8]) -> bool {
    let Some(end) = (offset as usize).checked_add(into.len()).filter(|end| *end <= 256) else {
        return false;
    };
    let space = config_space(shape, live);
    for (place, byte) in (offset as usize..end).zip(into) {
        *byte = space.get(place).copied().unwrap_or(0);
    }
    true
}

/// The driver writes: only `writeback`, one byte, and only where `CONFIG_WCE` was negotiated.
/// False, and nothing changed, for anything else.
pub fn write_config(live: &Live, negotiated: u64, offset: u32, bytes: &[u8]) -> bool {
    match bytes {
        [writeback] if offset == WRITEBACK && negotiated & bit::BLK_CONFIG_WCE != 0 => {
            live.set_writeback(*writeback != 0);
            true
        }
        _ => false,
    }
}

fn config_space(shape: &Shape, live: &Live) -> [u8; CONFIG_SPACE_SIZE] {
    let mut space = [0; CONFIG_SPACE_SIZE];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = space.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    put(0, &live.capacity_sectors().to_le_bytes());
    put(8, &SIZE_MAX.to_le_bytes());
    put(12, &SEG_MAX.to_le_bytes());
    put(20, &shape.block_size.to_le_bytes());
    let Topology { alignment_offset, io_min, io_best, discard_sectors } = shape.topology;
    put(24, &[shape.physical_block_exp, alignment_offset]);
    // Both in logical blocks: the smallest and the best request.
    put(26, &io_min.max(1u16 << shape.physical_block_exp.min(15)).to_le_bytes());
    put(28, &io_best.to_le_bytes());
    put(WRITEBACK as usize, &[u8::from(live.writeback())]);
    put(34, &shape.queues.to_le_bytes());
    let block_sectors = shape.block_size / 512;
    put(36, &shape.limits.discard_sectors_max.to_le_bytes());
    put(40, &u32::from(shape.limits.discard_sectors_max > 0).to_le_bytes());
    // Of write-zeroes nothing is said of alignment: any range is zeroed, whatever is freed.
    put(44, &discard_sectors.max(block_sectors).to_le_bytes());
    put(48, &shape.limits.zeroes_sectors_max.to_le_bytes());
    put(52, &u32::from(shape.limits.zeroes_sectors_max > 0).to_le_bytes());
    put(56, &[1]);
    space
}
