//! What a header may ask for, and what becomes of it.

use proptest::prelude::*;

use super::packet::Packet;
use crate::{BadOffload, FRAME_MAX, HEADER_SIZE_LEGACY, Header, Offload, Offloads};

/// TCP over IPv4 in a frame of 1,000 bytes.
const GOOD: Header = Header {
    flags: Header::NEEDS_CSUM,
    gso_type: Header::GSO_TCP4,
    header_len: 54,
    gso_size: 400,
    csum_start: 34,
    csum_offset: 16,
    buffers: 0,
};

/// The first bytes of a frame with that EtherType: of IPv4 they lead to TCP at 34, of IPv6 to whatever there is
/// behind two extensions, the second of which is not seen.
fn head(ether_type: u16) -> [u8; 128] {
    let mut head = [0; 128];
    head[12..14].copy_from_slice(&ether_type.to_be_bytes());
    match ether_type {
        IPV4 => (head[14], head[14 + 9], head[34 + 12]) = (0x45, 6, 0x50),
        _ => {
            (head[14], head[14 + 6]) = (0x60, 60);
            (head[54], head[55]) = (60, 255);
        }
    }
    head
}

/// The same, of IPv4, with UDP.
fn udp_head() -> [u8; 128] {
    let mut head = head(IPV4);
    head[14 + 9] = 17;
    head
}

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

#[test]
fn the_bytes_are_those_of_the_specification() {
    let header = Header { header_len: 0x0102, gso_size: 0x0304, buffers: 0x0506, ..GOOD };
    let bytes = header.encode();
    assert_eq!(bytes, [1, 1, 2, 1, 4, 3, 34, 0, 16, 0, 6, 5]);
    let ten: [u8; HEADER_SIZE_LEGACY] = bytes[..10].try_into().expect("ten bytes");
    assert_eq!(Header::decode(&ten), Header { buffers: 0, ..header });
}

#[test]
fn every_header_that_cannot_be_true_is_named() {
    use BadOffload::{
        BeyondEnd, Kind, NoChecksum, NoSize, NotNegotiated, Place, Start, TooManySegments,
    };
    let plain = Header { gso_type: 0, gso_size: 0, ..GOOD };
    let udp = Header { gso_type: 5, csum_offset: 6, ..GOOD };
    let all = Offloads::ALL;
    let table = [
        ("GSO without a checksum", Header { flags: 0, ..GOOD }, all, NoChecksum),
        ("only DATA_VALID", Header { flags: 2, ..GOOD }, all, NoChecksum),
        ("UFO", Header { gso_type: 3, ..GOOD }, all, Kind),
        ("type 2", Header { gso_type: 2, ..GOOD }, all, Kind),
        ("a tunnel", Header { gso_type: 0x21, ..GOOD }, all, Kind),
        ("ECN alone", Header { gso_type: 0x80, ..GOOD }, all, Kind),
        ("ECN of UDP", Header { gso_type: 0x85, ..udp }, all, Kind),
        ("no TSO4", GOOD, Offloads::CSUM | Offloads::TSO6 | Offloads::ECN, NotNegotiated),
        ("no CSUM", plain, Offloads::NONE, NotNegotiated),
        (
            "no ECN",
            Header { gso_type: 0x81, ..GOOD },
            Offloads::CSUM | Offloads::TSO4,
            NotNegotiated,
        ),
        ("half of USO", udp, Offloads::CSUM | Offloads::USO4, NotNegotiated),
        ("a start in the addresses", Header { csum_start: 13, ..plain }, all, Start),
        ("a start at 0", Header { csum_start: 0, ..GOOD }, all, Start),
        (
            "a start at the end",
            Header { csum_start: 1000, csum_offset: 0, ..plain },
            all,
            BeyondEnd,
        ),
        ("half a checksum", Header { csum_start: 900, csum_offset: 99, ..plain }, all, BeyondEnd),
        (
            "sums that wrap",
            Header { csum_start: 65_535, csum_offset: 65_535, ..plain },
            all,
            BeyondEnd,
        ),
        ("half a TCP header", Header { csum_start: 981, ..GOOD }, all, BeyondEnd),
        ("half a UDP header", Header { csum_start: 993, ..udp }, all, BeyondEnd),
        ("TCP's checksum elsewhere", Header { csum_offset: 14, ..GOOD }, all, Place),
        ("UDP's checksum elsewhere", Header { csum_offset: 16, ..udp }, all, Place),
        ("segments of nothing", Header { gso_size: 0, ..GOOD }, all, NoSize),
        ("datagrams of nothing", Header { gso_size: 0, ..udp }, all, NoSize),
        (
            "257 segments",
            Header { gso_size: 3, csum_start: 980 - 769, ..GOOD },
            all,
            TooManySegments,
        ),
    ];
    for (name, header, allowed, expected) in table {
        let head = head(IPV4);
        assert_eq!(Offload::check(&header, &head, 1000, allowed), Err(expected), "{name}");
        assert_eq!(Offload::check_host(&header, &head, 1000, allowed), Err(expected), "{name}");
    }
}

/// What a guest says must be so; of a kernel, which may speak of what is in a tunnel, it is looked into by
/// whoever cuts, and nobody gets the frame before.
#[test]
fn a_frame_that_is_not_what_is_said_is_nobody_s_as_it_is() {
    use BadOffload::{Headers, Version};
    let other = |at: usize, byte: u8| {
        let mut head = head(IPV4);
        head[at] = byte;
        head
    };
    let table = [
        ("IPv4 that says TCP over IPv6", Header { gso_type: 4, ..GOOD }, head(IPV4), Version),
        ("no IP", GOOD, head(0x0806), Version),
        ("UDP that says TCP", GOOD, udp_head(), Headers),
        ("TCP that says UDP", Header { gso_type: 5, csum_offset: 6, ..GOOD }, head(IPV4), Headers),
        ("GRE", GOOD, other(23, 47), Headers),
        ("TCP elsewhere", Header { csum_start: 84, ..GOOD }, head(IPV4), Headers),
        ("options that are not there", GOOD, other(14, 0x46), Headers),
        ("version 6 in IPv4", GOOD, other(14, 0x65), Headers),
        ("a first fragment", GOOD, other(20, 0x20), Headers),
        ("a later fragment", GOOD, other(21, 9), Headers),
        ("a length that is not the frame's", GOOD, other(16, 1), Headers),
        ("a TCP header of 16 bytes", GOOD, other(46, 0x40), Headers),
    ];
    for (name, header, head, expected) in table {
        assert_eq!(Offload::check(&header, &head, 1000, Offloads::ALL), Err(expected), "{name}");
        let host = Offload::check_host(&header, &head, 1000, Offloads::ALL).expect(name);
        assert!(host.needs().contains(Offloads::FINISHED), "{name}");
        assert!(!Offloads::ALL.contains(host.needs()), "{name}");
    }
}

/// A checksum is filled in after the switch has read the frame's VLAN, and rules its addresses.
#[test]
fn no_checksum_is_stored_into_tags_or_an_ip_header() {
    let plain = Header { gso_type: 0, gso_size: 0, csum_offset: 0, ..GOOD };
    for (tags, ether_type, first, least) in [
        (&[][..], 0x88b5, 0, 14),
        (&[0x8100], 0x88b5, 0, 18),
        (&[0x88a8, 0x8100], 0x88b5, 0, 22),
        (&[0x9100], 0x0806, 0, 18),
        (&[], IPV4, 0x45, 34),
        (&[], IPV4, 0x4f, 74),
        (&[], IPV4, 0x40, 34),
        (&[0x8100], IPV4, 0x45, 38),
        (&[0x8100, 0x8100], IPV6, 0x60, 62),
        (&[], IPV6, 0x60, 54),
    ] {
        let mut head = vec![0; 12];
        for kind in tags {
            head.extend(u16::to_be_bytes(*kind));
            head.extend([0, 10]);
        }
        head.extend(u16::to_be_bytes(ether_type));
        head.push(first);
        head.resize(128, 0);
        type Check = fn(&Header, &[u8], u32, Offloads) -> Result<Offload, BadOffload>;
        for check in [Offload::check as Check, Offload::check_host] {
            let at =
                |csum_start| check(&Header { csum_start, ..plain }, &head, 1000, Offloads::ALL);
            for start in 0..least {
                assert_eq!(at(start), Err(BadOffload::Start), "{tags:x?} {ether_type:x} {start}");
            }
            assert!(at(least).is_ok(), "{tags:x?} {ether_type:x} {least}");
        }
    }
    // Of a chain of headers that goes on behind the head, too.
    let long = Header { gso_type: 4, csum_start: 15, ..GOOD };
    let found = Offload::check(&long, &head(IPV6), 1000, Offloads::ALL);
    assert_eq!(found, Err(BadOffload::Headers));
}

#[test]
fn a_datagram_of_dhcp_is_nobody_s_without_its_checksum() {
    let header = Header { gso_type: 0, gso_size: 0, csum_offset: 6, ..GOOD };
    let needs = |header: &Header, head: &[u8]| {
        let of = |check: fn(&Header, &[u8], u32, Offloads) -> Result<Offload, BadOffload>| {
            check(header, head, 1000, Offloads::ALL).expect("a good header").needs()
        };
        assert_eq!(of(Offload::check), of(Offload::check_host));
        of(Offload::check)
    };
    let finished = Offloads::CSUM | Offloads::FINISHED;
    for (port, expected) in [
        (68u16, finished),
        (67, finished),
        (546, finished),
        (547, finished),
        (53, Offloads::CSUM),
        (0x4344, Offloads::CSUM),
    ] {
        let mut head = udp_head();
        head[36..38].copy_from_slice(&port.to_be_bytes());
        assert_eq!(needs(&header, &head), expected, "to {port}");
        // Behind two tags, and behind IPv6 with an extension.
        for (start, ether_type) in [(42, IPV4), (62, IPV6), (70, IPV6)] {
            let mut head = [0; 128];
            head[12..14].copy_from_slice(&ether_type.to_be_bytes());
            head[start + 2..start + 4].copy_from_slice(&port.to_be_bytes());
            let header = Header { csum_start: start as u16, ..header };
            assert_eq!(needs(&header, &head), expected, "to {port}, at {start}");
        }
        let tcp = Header { csum_offset: 16, ..header };
        assert_eq!(needs(&tcp, &head), Offloads::CSUM, "TCP to {port}");
        let many = Header { gso_type: 5, gso_size: 400, ..header };
        let kind = Offloads::USO4.union(expected);
        assert_eq!(needs(&many, &head), kind, "many datagrams to {port}");
    }
    for start in [125, 126, 800] {
        let header = Header { csum_start: start, ..header };
        assert_eq!(needs(&header, &head(IPV6)), finished, "where the ports are not seen");
    }
}

#[test]
fn every_header_that_can_be_true_says_what_it_needs() {
    let plain = Header { gso_type: 0, gso_size: 0, ..GOOD };
    let needs_of = |ether_type: u16, header: Header| {
        let offload = Offload::check(&header, &head(ether_type), 1000, Offloads::ALL);
        let offload = offload.expect("a good header");
        (offload.needs(), offload.is_gso())
    };
    let needs = |header| needs_of(IPV4, header);
    assert_eq!(needs(Header { flags: 0, ..plain }), (Offloads::NONE, false));
    assert_eq!(needs(plain), (Offloads::CSUM, false));
    assert_eq!(needs(Header { csum_start: 998, csum_offset: 0, ..plain }), (Offloads::CSUM, false));
    assert_eq!(needs(GOOD), (Offloads::CSUM | Offloads::TSO4, true));
    let ecn = Header { gso_type: 0x84, csum_start: 980, ..GOOD };
    assert_eq!(needs_of(IPV6, ecn), (Offloads::CSUM | Offloads::TSO6 | Offloads::ECN, true));
    let udp = Header { gso_type: 5, csum_offset: 6, ..GOOD };
    let four = Offload::check(&udp, &udp_head(), 1000, Offloads::ALL).expect("a good header");
    assert_eq!(four.needs(), Offloads::CSUM | Offloads::USO4);
    let six = Header { csum_start: 118, ..udp };
    assert_eq!(needs_of(IPV6, six), (Offloads::CSUM | Offloads::USO6, true));
    let most = Header { gso_type: 4, gso_size: 3, csum_start: 980 - 768, ..GOOD };
    assert_eq!(needs_of(IPV6, most), (Offloads::CSUM | Offloads::TSO6, true));
    // Flags that are unknown, or not to be believed, are ignored; so are fields without a flag.
    assert_eq!(needs(Header { flags: 0xfe, csum_start: 9999, ..plain }), (Offloads::NONE, false));
    assert_eq!(needs(Header { flags: 0xff, header_len: 9999, ..plain }), (Offloads::CSUM, false));
}

#[test]
fn the_version_is_that_behind_the_tags() {
    for (tags, ether_type, gso_type, is_good) in [
        (vec![], IPV4, 1, true),
        (vec![7], IPV4, 1, true),
        (vec![7, 9], IPV6, 4, true),
        (vec![7, 9], IPV6, 5, true),
        (vec![7, 9], IPV4, 4, false),
        (vec![7], IPV6, 1, false),
        (vec![], 0x0806, 1, false),
        (vec![], 0x0806, 5, false),
        (vec![7, 9, 11], IPV4, 1, false),
    ] {
        let mut head = vec![0; 12];
        for tag in &tags {
            head.extend([0x81, 0, 0, *tag]);
        }
        head.extend(ether_type.to_be_bytes());
        let csum_offset = if gso_type == 5 { 6 } else { 16 };
        let size = if ether_type == IPV6 { 40 } else { 20 };
        let csum_start = (head.len() + size) as u16;
        let header = Header { gso_type, csum_offset, csum_start, ..GOOD };
        // A head that ends too early says nothing.
        let early = Offload::check(&header, &head[..head.len() - 1], 1000, Offloads::ALL);
        assert_eq!(early, Err(BadOffload::Version));
        let l3 = head.len();
        head.resize(128, 0);
        let protocol = if gso_type == 5 { 17 } else { 6 };
        match size {
            40 => (head[l3], head[l3 + 6]) = (0x60, protocol),
            _ => (head[l3], head[l3 + 9]) = (0x45, protocol),
        }
        head[l3 + size + 12] = 0x50;
        let found = Offload::check(&header, &head, 1000, Offloads::ALL);
        assert_eq!(found.is_ok(), is_good, "{tags:?} {ether_type:#x} {gso_type}");
    }
}

#[test]
fn only_the_host_says_that_a_checksum_is_right() {
    let valid = Header { flags: Header::DATA_VALID, ..Header::default() };
    let guest = Offload::check(&valid, &[], 100, Offloads::ALL).expect("nothing undone");
    assert_eq!(guest, Offload::NONE);
    let host = Offload::check_host(&valid, &[], 100, Offloads::ALL).expect("nothing undone");
    assert!(host.is_valid() && host.is_none() && host.needs().is_empty());
    assert_eq!(host.header(Offloads::CSUM, 1).flags, Header::DATA_VALID);
    // VIRTIO 5.1.6.4.1: no flags for a driver without GUEST_CSUM.
    assert_eq!(host.header(Offloads::NONE, 1).flags, 0);
    let both = Header { flags: 3, csum_start: 34, csum_offset: 16, ..valid };
    let undone = Offload::check_host(&both, &[], 100, Offloads::ALL).expect("a checksum undone");
    assert!(!undone.is_valid());
    assert_eq!(undone.header(Offloads::CSUM, 1).flags, Header::NEEDS_CSUM);
}

#[test]
fn a_receiver_gets_what_was_said_and_a_possible_hint() {
    let hinted = |said: u16| {
        let offload =
            Offload::check(&Header { header_len: said, ..GOOD }, &head(IPV4), 1000, Offloads::ALL);
        offload.expect("a good header").header(Offloads::ALL, 3)
    };
    assert_eq!(hinted(54), Header { buffers: 3, ..GOOD });
    assert_eq!(hinted(66), Header { header_len: 66, buffers: 3, ..GOOD });
    assert_eq!(hinted(0).header_len, 54, "at least to the end of TCP without options");
    assert_eq!(hinted(u16::MAX).header_len, 94, "at most with all options");
    let short = Offload::check(&Header { header_len: 90, ..GOOD }, &head(IPV4), 60, Offloads::ALL);
    assert_eq!(short.expect("a good header").header(Offloads::ALL, 1).header_len, 60);
    assert_eq!(Offload::NONE.header(Offloads::ALL, 1), Header { buffers: 1, ..Header::default() });
}

#[test]
fn tags_shift_where_the_sum_begins() {
    let offload = Offload::check(&GOOD, &head(IPV4), 1000, Offloads::ALL).expect("a good header");
    let pushed = offload.shifted(4).expect("room for a tag");
    assert_eq!((pushed.csum_start(), pushed.header(Offloads::ALL, 0).header_len), (38, 58));
    assert_eq!(pushed.shifted(-4), Some(offload));
    assert_eq!(Offload::NONE.shifted(-4), Some(Offload::NONE));
    let first = Header { gso_type: 0, gso_size: 0, csum_start: 17, csum_offset: 0, ..GOOD };
    let first = Offload::check(&first, &head(0x88b5), 1000, Offloads::ALL).expect("a good header");
    assert_eq!(first.shifted(-4), None, "no sum begins in the addresses");
    let last = Header { gso_type: 4, csum_start: 65_500, ..GOOD };
    let last = Offload::check(&last, &head(IPV6), FRAME_MAX, Offloads::ALL).expect("a good header");
    assert_eq!(last.shifted(32_767), None);
}

#[test]
fn an_mtu_is_held_against_what_comes_out_on_a_wire() {
    for (tags, ethernet) in [(vec![], 14), (vec![5], 18), (vec![5, 6], 22)] {
        for (mut packet, ip) in [(Packet::tcp4(9000), 20), (Packet::udp6(9000), 40)] {
            packet.tags.clone_from(&tags);
            let built = packet.build();
            let (head, len) = (&built.bytes[..128], built.bytes.len() as u32);
            let transport = if packet.is_udp { 8 } else { 32 };
            let whole = built.offload(&packet, 0).packet_len(head, len);
            assert_eq!(whole, ip + transport + 9000);
            assert_eq!(whole + ethernet, len);
            let cut = built.offload(&packet, 1400).packet_len(head, len);
            assert_eq!(cut, ip + transport + 1400);
            let one = built.offload(&packet, 9001).packet_len(head, len);
            assert_eq!(one, whole, "what is not cut is as long as it is");
            assert_eq!(Offload::NONE.packet_len(head, len), whole);
        }
    }
    // Where the TCP header cannot be seen it is taken to be as long as it can be.
    let far = Header { gso_type: 4, csum_start: 600, ..GOOD };
    let far = Offload::check(&far, &head(IPV6), 2000, Offloads::ALL).expect("a good header");
    assert_eq!(far.packet_len(&[0; 128], 2000), 600 + 60 + 400 - 14);
    assert_eq!(Offload::NONE.packet_len(&[], 5), 0);
}

#[test]
fn sets_of_offloads() {
    let set = Offloads::CSUM | Offloads::TSO6;
    assert_eq!(format!("{set:?}"), r#"{"csum", "tso6"}"#);
    assert!(set.contains(Offloads::TSO6) && !set.contains(Offloads::TSO6 | Offloads::ECN));
    assert!(set.intersects(Offloads::TSO6 | Offloads::ECN) && !set.intersects(Offloads::ECN));
    assert_eq!(set.without(Offloads::CSUM), Offloads::TSO6);
    assert_eq!(set.intersection(Offloads::ALL.without(Offloads::TSO6)), Offloads::CSUM);
    assert_eq!(Offloads::from_bits(set.bits() | 0xff00), set);
    assert!(Offloads::default().is_empty());
}

proptest! {
    #[test]
    fn what_was_checked_lies_in_the_frame(
        bytes in any::<[u8; HEADER_SIZE_LEGACY]>(),
        len in 14u32..=FRAME_MAX,
        allowed in 0u16..64,
        ether_type in prop_oneof![Just(IPV4), Just(IPV6), any::<u16>()],
    ) {
        let (header, head) = (Header::decode(&bytes), head(ether_type));
        let allowed = Offloads::from_bits(allowed);
        if let Ok(offload) = Offload::check(&header, &head, len, allowed) {
            prop_assert!(allowed.contains(offload.needs().without(Offloads::FINISHED)));
            let again = offload.header(Offloads::ALL, 1);
            prop_assert!(u32::from(again.header_len) <= len);
            if !offload.is_none() {
                prop_assert!(offload.csum_start() >= 14);
                let end = u32::from(offload.csum_start()) + u32::from(offload.csum_offset()) + 2;
                prop_assert!(end <= len);
            }
            prop_assert_eq!(Offload::check(&again, &head, len, allowed), Ok(offload));
        }
    }
}

#[test]
fn a_hint_that_was_shortened_is_the_same_after_two_tags() {
    let frame = head(IPV6);
    let header = Header {
        flags: Header::NEEDS_CSUM,
        gso_type: Header::GSO_TCP6,
        header_len: u16::MAX,
        gso_size: 1000,
        csum_start: 1000,
        csum_offset: 16,
        buffers: 1,
    };
    let offload = Offload::check(&header, &frame, 2000, Offloads::ALL).unwrap();
    let tagged = offload.shifted(4).and_then(|once| once.shifted(4)).unwrap();
    assert_eq!(tagged.shifted(-4).and_then(|once| once.shifted(-4)), Some(offload));
}
