//! What one guest leaves undone and another cannot do is done here.

use device::features as bit;
use frame::{Header, checksum};
use switch::DropReason;
use virtqueue::Format;

use super::bed::*;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// An IPv4 packet of a protocol with `payload`, checksum undone: its field has the pseudo-header's
/// sum.
fn packet(protocol: u8, payload: usize) -> Vec<u8> {
    let transport = if protocol == TCP { 20 } else { 8 };
    let mut frame = frame(mac(2), mac(1), 34 + transport + payload);
    frame[12..14].copy_from_slice(&[8, 0]);
    let length = (20 + transport + payload) as u16;
    frame[14..34].copy_from_slice(&[
        0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ]);
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    let sum = checksum(0, &frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    if protocol == TCP {
        frame[34..54]
            .copy_from_slice(&[0, 80, 1, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    } else {
        let length = (8 + payload) as u16;
        frame[34..42].copy_from_slice(&[0, 80, 1, 0, 0, 0, 0, 0]);
        frame[38..40].copy_from_slice(&length.to_be_bytes());
    }
    let at = csum_at(protocol);
    let pseudo = !checksum(0, &pseudo_header(&frame, protocol));
    frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
    frame
}

fn csum_at(protocol: u8) -> usize {
    34 + if protocol == TCP { 16 } else { 6 }
}

fn pseudo_header(frame: &[u8], protocol: u8) -> Vec<u8> {
    let length = (frame.len() - 34) as u16;
    [&frame[26..34], &[0, protocol], &length.to_be_bytes()].concat()
}

fn undone(protocol: u8, gso_size: u16) -> Header {
    let kind = if protocol == TCP { Header::GSO_TCP4 } else { Header::GSO_UDP_L4 };
    Header {
        flags: Header::NEEDS_CSUM,
        gso_type: if gso_size > 0 { kind } else { 0 },
        gso_size,
        csum_start: 34,
        csum_offset: csum_at(protocol) as u16 - 34,
        ..Header::default()
    }
}

/// Whether IP's and the transport's checksums are right.
fn is_right(frame: &[u8], protocol: u8) -> bool {
    let whole = [&pseudo_header(frame, protocol)[..], &frame[34..]].concat();
    checksum(0, &frame[14..34]) == 0 && checksum(0, &whole) == 0
}

fn lan_with(features: u64) -> (Lan, Nic, Nic) {
    let mut lan = Lan::wire();
    let (a, b) = (Nic::usual(), Nic::new(ring(Format::Split, 256), features));
    lan.plug(&a);
    lan.plug(&b);
    (lan, a, b)
}

#[test]
fn long_segments_cross_as_they_are_to_whoever_takes_them() {
    for (protocol, payload) in [(TCP, 60_000), (TCP, 1), (UDP, 60_000)] {
        let (mut lan, mut a, mut b) = lan_with(USUAL);
        b.post(100, 2048);
        let sent = packet(protocol, payload);
        a.send_with(undone(protocol, 1400), &sent);
        lan.passes(1);
        let got = b.take();
        assert_eq!((a.sent(), got.len()), (1, 1));
        let (header, frame) = &got[0];
        assert!(*frame == sent);
        let expected = undone(protocol, 1400);
        assert_eq!(
            (header.flags, header.gso_type, header.gso_size, header.csum_start, header.csum_offset),
            (1, expected.gso_type, 1400, 34, expected.csum_offset)
        );
        assert_eq!(lan.counters(1).finished, 0);
    }
}

#[test]
fn a_checksum_is_filled_in_for_whoever_cannot() {
    for protocol in [TCP, UDP] {
        for payload in [0, 1, 60, 100, 1400, 60_000] {
            for features in [PLAIN, PLAIN | bit::NET_MRG_RXBUF, 0] {
                let (mut lan, mut a, mut b) = lan_with(features);
                b.post(3, 65_000);
                let sent = packet(protocol, payload);
                a.send_with(undone(protocol, 0), &sent);
                lan.passes(1);
                let got = b.take();
                assert_eq!((a.sent(), got.len()), (1, 1));
                let (header, frame) = &got[0];
                assert_eq!((header.flags, header.gso_type, header.buffers), (0, 0, 1));
                assert!(is_right(frame, protocol), "{protocol} {payload} {features:x}");
                assert!(frame[42..] == sent[42..] || protocol == TCP && frame[54..] == sent[54..]);
                assert_eq!(lan.counters(1).finished, 1);
            }
        }
    }
}

/// Clients and servers of DHCP read by raw sockets, to which nobody says that a checksum is undone.
#[test]
fn a_datagram_of_dhcp_is_finished_also_for_whoever_could() {
    for (port, is_finished) in [(67, true), (68, true), (546, true), (547, true), (69, false)] {
        let features = PLAIN | bit::NET_GUEST_CSUM;
        let (mut lan, mut a, mut b) = lan_with(features);
        b.post(1, 2000);
        let mut sent = packet(UDP, 300);
        sent[36..38].copy_from_slice(&u16::to_be_bytes(port));
        a.send_with(undone(UDP, 0), &sent);
        lan.passes(1);
        let got = b.take();
        let (header, frame) = &got[0];
        let flags = if is_finished { 0 } else { Header::NEEDS_CSUM };
        assert_eq!(header.flags, flags, "to port {port}");
        assert_eq!(is_right(frame, UDP), is_finished, "to port {port}");
        assert_eq!(lan.counters(1).finished, u64::from(is_finished));
    }
}

/// What a guest says of a frame that is something else is not passed on.
#[test]
fn a_label_that_does_not_fit_the_frame_is_a_counted_drop() {
    let all = PLAIN | bit::NET_GUEST_CSUM | bit::NET_GUEST_TSO4 | bit::NET_MRG_RXBUF;
    let (mut lan, mut a, mut b) = lan_with(all);
    b.post(3, 65_000);
    let wrong = [(TCP, 23, UDP), (TCP, 23, 47), (TCP, 20, 0x20), (UDP, 23, TCP)];
    for (protocol, at, byte) in wrong {
        let mut frame = packet(protocol, 5000);
        frame[at] = byte;
        a.send_with(undone(protocol, 1400), &frame);
    }
    lan.passes(1);
    assert_eq!((a.sent(), b.take().len()), (4, 0));
    assert_eq!(lan.only_dropped(0, DropReason::BadOffload), 4);
}

#[test]
fn long_segments_are_cut_for_whoever_takes_only_short_ones() {
    let csum = PLAIN | bit::NET_GUEST_CSUM;
    for (protocol, header_len) in [(TCP, 54), (UDP, 42)] {
        for features in [PLAIN, csum, csum | bit::NET_MRG_RXBUF, PLAIN | bit::NET_MRG_RXBUF] {
            let (mut lan, mut a, mut b) = lan_with(features);
            b.post(60, 1526);
            let sent = packet(protocol, 60_000);
            a.send_with(undone(protocol, 1400), &sent);
            lan.passes(1);
            let got = b.take();
            assert_eq!((a.sent(), got.len()), (1, 60_000usize.div_ceil(1400)));
            let mut payload = Vec::new();
            for (header, mut frame) in got {
                if features & bit::NET_GUEST_CSUM != 0 {
                    assert_eq!((header.flags, header.csum_start, header.gso_type), (1, 34, 0));
                    let sum = checksum(0, &frame[34..]);
                    frame[csum_at(protocol)..csum_at(protocol) + 2]
                        .copy_from_slice(&sum.to_be_bytes());
                } else {
                    assert_eq!((header.flags, header.gso_type), (0, 0));
                }
                assert!(is_right(&frame, protocol));
                assert!(frame.len() <= header_len + 1400);
                payload.extend_from_slice(&frame[header_len..]);
            }
            assert!(payload == sent[header_len..]);
            assert_eq!(lan.counters(1).delivered_frames, 43);
            assert_eq!(lan.counters(1).finished, 1);
        }
    }
}

#[test]
fn a_cut_frame_waits_whole_and_loses_only_what_has_no_buffers() {
    let (mut lan, mut a, mut b) = lan_with(PLAIN);
    a.send_with(undone(TCP, 1400), &packet(TCP, 14_000));
    lan.passes(5);
    assert_eq!(a.sent(), 0, "it waits for the first segment's buffer");
    b.post(4, 2048);
    lan.passes(2);
    assert_eq!((a.sent(), b.take().len()), (1, 4));
    assert_eq!(lan.only_dropped(1, DropReason::NoBuffer), 6);
}

#[test]
fn in_a_flood_each_gets_what_it_can_take() {
    let mut lan = Lan::switch();
    let features = [USUAL, USUAL, PLAIN, PLAIN | bit::NET_GUEST_CSUM, PLAIN];
    let mut nics = features.map(|features| Nic::new(ring(Format::Split, 256), features));
    for nic in &mut nics {
        lan.plug(nic);
        nic.post(40, 2048);
    }
    nics[0].send_with(undone(TCP, 1400), &packet(TCP, 14_000));
    lan.passes(5);
    assert_eq!(nics[0].sent(), 1);
    let got: Vec<_> = nics.iter_mut().map(|nic| nic.take()).collect();
    let counts: Vec<_> = got.iter().map(Vec::len).collect();
    assert_eq!(counts, [0, 1, 10, 10, 10]);
    assert_eq!(got[1][0].1, packet(TCP, 14_000), "which was not touched");
    assert!(got[4].iter().all(|(_, frame)| is_right(frame, TCP)));
}

#[test]
fn what_cannot_be_cut_is_dropped_at_whoever_needs_it_cut() {
    let mut lan = Lan::switch();
    let mut nics = [Nic::usual(), Nic::usual(), Nic::new(ring(Format::Split, 64), PLAIN)];
    for nic in &mut nics {
        lan.plug(nic);
        nic.post(40, 2048);
    }
    let mut sent = frame(mac(2), mac(1), 5000);
    // IPv6 with an extension that goes on behind the head, and there leads elsewhere than to TCP.
    sent[12..21].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 60]);
    sent[54..56].copy_from_slice(&[60, 14]);
    sent[174] = UDP;
    let header = Header { gso_type: Header::GSO_TCP6, csum_start: 400, ..undone(TCP, 1400) };
    nics[0].send_with(header, &sent);
    lan.passes(2);
    let got: Vec<_> = nics.iter_mut().map(|nic| nic.take().len()).collect();
    assert_eq!((nics[0].sent(), got), (1, vec![0, 1, 0]));
    assert_eq!(lan.only_dropped(2, DropReason::NotOffloadable), 1);
}

#[test]
fn the_mtu_is_that_of_the_segments() {
    let (mut lan, mut a, mut b) = lan_with(USUAL);
    lan.mtus[1] = 1500;
    lan.set(1);
    b.post(200, 2048);
    for (gso_size, comes) in [(1460, 1), (1461, 0), (100, 1)] {
        a.send_with(undone(TCP, gso_size), &packet(TCP, 9000));
        lan.passes(1);
        assert_eq!((a.sent(), b.take().len()), (1, comes), "{gso_size}");
    }
    assert_eq!(lan.only_dropped(1, DropReason::OverMtu), 1);
}
