//! Frames for measuring: as small as they come, and as long.

use frame::Header;

/// Bytes of [`segment`]: an IP packet of 64 KiB less one byte, which is the longest, and its Ethernet
/// header.
pub const SEGMENT_BYTES: usize = 14 + 65_535;
/// Bytes of [`small`].
pub const SMALL_BYTES: usize = 64;
/// TCP payload of each packet on a wire.
const MSS: u16 = 1448;

/// The address of guest `number`.
pub fn mac(number: u16) -> [u8; 6] {
    let [high, low] = number.to_be_bytes();
    [0x52, 0x54, 0, 0, high, low]
}

/// UDP over IPv4, complete.
pub fn small(from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    let mut frame = ethernet(from, to);
    frame.extend(ipv4((SMALL_BYTES - 14) as u16, 17));
    // No checksum, which IPv4 allows.
    frame.extend([0x10, 0, 0x20, 0, 0, (SMALL_BYTES - 34) as u8, 0, 0]);
    frame.resize(SMALL_BYTES, 0x5a);
    frame
}

/// Whether a frame is RARP: a switch is told where a guest is, and no guest need hear of it.
pub fn is_announcement(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[0x80, 0x35])
}

/// TCP over IPv4 that is still to be cut; see [`segment_header`].
pub fn segment(from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    let mut frame = ethernet(from, to);
    frame.extend(ipv4((SEGMENT_BYTES - 14) as u16, 6));
    frame.extend([0x10, 0, 0x20, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    let at = frame.len();
    frame.extend((at..SEGMENT_BYTES).map(|byte| (byte % 251) as u8));
    frame
}

/// The virtio-net header of a [`segment`].
pub fn segment_header() -> Header {
    Header {
        flags: Header::NEEDS_CSUM,
        gso_type: Header::GSO_TCP4,
        header_len: 54,
        gso_size: MSS,
        csum_start: 34,
        csum_offset: 16,
        buffers: 0,
    }
}

fn ethernet(from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    [&to[..], &from, &[8, 0]].concat()
}

fn ipv4(len: u16, protocol: u8) -> [u8; 20] {
    let [high, low] = len.to_be_bytes();
    let mut header =
        [0x45, 0, high, low, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let [high, low] = frame::checksum(0, &header).to_be_bytes();
    header[10..12].copy_from_slice(&[high, low]);
    header
}
