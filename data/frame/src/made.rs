//! Frames that are made or turned round here: the announcement of a station, the echo.
//!
//! Called by `sidecore` (announce) and by `backend`'s null port (echo).

use crate::bytes::put;

/// Bytes of an announcement: the least that an Ethernet carries, without its checksum.
pub const RARP_SIZE: usize = 60;

/// A RARP request by which a station with address `mac` shows all switches where it is now, as it is
/// sent after a migration (VIRTIO 5.1.6.5.4, vhost-user `SEND_RARP`).
pub fn rarp(mac: [u8; 6]) -> [u8; RARP_SIZE] {
    let mut frame = [0; RARP_SIZE];
    put(&mut frame, 0, [0xff; 6]);
    put(&mut frame, 6, mac);
    // RARP over Ethernet for IPv4 addresses of 4 bytes: "reverse request", both stations itself.
    put(&mut frame, 12, [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    put(&mut frame, 22, mac);
    put(&mut frame, 32, mac);
    frame
}

/// Sends a frame back to whoever sent it: destination and source change places. Nothing for a head
/// of less than 12 bytes.
#[inline]
pub fn swap_addresses(head: &mut [u8]) {
    if let Some((to, rest)) = head.split_at_mut_checked(6)
        && let Some(from) = rest.get_mut(..6)
    {
        to.swap_with_slice(from);
    }
}
