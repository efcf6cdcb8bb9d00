//! Addresses: found, split, refused. Writes: seen by the log.

use std::os::fd::OwnedFd;

use super::*;
use crate::{Health, LOG_PAGE_SIZE, Seal};

const PAGE: u64 = 4096;

fn region(gpa: u64, user: u64, len: u64) -> Region {
    Region { gpa, user, mapping: Mapping::anonymous(len).unwrap() }
}

fn sealed_memfd(len: u64, seal: bool) -> OwnedFd {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len).unwrap();
    if seal {
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    }
    fd
}

#[test]
fn a_buffer_over_adjacent_regions_is_taken_in_two_steps() {
    let map = GuestMap::new(vec![region(PAGE, 0x9000, PAGE), region(0, 0x4000, PAGE)]).unwrap();
    assert!(map.span(PAGE - 8, 16).is_none());
    let first = map.span_up_to(PAGE - 8, 16).unwrap();
    let second = map.span_up_to(PAGE, 8).unwrap();
    assert_eq!((first.len(), second.len()), (8, 8));
    assert!(map.write(first, 0, &[1; 8]) && map.write(second, 0, &[2; 8]));
    let mut bytes = [0; 8];
    assert!(map.read(map.span(PAGE, 8).unwrap(), 0, &mut bytes));
    assert_eq!(bytes, [2; 8]);
}

#[test]
fn addresses_outside_every_region_have_no_span() {
    let map = GuestMap::new(vec![region(PAGE, 0, PAGE), region(1 << 40, 1 << 20, PAGE)]).unwrap();
    for gpa in [0, PAGE - 1, 2 * PAGE, (1 << 40) + PAGE, u64::MAX, u64::MAX - 7] {
        assert!(map.span_up_to(gpa, 8).is_none(), "{gpa:#x}");
    }
    assert!(map.span(2 * PAGE - 4, 8).is_none());
    assert!(map.area_at_user(PAGE - 4, 8).is_none());
    assert!(map.area_at_user(4, u64::MAX).is_none());
    assert_eq!(map.area_at_user(PAGE - 8, 8).unwrap().len(), 8);
}

#[test]
fn a_span_of_another_map_does_nothing() {
    let one = GuestMap::anonymous(PAGE).unwrap();
    let two = GuestMap::anonymous(PAGE).unwrap();
    let span = one.span(0, 16).unwrap();
    assert!(!two.write(span, 0, &[1; 16]));
    assert!(!two.read(span, 0, &mut [0; 16]));
    assert!(!one.read(span, 8, &mut [0; 16]));
    assert!(!one.write(span, 1, &[0; 16]));
}

#[test]
fn bytes_go_from_one_guest_to_another() {
    let (one, two) = (GuestMap::anonymous(PAGE).unwrap(), GuestMap::anonymous(PAGE).unwrap());
    let bytes: Vec<u8> = (0..=255).collect();
    assert!(one.write(one.span(100, 256).unwrap(), 0, &bytes));
    assert!(two.copy_from(two.span(7, 256).unwrap(), &one, one.span(100, 256).unwrap()));
    let mut found = [0; 258];
    assert!(two.read(two.span(6, 258).unwrap(), 0, &mut found));
    assert_eq!((found[0], &found[1..257], found[257]), (0, &bytes[..], 0));
}

#[test]
fn a_copy_between_spans_that_do_not_fit_changes_nothing() {
    let (one, two) = (GuestMap::anonymous(PAGE).unwrap(), GuestMap::anonymous(PAGE).unwrap());
    let (from, to) = (one.span(0, 16).unwrap(), two.span(0, 16).unwrap());
    assert!(one.write(from, 0, &[7; 16]));
    assert!(!two.copy_from(to.first(15), &one, from), "lengths differ");
    assert!(!two.copy_from(to, &one, from.first(15)), "lengths differ");
    assert!(!two.copy_from(to, &two, from), "a source of another map");
    assert!(!one.copy_from(to, &one, from), "a target of another map");
    assert!(!two.copy_from(Span { len: u32::MAX, ..to }, &one, Span { len: u32::MAX, ..from }));
    let mut found = [9; 16];
    assert!(two.read(to, 0, &mut found));
    assert_eq!(found, [0; 16]);
    assert!(two.copy_from(to.first(0), &one, from.first(0)), "nothing is copied, and that is all");
}

#[test]
fn a_copy_within_one_guest_may_overlap() {
    let map = GuestMap::anonymous(16 * PAGE).unwrap();
    for len in [200, 2000, 5000] {
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let span = |at| map.span(at, len).unwrap();
        for (from, to) in [(50, 60), (60, 50), (50, 50), (50, 1950), (1950, 50), (5000, 0)] {
            assert!(map.write(span(from), 0, &bytes));
            assert!(map.copy_from(span(to), &map, span(from)));
            let mut found = vec![0; len as usize];
            assert!(map.read(span(to), 0, &mut found));
            assert!(found == bytes, "{len} bytes from {from} to {to}");
        }
    }
}

#[test]
fn every_length_is_copied_whole_and_no_byte_more() {
    let (one, two) =
        (GuestMap::anonymous(80 << 10).unwrap(), GuestMap::anonymous(80 << 10).unwrap());
    let bytes: Vec<u8> = (0..70_000).map(|at| (at % 253) as u8).collect();
    assert!(one.write(one.span(3, 70_000).unwrap(), 0, &bytes));
    let edges = [1023u32, 1024, 1151, 1152, 32 << 10, (32 << 10) + 1, 65_535];
    for len in (0..300).chain(edges).chain([1025, 1279, 4095, 4097]) {
        for (from, to) in [(3, 64), (100, 65), (64, 4000)] {
            let guard = two.span(to - 1, len + 2).unwrap();
            assert!(two.write(guard, 0, &vec![0xff; len as usize + 2]));
            let (from, to) = (one.span(from, len).unwrap(), two.span(to, len).unwrap());
            assert!(two.copy_from(to, &one, from));
            let (mut want, mut found) = (vec![0; len as usize], vec![0; len as usize + 2]);
            assert!(one.read(from, 0, &mut want) && two.read(guard, 0, &mut found));
            assert!(found[1..=len as usize] == want[..], "{len} bytes");
            assert_eq!((found[0], found[len as usize + 1]), (0xff, 0xff), "{len} bytes");
        }
    }
}

#[test]
fn two_pieces_are_written_as_one_and_no_byte_more() {
    let map = GuestMap::anonymous(PAGE).unwrap();
    let guard = map.span(9, 82).unwrap();
    for len in 0..=68 {
        assert!(map.write(guard, 0, &[0xff; 82]));
        let (span, from) = (map.span(10, 80).unwrap(), vec![7; len]);
        assert!(map.write_both(span.first(12 + len as u32), &[5; 12], &from), "{len} fit exactly");
        let mut found = [0; 82];
        assert!(map.read(guard, 0, &mut found));
        assert_eq!((found[0], &found[1..13], found[13 + len]), (0xff, &[5; 12][..], 0xff));
        assert_eq!(found[13..13 + len], from[..], "{len}");
    }
    // What does not fit, or is of another map, changes nothing.
    let (span, other) = (map.span(10, 80).unwrap(), GuestMap::anonymous(8 * PAGE).unwrap());
    let foreign = other.span(7 * PAGE, 80).unwrap();
    assert!(map.write(guard, 0, &[0xee; 82]));
    assert!(!map.write_both(span.first(19), &[5; 12], &[7; 8]));
    assert!(!map.write_both(span.first(11), &[5; 12], &[]));
    assert!(!map.write_both(foreign, &[5; 12], &[7; 8]));
    let mut found = [0; 82];
    assert!(map.read(guard, 0, &mut found) && found == [0xee; 82]);
}

#[test]
fn overlapping_wrapping_and_too_many_regions_are_refused() {
    let overlap = |a, b| matches!(GuestMap::new(vec![a, b]), Err(MapError::Overlap { .. }));
    assert!(overlap(region(0, 0, 2 * PAGE), region(PAGE, 1 << 30, PAGE)));
    assert!(overlap(region(0, 0, 2 * PAGE), region(1 << 30, PAGE, PAGE)));
    assert!(overlap(region(0, 0, PAGE), region(u64::MAX - 10, PAGE, PAGE)));
    let many = (0..=REGIONS_MAX as u64).map(|i| region(i * PAGE, i * PAGE, PAGE)).collect();
    assert!(matches!(GuestMap::new(many), Err(MapError::TooMany(510))));
}

#[test]
fn files_too_short_or_not_sealed_are_refused() {
    let open = sealed_memfd(2 * PAGE, false);
    let sealed = sealed_memfd(2 * PAGE, true);
    assert!(matches!(
        Mapping::shared(&open, 0, PAGE, Seal::Required, &Health::default()),
        Err(MapError::Unsealed)
    ));
    assert!(Mapping::shared(&open, 0, PAGE, Seal::Any, &Health::default()).is_ok());
    assert!(Mapping::shared(&sealed, 8, PAGE, Seal::Required, &Health::default()).is_ok());
    for (offset, len) in [(0, 3 * PAGE), (PAGE, PAGE + 1), (2 * PAGE, 1)] {
        let refused = Mapping::shared(&sealed, offset, len, Seal::Any, &Health::default());
        assert!(matches!(refused, Err(MapError::Short { .. })), "{offset} {len}");
    }
    for (offset, len) in [(0, 0), (u64::MAX, 1), (1, u64::MAX), (u64::MAX / 2, PAGE)] {
        let refused = Mapping::shared(&sealed, offset, len, Seal::Any, &Health::default());
        assert!(matches!(refused, Err(MapError::Length { .. })), "{offset} {len}");
    }
}

#[test]
fn every_write_marks_its_pages_and_no_other() {
    let log_fd = sealed_memfd(PAGE, true);
    let log = DirtyLog::map(&log_fd, 0, PAGE, Seal::Required, &Health::default()).unwrap();
    let bits =
        Area::whole(Mapping::shared(&log_fd, 0, PAGE, Seal::Any, &Health::default()).unwrap());
    let map = GuestMap::new(vec![region(8 * LOG_PAGE_SIZE, 0, 16 * PAGE)]).unwrap();
    let logged = map.with_log(Some(log)).unwrap();
    let take = |at: usize| {
        let byte = bits.load_u8(at);
        bits.store_u8(at, 0);
        byte
    };
    let at = |page: u64, len| logged.span(page * LOG_PAGE_SIZE, len).unwrap();
    assert!(map.write(at(8, 1), 0, &[1]));
    assert_eq!(take(1), 0, "a map without log marks nothing");
    assert!(logged.write(at(9, 1), 0, &[1]));
    assert_eq!(take(1), 0b10);
    assert!(logged.zero(at(8, 2 * PAGE as u32 + 1)));
    assert_eq!(take(1), 0b111);
    let area = logged.area_at_user(3 * PAGE - 2, 4).unwrap();
    area.store_u16(0, 1);
    assert_eq!(take(1), 0b100);
    area.store_release_u16(2, 1);
    assert_eq!(take(1), 0b1000);
    let other = GuestMap::anonymous(2 * PAGE).unwrap();
    let whole = other.span(0, PAGE as u32 + 1).unwrap();
    assert!(logged.copy_from(at(9, PAGE as u32 + 1), &other, whole));
    assert_eq!(take(1), 0b110);
    assert!(!logged.copy_from(at(9, 5), &other, whole.first(4)));
    assert!(other.copy_from(whole, &logged, at(9, PAGE as u32 + 1)));
    assert_eq!(take(1), 0, "only what is written, and only in its own map");
    let disk = Area::anonymous(PAGE).unwrap();
    assert!(disk.copy_to_guest(0, &logged, at(16, 64)));
    assert_eq!((take(1), take(2)), (0, 1));
    assert!(disk.copy_from_guest(0, &logged, at(16, 64)));
    assert_eq!((take(1), take(2), take(0)), (0, 0, 0));
}
