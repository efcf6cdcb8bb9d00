//! Finishing frames: what comes out is what went in, and every checksum is right.

use proptest::prelude::*;

use super::packet::{Packet, any_packet, plain_checksum, receive};
use crate::{FRAME_MAX, HEADERS_MAX, Header, Offload, Offloads, SEGMENTS_MAX, Unfinished, finish};

/// All that came out, with what remains.
fn finished(
    frame: &mut [u8],
    offload: &Offload,
    has: Offloads,
) -> Result<Vec<(Vec<u8>, Offload)>, Unfinished> {
    let before = frame.to_vec();
    let mut frames = Vec::new();
    let result =
        finish(frame, offload, has, |bytes, remains| frames.push((bytes.to_vec(), remains)));
    assert!(before == frame, "the frame is as it was");
    match result {
        Ok(count) => assert_eq!(count as usize, frames.len()),
        Err(_) => assert!(frames.is_empty(), "an error comes before the first frame"),
    }
    result.map(|_| frames)
}

/// Cuts the packet for a receiver and puts it together again.
fn check_cut(packet: &Packet, gso_size: u16, has: Offloads) {
    let mut built = packet.build();
    let offload = built.offload(packet, gso_size);
    assert!(!has.contains(offload.needs()));
    let whole = receive(&built.bytes.clone(), packet, &Offload::NONE);
    let frames = finished(&mut built.bytes, &offload, has).expect("a good frame");
    assert_eq!(frames.len(), packet.payload.len().div_ceil(usize::from(gso_size)).max(1));
    let mut payload: Vec<u8> = Vec::new();
    for (number, (bytes, remains)) in frames.iter().enumerate() {
        assert_eq!(remains.is_none(), !has.contains(Offloads::CSUM));
        let seen = receive(bytes, packet, remains);
        assert!(seen.is_checksum_right, "segment {number}");
        assert_eq!(seen.constant, whole.constant, "segment {number}");
        if !packet.is_v6 {
            assert_eq!(seen.id, packet.id.wrapping_add(number as u16));
        }
        let (is_first, is_last) = (number == 0, number + 1 == frames.len());
        if !is_last {
            assert_eq!(seen.payload.len(), usize::from(gso_size));
        }
        if !packet.is_udp {
            assert_eq!(seen.sequence, packet.sequence.wrapping_add(payload.len() as u32));
            let cwr = if is_first { 0 } else { 0x80 };
            let fin_psh = if is_last { 0 } else { 0x09 };
            assert_eq!(seen.flags, packet.flags & !cwr & !fin_psh, "segment {number}");
        }
        payload.extend(&seen.payload);
    }
    assert!(payload == packet.payload, "the payload is what was sent");
}

#[test]
fn full_segments_of_each_kind() {
    for packet in
        [Packet::tcp4(65_000), Packet::tcp6(65_000), Packet::udp4(65_000), Packet::udp6(65_000)]
    {
        for has in [Offloads::NONE, Offloads::CSUM] {
            for gso_size in [256, 257, 536, 1448, 64_999, 65_000, 65_001, u16::MAX] {
                check_cut(&packet, gso_size, has);
            }
        }
    }
}

#[test]
fn receivers_that_have_some_of_what_a_frame_needs() {
    let mut packet = Packet::tcp4(5000);
    packet.flags = 0x98;
    check_cut(&packet, 1000, Offloads::CSUM | Offloads::TSO4);
    check_cut(&packet, 1000, Offloads::CSUM | Offloads::TSO6 | Offloads::ECN);
    check_cut(&Packet::udp4(5000), 1000, Offloads::CSUM | Offloads::USO6);
    check_cut(&Packet::udp6(5000), 1000, Offloads::CSUM | Offloads::USO4);
    check_cut(&Packet::tcp6(5000), 1000, Offloads::CSUM | Offloads::TSO4);
}

#[test]
fn who_has_all_gets_the_frame_as_it_is() {
    let packet = Packet::tcp6(40_000);
    let mut built = packet.build();
    let offload = built.offload(&packet, 1400);
    let frames = finished(&mut built.bytes, &offload, offload.needs()).expect("a good frame");
    assert_eq!(frames, [(built.bytes.clone(), offload)]);
}

#[test]
fn a_datagram_whose_checksum_comes_to_zero_says_that_it_has_one() {
    for mut packet in [Packet::udp4(2), Packet::udp6(2)] {
        packet.payload = vec![0, 0];
        let built = packet.build();
        let sum = plain_checksum(&built.bytes[built.l4..]);
        packet.payload = sum.to_be_bytes().to_vec();
        let mut built = packet.build();
        assert_eq!(plain_checksum(&built.bytes[built.l4..]), 0, "the case that is meant");
        for gso_size in [0, 2] {
            let offload = built.offload(&packet, gso_size);
            let frames = finished(&mut built.bytes, &offload, Offloads::NONE).expect("a frame");
            assert_eq!(frames[0].0[built.l4 + 6..built.l4 + 8], [0xff, 0xff]);
            assert!(receive(&frames[0].0, &packet, &Offload::NONE).is_checksum_right);
        }
    }
}

#[test]
fn a_checksum_of_an_unknown_protocol_is_filled_in_where_the_header_says() {
    let mut frame: Vec<u8> = (0..101).collect();
    for (csum_start, csum_offset) in [(14, 0), (15, 1), (33, 66), (99, 0)] {
        let header =
            Header { flags: Header::NEEDS_CSUM, csum_start, csum_offset, ..Header::default() };
        let offload =
            Offload::check(&header, &frame, 101, Offloads::CSUM).expect("within the frame");
        let frames = finished(&mut frame, &offload, Offloads::NONE).expect("a frame");
        let [(bytes, remains)] = &frames[..] else { panic!("one frame") };
        assert!(remains.is_none());
        let (start, at) = (usize::from(csum_start), usize::from(csum_start + csum_offset));
        let mut plain = frame.clone();
        plain[at..at + 2].copy_from_slice(&plain_checksum(&frame[start..]).to_be_bytes());
        assert_eq!(bytes, &plain);
    }
}

#[test]
fn zero_in_the_ip_length_leaves_it_to_us() {
    for packet in [Packet::tcp4(4000), Packet::tcp6(4000)] {
        let mut built = packet.build();
        let at = built.l3 + if packet.is_v6 { 4 } else { 2 };
        let offload = built.offload(&packet, 1000);
        built.bytes[at..at + 2].fill(0);
        let frames = finished(&mut built.bytes, &offload, Offloads::NONE).expect("a good frame");
        assert!(frames.iter().all(|(bytes, none)| receive(bytes, &packet, none).is_checksum_right));
    }
}

/// A frame of that packet, changed, as it would be finished for a receiver without offloads.
fn changed(
    packet: &Packet,
    gso_size: u16,
    change: impl Fn(&mut Vec<u8>, usize, usize),
) -> Unfinished {
    let mut built = packet.build();
    let offload = built.offload(packet, gso_size);
    change(&mut built.bytes, built.l3, built.l4);
    finished(&mut built.bytes, &offload, Offloads::NONE).expect_err("a frame that is wrong")
}

#[test]
fn what_is_not_what_it_says_is_refused() {
    use Unfinished::{Fragment, Headers, Kind, Length};
    type Change = fn(&mut Vec<u8>, usize, usize);
    let (tcp4, tcp6, udp4) = (Packet::tcp4(3000), Packet::tcp6(3000), Packet::udp4(3000));
    let table: [(&str, &Packet, Change, Unfinished); 18] = [
        ("another EtherType", &tcp4, |b, l3, _| b[l3 - 1] = 6, Kind),
        (
            "IPv6 that says TCP over IPv4",
            &tcp4,
            |b, l3, _| b[l3 - 2..l3].copy_from_slice(&[0x86, 0xdd]),
            Kind,
        ),
        ("version 5", &tcp4, |b, l3, _| b[l3] = 0x55, Kind),
        ("a header of 16 bytes", &tcp4, |b, l3, _| b[l3] = 0x44, Kind),
        ("options that are not there", &tcp4, |b, l3, _| b[l3] = 0x46, Kind),
        ("UDP that says TCP", &tcp4, |b, l3, _| b[l3 + 9] = 17, Kind),
        ("TCP that says UDP", &udp4, |b, l3, _| b[l3 + 9] = 6, Kind),
        ("a first fragment", &tcp4, |b, l3, _| b[l3 + 6] = 0x20, Fragment),
        ("a later fragment", &tcp4, |b, l3, _| b[l3 + 7] = 1, Fragment),
        ("a packet that ends before the frame", &tcp4, |b, l3, _| b[l3 + 3] ^= 1, Length),
        ("a packet that ends behind the frame", &tcp6, |b, l3, _| b[l3 + 4] = 0xff, Length),
        ("a TCP header of 16 bytes", &tcp4, |b, _, l4| b[l4 + 12] = 0x40, Kind),
        ("version 4 in IPv6", &tcp6, |b, l3, _| b[l3] = 0x40, Kind),
        ("a fragment header", &tcp6, |b, l3, _| b[l3 + 6] = 44, Fragment),
        ("an extension that leads past TCP", &tcp6, |b, l3, _| b[l3 + 6] = 0, Kind),
        ("a tag in between", &tcp4, |b, l3, _| b[l3 - 2] = 0x81, Kind),
        ("a frame that was cut off", &tcp4, |b, _, l4| b.truncate(l4 + 12), Length),
        ("nothing behind Ethernet", &tcp6, |b, l3, _| b.truncate(l3), Headers),
    ];
    for (name, packet, change, expected) in table {
        let found = changed(packet, 1000, change);
        assert_eq!(found, expected, "{name}");
    }
    let extended = Packet { extensions: vec![(60, 0)], ..tcp6 };
    assert_eq!(changed(&extended, 1000, |b, l3, _| b[l3 + 6] = 44), Fragment);
    assert_eq!(changed(&extended, 1000, |b, l3, _| b[l3 + 6] = 51), Kind);
    assert_eq!(changed(&extended, 1000, |b, l3, _| b[l3 + 41] = 1), Kind);
    assert_eq!(changed(&extended, 1000, |b, l3, _| b[l3 + 40] = 17), Kind);
}

#[test]
fn headers_have_a_bound() {
    let with = |extensions| Packet { extensions, tcp_options: 10, ..Packet::tcp6(100) };
    assert_eq!(changed(&with(vec![(60, 17)]), 50, |_, _, _| ()), Unfinished::Headers);
    assert_eq!(changed(&with(vec![(60, 0); 9]), 50, |_, _, _| ()), Unfinished::Headers);
    check_cut(&with(vec![(60, 16)]), 50, Offloads::NONE);
    assert_eq!(with(vec![(60, 16)]).build().payload, HEADERS_MAX - 6);
    check_cut(&with(vec![(60, 0); 7]), 50, Offloads::NONE);
}

#[test]
fn a_guest_cannot_buy_65_thousand_frames_for_one() {
    check_cut(&Packet { tcp_options: 0, ..Packet::tcp4(SEGMENTS_MAX * 8) }, 8, Offloads::NONE);
    check_cut(&Packet::udp6(SEGMENTS_MAX), 1, Offloads::NONE);
    // What was checked with another length is counted again.
    let packet = Packet::udp4(SEGMENTS_MAX);
    let built = packet.build();
    let offload = built.offload(&packet, 1);
    let mut longer = Packet::udp4(SEGMENTS_MAX + 1).build().bytes;
    let found = finished(&mut longer, &offload, Offloads::NONE);
    assert_eq!(found, Err(Unfinished::TooManySegments));
}

#[test]
fn a_shorter_frame_than_was_checked_is_refused() {
    let packet = Packet::udp4(100);
    let built = packet.build();
    let offload = built.offload(&packet, 0);
    for len in 0..built.l4 + 8 {
        let mut short = built.bytes[..len].to_vec();
        let found = finished(&mut short, &offload, Offloads::NONE);
        assert_eq!(found, Err(Unfinished::BeyondEnd), "{len} bytes");
    }
}

#[test]
fn the_longest_frame_is_finished() {
    let mut packet = Packet::tcp4(65_535 - 20 - 32);
    packet.tags = vec![7, 9];
    assert_eq!(packet.build().bytes.len(), FRAME_MAX as usize);
    check_cut(&packet, 256, Offloads::NONE);
    check_cut(&packet, u16::MAX, Offloads::NONE);
}

/// A header that may say anything, more often something possible.
fn any_header() -> impl Strategy<Value = Header> {
    let kind =
        prop_oneof![Just(0u8), Just(1), Just(4), Just(5), Just(0x81), Just(0x84), any::<u8>()];
    let start = prop_oneof![14u16..90, any::<u16>()];
    let offset = prop_oneof![Just(6u16), Just(16), any::<u16>()];
    (prop_oneof![Just(1u8), any::<u8>()], kind, any::<u16>(), any::<u16>(), start, offset).prop_map(
        |(flags, gso_type, header_len, gso_size, csum_start, csum_offset)| Header {
            flags,
            gso_type,
            header_len,
            gso_size,
            csum_start,
            csum_offset,
            buffers: 0,
        },
    )
}

proptest! {
    #[test]
    fn segments_put_together_are_what_was_sent(
        packet in any_packet(20_000),
        gso_size in prop_oneof![80u16..2000, any::<u16>().prop_map(|size| size.max(80))],
        has_checksum in any::<bool>(),
    ) {
        prop_assume!(packet.build().payload <= HEADERS_MAX);
        check_cut(&packet, gso_size, if has_checksum { Offloads::CSUM } else { Offloads::NONE });
    }

    #[test]
    fn a_checksum_alone_is_filled_in(packet in any_packet(3000)) {
        let mut built = packet.build();
        let offload = built.offload(&packet, 0);
        let frames = finished(&mut built.bytes, &offload, Offloads::NONE).expect("a frame");
        let seen = receive(&frames[0].0, &packet, &frames[0].1);
        prop_assert!(seen.is_checksum_right);
        prop_assert_eq!(seen.payload, packet.payload);
    }

    #[test]
    fn hostile_bytes_end_within_the_bound(
        header in any_header(),
        packet in any_packet(500),
        noise in prop::collection::vec((0usize..120, any::<u8>()), 0..4),
        cut in 0usize..700,
        has in 0u16..64,
    ) {
        let mut frame = packet.build().bytes;
        for (at, byte) in noise {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        frame.truncate(cut.max(14));
        if let Ok(offload) = Offload::check(&header, &frame, frame.len() as u32, Offloads::ALL)
            && let Ok(frames) = finished(&mut frame, &offload, Offloads::from_bits(has))
        {
            prop_assert!(frames.len() <= SEGMENTS_MAX);
            prop_assert!(frames.iter().all(|(bytes, _)| bytes.len() <= frame.len()));
        }
    }
}
