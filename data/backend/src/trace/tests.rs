//! A ring that one writes and others read, who may be late.

use super::*;

/// Entry `n` of a made-up history: each word tells its number.
fn entry(n: u64) -> Entry {
    Entry {
        taken_ns: n,
        offset: n.wrapping_mul(512),
        len: (n ^ 0x5555) % 65_536 * 512,
        asked: [Asked::Read, Asked::Write, Asked::Flush, Asked::Discard, Asked::WriteZeroes]
            [(n % 5) as usize],
        status: [Status::Ok, Status::IoError, Status::Unsupported][(n % 3) as usize],
        waited_ns: n.wrapping_mul(3),
        held_ns: n.wrapping_mul(7),
        medium_ns: n.wrapping_mul(11),
        stages_ns: n.wrapping_mul(13),
    }
}

fn read(ring: &Ring, cursor: &mut Cursor, most: usize) -> (Vec<Entry>, u64) {
    let mut entries = Vec::new();
    let lost = ring.read(cursor, most, |entry| entries.push(entry));
    (entries, lost)
}

#[test]
fn what_was_written_is_read_once_and_in_order() {
    let ring = Ring::new(0);
    assert_eq!((ring.len(), ring.is_empty()), (u64::from(ENTRIES_MIN), true));
    let mut tracer = Tracer::new(Arc::clone(&ring));
    let mut cursor = Cursor::default();
    assert_eq!(read(&ring, &mut cursor, 10), (vec![], 0));
    (0..5).for_each(|n| tracer.add(&entry(n), 0));
    assert_eq!(read(&ring, &mut cursor, 2), (vec![entry(0), entry(1)], 0));
    assert_eq!(read(&ring, &mut cursor, 10), (vec![entry(2), entry(3), entry(4)], 0));
    assert_eq!((read(&ring, &mut cursor, 10), cursor.number()), ((vec![], 0), 5));
    assert_eq!(ring.end(), Cursor::at(5));
}

#[test]
fn what_was_overwritten_is_counted_as_lost() {
    let ring = Ring::new(1_500);
    assert_eq!(ring.len(), 2_048, "the next power of two");
    let mut tracer = Tracer::new(Arc::clone(&ring));
    (0..3_000).for_each(|n| tracer.add(&entry(n), 0));
    let mut cursor = Cursor::default();
    let (entries, lost) = read(&ring, &mut cursor, 5_000);
    assert_eq!((lost, entries.len()), (952, 2_048));
    assert_eq!(entries, (952..3_000).map(entry).collect::<Vec<_>>());
    // One whose ring was made anew since.
    let mut ahead = Cursor::at(9_999);
    assert_eq!(read(&ring, &mut ahead, 10), (vec![], 0));
}

#[test]
fn what_is_pending_is_shown_with_its_end_and_not_before() {
    let ring = Ring::new(0);
    let mut tracer = Tracer::new(Arc::clone(&ring));
    let mut cursor = Cursor::default();
    for n in [100, 200] {
        tracer.add_pending(&Entry { medium_ns: 0, ..entry(n) });
    }
    assert_eq!(read(&ring, &mut cursor, 10), (vec![], 0));
    tracer.show(250);
    let ended = |n: u64| Entry { medium_ns: 250 - n, ..entry(n) };
    assert_eq!(read(&ring, &mut cursor, 10), (vec![ended(100), ended(200)], 0));
    tracer.show(900);
    tracer.add(&entry(300), 950);
    assert_eq!(read(&ring, &mut cursor, 10), (vec![entry(300)], 0), "its own end stays");
}

#[test]
fn one_that_ended_by_itself_leaves_what_is_pending_its_own_end() {
    let ring = Ring::new(0);
    let mut tracer = Tracer::new(Arc::clone(&ring));
    for n in [100, 200] {
        tracer.add_pending(&Entry { medium_ns: 0, ..entry(n) });
    }
    tracer.add(&entry(210), 250);
    let ended = |n: u64| Entry { medium_ns: 250 - n, ..entry(n) };
    let expected = vec![ended(100), ended(200), entry(210)];
    assert_eq!(read(&ring, &mut Cursor::default(), 10), (expected, 0));
}

#[test]
fn the_next_writer_goes_on_where_the_last_one_ended() {
    let ring = Ring::new(0);
    let mut first = Tracer::new(Arc::clone(&ring));
    first.add(&entry(0), 0);
    first.add_pending(&entry(1));
    drop(first);
    let mut second = Tracer::new(Arc::clone(&ring));
    second.add(&entry(7), 0);
    let mut cursor = Cursor::default();
    assert_eq!(read(&ring, &mut cursor, 10), (vec![entry(0), entry(7)], 0));
}

#[test]
fn who_reads_while_it_is_overwritten_reads_whole_entries_alone() {
    const ENTRIES: u64 = 200_000;
    let ring = Ring::new(0);
    let writer = std::thread::spawn({
        let ring = Arc::clone(&ring);
        move || {
            let mut tracer = Tracer::new(ring);
            (0..ENTRIES).for_each(|n| tracer.add(&entry(n), 0));
        }
    });
    let (mut cursor, mut seen, mut lost, mut last) = (Cursor::default(), 0, 0, None);
    while cursor.number() < ENTRIES {
        lost += ring.read(&mut cursor, 64, |one| {
            assert_eq!(one, entry(one.taken_ns));
            assert!(last < Some(one.taken_ns), "in order");
            last = Some(one.taken_ns);
            seen += 1;
        });
        std::hint::spin_loop();
    }
    writer.join().expect("writer");
    assert_eq!(seen + lost, ENTRIES);
}
