//! Packets built field by field, and a receiver that believes nothing: the plain implementation that
//! the fast one is held against. Shares no code with it.

use proptest::prelude::*;

use crate::{Header, Offload, Offloads};

/// A TCP or UDP packet, before it is bytes.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) tags: Vec<u16>,
    pub(super) is_v6: bool,
    pub(super) is_udp: bool,
    /// IPv4 options, in words of four bytes.
    pub(super) ip_options: usize,
    /// IPv6 extension headers: kind, and length in units of eight bytes beyond the first.
    pub(super) extensions: Vec<(u8, u8)>,
    /// TCP options, in words of four bytes.
    pub(super) tcp_options: usize,
    pub(super) flags: u8,
    pub(super) sequence: u32,
    pub(super) id: u16,
    pub(super) payload: Vec<u8>,
}

/// The same, as bytes whose checksum field holds the pseudo-header's sum.
#[derive(Clone, Debug)]
pub(super) struct Built {
    pub(super) bytes: Vec<u8>,
    pub(super) l3: usize,
    pub(super) l4: usize,
    pub(super) payload: usize,
}

/// What a receiver found in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) sequence: u32,
    pub(super) flags: u8,
    pub(super) id: u16,
    pub(super) payload: Vec<u8>,
    pub(super) is_checksum_right: bool,
    /// Everything of the headers that is the same in all segments.
    pub(super) constant: Vec<u8>,
}

impl Packet {
    pub(super) fn tcp4(payload: usize) -> Packet {
        Packet {
            tags: Vec::new(),
            is_v6: false,
            is_udp: false,
            ip_options: 0,
            extensions: Vec::new(),
            tcp_options: 3,
            flags: 0x18,
            sequence: 0xffff_ff00,
            id: 0xfffe,
            payload: (0..payload).map(|at| (at * 7 + at / 256) as u8).collect(),
        }
    }

    pub(super) fn tcp6(payload: usize) -> Packet {
        Packet { is_v6: true, ..Packet::tcp4(payload) }
    }

    pub(super) fn udp4(payload: usize) -> Packet {
        Packet { is_udp: true, ..Packet::tcp4(payload) }
    }

    pub(super) fn udp6(payload: usize) -> Packet {
        Packet { is_v6: true, ..Packet::udp4(payload) }
    }

    pub(super) fn build(&self) -> Built {
        let mut bytes = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2];
        for (number, tag) in self.tags.iter().enumerate() {
            let kind: u16 = if number == 0 && self.tags.len() == 2 { 0x88a8 } else { 0x8100 };
            bytes.extend(kind.to_be_bytes());
            bytes.extend(tag.to_be_bytes());
        }
        bytes.extend(if self.is_v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        let l3 = bytes.len();
        let mut transport = self.transport();
        let protocol = if self.is_udp { 17 } else { 6 };
        let (addresses, ip) = if self.is_v6 {
            self.ipv6(protocol, transport.len())
        } else {
            self.ipv4(protocol, transport.len())
        };
        let mut pseudo = addresses;
        pseudo.extend((transport.len() as u32).to_be_bytes());
        pseudo.extend([0, 0, 0, protocol]);
        let at = if self.is_udp { 6 } else { 16 };
        let sum = !plain_checksum(&pseudo);
        transport[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        bytes.extend(ip);
        let l4 = bytes.len();
        bytes.extend(&transport);
        let payload = bytes.len() - self.payload.len();
        Built { bytes, l3, l4, payload }
    }

    fn transport(&self) -> Vec<u8> {
        let mut bytes = vec![0x12, 0x34, 0x00, 0x50];
        if self.is_udp {
            bytes.extend((8 + self.payload.len() as u16).to_be_bytes());
            bytes.extend([0, 0]);
        } else {
            bytes.extend(self.sequence.to_be_bytes());
            bytes.extend([9, 8, 7, 6]);
            bytes.extend([((5 + self.tcp_options) << 4) as u8, self.flags, 0xff, 0x00, 0, 0, 0, 0]);
            bytes.extend(vec![1; self.tcp_options * 4]);
        }
        bytes.extend(&self.payload);
        bytes
    }

    /// Both addresses, and the header.
    fn ipv4(&self, protocol: u8, transport: usize) -> (Vec<u8>, Vec<u8>) {
        let size = 20 + self.ip_options * 4;
        let mut bytes = vec![0x40 | (size / 4) as u8, 0];
        bytes.extend(((size + transport) as u16).to_be_bytes());
        bytes.extend(self.id.to_be_bytes());
        bytes.extend([0x40, 0, 64, protocol, 0, 0]);
        bytes.extend([10, 0, 0, 1, 10, 200, 0, 2]);
        bytes.extend(vec![1; self.ip_options * 4]);
        let sum = plain_checksum(&bytes);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        (bytes[12..20].to_vec(), bytes)
    }

    fn ipv6(&self, protocol: u8, transport: usize) -> (Vec<u8>, Vec<u8>) {
        let mut extensions = Vec::new();
        for (number, (_, eights)) in self.extensions.iter().enumerate() {
            let next = self.extensions.get(number + 1).map_or(protocol, |(kind, _)| *kind);
            extensions.extend([next, *eights]);
            // A pad option that fills it.
            extensions.extend([1, eights * 8 + 4]);
            extensions.extend(vec![0; usize::from(*eights) * 8 + 4]);
        }
        let mut bytes = vec![0x60, 0, 0, 0];
        bytes.extend(((extensions.len() + transport) as u16).to_be_bytes());
        bytes.extend([self.extensions.first().map_or(protocol, |(kind, _)| *kind), 64]);
        bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 9, 9, 0, 0, 0, 0, 0, 2]);
        let addresses = bytes[8..40].to_vec();
        bytes.extend(extensions);
        (addresses, bytes)
    }

    /// The GSO type, and what a receiver needs.
    pub(super) fn kind(&self) -> u8 {
        match (self.is_udp, self.is_v6) {
            (true, _) => Header::GSO_UDP_L4,
            (false, false) => Header::GSO_TCP4,
            (false, true) => Header::GSO_TCP6,
        }
    }
}

impl Built {
    /// An offload for this frame; `gso_size` 0 for its checksum alone.
    pub(super) fn offload(&self, packet: &Packet, gso_size: u16) -> Offload {
        let ecn = if packet.flags & 0x80 != 0 && !packet.is_udp { Header::GSO_ECN } else { 0 };
        let header = Header {
            flags: Header::NEEDS_CSUM,
            gso_type: if gso_size == 0 { 0 } else { packet.kind() | ecn },
            header_len: self.payload as u16,
            gso_size,
            csum_start: self.l4 as u16,
            csum_offset: if packet.is_udp { 6 } else { 16 },
            buffers: 0,
        };
        Offload::check(&header, &self.bytes, self.bytes.len() as u32, Offloads::ALL)
            .expect("a good header")
    }
}

/// The checksum as RFC 1071 words it: two bytes at a time, carries brought in at once.
pub(super) fn plain_checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        if sum > 0xffff {
            sum -= 0xffff;
        }
    }
    !(sum as u16)
}

/// Reads a frame as a receiver would that was told what is undone. Every length must be right.
pub(super) fn receive(frame: &[u8], packet: &Packet, remains: &Offload) -> Seen {
    let model = packet.build();
    let (l3, l4) = (model.l3, model.l4);
    let mut frame = frame.to_vec();
    if !remains.is_none() {
        assert_eq!(remains.needs(), Offloads::CSUM);
        assert_eq!(usize::from(remains.csum_start()), l4);
        let at = l4 + usize::from(remains.csum_offset());
        let sum = plain_checksum(&frame[l4..]);
        frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    let number = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let mut pseudo = if packet.is_v6 {
        assert_eq!(usize::from(number(l3 + 4)), frame.len() - l3 - 40, "the payload's length");
        frame[l3 + 8..l3 + 40].to_vec()
    } else {
        assert_eq!(usize::from(number(l3 + 2)), frame.len() - l3, "the packet's length");
        assert_eq!(plain_checksum(&frame[l3..l4]), 0, "the IPv4 header's checksum");
        frame[l3 + 12..l3 + 20].to_vec()
    };
    pseudo.extend(((frame.len() - l4) as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, if packet.is_udp { 17 } else { 6 }]);
    pseudo.extend(&frame[l4..]);
    let is_checksum_right = plain_checksum(&pseudo) == 0;
    let mut constant = frame[..model.payload].to_vec();
    let clear = |constant: &mut Vec<u8>, at: usize, len: usize| constant[at..at + len].fill(0);
    if packet.is_v6 {
        clear(&mut constant, l3 + 4, 2);
    } else {
        clear(&mut constant, l3 + 2, 4);
        clear(&mut constant, l3 + 10, 2);
    }
    let (mut sequence, mut flags) = (0, 0);
    if packet.is_udp {
        assert_eq!(usize::from(number(l4 + 4)), frame.len() - l4, "the datagram's length");
        assert_ne!(number(l4 + 6), 0, "a datagram with a checksum");
        clear(&mut constant, l4 + 4, 4);
    } else {
        sequence = u32::from(number(l4 + 4)) << 16 | u32::from(number(l4 + 6));
        flags = frame[l4 + 13];
        clear(&mut constant, l4 + 4, 4);
        clear(&mut constant, l4 + 13, 1);
        clear(&mut constant, l4 + 16, 2);
    }
    let id = if packet.is_v6 { 0 } else { number(l3 + 4) };
    let payload = frame[model.payload..].to_vec();
    Seen { sequence, flags, id, payload, is_checksum_right, constant }
}

/// Any packet of up to `payload_max` bytes of payload.
pub(super) fn any_packet(payload_max: usize) -> impl Strategy<Value = Packet> {
    let extension = (prop_oneof![Just(0u8), Just(43), Just(60)], 0u8..3);
    let shape = (
        prop::collection::vec(1u16..4095, 0..=2),
        any::<bool>(),
        any::<bool>(),
        0usize..=10,
        prop::collection::vec(extension, 0..=3),
        0usize..=10,
    );
    let content = (any::<u8>(), any::<u32>(), any::<u16>());
    let payload = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..=payload_max.min(200)),
        (0..=payload_max, any::<u8>()).prop_map(|(len, first)| {
            (0..len).map(|at| (at * 31 + at / 251) as u8 ^ first).collect::<Vec<u8>>()
        }),
    ];
    (shape, content, payload).prop_map(|(shape, (flags, sequence, id), payload)| {
        let (tags, is_v6, is_udp, ip_options, extensions, tcp_options) = shape;
        Packet {
            tags,
            is_v6,
            is_udp,
            ip_options,
            extensions: if is_v6 { extensions } else { Vec::new() },
            tcp_options,
            flags,
            sequence,
            id,
            payload,
        }
    })
}
