//! Packets in packets: what is around the segments of a frame that a host's kernel wrapped.
//!
//! A kernel hands VXLAN, Geneve, GRE and IP-in-IP to a packet socket with the label of the innermost
//! packet, and no receiver of virtio-net knows what to do with that. So such a frame is cut here, and
//! the lengths and checksums around each segment are made anew. Not for guests' frames, which may not
//! be such. Called by `finish`.

use crate::bytes::{put, u8_at, u16_at};
use crate::checksum::{checksum, sum};
use crate::finish::Unfinished;
use crate::headers::{IPV4, IPV6, IPV6_SIZE, Ip, Layout, Packet, Seen, UDP, innermost, packet};
use crate::offload::{Offload, UDP_CSUM, UDP_SIZE};
use crate::tag;

/// Packets around a packet that are looked into: a tunnel, and one in a tunnel.
pub(crate) const TUNNELS_MAX: usize = 2;

const IP_IN_IP: u8 = 4;
const IPV6_IN_IP: u8 = 41;
const GRE: u8 = 47;
/// The EtherType of Ethernet itself.
const ETHERNET: u16 = 0x6558;
/// What GRE's first two bytes say: a checksum, a key.
const GRE_CHECKSUM: u16 = 0x8000;
const GRE_KEY: u16 = 0x2000;
/// VXLAN's one flag: there is a network number.
const VXLAN_FLAG: u8 = 0x08;
const VXLAN_SIZE: usize = 8;
const GENEVE_SIZE: usize = 8;

/// One packet around another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around {
    pub(crate) ip: Ip,
    /// Where it begins, and where what it carries does.
    pub(crate) l3: usize,
    pub(crate) l4: usize,
    carrier: Carrier,
}

/// What is between two IP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Nothing,
    /// UDP, whose checksum may be none (RFC 768; RFC 6935 for IPv6).
    Udp {
        has_checksum: bool,
    },
    Gre {
        has_checksum: bool,
    },
}

/// Finds the headers of a frame whose innermost packet is the one that its offload is about.
///
/// # Errors
/// [`Unfinished`]: none of the known ways leads there.
pub(crate) fn parse(seen: Seen<'_>, offload: &Offload) -> Result<Layout, Unfinished> {
    ethernet(seen, offload, 0, &mut [None; TUNNELS_MAX], 0)
}

type Wrapped = [Option<Around>; TUNNELS_MAX];

/// An Ethernet header at `at`, inside of `depth` packets.
fn ethernet(
    seen: Seen<'_>,
    offload: &Offload,
    at: usize,
    around: &mut Wrapped,
    depth: usize,
) -> Result<Layout, Unfinished> {
    let frame = seen.bytes.get(at..).ok_or(Unfinished::Headers)?;
    let l3 = at + tag::ethernet_len(frame);
    let ether_type = u16_at(seen.bytes, l3 - 2).ok_or(Unfinished::Headers)?;
    network(seen, offload, (l3, ether_type), around, depth)
}

/// An IP header at `l3`, and what follows it. At most two ways at each of [`TUNNELS_MAX`] levels.
fn network(
    seen: Seen<'_>,
    offload: &Offload,
    (l3, ether_type): (usize, u16),
    around: &mut Wrapped,
    depth: usize,
) -> Result<Layout, Unfinished> {
    let packet = packet(seen, l3, ether_type)?;
    let Packet { ip, l4, protocol, .. } = packet;
    if l4 >= usize::from(offload.csum_start()) {
        let mut exact = [None; TUNNELS_MAX];
        exact.iter_mut().zip(around.iter()).take(depth).for_each(|(to, from)| *to = *from);
        return innermost(seen, offload, packet, exact);
    }
    let mut wrap = |carrier| {
        let place = around.get_mut(depth).ok_or(Unfinished::Kind)?;
        *place = Some(Around { ip, l3, l4, carrier });
        Ok::<(), Unfinished>(())
    };
    match protocol {
        IP_IN_IP => {
            wrap(Carrier::Nothing)?;
            network(seen, offload, (l4, IPV4), around, depth + 1)
        }
        IPV6_IN_IP => {
            wrap(Carrier::Nothing)?;
            network(seen, offload, (l4, IPV6), around, depth + 1)
        }
        GRE => {
            let (next, has_checksum) = gre(seen, l4)?;
            wrap(Carrier::Gre { has_checksum })?;
            carried(seen, offload, next, around, depth + 1)
        }
        UDP => {
            let field =
                u16_at(seen.bytes, l4 + usize::from(UDP_CSUM)).ok_or(Unfinished::Headers)?;
            wrap(Carrier::Udp { has_checksum: field != 0 })?;
            // Ports are the operator's: which of the two it is shows by where it leads.
            if let Ok(next) = vxlan(seen, l4)
                && let Ok(found) = carried(seen, offload, next, around, depth + 1)
            {
                return Ok(found);
            }
            carried(seen, offload, geneve(seen, l4)?, around, depth + 1)
        }
        _ => Err(Unfinished::Kind),
    }
}

/// What begins at a place, by its EtherType.
fn carried(
    seen: Seen<'_>,
    offload: &Offload,
    (at, ether_type): (usize, u16),
    around: &mut Wrapped,
    depth: usize,
) -> Result<Layout, Unfinished> {
    match ether_type {
        ETHERNET => ethernet(seen, offload, at, around, depth),
        _ => network(seen, offload, (at, ether_type), around, depth),
    }
}

/// What a GRE header (RFC 2784, 2890) at `at` carries, and whether it has a checksum. One that counts
/// its packets is refused: nobody may know what number the next one has.
fn gre(seen: Seen<'_>, at: usize) -> Result<((usize, u16), bool), Unfinished> {
    let flags = u16_at(seen.bytes, at).ok_or(Unfinished::Headers)?;
    let ether_type = u16_at(seen.bytes, at + 2).ok_or(Unfinished::Headers)?;
    if flags & !(GRE_CHECKSUM | GRE_KEY) != 0 {
        return Err(Unfinished::Kind);
    }
    let words = 1 + usize::from(flags & GRE_CHECKSUM != 0) + usize::from(flags & GRE_KEY != 0);
    Ok(((at + words * 4, ether_type), flags & GRE_CHECKSUM != 0))
}

/// The same of VXLAN (RFC 7348) in a datagram at `at`.
fn vxlan(seen: Seen<'_>, at: usize) -> Result<(usize, u16), Unfinished> {
    let flags = u8_at(seen.bytes, at + UDP_SIZE).ok_or(Unfinished::Headers)?;
    let is_it = flags & VXLAN_FLAG != 0;
    if is_it { Ok((at + UDP_SIZE + VXLAN_SIZE, ETHERNET)) } else { Err(Unfinished::Kind) }
}

/// The same of Geneve (RFC 8926), version 0.
fn geneve(seen: Seen<'_>, at: usize) -> Result<(usize, u16), Unfinished> {
    let first = u8_at(seen.bytes, at + UDP_SIZE).ok_or(Unfinished::Headers)?;
    let ether_type = u16_at(seen.bytes, at + UDP_SIZE + 2).ok_or(Unfinished::Headers)?;
    let options = usize::from(first & 0x3f) * 4;
    let is_it = first >> 6 == 0;
    if is_it {
        Ok((at + UDP_SIZE + GENEVE_SIZE + options, ether_type))
    } else {
        Err(Unfinished::Kind)
    }
}

/// Writes the lengths around a segment. Those of IP headers are the caller's ([`Around::ip`]).
pub(crate) fn write_lengths(segment: &mut [u8], around: &Around) {
    if matches!(around.carrier, Carrier::Udp { .. }) {
        // No packet is longer than 65,535 bytes, by `packet`.
        let len = segment.len().saturating_sub(around.l4) as u16;
        put(segment, around.l4 + 4, len.to_be_bytes());
    }
}

/// Writes the checksums around a segment that is finished inside, from the inside out.
pub(crate) fn write_checksums(segment: &mut [u8], around: &[Option<Around>]) {
    for around in around.iter().rev().flatten() {
        match around.carrier {
            Carrier::Udp { has_checksum: true } => write_udp(segment, around),
            Carrier::Gre { has_checksum: true } => {
                put(segment, around.l4 + 4, [0, 0]);
                let sum = segment.get(around.l4..).map_or(0, |bytes| checksum(0, bytes));
                put(segment, around.l4 + 4, sum.to_be_bytes());
            }
            _ => {}
        }
    }
}

fn write_udp(segment: &mut [u8], around: &Around) {
    let at = around.l4 + usize::from(UDP_CSUM);
    put(segment, at, [0, 0]);
    let addresses = match around.ip {
        Ip::V4 => around.l3 + 12..around.l3 + 20,
        Ip::V6 => around.l3 + 8..around.l3 + IPV6_SIZE,
    };
    let (Some(addresses), Some(datagram)) = (segment.get(addresses), segment.get(around.l4..))
    else {
        return;
    };
    // At most 32 bytes and two numbers: the sum stays far below 2^32.
    let pseudo = sum(u64::from(UDP) + datagram.len() as u64, addresses) as u32;
    let value = match checksum(pseudo, datagram) {
        0 => 0xffff,
        sum => sum,
    };
    put(segment, at, value.to_be_bytes());
}
