//! Features and the config space, against Linux's headers; what a driver's choice means for frames.

use std::mem::offset_of;

use virtio_bindings::virtio_config::{VIRTIO_F_NOTIFICATION_DATA, VIRTIO_F_RING_RESET};
use virtio_bindings::virtio_net::*;

use super::*;

fn shape() -> Shape {
    Shape { mac: [0x52, 0x54, 0, 0x12, 0x34, 0x56], mtu: 9000, pairs: 4, guest_offloads: true }
}

fn space(live: &Live) -> Vec<u8> {
    let mut space = vec![0xee; 256];
    assert!(read_config(&shape(), live, 0, &mut space));
    space
}

fn u16_at(space: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([space[at], space[at + 1]])
}

#[test]
fn feature_bits_have_linux_numbers() {
    let numbers = [
        (bit::NET_CSUM, VIRTIO_NET_F_CSUM),
        (bit::NET_GUEST_CSUM, VIRTIO_NET_F_GUEST_CSUM),
        (bit::NET_MTU, VIRTIO_NET_F_MTU),
        (bit::NET_MAC, VIRTIO_NET_F_MAC),
        (bit::NET_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO4),
        (bit::NET_GUEST_TSO6, VIRTIO_NET_F_GUEST_TSO6),
        (bit::NET_GUEST_ECN, VIRTIO_NET_F_GUEST_ECN),
        (bit::NET_HOST_TSO4, VIRTIO_NET_F_HOST_TSO4),
        (bit::NET_HOST_TSO6, VIRTIO_NET_F_HOST_TSO6),
        (bit::NET_HOST_ECN, VIRTIO_NET_F_HOST_ECN),
        (bit::NET_MRG_RXBUF, VIRTIO_NET_F_MRG_RXBUF),
        (bit::NET_STATUS, VIRTIO_NET_F_STATUS),
        (bit::NET_CTRL_VQ, VIRTIO_NET_F_CTRL_VQ),
        (bit::NET_CTRL_RX, VIRTIO_NET_F_CTRL_RX),
        (bit::NET_CTRL_VLAN, VIRTIO_NET_F_CTRL_VLAN),
        (bit::NET_GUEST_ANNOUNCE, VIRTIO_NET_F_GUEST_ANNOUNCE),
        (bit::NET_MQ, VIRTIO_NET_F_MQ),
        (bit::NET_CTRL_MAC_ADDR, VIRTIO_NET_F_CTRL_MAC_ADDR),
        (bit::NET_GUEST_USO4, VIRTIO_NET_F_GUEST_USO4),
        (bit::NET_GUEST_USO6, VIRTIO_NET_F_GUEST_USO6),
        (bit::NET_HOST_USO, VIRTIO_NET_F_HOST_USO),
    ];
    for (mask, number) in numbers {
        assert_eq!(mask, 1 << number);
        assert_ne!(offered(&shape()) & mask, 0, "bit {number} is offered");
    }
    for absent in [VIRTIO_NET_F_GUEST_UFO, VIRTIO_NET_F_HOST_UFO, VIRTIO_NET_F_RSS] {
        assert_eq!(offered(&shape()) & 1 << absent, 0, "bit {absent} is not offered");
    }
}

/// What is taken away is receiving alone; sending stays as it is.
#[test]
fn receive_offloads_can_be_withheld() {
    let (all, finished) = (offered(&shape()), offered(&Shape { guest_offloads: false, ..shape() }));
    assert_eq!(all & !finished, GUEST_OFFLOADS);
    assert_eq!(finished & !all, 0);
    assert_eq!(Net::new(finished).guest_has(), Offloads::NONE);
    assert_eq!(Net::new(finished).accepts_from_guest(), Net::new(all).accepts_from_guest());
}

/// What a driver says through these stays at the front-end: vhost-user has no message for it (0023).
#[test]
fn nothing_is_offered_that_no_front_end_can_carry() {
    let absent = [
        VIRTIO_F_RING_RESET,
        VIRTIO_F_NOTIFICATION_DATA,
        VIRTIO_NET_F_CTRL_GUEST_OFFLOADS,
        VIRTIO_NET_F_NOTF_COAL,
        VIRTIO_NET_F_VQ_NOTF_COAL,
        VIRTIO_NET_F_RSS,
        VIRTIO_NET_F_HASH_REPORT,
        VIRTIO_NET_F_CTRL_RX_EXTRA,
    ];
    for bit in absent {
        assert_eq!(offered(&shape()) & 1 << bit, 0, "bit {bit} is not offered");
    }
}

#[test]
fn every_field_is_where_linux_reads_it() {
    let live = Live::new(&shape());
    let space = space(&live);
    assert_eq!(space[offset_of!(virtio_net_config, mac)..][..6], shape().mac);
    assert_eq!(u16_at(&space, offset_of!(virtio_net_config, status)), VIRTIO_NET_S_LINK_UP as u16);
    assert_eq!(u16_at(&space, offset_of!(virtio_net_config, max_virtqueue_pairs)), 4);
    assert_eq!(u16_at(&space, offset_of!(virtio_net_config, mtu)), 9000);
    assert_eq!(space[offset_of!(virtio_net_config, speed)..][..4], [0xff; 4]);
    assert_eq!(space[offset_of!(virtio_net_config, duplex)], 0xff);
    assert_eq!(CONFIG_SPACE_SIZE, size_of::<virtio_net_config>());
    assert_eq!(space[17..], [0; 256 - 17]);
}

#[test]
fn what_changes_is_read_anew() {
    let live = Live::new(&shape());
    live.set_up(false);
    assert!(live.set_mtu(&shape(), 1400));
    let space = space(&live);
    assert_eq!(u16_at(&space, offset_of!(virtio_net_config, status)), 0);
    assert_eq!(u16_at(&space, offset_of!(virtio_net_config, mtu)), 1400);
    for refused in [0, 67, 9001, 65536 + 1400, u64::MAX] {
        assert!(!live.set_mtu(&shape(), refused), "{refused}");
        assert_eq!(live.mtu(), 1400);
    }
    assert!(live.set_mtu(&shape(), 68) && live.set_mtu(&shape(), 9000));
}

#[test]
fn any_part_of_256_bytes_can_be_read_and_nothing_beyond() {
    let live = Live::new(&shape());
    let whole = space(&live);
    for (offset, len) in [(0u32, 6usize), (6, 2), (0, 12), (20, 10), (255, 1), (256, 0), (3, 0)] {
        let mut part = vec![0xee; len];
        assert!(read_config(&shape(), &live, offset, &mut part));
        assert_eq!(part, whole[offset as usize..offset as usize + len]);
    }
    for (offset, len) in [(0u32, 257usize), (256, 1), (255, 2), (u32::MAX, 1), (u32::MAX, 257)] {
        let mut part = vec![0xee; len];
        assert!(!read_config(&shape(), &live, offset, &mut part), "{offset} {len}");
        assert!(part.iter().all(|byte| *byte == 0xee), "nothing read");
    }
}

#[test]
fn only_a_legacy_driver_writes_and_only_its_address() {
    let live = Live::new(&shape());
    let other = [2, 0, 0, 0, 0, 1];
    for negotiated in [bit::VERSION_1, bit::NET_CTRL_MAC_ADDR, offered(&shape())] {
        assert!(!write_config(&live, negotiated, 0, &other), "{negotiated:#x}");
    }
    for (offset, bytes) in [(1u32, &other[..]), (6, &[1]), (6, &[]), (u32::MAX, &[1]), (0, &[])] {
        assert!(!write_config(&live, 0, offset, bytes), "{offset}");
    }
    assert_eq!(live.mac(), shape().mac, "nothing changed");
    assert!(write_config(&live, 0, 0, &other));
    assert_eq!(space(&live)[..6], other);
    assert!(write_config(&live, bit::NET_CTRL_VQ, 5, &[9]));
    assert_eq!(live.mac(), [2, 0, 0, 0, 0, 9], "byte by byte, as Linux does");
}

#[test]
fn the_header_is_short_only_for_a_legacy_driver_that_does_not_merge() {
    let size = |negotiated| (Net::new(negotiated).header_size(), Net::new(negotiated).merges());
    assert_eq!(size(0), (10, false));
    assert_eq!(size(bit::NET_MRG_RXBUF), (12, true));
    assert_eq!(size(bit::VERSION_1), (12, false));
    assert_eq!(size(bit::VERSION_1 | bit::NET_MRG_RXBUF), (12, true));
}

/// Every combination of the bits of one direction: what counts is what has all that it depends on.
#[test]
fn offloads_without_what_they_depend_on_do_not_count() {
    let host = [
        (bit::NET_CSUM, Offloads::CSUM),
        (bit::NET_HOST_TSO4, Offloads::TSO4),
        (bit::NET_HOST_TSO6, Offloads::TSO6),
        (bit::NET_HOST_ECN, Offloads::ECN),
        (bit::NET_HOST_USO, Offloads::USO4.union(Offloads::USO6)),
    ];
    let guest = [
        (bit::NET_GUEST_CSUM, Offloads::CSUM),
        (bit::NET_GUEST_TSO4, Offloads::TSO4),
        (bit::NET_GUEST_TSO6, Offloads::TSO6),
        (bit::NET_GUEST_ECN, Offloads::ECN),
        (bit::NET_GUEST_USO4, Offloads::USO4),
        (bit::NET_GUEST_USO6, Offloads::USO6),
    ];
    for (bits, is_host) in [(&host[..], true), (&guest[..], false)] {
        for chosen in 0..1u32 << bits.len() {
            let picked = |at: usize| chosen >> at & 1 == 1;
            let negotiated =
                bits.iter().enumerate().filter(|(at, _)| picked(*at)).map(|(_, one)| one.0).sum();
            let net = Net::new(negotiated);
            let (this, other) = match is_host {
                true => (net.accepts_from_guest(), net.guest_has()),
                false => (net.guest_has(), net.accepts_from_guest()),
            };
            assert_eq!(other, Offloads::NONE, "the other direction's are its own");
            for (at, (_, offload)) in bits.iter().enumerate() {
                let counts = match at {
                    0 => picked(0),
                    3 => picked(3) && picked(0) && (picked(1) || picked(2)),
                    _ => picked(at) && picked(0),
                };
                assert_eq!(this.contains(*offload), counts, "{is_host} {chosen:#b} {offload:?}");
            }
        }
    }
}
