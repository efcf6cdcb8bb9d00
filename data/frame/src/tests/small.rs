//! Tags, hashes, sums, announcements and echoes.

use std::collections::HashSet;

use proptest::prelude::*;

use super::packet::{Packet, any_packet, plain_checksum};
use crate::tag::{self, Tag};
use crate::{HEAD_MAX, checksum, flow_hash, rarp, swap_addresses};

#[test]
fn a_tag_goes_between_addresses_and_type() {
    let mut head = [0; HEAD_MAX + tag::SIZE];
    let frame = Packet::tcp4(10).build().bytes;
    head[..frame.len()].copy_from_slice(&frame);
    let pushed = tag::push(&mut head, frame.len(), Tag(0x6123)).expect("room");
    let tagged = Packet { tags: vec![0x6123], ..Packet::tcp4(10) }.build().bytes;
    assert_eq!(head[..pushed], tagged);
    let found = tag::read(&head).expect("the tag");
    assert_eq!((found.vlan(), found.priority()), (0x123, 0x6000));
    tag::set_vlan(&mut head, 0xf456);
    assert_eq!(tag::read(&head), Some(Tag(0x6456)), "the priority stays");
    assert_eq!(tag::pop(&mut head, pushed), Some(frame.len()));
    assert_eq!(head[..frame.len()], frame);
}

#[test]
fn tags_need_room_and_a_whole_header() {
    let mut head = [0; 20];
    assert_eq!(tag::push(&mut head, 13, Tag(1)), None);
    assert_eq!(tag::push(&mut head, 17, Tag(1)), None);
    assert_eq!(tag::push(&mut head, 16, Tag(1)), Some(20));
    assert_eq!(tag::pop(&mut head, 21), None);
    assert_eq!(tag::pop(&mut head, 15), None, "half a tag");
    assert_eq!(tag::pop(&mut head, 16), Some(12));
    assert_eq!(tag::pop(&mut head, 12), None);
    assert_eq!(tag::read(&[]), None);
    let mut untagged = [8; 20];
    tag::set_vlan(&mut untagged, 7);
    assert_eq!(untagged, [8; 20], "a frame without a tag stays as it is");
}

#[test]
fn ethernet_headers_have_up_to_two_tags() {
    for (tags, expected) in [(0, 14), (1, 18), (2, 22)] {
        let packet = Packet { tags: vec![5; tags], ..Packet::tcp4(10) };
        assert_eq!(tag::ethernet_len(&packet.build().bytes), expected);
    }
    let mut three = Packet { tags: vec![5; 2], ..Packet::tcp4(10) }.build().bytes;
    three[20] = 0x81;
    three[21] = 0x00;
    assert_eq!(tag::ethernet_len(&three), 22, "a third one is payload");
    assert_eq!(tag::ethernet_len(&[]), 14);
}

#[test]
fn an_announcement_is_a_rarp_request_of_the_station_for_itself() {
    let mac = [2, 1, 2, 3, 4, 5];
    let frame = rarp(mac);
    assert_eq!(frame[..6], [0xff; 6]);
    assert_eq!(frame[6..12], mac);
    assert_eq!(frame[12..22], [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    assert_eq!((&frame[22..28], &frame[32..38]), (&mac[..], &mac[..]));
    assert_eq!(
        frame[28..32].iter().chain(&frame[38..]).map(|byte| u32::from(*byte)).sum::<u32>(),
        0
    );
}

#[test]
fn an_echo_goes_back_to_its_sender() {
    let mut head = [1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16, 8, 0];
    swap_addresses(&mut head);
    assert_eq!(head, [11, 12, 13, 14, 15, 16, 1, 2, 3, 4, 5, 6, 8, 0]);
    let mut short = [1; 11];
    short[0] = 2;
    swap_addresses(&mut short);
    assert_eq!(short[0], 2, "half an address is not moved");
}

/// The same frame on its way back.
fn turned(packet: &Packet) -> Vec<u8> {
    let mut built = packet.build();
    let bytes = &mut built.bytes;
    let mut swap = |at: usize, len: usize| {
        let (one, other) = bytes[at..at + 2 * len].split_at_mut(len);
        one.swap_with_slice(other);
    };
    swap(0, 6);
    match packet.is_v6 {
        true => swap(built.l3 + 8, 16),
        false => swap(built.l3 + 12, 4),
    }
    swap(built.l4, 2);
    built.bytes
}

#[test]
fn flows_are_told_apart_by_addresses_and_ports() {
    let packets = [Packet::tcp4(0), Packet::tcp6(0), Packet::udp4(0), Packet::udp6(0)];
    for packet in packets {
        let built = packet.build();
        let mut hashes = HashSet::new();
        let addresses =
            if packet.is_v6 { built.l3 + 8..built.l3 + 40 } else { built.l3 + 12..built.l3 + 20 };
        for at in addresses.chain(built.l4..built.l4 + 4) {
            for bit in 0..8 {
                let mut bytes = built.bytes.clone();
                bytes[at] ^= 1 << bit;
                hashes.insert(flow_hash(&bytes));
            }
        }
        assert_eq!(hashes.len(), 8 * if packet.is_v6 { 36 } else { 12 });
        // What is not part of a flow changes nothing.
        let mut other = built.bytes.clone();
        other[0] ^= 1;
        *other.last_mut().expect("a byte") ^= 1;
        assert_eq!(flow_hash(&other), flow_hash(&built.bytes));
        let tagged = Packet { tags: vec![3, 4], ..packet };
        assert_eq!(flow_hash(&tagged.build().bytes), flow_hash(&built.bytes));
    }
}

#[test]
fn pieces_of_a_packet_stay_together() {
    let built = Packet::udp4(100).build();
    let piece = |offset: u16, port: u8| {
        let mut bytes = built.bytes.clone();
        bytes[built.l3 + 6..built.l3 + 8].copy_from_slice(&offset.to_be_bytes());
        bytes[built.l4] = port;
        flow_hash(&bytes)
    };
    assert_eq!(piece(0x2000, 1), piece(100, 2));
    assert_eq!(piece(0x2000, 1), piece(0x2003, 7));
    assert_ne!(piece(0, 1), piece(0, 2));
}

#[test]
fn flows_spread_over_queues() {
    let built = Packet::tcp4(0).build();
    for queues in [2, 3, 16] {
        let mut counts = vec![0u32; queues];
        for port in 0..4000u16 {
            let mut bytes = built.bytes.clone();
            bytes[built.l4..built.l4 + 2].copy_from_slice(&(1024 + port).to_be_bytes());
            counts[flow_hash(&bytes) as usize % queues] += 1;
        }
        let fair = 4000 / queues as u32;
        assert!(counts.iter().all(|count| *count * 10 > fair * 7), "{counts:?}");
    }
}

#[test]
fn what_is_not_ip_is_hashed_by_its_stations() {
    let mut arp = rarp([2, 0, 0, 0, 0, 9]);
    let hash = flow_hash(&arp);
    arp[40] = 1;
    assert_eq!(flow_hash(&arp), hash);
    arp[11] = 8;
    assert_ne!(flow_hash(&arp), hash);
}

proptest! {
    #[test]
    fn both_directions_are_one_flow(packet in any_packet(20)) {
        let built = packet.build();
        let head = &built.bytes[..built.bytes.len().min(HEAD_MAX)];
        let back = turned(&packet);
        prop_assert_eq!(flow_hash(head), flow_hash(&back[..head.len()]));
    }

    #[test]
    fn any_bytes_have_a_hash(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0usize..3) {
        let mut bytes = bytes;
        if let (Some(place), Some(kind)) = (bytes.get_mut(12..14), [[8, 0], [0x86, 0xdd]].get(kind)) {
            place.copy_from_slice(kind);
        }
        let hash = flow_hash(&bytes);
        prop_assert_eq!(flow_hash(&bytes), hash);
        tag::ethernet_len(&bytes);
    }

    #[test]
    fn sums_are_those_of_the_plain_way(
        bytes in prop::collection::vec(prop_oneof![Just(0xffu8), any::<u8>()], 0..300),
        start in any::<u16>(),
    ) {
        prop_assert_eq!(checksum(0, &bytes), plain_checksum(&bytes));
        let mut whole = start.to_be_bytes().to_vec();
        whole.extend(&bytes);
        prop_assert_eq!(checksum(u32::from(start), &bytes), plain_checksum(&whole));
    }
}
