//! The config space (VIRTIO 1.2, 5.1.4): 24 bytes, made anew for every read.

use super::{Live, Shape};
use crate::features as bit;

/// Bytes of the config space; what lies beyond reads as zero.
pub const CONFIG_SPACE_SIZE: usize = 24;

const MAC_SIZE: usize = 6;
/// `VIRTIO_NET_S_LINK_UP`.
const LINK_UP: u16 = 1;
/// Neither known: `SPEED_DUPLEX` is not offered, and whoever reads them all the same learns nothing
/// false (5.1.4.1).
const SPEED_UNKNOWN: u32 = 0xffff_ffff;
const DUPLEX_UNKNOWN: u8 = 0xff;

/// Reads `into.len()` bytes at `offset`. False, and nothing read, when that ends beyond 256 bytes
/// (the most that vhost-user carries); between 24 and 256 it is zero.
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

/// The driver writes: only its address, in whole or byte by byte, and only a legacy driver that has
/// no command for it (5.1.4.2, 5.1.4.3). False, and nothing changed, for anything else.
///
/// What it writes is what it reads; frames are taken from any address, as from a driver that uses
/// the command.
pub fn write_config(live: &Live, negotiated: u64, offset: u32, bytes: &[u8]) -> bool {
    if negotiated & (bit::VERSION_1 | bit::NET_CTRL_MAC_ADDR) != 0 {
        return false;
    }
    let mut mac = live.mac();
    let at = offset as usize;
    let Some(end) = at.checked_add(bytes.len()).filter(|end| *end <= MAC_SIZE) else {
        return false;
    };
    match mac.get_mut(at..end) {
        Some(place) if !bytes.is_empty() => place.copy_from_slice(bytes),
        _ => return false,
    }
    live.set_mac(mac);
    true
}

fn config_space(shape: &Shape, live: &Live) -> [u8; CONFIG_SPACE_SIZE] {
    let mut space = [0; CONFIG_SPACE_SIZE];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = space.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    put(0, &live.mac());
    put(MAC_SIZE, &(if live.is_up() { LINK_UP } else { 0 }).to_le_bytes());
    put(8, &shape.pairs.to_le_bytes());
    put(10, &live.mtu().to_le_bytes());
    put(12, &SPEED_UNKNOWN.to_le_bytes());
    put(16, &[DUPLEX_UNKNOWN]);
    space
}
