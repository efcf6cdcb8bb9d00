//! A guest's frame with any virtio-net header, for a receiver that has any offloads: checked,
//! measured, tagged, hashed, finished, as on its way through a sidecore.
//!
//! What must hold: nothing panics; what was checked lies in the frame; a frame is finished with
//! bounded work and is afterwards as it was; segments put together are the frame's payload, their
//! lengths and their IPv4 sums are right, and each receiver gets only what it has.

use frame::tag::{self, Tag};
use frame::{
    HEAD_MAX, Header, Offload, Offloads, SEGMENTS_MAX, checksum, finish, flow_hash, swap_addresses,
};

use crate::bytes::Bytes;

/// Frames that most inputs start from: TCP and UDP over IPv4 and IPv6, an Ethernet header before.
const ADDRESSES: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
/// Bytes of payload that need not be in the input.
const PADDING_MAX: usize = 0x3fff;

/// Makes one input happen.
pub fn run(input: &[u8]) {
    let mut bytes = Bytes(input);
    let shape = bytes.u8();
    let has = Offloads::from_bits(u16::from(bytes.u8()));
    let allowed = if shape & 1 != 0 { Offloads::ALL } else { Offloads::from_bits(bytes.u16()) };
    let mut raw = [0; 10];
    let given = bytes.take(10);
    raw[..given.len()].copy_from_slice(given);
    let mut header = Header::decode(&raw);
    let mut frame = match shape & 2 {
        0 => bytes.take(usize::MAX).to_vec(),
        _ => likely(shape, &mut header, &mut bytes),
    };
    let len = frame.len() as u32;
    heads(&frame, shape);
    let checked = match shape & 4 {
        0 => Offload::check(&header, &frame, len, allowed),
        _ => Offload::check_host(&header, &frame, len, allowed),
    };
    let Ok(offload) = checked else { return };
    let is_finished = offload.needs().contains(Offloads::FINISHED);
    assert!(allowed.contains(offload.needs().without(Offloads::FINISHED)));
    assert!(offload.packet_len(&frame[..frame.len().min(HEAD_MAX)], len) <= len);
    if !offload.is_none() {
        let end = u32::from(offload.csum_start()) + u32::from(offload.csum_offset()) + 2;
        assert!(offload.csum_start() >= 14 && end <= len);
        let back = offload.shifted(4).map(|pushed| pushed.shifted(-4));
        assert!(back.is_none_or(|back| back == Some(offload)));
    }
    // One that nobody gets as it is is told to nobody.
    if !is_finished {
        let again = Offload::check(&offload.header(has, 1), &frame, len, allowed);
        assert_eq!(again.map(|again| again.needs()), Ok(offload.needs()));
    }
    finished(&mut frame, &offload, has);
}

/// A frame of TCP or UDP with a header that fits it, and then a few bytes of both changed.
fn likely(shape: u8, header: &mut Header, bytes: &mut Bytes<'_>) -> Vec<u8> {
    let (is_v6, is_udp) = (shape & 8 != 0, shape & 16 != 0);
    let mut frame = ADDRESSES.to_vec();
    for _ in 0..shape >> 6 {
        frame.extend([0x81, 0, 0, bytes.u8()]);
    }
    frame.extend(if is_v6 { [0x86, 0xdd] } else { [8, 0] });
    let l3 = frame.len();
    let options = usize::from(bytes.u8() % 11);
    let extensions = usize::from(bytes.u8() % 4);
    let payload = usize::from(bytes.u16()) & PADDING_MAX;
    let protocol = if is_udp { 17 } else { 6 };
    if is_v6 {
        let next = if extensions > 0 { 60 } else { protocol };
        frame.extend([0x60, 0, 0, 0, 0, 0, next, 64]);
        frame.extend([0xfd; 32]);
        for left in (0..extensions).rev() {
            frame.extend([if left > 0 { 60 } else { protocol }, 0, 1, 4, 0, 0, 0, 0]);
        }
    } else {
        frame.extend([0x45 + options as u8, 0, 0, 0, 0xff, 0xff, 0, 0, 64, protocol, 0, 0]);
        frame.extend([10; 8]);
        frame.resize(frame.len() + options * 4, 1);
    }
    let l4 = frame.len();
    if is_udp {
        frame.extend([0; 8]);
    } else {
        frame.extend([0; 12]);
        frame.extend([((5 + options) << 4) as u8, 0x99, 0, 0, 0, 0, 0, 0]);
        frame.resize(frame.len() + options * 4, 1);
    }
    frame.extend((0..payload).map(|at| (at ^ at >> 8) as u8));
    let said = frame.len() - l3 - if is_v6 { 40 } else { 0 };
    let at = l3 + if is_v6 { 4 } else { 2 };
    frame[at..at + 2].copy_from_slice(&(said as u16).to_be_bytes());
    if shape & 32 == 0 {
        *header = Header {
            flags: header.flags | Header::NEEDS_CSUM,
            gso_type: match (is_udp, is_v6) {
                _ if header.gso_type & 7 == 0 => 0,
                (true, _) => Header::GSO_UDP_L4,
                (false, true) => Header::GSO_TCP6 | header.gso_type & 0x80,
                (false, false) => Header::GSO_TCP4 | header.gso_type & 0x80,
            },
            csum_start: l4 as u16,
            csum_offset: if is_udp { 6 } else { 16 },
            ..*header
        };
    }
    while !bytes.is_empty() {
        let at = usize::from(bytes.u8());
        let byte = bytes.u8();
        if let Some(place) = frame.get_mut(at) {
            *place ^= byte;
        }
    }
    frame
}

/// What is done with a head alone.
fn heads(frame: &[u8], shape: u8) {
    let len = frame.len().min(HEAD_MAX);
    let mut head = [0; HEAD_MAX + tag::SIZE];
    head[..len].copy_from_slice(&frame[..len]);
    let before = head;
    assert_eq!(flow_hash(&head[..len]), flow_hash(&before[..len]));
    swap_addresses(&mut head[..len]);
    swap_addresses(&mut head[..len]);
    assert_eq!(head, before);
    if let Some(pushed) = tag::push(&mut head, len, Tag(u16::from(shape))) {
        assert_eq!(tag::read(&head[..pushed]), Some(Tag(u16::from(shape))));
        tag::set_vlan(&mut head[..pushed], 0xfff);
        assert_eq!(tag::pop(&mut head, pushed), Some(len));
        assert_eq!(head[..len], before[..len]);
    }
    if let Some(popped) = tag::pop(&mut head, len) {
        assert_eq!(popped, len - tag::SIZE);
        assert_eq!(head[12..popped], before[16..len]);
    }
}

/// The frame for a receiver.
fn finished(frame: &mut [u8], offload: &Offload, has: Offloads) {
    let before = frame.to_vec();
    let mut pieces: Vec<(Vec<u8>, Offload)> = Vec::new();
    let result = finish(frame, offload, has, |bytes, rest| pieces.push((bytes.to_vec(), rest)));
    assert!(frame == before, "the frame is as it was");
    let Ok(count) = result else { return assert!(pieces.is_empty()) };
    assert!(count as usize == pieces.len() && pieces.len() <= SEGMENTS_MAX && count > 0);
    assert!(pieces.iter().all(|(_, rest)| has.contains(rest.needs())));
    if has.contains(offload.needs()) {
        return assert!(pieces[0].0 == before && pieces[0].1 == *offload);
    }
    if !offload.is_gso() {
        let start = usize::from(offload.csum_start());
        return assert!(is_filled_in(&before[start..], &pieces[0].0[start..], offload));
    }
    segments(&before, offload, &pieces);
}

/// Whether `after` is `before` with its checksum, which is never written as zero.
fn is_filled_in(before: &[u8], after: &[u8], offload: &Offload) -> bool {
    let at = usize::from(offload.csum_offset());
    let field = u16::from_be_bytes([after[at], after[at + 1]]);
    let expected = match checksum(0, before) {
        0 => 0xffff,
        sum => sum,
    };
    before[..at] == after[..at] && before[at + 2..] == after[at + 2..] && field == expected
}

fn segments(before: &[u8], offload: &Offload, pieces: &[(Vec<u8>, Offload)]) {
    let l3 = tag::ethernet_len(before);
    let l4 = usize::from(offload.csum_start());
    let is_udp = offload.csum_offset() == 6;
    let headers = l4 + if is_udp { 8 } else { usize::from(before[l4 + 12] >> 4) * 4 };
    let mut payload: Vec<u8> = Vec::new();
    for (number, (piece, rest)) in pieces.iter().enumerate() {
        assert!(rest.is_none() || rest.needs() == Offloads::CSUM);
        assert_eq!(piece[..l3], before[..l3]);
        let word = |at: usize| u16::from_be_bytes([piece[at], piece[at + 1]]);
        if offload.needs().contains(Offloads::FINISHED) {
            // Perhaps a tunnel's: what is before the transport header is for `frame`'s own tests.
            assert!(rest.is_none());
        } else if piece[l3] >> 4 == 4 {
            assert_eq!(usize::from(word(l3 + 2)), piece.len() - l3);
            assert_eq!(checksum(0, &piece[l3..l4]), 0);
        } else {
            assert_eq!(usize::from(word(l3 + 4)), piece.len() - l3 - 40);
        }
        if is_udp {
            assert_eq!(usize::from(word(l4 + 4)), piece.len() - l4);
        } else {
            let first = u32::from_be_bytes([0, 1, 2, 3].map(|at| before[l4 + 4 + at]));
            let sequence = u32::from(word(l4 + 4)) << 16 | u32::from(word(l4 + 6));
            assert_eq!(sequence, first.wrapping_add(payload.len() as u32));
        }
        let is_last = number + 1 == pieces.len();
        assert!(is_last || piece.len() - headers == usize::from(offload.gso_size()));
        payload.extend(&piece[headers..]);
    }
    assert!(payload == before[headers..], "the payload is what was sent");
}
