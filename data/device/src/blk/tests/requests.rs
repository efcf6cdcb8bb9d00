//! What must work: every legal framing, every command, the durability that was negotiated.

use proptest::prelude::*;

use super::*;
use crate::features as bit;

#[test]
fn a_read_and_a_write_in_the_plain_layout() {
    let mut rig = Rig::new();
    let work = rig.work(IN, 8, Some(writes(4096, 1024)));
    assert_eq!((work.op, work.offset, work.len), (Op::Read, 4096, 1024));
    assert_eq!(rig.segments(&work), [(4096, 1024)]);
    assert_eq!(rig.blk.answer(&rig.map, work.reply, Status::Ok), 1025);
    assert_eq!(rig.get(64, 1), [0]);
    let work = rig.work(OUT, 9, Some(reads(8192, 512)));
    assert_eq!((work.op, work.offset, work.len), (Op::Write { sync: false }, 4608, 512));
    assert_eq!(rig.segments(&work), [(8192, 512)]);
    assert_eq!(rig.blk.answer(&rig.map, work.reply, Status::Ok), 1, "only the status is written");
}

/// Row C15: the used length is what was written, and never more.
#[test]
fn c15_an_error_counts_only_the_status_byte() {
    let mut rig = Rig::new();
    for status in [Status::IoError, Status::Unsupported] {
        let work = rig.work(IN, 0, Some(writes(4096, 4096)));
        assert_eq!(rig.blk.answer(&rig.map, work.reply, status), 1);
        assert_eq!(rig.get(64, 1), [status as u8]);
        assert_eq!(rig.get(4096, 4096), [0; 4096], "no byte of ours");
    }
}

/// Row C2: the header in pieces.
#[test]
fn c02_header_in_pieces() {
    let cuts: [&[u32]; 6] = [&[1, 15], &[15, 1], &[8, 8], &[1; 16], &[4, 4, 8], &[16]];
    for cut in cuts {
        for (kind, data) in [(IN, writes(4096, 512)), (OUT, reads(4096, 512))] {
            let mut rig = Rig::new();
            let mut pieces = Vec::new();
            let (mut at, bytes) = (0, header(kind, 5));
            for (place, len) in (0u64..).zip(cut) {
                rig.put(place * 128, &bytes[at..at + *len as usize]);
                pieces.push(reads(place * 128, *len));
                at += *len as usize;
            }
            pieces.extend([data, writes(3000, 1)]);
            let Ok(Parsed::Work(work)) = rig.parse(&pieces) else { panic!("{cut:?}") };
            assert_eq!((work.offset, work.len), (5 * 512, 512));
            assert_eq!(rig.segments(&work), [(4096, 512)], "{cut:?}");
        }
    }
}

#[test]
fn c02_header_and_data_in_one_descriptor() {
    let mut rig = Rig::new();
    rig.put(0, &header(OUT, 3));
    let Ok(Parsed::Work(work)) = rig.parse(&[reads(0, 16 + 512), writes(3000, 1)]) else {
        panic!()
    };
    assert_eq!((work.offset, work.len), (3 * 512, 512));
    assert_eq!(rig.segments(&work), [(16, 512)]);
    // The header ends in the middle of the second piece.
    rig.put(0, &header(OUT, 3)[..10]);
    rig.put(1000, &header(OUT, 3)[10..]);
    let pieces = [reads(0, 10), reads(1000, 6 + 500), reads(4096, 12), writes(3000, 1)];
    let Ok(Parsed::Work(work)) = rig.parse(&pieces) else { panic!() };
    assert_eq!(rig.segments(&work), [(1006, 500), (4096, 12)]);
}

#[test]
fn c02_status_inside_a_larger_last_descriptor() {
    let mut rig = Rig::new();
    rig.put(0, &header(IN, 3));
    let Ok(Parsed::Work(work)) = rig.parse(&[reads(0, 16), writes(4096, 513)]) else { panic!() };
    assert_eq!(rig.segments(&work), [(4096, 512)]);
    assert_eq!(rig.blk.answer(&rig.map, work.reply, Status::IoError), 1);
    assert_eq!(rig.get(4096 + 512, 1), [1], "the very last byte");
    let pieces = [reads(0, 16), writes(4096, 500), writes(8192, 13)];
    let Ok(Parsed::Work(work)) = rig.parse(&pieces) else { panic!() };
    assert_eq!(rig.segments(&work), [(4096, 500), (8192, 12)]);
    assert_eq!(rig.blk.answer(&rig.map, work.reply, Status::Ok), 513);
    assert_eq!(rig.get(8192 + 12, 1), [0]);
}

/// A stream of bytes cut in pieces of these lengths, each piece at a place of its own.
fn cut(len: u32, cuts: &[u32], from: u64, device_writes: bool) -> Vec<Buffer> {
    let (mut pieces, mut left, mut gpa) = (Vec::new(), len, from);
    for cut in cuts.iter().copied().chain(std::iter::once(u32::MAX)) {
        let here = cut.min(left);
        if here > 0 {
            pieces.push(Buffer { gpa, len: here, device_writes });
        }
        left -= here;
        gpa += u64::from(here) + 100;
    }
    pieces
}

/// The bytes of these places, one after the other.
fn bytes_of(rig: &Rig, places: &[(u64, u32)]) -> Vec<u8> {
    places.iter().flat_map(|(gpa, len)| rig.get(*gpa, *len)).collect()
}

proptest! {
    /// Row P10: no assumption on framing. Any cut of both streams is the same request.
    #[test]
    fn any_framing_is_the_same_request(
        readable in prop::collection::vec(1u32..700, 0..12),
        writable in prop::collection::vec(1u32..700, 0..12),
        sectors in 1u32..6,
        sector in 0u64..100,
        write in any::<bool>(),
    ) {
        let mut rig = Rig::new();
        let len = sectors * 512;
        let data: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
        let mut stream = header(if write { OUT } else { IN }, sector).to_vec();
        if write {
            stream.extend(&data);
        }
        let mut pieces = cut(stream.len() as u32, &readable, 0, false);
        let mut at = 0;
        for piece in &pieces {
            rig.put(piece.gpa, &stream[at..at + piece.len as usize]);
            at += piece.len as usize;
        }
        let answer_len = if write { 1 } else { len + 1 };
        pieces.extend(cut(answer_len, &writable, 1 << 20, true));
        let Ok(Parsed::Work(work)) = rig.parse(&pieces) else { panic!("refused") };
        prop_assert_eq!((work.offset, work.len), (sector * 512, u64::from(len)));
        let segments = rig.segments(&work);
        prop_assert_eq!(segments.iter().map(|(_, len)| *len).sum::<u32>(), len);
        if write {
            prop_assert_eq!(bytes_of(&rig, &segments), data);
        } else {
            for (gpa, len) in &segments {
                rig.put(*gpa, &vec![0xab; *len as usize]);
            }
        }
        let written = rig.blk.answer(&rig.map, work.reply, Status::Ok);
        prop_assert_eq!(written, answer_len);
        let last = pieces.last().unwrap();
        prop_assert_eq!(rig.get(last.gpa + u64::from(last.len) - 1, 1), [0]);
        if !write {
            let all: Vec<_> = pieces.iter().filter(|piece| piece.device_writes).collect();
            let places: Vec<_> = all.iter().map(|piece| (piece.gpa, piece.len)).collect();
            let mut expected = vec![0xab; len as usize];
            expected.push(0);
            prop_assert_eq!(bytes_of(&rig, &places), expected);
        }
    }
}

#[test]
fn a_request_may_move_all_of_the_disk_and_no_more() {
    let mut rig = Rig::new();
    let (all, half) = (SECTORS * 512, (SECTORS * 256) as u32);
    let whole = |kind: u32, pieces: &[Buffer], rig: &mut Rig| {
        rig.put(0, &header(kind, 0));
        let mut chain = vec![reads(0, 16)];
        chain.extend_from_slice(pieces);
        chain.push(writes(3000, 1));
        rig.parse(&chain)
    };
    for (kind, piece) in [(IN, writes(4096, half)), (OUT, reads(4096, half))] {
        // More in one piece than is offered, as firmware sends it.
        assert_eq!(rig.work(kind, 0, Some(piece)).len, all / 2);
        let Ok(Parsed::Work(work)) = whole(kind, &[piece; 2], &mut rig) else { panic!("refused") };
        assert_eq!(work.len, all);
        let beyond = whole(kind, &[piece, piece, Buffer { len: 512, ..piece }], &mut rig);
        let Ok(Parsed::Answer(_, status)) = beyond else { panic!("{beyond:?}") };
        assert_eq!(status, Status::IoError);
    }
}

#[test]
fn as_many_segments_as_offered_and_a_split_header_fit() {
    let mut rig = Rig::new();
    for (kind, device_writes) in [(IN, true), (OUT, false)] {
        let bytes = header(kind, 0);
        let mut pieces: Vec<_> = (0..16).map(|at| reads(at, 1)).collect();
        rig.put(0, &bytes);
        let segments = (0..u64::from(SEG_MAX)).map(|at| Buffer {
            gpa: 4096 + at * 1024,
            len: 512,
            device_writes,
        });
        pieces.extend(segments);
        pieces.push(writes(3000, 1));
        let Ok(Parsed::Work(work)) = rig.parse(&pieces) else { panic!("refused") };
        assert_eq!(rig.segments(&work).len(), SEG_MAX as usize);
    }
}

/// More spans than are kept: answered, not dropped, and the status is at its place.
#[test]
fn a_chain_of_too_many_spans_is_answered() {
    let mut rig = Rig::new();
    rig.put(0, &header(IN, 0));
    let mut pieces = vec![reads(0, 16)];
    pieces.extend((0..300).map(|at| writes(4096 + at * 1024, 512)));
    pieces.push(writes(3000, 1));
    rig.put(3000, &[0xee]);
    let Ok(Parsed::Answer(reply, Status::IoError)) = rig.parse(&pieces) else { panic!() };
    assert_eq!(rig.blk.answer(&rig.map, reply, Status::IoError), 1);
    assert_eq!(rig.get(3000, 1), [1]);
}

/// Row C12: what a flush carries beside its type says nothing.
#[test]
fn c12_flush_with_data_or_a_sector() {
    let mut rig = Rig::new();
    for sector in [0, 1, u64::MAX] {
        for data in [None, Some(reads(4096, 100)), Some(writes(4096, 100))] {
            let work = rig.work(FLUSH, sector, data);
            assert_eq!((work.op, work.offset, work.len), (Op::Flush, 0, 0));
            assert_eq!(rig.segments(&work), []);
            assert_eq!(rig.blk.answer(&rig.map, work.reply, Status::Ok), 1);
        }
    }
}

/// Row C11: 20 bytes, or as many as there is room for.
#[test]
fn c11_get_id() {
    let mut rig = Rig::new();
    for len in [0u32, 1, 19, 20, 21, 4096] {
        rig.put(4096, &[0xee; 4096]);
        let data = (len > 0).then(|| writes(4096, len));
        let Parsed::Answer(reply, Status::Ok) = rig.ask(GET_ID, 0, data) else { panic!() };
        let expected = len.min(20);
        assert_eq!(rig.blk.answer(&rig.map, reply, Status::Ok), expected + 1);
        assert_eq!(rig.get(4096, expected), SERIAL[..expected as usize]);
        assert_eq!(rig.get(4096 + u64::from(expected), 1), [0xee], "nothing beyond");
    }
    // In pieces, the status in the last of them.
    rig.put(0, &header(GET_ID, 0));
    let pieces = [reads(0, 16), writes(4096, 7), writes(8192, 14)];
    let Ok(Parsed::Answer(reply, Status::Ok)) = rig.parse(&pieces) else { panic!() };
    assert_eq!(rig.blk.answer(&rig.map, reply, Status::Ok), 21);
    assert_eq!(bytes_of(&rig, &[(4096, 7), (8192, 13)]), SERIAL);
    assert_eq!(rig.get(8192 + 13, 1), [0]);
}

#[test]
fn discard_and_write_zeroes_carry_one_range() {
    let mut rig = Rig::new();
    let Parsed::Work(work) = rig.ranges(DISCARD, &[(16, 2048, 0)]) else { panic!() };
    assert_eq!((work.op, work.offset, work.len), (Op::Discard, 16 * 512, 2048 * 512));
    for (flags, unmap) in [(0, false), (1, true)] {
        let Parsed::Work(work) = rig.ranges(WRITE_ZEROES, &[(SECTORS - 1024, 1024, flags)]) else {
            panic!()
        };
        assert_eq!(work.op, Op::WriteZeroes { unmap, sync: false });
        assert_eq!((work.offset, work.len), ((SECTORS - 1024) * 512, 1024 * 512));
        assert_eq!(rig.blk.answer(&rig.map, work.reply, Status::Ok), 1);
    }
}

/// Row C2 for a command with a range: header and range cut anywhere.
#[test]
fn c02_a_range_in_pieces() {
    let mut stream = header(DISCARD, 0).to_vec();
    stream.extend(77u64.to_le_bytes());
    stream.extend(9u32.to_le_bytes());
    stream.extend(0u32.to_le_bytes());
    let cuts: [&[u32]; 6] = [&[32], &[1, 31], &[8, 8, 8], &[10, 10, 10], &[16, 1], &[1; 31]];
    for lens in cuts {
        let mut rig = Rig::new();
        let mut pieces = cut(32, lens, 0, false);
        let mut rest = stream.as_slice();
        for piece in &pieces {
            let (now, later) = rest.split_at(piece.len as usize);
            rig.put(piece.gpa, now);
            rest = later;
        }
        pieces.push(writes(1 << 20, 1));
        let Ok(Parsed::Work(work)) = rig.parse(&pieces) else { panic!("{lens:?}") };
        assert_eq!((work.op, work.offset, work.len), (Op::Discard, 77 * 512, 9 * 512), "{lens:?}");
    }
}

/// Row P2: when a write must be stable before it is reported done.
#[test]
fn p2_durability_is_what_was_negotiated() {
    let all = offered(&shape());
    let (no_flush, no_wce) = (all & !bit::BLK_FLUSH, all & !bit::BLK_CONFIG_WCE);
    let cases = [
        // Features, the driver's choice, and whether a write is synced.
        (all, true, false),
        (all, false, true),
        (no_wce, true, false),
        (no_wce, false, false),
        (no_flush, true, true),
        (no_flush, false, true),
        (no_flush & no_wce, true, true),
    ];
    for (negotiated, writeback, sync) in cases {
        let mut rig = Rig::with(&shape(), negotiated);
        rig.live.set_writeback(writeback);
        let case = (negotiated, writeback);
        let work = rig.work(OUT, 0, Some(reads(4096, 512)));
        assert_eq!(work.op, Op::Write { sync }, "{case:?}");
        let Parsed::Work(work) = rig.ranges(WRITE_ZEROES, &[(0, 8, 0)]) else { panic!() };
        assert_eq!(work.op, Op::WriteZeroes { unmap: false, sync }, "{case:?}");
    }
}

#[test]
fn what_is_taken_for_a_driver_whose_front_end_went_goes_by_its_choice() {
    let mut rig = Rig::new();
    let sync = |rig: &mut Rig| match rig.work(OUT, 0, Some(reads(4096, 512))).op {
        Op::Write { sync } => sync,
        other => panic!("{other:?}"),
    };
    rig.live.set_writeback(false);
    rig.live.reset();
    // Its rings are with sidecores for a moment yet, and the guest that asked runs on.
    assert!(rig.live.writeback(), "the next driver finds a cache");
    assert!(sync(&mut rig));
    rig.live.begin();
    assert!(!sync(&mut rig), "that one's writes");
    // What the next one chooses before its first ring is served holds for all.
    rig.live.reset();
    rig.live.set_writeback(false);
    rig.live.begin();
    assert!(sync(&mut rig));
}

#[test]
fn p2_switching_the_cache_counts_from_the_next_write_on() {
    let mut rig = Rig::new();
    let negotiated = offered(&shape());
    for writeback in [0u8, 1, 0, 1] {
        assert!(write_config(&rig.live, negotiated, 32, &[writeback]));
        let sync = writeback == 0;
        assert_eq!(rig.work(OUT, 0, Some(reads(4096, 512))).op, Op::Write { sync });
    }
}

/// Row P15: a command whose feature was not accepted is not served.
#[test]
fn p15_unnegotiated_commands_are_unsupported() {
    let all = offered(&shape());
    let commands = [
        (FLUSH, bit::BLK_FLUSH),
        (DISCARD, bit::BLK_DISCARD),
        (WRITE_ZEROES, bit::BLK_WRITE_ZEROES),
    ];
    for (without, missing) in commands {
        let mut rig = Rig::with(&shape(), all & !missing);
        for (kind, _) in commands {
            let served = match rig.ranges(kind, &[(0, 8, 0)]) {
                Parsed::Work(_) => true,
                Parsed::Answer(_, status) => {
                    assert_eq!(status, Status::Unsupported);
                    false
                }
            };
            assert_eq!(served, kind != without, "command {kind} without {missing:#x}");
        }
        assert_eq!(rig.work(IN, 0, Some(writes(4096, 512))).op, Op::Read);
    }
}
