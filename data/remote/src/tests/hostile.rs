//! Clients and networks that lie, within frames that are sealed as they should be.

use super::*;
use crate::wire::{Bound, Outcome};

/// N1: who has no session gets nothing done, at the cost of one look.
#[test]
fn n1_a_frame_of_no_session_is_dropped() {
    let (mut pair, _) = Pair::bound(10_000);
    let mut rogue = Rogue::new(&mut pair);
    let frame = rogue.frame(pair.now, &[Record::Ping]);
    let before = pair.host.counts().frames_dropped;
    for session in [0, 1, 0xffff_ffff, 0x0001_0000] {
        let mut forged = frame.clone();
        forged[4..8].copy_from_slice(&u32::to_le_bytes(session));
        assert!(!pair.host.receive(pair.now, &mut forged, &mut |_, _| {}));
    }
    let mut forged = frame.clone();
    forged[8] ^= 1;
    assert!(!pair.host.receive(pair.now, &mut forged, &mut |_, _| {}), "another counter");
    assert_eq!(pair.host.counts().frames_dropped, before + 5);
    assert!(pair.host.receive(pair.now, &mut frame.clone(), &mut |_, _| {}));
    assert!(!pair.host.receive(pair.now, &mut frame.clone(), &mut |_, _| {}), "N2: again");
}

/// N3: a write that comes again after a newer one was acknowledged.
#[test]
fn n3_a_late_write_does_not_overwrite_a_newer_one() {
    let (mut pair, one) = Pair::bound(10_000);
    pair.keeps[0] = true;
    pair.write(one, 0, b'a', 4096);
    pair.run(MS);
    pair.keeps[0] = false;
    // The first try never came; the second one does.
    pair.run(100 * MS);
    assert_eq!(pair.finished(), [(97, Status::Ok, 0)]);
    pair.write(one, 0, b'b', 4096);
    pair.run(10 * MS);
    assert_eq!(pair.finished(), [(98, Status::Ok, 0)]);
    for frame in std::mem::take(&mut pair.kept[0]) {
        pair.give_host(&frame);
        pair.give_host(&frame);
    }
    pair.run(10 * MS);
    assert_eq!(pair.writes(), b"ab");
    assert_eq!(pair.disk[..4096], [b'b'; 4096]);
    assert!(pair.host.counts().records_stale > 0, "they came");
}

/// N4: the same slot and turn with another payload: the first one stands, and it is counted.
#[test]
fn n4_the_first_payload_of_a_turn_stands() {
    let mut pair = Pair::new(10_000);
    let mut rogue = Rogue::bound(&mut pair);
    let part_bytes = rogue.session.part_bytes;
    let (first, other) = (vec![1; 2 * part_bytes], vec![2; 2 * part_bytes]);
    let len = first.len() as u32;
    let half = |bytes: &[u8], turn, place: usize| {
        let data = &bytes[place..place + part_bytes];
        Record::Part(part(turn, len, place as u32, data, bytes))
    };
    assert!(rogue.say(&mut pair, &[half(&first, 1, 0)]));
    assert!(rogue.say(&mut pair, &[half(&other, 1, part_bytes)]));
    assert_eq!((pair.host.counts().conflicts, pair.writes()), (1, vec![]));
    assert!(rogue.say(&mut pair, &[half(&first, 1, part_bytes)]));
    assert_eq!(pair.writes(), [1]);
    assert!(rogue.say(&mut pair, &[half(&other, 1, 0)]));
    assert_eq!((pair.host.counts().conflicts, pair.writes()), (2, vec![1]));
    // Other bytes under the sum of the first: nothing of it is executed.
    let mut lie = part(2, 8, 0, &[3; 8], &[4; 8]);
    assert!(rogue.say(&mut pair, &[Record::Part(lie)]));
    assert_eq!((pair.host.counts().mismatches, pair.writes()), (1, vec![1]));
    lie.turn = 3;
    lie.checksum = checksum(DEVICE + 1, lie.op, 0, 8, &[3; 8]);
    assert!(rogue.say(&mut pair, &[Record::Part(lie)]), "meant for another device");
    assert_eq!((pair.host.counts().mismatches, pair.writes()), (2, vec![1]));
    assert!(rogue.heard.iter().any(|heard| heard.contains("Mismatch")));
}

/// N5: fragments that overlap, leave gaps, lie about the whole, or never end cost no more than the slots.
#[test]
fn n5_fragments_that_do_not_fit_end_the_session() {
    let bytes = vec![9; 4096];
    let place_of = |place: usize, len: usize, whole: u32| {
        let mut one = part(1, whole, place as u32, &bytes[..len], &bytes);
        one.len = whole;
        one
    };
    let lies: [&dyn Fn(usize) -> Part<'static>; 7] = [
        &|_| place_of(0, 1, 4096),
        &|size| place_of(1, size, 4096),
        &|size| place_of(size / 2, size, 4096),
        &|size| place_of(0, size - 8, 4096),
        &|size| place_of(0, size, 17 << 10),
        &|size| Part { slot: 4, ..place_of(0, size, 4096) },
        &|size| Part { turn: 2, ..place_of(0, size, 4096) },
    ];
    for (number, lie) in lies.iter().enumerate() {
        let mut pair = Pair::new(10_000);
        let mut rogue = Rogue::bound(&mut pair);
        let lie = lie(rogue.session.part_bytes);
        assert!(!rogue.say(&mut pair, &[Record::Part(lie)]), "lie {number}");
        assert_eq!((pair.host.counts().violations, pair.writes()), (1, vec![]));
    }
    // Half of each slot, and never the rest: the memory is that of the slots, and others get theirs.
    let mut pair = Pair::new(10_000);
    let mut rogue = Rogue::bound(&mut pair);
    let used = pair.host.memory_used();
    assert_eq!(used, 4 * (16 << 10));
    for slot in 0..4 {
        for _ in 0..100 {
            let size = rogue.session.part_bytes;
            assert!(
                rogue.say(&mut pair, &[Record::Part(Part { slot, ..place_of(0, size, 4096) })])
            );
        }
    }
    assert_eq!((pair.host.memory_used(), pair.writes()), (used, vec![]));
}

/// N8: answers to what nobody asked, of the wrong length or kind; to another one's handle.
#[test]
fn n8_an_answer_to_nothing_is_dropped_or_ends_the_session() {
    let done = |slot, turn, status| Record::Done { handle: HANDLE, slot, turn, status };
    let piece = |turn, len, data| {
        let (handle, slot, place, checksum) = (HANDLE, 0, 0, 1);
        Record::Piece(crate::wire::Piece { handle, slot, turn, len, place, checksum, data })
    };
    let data = [0; 512];
    // The slots of the client are used from the first: 0 reads 512 bytes in turn 1.
    // Whether its request was sent before, and whether the answer is borne.
    let unsent = [(done(0, 1, Status::IoError), false), (piece(1, 512, &data), false)];
    let cases = [
        (done(0, 0, Status::Ok), true),
        (done(0, 2, Status::IoError), false),
        (done(0, 1, Status::Ok), false),
        (done(8, 1, Status::IoError), false),
        (done(1, 1, Status::Ok), false),
        (Record::Done { handle: HANDLE + 1, slot: 0, turn: 1, status: Status::IoError }, true),
        (piece(1, 511, &data[..511]), false),
        (piece(1, 513, &data), false),
        (piece(1, 512, &data[..511]), false),
        (piece(0, 512, &data), true),
        (Record::Release { handle: HANDLE }, false),
    ];
    let unsent = unsent.map(|(record, is_borne)| (false, record, is_borne));
    let sent = cases.map(|(record, is_borne)| (true, record, is_borne));
    for (is_sent, record, is_borne) in unsent.into_iter().chain(sent) {
        let mut pair = Pair::new(10_000);
        let one = pair.client.attach(SPEC).expect("a place");
        let (at_client, at_host) = pair.established();
        assert!(pair.client.establish(at_client, 0));
        let mut liar = session_of(at_host, 0);
        pair.is_cut[1] = true;
        pair.run(MS);
        let mut buffer = [0; 2000];
        let news = News { revision: 1, size: SIZE as u64, features: 0, is_removed: false };
        let bound = Bound {
            index: 0,
            outcome: Outcome::Fresh,
            binding: 1,
            generation: 1,
            verifier: Verifier::default(),
            news,
            name: 1,
            image: 0,
        };
        pair.ask(one, Op::Read, 0, 512);
        for record in [Record::Bound(bound), record] {
            let is_answer = !matches!(record, Record::Bound(_));
            let mut frame = [0; 2000];
            while is_answer && is_sent && pair.client.poll_transmit(pair.now, &mut frame).is_some()
            {
            }
            let mut out = liar.begin(pair.now, &mut buffer).expect("room");
            assert!(out.push(&record, None));
            let len = liar.commit(pair.now, out).expect("a frame");
            pair.client.receive(pair.now, &mut buffer[..len], &mut |_, _| {});
        }
        let seen = pair.client.counts().violations;
        assert_eq!(seen, u64::from(!is_borne), "sent: {is_sent}, {record:?}");
        assert_eq!(pair.finished(), [], "{record:?}");
    }
}

/// N12: a client that hears and never acknowledges, or never asks, loses what it has when the lease is over.
#[test]
fn n12_who_acknowledges_nothing_loses_the_device() {
    let mut pair = Pair::new(1000);
    let mut rogue = Rogue::bound(&mut pair);
    let until = pair.now + 2 * SECOND;
    let mut taken = 0;
    while pair.now < until {
        pair.now += 50 * MS;
        pair.host.tick(pair.now);
        let mut frame = rogue.frame(pair.now, &[Record::Ping]);
        taken += u64::from(pair.host.receive(pair.now, &mut frame, &mut |_, _| {}));
        pair.work();
    }
    assert!(taken >= 15, "its frames were good until then");
    assert_eq!(pair.host.counts().leases_over, 1);
    // Another one gets it.
    pair.client.attach(SPEC).expect("a place");
    pair.greet();
    pair.run(10 * MS);
    assert!(matches!(pair.events[..], [Event::Bound { .. }]));
}

/// N13: sessions are bounded; what nobody confirmed makes room, what somebody uses does not.
#[test]
fn n13_more_sessions_than_there_may_be_are_refused() {
    let (mut pair, one) = Pair::bound(10_000);
    let mut made: Vec<_> = (0..7).map(|_| pair.established().1).collect();
    assert_eq!(pair.host.reserve(pair.now, &[0; 32]), None);
    let last = made.remove(0);
    made.into_iter().for_each(|at_host| assert!(pair.host.establish(at_host)));
    pair.run(3 * SECOND);
    let number = pair.host.reserve(pair.now, &[0; 32]).expect("one that was not confirmed");
    assert!(!pair.host.establish(last), "its number is gone");
    assert_ne!(number, 0);
    pair.write(one, 0, b'x', 512);
    pair.run(10 * MS);
    assert_eq!(pair.finished(), [(120, Status::Ok, 0)]);
    // A handle of another session is none.
    let mut rogue = Rogue::new(&mut pair);
    let written = [7; 8];
    assert!(rogue.say(&mut pair, &[Record::Part(part(2, 8, 0, &written, &written))]));
    assert!(rogue.say(&mut pair, &[Record::Release { handle: HANDLE }, Record::Ping]));
    assert!(rogue.heard[0].contains("Unbound"), "{:?}", rogue.heard);
    assert_eq!(pair.writes(), b"x");
}

#[test]
fn a_client_that_may_not_have_a_device_is_told_that_there_is_none() {
    let mut pair = Pair::new(10_000);
    pair.host = Host::new(HostSpec { sessions_max: 1, ring_frames: 8, ..HOST });
    let (clients, news) = (vec![[1; 32]], News::default());
    pair.host.export(ExportSpec { device: DEVICE, clients, news, generation: 0 });
    let looked = pair.client.look(DEVICE).expect("a place");
    let one = pair.client.attach(SPEC).expect("a place");
    pair.greet();
    pair.run(10 * MS);
    let none = Event::Looked { attachment: looked, news: None };
    assert!(pair.events.contains(&none), "{:?}", pair.events);
    assert!(matches!(pair.events[1], Event::Refused { attachment, .. } if attachment == one));
}

/// A client that has keys, and its hello of long ago, which somebody else says again as often as he likes.
#[test]
fn n1_a_hello_that_is_said_again_ends_no_session() {
    let greeter = Greeter::new(Identity::Key([1; 32]), Offer::new(true, 1472, 64), 10_000, 0);
    let greeter = greeter.expect("a greeter");
    let mut pair = Pair::new(10_000);
    let key = Identity::Key([2; 32]);
    let offer = Offer::new(true, 1472, 64);
    let hello = |bits: &mut Bits, number| {
        Initiator::new(&key, *greeter.public(), number, offer, bits).expect("an initiator")
    };
    let recorded = hello(&mut pair.random, 5).hello().to_vec();
    let mut initiator = hello(&mut pair.random, 6);
    let answer = |pair: &mut Pair, hello: &[u8]| {
        let greeted = greeter.read(hello, &|_| true, &mut pair.random).expect("a hello");
        let number = pair.host.reserve(pair.now, greeted.peer())?;
        Some(greeted.answer(number, pair.host.share()).expect("an answer"))
    };
    let (frame, at_host) = answer(&mut pair, initiator.hello()).expect("a number");
    let Ok(Step::Done(at_client)) = initiator.receive(&frame) else { panic!("no session") };
    let one = pair.client.attach(SPEC).expect("a place");
    assert!(pair.host.establish(at_host) && pair.client.establish(*at_client, pair.now));
    pair.run(50 * MS);
    assert!(matches!(pair.events[..], [Event::Bound { .. }]));
    for _ in 0..100 {
        pair.run(MS);
        let (_, made) = answer(&mut pair, &recorded).expect("its own numbers are used anew");
        assert!(pair.host.establish(made));
    }
    pair.write(one, 0, b'a', 512);
    pair.run(10 * MS);
    assert_eq!(pair.finished(), [(97, Status::Ok, 0)]);
    assert_eq!(pair.sessions, [vec![true], vec![true]]);
    // Others still find numbers, and the credit of those who live is what it was.
    assert!(pair.host.reserve(pair.now, &[9; 32]).is_some());
    assert_eq!(pair.host.share(), HOST.ring_frames / 2);
}

/// Only sessions whose client has shown that it has the keys have a share of the credit, and it comes back.
#[test]
fn n13_credit_is_shared_by_those_who_live() {
    let (mut pair, _) = Pair::bound(1000);
    let before = pair.host.share();
    let made: Vec<_> = (0..6).map(|_| pair.established()).collect();
    let mut rogues = Vec::new();
    for (at_client, at_host) in made {
        assert!(pair.host.establish(at_host));
        rogues.push(Rogue { session: session_of(at_client, pair.now), heard: Vec::new() });
    }
    assert_eq!(pair.host.share(), before, "nobody has proven anything");
    for rogue in &mut rogues {
        rogue.say(&mut pair, &[Record::Ping]);
    }
    assert_eq!(pair.host.share(), HOST.ring_frames / 8);
    pair.run(3 * SECOND);
    assert_eq!(pair.host.share(), before, "they are gone");
}

/// A hello that is not answered gives its number back, and so does one that nobody proves.
#[test]
fn n10_a_number_that_is_not_used_is_free_again() {
    let mut pair = Pair::new(1000);
    for _ in 0..100 {
        let number = pair.host.reserve(0, &[0; 32]).expect("a number");
        pair.host.cancel(number);
    }
    let all: Vec<_> = (0..8).map(|_| pair.host.reserve(0, &[0; 32]).expect("a number")).collect();
    assert_eq!(pair.host.reserve(0, &[0; 32]), None);
    assert!(pair.host.reserve(2 * SECOND, &[0; 32]).is_some_and(|number| !all.contains(&number)));
}

/// A generation that nobody was ever told: neither the last one there is, nor one that is ahead of a client
/// that lives.
#[test]
fn n14_a_generation_from_nowhere_is_refused() {
    let again = |generation| Bind { intent: Intent::Again, generation, ..bind(1) };
    for generation in [u64::MAX, 1 << 33] {
        let mut pair = Pair::new(10_000);
        let mut rogue = Rogue::new(&mut pair);
        assert!(rogue.say(&mut pair, &[Record::Bind(again(generation))]));
        assert!(rogue.say(&mut pair, &[Record::Bind(bind(2))]));
        rogue.say(&mut pair, &[Record::Ping]);
        assert!(rogue.heard[0].contains("Stale"), "{:?}", rogue.heard);
        assert!(rogue.heard[1].contains("Fresh") && rogue.heard[1].contains("generation: 1"));
    }
    let (mut pair, one) = Pair::bound(10_000);
    let mut rogue = Rogue::new(&mut pair);
    rogue.say(&mut pair, &[Record::Bind(again(77))]);
    rogue.say(&mut pair, &[Record::Ping]);
    assert!(rogue.heard[0].contains("Busy"), "{:?}", rogue.heard);
    pair.write(one, 0, b'a', 512);
    pair.run(50 * MS);
    assert_eq!(pair.finished(), [(97, Status::Ok, 0)], "who has it keeps it");
    // There is none left: nobody gets it, and nothing breaks.
    pair.host = host(u64::MAX);
    let mut rogue = Rogue::new(&mut pair);
    rogue.say(&mut pair, &[Record::Bind(bind(1))]);
    rogue.say(&mut pair, &[Record::Ping]);
    assert!(rogue.heard[0].contains("Failed"), "{:?}", rogue.heard);
}

/// Memory: no client has more than its part, and what a device had is given back when it is let go or removed.
#[test]
fn n13_memory_has_a_share_for_each_client() {
    let mut pair = Pair::new(1000);
    pair.host = host_of(HostSpec { client_memory_max: 200 << 10, ..HOST });
    pair.host.export(export(6, 0));
    let mut rogue = Rogue::new(&mut pair);
    let large = Bind { slots: 8, slot_bytes: 16 << 10, ..bind(1) };
    rogue.say(&mut pair, &[Record::Bind(large)]);
    rogue.say(&mut pair, &[Record::Bind(Bind { device: 6, index: 1, ..large })]);
    rogue.say(&mut pair, &[Record::Ping]);
    let outcomes = [rogue.heard[0].contains("Fresh"), rogue.heard[1].contains("Busy")];
    assert_eq!(outcomes, [true; 2], "{:?}", rogue.heard);
    let mut other = Rogue::new(&mut pair);
    other.say(&mut pair, &[Record::Bind(Bind { device: 6, instance: 7, ..large })]);
    other.say(&mut pair, &[Record::Ping]);
    assert!(other.heard[0].contains("Fresh"), "{:?}", other.heard);
    assert_eq!(pair.host.memory_used(), 2 * (128 << 10));
    pair.host.remove(0);
    pair.work();
    assert_eq!(pair.host.memory_used(), 128 << 10);
    pair.run(3 * SECOND);
    assert_eq!(pair.host.memory_used(), 0);
}

/// N8: slots that the client has never heard of are not its own, whatever the IOhost says of them.
#[test]
fn n8_slots_of_another_name_are_not_kept() {
    for (name, is_borne) in [(7, true), (8, false)] {
        let mut pair = Pair::new(10_000);
        pair.client.attach(SPEC).expect("a place");
        let news = News { revision: 1, size: SIZE as u64, features: 0, is_removed: false };
        let (index, generation, verifier) = (0, 1, Verifier::default());
        for (outcome, binding, name) in [(Outcome::Fresh, 1, 7), (Outcome::Kept, 2, name)] {
            let (at_client, at_host) = pair.established();
            assert!(pair.client.establish(at_client, pair.now));
            let mut liar = session_of(at_host, pair.now);
            pair.is_cut[0] = true;
            pair.run(MS);
            let image = 0;
            let bound = Bound { index, outcome, binding, generation, verifier, news, name, image };
            let mut buffer = [0; 2000];
            let mut out = liar.begin(pair.now, &mut buffer).expect("room");
            assert!(out.push(&Record::Bound(bound), None));
            let len = liar.commit(pair.now, out).expect("a frame");
            pair.client.receive(pair.now, &mut buffer[..len], &mut |_, _| {});
        }
        assert_eq!(pair.client.counts().violations, u64::from(!is_borne));
    }
}
