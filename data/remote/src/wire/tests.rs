//! What is built is what is parsed; whatever else comes is an error, and no panic.

use random::Random;

use super::*;

fn part(data: &[u8]) -> Part<'_> {
    Part {
        handle: 0x1234_5678,
        slot: 7,
        op: Op::Write { sync: true },
        turn: u64::MAX - 1,
        offset: 1 << 50,
        len: 4096,
        place: 1376,
        checksum: 0xfeed_beef_dead_cafe,
        data,
    }
}

/// One of each kind.
fn records(data: &[u8]) -> Vec<Record<'_>> {
    let news = News { revision: 3, size: 1 << 40, features: 9, is_removed: true };
    let bind = Bind {
        device: 42,
        intent: Intent::Again,
        index: 4095,
        slots: 256,
        slot_bytes: 128 << 10,
        binding: 77,
        generation: 5,
        instance: 6,
        name: 10,
    };
    let verifier = Verifier { boot: 8, contents: 9 };
    let (outcome, name) = (Outcome::Stale, u64::MAX);
    let bound =
        Bound { index: 4095, outcome, binding: 77, generation: 6, verifier, news, name, image: 0 };
    let piece = Piece { handle: 1, slot: 2, turn: 3, len: 5000, place: 40, checksum: 5, data };
    vec![
        Record::Ping,
        Record::Close,
        Record::Bind(bind),
        Record::Bound(bound),
        Record::Bound(Bound { image: 11, ..bound }),
        Record::Release { handle: 5 },
        Record::Ended { handle: 6, end: End::Unbound },
        Record::News { handle: 7, news },
        Record::Part(part(data)),
        Record::Recall { handle: 8, slot: 9, turn: 10 },
        Record::Done { handle: 8, slot: 9, turn: 10, status: Status::NeverSeen },
        Record::Piece(piece),
        Record::Pad,
        Record::Net(Net { handle: 11, number: 12, len: 310, place: 10, data }),
    ]
}

fn build(records: &[Record<'_>]) -> Vec<u8> {
    let mut buffer = vec![0; 4096];
    let mut builder = Builder::new(&mut buffer, 16);
    assert!(builder.push_ack(99, &[(5, u64::MAX), (4, 1)]));
    assert!(records.iter().all(|record| builder.push(record)));
    let len = builder.len();
    buffer.truncate(len);
    buffer
}

#[test]
fn what_is_built_is_what_is_parsed() {
    let data = [0xa5; 300];
    let records = records(&data);
    let frame = build(&records);
    let mut parsed = Records::new(&frame[HEADER_BYTES..]);
    let Some(Ok(Record::Ack { credit: 99, blocks })) = parsed.next() else { panic!("no ack") };
    assert_eq!(blocks.collect::<Vec<_>>(), [(5, u64::MAX), (4, 1)]);
    assert_eq!(parsed.collect::<Result<Vec<_>, _>>(), Ok(records));
    for op in [Op::Read, Op::Flush, Op::Discard, Op::WriteZeroes { unmap: true, sync: false }] {
        assert_eq!(Op::parse(op.code()), Ok(op));
    }
}

#[test]
fn headers_are_what_they_were() {
    for kind in [Kind::Hello, Kind::Cookie, Kind::Answer, Kind::Sealed] {
        let header = Header { kind, session: 0x0102_0304, counter: u64::MAX };
        assert_eq!(Header::parse(&header.bytes()), Ok(header));
    }
    let mut bytes = Header { kind: Kind::Sealed, session: 1, counter: 2 }.bytes();
    assert_eq!(Header::parse(&bytes[..15]), Err(Malformed::Short));
    bytes[2] = 1;
    assert_eq!(Header::parse(&bytes), Err(Malformed::Field));
    bytes[1] = 9;
    assert_eq!(Header::parse(&bytes), Err(Malformed::Kind(9)));
    bytes[0] = 2;
    assert_eq!(Header::parse(&bytes), Err(Malformed::Version(2)));
}

#[test]
fn what_does_not_fit_is_not_begun() {
    let data = [1; 100];
    let mut buffer = [0; HEADER_BYTES + RECORD_HEAD_BYTES + PART_BYTES + 100 + 15];
    let mut builder = Builder::new(&mut buffer, 16);
    assert!(!builder.push(&Record::Part(part(&data))), "the tag needs 16");
    assert!(builder.is_empty() && builder.push(&Record::Part(part(&data[1..]))));
    assert_eq!(builder.room(), 0);
    assert!(!builder.push(&Record::Ping) && !builder.push_ack(0, &[]));
    assert!(Builder::new(&mut [0; 8], 16).room() == 0);
}

/// N6: a length that is more than the frame, less than the record's head, 0, or all ones.
#[test]
fn n6_a_length_that_lies_is_malformed() {
    let data = [0xa5; 300];
    for record in records(&data) {
        let frame = build(&[record]);
        let body = frame[HEADER_BYTES + RECORD_HEAD_BYTES + 8 + 32..].to_vec();
        let truth = u16::from_le_bytes([body[2], body[3]]);
        for lie in [0, 1, truth.wrapping_sub(1), truth + 1, 0x7fff, 0xffff] {
            if lie == truth {
                continue;
            }
            let mut body = body.clone();
            body[2..4].copy_from_slice(&lie.to_le_bytes());
            let parsed: Result<Vec<_>, _> = Records::new(&body).collect();
            // A frame of a NIC may have any length but more than there is; what is left over then is
            // a record, and is none.
            assert!(parsed.is_err(), "{record:?} with length {lie}: {parsed:?}");
        }
    }
    let lying = [Record::Part(Part { len: 1376 + 299, ..part(&data) })];
    assert_eq!(Records::new(&build(&lying)[56 + 4..]).next(), Some(Err(Malformed::Field)));
}

#[test]
fn any_bytes_are_records_or_an_error() {
    let data = [0xa5; 64];
    let frame = build(&records(&data));
    let mut random = Random::new(1, 0);
    for _ in 0..20_000 {
        let mut body = frame[HEADER_BYTES..].to_vec();
        for _ in 0..=random.below(4) {
            let at = random.below(body.len() as u64) as usize;
            body[at] = random.next() as u8;
        }
        body.truncate(random.below(body.len() as u64 + 1) as usize);
        let parsed: Vec<_> = Records::new(&body).collect();
        assert!(parsed.iter().rev().skip(1).all(Result::is_ok), "ends after the first error");
    }
}

#[test]
fn a_checksum_sees_each_field_and_each_bit() {
    let data = [7; 64];
    let op = Op::Write { sync: false };
    let sum = checksum(1, op, 4096, 64, &data);
    assert_eq!(sum, checksum(1, op, 4096, 64, &data));
    assert_ne!(sum, checksum(2, op, 4096, 64, &data));
    assert_ne!(sum, checksum(1, Op::Write { sync: true }, 4096, 64, &data));
    assert_ne!(sum, checksum(1, op, 8192, 64, &data));
    assert_ne!(sum, checksum(1, op, 4096, 65, &data));
    for bit in 0..512 {
        let mut flipped = data;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(sum, checksum(1, op, 4096, 64, &flipped));
    }
}

#[test]
fn a_piece_of_a_nics_frame_lies_within_it() {
    let parse = |len: u16, place: u16, data: &[u8]| {
        let net = Net { handle: 1, number: 2, len, place, data };
        let frame = build(&[Record::Net(net)]);
        Records::new(&frame[HEADER_BYTES..]).nth(1).map(|record| record.is_ok())
    };
    let most = NET_FRAME_BYTES_MAX as u16;
    assert_eq!(parse(most, most - 10, &[1; 10]), Some(true));
    for (len, place, bytes) in [(most + 1, 0, 10), (10, 1, 10), (10, 0, 0), (9, u16::MAX, 9)] {
        assert_eq!(parse(len, place, &vec![1; bytes]), Some(false), "{len} {place} {bytes}");
    }
}
