//! Which flow a frame is of, as a number.
//!
//! Not keyed: it spreads flows over the queues of one port and over a small table of that port, so a
//! guest that aims collisions meets only itself. Called by `sidecore` for ports of several pairs.

use crate::bytes::{array_at, u8_at, u16_at, u32_at};
use crate::headers::{IPV4, IPV6};
use crate::tag;

/// A number that is the same for both directions of a flow: addresses, protocol and, of TCP, UDP and
/// SCTP, ports; of what is not IP, the stations. All pieces of a fragmented packet have one. Reads
/// nothing beyond `head`; a head that ends early is hashed by what it has.
#[inline]
pub fn flow_hash(head: &[u8]) -> u32 {
    let l3 = tag::ethernet_len(head);
    let found = match u16_at(head, l3 - 2) {
        Some(IPV4) => ipv4(head, l3),
        Some(IPV6) => ipv6(head, l3),
        _ => None,
    };
    let (one, other, protocol) = found.unwrap_or_else(|| stations(head));
    // A sum is the same whichever is first; each end is mixed before, since else a bit of one end
    // would count as that of the other.
    let hash = mix(mix(one).wrapping_add(mix(other)) ^ protocol);
    (hash ^ hash >> 32) as u32
}

/// Two ends and what they speak.
type Flow = (u64, u64, u64);

fn ipv4(head: &[u8], l3: usize) -> Option<Flow> {
    let (from, to) = (u32_at(head, l3 + 12)?, u32_at(head, l3 + 16)?);
    let protocol = u8_at(head, l3 + 9)?;
    let size = usize::from(u8_at(head, l3)? & 15) * 4;
    // More fragments, or not the first one: ports are in one of them only.
    let is_piece = u16_at(head, l3 + 6)? & 0x3fff != 0;
    let (source, target) = if is_piece { (0, 0) } else { ports(head, l3 + size, protocol) };
    let end = |address: u32, port: u16| u64::from(address) << 16 | u64::from(port);
    Some((end(from, source), end(to, target), u64::from(protocol)))
}

fn ipv6(head: &[u8], l3: usize) -> Option<Flow> {
    let address = |at: usize| {
        let high = u64::from_be_bytes(array_at(head, at)?);
        let low = u64::from_be_bytes(array_at(head, at + 8)?);
        Some(mix(high) ^ low)
    };
    let (from, to) = (address(l3 + 8)?, address(l3 + 24)?);
    let protocol = u8_at(head, l3 + 6)?;
    let (source, target) = ports(head, l3 + 40, protocol);
    // Not beside the address, of which all bits are used.
    let end = |address: u64, port: u16| {
        address.wrapping_add(u64::from(port).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    };
    Some((end(from, source), end(to, target), u64::from(protocol)))
}

/// The ports of the protocols that have them there.
fn ports(head: &[u8], at: usize, protocol: u8) -> (u16, u16) {
    const TCP_UDP_SCTP: [u8; 3] = [6, 17, 132];
    if !TCP_UDP_SCTP.contains(&protocol) {
        return (0, 0);
    }
    u16_at(head, at).zip(u16_at(head, at + 2)).unwrap_or((0, 0))
}

fn stations(head: &[u8]) -> Flow {
    let station = |at: usize| {
        array_at(head, at)
            .map_or(0, |[a, b, c, d, e, f]| u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    };
    (station(0), station(6), u64::from(u16_at(head, 12).unwrap_or(0)))
}

/// One multiplication whose both halves count.
fn mix(value: u64) -> u64 {
    let product = u128::from(value ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    (product >> 64) as u64 ^ product as u64
}
