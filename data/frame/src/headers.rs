//! Where the headers of a frame that is to be cut are.
//!
//! Not a general parser: it follows one frame to the transport header that its offload names, and
//! refuses whatever leads elsewhere. Called by `finish`.

use crate::bytes::{u8_at, u16_at};
use crate::finish::{HEADERS_MAX, Unfinished};
use crate::offload::{Offload, UDP_CSUM, UDP_SIZE, tcp_size};
use crate::tag;

pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const IPV6: u16 = 0x86dd;
pub(crate) const IPV4_SIZE: usize = 20;
pub(crate) const IPV6_SIZE: usize = 40;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Extension headers that are walked; RFC 8200 orders six kinds, of which these are three.
const EXTENSIONS_MAX: usize = 8;

/// Which IP it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ip {
    V4,
    V6,
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
}

/// Finds the headers of a frame whose offload is GSO.
pub(crate) fn parse(frame: &[u8], offload: &Offload) -> Result<Layout, Unfinished> {
    let l3 = tag::ethernet_len(frame);
    let l4 = usize::from(offload.csum_start());
    let is_udp = offload.csum_offset() == UDP_CSUM;
    let (ip, protocol) = match u16_at(frame, l3 - 2) {
        Some(IPV4) if offload.may_be_ipv4() => (Ip::V4, ipv4(frame, l3, l4)?),
        Some(IPV6) if offload.may_be_ipv6() => (Ip::V6, ipv6(frame, l3, l4)?),
        _ => return Err(Unfinished::Kind),
    };
    if protocol != if is_udp { UDP } else { TCP } {
        return Err(Unfinished::Kind);
    }
    let transport = if is_udp { UDP_SIZE } else { tcp_size(frame, l4).ok_or(Unfinished::Kind)? };
    let payload = l4 + transport;
    if payload > frame.len() || payload > HEADERS_MAX {
        return Err(Unfinished::Headers);
    }
    Ok(Layout { ip, is_udp, l3, l4, payload })
}

/// The protocol of an IPv4 packet whose header ends at `l4`.
fn ipv4(frame: &[u8], l3: usize, l4: usize) -> Result<u8, Unfinished> {
    let first = u8_at(frame, l3).ok_or(Unfinished::Headers)?;
    let size = usize::from(first & 15) * 4;
    if first >> 4 != 4 || size < IPV4_SIZE || l3 + size != l4 {
        return Err(Unfinished::Kind);
    }
    // More fragments, or not the first one.
    if u16_at(frame, l3 + 6).ok_or(Unfinished::Headers)? & 0x3fff != 0 {
        return Err(Unfinished::Fragment);
    }
    check_length(u16_at(frame, l3 + 2), frame.len() - l3)?;
    u8_at(frame, l3 + 9).ok_or(Unfinished::Headers)
}

/// The protocol of an IPv6 packet whose last extension header ends at `l4`.
fn ipv6(frame: &[u8], l3: usize, l4: usize) -> Result<u8, Unfinished> {
    let first = u8_at(frame, l3).ok_or(Unfinished::Headers)?;
    if first >> 4 != 6 || l3 + IPV6_SIZE > l4 {
        return Err(Unfinished::Kind);
    }
    check_length(u16_at(frame, l3 + 4), frame.len().saturating_sub(l3 + IPV6_SIZE))?;
    let mut next = u8_at(frame, l3 + 6).ok_or(Unfinished::Headers)?;
    let mut at = l3 + IPV6_SIZE;
    for _ in 0..EXTENSIONS_MAX {
        match next {
            _ if at == l4 => return Ok(next),
            _ if at > l4 => return Err(Unfinished::Kind),
            HOP_BY_HOP | ROUTING | DESTINATION => {
                next = u8_at(frame, at).ok_or(Unfinished::Headers)?;
                let eights = u8_at(frame, at + 1).ok_or(Unfinished::Headers)?;
                at += (usize::from(eights) + 1) * 8;
            }
            FRAGMENT => return Err(Unfinished::Fragment),
            _ => return Err(Unfinished::Kind),
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
