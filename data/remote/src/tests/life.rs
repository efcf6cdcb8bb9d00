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
    assert_eq!(pair.client.submit(one, request, |_| false), Err(Rejected::Over));
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
    let text = |into: &mut [u8]| {
        into.copy_from_slice(b"text");
        true
    };
    pair.client.submit(one, request, text).expect("a slot");
    pair.run(10 * MS);
    for len in [0, SPEC.slot_bytes + 1] {
        let request = Request { len, ..request };
        assert_eq!(pair.client.submit(one, request, |_| true), Err(Rejected::Length));
    }
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
    assert!(!pair.client.send_net(one, &[0; 10_000]), "longer than a frame");
    // Nobody repeats what was lost; what finds no room is dropped and counted.
    pair.is_cut[0] = true;
    let kept = (0..400).filter(|_| pair.client.send_net(one, &[1; 1000])).count();
    assert_eq!((kept, pair.client.counts().net_dropped), (256, 145));
    pair.run(100 * MS);
    pair.is_cut[0] = false;
    pair.run(SECOND);
    assert_eq!(pair.net.len(), 2 + pair.net[2..].len());
    assert!(pair.net.len() < 2 + 256, "those that were lost stay lost");
    // Beside a flood of them requests go on.
    for round in 0..50 {
        while pair.client.send_net(one, &[2; 1300]) {}
        pair.write(one, 0, round, 16 << 10);
        pair.run(20 * MS);
        assert!(pair.finished().iter().all(|one| one.1 == Status::Ok));
    }
    assert!(pair.writes().len() > 40, "{} of 50", pair.writes().len());
}

/// A frame that is longer than a datagram goes in several, and comes whole, once, and in order.
#[test]
fn frames_of_nics_have_any_length() {
    let (mut pair, one) = Pair::bound(10_000);
    let lengths = [1, 14, 60, 1360, 1400, 1408, 1409, 1514, 1518, 4096, 9018, 9024];
    let mut sent = Vec::new();
    for (turn, len) in lengths.into_iter().cycle().take(600).enumerate() {
        let frame: Vec<u8> = (0..len).map(|at| (at + turn * 7) as u8).collect();
        let is_sent = match turn % 2 {
            0 => pair.client.send_net(one, &frame),
            _ => pair.host.send_net(0, &frame),
        };
        assert!(is_sent, "{turn}");
        sent.push(frame);
        if turn % 2 == 1 {
            pair.run(5 * MS);
        }
    }
    pair.run(100 * MS);
    assert_eq!(pair.net.len(), sent.len());
    for (from, came) in sent.chunks(2).zip(pair.net.chunks(2)) {
        assert!(from == came || from[0] == came[1] && from[1] == came[0]);
    }
    assert!(pair.assemblies.iter().all(|assembly| assembly.lost() == 0));
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

/// A write whose bytes cannot be had is not taken: neither a slot nor a turn of it is used.
#[test]
fn a_write_that_is_not_filled_changes_nothing() {
    let (mut pair, one) = Pair::bound(10_000);
    let request = Request { op: Op::Write { sync: false }, offset: 0, len: 512, tag: 1 };
    for _ in 0..2 * SPEC.slots {
        let mut asked = 0;
        let refused = pair.client.submit(one, request, |into| {
            asked = into.len();
            false
        });
        assert_eq!((refused, asked), (Err(Rejected::Unfilled), 512));
    }
    assert_eq!(pair.client.outstanding(one), 0);
    (0..SPEC.slots).for_each(|byte| pair.write(one, 0, byte as u8, 512));
    assert_eq!(pair.client.submit(one, request, |_| true), Err(Rejected::Full));
    pair.run(10 * MS);
    assert_eq!((pair.writes().len(), pair.finished().len()), (8, 8));
}

/// A destination that waits for a device and gives up: it is not granted to nobody, and the source goes on.
#[test]
fn who_waits_no_longer_does_not_get_the_device() {
    for is_late in [false, true] {
        let (mut pair, one) = Pair::bound(1000);
        let mut rogue = Rogue::new(&mut pair);
        rogue.say(&mut pair, &[Record::Bind(bind(1))]);
        if !is_late {
            rogue.say(&mut pair, &[Record::Release { handle: HANDLE }]);
        }
        // The link of the source is away for longer than its lease; the rogue's session lives.
        pair.is_cut = [true; 2];
        for _ in 0..40 {
            pair.run(50 * MS);
            rogue.say(&mut pair, &[Record::Ping]);
        }
        pair.is_cut = [false; 2];
        pair.write(one, 0, b'a', 512);
        pair.greet();
        pair.run(50 * MS);
        let is_over = pair.events.contains(&Event::Over { attachment: one, why: Over::Taken });
        assert_eq!(is_over, is_late, "{:?}", pair.events);
        assert_eq!(pair.writes().len(), usize::from(!is_late));
    }
}

/// The client says so when it forgets what it has asked for, and when it is given that nevertheless.
#[test]
fn a_client_gives_back_what_it_does_not_want() {
    for is_overtaken in [false, true] {
        let mut pair = Pair::new(10_000);
        let one = pair.client.attach(SPEC).expect("a place");
        pair.greet();
        // What it is told never comes; or its bind comes after the end of it.
        (pair.keeps[0], pair.is_cut[1]) = (is_overtaken, !is_overtaken);
        pair.run(MS);
        pair.client.detach(one);
        pair.run(MS);
        pair.keeps[0] = false;
        for frame in std::mem::take(&mut pair.kept[0]).iter().rev() {
            pair.give_host(frame);
        }
        assert_eq!(pair.executed, []);
        pair.run(50 * MS);
        assert_eq!(pair.host.memory_used(), 0, "nobody has it");
        pair.is_cut = [false; 2];
        let other = pair.client.attach(SPEC).expect("a place");
        pair.run(SECOND);
        pair.write(other, 0, b'a', 512);
        pair.run(50 * MS);
        assert_eq!((pair.finished().len(), pair.writes()), (1, b"a".to_vec()));
    }
}

/// A bind that comes once more, after a later one of the same place: it is the later one that waits.
#[test]
fn an_older_bind_that_comes_again_changes_nothing() {
    let (mut pair, one) = Pair::bound(10_000);
    let mut rogue = Rogue::new(&mut pair);
    for binding in [5, 4, 5] {
        assert!(rogue.say(&mut pair, &[Record::Bind(bind(binding))]));
    }
    pair.client.release(one);
    pair.run(50 * MS);
    // What it was told meanwhile got lost, and is told again.
    (0..300).for_each(|_| assert!(rogue.say(&mut pair, &[Record::Ping])));
    let told: Vec<_> = rogue.heard.iter().filter(|told| told.contains("Bound")).collect();
    assert!(told.len() == 1 && told[0].contains("binding: 5"), "{:?}", rogue.heard);
}

/// N15: who waits for a device that is removed hears of it.
#[test]
fn n15_who_waits_for_a_device_that_is_removed_is_told() {
    let (mut pair, _) = Pair::bound(10_000);
    let mut rogue = Rogue::new(&mut pair);
    rogue.say(&mut pair, &[Record::Bind(bind(1))]);
    pair.host.remove(0);
    rogue.say(&mut pair, &[Record::Ping]);
    rogue.say(&mut pair, &[Record::Ping]);
    assert!(rogue.heard[0].contains("NoDevice"), "{:?}", rogue.heard);
}

/// An end that comes twice is told once.
#[test]
fn an_attachment_is_over_once() {
    let (mut pair, one) = Pair::bound(1000);
    pair.keeps[1] = true;
    pair.client.release(one);
    pair.run(200 * MS);
    pair.keeps[1] = false;
    for frame in std::mem::take(&mut pair.kept[1]) {
        pair.give_client(&frame);
    }
    pair.step();
    let overs = pair.events.iter().filter(|event| matches!(event, Event::Over { .. })).count();
    assert_eq!(overs, 1, "{:?}", pair.events);
}

/// What was asked for only now has not heard nothing for long.
#[test]
fn a_new_attachment_after_a_long_silence_waits_its_own_time() {
    let mut pair = Pair::new(1000);
    pair.client = client(2, Some(1200 * MS));
    let one = pair.client.attach(SPEC).expect("a place");
    pair.greet();
    pair.run(3 * SECOND);
    pair.is_cut = [true; 2];
    pair.run(3 * SECOND);
    assert_eq!(pair.events.last(), Some(&Event::Over { attachment: one, why: Over::Silent }));
    pair.client.detach(one);
    pair.events.clear();
    pair.client.attach(SPEC).expect("a place");
    pair.run(SECOND);
    assert_eq!(pair.events, []);
    pair.run(SECOND);
    let over = Event::Over { attachment: one, why: Over::Silent };
    assert_eq!(pair.events, [over], "once");
    pair.run(5 * SECOND);
    assert_eq!(pair.events, [over], "and no more");
    // Beside one that has waited for long already, too.
    pair.client.detach(one);
    let older = pair.client.attach(SPEC).expect("a place");
    pair.run(SECOND);
    let newer = pair.client.attach(SPEC).expect("another one");
    pair.events.clear();
    pair.run(SECOND);
    assert_eq!(pair.events, [Event::Over { attachment: older, why: Over::Silent }]);
    pair.run(SECOND);
    assert_eq!(pair.events.last(), Some(&Event::Over { attachment: newer, why: Over::Silent }));
}

/// Both ends tell when a session begins and ends; at the host it begins when its client has shown its keys.
#[test]
fn sessions_are_told_of() {
    let mut pair = Pair::new(1000);
    pair.is_cut[0] = true;
    pair.greet();
    pair.run(10 * MS);
    assert_eq!(pair.sessions, [vec![true], vec![]]);
    pair.is_cut[0] = false;
    pair.run(500 * MS);
    assert_eq!(pair.sessions, [vec![true], vec![true]]);
    pair.greet();
    pair.run(500 * MS);
    pair.is_cut = [true; 2];
    pair.run(3 * SECOND);
    assert_eq!(pair.sessions, [vec![true, true, false], vec![true, true, false, false]]);
}
