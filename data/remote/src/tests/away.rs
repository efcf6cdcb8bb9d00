//! Ends and wires that go away: leases, new sessions, what is asked again and what is not.

use super::*;

/// N9, and a write that failed must not land later: what was kept on the way for as long as one likes does
/// nothing after the client has said that it failed.
#[test]
fn n9_a_write_that_failed_never_lands() {
    for is_new_session in [false, true] {
        let (mut pair, one) = Pair::bound(1000);
        pair.client = client(2, Some(1200 * MS));
        let one = pair.client.attach(AttachSpec { ..SPEC }).unwrap_or(one);
        pair.greet();
        pair.run(2 * SECOND);
        pair.keeps = [true, false];
        pair.write(one, 0, b'a', 4096);
        pair.run(SECOND + 199 * MS);
        assert_eq!(pair.finished(), [], "not before T2");
        // It hears the IOhost until that one's lease is over.
        pair.run(SECOND + 200 * MS);
        assert_eq!(pair.finished(), [(97, Status::IoError, 0)]);
        assert!(
            pair.events.iter().any(|event| matches!(event, Event::Over { why: Over::Silent, .. }))
        );
        pair.keeps = [false, false];
        if is_new_session {
            pair.client.detach(one);
            let again = pair.client.attach(SPEC).expect("a place");
            pair.greet();
            pair.run(10 * MS);
            pair.write(again, 0, b'b', 4096);
        }
        for frame in std::mem::take(&mut pair.kept[0]) {
            pair.give_host(&frame);
        }
        pair.run(2 * SECOND);
        assert_eq!(pair.writes(), if is_new_session { &b"b"[..] } else { b"" });
    }
}

/// The lease counts from when a frame was sent: pings that come late, one after the other, prolong nothing.
#[test]
fn late_frames_do_not_prolong_a_lease() {
    let (mut pair, one) = Pair::bound(1000);
    pair.run(100 * MS);
    let cut_at = pair.now;
    // From now on the client hears nothing; what it sends comes, and one write is late.
    pair.is_cut[1] = true;
    pair.keeps[0] = true;
    pair.write(one, 0, b'a', 512);
    pair.run(MS);
    let write = std::mem::take(&mut pair.kept[0]);
    pair.keeps[0] = false;
    // The last frame that was acknowledged may be an eighth of the lease old.
    pair.run(870 * MS);
    assert_eq!(pair.host.counts().leases_over, 0);
    pair.run(130 * MS);
    assert_eq!(pair.host.counts().leases_over, 1, "{} after", pair.now - cut_at);
    // It was retransmitted and executed meanwhile, once; the late one does nothing.
    write.iter().for_each(|frame| pair.give_host(frame));
    pair.step();
    assert_eq!(pair.writes(), b"a");
}

/// N18: two sessions at a time; when one has what the other had, only its frames count.
#[test]
fn n18_frames_of_the_old_keys_count_until_the_new_ones_have_bound() {
    let (mut pair, one) = Pair::bound(10_000);
    pair.keeps[0] = true;
    pair.write(one, 0, b'a', 512);
    pair.write(one, 512, b'b', 512);
    pair.run(MS);
    let old = std::mem::take(&mut pair.kept[0]);
    pair.keeps[0] = false;
    pair.greet();
    // The new session is there, and has bound nothing yet.
    pair.give_host(&old[0]);
    pair.step();
    assert_eq!(pair.writes(), b"ab");
    pair.run(50 * MS);
    assert_eq!(pair.finished().len(), 2, "they were recalled, and not sent again");
    pair.write(one, 0, b'c', 512);
    pair.run(10 * MS);
    assert_eq!(pair.writes(), b"abc");
    old.iter().for_each(|frame| pair.give_host(frame));
    pair.step();
    assert_eq!(pair.writes(), b"abc", "after that old ones do nothing");
}

/// What was executed is told, and only what was never seen is sent again.
#[test]
fn binding_again_sends_only_what_was_never_seen() {
    let (mut pair, one) = Pair::bound(1000);
    pair.is_cut[1] = true;
    pair.write(one, 0, b'a', 8192);
    pair.run(MS);
    pair.is_cut[0] = true;
    pair.write(one, 8192, b'b', 8192);
    pair.ask(one, Op::Read, 0, 8192);
    pair.run(3 * SECOND);
    assert!(pair.client.wants_session(pair.now));
    pair.is_cut = [false; 2];
    pair.keeps[0] = true;
    pair.greet();
    pair.run(MS);
    let mut bytes = 0;
    for _ in 0..200 {
        let frames = std::mem::take(&mut pair.kept[0]);
        pair.keeps[0] = false;
        bytes += frames.iter().map(Vec::len).sum::<usize>();
        frames.iter().for_each(|frame| pair.give_host(frame));
        pair.keeps[0] = true;
        pair.run(MS / 10);
    }
    let mut finished = pair.finished();
    finished.sort_by_key(|one| one.0);
    assert_eq!(finished, [(0, Status::Ok, b'a'), (97, Status::Ok, 0), (98, Status::Ok, 0)]);
    assert_eq!(pair.writes(), b"ab", "each once");
    assert!((8192..12_000).contains(&bytes), "{bytes} bytes: one of the writes, not both");
}

/// An IOhost that died: once more, oldest first; acknowledged writes that may be gone fail the next flush for good.
#[test]
fn after_another_boot_the_next_flush_fails_for_good() {
    for (is_flushed, boot, expected) in
        [(false, 1, Status::Ok), (false, 2, Status::IoError), (true, 2, Status::Ok)]
    {
        let (mut pair, one) = Pair::bound(1000);
        pair.write(one, 0, b'a', 512);
        pair.run(10 * MS);
        if is_flushed {
            pair.ask(one, Op::Flush, 0, 0);
            pair.run(10 * MS);
        }
        assert_eq!(pair.finished().len(), 1 + usize::from(is_flushed));
        pair.host = host(0);
        pair.verifier.boot = boot;
        pair.write(one, 0, b'b', 512);
        pair.write(one, 0, b'c', 512);
        pair.greet();
        pair.run(10 * MS);
        assert_eq!(pair.finished().len(), 2);
        assert_eq!(pair.writes(), b"abc", "in order");
        for _ in 0..2 {
            pair.ask(one, Op::Flush, 0, 0);
            pair.run(10 * MS);
            assert_eq!(pair.finished(), [(0, expected, 0)], "{is_flushed} {boot}");
        }
    }
}

/// An IOhost that began anew said so, and nobody heard it: it says so again (seed 13580).
#[test]
fn slots_that_began_anew_are_told_until_the_client_knows() {
    let (mut pair, one) = Pair::bound(1000);
    for byte in 0..20 {
        pair.write(one, 0, byte, 512);
        pair.run(5 * MS);
        pair.finished();
    }
    pair.host = host(1);
    pair.write(one, 0, b'a', 512);
    for _ in 0..3 {
        pair.is_cut[1] = true;
        pair.greet();
        pair.run(10 * MS);
    }
    pair.is_cut[1] = false;
    pair.greet();
    pair.run(50 * MS);
    assert_eq!((pair.finished(), pair.host.counts().violations), (vec![(97, Status::Ok, 0)], 0));
    assert_eq!(pair.writes().last(), Some(&b'a'));
}

/// N14: another device or other contents under the same name; a device that has shrunk.
#[test]
fn n14_other_contents_are_asked_for_nothing() {
    let (mut pair, one) = Pair::bound(1000);
    pair.host = host(0);
    pair.verifier.contents += 1;
    pair.write(one, 0, b'a', 512);
    pair.greet();
    pair.run(10 * MS);
    let changed = Event::Refused { attachment: one, why: Refusal::Changed };
    assert_eq!(pair.events.last(), Some(&changed));
    assert_eq!((pair.finished(), pair.writes()), (vec![], vec![]));
    let (mut pair, one) = Pair::bound(1000);
    pair.host.update(0, SIZE as u64 * 2, 4);
    pair.run(10 * MS);
    let news = |revision, size, features| News { revision, size, features, is_removed: false };
    let grown = news(2, SIZE as u64 * 2, 4);
    assert_eq!(pair.events.last(), Some(&Event::News { attachment: one, news: grown }));
    pair.write(one, 0, b'a', 512);
    pair.host.update(0, SIZE as u64, 4);
    pair.run(10 * MS);
    let request = Request { op: Op::Read, offset: 0, len: 512, tag: 0 };
    assert_eq!(pair.client.submit(one, request, |_| false), Err(Rejected::Over));
    assert_eq!(pair.finished(), [(97, Status::Ok, 0)], "what was asked before is answered");
}

/// N19: a client that slept, and clocks that jump: only differences of one end's own time are used.
#[test]
fn n19_a_client_that_slept_ten_minutes_goes_on() {
    let (mut pair, one) = Pair::bound(10_000);
    pair.write(one, 0, b'a', 4096);
    // The host goes on without it.
    for _ in 0..600 {
        pair.now += SECOND;
        pair.host.tick(pair.now);
        pair.work();
    }
    assert_eq!(pair.host.counts().leases_over, 1);
    pair.step();
    assert!(pair.client.wants_session(pair.now));
    pair.greet();
    pair.run(20 * MS);
    assert_eq!((pair.finished(), pair.writes()), (vec![(97, Status::Ok, 0)], b"a".to_vec()));
}

/// N20: a link that flaps ten times a second, and sends that fail: counters are spent, and nothing is lost.
#[test]
fn n20_a_flapping_link_and_another_frame_size_lose_nothing() {
    let (mut pair, one) = Pair::bound(10_000);
    for round in 0..40u8 {
        pair.write(one, u64::from(round % 4) * 8192, round, 8192);
        pair.is_cut = [round % 2 == 0; 2];
        pair.run(50 * MS);
        if round == 20 {
            // A session with frames of another size.
            pair.frame_bytes = 700;
            pair.is_cut = [false; 2];
            pair.greet();
        }
        assert!(pair.finished().iter().all(|one| one.1 == Status::Ok));
    }
    pair.is_cut = [false; 2];
    pair.run(3 * SECOND);
    assert!(pair.finished().iter().all(|one| one.1 == Status::Ok));
    assert_eq!(pair.client.outstanding(one), 0);
    let mut writes = pair.writes();
    writes.sort_unstable();
    assert_eq!(writes, (0..40).collect::<Vec<_>>(), "each once");
}
