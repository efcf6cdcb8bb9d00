//! Rows C1 to C17 of the reliability list, section 2C, as far as parsing decides them. C2, C11, C12
//! and C15 are in `requests`; C10, C13 and C16 are the back-end's.

use proptest::prelude::*;

use super::*;
use crate::features as bit;

#[test]
fn c01_no_place_for_header_or_status() {
    let mut rig = Rig::new();
    rig.put(0, &header(IN, 0));
    let no_room = |need| Err(Violation::NoRoom { need });
    assert_eq!(rig.parse(&[reads(0, 16)]), no_room("status"), "header only");
    assert_eq!(rig.parse(&[writes(64, 1)]), no_room("header"), "status only");
    assert_eq!(rig.parse(&[reads(0, 15), writes(64, 1)]), no_room("header"));
    assert_eq!(rig.parse(&[reads(0, 8), reads(8, 7), writes(64, 513)]), no_room("header"));
}

#[test]
fn c14_status_that_is_empty_or_readable() {
    let mut rig = Rig::new();
    rig.put(0, &header(OUT, 0));
    let no_status = Err(Violation::NoRoom { need: "status" });
    assert_eq!(rig.parse(&[reads(0, 16), reads(4096, 512), reads(64, 1)]), no_status);
    assert_eq!(rig.parse(&[reads(0, 16), reads(4096, 512), writes(64, 0)]), no_status);
}

#[test]
fn c03_beyond_the_capacity() {
    let mut rig = Rig::new();
    let outside = [SECTORS, SECTORS + 1, SECTORS - 1, u64::MAX, u64::MAX - 1, u64::MAX / 512, {
        // Times 512 this is 0 in 64 bits.
        1 << 55
    }];
    for sector in outside {
        assert_eq!(rig.refusal(IN, sector, Some(writes(4096, 1024))), Status::IoError);
        assert_eq!(rig.refusal(OUT, sector, Some(reads(4096, 1024))), Status::IoError);
    }
    assert_eq!(rig.work(IN, SECTORS - 2, Some(writes(4096, 1024))).len, 1024, "the last two");
    // A disk that shrinks is asked anew for each request.
    rig.live.set_capacity(1023);
    assert_eq!(rig.refusal(IN, 1, Some(writes(4096, 512))), Status::IoError);
    assert_eq!(rig.work(IN, 0, Some(writes(4096, 512))).offset, 0);
    rig.live.set_capacity(0);
    assert_eq!(rig.refusal(IN, 0, Some(writes(4096, 512))), Status::IoError);
}

#[test]
fn c04_data_that_is_not_whole_sectors() {
    let mut rig = Rig::new();
    for len in [1, 16, 511, 513, 1000] {
        assert_eq!(rig.refusal(IN, 0, Some(writes(4096, len))), Status::IoError);
        assert_eq!(rig.refusal(OUT, 0, Some(reads(4096, len))), Status::IoError);
    }
}

#[test]
fn c05_unknown_commands() {
    let mut rig = Rig::new();
    let known = [IN, OUT, FLUSH, GET_ID, DISCARD, WRITE_ZEROES];
    let odd = [1 << 31, 1 << 31 | OUT, 0x100, u32::MAX];
    for kind in (0..64).chain(odd).filter(|kind| !known.contains(kind)) {
        for data in [None, Some(reads(4096, 512)), Some(writes(4096, 512))] {
            assert_eq!(rig.refusal(kind, 0, data), Status::Unsupported, "command {kind}");
        }
    }
}

/// Rows C6 and P8: whatever the driver accepted, nothing changes a read-only disk.
#[test]
fn c06_read_only() {
    let readonly = Shape { readonly: true, ..shape() };
    let ours = offered(&readonly);
    for negotiated in [ours, ours & !bit::BLK_RO, !bit::BLK_RO, u64::MAX] {
        let mut rig = Rig::with(&readonly, negotiated);
        assert_eq!(rig.refusal(OUT, 0, Some(reads(4096, 512))), Status::IoError);
        for kind in [DISCARD, WRITE_ZEROES] {
            assert!(matches!(rig.ranges(kind, &[(0, 8, 0)]), Parsed::Answer(_, status)
                if status != Status::Ok));
        }
        assert_eq!(rig.work(IN, 0, Some(writes(4096, 512))).op, Op::Read);
        assert_eq!(rig.work(FLUSH, 0, None).op, Op::Flush);
    }
}

#[test]
fn c07_no_data_or_data_of_the_wrong_direction() {
    let mut rig = Rig::new();
    assert_eq!(rig.refusal(IN, 0, None), Status::IoError);
    assert_eq!(rig.refusal(OUT, 0, None), Status::IoError);
    assert_eq!(rig.refusal(IN, 0, Some(reads(4096, 512))), Status::IoError);
    assert_eq!(rig.refusal(OUT, 0, Some(writes(4096, 512))), Status::IoError);
}

#[test]
fn c08_flags_of_a_range() {
    let mut rig = Rig::new();
    let unsupported = |parsed| matches!(parsed, Parsed::Answer(_, Status::Unsupported));
    for flags in [1, 2, 3, 1 << 31, u32::MAX] {
        assert!(unsupported(rig.ranges(DISCARD, &[(0, 8, flags)])), "{flags:#x}");
        let zeroes = rig.ranges(WRITE_ZEROES, &[(0, 8, flags)]);
        assert_eq!(unsupported(zeroes), flags != 1, "{flags:#x}");
    }
}

#[test]
fn c09_ranges_that_cannot_be() {
    let mut rig = Rig::new();
    let bad: [&[(u64, u32, u32)]; 10] = [
        &[],
        &[(0, 0, 0)],
        &[(0, 2049, 0)],
        &[(0, u32::MAX, 0)],
        &[(SECTORS, 1, 0)],
        &[(SECTORS - 1, 2, 0)],
        &[(u64::MAX, 1, 0)],
        &[(1 << 55, 8, 0)],
        &[(0, 8, 0), (0, 8, 0)],
        &[(0, 8, 0), (8, 8, 0), (16, 8, 0)],
    ];
    for ranges in bad {
        for kind in [DISCARD, WRITE_ZEROES] {
            let parsed = rig.ranges(kind, ranges);
            assert!(matches!(parsed, Parsed::Answer(_, Status::IoError)), "{ranges:?} {parsed:?}");
        }
    }
    for len in [1, 15, 17, 31] {
        assert_eq!(rig.refusal(DISCARD, 0, Some(reads(4096, len))), Status::IoError);
    }
    assert_eq!(rig.refusal(DISCARD, 0, Some(writes(4096, 16))), Status::IoError, "not for us");
}

#[test]
fn c17_only_the_writeback_byte_can_be_written() {
    let live = Live::new(1 << 20);
    let negotiated = offered(&shape());
    for (byte, writeback) in [(0, false), (1, true), (0, false), (2, true), (0, false), (255, true)]
    {
        assert!(write_config(&live, negotiated, 32, &[byte]));
        assert_eq!(live.writeback(), writeback);
    }
    let writes: [(u32, &[u8]); 8] = [
        (0, &[0]),
        (31, &[0]),
        (33, &[0]),
        (32, &[]),
        (32, &[0, 0]),
        (32, &[0; 256]),
        (59, &[0, 0]),
        (u32::MAX, &[0]),
    ];
    for (offset, bytes) in writes {
        assert!(!write_config(&live, negotiated, offset, bytes), "offset {offset}");
    }
    assert!(!write_config(&live, negotiated & !bit::BLK_CONFIG_WCE, 32, &[0]));
    assert!(live.writeback(), "nothing changed");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Random headers and ranges in random pieces: an answer, or work that lies within the disk.
    #[test]
    fn random_requests_stay_within_the_disk(
        bytes in prop::collection::vec(any::<u8>(), 0..64),
        kind in 0u32..20,
        sector in prop_oneof![0..SECTORS + 10, any::<u64>()],
        readable in prop::collection::vec((0u64..4096, 0u32..2000), 0..6),
        writable in prop::collection::vec((0u64..4096, 0u32..2000), 0..6),
        negotiated in any::<u64>(),
        readonly in any::<bool>(),
    ) {
        let shape = Shape { readonly, ..shape() };
        let mut rig = Rig::with(&shape, negotiated);
        rig.put(0, &header(kind, sector));
        rig.put(16, &bytes);
        let mut pieces = vec![reads(0, 16)];
        pieces.extend(readable.iter().map(|(gpa, len)| reads(*gpa, *len)));
        pieces.extend(writable.iter().map(|(gpa, len)| writes(*gpa, *len)));
        let Ok(parsed) = rig.parse(&pieces) else { return Ok(()) };
        let room: u32 = writable.iter().map(|(_, len)| *len).sum();
        let reply = match parsed {
            Parsed::Answer(reply, _) => reply,
            Parsed::Work(work) => {
                let end = work.offset.checked_add(work.len);
                prop_assert!(end.is_some_and(|end| end <= SECTORS * 512));
                prop_assert!(!readonly || matches!(work.op, Op::Read | Op::Flush));
                let segments = rig.segments(&work);
                let sum: u64 = segments.iter().map(|(_, len)| u64::from(*len)).sum();
                if matches!(work.op, Op::Read | Op::Write { .. }) {
                    prop_assert_eq!(sum, work.len);
                } else {
                    prop_assert!(segments.is_empty());
                }
                work.reply
            }
        };
        let written = rig.blk.answer(&rig.map, reply, Status::Ok);
        prop_assert!((1..=room).contains(&written));
    }
}
