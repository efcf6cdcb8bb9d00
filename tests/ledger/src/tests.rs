//! That the ledger catches what it is there for, and nothing else.

use super::{Found, Ledger, Order, SECTOR_SIZE, What, Writing, Wrong, fill_sector};

const SECTORS: u64 = 64;

fn ledger() -> Ledger {
    Ledger::new(SECTORS, Order::default())
}

fn bytes_of(ledger: &Ledger, writing: &Writing) -> Vec<u8> {
    let mut bytes = vec![0; writing.sectors as usize * SECTOR_SIZE];
    ledger.fill(writing, &mut bytes);
    bytes
}

/// A whole write, and what it wrote.
fn write(ledger: &mut Ledger, first: u64, sectors: u64) -> Vec<u8> {
    let writing = ledger.write(What::Data, first, sectors);
    let bytes = bytes_of(ledger, &writing);
    ledger.wrote(writing);
    bytes
}

fn read(ledger: &mut Ledger, first: u64, bytes: &[u8]) -> Result<(), Wrong> {
    let reading = ledger.read(first, (bytes.len() / SECTOR_SIZE) as u64);
    ledger.found(reading, bytes)
}

#[test]
fn a_disk_begins_with_zeroes_and_keeps_what_was_written() {
    let mut ledger = ledger();
    assert_eq!(read(&mut ledger, 0, &[0; 4 * SECTOR_SIZE]), Ok(()));
    let bytes = write(&mut ledger, 8, 4);
    assert_eq!(read(&mut ledger, 8, &bytes), Ok(()));
    assert_eq!(read(&mut ledger, 10, &bytes[2 * SECTOR_SIZE..]), Ok(()));
}

#[test]
fn a_lost_write_is_caught() {
    let mut ledger = ledger();
    let old = write(&mut ledger, 3, 1);
    write(&mut ledger, 3, 1);
    let lost = Wrong::Lost { sector: 3, found: 1, expected: vec![2] };
    assert_eq!(read(&mut ledger, 3, &old), Err(lost));
    let lost = Wrong::Lost { sector: 3, found: 0, expected: vec![2] };
    assert_eq!(read(&mut ledger, 3, &[0; SECTOR_SIZE]), Err(lost));
}

fn corrupt(read: Result<(), Wrong>, at: u64, what: Found, write: u64) {
    let Err(Wrong::Corrupt { sector, found, expected, .. }) = &read else { panic!("{read:?}") };
    assert_eq!((*sector, *found, expected.as_slice()), (at, what, &[write][..]));
}

#[test]
fn a_wrong_sector_names_whose_words_it_has() {
    let mut ledger = ledger();
    let mut bytes = write(&mut ledger, 3, 1);
    let other = write(&mut ledger, 5, 1);
    bytes[128..256].copy_from_slice(&other[128..256]);
    bytes[256] ^= 1;
    let Err(Wrong::Corrupt { parts, .. }) = read(&mut ledger, 3, &bytes) else {
        panic!("not caught")
    };
    let named = "2+14 of write 1 of sector 3, 16+16 of write 2 of sector 5, 32+1 of nobody, \
                 33+31 of write 1 of sector 3";
    assert!(parts.contains(named), "{parts}");
}

#[test]
fn corrupt_and_misplaced_bytes_are_caught() {
    let mut ledger = ledger();
    let mut bytes = write(&mut ledger, 3, 2);
    let there = bytes.split_off(SECTOR_SIZE);
    corrupt(read(&mut ledger, 3, &there), 3, Found::Other, 1);
    bytes[300] ^= 1;
    corrupt(read(&mut ledger, 3, &bytes), 3, Found::Other, 1);
    // A write of which nobody knows.
    fill_sector(3, 77, &mut bytes);
    corrupt(read(&mut ledger, 3, &bytes), 3, Found::Write(77), 1);
}

#[test]
fn a_write_that_is_executed_late_is_caught() {
    let mut ledger = ledger();
    let old = write(&mut ledger, 5, 1);
    let new = write(&mut ledger, 5, 1);
    assert_eq!(read(&mut ledger, 5, &new), Ok(()));
    let late = Wrong::Late { sector: 5, found: 1, seen: 2, expected: vec![2] };
    assert_eq!(read(&mut ledger, 5, &old), Err(late));
}

#[test]
fn of_two_writes_at_once_either_may_be_there_but_it_stays() {
    let mut ledger = ledger();
    let first = ledger.write(What::Data, 5, 1);
    let second = ledger.write(What::Data, 5, 1);
    let (one, two) = (bytes_of(&ledger, &first), bytes_of(&ledger, &second));
    ledger.wrote(second);
    // The first is in flight still.
    assert_eq!(read(&mut ledger, 5, &two), Ok(()));
    assert_eq!(read(&mut ledger, 5, &one), Ok(()));
    ledger.wrote(first);
    assert_eq!(read(&mut ledger, 5, &one), Ok(()));
    // Both have ended and the first was read: it was executed last.
    let late = Wrong::Late { sector: 5, found: 0, seen: 1, expected: vec![1] };
    assert_eq!(read(&mut ledger, 5, &[0; SECTOR_SIZE]), Err(late));
    let late = Wrong::Late { sector: 5, found: 2, seen: 1, expected: vec![1] };
    assert_eq!(read(&mut ledger, 5, &two), Err(late));
}

#[test]
fn a_write_that_is_done_twice_is_caught_when_a_newer_one_lay_between() {
    let mut ledger = ledger();
    let old = write(&mut ledger, 9, 1);
    let new = write(&mut ledger, 9, 1);
    assert_eq!(read(&mut ledger, 9, &new), Ok(()));
    assert_eq!(read(&mut ledger, 9, &new), Ok(()));
    assert!(matches!(read(&mut ledger, 9, &old), Err(Wrong::Late { .. })));
}

#[test]
fn a_read_may_see_what_was_there_when_it_was_sent() {
    let mut ledger = ledger();
    let old = write(&mut ledger, 1, 1);
    let early = [ledger.read(1, 1), ledger.read(1, 1)];
    let new = write(&mut ledger, 1, 1);
    let [one, two] = early;
    assert_eq!(ledger.found(one, &new), Ok(()));
    assert_eq!(ledger.found(two, &old), Ok(()));
    assert!(read(&mut ledger, 1, &old).is_err(), "a read that was sent later");
}

#[test]
fn behind_its_end_a_disk_keeps_nothing_but_what_is_in_flight() {
    let zeroes = [0; SECTOR_SIZE];
    let mut ledger = ledger();
    let kept = write(&mut ledger, 4, 1);
    let lost = write(&mut ledger, 5, 1);
    let early = ledger.read(5, 1);
    let writing = ledger.write(What::Data, 6, 2);
    let late = bytes_of(&ledger, &writing);
    ledger.end_at(5);
    ledger.end_at(SECTORS + 1);
    assert_eq!(read(&mut ledger, 4, &kept), Ok(()));
    assert!(read(&mut ledger, 5, &lost).is_err(), "bytes that were to be lost");
    assert_eq!(read(&mut ledger, 5, &zeroes), Ok(()));
    assert_eq!(ledger.found(early, &lost), Ok(()), "a read that was sent before");
    // It was done before the end was there, or after the disk had grown again.
    ledger.wrote(writing);
    assert_eq!(read(&mut ledger, 6, &zeroes), Ok(()));
    assert_eq!(read(&mut ledger, 7, &late[SECTOR_SIZE..]), Ok(()));
    let new = write(&mut ledger, 5, 1);
    assert_eq!(read(&mut ledger, 5, &new), Ok(()));
    assert!(read(&mut ledger, 5, &zeroes).is_err(), "a write that was sent after that is lost");
}

#[test]
fn a_torn_sector_is_allowed_only_beside_a_write_in_flight() {
    let mut ledger = ledger();
    let old = write(&mut ledger, 2, 1);
    let writing = ledger.write(What::Data, 2, 1);
    let mut torn = bytes_of(&ledger, &writing);
    torn[..128].copy_from_slice(&old[..128]);
    assert_eq!(read(&mut ledger, 2, &torn), Ok(()));
    // A copy may end within a word.
    torn[128..131].copy_from_slice(&old[128..131]);
    assert_eq!(read(&mut ledger, 2, &torn), Ok(()));
    let mut foreign = torn.clone();
    foreign[130] ^= 1;
    assert!(matches!(read(&mut ledger, 2, &foreign), Err(Wrong::Corrupt { .. })));
    ledger.wrote(writing);
    corrupt(read(&mut ledger, 2, &torn), 2, Found::Other, 2);
}

#[test]
fn zeroes_replace_and_a_discard_may() {
    let mut ledger = ledger();
    let old = write(&mut ledger, 4, 1);
    let discard = ledger.write(What::Discard, 4, 1);
    ledger.wrote(discard);
    assert_eq!(read(&mut ledger, 4, &old), Ok(()));
    let old = write(&mut ledger, 4, 1);
    let zeroes = ledger.write(What::Zeroes, 4, 1);
    ledger.wrote(zeroes);
    assert!(matches!(read(&mut ledger, 4, &old), Err(Wrong::Lost { .. })));
    assert_eq!(read(&mut ledger, 4, &[0; SECTOR_SIZE]), Ok(()));
}

#[test]
fn after_a_failed_write_old_and_new_are_possible() {
    let mut ledger = ledger();
    let old = write(&mut ledger, 6, 1);
    let writing = ledger.write(What::Data, 6, 1);
    let new = bytes_of(&ledger, &writing);
    ledger.failed(writing);
    assert_eq!(read(&mut ledger, 6, &old), Ok(()));
    assert!(read(&mut ledger, 6, &new).is_err(), "the old one was read after the failure");
}

#[test]
fn memory_does_not_grow() {
    let mut ledger = ledger();
    for _ in 0..10_000 {
        let bytes = write(&mut ledger, 0, 8);
        assert_eq!(read(&mut ledger, 0, &bytes), Ok(()));
    }
    assert!(ledger.sectors.iter().all(|sector| sector.candidates.len() <= 2));
}

#[test]
fn a_power_cut_may_lose_what_no_flush_covers() {
    let order = Order::default();
    let mut ledger = Ledger::new(SECTORS, order.clone()).with_history();
    let one = write(&mut ledger, 7, 1);
    let flushing = ledger.flush();
    let two = write(&mut ledger, 7, 1);
    let before_flush = order.next();
    ledger.flushed(flushing);
    let three = write(&mut ledger, 7, 1);
    let after = order.next();
    let history = ledger.history().expect("it is kept");
    let zeroes = [0; SECTOR_SIZE];
    for bytes in [&zeroes[..], &one, &two] {
        assert_eq!(history.after_cut(7, before_flush, bytes), Ok(()));
    }
    assert!(history.after_cut(7, before_flush, &three).is_err(), "it was not yet sent");
    // The flush was sent between the first and the second write.
    for bytes in [&one, &two, &three] {
        assert_eq!(history.after_cut(7, after, bytes), Ok(()));
    }
    let lost = Wrong::Lost { sector: 7, found: 0, expected: vec![1, 2, 3] };
    assert_eq!(history.after_cut(7, after, &zeroes), Err(lost));
    let mut torn = one.clone();
    torn[..128].copy_from_slice(&two[..128]);
    assert!(matches!(history.after_cut(7, after, &torn), Err(Wrong::Corrupt { .. })));
}

#[test]
fn write_through_promises_without_a_flush() {
    let order = Order::default();
    let mut ledger = Ledger::new(SECTORS, order.clone()).with_history();
    ledger.set_write_through(true);
    let one = write(&mut ledger, 7, 1);
    let two = write(&mut ledger, 7, 1);
    // Sent as write-through, but the guest switched before it was done.
    let writing = ledger.write(What::Data, 7, 1);
    let three = bytes_of(&ledger, &writing);
    ledger.set_write_through(false);
    ledger.wrote(writing);
    let cut = order.next();
    let history = ledger.history().expect("it is kept");
    assert!(history.after_cut(7, cut, &one).is_err(), "the second was promised");
    assert_eq!(history.after_cut(7, cut, &two), Ok(()));
    assert_eq!(history.after_cut(7, cut, &three), Ok(()));
}

#[test]
fn a_cut_may_take_back_what_no_flush_has_covered_and_nothing_else() {
    let whole = |seq: u64, what: What| {
        let mut bytes = vec![0; SECTOR_SIZE];
        if what == What::Data {
            fill_sector(0, seq, &mut bytes);
        }
        bytes
    };
    let cut_to = |ledger: &mut Ledger, bytes: &[u8]| {
        ledger.cut(|sector| if sector == 0 { bytes } else { &[0; SECTOR_SIZE] })
    };
    let run = || {
        let mut ledger = ledger().with_cuts();
        write(&mut ledger, 0, 1);
        let flushing = ledger.flush();
        write(&mut ledger, 0, 1);
        ledger.flushed(flushing);
        ledger
    };
    for seq in [1, 2] {
        assert_eq!(cut_to(&mut run(), &whole(seq, What::Data)), Ok(()), "{seq}");
    }
    let lost = cut_to(&mut run(), &whole(0, What::Zeroes));
    assert!(matches!(lost, Err(Wrong::Lost { sector: 0, found: 0, .. })), "{lost:?}");
    // What was left is what is there from then on, and a flush keeps it.
    let mut ledger = run();
    assert_eq!(cut_to(&mut ledger, &whole(1, What::Data)), Ok(()));
    assert!(matches!(read(&mut ledger, 0, &whole(2, What::Data)), Err(Wrong::Corrupt { .. })));
    assert_eq!(read(&mut ledger, 0, &whole(1, What::Data)), Ok(()));
}

#[test]
fn a_flush_promises_nothing_of_what_was_in_flight_when_it_was_given_up() {
    let run = |is_given_up: bool| {
        let mut ledger = ledger().with_cuts();
        let writing = ledger.write(What::Data, 0, 1);
        if is_given_up {
            ledger.give_up();
        }
        ledger.wrote(writing);
        let flushing = ledger.flush();
        ledger.flushed(flushing);
        ledger.cut(|_| &[0; SECTOR_SIZE])
    };
    assert_eq!(run(true), Ok(()));
    assert!(matches!(run(false), Err(Wrong::Lost { sector: 0, .. })));
}

#[test]
fn what_is_doubted_may_be_gone_until_a_flush_says_that_it_is_not() {
    let write = |ledger: &mut Ledger| {
        let writing = ledger.write(What::Data, 0, 1);
        let mut bytes = vec![0; SECTOR_SIZE];
        ledger.fill(&writing, &mut bytes);
        ledger.wrote(writing);
        bytes
    };
    let finds = |ledger: &mut Ledger, bytes: &[u8]| {
        let reading = ledger.read(0, 1);
        ledger.found(reading, bytes).is_ok()
    };
    let mut ledger = ledger().with_cuts();
    let stable = write(&mut ledger);
    let flushing = ledger.flush();
    ledger.flushed(flushing);
    let late = write(&mut ledger);
    assert!(!finds(&mut ledger, &stable), "it was overwritten");
    ledger.doubt();
    assert!(finds(&mut ledger, &late));
    ledger.doubt();
    assert!(finds(&mut ledger, &stable), "the other one is gone");
    assert!(!finds(&mut ledger, &vec![0; SECTOR_SIZE]), "it was promised");
    ledger.doubt();
    let flushing = ledger.flush();
    ledger.flushed(flushing);
    assert!(!finds(&mut ledger, &stable), "it was promised that the other one is there");
    assert!(finds(&mut ledger, &late));
}

#[test]
fn what_was_in_flight_when_it_was_doubted_may_be_gone_until_a_flush_says_that_it_is_not() {
    for is_flushed in [false, true] {
        let mut ledger = ledger().with_cuts();
        let empty = vec![0; SECTOR_SIZE];
        let writing = ledger.write(What::Data, 0, 1);
        let mut late = vec![0; SECTOR_SIZE];
        ledger.fill(&writing, &mut late);
        ledger.doubt();
        ledger.wrote(writing);
        if is_flushed {
            let flushing = ledger.flush();
            ledger.flushed(flushing);
        }
        assert!(read(&mut ledger, 0, &late).is_ok());
        ledger.doubt();
        assert_eq!(read(&mut ledger, 0, &empty).is_ok(), !is_flushed);
    }
}

#[test]
fn no_flush_promises_what_has_no_copy_and_is_doubted() {
    for is_copied in [true, false] {
        let mut ledger = ledger().with_cuts();
        let stable = write(&mut ledger, 0, 1);
        let flushing = ledger.flush();
        ledger.flushed(flushing);
        let late = write(&mut ledger, 0, 1);
        if !is_copied {
            ledger.lose_copies();
        }
        assert!(read(&mut ledger, 0, &stable).is_err(), "where it was written it is");
        ledger.doubt();
        let flushing = ledger.flush();
        ledger.flushed(flushing);
        assert_eq!(read(&mut ledger, 0, &stable).is_ok(), !is_copied);
        assert_eq!(read(&mut ledger, 0, &late).is_ok(), is_copied);
    }
}
