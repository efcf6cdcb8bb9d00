//! Doing what a frame leaves undone, for a receiver that cannot.
//!
//! Not whether that is needed: the caller asks `Offload::needs` first, because most frames go as they
//! are. Called by `sidecore` on its slow way.

use crate::bytes::{array_at, put, u16_at, u32_at};
use crate::checksum::{checksum, fold};
use crate::headers::{self, IPV6_SIZE, Ip, Layout, Seen};
use crate::offload::{Offload, SEGMENTS_MAX, TCP_CSUM, UDP_CSUM};
use crate::offloads::Offloads;
use crate::tunnel::{self, TUNNELS_MAX};

/// Bytes of all headers of a frame that is cut, at most: two tags, IPv6, TCP with all options, and
/// 134 bytes of extension headers.
pub const HEADERS_MAX: usize = 256;

/// Why a frame cannot be finished: it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfinished {
    /// Another IP version or protocol, or the transport header is elsewhere.
    #[error("the headers are not those of what the offload says that the frame is")]
    Kind,
    /// More than [`HEADERS_MAX`], or more than the frame has.
    #[error("the headers end beyond the frame or are longer than {HEADERS_MAX} bytes")]
    Headers,
    /// An IP fragment, which has no whole transport header.
    #[error("the packet is itself a piece of a larger one")]
    Fragment,
    /// Bytes behind the packet would become payload.
    #[error("the IP header gives another length than the frame has")]
    Length,
    /// The offload was checked with another length, which had no more than [`SEGMENTS_MAX`].
    #[error("the segments are so small that there are more than {SEGMENTS_MAX}")]
    TooManySegments,
    /// The offload was checked with another length.
    #[error("the frame is shorter than the one that the offload was checked with")]
    BeyondEnd,
}

/// Finishes a whole frame in private memory for a receiver that has `has`, and gives each frame that
/// comes of it, with what is still undone, to `each`; says how many.
///
/// - A frame that the receiver can take goes as it is.
/// - A frame that nobody may have undone, [`Offloads::FINISHED`], is finished whatever `has` is: a tunnel's, whose
///   outer headers are then made anew for each segment.
/// - A checksum is filled in; one that comes to 0 is written as 0xffff, which is equal to it and
///   which UDP reads as "there is one" (RFC 768).
/// - A frame of several segments is cut into at most [`SEGMENTS_MAX`]. Each has all headers, with
///   its own lengths, IPv4 identification and header checksum, TCP sequence number; CWR is
///   on the first only, FIN and PSH on the last only. Its checksum is left undone for a receiver that
///   has CSUM. The field of the whole frame must have the pseudo-header's sum (VIRTIO 5.1.6.2), from
///   which those of the segments are made, so a routing header needs no care.
///
/// The bytes that `each` sees are in `frame` itself: nothing is copied but headers. Afterwards
/// `frame` is as it was, and can be finished again for another receiver.
///
/// # Errors
/// When the frame cannot be parsed as what it says, or comes to too much. `each` was not called then.
pub fn finish(
    frame: &mut [u8],
    offload: &Offload,
    has: Offloads,
    mut each: impl FnMut(&[u8], Offload),
) -> Result<u32, Unfinished> {
    if has.contains(offload.needs()) {
        each(frame, *offload);
        return Ok(1);
    }
    match offload.is_gso() {
        true => {
            let must = offload.needs().contains(Offloads::FINISHED);
            cut(frame, offload, has.contains(Offloads::CSUM) && !must, each)
        }
        false => fill_in(frame, offload, each),
    }
}

/// The checksum alone, of whatever protocol.
fn fill_in(
    frame: &mut [u8],
    offload: &Offload,
    mut each: impl FnMut(&[u8], Offload),
) -> Result<u32, Unfinished> {
    let start = usize::from(offload.csum_start());
    let at = start + usize::from(offload.csum_offset());
    let before: [u8; 2] = array_at(frame, at).ok_or(Unfinished::BeyondEnd)?;
    let bytes = frame.get(start..).ok_or(Unfinished::BeyondEnd)?;
    put(frame, at, not_zero(checksum(0, bytes)).to_be_bytes());
    each(frame, Offload::NONE);
    put(frame, at, before);
    Ok(1)
}

/// Each segment gets its headers in place, over the end of the payload before it, which is put back
/// afterwards.
fn cut(
    frame: &mut [u8],
    offload: &Offload,
    has_checksum: bool,
    mut each: impl FnMut(&[u8], Offload),
) -> Result<u32, Unfinished> {
    let layout = layout_of(frame, offload)?;
    let size = usize::from(offload.gso_size()).max(1);
    let count = (frame.len() - layout.payload).div_ceil(size).max(1);
    if count > SEGMENTS_MAX {
        return Err(Unfinished::TooManySegments);
    }
    let first = First::read(frame, &layout)?;
    let mut model = [0; HEADERS_MAX];
    let mut before = [0; HEADERS_MAX];
    let (Some(model), Some(before), Some(headers)) = (
        model.get_mut(..layout.payload),
        before.get_mut(..layout.payload),
        frame.get(..layout.payload),
    ) else {
        return Err(Unfinished::Headers);
    };
    model.copy_from_slice(headers);
    let remains = if has_checksum { offload.checksum_only() } else { Offload::NONE };
    for number in 0..count {
        let at = number * size;
        let end = (at + layout.payload + size).min(frame.len());
        let Some(segment) = frame.get_mut(at..end) else { break };
        let Some(place) = segment.get_mut(..layout.payload) else { break };
        before.copy_from_slice(place);
        place.copy_from_slice(model);
        let place = Place { number, offset: at, is_last: number + 1 == count };
        write_headers(segment, &layout, &first, place);
        if !has_checksum {
            write_checksum(segment, &layout);
            tunnel::write_checksums(segment, &layout.around);
        }
        each(segment, remains);
        if let Some(place) = segment.get_mut(..layout.payload) {
            place.copy_from_slice(before);
        }
    }
    Ok(count as u32)
}

/// Where the headers are. Only a frame that nobody gets as it is may be a tunnel's.
fn layout_of(frame: &[u8], offload: &Offload) -> Result<Layout, Unfinished> {
    let seen = Seen { bytes: frame, frame_len: frame.len() };
    match headers::parse(seen, offload) {
        Err(_) if offload.needs().contains(Offloads::FINISHED) => tunnel::parse(seen, offload),
        found => found,
    }
}

/// What the headers of the whole frame say that differs from segment to segment.
struct First {
    ipv4_id: u16,
    /// Of the packets around it.
    around_ids: [u16; TUNNELS_MAX],
    sequence: u32,
    tcp_flags: u8,
    /// Sum of the pseudo-header without the length.
    pseudo: u64,
}

/// Which segment it is.
struct Place {
    number: usize,
    /// Bytes of payload before it.
    offset: usize,
    is_last: bool,
}

impl First {
    fn read(frame: &[u8], layout: &Layout) -> Result<First, Unfinished> {
        let read = || {
            let l4 = layout.l4;
            let field = u16_at(frame, l4 + checksum_offset(layout))?;
            let len = u16::try_from(frame.len() - l4).ok()?;
            let mut around_ids = [0; TUNNELS_MAX];
            for (id, around) in around_ids.iter_mut().zip(layout.around.iter().flatten()) {
                *id = u16_at(frame, around.l3 + 4)?;
            }
            Some(First {
                around_ids,
                ipv4_id: u16_at(frame, layout.l3 + 4)?,
                sequence: u32_at(frame, l4 + 4)?,
                // Meaningless for UDP, whose header may end before.
                tcp_flags: frame.get(l4 + 13).copied().unwrap_or(0),
                // To subtract in ones' complement is to add the complement.
                pseudo: u64::from(field) + u64::from(!len),
            })
        };
        read().ok_or(Unfinished::Headers)
    }
}

/// Everything but the transport checksum, in whose place the pseudo-header's sum is left.
fn write_headers(segment: &mut [u8], layout: &Layout, first: &First, place: Place) {
    const FIN_PSH: u8 = 0x01 | 0x08;
    const CWR: u8 = 0x80;
    let number = place.number as u16;
    for (around, id) in layout.around.iter().flatten().zip(first.around_ids) {
        write_ip(segment, around.ip, (around.l3, around.l4), id.wrapping_add(number));
        tunnel::write_lengths(segment, around);
    }
    let l4 = layout.l4;
    write_ip(segment, layout.ip, (layout.l3, l4), first.ipv4_id.wrapping_add(number));
    // `headers` has seen that none of the whole packet's lengths is above 65,535.
    let transport = (segment.len() - l4) as u16;
    if layout.is_udp {
        put(segment, l4 + 4, transport.to_be_bytes());
    } else {
        let mut flags = first.tcp_flags;
        if place.number > 0 {
            flags &= !CWR;
        }
        if !place.is_last {
            flags &= !FIN_PSH;
        }
        put(segment, l4 + 4, first.sequence.wrapping_add(place.offset as u32).to_be_bytes());
        put(segment, l4 + 13, [flags]);
    }
    let pseudo = fold(first.pseudo + u64::from(transport));
    put(segment, l4 + checksum_offset(layout), pseudo.to_be_bytes());
}

/// Length, identification and header checksum of the IP header from `l3` to `l4`.
fn write_ip(segment: &mut [u8], ip: Ip, (l3, l4): (usize, usize), id: u16) {
    let bytes_from = |at: usize| segment.len().saturating_sub(at) as u16;
    match ip {
        Ip::V4 => {
            put(segment, l3 + 2, bytes_from(l3).to_be_bytes());
            put(segment, l3 + 4, id.to_be_bytes());
            put(segment, l3 + 10, [0, 0]);
            let sum = segment.get(l3..l4).map_or(0, |header| checksum(0, header));
            put(segment, l3 + 10, sum.to_be_bytes());
        }
        Ip::V6 => put(segment, l3 + 4, bytes_from(l3 + IPV6_SIZE).to_be_bytes()),
    }
}

/// The transport checksum, from the pseudo-header's sum in its place.
fn write_checksum(segment: &mut [u8], layout: &Layout) {
    let sum = segment.get(layout.l4..).map_or(0, |bytes| checksum(0, bytes));
    put(segment, layout.l4 + checksum_offset(layout), not_zero(sum).to_be_bytes());
}

fn checksum_offset(layout: &Layout) -> usize {
    usize::from(if layout.is_udp { UDP_CSUM } else { TCP_CSUM })
}

fn not_zero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}
