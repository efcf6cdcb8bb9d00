//! Where the headers of a frame that is to be cut are.
//!
//! Not a general parser: it follows one frame to the transport header that its offload names, and
//! refuses whatever leads elsewhere. Called by `finish`, and by `offload` for the head of each frame
//! that is to be cut.

use crate::bytes::{u8_at, u16_at};
use crate::finish::{HEADERS_MAX, Unfinished};
use crate::offload::{Offload, UDP_CSUM, UDP_SIZE, tcp_size};
use crate::tag;
use crate::tunnel::{Around, TUNNELS_MAX};

pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const IPV6: u16 = 0x86dd;
pub(crate) const IPV4_SIZE: usize = 20;
pub(crate) const IPV6_SIZE: usize = 40;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
/// Extension headers that are walked; RFC 8200 orders six kinds, of which these are three.
const EXTENSIONS_MAX: usize = 8;
/// Where a TCP header says how long it is.
const TCP_LENGTH: usize = 12;

/// Which IP it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ip {
    V4,
    V6,
}

/// An IP header with its extensions, and what they lead to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) ip: Ip,
    /// Where it begins, and where what it carries does.
    pub(crate) l3: usize,
    pub(crate) l4: usize,
    /// Of what it carries.
    pub(crate) protocol: u8,
}

/// Offsets into a frame, each within it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) ip: Ip,
    pub(crate) is_udp: bool,
    /// Where the IP header begins, and the transport header.
    pub(crate) l3: usize,
    pub(crate) l4: usize,
    /// Where the payload begins; at most [`HEADERS_MAX`].
    pub(crate) payload: usize,
    /// What that packet is wrapped in, from the outside in.
    pub(crate) around: [Option<Around>; TUNNELS_MAX],
}

/// The first bytes of a frame, or all, and how long it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) frame_len: usize,
}

/// Finds the headers of a frame whose offload is GSO, and whose only IP header is the first.
pub(crate) fn parse(seen: Seen<'_>, offload: &Offload) -> Result<Layout, Unfinished> {
    let l3 = tag::ethernet_len(seen.bytes);
    let ether_type = u16_at(seen.bytes, l3 - 2).ok_or(Unfinished::Kind)?;
    packet(seen, l3, ether_type)
        .and_then(|packet| innermost(seen, offload, packet, [None; TUNNELS_MAX]))
}

/// The layout of a frame whose innermost packet is that.
pub(crate) fn innermost(
    seen: Seen<'_>,
    offload: &Offload,
    packet: Packet,
    around: [Option<Around>; TUNNELS_MAX],
) -> Result<Layout, Unfinished> {
    let Packet { ip, l3, l4, protocol } = packet;
    let is_udp = offload.csum_offset() == UDP_CSUM;
    let may_be = match ip {
        Ip::V4 => offload.may_be_ipv4(),
        Ip::V6 => offload.may_be_ipv6(),
    };
    let wanted = if is_udp { UDP } else { TCP };
    if !may_be || l4 != usize::from(offload.csum_start()) || protocol != wanted {
        return Err(Unfinished::Kind);
    }
    let transport = match is_udp {
        true => UDP_SIZE,
        false if seen.bytes.len() <= l4 + TCP_LENGTH => return Err(Unfinished::Headers),
        false => tcp_size(seen.bytes, l4).ok_or(Unfinished::Kind)?,
    };
    let payload = l4 + transport;
    if payload > seen.frame_len || payload > HEADERS_MAX {
        return Err(Unfinished::Headers);
    }
    Ok(Layout { ip, is_udp, l3, l4, payload, around })
}

/// The IP packet of that EtherType at `l3`.
pub(crate) fn packet(seen: Seen<'_>, l3: usize, ether_type: u16) -> Result<Packet, Unfinished> {
    match ether_type {
        IPV4 => ipv4(seen, l3),
        IPV6 => ipv6(seen, l3),
        _ => Err(Unfinished::Kind),
    }
}

fn ipv4(seen: Seen<'_>, l3: usize) -> Result<Packet, Unfinished> {
    let bytes = seen.bytes;
    let first = u8_at(bytes, l3).ok_or(Unfinished::Headers)?;
    let size = usize::from(first & 15) * 4;
    if first >> 4 != 4 || size < IPV4_SIZE {
        return Err(Unfinished::Kind);
    }
    // More fragments, or not the first one.
    if u16_at(bytes, l3 + 6).ok_or(Unfinished::Headers)? & 0x3fff != 0 {
        return Err(Unfinished::Fragment);
    }
    check_length(u16_at(bytes, l3 + 2), seen.frame_len.saturating_sub(l3))?;
    let protocol = u8_at(bytes, l3 + 9).ok_or(Unfinished::Headers)?;
    Ok(Packet { ip: Ip::V4, l3, l4: l3 + size, protocol })
}

fn ipv6(seen: Seen<'_>, l3: usize) -> Result<Packet, Unfinished> {
    let bytes = seen.bytes;
    let first = u8_at(bytes, l3).ok_or(Unfinished::Headers)?;
    if first >> 4 != 6 {
        return Err(Unfinished::Kind);
    }
    check_length(u16_at(bytes, l3 + 4), seen.frame_len.saturating_sub(l3 + IPV6_SIZE))?;
    let mut protocol = u8_at(bytes, l3 + 6).ok_or(Unfinished::Headers)?;
    let mut l4 = l3 + IPV6_SIZE;
    for _ in 0..EXTENSIONS_MAX {
        match protocol {
            HOP_BY_HOP | ROUTING | DESTINATION => {
                protocol = u8_at(bytes, l4).ok_or(Unfinished::Headers)?;
                let eights = u8_at(bytes, l4 + 1).ok_or(Unfinished::Headers)?;
                l4 += (usize::from(eights) + 1) * 8;
            }
            FRAGMENT => return Err(Unfinished::Fragment),
            _ => return Ok(Packet { ip: Ip::V6, l3, l4, protocol }),
        }
    }
    Err(Unfinished::Headers)
}

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

/// The length that the IP header says is that of the frame; 0 leaves it to whoever cuts, as some
/// stacks do. Bytes behind the packet would become payload.
fn check_length(said: Option<u16>, real: usize) -> Result<(), Unfinished> {
    let said = usize::from(said.ok_or(Unfinished::Headers)?);
    let is_possible = real <= usize::from(u16::MAX) && (said == real || said == 0);
    if is_possible { Ok(()) } else { Err(Unfinished::Length) }
}
