//! TCP and UDP packets with known payload, and what is left of them at a receiver, put together again.
//!
//! Everything is looked at with a plain implementation of its own: it shares no line with `frame`,
//! whose work it judges. Not guests and not their rings: those are `testing::net_frontend`'s.

use anyhow::{Context, Result, ensure};
use testing::net_frontend::{Header, feature};

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;
const SEQUENCE: u32 = 0xffff_f000;

/// What one side can leave undone, or take undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Can {
    /// Checksums.
    pub csum: bool,
    /// Long TCP over IPv4, over IPv6.
    pub tso: [bool; 2],
    /// Long TCP with CWR.
    pub ecn: bool,
    /// Long UDP.
    pub uso: bool,
}

impl Can {
    /// All of it.
    pub const ALL: Can = Can { csum: true, tso: [true; 2], ecn: true, uso: true };

    /// The feature bits of a driver that may send so.
    pub fn as_sender(self) -> u64 {
        let Can { csum, tso: [tso4, tso6], ecn, uso } = self;
        bits(&[
            (csum, feature::CSUM),
            (tso4, feature::HOST_TSO4),
            (tso6, feature::HOST_TSO6),
            (ecn, feature::HOST_ECN),
            (uso, feature::HOST_USO),
        ])
    }

    /// The feature bits of a driver that may be given such.
    pub fn as_receiver(self) -> u64 {
        let Can { csum, tso: [tso4, tso6], ecn, uso } = self;
        bits(&[
            (csum, feature::GUEST_CSUM),
            (tso4, feature::GUEST_TSO4),
            (tso6, feature::GUEST_TSO6),
            (ecn, feature::GUEST_ECN),
            (uso, feature::GUEST_USO4 | feature::GUEST_USO6),
        ])
    }

    /// Whether the packet may be left uncut.
    pub fn long(self, packet: &Packet) -> bool {
        let kind = if packet.is_tcp { self.tso[usize::from(packet.is_v6)] } else { self.uso };
        self.csum && kind && (self.ecn || !packet.has_cwr)
    }
}

fn bits(of: &[(bool, u64)]) -> u64 {
    of.iter().filter(|(has, _)| *has).fold(0, |all, (_, bit)| all | bit)
}

/// A packet to be sent in one frame.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// IPv6, or IPv4.
    pub is_v6: bool,
    /// TCP, or UDP.
    pub is_tcp: bool,
    /// Whether a TCP packet says that its sender slowed down.
    pub has_cwr: bool,
    /// The tag in front of it.
    pub vlan: Option<u16>,
    /// Bytes of payload.
    pub payload: usize,
    /// Two packets of different numbers have different payloads.
    pub number: u16,
}

impl Packet {
    /// Bytes of the Ethernet header with the tag.
    fn link(&self) -> usize {
        if self.vlan.is_some() { 18 } else { 14 }
    }

    /// Where the transport header begins.
    fn transport(&self) -> usize {
        self.link() + if self.is_v6 { 40 } else { 20 }
    }

    /// Bytes of the headers of IP and transport.
    pub fn headers(&self) -> usize {
        self.transport() - self.link() + if self.is_tcp { 20 } else { 8 }
    }

    fn csum_offset(&self) -> usize {
        if self.is_tcp { 16 } else { 6 }
    }

    fn byte(&self, at: usize) -> u8 {
        (at * 31 + (at >> 8) * 7 + usize::from(self.number) * 17) as u8
    }

    /// The frame and its header as a sender makes them that `can` so much; cut, when it may be, into
    /// pieces of `mss` bytes.
    pub fn build(&self, [from, to]: [[u8; 6]; 2], can: Can, mss: u16) -> (Header, Vec<u8>) {
        let mut frame = [to, from].concat();
        if let Some(vlan) = self.vlan {
            frame.extend([0x81, 0]);
            frame.extend(vlan.to_be_bytes());
        }
        frame.extend(if self.is_v6 { [0x86, 0xdd] } else { [8, 0] });
        self.put_ip(&mut frame);
        let len = (self.headers() - (self.transport() - self.link()) + self.payload) as u16;
        frame.extend([0x10, 0x01, 0x20, 0x02]);
        if self.is_tcp {
            frame.extend(SEQUENCE.to_be_bytes());
            frame.extend([0, 0, 0, 9, 0x50, ACK | PSH | if self.has_cwr { CWR } else { 0 }]);
            frame.extend([0xff, 0xff, 0, 0, 0, 0]);
        } else {
            frame.extend(len.to_be_bytes());
            frame.extend([0, 0]);
        }
        frame.extend((0..self.payload).map(|at| self.byte(at)));
        let transport = self.transport();
        let place = transport + self.csum_offset();
        // What a stack leaves there is the sum of the pseudo header; what it sends, the whole one.
        let pseudo = sum(self.addresses(&frame), self.protocol() + u32::from(len));
        let whole = match !sum(&frame[transport..], u32::from(pseudo)) {
            0 => 0xffff,
            other => other,
        };
        let checksum = if can.csum { pseudo } else { whole };
        frame[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
        (self.header(can, mss), frame)
    }

    fn put_ip(&self, frame: &mut Vec<u8>) {
        let headers = self.headers();
        if self.is_v6 {
            frame.extend([0x60, 0, 0, 0]);
            frame.extend(((headers - 40 + self.payload) as u16).to_be_bytes());
            frame.extend([self.protocol() as u8, 64]);
            for last in [1, 2] {
                frame.extend([0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
            }
        } else {
            let at = frame.len();
            frame.extend([0x45, 0]);
            frame.extend(((headers + self.payload) as u16).to_be_bytes());
            frame.extend(self.number.to_be_bytes());
            frame.extend([0x40, 0, 64, self.protocol() as u8, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2]);
            let checksum = !sum(&frame[at..], 0);
            frame[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
        }
    }

    fn header(&self, can: Can, mss: u16) -> Header {
        if !can.csum {
            return Header::default();
        }
        let is_cut = can.long(self) && self.payload > usize::from(mss);
        let kind = match (self.is_tcp, self.is_v6) {
            (true, false) => Header::GSO_TCP4,
            (true, true) => Header::GSO_TCP6,
            (false, _) => Header::GSO_UDP_L4,
        };
        let ecn = if self.has_cwr { Header::GSO_ECN } else { 0 };
        Header {
            flags: Header::NEEDS_CSUM,
            gso_type: if is_cut { kind | ecn } else { Header::GSO_NONE },
            header_len: if is_cut { (self.link() + self.headers()) as u16 } else { 0 },
            gso_size: if is_cut { mss } else { 0 },
            csum_start: self.transport() as u16,
            csum_offset: self.csum_offset() as u16,
            buffers: 0,
        }
    }

    fn protocol(&self) -> u32 {
        if self.is_tcp { 6 } else { 17 }
    }

    /// Source and destination of a frame's IP header.
    fn addresses<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let ip = self.link();
        if self.is_v6 { &frame[ip + 8..ip + 40] } else { &frame[ip + 12..ip + 20] }
    }
}

/// What has arrived of a packet.
#[derive(Debug)]
pub struct Reassembly {
    packet: Packet,
    /// As it was sent.
    header: Header,
    sent: Vec<u8>,
    /// Payload that has arrived, bytes.
    done: usize,
    /// Frames that it arrived in.
    pub pieces: u16,
}

impl Reassembly {
    /// Nothing, of a packet that was sent so.
    pub fn new(packet: Packet, header: Header, sent: Vec<u8>) -> Reassembly {
        Reassembly { packet, header, sent, done: 0, pieces: 0 }
    }

    /// Whether all has arrived.
    pub fn is_whole(&self) -> bool {
        self.pieces > 0 && self.done == self.packet.payload
    }

    /// Takes the next frame of it, for a receiver that `can` so much behind a link of that MTU.
    ///
    /// # Errors
    /// The first thing in which it is not as it must be.
    pub fn take(&mut self, header: &Header, frame: &[u8], can: Can, mtu: usize) -> Result<()> {
        let packet = self.packet;
        let (link, transport) = (packet.link(), packet.transport());
        let start = link + packet.headers();
        ensure!(frame.len() >= start, "a frame of {} bytes", frame.len());
        ensure!(frame[..link] == self.sent[..link], "another Ethernet header: {frame:02x?}");
        let payload = &frame[start..];
        let at = self.done;
        let same = self.sent.get(start + at..start + at + payload.len()) == Some(payload);
        ensure!(same, "payload of {} bytes from {at} on differs", payload.len());
        ensure!(self.pieces == 0 || !payload.is_empty(), "an empty piece");
        let is_last = at + payload.len() == packet.payload;

        self.header_is_right(header, payload.len(), can)?;
        let wire = match header.gso_type {
            Header::GSO_NONE => frame.len() - link,
            _ => packet.headers() + usize::from(header.gso_size),
        };
        ensure!(wire <= mtu, "a packet of {wire} bytes");
        if self.header.gso_type != Header::GSO_NONE && header.gso_type == Header::GSO_NONE {
            let mss = usize::from(self.header.gso_size);
            ensure!(payload.len() == mss || is_last, "a segment of {} bytes", payload.len());
        }
        self.ip_is_right(frame)?;
        self.transport_is_right(frame, is_last)?;
        let pseudo =
            sum(packet.addresses(frame), packet.protocol() + (frame.len() - transport) as u32);
        let place = transport + packet.csum_offset();
        let stands = u16_at(frame, place);
        if header.flags & Header::NEEDS_CSUM != 0 {
            ensure!(stands == pseudo, "undone, {stands:#x} stands for the sum {pseudo:#x}");
        } else {
            let all = sum(&frame[transport..], u32::from(pseudo));
            ensure!(stands != 0 || packet.is_tcp, "a UDP checksum that says there is none");
            ensure!(all == 0xffff, "the sum with the checksum is {all:#x}");
        }
        self.done += payload.len();
        self.pieces += 1;
        Ok(())
    }

    /// The header leaves undone only what the receiver takes so, and says where.
    fn header_is_right(&self, header: &Header, payload: usize, can: Can) -> Result<()> {
        let packet = self.packet;
        let undone = header.flags & Header::NEEDS_CSUM != 0;
        ensure!(can.csum || header.flags == 0, "{header:?} for one that takes no checksums");
        if undone {
            let places = (usize::from(header.csum_start), usize::from(header.csum_offset));
            ensure!(places == (packet.transport(), packet.csum_offset()), "{header:?}");
        }
        if header.gso_type == Header::GSO_NONE {
            return Ok(());
        }
        ensure!(undone && can.long(&packet), "{header:?} for one that takes no such");
        ensure!(header.gso_type == self.header.gso_type, "{header:?} of {:?}", self.header);
        ensure!(header.gso_size == self.header.gso_size, "{header:?} of {:?}", self.header);
        ensure!(payload == packet.payload, "a part that is still to be cut: {payload} bytes");
        Ok(())
    }

    fn ip_is_right(&self, frame: &[u8]) -> Result<()> {
        let (packet, ip) = (self.packet, self.packet.link());
        let len = frame.len() - ip;
        if packet.is_v6 {
            ensure!(frame[ip..ip + 4] == self.sent[ip..ip + 4], "IPv6's first bytes differ");
            ensure!(usize::from(u16_at(frame, ip + 4)) + 40 == len, "IPv6's length of {len} bytes");
            ensure!(frame[ip + 6..ip + 40] == self.sent[ip + 6..ip + 40], "IPv6's rest differs");
        } else {
            ensure!(usize::from(u16_at(frame, ip + 2)) == len, "IPv4's length of {len} bytes");
            let id = u16_at(frame, ip + 4);
            ensure!(id == packet.number.wrapping_add(self.pieces), "IPv4's identification is {id}");
            let sum = sum(&frame[ip..ip + 20], 0);
            ensure!(sum == 0xffff, "IPv4's sum with the checksum is {sum:#x}");
            ensure!(frame[ip + 6..ip + 10] == self.sent[ip + 6..ip + 10], "IPv4's middle differs");
            ensure!(packet.addresses(frame) == packet.addresses(&self.sent), "addresses differ");
        }
        Ok(())
    }

    fn transport_is_right(&self, frame: &[u8], is_last: bool) -> Result<()> {
        let (packet, at) = (self.packet, self.packet.transport());
        ensure!(frame[at..at + 4] == self.sent[at..at + 4], "ports differ");
        if !packet.is_tcp {
            let len = usize::from(u16_at(frame, at + 4));
            ensure!(len == frame.len() - at, "UDP's length is {len} of {}", frame.len() - at);
            return Ok(());
        }
        let sequence = u32::from_be_bytes(frame[at + 4..at + 8].try_into().context("no room")?);
        let expected = SEQUENCE.wrapping_add(self.done as u32);
        ensure!(sequence == expected, "sequence number {sequence} in place of {expected}");
        let mut flags = ACK;
        flags |= if is_last { PSH } else { 0 };
        flags |= if packet.has_cwr && self.done == 0 { CWR } else { 0 };
        ensure!(frame[at + 13] == flags, "flags are {:#x}, not {flags:#x}", frame[at + 13]);
        ensure!(
            frame[at + 8..at + 13] == self.sent[at + 8..at + 13],
            "the acknowledgement differs"
        );
        ensure!(frame[at + 14..at + 16] == self.sent[at + 14..at + 16], "the window differs");
        ensure!(
            frame[at + 18..at + 20] == self.sent[at + 18..at + 20],
            "the urgent pointer differs"
        );
        Ok(())
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The sum of RFC 1071, not inverted.
fn sum(bytes: &[u8], start: u32) -> u16 {
    // Eight bytes at a time come to the same, and tests are not optimised.
    let mut sum = u128::from(start);
    for some in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..some.len()].copy_from_slice(some);
        sum += u128::from(u64::from_be_bytes(word));
    }
    while sum >> 16 > 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_packet_is_taken_and_one_with_any_byte_changed_is_not() -> Result<()> {
        for (is_v6, is_tcp, vlan) in [(false, true, None), (true, false, Some(5))] {
            let packet =
                Packet { is_v6, is_tcp, has_cwr: false, vlan, payload: 33, number: 0xffff };
            for can in [Can::default(), Can::ALL] {
                let (header, frame) = packet.build([[2; 6], [4; 6]], can, 100);
                let fresh = || Reassembly::new(packet, header, frame.clone());
                let mut whole = fresh();
                whole.take(&header, &frame, can, 1500)?;
                ensure!(whole.is_whole() && whole.pieces == 1);
                ensure!(fresh().take(&header, &frame, can, 60).is_err(), "it is over the MTU");
                for at in 0..frame.len() {
                    let mut other = frame.clone();
                    other[at] ^= 4;
                    let taken = fresh().take(&header, &other, can, 1500);
                    ensure!(taken.is_err(), "byte {at} of {packet:?} is not looked at");
                }
            }
        }
        Ok(())
    }
}
