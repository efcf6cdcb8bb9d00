//! Frames and headers that no honest driver sends. Each costs its sender a frame, and nobody anything
//! else: chains come back, the ring goes on, the receiver gets what is good and nothing more.

use frame::{FRAME_MAX, Header};
use switch::DropReason;
use virtqueue::Format;
use virtqueue::driver::Buffer;

use super::bed::*;

/// A hostile sender, its receiver, and whether all is as it should be after each try.
struct Try {
    lan: Lan,
    bad: Nic,
    good: Nic,
    dropped: u64,
}

impl Try {
    fn new(format: Format, features: u64) -> Try {
        let mut lan = Lan::wire();
        let (bad, good) =
            (Nic::new(ring(format, 512), features), Nic::new(ring(format, 512), USUAL));
        lan.plug(&bad);
        lan.plug(&good);
        Try { lan, bad, good, dropped: 0 }
    }

    /// Sends that chain, and a good frame behind it. The first is dropped for `reason`.
    fn is_dropped(&mut self, bytes: &[u8], lens: &[usize], reason: DropReason) {
        let (got, chains) = self.send(bytes, lens);
        assert_eq!((got.len(), chains), (0, 2), "{reason:?}");
        self.dropped += 1;
        assert_eq!(self.lan.counters(0).drops.of(reason), 1, "{:?}", self.lan.counters(0).drops);
        assert_eq!(self.lan.counters(0).drops.total(), self.dropped);
        assert_eq!(self.lan.counters(1).drops.total(), 0);
        // Counted anew for the next reason.
        self.dropped = 0;
        let features = self.bad.features;
        *self = Try::new(Format::Split, features);
    }

    /// Sends that chain, and a good frame behind it: what came besides that one.
    fn send(&mut self, bytes: &[u8], lens: &[usize]) -> (Vec<(Header, Vec<u8>)>, usize) {
        let good = frame(mac(2), mac(1), 77);
        self.good.post(60, 2048);
        self.bad.send_bytes(bytes, lens);
        self.bad.send(&good);
        self.lan.passes(2);
        let mut got = self.good.take();
        assert_eq!(got.pop().map(|(_, frame)| frame), Some(good), "the good one behind it");
        assert_eq!(self.lan.core.events().len(), 0, "no queue is broken");
        (got, self.bad.sent())
    }
}

fn with_header(header: Header, frame: &[u8]) -> Vec<u8> {
    [&header.encode()[..], frame].concat()
}

/// A checksum to be filled in, and what the rest of the header is.
fn undone(gso_type: u8, gso_size: u16, csum_start: u16, csum_offset: u16) -> Header {
    Header {
        flags: Header::NEEDS_CSUM,
        gso_type,
        gso_size,
        csum_start,
        csum_offset,
        ..Header::default()
    }
}

#[test]
fn d1_chains_that_are_no_longer_than_their_header_are_dropped() {
    for format in [Format::Split, Format::Packed] {
        let mut one = Try::new(format, USUAL);
        for len in 1..12 {
            one.is_dropped(&vec![0; len], &[len], DropReason::ShortHeader);
        }
        for len in 12..26 {
            one.is_dropped(&vec![0; len], &[len], DropReason::Runt);
        }
    }
}

#[test]
fn d1_a_chain_that_only_the_device_may_write_is_dropped() {
    let mut one = Try::new(Format::Split, USUAL);
    let buffer = Buffer { gpa: RECEIVE_AT, len: 4096, device_writes: true };
    one.bad.transmit.driver.add(&[buffer], 0).unwrap();
    one.bad.publish_frames();
    one.lan.passes(1);
    assert_eq!((one.bad.sent(), one.lan.only_dropped(0, DropReason::ShortHeader)), (1, 1));
}

#[test]
fn d2_a_header_in_many_pieces_is_read_whole() {
    for format in [Format::Split, Format::Packed] {
        let mut one = Try::new(format, USUAL);
        let sent = frame(mac(2), mac(1), 300);
        let bytes = with_header(undone(0, 0, 14, 20), &sent);
        for lens in [&[1; 312][..200], &[4, 4, 4, 300], &[10, 1, 1, 1, 299], &[11, 301]] {
            let lens: Vec<usize> = [lens, &[usize::MAX]].concat();
            let (got, _) = one.send(&bytes, &lens);
            assert_eq!(got.len(), 1, "{format:?}");
            assert_eq!((got[0].0.csum_start, got[0].0.csum_offset), (14, 20));
            assert!(got[0].1 == sent);
        }
    }
}

#[test]
fn d3_checksums_beyond_the_frame_are_dropped() {
    let sent = frame(mac(2), mac(1), 100);
    for (start, offset) in
        [(99, 0), (14, 85), (65_535, 65_535), (100, 0), (65_535, 0), (0, 65_535), (13, 0), (0, 0)]
    {
        let bytes = with_header(undone(0, 0, start, offset), &sent);
        Try::new(Format::Split, USUAL).is_dropped(&bytes, &[112], DropReason::BadOffload);
    }
    // The last that is within.
    let bytes = with_header(undone(0, 0, 14, 84), &sent);
    assert_eq!(Try::new(Format::Split, USUAL).send(&bytes, &[112]).0.len(), 1);
}

#[test]
fn d4_segments_without_size_kind_or_checksum_are_dropped() {
    let mut sent = frame(mac(2), mac(1), 3000);
    sent[12..14].copy_from_slice(&[8, 0]);
    // TCP over IPv4, as far as the head shows; 0 leaves the length to whoever cuts.
    sent[14..24].copy_from_slice(&[0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 6]);
    sent[46] = 0x50;
    let mut bad = vec![
        undone(Header::GSO_TCP4, 0, 34, 16),
        undone(Header::GSO_TCP4, 1000, 34, 6),
        undone(Header::GSO_UDP_L4, 1000, 34, 16),
        undone(Header::GSO_ECN, 1000, 34, 16),
        undone(Header::GSO_UDP, 1000, 34, 6),
        undone(Header::GSO_TCP4, 1000, 2990, 16),
    ];
    bad.extend([2, 6, 7, 0x7f, 0xff].map(|kind| undone(kind, 1000, 34, 16)));
    let mut no_checksum = undone(Header::GSO_TCP4, 1000, 34, 16);
    no_checksum.flags = 0;
    bad.push(no_checksum);
    for header in bad {
        let bytes = with_header(header, &sent);
        let mut one = Try::new(Format::Split, USUAL);
        one.is_dropped(&bytes, &[3012], DropReason::BadOffload);
    }
    // A length of headers that is a lie is no reason: nobody relies on it.
    for header_len in [0, 1, 65_535] {
        let header = Header { header_len, ..undone(Header::GSO_TCP4, 1000, 34, 16) };
        let (got, _) = Try::new(Format::Split, USUAL).send(&with_header(header, &sent), &[3012]);
        assert_eq!(got.len(), 1);
        assert!((54..=94).contains(&got[0].0.header_len), "{header_len} was passed on");
    }
}

#[test]
fn d5_offloads_that_were_not_negotiated_are_dropped() {
    let mut sent = frame(mac(2), mac(1), 3000);
    sent[12..14].copy_from_slice(&[8, 0]);
    let csum = PLAIN | device::features::NET_CSUM;
    for (features, header) in [
        (PLAIN, undone(0, 0, 34, 16)),
        (csum, undone(Header::GSO_TCP4, 1000, 34, 16)),
        (csum, undone(Header::GSO_UDP_L4, 1000, 34, 6)),
        // TSO without CSUM counts for nothing (VIRTIO 5.1.3.1).
        (PLAIN | device::features::NET_HOST_TSO4, undone(Header::GSO_TCP4, 1000, 34, 16)),
        (csum | device::features::NET_HOST_TSO4, undone(Header::GSO_TCP6, 1000, 54, 16)),
        (csum | device::features::NET_HOST_TSO4, undone(0x80 | Header::GSO_TCP4, 1000, 34, 16)),
    ] {
        let bytes = with_header(header, &sent);
        Try::new(Format::Split, features).is_dropped(&bytes, &[3012], DropReason::BadOffload);
    }
}

#[test]
fn d6_packets_that_are_not_what_they_say_end_at_a_receiver_that_needs_them_cut() {
    // Every length of IP and TCP header that can be written, over a short and a long frame.
    for len in [60, 1514, 4000] {
        let mut lan = Lan::wire();
        let (mut bad, mut plain) = (Nic::usual(), Nic::new(ring(Format::Split, 256), PLAIN));
        lan.plug(&bad);
        lan.plug(&plain);
        for version_and_length in 0..=255u8 {
            let mut sent = frame(mac(2), mac(1), len);
            sent[12..14].copy_from_slice(&[8, 0]);
            sent[14] = version_and_length;
            sent[46] = version_and_length.rotate_left(3);
            bad.send_with(undone(Header::GSO_TCP4, 500, 34, 16), &sent);
            plain.post(1, 2048);
            lan.passes(2);
            assert_eq!(bad.sent(), 1);
            assert!(plain.take().iter().all(|(_, frame)| frame.len() <= 1514));
        }
        assert_eq!(lan.core.events().len(), 0);
    }
}

#[test]
fn d7_frames_beyond_the_longest_are_dropped() {
    let longest = frame(mac(2), mac(1), FRAME_MAX as usize);
    let mut one = Try::new(Format::Split, USUAL);
    let (got, _) = one.send(&with_header(Header::default(), &longest), &[usize::MAX]);
    assert!(got[0].1 == longest);
    for more in [1, 2, 1 << 20] {
        let mut bytes = with_header(Header::default(), &longest);
        bytes.resize(bytes.len() + more, 0);
        one.is_dropped(&bytes, &[usize::MAX], DropReason::TooLong);
    }
}

#[test]
fn a_giant_chain_is_dropped_and_charged_for() {
    let mut one = Try::new(Format::Split, USUAL);
    let bytes = vec![0; 400];
    one.is_dropped(&bytes, &[1; 400], DropReason::TooLong);
    // Chains of as many pieces as are kept are good, and each costs what walking it does: a MiB is 32
    // of them with 170 pieces each.
    let mut lan = Lan::wire();
    let mut bad = Nic::new(ring(Format::Split, 1024), USUAL);
    lan.plug(&bad);
    lan.plug_host(null(backend::net::NullMode::Drop));
    for _ in 0..4 {
        bad.send_bytes(&frame(mac(2), mac(1), 255), &[1; 255]);
    }
    bad.publish_frames();
    let took = lan.core.pass();
    assert_eq!((took.requests, bad.sent()), (4, 4));
}

#[test]
fn a_ring_that_is_broken_latches_and_its_receiver_goes_on() {
    let mut lan = Lan::switch();
    let (bad, mut good, mut other) = (Nic::usual(), Nic::usual(), Nic::usual());
    lan.plug(&bad);
    lan.plug(&good);
    lan.plug(&other);
    other.post(100, 2048);
    let raw = bad.transmit.driver.raw();
    raw.set_avail_index(raw.avail_index().wrapping_add(300));
    crate::inbox::wake(&eventfd_of(&bad));
    for _ in 0..50 {
        good.send(&frame(ALL, mac(2), 60));
        lan.passes(1);
        assert_eq!((good.sent(), other.take().len()), (1, 1));
    }
    let events = lan.core.events();
    assert!(
        matches!(events[..], [crate::Event::Failed { key: failed, .. }] if failed == key(0, false)),
        "{events:?}"
    );
}

fn eventfd_of(nic: &Nic) -> std::os::fd::OwnedFd {
    nic.transmit.kick.try_clone().unwrap()
}

/// Whoever sends would pay for the walk, at every frame.
#[test]
fn a_receive_chain_longer_than_any_frame_needs_breaks_its_own_queue() {
    for (pieces, is_broken) in [(100, false), (1000, true)] {
        let (mut lan, mut sender) = (Lan::wire(), Nic::usual());
        let mut receiver = Nic::new(ring(Format::Split, 2048), USUAL);
        lan.plug(&sender);
        lan.plug(&receiver);
        receiver.post_pieces(&[&[2048][..], &vec![1; pieces]].concat());
        receiver.publish_buffers();
        sender.send(&frame(mac(2), mac(1), 60));
        lan.passes(3);
        let failed = lan.core.events();
        assert_eq!(failed.len(), usize::from(is_broken), "{failed:?}");
        assert_eq!(receiver.take_frames().len(), usize::from(!is_broken));
    }
}
