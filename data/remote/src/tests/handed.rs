//! An end goes over to another process: devices with their slots, attachments with their turns, and no keys.

use super::*;
use crate::iohost::check_saved;
use crate::saved::{Reader, Writer};

const LEASE_MS: u32 = 1000;

/// The host's process is replaced. Nothing is with the disk; its clients are told, or (a wire that loses) are not.
fn replace_host(pair: &mut Pair, is_told: bool) -> Vec<u8> {
    let mut buffer = [0; 9000];
    let sessions: Vec<u32> = pair.host.stats().map(|(session, _)| session).collect();
    for session in sessions.into_iter().filter(|_| is_told) {
        let len = pair.host.farewell(session, &mut buffer).expect("a frame");
        pair.give_client(&buffer[..len]);
    }
    let mut saved = Vec::new();
    assert!(pair.host.save(0, &mut Writer(&mut saved)), "somebody has it");
    pair.host = host(pair.kept_generation);
    assert_eq!(check_saved(&saved), Ok(true));
    let until = pair.now + u64::from(LEASE_MS) * MS;
    assert_eq!(pair.host.take_over(0, &mut Reader(&saved), until), Ok(true));
    pair.memory.clear();
    saved
}

/// The client's process is replaced.
fn replace_client(pair: &mut Pair, one: u16) -> u16 {
    let mut saved = Vec::new();
    pair.client.save(&mut Writer(&mut saved));
    assert!(pair.client.save_attachment(one, &mut Writer(&mut saved)), "it is quiet");
    let spec = ClientSpec { instance: 0, ring_frames: 64, fail_after_ns: None };
    let mut reader = Reader(&saved);
    pair.client = Client::take_over(spec, &mut reader).expect("a client");
    let one = pair.client.take_over_attachment(&mut reader).expect("an attachment");
    assert_eq!(reader.end(), Ok(()));
    pair.client.begin(pair.now);
    one
}

fn sorted(mut all: Vec<(u64, Status, u8)>) -> Vec<u64> {
    assert!(all.iter().all(|(_, status, _)| *status == Status::Ok), "{all:?}");
    all.sort_by_key(|(tag, ..)| *tag);
    all.into_iter().map(|(tag, ..)| tag).collect()
}

#[test]
fn what_the_disk_has_not_had_comes_again_and_nothing_is_executed_twice() {
    for is_told in [true, false] {
        let (mut pair, one) = Pair::bound(LEASE_MS);
        // Two that are answered, two whose answers are lost, two that the disk has not had, one that is under way.
        let write = |pair: &mut Pair, bytes: &[u8]| {
            bytes.iter().for_each(|byte| pair.write(one, u64::from(*byte) * 512, *byte, 512));
            pair.run(2 * MS);
        };
        write(&mut pair, b"01");
        pair.is_cut[1] = true;
        write(&mut pair, b"23");
        pair.executes = false;
        write(&mut pair, b"45");
        pair.is_cut[0] = true;
        write(&mut pair, b"6");
        pair.is_cut = [false; 2];
        assert_eq!(pair.writes(), b"0123");
        replace_host(&mut pair, is_told);
        pair.executes = true;
        pair.client.tick(pair.now);
        assert_eq!(
            pair.client.wants_session(pair.now),
            is_told,
            "it is told at once, or finds out"
        );
        pair.greet();
        pair.run(100 * MS);
        assert_eq!(sorted(pair.finished()), *b"0123456".map(u64::from).as_slice());
        let mut writes = pair.writes();
        assert_eq!(writes.len(), 7, "once each: {writes:?}");
        writes.sort_unstable();
        assert_eq!(writes, b"0123456");
        // It goes on as ever, and a read is answered that was answered before.
        pair.ask(one, Op::Read, u64::from(b'3') * 512, 512);
        pair.run(10 * MS);
        assert_eq!(pair.finished(), [(0, Status::Ok, b'3')]);
    }
}

/// It stood in a ring whose queue was elsewhere, and no disk has had it.
#[test]
fn what_was_handed_out_and_has_not_ended_comes_again() {
    let (mut pair, one) = Pair::bound(LEASE_MS);
    pair.executes = false;
    pair.write(one, 512, b'a', 512);
    pair.run(2 * MS);
    assert!(pair.host.next_work(pair.now).is_some(), "a request");
    replace_host(&mut pair, true);
    pair.executes = true;
    pair.greet();
    pair.run(100 * MS);
    assert_eq!(pair.finished(), [(u64::from(b'a'), Status::Ok, 0)]);
    assert_eq!((pair.writes(), pair.disk[512]), (b"a".to_vec(), b'a'));
}

/// No flush ends well at whoever serves its guest next, until somebody knows of the loss.
#[test]
fn a_loss_of_which_nobody_knows_goes_over() {
    let (mut pair, one) = Pair::bound(LEASE_MS);
    pair.write(one, 0, b'a', 512);
    pair.run(10 * MS);
    // The machine is another one.
    (pair.host, pair.verifier.boot) = (host(1), 2);
    pair.greet();
    pair.run(50 * MS);
    pair.finished();
    let one = replace_client(&mut pair, one);
    pair.greet();
    for status in [Status::IoError, Status::Ok] {
        pair.ask(one, Op::Flush, 0, 0);
        pair.run(50 * MS);
        assert_eq!(pair.finished(), [(0, status, 0)]);
        pair.client.forgive(one);
    }
}

/// What was beyond the end is gone, whatever is there by now.
#[test]
fn a_device_that_shrank_under_a_guest_has_done_so_for_its_next_process_too() {
    let (mut pair, one) = Pair::bound(LEASE_MS);
    for size in [SIZE as u64 / 2, SIZE as u64] {
        pair.host.update(0, size, 3);
        pair.run(10 * MS);
    }
    let one = replace_client(&mut pair, one);
    pair.greet();
    pair.run(10 * MS);
    let request = Request { op: Op::Flush, offset: 0, len: 0, tag: 0 };
    assert_eq!(pair.client.submit(one, request, |_| true), Err(Rejected::Over));
}

/// Its client is away meanwhile, and counts on what it wrote.
#[test]
fn that_a_device_was_let_go_without_a_sync_goes_over() {
    for syncs in [true, false] {
        let (mut pair, one) = Pair::bound(LEASE_MS);
        pair.write(one, 0, b'a', 512);
        pair.run(10 * MS);
        assert_eq!(pair.finished().len(), 1);
        (pair.is_cut, pair.syncs) = ([true; 2], syncs);
        pair.run(3 * u64::from(LEASE_MS) * MS);
        assert_eq!(pair.memory.len(), 1, "its lease is over");
        let mut saved = Vec::new();
        assert!(pair.host.save(0, &mut Writer(&mut saved)), "it is remembered");
        pair.host = host(pair.kept_generation);
        assert_eq!(pair.host.take_over(0, &mut Reader(&saved), pair.now), Ok(false));
        pair.is_cut = [false; 2];
        pair.greet();
        pair.run(50 * MS);
        pair.ask(one, Op::Flush, 0, 0);
        pair.run(50 * MS);
        let status = if syncs { Status::Ok } else { Status::IoError };
        assert_eq!(pair.finished(), [(0, status, 0)]);
    }
}

/// Its client has not heard of that, and asks the next process.
#[test]
fn how_a_device_was_given_back_goes_over() {
    for (syncs, why) in [(true, Over::Released), (false, Over::Unsynced)] {
        let (mut pair, one) = Pair::bound(LEASE_MS);
        pair.write(one, 0, b'a', 512);
        pair.run(10 * MS);
        pair.finished();
        (pair.is_cut[1], pair.syncs) = (true, syncs);
        pair.client.release(one);
        pair.run(50 * MS);
        let mut saved = Vec::new();
        assert!(pair.host.save(0, &mut Writer(&mut saved)), "it is remembered");
        pair.host = host(pair.kept_generation);
        assert_eq!(pair.host.take_over(0, &mut Reader(&saved), pair.now), Ok(false));
        pair.is_cut[1] = false;
        pair.greet();
        pair.run(50 * MS);
        assert_eq!(pair.events.last(), Some(&Event::Over { attachment: one, why }));
    }
}

#[test]
fn a_read_whose_answer_nobody_heard_is_done_again() {
    let (mut pair, one) = Pair::bound(LEASE_MS);
    pair.is_cut[1] = true;
    pair.ask(one, Op::Read, 0, 512);
    pair.run(2 * MS);
    pair.is_cut[1] = false;
    replace_host(&mut pair, true);
    pair.disk[0] = 9;
    pair.greet();
    pair.run(100 * MS);
    assert_eq!(pair.finished(), [(0, Status::Ok, 9)]);
}

#[test]
fn it_is_kept_for_who_had_it_and_then_for_nobody() {
    for comes_back in [true, false] {
        let (mut pair, one) = Pair::bound(LEASE_MS);
        pair.write(one, 0, b'a', 512);
        pair.run(10 * MS);
        replace_host(&mut pair, true);
        let mut rogue = Rogue::new(&mut pair);
        rogue.say(&mut pair, &[Record::Bind(bind(1))]);
        assert!(rogue.heard.is_empty(), "another one has it: {:?}", rogue.heard);
        if comes_back {
            pair.greet();
            pair.run(10 * MS);
            assert_eq!(pair.finished().len(), 1);
            pair.write(one, 512, b'b', 512);
            pair.run(10 * MS);
            assert_eq!(pair.finished(), [(u64::from(b'b'), Status::Ok, 0)]);
            assert!(!rogue.heard.iter().any(|said| said.contains("Fresh")), "{:?}", rogue.heard);
            assert!(!pair.events.iter().any(|event| matches!(event, Event::Over { .. })));
        } else {
            pair.is_heir = true;
            for _ in 0..u64::from(LEASE_MS) + 10 {
                rogue.say(&mut pair, &[Record::Ping]);
            }
            assert!(rogue.heard.iter().any(|said| said.contains("Fresh")), "{:?}", rogue.heard);
        }
    }
}

/// Nothing tells the IOhost: the same client goes on in another session, and its old one is over with that.
#[test]
fn a_client_goes_on_with_its_turns_and_its_old_session_ends() {
    let (mut pair, mut one) = Pair::bound(LEASE_MS);
    for byte in b"abcdef" {
        pair.write(one, u64::from(*byte) * 512, *byte, 512);
        pair.run(5 * MS);
        assert_eq!(pair.finished(), [(u64::from(*byte), Status::Ok, 0)]);
        one = replace_client(&mut pair, one);
        pair.greet();
        pair.run(10 * MS);
        let ended = pair.sessions[1].iter().filter(|has_begun| !**has_begun).count();
        assert_eq!(
            ended + 1,
            pair.sessions[1].len() - ended,
            "one is left: {:?}",
            pair.sessions[1]
        );
    }
    assert_eq!(pair.writes(), b"abcdef");
    assert_eq!(pair.memory.len(), 1);
    pair.client.release(one);
    pair.run(50 * MS);
    assert!(pair.events.contains(&Event::Over { attachment: one, why: Over::Released }));
}

/// What was not flushed goes over with its copies: a machine that dies then takes nothing along.
#[test]
fn copies_of_what_was_not_flushed_go_over() {
    for keep_bytes in [64 << 10, 0] {
        let mut pair = Pair::new(LEASE_MS);
        let one = pair.client.attach(AttachSpec { keep_bytes, ..SPEC }).expect("a place");
        pair.greet();
        pair.run(10 * MS);
        for byte in b"wxyz" {
            pair.write(one, u64::from(*byte) * 256, *byte, 4096);
            pair.run(5 * MS);
        }
        assert_eq!(pair.finished().len(), 4);
        let before = pair.disk.clone();
        let one = replace_client(&mut pair, one);
        pair.greet();
        pair.run(10 * MS);
        // The machine is another one, without what it had in memory.
        (pair.host, pair.verifier.boot, pair.disk) = (host(1), 2, vec![0; SIZE]);
        pair.greet();
        pair.run(50 * MS);
        pair.ask(one, Op::Flush, 0, 0);
        pair.run(50 * MS);
        let (status, is_there) = (pair.finished()[0].1, pair.disk == before);
        assert_eq!((status == Status::Ok, is_there), (keep_bytes > 0, keep_bytes > 0));
    }
}

/// A flush of its own is under way, with an answer that comes too late.
#[test]
fn a_flush_of_its_own_goes_over() {
    let mut pair = Pair::new(LEASE_MS);
    let one = pair.client.attach(AttachSpec { keep_bytes: 64 << 10, ..SPEC }).expect("a place");
    pair.greet();
    pair.run(10 * MS);
    pair.is_cut[1] = false;
    for byte in 0..4 {
        pair.write(one, byte * 4096, 7, 4096);
        pair.run(5 * MS);
    }
    pair.finished();
    // A quarter is used: the next one brings a flush, of which nothing is heard.
    pair.executes = false;
    pair.write(one, 0, 8, 4096);
    pair.run(5 * MS);
    let flush = |work: Option<Work>| work.is_some_and(|work| work.op == Op::Flush);
    pair.executes = true;
    pair.work();
    pair.run(MS);
    pair.finished();
    pair.executes = false;
    pair.run(2 * MS);
    let is_flushing =
        flush(pair.host.next_work(pair.now)) || pair.executed.iter().any(|one| one.0 == Op::Flush);
    assert!(is_flushing);
    let one = replace_client(&mut pair, one);
    pair.executes = true;
    pair.greet();
    pair.run(50 * MS);
    pair.write(one, 0, 9, 4096);
    pair.ask(one, Op::Flush, 0, 0);
    pair.run(50 * MS);
    assert_eq!(pair.finished().len(), 2);
}

#[test]
fn a_client_that_parts_is_known_to_be_gone() {
    let (mut pair, _) = Pair::bound(600_000);
    let mut buffer = [0; 9000];
    let len = pair.client.farewell(&mut buffer).expect("a frame");
    pair.give_host(&buffer[..len]);
    pair.work();
    assert_eq!(pair.sessions[1], [true, false]);
}

/// What a peer chooses may be anything, and goes over: no peer may keep a process from being replaced.
#[test]
fn numbers_that_a_peer_chooses_keep_nobody_from_going_over() {
    for binding in [crate::saved::COUNT_MAX, u64::MAX] {
        let mut pair = Pair::new(LEASE_MS);
        let mut rogue = Rogue::new(&mut pair);
        rogue.say(&mut pair, &[Record::Bind(bind(binding))]);
        assert!(rogue.heard.iter().any(|said| said.contains("Fresh")), "{:?}", rogue.heard);
        let mut saved = Vec::new();
        assert!(pair.host.save(0, &mut Writer(&mut saved)), "it has the device");
        assert_eq!(check_saved(&saved), Ok(true), "a binding of {binding:x}");
    }
    let mut pair = Pair::new(LEASE_MS);
    pair.host = Host::new(HOST);
    let news = News { revision: u64::MAX, size: SIZE as u64, features: 0, is_removed: false };
    let spec = ExportSpec { device: DEVICE, clients: Vec::new(), news, generation: 0 };
    pair.host.export(spec).expect("a number");
    let one = pair.client.attach(SPEC).expect("a place");
    pair.greet();
    pair.run(10 * MS);
    let one = replace_client(&mut pair, one);
    pair.greet();
    pair.write(one, 0, b'a', 512);
    pair.run(50 * MS);
    assert_eq!(pair.finished().len(), 1);
}

/// It comes back at the last moment, and the device cannot be opened: the caller lets go of it all the same.
#[test]
fn what_is_opened_too_late_and_in_vain_is_let_go_of() {
    let (mut pair, _) = Pair::bound(LEASE_MS);
    replace_host(&mut pair, true);
    pair.is_heir = true;
    // Nobody answers the caller's question until the time is over.
    let (at_client, at_host) = pair.established();
    assert!(pair.host.establish(at_host));
    assert!(pair.client.establish(at_client, pair.now));
    let mut buffer = [0; 9000];
    while let Some(len) = pair.client.poll_transmit(pair.now, &mut buffer) {
        assert!(pair.host.receive(pair.now, &mut buffer[..len], &mut |_, _| {}));
    }
    let events = |pair: &mut Pair| -> Vec<HostEvent> {
        std::iter::from_fn(|| pair.host.next_event()).collect()
    };
    let is_asked = events(&mut pair).iter().any(|one| matches!(one, HostEvent::Open { .. }));
    assert!(is_asked, "it is back");
    pair.now += u64::from(LEASE_MS) * MS + MS;
    pair.host.tick(pair.now);
    pair.host.opened(0, Err(()));
    pair.now += 1000 * MS;
    pair.host.tick(pair.now);
    let last = events(&mut pair);
    assert!(last.iter().any(|one| matches!(one, HostEvent::LetGo { .. })), "{last:?}");
}

/// A client that says of itself that it is nobody's instance loses what it may have no more, as any.
#[test]
fn a_right_that_is_taken_is_taken_of_every_instance() {
    for instance in [99, 0] {
        let mut pair = Pair::new(LEASE_MS);
        let mut rogue = Rogue::new(&mut pair);
        rogue.say(&mut pair, &[Record::Bind(Bind { instance, ..bind(1) })]);
        assert!(rogue.heard.iter().any(|said| said.contains("Fresh")), "{:?}", rogue.heard);
        pair.host.set_clients(0, vec![[7; 32]]);
        pair.work();
        rogue.say(&mut pair, &[Record::Ping]);
        let is_told = rogue.heard.iter().any(|said| said.contains("Revoked"));
        assert!(is_told, "instance {instance}: {:?}", rogue.heard);
    }
}

/// Whatever is said of a device or an attachment: it is refused, or it is bounded, and nothing breaks.
#[test]
fn hostile_words_are_refused_or_harmless() {
    let (mut pair, one) = Pair::bound(LEASE_MS);
    pair.write(one, 0, b'a', 4096);
    pair.ask(one, Op::Read, 0, 512);
    pair.run(10 * MS);
    pair.finished();
    let mut of_host = Vec::new();
    assert!(pair.host.save(0, &mut Writer(&mut of_host)));
    let mut of_client = Vec::new();
    let mut kept = Pair::new(LEASE_MS);
    let one = kept.client.attach(AttachSpec { keep_bytes: 64 << 10, ..SPEC }).expect("a place");
    kept.greet();
    kept.run(10 * MS);
    kept.write(one, 0, b'a', 4096);
    kept.run(10 * MS);
    kept.finished();
    assert!(kept.client.save_attachment(one, &mut Writer(&mut of_client)));
    let (mut random, mut refused) = (Random::new(7, 7), 0);
    for _ in 0..4000 {
        let mut bytes = of_host.clone();
        let mut other = of_client.clone();
        for bytes in [&mut bytes, &mut other] {
            for _ in 0..1 + random.next() % 3 {
                let at = random.next() as usize % bytes.len().min(200);
                bytes[at] = random.next() as u8;
            }
            if random.next() % 4 == 0 {
                bytes.truncate(random.next() as usize % bytes.len());
            }
        }
        let mut pair = Pair::new(LEASE_MS);
        let taken = pair.host.take_over(0, &mut Reader(&bytes), 50 * MS);
        let one = pair.client.take_over_attachment(&mut Reader(&other));
        refused += u32::from(taken.is_err()) + u32::from(one.is_err());
        pair.is_heir = true;
        pair.greet();
        pair.run(20 * MS);
        if let Ok(one) = one {
            let request = Request { op: Op::Flush, offset: 0, len: 0, tag: 0 };
            let _ = pair.client.submit(one, request, |_| false);
        }
        pair.run(60 * MS);
    }
    assert!(refused > 500, "{refused}");
}
