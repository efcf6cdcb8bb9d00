//! Frames that a host's kernel wrapped and did not cut: each segment has right headers all the way in.

use super::packet::{Packet, plain_checksum, receive};
use crate::{BadOffload, Header, Offload, Offloads, Unfinished, finish};

const ADDRESSES: [u8; 12] = [2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 8];

/// What is around the inner packet, from the outside in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Vxlan { has_checksum: bool },
    Geneve { options: u8 },
    GreEthernet { has_key: bool, has_checksum: bool },
    GreIp,
    Ip,
}

const WAYS: [Way; 9] = [
    Way::Vxlan { has_checksum: false },
    Way::Vxlan { has_checksum: true },
    Way::Geneve { options: 0 },
    Way::Geneve { options: 3 },
    Way::GreEthernet { has_key: false, has_checksum: false },
    Way::GreEthernet { has_key: true, has_checksum: true },
    Way::GreEthernet { has_key: true, has_checksum: false },
    Way::GreIp,
    Way::Ip,
];

impl Way {
    /// What IP says that it carries.
    fn protocol(self, inner_is_v6: bool) -> u8 {
        match self {
            Way::Vxlan { .. } | Way::Geneve { .. } => 17,
            Way::GreEthernet { .. } | Way::GreIp => 47,
            Way::Ip => {
                if inner_is_v6 {
                    41
                } else {
                    4
                }
            }
        }
    }

    /// What is between the outer IP header and the inner Ethernet or IP header.
    fn header(self, inner_is_v6: bool, rest: usize) -> Vec<u8> {
        let inner: [u8; 2] = if inner_is_v6 { [0x86, 0xdd] } else { [8, 0] };
        let udp = |port: [u8; 2], own: usize, field: [u8; 2]| {
            let len = ((8 + own + rest) as u16).to_be_bytes();
            vec![0xc0, 0, port[0], port[1], len[0], len[1], field[0], field[1]]
        };
        match self {
            Way::Vxlan { has_checksum } => {
                // What a kernel leaves there is a part of the sum; that it is not zero counts.
                let mut bytes =
                    udp([0x12, 0xb5], 8, if has_checksum { [0xab, 0xcd] } else { [0; 2] });
                bytes.extend([8, 0, 0, 0, 0, 0, 42, 0]);
                bytes
            }
            Way::Geneve { options } => {
                let mut bytes = udp([0x17, 0xc1], 8 + usize::from(options) * 4, [0; 2]);
                bytes.extend([options, 0, 0x65, 0x58, 0, 0, 42, 0]);
                bytes.extend(vec![0x77; usize::from(options) * 4]);
                bytes
            }
            Way::GreEthernet { has_key, has_checksum } => {
                let flags = if has_key { 0x20 } else { 0 } | if has_checksum { 0x80 } else { 0 };
                let mut bytes = vec![flags, 0, 0x65, 0x58];
                bytes.extend(vec![0; if has_checksum { 4 } else { 0 }]);
                bytes.extend(vec![9; if has_key { 4 } else { 0 }]);
                bytes
            }
            Way::GreIp => vec![0, 0, inner[0], inner[1]],
            Way::Ip => Vec::new(),
        }
    }

    fn carries_ethernet(self) -> bool {
        !matches!(self, Way::GreIp | Way::Ip)
    }
}

/// The inner packet wrapped; where it begins, and its offload as a kernel says it.
fn wrapped(
    packet: &Packet,
    way: Way,
    outer_is_v6: bool,
    gso_size: u16,
) -> (Vec<u8>, usize, Header) {
    let built = packet.build();
    let from = if way.carries_ethernet() { 0 } else { built.l3 };
    let inner = &built.bytes[from..];
    let header = way.header(packet.is_v6, inner.len());
    let mut frame = ADDRESSES.to_vec();
    frame.extend(if outer_is_v6 { [0x86, 0xdd] } else { [8, 0] });
    let (len, protocol) = (header.len() + inner.len(), way.protocol(packet.is_v6));
    if outer_is_v6 {
        frame.extend([0x60, 0, 0, 0]);
        frame.extend((len as u16).to_be_bytes());
        frame.extend([protocol, 64]);
        frame.extend([0xfd; 32]);
    } else {
        let mut ip = vec![0x45, 0];
        ip.extend(((20 + len) as u16).to_be_bytes());
        ip.extend([0xff, 0xff, 0x40, 0, 64, protocol, 0, 0, 10, 9, 8, 7, 10, 1, 1, 1]);
        let sum = plain_checksum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend(ip);
    }
    frame.extend(header);
    let start = frame.len();
    frame.extend(inner);
    let header = Header {
        flags: Header::NEEDS_CSUM,
        gso_type: packet.kind(),
        header_len: 0,
        gso_size,
        csum_start: (start + built.l4 - from) as u16,
        csum_offset: if packet.is_udp { 6 } else { 16 },
        buffers: 0,
    };
    (frame, start, header)
}

/// Reads what is around a segment as a receiver would.
fn check_around(segment: &[u8], start: usize, outer_is_v6: bool, number: u16) {
    let word = |at: usize| u16::from_be_bytes([segment[at], segment[at + 1]]);
    let (l4, protocol, mut pseudo) = if outer_is_v6 {
        assert_eq!(usize::from(word(14 + 4)), segment.len() - 54);
        (54, segment[20], segment[22..54].to_vec())
    } else {
        assert_eq!(usize::from(word(14 + 2)), segment.len() - 14);
        assert_eq!(word(14 + 4), 0xffffu16.wrapping_add(number));
        assert_eq!(plain_checksum(&segment[14..34]), 0);
        (34, segment[23], segment[26..34].to_vec())
    };
    if protocol == 17 {
        assert_eq!(usize::from(word(l4 + 4)), segment.len() - l4);
        if word(l4 + 6) != 0 {
            pseudo.extend([0, 17, segment[l4 + 4], segment[l4 + 5]]);
            pseudo.extend(&segment[l4..]);
            assert_eq!(plain_checksum(&pseudo), 0, "the checksum of the outer datagram");
        }
    }
    if protocol == 47 && segment[l4] & 0x80 != 0 {
        assert_eq!(plain_checksum(&segment[l4..]), 0, "the checksum of GRE");
    }
    assert!(start > l4 || protocol == 4 || protocol == 41);
}

#[test]
fn what_a_kernel_wrapped_is_cut_for_everybody() {
    for way in WAYS {
        for outer_is_v6 in [false, true] {
            for packet in [Packet::tcp4(5000), Packet::tcp6(5000), Packet::udp4(5000)] {
                let (mut frame, start, header) = wrapped(&packet, way, outer_is_v6, 1400);
                let (before, len) = (frame.clone(), frame.len() as u32);
                let head = &before[..128];
                assert!(Offload::check(&header, head, len, Offloads::ALL).is_err(), "{way:?}");
                let offload = Offload::check_host(&header, head, len, Offloads::ALL).unwrap();
                let mut segments = Vec::new();
                let count = finish(&mut frame, &offload, Offloads::ALL, |bytes, rest| {
                    segments.push((bytes.to_vec(), rest));
                });
                assert_eq!(count, Ok(4), "{way:?} {outer_is_v6} {packet:?}");
                assert_eq!(frame, before);
                let mut payload = Vec::new();
                for (number, (segment, rest)) in segments.iter().enumerate() {
                    assert!(rest.is_none());
                    check_around(segment, start, outer_is_v6, number as u16);
                    // The inner packet, behind the Ethernet header that its receiver takes it from.
                    let inner = match way.carries_ethernet() {
                        true => segment[start..].to_vec(),
                        false => {
                            let built = packet.build();
                            [&built.bytes[..built.l3], &segment[start..]].concat()
                        }
                    };
                    let seen = receive(&inner, &packet, &Offload::NONE);
                    assert!(seen.is_checksum_right, "{way:?} {number}");
                    payload.extend(seen.payload);
                }
                assert!(payload == packet.payload);
            }
        }
    }
}

#[test]
fn what_leads_nowhere_is_no_one_s() {
    let packet = Packet::tcp4(3000);
    let refused = |change: fn(&mut Vec<u8>), way: Way| {
        let (mut frame, _, header) = wrapped(&packet, way, false, 1000);
        change(&mut frame);
        let len = frame.len() as u32;
        let offload = Offload::check_host(&header, &frame[..128], len, Offloads::ALL).unwrap();
        let mut count = 0;
        let found = finish(&mut frame, &offload, Offloads::ALL, |_, _| count += 1);
        assert_eq!(count, 0);
        found.unwrap_err()
    };
    let vxlan = Way::Vxlan { has_checksum: false };
    assert_eq!(refused(|b| b[23] = 50, vxlan), Unfinished::Kind, "another protocol");
    assert_eq!(refused(|b| b[42] = 0xf0, Way::Geneve { options: 0 }), Unfinished::Kind);
    let gre = Way::GreEthernet { has_key: false, has_checksum: false };
    assert_eq!(refused(|b| b[34] = 0x10, gre), Unfinished::Kind, "packets that are counted");
    assert_eq!(refused(|b| b[35] = 1, gre), Unfinished::Kind, "PPTP");
    assert_eq!(refused(|b| b[20] = 0x20, vxlan), Unfinished::Fragment);
    assert_eq!(refused(|b| b[17] ^= 1, vxlan), Unfinished::Length);
    // Three packets deep.
    let inner = Packet::tcp4(100).build();
    let mut frame = ADDRESSES.to_vec();
    frame.extend([8, 0]);
    let deep = inner.bytes.len() - 14;
    for around in (1..=3).rev() {
        let len = (around * 20 + deep) as u16;
        frame.extend([0x45, 0, (len >> 8) as u8, len as u8, 0, 0, 0x40, 0, 64, 4, 0, 0]);
        frame.extend([10; 8]);
    }
    frame.extend(&inner.bytes[14..]);
    let header = Header {
        flags: Header::NEEDS_CSUM,
        gso_type: Header::GSO_TCP4,
        gso_size: 50,
        csum_start: 14 + 80,
        csum_offset: 16,
        ..Header::default()
    };
    let len = frame.len() as u32;
    let head = frame[..128].to_vec();
    assert_eq!(Offload::check(&header, &head, len, Offloads::ALL), Err(BadOffload::Headers));
    let offload = Offload::check_host(&header, &head, len, Offloads::ALL).unwrap();
    let found = finish(&mut frame, &offload, Offloads::ALL, |_, _| panic!("a segment"));
    assert_eq!(found, Err(Unfinished::Kind));
}

#[test]
fn a_datagram_of_dhcp_is_finished_for_whoever_has_everything() {
    for mut packet in [Packet::udp4(300), Packet::udp6(300)] {
        packet.tags = vec![7];
        let mut built = packet.build();
        let l4 = built.l4;
        // From port 67 to 68, and the sum that the sender left there is of addresses and length alone.
        built.bytes[l4..l4 + 4].copy_from_slice(&[0, 67, 0, 68]);
        let offload = built.offload(&packet, 0);
        let mut frames = Vec::new();
        let count = finish(&mut built.bytes, &offload, Offloads::ALL, |bytes, rest| {
            frames.push((bytes.to_vec(), rest));
        });
        assert_eq!(count, Ok(1));
        assert!(frames[0].1.is_none());
        assert!(receive(&frames[0].0, &packet, &Offload::NONE).is_checksum_right);
    }
}
