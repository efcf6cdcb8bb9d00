//! Data that was acknowledged and lost, written twice, or late: what must not happen when IOhosts, storage and
//! clients change places.

use super::*;

/// What was executed in one boot of the storage, and not heard of, is executed again in the next: it may be gone.
#[test]
fn slots_are_kept_within_one_boot_only() {
    for (is_crash, syncs, executed) in
        [(false, true, &b"a"[..]), (true, true, b"aa"), (false, false, b"aa")]
    {
        let (mut pair, one) = Pair::bound(1000);
        (pair.is_cut[1], pair.syncs) = (true, syncs);
        pair.write(one, 0, b'a', 512);
        pair.run(3 * SECOND);
        assert_eq!(pair.writes(), b"a", "and the client has heard nothing");
        if is_crash {
            pair.verifier.boot += 1;
            pair.disk.fill(0);
        }
        pair.is_cut[1] = false;
        pair.greet();
        pair.run(50 * MS);
        pair.ask(one, Op::Flush, 0, 0);
        pair.run(10 * MS);
        assert_eq!(pair.finished(), [(97, Status::Ok, 0), (0, Status::Ok, 0)]);
        assert_eq!((pair.writes(), pair.disk[0]), (executed.to_vec(), b'a'));
    }
}

/// A device that could not be synced when it was let go has lost what it acknowledged: the next flush says so.
#[test]
fn a_device_that_was_let_go_without_a_sync_fails_the_next_flush() {
    let (mut pair, one) = Pair::bound(1000);
    pair.write(one, 0, b'a', 512);
    pair.run(10 * MS);
    assert_eq!(pair.finished(), [(97, Status::Ok, 0)]);
    (pair.is_cut, pair.syncs) = ([true; 2], false);
    pair.run(3 * SECOND);
    (pair.is_cut, pair.syncs) = ([false; 2], true);
    pair.greet();
    pair.run(50 * MS);
    pair.ask(one, Op::Flush, 0, 0);
    pair.run(10 * MS);
    assert_eq!(pair.finished(), [(0, Status::IoError, 0)]);
}

/// What was read and not heard of is read again when the memory for it has gone; what was written is not written.
#[test]
fn a_read_whose_bytes_are_gone_is_read_again() {
    let (mut pair, one) = Pair::bound(1000);
    pair.is_cut[1] = true;
    pair.write(one, 0, b'a', 8192);
    pair.run(MS);
    pair.ask(one, Op::Read, 0, 8192);
    pair.run(3 * SECOND);
    assert_eq!((pair.executed.len(), pair.host.memory_used()), (2, 0));
    pair.is_cut[1] = false;
    pair.greet();
    pair.run(50 * MS);
    let mut finished = pair.finished();
    finished.sort_by_key(|one| one.0);
    assert_eq!(finished, [(0, Status::Ok, b'a'), (97, Status::Ok, 0)]);
    let ops: Vec<_> = pair.executed.iter().map(|(op, ..)| *op).collect();
    assert_eq!(ops, [Op::Write { sync: false }, Op::Read, Op::Read]);
    // The slots go on.
    for byte in 0..20 {
        pair.write(one, 0, byte, 512);
        pair.run(5 * MS);
        assert_eq!(pair.finished().len(), 1);
    }
    assert_eq!(pair.host.counts().violations, 0);
}

/// A client that was here, elsewhere, and here again: the turns of the slots that are still here are another count.
#[test]
fn slots_of_before_mean_nothing_to_a_client_that_was_elsewhere() {
    let (mut pair, one) = Pair::bound(1000);
    for byte in 0..10 {
        pair.write(one, 0, byte, 512);
        pair.run(5 * MS);
        pair.finished();
    }
    pair.is_cut = [true; 2];
    pair.run(3 * SECOND);
    pair.is_cut = [false; 2];
    let here = std::mem::replace(&mut pair.host, host(1));
    pair.greet();
    pair.run(20 * MS);
    for byte in 20..29 {
        pair.write(one, 0, byte, 512);
        pair.run(5 * MS);
        assert_eq!(pair.finished().len(), 1);
    }
    pair.host = here;
    pair.write(one, 4096, b'W', 512);
    pair.greet();
    pair.run(50 * MS);
    assert_eq!(pair.finished(), [(87, Status::Ok, 0)]);
    assert_eq!((pair.writes().last(), pair.disk[4096]), (Some(&b'W'), b'W'));
}

/// What goes to the disk at the very end of the lease may be executed for as long as the IOhost said, and only
/// then it may be said to have failed; what waits longer does not go there.
#[test]
fn n9_a_request_fails_only_when_its_execution_must_be_over() {
    let mut pair = Pair::new(1000);
    pair.client = client(2, Some(0));
    pair.work_ms = 5000;
    let one = pair.client.attach(SPEC).expect("a place");
    pair.greet();
    pair.run(3 * SECOND);
    pair.executes = false;
    pair.write(one, 0, b'a', 512);
    pair.write(one, 512, b'b', 512);
    pair.run(10 * MS);
    let first = pair.host.next_work(pair.now).expect("a write");
    let second = pair.host.next_work(pair.now).expect("another one");
    assert!(pair.host.may_go(&first, pair.now));
    let heard_at = pair.now;
    assert!(
        !pair.host.may_go(&first, heard_at + SECOND),
        "whoever asks, and nobody else has looked"
    );
    pair.is_cut = [true; 2];
    pair.run(2 * SECOND);
    // The second one waited in the IOhost, and comes to the disk too late.
    assert!(!pair.host.may_go(&second, pair.now));
    pair.host.withdraw(second);
    pair.run(4 * SECOND);
    assert_eq!(pair.finished(), [], "the first one may still be executed");
    pair.execute(first);
    pair.run(SECOND);
    let failed = pair.finished();
    assert!(failed.len() == 2 && failed.iter().all(|one| one.1 == Status::IoError));
    assert!(pair.now >= heard_at + (1000 + 5000) * 9 / 8 * MS);
    assert_eq!(pair.writes(), b"a");
}

/// What is not executed goes back: it comes again while its client is there, and was never seen when it is not.
#[test]
fn a_request_that_was_withdrawn_is_executed_later_and_once() {
    let (mut pair, one) = Pair::bound(1000);
    pair.executes = false;
    pair.write(one, 0, b'a', 512);
    pair.run(10 * MS);
    let work = pair.host.next_work(pair.now).expect("a write");
    pair.host.withdraw(work);
    let work = pair.host.next_work(pair.now).expect("it comes again");
    pair.is_cut = [true; 2];
    pair.run(3 * SECOND);
    pair.host.withdraw(work);
    (pair.is_cut, pair.executes) = ([false; 2], true);
    pair.greet();
    pair.run(50 * MS);
    assert_eq!((pair.finished(), pair.writes()), (vec![(97, Status::Ok, 0)], b"a".to_vec()));
}

/// A new session with a shorter lease says nothing of an older one, which may live for as long as it was told.
#[test]
fn n9_the_longest_lease_that_may_still_live_counts() {
    let mut pair = Pair::new(10_000);
    pair.client = client(2, Some(0));
    let one = pair.client.attach(SPEC).expect("a place");
    pair.greet();
    pair.run(15 * SECOND);
    pair.keeps[0] = true;
    pair.write(one, 0, b'a', 512);
    pair.run(MS);
    let late = std::mem::take(&mut pair.kept[0]);
    (pair.is_cut, pair.keeps[0], pair.lease_ms) = ([true; 2], false, 100);
    pair.greet();
    pair.run(8 * SECOND);
    assert_eq!(pair.finished(), []);
    late.iter().for_each(|frame| {
        pair.host.receive(pair.now, &mut frame.clone(), &mut |_, _| {});
    });
    pair.work();
    assert_eq!(pair.writes(), b"a", "the old session lives");
    pair.run(4 * SECOND);
    assert_eq!(pair.finished(), [(97, Status::IoError, 0)]);
}

/// Slots are not forgotten for somebody who then cannot have the device.
#[test]
fn who_finds_no_memory_does_not_make_others_write_twice() {
    let mut pair = Pair::new(1000);
    pair.host = host_of(HostSpec { memory_max: 150 << 10, ..HOST });
    let one = pair.client.attach(SPEC).expect("a place");
    pair.greet();
    pair.run(10 * MS);
    pair.is_cut[1] = true;
    pair.write(one, 0, b'a', 512);
    pair.run(3 * SECOND);
    let mut rogue = Rogue::new(&mut pair);
    let large = Bind { slots: 256, slot_bytes: 128 << 10, ..bind(1) };
    rogue.say(&mut pair, &[Record::Bind(large)]);
    rogue.say(&mut pair, &[Record::Ping]);
    assert!(rogue.heard[0].contains("Busy"), "{:?}", rogue.heard);
    pair.is_cut[1] = false;
    pair.greet();
    pair.run(50 * MS);
    assert_eq!((pair.finished(), pair.writes()), (vec![(97, Status::Ok, 0)], b"a".to_vec()));
}

/// A request that came before its device shrank is not handed out.
#[test]
fn n14_what_is_beyond_a_device_that_shrank_is_not_executed() {
    let (mut pair, one) = Pair::bound(1000);
    pair.executes = false;
    pair.write(one, 32 << 10, b'a', 512);
    pair.write(one, 0, b'b', 512);
    pair.run(5 * MS);
    pair.host.update(0, 4096, 0);
    pair.executes = true;
    pair.run(5 * MS);
    let mut finished = pair.finished();
    finished.sort_by_key(|one| one.0);
    assert_eq!(finished, [(97, Status::IoError, 0), (98, Status::Ok, 0)]);
    assert_eq!(pair.writes(), b"b");
}

/// The lease counts from before the answer to the hello was sent, however long the greeter took.
#[test]
fn a_lease_begins_before_its_session_is_answered() {
    let mut pair = Pair::new(1000);
    let (at_client, at_host) = pair.established();
    pair.now += 900 * MS;
    assert!(pair.host.establish(at_host));
    let mut rogue = Rogue { session: session_of(at_client, pair.now), heard: Vec::new() };
    let mut frame = rogue.frame(pair.now, &[Record::Ping]);
    assert!(pair.host.receive(pair.now, &mut frame, &mut |_, _| {}));
    // The first one is twice as long.
    pair.host.tick(pair.now + 1099 * MS);
    assert_eq!(pair.host.counts().leases_over, 0);
    pair.host.tick(pair.now + 1100 * MS);
    assert_eq!(pair.host.counts().leases_over, 1);
}

/// The generation that this IOhost would give was given by another one, which is found out only under the lock.
#[test]
fn a_generation_that_another_iohost_gave_is_not_given_twice() {
    let mut pair = Pair::new(1000);
    pair.kept_generation = 1;
    pair.client.attach(SPEC).expect("a place");
    pair.greet();
    pair.run(50 * MS);
    assert!(matches!(pair.events[..], [Event::Bound { generation: 2, .. }]), "{:?}", pair.events);
}

/// Another IOhost has served the device since: what it kept is believed, and nothing older comes back.
#[test]
fn a_generation_that_is_kept_elsewhere_counts() {
    let (mut pair, one) = Pair::bound(1000);
    pair.is_cut = [true; 2];
    pair.run(3 * SECOND);
    pair.is_cut = [false; 2];
    pair.host.raise(0, 7);
    pair.greet();
    pair.run(50 * MS);
    assert_eq!(pair.events.last(), Some(&Event::Over { attachment: one, why: Over::Taken }));
    let again = pair.client.attach(SPEC).expect("a place");
    pair.run(50 * MS);
    let is_it = |event: &Event| matches!(event, Event::Bound { attachment, generation: 8, .. } if *attachment == again);
    assert!(pair.events.iter().any(is_it), "{:?}", pair.events);
}
