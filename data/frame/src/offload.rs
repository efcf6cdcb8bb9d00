//! What a frame leaves undone, checked.
//!
//! Numbers for every frame; of one that is to be cut, whether its headers are what it says, as far as its
//! head shows them. `finish` parses the rest, when a receiver cannot take a frame as it is. Called by
//! `sidecore` for each frame, whoever sent it: this is where a guest's, a kernel's and a link's words
//! about a frame are held against the frame.

use crate::HEAD_MAX;
use crate::bytes::{u8_at, u16_at};
use crate::finish::Unfinished;
use crate::header::Header;
use crate::headers::{self, IPV4, IPV4_SIZE, IPV6, IPV6_SIZE, Seen};
use crate::offloads::Offloads;
use crate::tag;

/// Segments that one frame may stand for: 64 KiB in pieces of 256 bytes. Without a bound, a guest with
/// segments of one byte would buy the work of 65,000 frames for one. Linux takes 128 datagrams, and
/// its TCP makes no smaller segments of long frames but on links of a few hundred bytes.
pub const SEGMENTS_MAX: usize = 256;

/// Bytes of an Ethernet header: no checksum starts before its end.
const ETHERNET_SIZE: u16 = 14;
pub(crate) const TCP_SIZE: usize = 20;
pub(crate) const TCP_SIZE_MAX: usize = 60;
pub(crate) const UDP_SIZE: usize = 8;
/// Where the checksum is in a TCP and in a UDP header.
pub(crate) const TCP_CSUM: u16 = 16;
pub(crate) const UDP_CSUM: u16 = 6;

/// What a frame leaves undone: nothing, a checksum, or a checksum and cutting it into segments.
///
/// One that exists is consistent with the length it was checked with, and was allowed to its sender.
///
/// One number, so that it goes from place to place in a register: what is written field by field and
/// copied as a whole makes a processor wait for all writes before it, and those are into lines that
/// another core has (half of what a small frame costs).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Offload(u64);

/// What an [`Offload`] says, apart.
#[derive(Clone, Copy, Debug)]
struct Parts {
    /// Bits 0 to 6.
    needs: Offloads,
    /// Nine bits from 7 on: a longer hint is shortened ([`HINT_MAX`]).
    header_len: u16,
    /// From bit 16 on.
    gso_size: u16,
    /// From bit 32 on.
    csum_start: u16,
    /// From bit 48 on.
    csum_offset: u16,
}

/// All that is said of a frame whose checksum was found right by a sender that is believed. Of one that
/// has something undone, the bit is its hint's.
const VALID: u64 = 1 << HEADER_LEN_SHIFT;
const HEADER_LEN_SHIFT: u32 = 7;
const HEADER_LEN_MAX: u16 = (1 << 9) - 1;
/// Longest hint that is kept: with room for the two tags that a frame may get on its way, so that
/// it is the same again when they are gone.
const HINT_MAX: u16 = HEADER_LEN_MAX - 2 * tag::SIZE as u16;
const _: () = assert!(((Offloads::ALL.bits() | Offloads::FINISHED.bits()) as u64) < VALID);

impl Parts {
    fn pack(self) -> Offload {
        let header_len = u64::from(self.header_len.min(HEADER_LEN_MAX)) << HEADER_LEN_SHIFT;
        let size = u64::from(self.gso_size) << 16;
        let place = u64::from(self.csum_start) << 32 | u64::from(self.csum_offset) << 48;
        Offload(u64::from(self.needs.bits()) | header_len | size | place)
    }
}

impl std::fmt::Debug for Offload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.parts().fmt(f)
    }
}

/// Why a header is not believed: its frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOffload {
    /// Not among `allowed`.
    #[error("the header asks for an offload that its sender did not negotiate")]
    NotNegotiated,
    /// A type that is unknown, UFO, or has the ECN bit without TCP.
    #[error("the GSO type is none of TCP over IPv4, TCP over IPv6, UDP datagrams")]
    Kind,
    /// Behind up to two tags there is another EtherType than the GSO type wants.
    #[error("a frame to be cut is not of the IP version that the GSO type says")]
    Version,
    /// The IP header leads elsewhere than to a transport header of the GSO type at `csum_start`, is a
    /// fragment's, or has another length than the frame.
    #[error("a frame to be cut is no packet of the GSO type")]
    Headers,
    /// `csum_start` before the end of the Ethernet header, of up to two tags, or of the IP header behind them.
    #[error("the checksum starts in the Ethernet header, a tag, or the IP header")]
    Start,
    /// `csum_start` and what follows it need more bytes than there are.
    #[error("the checksum, or the transport header, lies beyond the frame's end")]
    BeyondEnd,
    /// A GSO type without `NEEDS_CSUM` (VIRTIO 5.1.6.2.1).
    #[error("a frame to be cut leaves no checksum to be filled in")]
    NoChecksum,
    /// A GSO type with another `csum_offset` than 16 (TCP) or 6 (UDP).
    #[error("the checksum of a frame to be cut is not where TCP or UDP have it")]
    Place,
    /// A GSO type with `gso_size` 0.
    #[error("a frame to be cut gives no size for its segments")]
    NoSize,
    /// More than [`SEGMENTS_MAX`].
    #[error("a frame to be cut stands for more than {SEGMENTS_MAX} segments")]
    TooManySegments,
}

impl Offload {
    /// Nothing is left undone.
    pub const NONE: Offload = Offload(0);

    fn parts(self) -> Parts {
        Parts {
            needs: self.needs(),
            header_len: self.header_len(),
            gso_size: self.gso_size(),
            csum_start: self.csum_start(),
            csum_offset: self.csum_offset(),
        }
    }

    /// Checks the header of a guest's frame of `frame_len` bytes (without the header) that begins with
    /// `head`; `allowed` is what the guest negotiated to leave undone.
    ///
    /// Flags other than `NEEDS_CSUM` are ignored, as VIRTIO 5.1.6.2.2 demands of unknown ones:
    /// `DATA_VALID` from a guest proves nothing, and `RSC_INFO` is never negotiated. Without
    /// `NEEDS_CSUM` the checksum's fields are ignored, without a GSO type `gso_size` is.
    /// `header_len` is a hint and makes no frame bad.
    ///
    /// # Errors
    /// The first thing that cannot be true.
    #[inline]
    pub fn check(
        header: &Header,
        head: &[u8],
        frame_len: u32,
        allowed: Offloads,
    ) -> Result<Offload, BadOffload> {
        if header.gso_type == Header::GSO_NONE && header.flags & Header::NEEDS_CSUM == 0 {
            return Ok(Offload::NONE);
        }
        Offload::check_undone(header, head, frame_len, allowed)
    }

    /// The same of a frame that the host's kernel gave (tap, packet socket), or a link's other end, whose
    /// `DATA_VALID` is believed and passed on. A kernel may say of a tunnel's frame what is inside: such
    /// a one is nobody's to take as it is, so it is cut ([`finish`](crate::finish)) or dropped.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    #[inline]
    pub fn check_host(
        header: &Header,
        head: &[u8],
        frame_len: u32,
        allowed: Offloads,
    ) -> Result<Offload, BadOffload> {
        if header.gso_type == Header::GSO_NONE && header.flags & Header::NEEDS_CSUM == 0 {
            let is_valid = header.flags & Header::DATA_VALID != 0;
            return Ok(if is_valid { Offload(VALID) } else { Offload::NONE });
        }
        Offload::check_host_undone(header, head, frame_len, allowed)
    }

    /// A guest's frame of which something is undone; a call, so that a frame without is checked in line.
    #[inline(never)]
    fn check_undone(
        header: &Header,
        head: &[u8],
        frame_len: u32,
        allowed: Offloads,
    ) -> Result<Offload, BadOffload> {
        let (kind, offload) = Offload::numbers(header, frame_len, allowed)?;
        offload.of_head(kind, head, frame_len)
    }

    /// The same of a kernel's.
    #[inline(never)]
    fn check_host_undone(
        header: &Header,
        head: &[u8],
        frame_len: u32,
        allowed: Offloads,
    ) -> Result<Offload, BadOffload> {
        let (kind, offload) = Offload::numbers(header, frame_len, allowed)?;
        match offload.of_head(kind, head, frame_len) {
            Err(BadOffload::Version | BadOffload::Headers) => {
                let needs = offload.needs().union(Offloads::FINISHED);
                Ok(Parts { needs, ..offload.parts() }.pack())
            }
            checked => checked,
        }
    }

    /// A frame of which something is undone, by its numbers alone; with it, what it is to be cut as.
    fn numbers(
        header: &Header,
        frame_len: u32,
        allowed: Offloads,
    ) -> Result<(Offloads, Offload), BadOffload> {
        if header.flags & Header::NEEDS_CSUM == 0 {
            return Err(BadOffload::NoChecksum);
        }
        // Without GSO the ECN bit means nothing: it is among the unknown types below.
        let (kind, place, transport) = match header.gso_type {
            Header::GSO_NONE => (Offloads::NONE, header.csum_offset, 0),
            Header::GSO_TCP4 => (Offloads::TSO4, TCP_CSUM, TCP_SIZE),
            Header::GSO_TCP6 => (Offloads::TSO6, TCP_CSUM, TCP_SIZE),
            TCP4_ECN => (Offloads::TSO4.union(Offloads::ECN), TCP_CSUM, TCP_SIZE),
            TCP6_ECN => (Offloads::TSO6.union(Offloads::ECN), TCP_CSUM, TCP_SIZE),
            Header::GSO_UDP_L4 => (Offloads::USO, UDP_CSUM, UDP_SIZE),
            _ => return Err(BadOffload::Kind),
        };
        if !allowed.contains(kind.union(Offloads::CSUM)) {
            return Err(BadOffload::NotNegotiated);
        }
        if header.csum_start < ETHERNET_SIZE {
            return Err(BadOffload::Start);
        }
        let start = u32::from(header.csum_start);
        let headers = start + transport as u32;
        if (start + u32::from(header.csum_offset) + 2).max(headers) > frame_len {
            return Err(BadOffload::BeyondEnd);
        }
        let is_gso = !kind.is_empty();
        if is_gso && header.csum_offset != place {
            return Err(BadOffload::Place);
        }
        if is_gso && header.gso_size == 0 {
            return Err(BadOffload::NoSize);
        }
        if is_gso && frame_len - headers > u32::from(header.gso_size) * SEGMENTS_MAX as u32 {
            return Err(BadOffload::TooManySegments);
        }
        let parts = Parts {
            needs: kind.union(Offloads::CSUM),
            header_len: if is_gso { hint(header, frame_len, transport as u32) } else { 0 },
            gso_size: if is_gso { header.gso_size } else { 0 },
            csum_start: header.csum_start,
            csum_offset: header.csum_offset,
        };
        Ok((kind, parts.pack()))
    }

    /// The same, held against the frame's head.
    fn of_head(self, kind: Offloads, head: &[u8], frame_len: u32) -> Result<Offload, BadOffload> {
        let mut needs = self.needs();
        if is_dhcp(head, self.csum_start(), self.csum_offset()) {
            needs = needs.union(Offloads::FINISHED);
        }
        let is_behind = usize::from(self.csum_start()) >= headers_end(head);
        if kind.is_empty() {
            let parts = Parts { needs, ..self.parts() };
            return if is_behind { Ok(parts.pack()) } else { Err(BadOffload::Start) };
        }
        let other = of_version(kind, head).ok_or(BadOffload::Version)?;
        let offload = Parts { needs: needs.without(other), ..self.parts() }.pack();
        let bytes = head.get(..HEAD_MAX).unwrap_or(head);
        let seen = Seen { bytes, frame_len: frame_len as usize };
        match headers::parse(seen, &offload) {
            Ok(_) => Ok(offload),
            // Headers that go on behind the head, as IPv6's may.
            Err(Unfinished::Headers) if is_behind && bytes.len() < seen.frame_len => Ok(offload),
            Err(_) => Err(BadOffload::Headers),
        }
    }

    /// A checksum left undone, and nothing else.
    pub(crate) fn checksum_only(&self) -> Offload {
        Parts { needs: Offloads::CSUM, header_len: 0, gso_size: 0, ..self.parts() }.pack()
    }

    /// What a receiver must have to get the frame as it is.
    #[inline]
    pub fn needs(&self) -> Offloads {
        Offloads::of_frame(self.0 as u16)
    }

    /// Whether nothing is left undone.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.needs().is_empty()
    }

    /// Whether the frame stands for several segments.
    #[inline]
    pub fn is_gso(&self) -> bool {
        self.needs().intersects(Offloads::ALL.without(Offloads::CSUM))
    }

    /// Whether the type of a frame to be cut leaves room for IPv4.
    pub(crate) fn may_be_ipv4(&self) -> bool {
        self.needs().intersects(Offloads::TSO4.union(Offloads::USO4))
    }

    /// And for IPv6.
    pub(crate) fn may_be_ipv6(&self) -> bool {
        self.needs().intersects(Offloads::TSO6.union(Offloads::USO6))
    }

    /// Whether the checksum was found right by a sender that is believed.
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.0 == VALID
    }

    /// A hint: bytes of all headers.
    #[inline]
    fn header_len(&self) -> u16 {
        if self.is_valid() {
            return 0;
        }
        (self.0 >> HEADER_LEN_SHIFT) as u16 & HEADER_LEN_MAX
    }

    /// As a header says it (VIRTIO 5.1.6.2).
    #[inline]
    fn gso_type(&self) -> u8 {
        let needs = self.needs();
        let kind = if needs.contains(Offloads::TSO4) {
            Header::GSO_TCP4
        } else if needs.contains(Offloads::TSO6) {
            Header::GSO_TCP6
        } else if needs.intersects(Offloads::USO) {
            Header::GSO_UDP_L4
        } else {
            Header::GSO_NONE
        };
        if needs.contains(Offloads::ECN) { kind | Header::GSO_ECN } else { kind }
    }

    /// Bytes of payload of each segment; 0 for a frame that is not cut.
    #[inline]
    pub fn gso_size(&self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Where the sum begins, in bytes of the frame; 0 when no checksum is undone.
    #[inline]
    pub fn csum_start(&self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Where the checksum is, from where the sum begins.
    #[inline]
    pub fn csum_offset(&self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The same frame after `by` bytes were put in (or, negative, taken out) before the sum begins: a
    /// tag was pushed or popped. None when the sum would begin in the Ethernet header, or too far.
    #[inline]
    pub fn shifted(&self, by: i16) -> Option<Offload> {
        if self.is_none() {
            return Some(*self);
        }
        let csum_start = self.csum_start().checked_add_signed(by)?;
        if csum_start < ETHERNET_SIZE {
            return None;
        }
        let header_len = match self.header_len() {
            0 => 0,
            len => len.checked_add_signed(by)?,
        };
        Some(Parts { csum_start, header_len, ..self.parts() }.pack())
    }

    /// The header for a receiver, or a tap, that has `has`, in `buffers` receive buffers. The caller
    /// sees to it that `has` contains [`needs`](Self::needs), or calls [`finish`](crate::finish).
    ///
    /// `DATA_VALID` goes only to whoever can have checksums undone (VIRTIO 5.1.6.4.1).
    #[inline]
    pub fn header(&self, has: Offloads, buffers: u16) -> Header {
        let mut flags = 0;
        if self.needs().contains(Offloads::CSUM) {
            flags = Header::NEEDS_CSUM;
        } else if self.is_valid() && has.contains(Offloads::CSUM) {
            flags = Header::DATA_VALID;
        }
        Header {
            flags,
            gso_type: self.gso_type(),
            header_len: self.header_len(),
            gso_size: self.gso_size(),
            csum_start: self.csum_start(),
            csum_offset: self.csum_offset(),
            buffers,
        }
    }

    /// Bytes of the longest IP packet (what an MTU limits) that a frame of `frame_len` bytes with
    /// this `head` comes to on a wire: the frame without Ethernet header and tags, or, when it is
    /// cut, the headers and one segment.
    #[inline]
    pub fn packet_len(&self, head: &[u8], frame_len: u32) -> u32 {
        let mut len = frame_len;
        if self.is_gso() {
            let start = usize::from(self.csum_start());
            let transport = match self.csum_offset() {
                UDP_CSUM => UDP_SIZE,
                _ => tcp_size(head, start).unwrap_or(TCP_SIZE_MAX),
            };
            len = len.min((start + transport) as u32 + u32::from(self.gso_size()));
        }
        len.saturating_sub(tag::ethernet_len(head) as u32)
    }
}

const TCP4_ECN: u8 = Header::GSO_TCP4 | Header::GSO_ECN;
const TCP6_ECN: u8 = Header::GSO_TCP6 | Header::GSO_ECN;

/// Whether a checksum at that place is one of DHCP: of a datagram to port 67 or 68, or with IPv6 546 or 547. Clients
/// and servers read these by raw sockets, look at the checksum, and cannot know that it is undone. Yes, too,
/// where the ports lie behind the head.
#[inline]
fn is_dhcp(head: &[u8], csum_start: u16, csum_offset: u16) -> bool {
    csum_offset == UDP_CSUM
        && u16_at(head, usize::from(csum_start) + 2)
            .is_none_or(|port| matches!(port, 67 | 68 | 546 | 547))
}

/// What of `kind` a frame does not need whose IP is of the version that its head says: of USO, which the
/// header says only together, the other. None when it is another version, or none.
fn of_version(kind: Offloads, head: &[u8]) -> Option<Offloads> {
    let (of, other) = match u16_at(head, tag::ethernet_len(head) - 2) {
        Some(IPV4) => (Offloads::TSO4.union(Offloads::USO4), Offloads::TSO6.union(Offloads::USO6)),
        Some(IPV6) => (Offloads::TSO6.union(Offloads::USO6), Offloads::TSO4.union(Offloads::USO4)),
        _ => return None,
    };
    kind.intersects(of).then_some(other)
}

/// Where the headers end into which no checksum may be stored: whoever fills one in does that after the switch has read
/// the tags. Of an IP header what the head shows.
fn headers_end(head: &[u8]) -> usize {
    let l3 = tag::ethernet_len(head);
    match u16_at(head, l3 - 2) {
        Some(IPV4) => {
            let words = u8_at(head, l3).map_or(0, |first| usize::from(first & 15));
            l3 + (words * 4).max(IPV4_SIZE)
        }
        Some(IPV6) => l3 + IPV6_SIZE,
        _ => l3,
    }
}

/// Bytes of the TCP header at `start`, when that part of it is there and possible.
pub(crate) fn tcp_size(bytes: &[u8], start: usize) -> Option<usize> {
    let size = usize::from(u8_at(bytes, start + 12)? >> 4) * 4;
    (size >= TCP_SIZE).then_some(size)
}

/// Where the sender says that the payload begins, made possible: a receiver's kernel reads at least
/// so many bytes into its first buffer.
fn hint(header: &Header, frame_len: u32, transport: u32) -> u16 {
    let least = u32::from(header.csum_start) + transport;
    let most = least + (TCP_SIZE_MAX - TCP_SIZE) as u32;
    let said = u32::from(header.header_len).max(least).min(most).min(frame_len);
    u16::try_from(said).unwrap_or(u16::MAX).min(HINT_MAX)
}
