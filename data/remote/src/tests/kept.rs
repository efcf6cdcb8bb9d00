//! Writes of which copies are kept until they are flushed, and sent again to a machine that has lost them.

use super::*;

const WRITE: Op = Op::Write { sync: false };
const KEEPING: AttachSpec = AttachSpec { keep_bytes: 256 << 10, ..SPEC };

fn keeping() -> (Pair, u16) {
    let mut pair = Pair::new(1000);
    let one = attached(&mut pair);
    (pair, one)
}

fn attached(pair: &mut Pair) -> u16 {
    let one = pair.client.attach(KEEPING).expect("a place");
    pair.greet();
    pair.run(10 * MS);
    one
}

/// Another machine has the storage, of which all is gone that was not flushed.
fn dies(pair: &mut Pair) {
    pair.verifier.boot += 1;
    pair.disk.fill(0);
    let generation = pair.kept_generation;
    (pair.host, pair.is_cut) = (host(generation), [false; 2]);
    pair.greet();
}

fn wrote(pair: &mut Pair, one: u16, offset: u64, bytes: &[u8]) {
    for byte in bytes {
        pair.write(one, offset, *byte, 512);
        pair.run(2 * MS);
        assert_eq!(pair.finished(), [(u64::from(*byte), Status::Ok, 0)]);
    }
}

fn flushed(pair: &mut Pair, one: u16) -> Status {
    pair.ask(one, Op::Flush, 0, 0);
    pair.run(20 * MS);
    let [(_, status, _)] = pair.finished()[..] else { panic!("a flush") };
    status
}

#[test]
fn a_machine_that_dies_takes_nothing_along() {
    let (mut pair, one) = keeping();
    wrote(&mut pair, one, 0, b"ab");
    assert_eq!(flushed(&mut pair, one), Status::Ok);
    wrote(&mut pair, one, 512, b"cd");
    pair.client.submit(one, request(Op::Discard, 1024, 512), |_| false).expect("a slot");
    pair.run(2 * MS);
    pair.finished();
    wrote(&mut pair, one, 1024, b"e");
    pair.executed.clear();
    dies(&mut pair);
    pair.ask(one, Op::Read, 512, 512);
    pair.run(20 * MS);
    assert_eq!(pair.finished(), [(0, Status::Ok, b'd')], "nobody reads what was before");
    let ops: Vec<_> = pair.executed.iter().map(|(op, at, byte)| (*op, *at, *byte)).collect();
    let again =
        [(WRITE, 512, b'c'), (WRITE, 512, b'd'), (Op::Discard, 1024, 0), (WRITE, 1024, b'e')];
    assert_eq!(ops[..4], again, "in order, and not what was flushed");
    assert!(ops[4..].contains(&(Op::Flush, 0, 0)), "and they are made stable at once");
    assert_eq!(pair.client.counts().writes_again, 4, "and each is counted, but not the flush");
    assert_eq!(flushed(&mut pair, one), Status::Ok);
}

fn request(op: Op, offset: u64, len: u32) -> Request {
    Request { op, offset, len, tag: 0 }
}

#[test]
fn what_is_newer_and_stable_is_not_overwritten() {
    let (mut pair, one) = keeping();
    wrote(&mut pair, one, 0, b"a");
    let stable = request(Op::Write { sync: true }, 0, 512);
    let filled = |into: &mut [u8]| {
        into.fill(b'S');
        true
    };
    pair.client.submit(one, stable, filled).expect("a slot");
    pair.run(2 * MS);
    pair.finished();
    // One that is under way, and has not been answered.
    pair.is_cut[1] = true;
    pair.write(one, 1024, b'u', 512);
    pair.run(2 * MS);
    pair.executed.clear();
    dies(&mut pair);
    pair.run(50 * MS);
    assert_eq!(pair.finished(), [(u64::from(b'u'), Status::Ok, 0)]);
    assert_eq!(pair.writes(), b"Su", "what lies under it is not even begun");
    // Where nothing is owed, nothing that is stable is kept.
    assert_eq!(flushed(&mut pair, one), Status::Ok);
    pair.client.submit(one, stable, filled).expect("a slot");
    pair.run(2 * MS);
    pair.finished();
    pair.executed.clear();
    dies(&mut pair);
    pair.run(50 * MS);
    assert_eq!(pair.writes(), b"");
}

#[test]
fn it_begins_anew_when_the_next_machine_dies_too_and_goes_on_when_only_a_session_does() {
    for dies_again in [false, true] {
        let (mut pair, one) = keeping();
        wrote(&mut pair, one, 0, b"abcdef");
        pair.executed.clear();
        dies(&mut pair);
        pair.executes = false;
        pair.run(5 * MS);
        for expected in [b'a', b'b'] {
            let work = pair.host.next_work(pair.now).expect("one at a time");
            assert!(pair.host.next_work(pair.now).is_none());
            pair.execute(work);
            assert_eq!(pair.writes().last(), Some(&expected));
            pair.run(5 * MS);
        }
        let kept = pair.stands[&one].expect("something is owed");
        let boot = kept.verifier.expect("one that nobody has").boot;
        let boots = [pair.verifier.boot - 1, pair.verifier.boot];
        assert!(!boots.contains(&boot), "who comes after us would not find it lost");
        pair.executes = true;
        if dies_again {
            pair.executed.clear();
            dies(&mut pair);
        } else {
            pair.greet();
        }
        pair.run(50 * MS);
        assert_eq!(pair.writes(), b"abcdef");
        assert_eq!(pair.stands[&one].expect("it is bound").verifier, Some(pair.verifier));
        assert_eq!(flushed(&mut pair, one), Status::Ok);
        assert_eq!(pair.disk[0], b'f');
    }
}

#[test]
fn it_flushes_by_itself_and_requests_wait_for_that() {
    let (mut pair, one) = keeping();
    let flushes = |pair: &Pair| pair.executed.iter().filter(|(op, ..)| *op == Op::Flush).count();
    for number in 0..200_u64 {
        assert!(pair.client.may_submit(one, 0));
        pair.write(one, number % 4 * 4096, number as u8, 4096);
        pair.run(2 * MS);
        assert_eq!(pair.finished().len(), 1);
    }
    // 800 KiB, a quarter of 256 at a time.
    assert!((10..=13).contains(&flushes(&pair)), "{}", flushes(&pair));
    pair.executed.clear();
    dies(&mut pair);
    pair.run(200 * MS);
    assert!((1..=17).contains(&pair.writes().len()), "{}", pair.writes().len());
    assert_eq!(flushed(&mut pair, one), Status::Ok);

    // A flush that takes its time.
    pair.executes = false;
    let (mut taken, mut waits) = (0, Vec::new());
    while pair.client.may_submit(one, 0) {
        pair.write(one, 0, 1, 16 << 10);
        pair.run(2 * MS);
        while let Some(work) = pair.host.next_work(pair.now) {
            if work.op == Op::Flush { waits.push(work) } else { pair.execute(work) }
        }
        pair.run(2 * MS);
        taken += pair.finished().len();
    }
    assert!((8..=9).contains(&taken) && waits.len() == 1, "{taken}");
    waits.into_iter().for_each(|work| pair.execute(work));
    pair.run(2 * MS);
    assert!(pair.client.may_submit(one, 0));
}

/// More than has room, and a flush that failed: what is gone then is told by the next flush, as if nothing were kept.
#[test]
fn what_is_not_kept_is_told() {
    for fails in [false, true] {
        let (mut pair, one) = keeping();
        wrote(&mut pair, one, 0, b"a");
        if fails {
            pair.executes = false;
            pair.ask(one, Op::Flush, 0, 0);
            pair.run(2 * MS);
            let work = pair.host.next_work(pair.now).expect("a flush");
            pair.host.finish(work, Status::IoError);
            pair.executes = true;
            pair.run(2 * MS);
            assert_eq!(pair.finished(), [(0, Status::IoError, 0)]);
        } else {
            // Nothing is asked before, and the flush does not end.
            for number in 0..16 {
                pair.executes = false;
                pair.write(one, 0, number, 16 << 10);
                pair.run(2 * MS);
                while let Some(work) = pair.host.next_work(pair.now) {
                    if work.op != Op::Flush {
                        pair.execute(work);
                    }
                }
                pair.run(2 * MS);
                assert_eq!(pair.finished().len(), 1);
            }
            pair.executes = true;
        }
        dies(&mut pair);
        pair.run(20 * MS);
        assert_eq!(flushed(&mut pair, one), Status::IoError);
        pair.client.forgive(one);
        assert_eq!(flushed(&mut pair, one), Status::Ok);
        wrote(&mut pair, one, 0, b"z");
        dies(&mut pair);
        pair.run(20 * MS);
        assert_eq!((flushed(&mut pair, one), pair.disk[0]), (Status::Ok, b'z'));
    }
}

/// A write that the next machine refuses is lost, and so is what comes behind it.
#[test]
fn what_cannot_be_written_again_is_told() {
    let (mut pair, one) = keeping();
    wrote(&mut pair, one, 0, b"ab");
    dies(&mut pair);
    pair.executes = false;
    pair.run(5 * MS);
    let work = pair.host.next_work(pair.now).expect("a write");
    pair.host.finish(work, Status::IoError);
    pair.executes = true;
    pair.run(5 * MS);
    assert!(pair.stands[&one].is_some_and(|kept| kept.is_lost));
    pair.ask(one, Op::Read, 0, 512);
    pair.run(5 * MS);
    assert_eq!(pair.finished(), [(0, Status::Ok, 0)], "others go on");
    assert_eq!(flushed(&mut pair, one), Status::IoError);
}

/// What is owed is written before the device is let go, and made stable with all that it has.
#[test]
fn a_device_is_released_when_all_is_there_again() {
    let (mut pair, one) = keeping();
    wrote(&mut pair, one, 0, b"abc");
    dies(&mut pair);
    pair.executes = false;
    pair.run(5 * MS);
    pair.client.release(one);
    pair.run(5 * MS);
    assert!(!pair.events.iter().any(|event| matches!(event, Event::Over { .. })));
    pair.executes = true;
    pair.run(50 * MS);
    assert_eq!(pair.events.last(), Some(&Event::Over { attachment: one, why: Over::Released }));
    assert_eq!((pair.disk[0], pair.stands[&one]), (b'c', None));
}

/// Who comes after a client that died has no copies of what that one wrote, until it has flushed.
#[test]
fn a_successor_has_nothing_of_what_was_before() {
    for flushes in [false, true] {
        let (mut pair, one) = keeping();
        wrote(&mut pair, one, 0, b"a");
        let standing = pair.stands[&one];
        pair.client = client(3, None);
        let one = pair.client.attach_again(KEEPING, standing).expect("a place");
        pair.greet();
        pair.run(3 * SECOND);
        wrote(&mut pair, one, 0, b"b");
        if flushes {
            assert_eq!(flushed(&mut pair, one), Status::Ok);
            wrote(&mut pair, one, 0, b"c");
        }
        dies(&mut pair);
        pair.run(50 * MS);
        let expected = if flushes { Status::Ok } else { Status::IoError };
        assert_eq!(flushed(&mut pair, one), expected);
        assert_eq!(pair.disk[0], if flushes { b'c' } else { 0 });
    }
}

/// What is left after a flush may be more than requests wait for: then the next one follows by itself.
#[test]
fn a_flush_that_is_not_enough_is_followed_by_another() {
    let (mut pair, one) = keeping();
    pair.executes = false;
    let mut waits = Vec::new();
    for round in 0..9 {
        for _ in 0..(if round == 8 { 7 } else { 1 }) {
            assert!(pair.client.may_submit(one, 0), "{round}");
            pair.write(one, 0, 1, 16 << 10);
        }
        for _ in 0..20 {
            pair.run(2 * MS);
            while let Some(work) = pair.host.next_work(pair.now) {
                if work.op == Op::Flush { waits.push(work) } else { pair.execute(work) }
            }
        }
        pair.finished();
    }
    assert_eq!((waits.len(), pair.client.outstanding(one)), (1, 0));
    waits.into_iter().for_each(|work| pair.execute(work));
    pair.executes = true;
    pair.run(10 * SECOND);
    assert!(pair.client.may_submit(one, 0), "held for ever");
}

/// The machine that was left may come back with all that it had, after another one has had a part of it.
#[test]
fn a_successor_does_not_believe_what_a_half_replay_left() {
    let (mut pair, one) = keeping();
    wrote(&mut pair, one, 0, b"ab");
    let at_a = pair.verifier;
    // A is cut off, lets go in order; B serves the same storage, with another boot.
    pair.verifier.boot += 1;
    let generation = pair.kept_generation;
    (pair.host, pair.is_cut) = (host(generation), [false; 2]);
    pair.greet();
    pair.executes = false;
    pair.run(5 * MS);
    let work = pair.host.next_work(pair.now).expect("a write");
    pair.execute(work);
    pair.run(5 * MS);
    // The client's daemon is killed, A is back.
    let standing = pair.stands[&one];
    pair.client = client(3, None);
    pair.verifier = at_a;
    let generation = pair.kept_generation;
    (pair.host, pair.is_cut) = (host(generation), [false; 2]);
    pair.executes = true;
    let one = pair.client.attach_again(KEEPING, standing).expect("a place");
    pair.greet();
    pair.run(3 * SECOND);
    let status = flushed(&mut pair, one);
    assert!(status != Status::Ok || pair.disk[0] == b'b', "{status:?} {}", pair.disk[0] as char);
}

/// Whoever accepts other contents owes them nothing of what was there before.
#[test]
fn other_contents_that_are_accepted_end_a_replay() {
    let (mut pair, one) = keeping();
    wrote(&mut pair, one, 0, b"ab");
    dies(&mut pair);
    pair.executes = false;
    pair.run(5 * MS);
    pair.verifier.contents += 1;
    dies(&mut pair);
    pair.run(50 * MS);
    let changed = Event::Refused { attachment: one, why: Refusal::Changed };
    assert_eq!(pair.events.last(), Some(&changed));
    pair.executes = true;
    pair.executed.clear();
    pair.write(one, 512, b'c', 512);
    pair.run(50 * MS);
    assert!(pair.executed.is_empty() && pair.finished().is_empty(), "{:?}", pair.executed);
    pair.client.accept(one);
    pair.run(50 * MS);
    assert_eq!((pair.finished(), pair.writes()), (vec![(99, Status::Ok, 0)], b"c".to_vec()));
    assert_eq!(flushed(&mut pair, one), Status::Ok);
    wrote(&mut pair, one, 512, b"de");
    dies(&mut pair);
    assert_eq!(flushed(&mut pair, one), Status::Ok, "what it wrote since is sent again");
    assert_eq!((pair.disk[0], pair.disk[512]), (0, b'e'));
    let stands = pair.stands[&one];
    assert!(
        stands.is_none_or(|one| !one.is_lost && one.verifier == Some(pair.verifier)),
        "{stands:?} {:?}",
        pair.verifier
    );
}

#[test]
fn a_flush_of_its_own_that_fails_is_told_by_the_next() {
    let (mut pair, one) = keeping();
    pair.executes = false;
    let mut failed = 0;
    for _ in 0..6 {
        pair.write(one, 0, 1, 16 << 10);
        for _ in 0..10 {
            pair.run(2 * MS);
            while let Some(work) = pair.host.next_work(pair.now) {
                if work.op == Op::Flush {
                    failed += 1;
                    pair.host.finish(work, Status::IoError);
                } else {
                    pair.execute(work)
                }
            }
        }
        pair.finished();
    }
    assert!(failed > 0);
    pair.executes = true;
    assert_eq!(flushed(&mut pair, one), Status::IoError, "nobody was told");
}

/// Not even for the moment until it is there again.
#[test]
fn what_was_stable_stays_what_it_is() {
    let (mut pair, one) = keeping();
    wrote(&mut pair, one, 0, b"a");
    let stable = request(Op::Write { sync: true }, 0, 512);
    pair.client
        .submit(one, stable, |into: &mut [u8]| {
            into.fill(b'S');
            true
        })
        .expect("a slot");
    pair.run(2 * MS);
    assert_eq!(pair.finished().len(), 1);
    pair.verifier.boot += 1;
    let generation = pair.kept_generation;
    (pair.host, pair.is_cut) = (host(generation), [false; 2]);
    pair.greet();
    pair.executes = false;
    pair.run(5 * MS);
    // Here the client's machine dies.
    while let Some(work) = pair.host.next_work(pair.now) {
        pair.execute(work);
    }
    assert_eq!(pair.disk[0] as char, 'S', "stable, and gone");
}

#[test]
fn what_is_over_holds_nothing() {
    let (mut pair, one) = keeping();
    pair.executes = false;
    let mut waits = Vec::new();
    for round in 0..9 {
        for _ in 0..(if round == 8 { 7 } else { 1 }) {
            pair.write(one, 0, 1, 16 << 10);
        }
        for _ in 0..20 {
            pair.run(2 * MS);
            while let Some(work) = pair.host.next_work(pair.now) {
                if work.op == Op::Flush { waits.push(work) } else { pair.execute(work) }
            }
        }
        pair.finished();
    }
    waits.into_iter().for_each(|work| pair.execute(work));
    pair.executes = true;
    pair.run(10 * MS);
    pair.host.remove(0);
    pair.run(100 * MS);
    assert!(pair.client.may_submit(one, 0), "over, and held all the same");
}
