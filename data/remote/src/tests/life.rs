//! Attachments from look to release, NICs beside disks, and what is bounded.

use super::*;

#[test]
fn a_look_changes_nothing_and_a_take_waits_for_the_release() {
    let (mut pair, one) = Pair::bound(10_000);
    let mut rogue = Rogue::new(&mut pair);
    let look = Bind { intent: Intent::Look, ..bind(1) };
    assert!(rogue.say(&mut pair, &[Record::Bind(look)]));
    assert!(rogue.heard[0].contains("Looked") && rogue.heard[0].contains("size: 65536"));
    assert!(rogue.say(&mut pair, &[Record::Bind(bind(2))]));
    pair.run(SECOND);
    rogue.hear(&mut pair);
    assert_eq!(rogue.heard.len(), 1, "it waits");
    pair.write(one, 0, b'a', 512);
    pair.client.release(one);
    let request = Request { op: Op::Flush, offset: 0, len: 0, tag: 0 };
    assert_eq!(pair.client.submit(one, request, &[]), Err(Rejected::Over));
    pair.run(50 * MS);
    assert!(pair.events.contains(&Event::Over { attachment: one, why: Over::Released }));
    assert_eq!(pair.finished().len(), 1, "ended, one way or the other");
    pair.now += MS;
    rogue.hear(&mut pair);
    assert!(pair.host.memory_used() > 0);
    // The old one may not come back with what it had.
    let old = Bind { intent: Intent::Again, generation: 1, instance: 1, ..bind(100) };
    let mut late = Rogue::new(&mut pair);
    assert!(late.say(&mut pair, &[Record::Bind(old)]));
    assert!(late.heard[0].contains("Stale"), "{:?}", late.heard);
}

/// What was released stays so, for a client that has not heard of it, too: nothing is executed again.
#[test]
fn a_release_that_was_not_heard_of_is_told_to_the_next_session() {
    let (mut pair, one) = Pair::bound(1000);
    pair.is_cut[1] = true;
    pair.write(one, 0, b'a', 512);
    pair.run(MS);
    pair.client.release(one);
    pair.run(3 * SECOND);
    assert_eq!((pair.writes(), pair.client.outstanding(one)), (b"a".to_vec(), 1));
    pair.is_cut[1] = false;
    pair.greet();
    pair.run(10 * MS);
    assert_eq!(pair.events.last(), Some(&Event::Over { attachment: one, why: Over::Released }));
    assert_eq!((pair.finished(), pair.writes()), (vec![(97, Status::IoError, 0)], b"a".to_vec()));
}

/// N15: a device that is removed while requests and news of it are on their way.
#[test]
fn n15_a_device_that_is_removed_ends_its_requests() {
    let (mut pair, one) = Pair::bound(10_000);
    pair.executes = false;
    pair.write(one, 0, b'a', 4096);
    pair.run(MS);
    pair.write(one, 0, b'b', 4096);
    pair.host.update(0, 1 << 20, 0);
    pair.host.remove(0);
    pair.host.update(0, 1 << 21, 0);
    pair.run(50 * MS);
    assert_eq!(pair.events.last(), Some(&Event::Over { attachment: one, why: Over::Revoked }));
    let finished = pair.finished();
    assert!(finished.len() == 2 && finished.iter().all(|one| one.1 == Status::IoError));
    assert_eq!(pair.writes(), []);
    let again = pair.client.attach(SPEC).expect("a place");
    pair.run(50 * MS);
    assert!(
        matches!(pair.events.last(), Some(Event::Refused { attachment, .. }) if *attachment == again)
    );
}

#[test]
fn all_operations_come_as_they_were_asked_for() {
    let (mut pair, one) = Pair::bound(10_000);
    let sync = Op::Write { sync: true };
    let request = Request { op: sync, offset: 1024, len: 4, tag: 7 };
    pair.client.submit(one, request, b"text").expect("a slot");
    pair.run(10 * MS);
    assert_eq!(pair.client.submit(one, request, b"four!"), Err(Rejected::Length));
    let ops = [
        (Op::Read, 1024, 4),
        (Op::Flush, 0, 0),
        (Op::Discard, 0, 65_536),
        (Op::WriteZeroes { unmap: true, sync: false }, 512, 512),
    ];
    for (op, offset, len) in ops {
        pair.ask(one, op, offset, len);
        pair.run(10 * MS);
    }
    let seen: Vec<_> = pair.executed.iter().map(|(op, offset, _)| (*op, *offset)).collect();
    assert_eq!(seen[0], (sync, 1024));
    assert_eq!(seen[1..], ops.map(|(op, offset, _)| (op, offset)));
    let finished = pair.finished();
    assert_eq!(finished.iter().map(|one| one.2).collect::<Vec<_>>(), [0, b't', 0, 0, 0]);
    // Beyond the end: answered, and not executed.
    pair.ask(one, Op::Read, SIZE as u64 - 511, 512);
    pair.ask(one, Op::Discard, u64::MAX, 512);
    pair.run(10 * MS);
    assert_eq!(pair.finished(), [(0, Status::IoError, 0); 2]);
    assert_eq!(pair.executed.len(), 5);
}

#[test]
fn frames_of_nics_are_sent_once_and_bounded_beside_requests() {
    let (mut pair, one) = Pair::bound(10_000);
    assert!(pair.client.send_net(one, b"to the host"));
    assert!(pair.host.send_net(0, b"to the client"));
    pair.run(10 * MS);
    assert_eq!(pair.net, [b"to the host".to_vec(), b"to the client".to_vec()]);
    assert!(!pair.client.send_net(one, &[0; 2000]), "longer than a frame");
    // Nobody repeats what was lost; what finds no room is dropped and counted.
    pair.is_cut[0] = true;
    let kept = (0..200).filter(|_| pair.client.send_net(one, &[1; 1000])).count();
    assert_eq!((kept, pair.client.counts().net_dropped), (64, 137));
    pair.run(100 * MS);
    pair.is_cut[0] = false;
    pair.run(SECOND);
    assert_eq!(pair.net.len(), 2 + pair.net[2..].len());
    assert!(pair.net.len() < 2 + 64, "those that were lost stay lost");
    // Beside a flood of them requests go on.
    for round in 0..50 {
        while pair.client.send_net(one, &[2; 1300]) {}
        pair.write(one, 0, round, 16 << 10);
        pair.run(20 * MS);
        assert!(pair.finished().iter().all(|one| one.1 == Status::Ok));
    }
    assert!(pair.writes().len() > 40, "{} of 50", pair.writes().len());
}

#[test]
fn a_client_sends_at_most_32_frames_at_one_time() {
    let (mut pair, one) = Pair::bound(10_000);
    for round in 0..100 {
        pair.write(one, 0, round, 16 << 10);
        pair.run(10 * MS);
        pair.finished();
    }
    for byte in 0..8 {
        pair.write(one, 0, byte, 16 << 10);
    }
    pair.now += MS;
    let mut buffer = [0; 2000];
    let count = std::iter::from_fn(|| pair.client.poll_transmit(pair.now, &mut buffer)).count();
    assert_eq!(count, 32);
    pair.now += MS;
    assert!(pair.client.poll_transmit(pair.now, &mut buffer).is_some());
}
