//! What is taken of a predecessor, and what is refused of one that is no such program, or one with a fault.

use std::fs::File;
use std::io::Read;
use std::os::unix::net::UnixStream;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::upgrade::wire::{FORMATS, KNOWN_MAX, PACKET_BYTES_MAX, PACKET_FDS_MAX, RINGS_MAX};

/// Where the fuzzer begins; so that it still begins with an estate.
const WHOLE: &str = include_str!("../../../../../fuzz/seeds/estate/whole");

fn null() -> OwnedFd {
    File::open("/dev/null").expect("a descriptor").into()
}

/// The packets of a whole estate, with how many descriptors each has.
fn whole() -> impl Iterator<Item = (usize, &'static str)> {
    WHOLE.lines().map(|line| {
        let (fds, packet) = line.split_at(1);
        (fds.parse().expect("a digit"), packet)
    })
}

fn take(estate: &mut Estate, packet: &Value, fds: usize) -> Result<Progress, EstateError> {
    let fds = (0..fds).map(|_| null()).collect();
    estate.take(packet.to_string().as_bytes(), fds)
}

/// Why a packet is refused.
fn refused(estate: &mut Estate, packet: &Value, fds: usize) -> String {
    take(estate, packet, fds).expect_err("it is refused").to_string()
}

fn device(id: &str, handles: &[&str], disk: Option<bool>) -> Value {
    let disk = disk.map(|is_away| {
        json!({"size_bytes": 1 << 20, "physical_block_size": 512, "discard_sectors_max": 0,
            "zeroes_sectors_max": 0, "was_empty": false, "at_once": false, "is_away": is_away,
            "writeback": true})
    });
    json!({"device": {"id": id, "made_of": {}, "socket": "/s", "handles": handles,
        "closed_for_ms": 0, "disk": disk, "nic": null}})
}

fn connection() -> Value {
    json!({"link": {"runs": true}})
}

fn ring(device: &str, queue: u16) -> Value {
    json!({"device": device, "queue": queue, "base": 7, "failed": false, "violation": null,
        "was_attached": true, "problem": null, "left": null, "place": null, "asked_ns": null,
        "counters": {}})
}

fn rings(device: &str, count: u16) -> Value {
    json!({"rings": {"rings": (0..count).map(|at| ring(device, at)).collect::<Vec<_>>()}})
}

/// An estate of one device with one connection.
fn begun() -> Estate {
    let mut estate = Estate::default();
    for (packet, fds) in [(device("d", &["listener"], Some(false)), 1), (connection(), 1)] {
        assert_eq!(take(&mut estate, &packet, fds).expect("taken"), Progress::More);
    }
    estate
}

#[test]
fn a_whole_estate_is_taken() {
    let mut estate = Estate::default();
    let mut last = Progress::More;
    for (fds, packet) in whole() {
        let fds = (0..fds).map(|_| null()).collect();
        last = estate.take(packet.as_bytes(), fds).expect(packet);
    }
    assert_eq!(last, Progress::Yours);
    let connection = estate.devices.get("d").and_then(|device| device.connections.first());
    let connection = connection.expect("a connection");
    let bytes = |parcels: &[Parcel]| parcels.iter().map(|(b, _)| b.clone()).collect::<Vec<_>>();
    assert_eq!(bytes(&connection.unsent), [[1]]);
    assert_eq!(bytes(&connection.untold), [[1, 2]], "of the back-end channel");
    assert_eq!(estate.rings.first().and_then(|ring| ring.asked_ns), Some(7));
    assert_eq!(estate.moments.drained_ns, 9);
    assert_eq!((estate.run, estate.known["rack"].len()), (Some(7), 1));
    assert_eq!(
        estate.shards.first().map(|shard| (shard.shard, shard.words, shard.bytes)),
        Some((0, 40, 100))
    );
}

/// Two versions of the program speak these words, so they are the same when they are written again.
#[test]
fn packets_are_written_as_they_are_read() {
    for (fds, packet) in whole() {
        let read = wire::read(packet.as_bytes(), fds).expect(packet);
        let before: Value = serde_json::from_str(packet).expect("JSON");
        let mut again = serde_json::to_value(&read).expect("JSON");
        // What an older program leaves out is written as nothing.
        let nothing = |value: &Value| *value == Value::Null || *value == json!(false);
        fill(&mut again, &before, &nothing);
        assert_eq!(again, before, "{packet}");
    }
}

/// Takes out what one has beyond another, where that is nothing.
fn fill(value: &mut Value, like: &Value, is_nothing: &dyn Fn(&Value) -> bool) {
    match (value, like) {
        (Value::Object(its), Value::Object(like)) => {
            its.retain(|name, value| like.contains_key(name) || !is_nothing(value));
            for (name, value) in its {
                like.get(name).into_iter().for_each(|like| fill(value, like, is_nothing));
            }
        }
        (Value::Array(its), Value::Array(like)) => {
            its.iter_mut().zip(like).for_each(|(value, like)| fill(value, like, is_nothing));
        }
        _ => {}
    }
}

#[test]
fn what_comes_without_what_it_is_about_is_refused() {
    let nobody = "a connection of no device";
    let cases = [
        (connection(), 1, nobody),
        (json!({"told": {"message": []}}), 0, nobody),
        (json!({"unread": {"bytes": []}}), 0, nobody),
        (json!({"unsent": {"bytes": []}}), 0, nobody),
        (json!({"untold": {"bytes": []}}), 0, nobody),
        (rings("d", 1), 0, "more than 0 rings"),
        (
            json!({"port": {"device": "d", "counters": {}}}),
            0,
            "a port of \"d\", which is no device",
        ),
    ];
    for (packet, fds, why) in cases {
        assert_eq!(refused(&mut Estate::default(), &packet, fds), why, "{packet}");
    }
    let mut estate = Estate::default();
    take(&mut estate, &device("d", &[], Some(false)), 0).expect("taken");
    for name in ["told", "unread", "unsent", "untold"] {
        let field = if name == "told" { "message" } else { "bytes" };
        let packet = json!({name: {field: [1, 2]}});
        assert_eq!(refused(&mut estate, &packet, 0), "a message of no connection", "{name}");
    }
    assert_eq!(refused(&mut estate, &rings("e", 2), 0), "a ring of \"e\", which is no device");
    assert_eq!(refused(&mut estate, &device("d", &[], None), 0), "device \"d\" is told of twice");
}

#[test]
fn descriptors_are_those_that_a_packet_names() {
    let begin = |read: Option<&str>, has_lock: bool| {
        json!({"begin": {"format": 4, "api": "/a", "api_read": read, "state_dir": "/s",
            "has_lock": has_lock}})
    };
    let shard = json!({"seat": {"link": "l", "seat": 0, "words": 1, "bytes": 1}});
    let named = [
        (begin(None, false), 1),
        (begin(Some("/r"), false), 2),
        (begin(Some("/r"), true), 3),
        (device("e", &["listener", "cached", "direct"], Some(false)), 3),
        (device("e", &[], None), 0),
        (connection(), 1),
        (json!({"tap": {"name": "t", "queue": 0, "made": true}}), 1),
        (shard, 2),
        (json!({"untold": {"bytes": []}}), 0),
        (json!({"remote": {"run": 7}}), 0),
        (json!({"known": {"link": "l", "disks": []}}), 0),
        (json!({"port": {"device": "d", "counters": {}}}), 0),
        (json!({"uplink": {"name": "u", "frames": {}, "work": {}}}), 0),
        (rings("d", 1), 0),
        (json!({"estate": {}}), 0),
        (json!({"flip": {"sync_failed": [], "drained_ns": 1}}), 0),
        (json!({"yours": {}}), 0),
    ];
    for (packet, count) in named {
        assert!(take(&mut begun(), &packet, count).is_ok(), "{packet}");
        let more = refused(&mut begun(), &packet, count + 1);
        assert_eq!(more, "a packet with more descriptors than it names", "{packet}");
        if count > 0 {
            let fewer = refused(&mut begun(), &packet, count - 1);
            assert_eq!(fewer, "a packet without its descriptor", "{packet}");
        }
    }
}

/// What a disk's descriptors are together.
fn made_of(handles: &[&str], disk: Option<bool>) -> Result<&'static str, String> {
    let mut estate = Estate::default();
    take(&mut estate, &device("d", handles, disk), handles.len()).map_err(|why| why.to_string())?;
    let device = estate.devices.remove("d").expect("it was told of");
    assert_eq!(device.listener.is_some(), handles.contains(&"listener"));
    Ok(match device.handles {
        None => "no disk",
        Some(Handles::Away { anchor: None }) => "away",
        Some(Handles::Away { anchor: Some(_) }) => "given up",
        Some(Handles::Null) => "null",
        Some(Handles::Memory(_)) => "memory",
        Some(Handles::File { direct: None, .. }) => "file",
        Some(Handles::File { direct: Some(_), .. }) => "direct file",
    })
}

#[test]
fn a_disk_is_one_of_what_a_disk_can_be() {
    let all = ["listener", "memory", "cached", "direct", "anchor"];
    let mixed = || Err("device \"d\" has descriptors of several kinds".to_string());
    for set in 0u8..32 {
        let handles: Vec<&str> = (0..5).filter(|at| set >> at & 1 == 1).map(|at| all[at]).collect();
        let (has_memory, has_cached, has_direct) = (set & 2 != 0, set & 4 != 0, set & 8 != 0);
        let of_disk = match (has_memory, has_cached, has_direct) {
            _ if set & 16 != 0 => mixed(),
            (false, false, false) => Ok("null"),
            (true, false, false) => Ok("memory"),
            (false, true, false) => Ok("file"),
            (false, true, true) => Ok("direct file"),
            _ => mixed(),
        };
        let away = match set & !1 {
            0 => Ok("away"),
            16 => Ok("given up"),
            _ => of_disk.clone(),
        };
        let of_nic = if of_disk == Ok("null") { Ok("no disk") } else { mixed() };
        assert_eq!(made_of(&handles, Some(false)), of_disk, "{handles:?}");
        assert_eq!(made_of(&handles, Some(true)), away, "{handles:?}");
        assert_eq!(made_of(&handles, None), of_nic, "{handles:?}");
    }
    for (name, shown) in [
        ("listener", "Listener"),
        ("memory", "Memory"),
        ("cached", "Cached"),
        ("direct", "Direct"),
        ("anchor", "Anchor"),
    ] {
        let twice = made_of(&[name, name], Some(false));
        assert_eq!(twice, Err(format!("device \"d\" has two of {shown}")));
    }
}

/// Takes the same packet as often as that goes, and gives how often, and what is said then.
fn until_refused(
    estate: &mut Estate,
    packet: impl Fn(usize) -> Value,
    fds: usize,
) -> (usize, String) {
    for count in 0.. {
        if let Err(why) = take(estate, &packet(count), fds) {
            return (count, why.to_string());
        }
    }
    unreachable!("it takes them without end")
}

#[test]
fn there_is_no_more_of_anything_than_there_can_be() {
    let parcel = |name: &'static str, field: &'static str| move |_| json!({name: {field: [1]}});
    let said = |count, most, what: &str| (count, format!("more than {most} {what}"));
    let mut estate = begun();
    let connections = until_refused(&mut estate, |_| connection(), 1);
    assert_eq!(
        connections,
        said(CONNECTIONS_MAX - 1, CONNECTIONS_MAX, "connections of one device")
    );
    let cases = [
        ("told", "message", TOLD_MAX, "messages of one front-end"),
        ("unread", "bytes", UNREAD_MAX, "unread messages of one front-end"),
        ("unsent", "bytes", UNSENT_MAX, "replies to one front-end"),
        ("untold", "bytes", UNSENT_MAX, "messages to one front-end"),
    ];
    for (name, field, most, what) in cases {
        assert_eq!(until_refused(&mut estate, parcel(name, field), 0), said(most, most, what));
    }
    // Packets of as many rings as one may have.
    let full = until_refused(&mut estate, |_| rings("d", RINGS_MAX as u16), 0);
    assert_eq!(full, said(256 / RINGS_MAX, 256, "rings"));
    let links = until_refused(
        &mut estate,
        |at| json!({"known": {"link": format!("l{at}"), "disks": []}}),
        0,
    );
    assert_eq!(links, said(LINKS_ALL_MAX + 1, LINKS_ALL_MAX + 1, "links"));
    let shard =
        |shard: usize| json!({"seat": {"link": "l", "seat": shard, "words": 1, "bytes": 1}});
    let high = refused(&mut estate, &shard(SHARDS_MAX), 2);
    assert_eq!(high, format!("more than {SHARDS_MAX} shards of one link"));
    let uplinks = until_refused(
        &mut estate,
        |at| json!({"uplink": {"name": format!("u{at}"), "frames": {}, "work": {}}}),
        0,
    );
    assert_eq!(uplinks, said(TAPS_MAX, TAPS_MAX, "uplinks"));
}

#[test]
fn a_packet_is_no_longer_than_a_packet() {
    let read = |packet: &Value, fds| {
        wire::read(packet.to_string().as_bytes(), fds).map(drop).map_err(|why| why.to_string())
    };
    let long = vec![b' '; PACKET_BYTES_MAX + 1];
    let why = wire::read(&long, 0).expect_err("too long").to_string();
    assert_eq!(why, "a packet of 65537 bytes, more than 65536");
    let yours = json!({"yours": {}});
    assert_eq!(read(&yours, PACKET_FDS_MAX), Ok(()));
    assert_eq!(
        read(&yours, PACKET_FDS_MAX + 1),
        Err("65 descriptors with one packet, more than 64".to_string())
    );
    assert_eq!(
        read(&rings("d", RINGS_MAX as u16 + 1), 0),
        Err("33 rings in one packet, more than 32".to_string())
    );
    let known = |count: usize| {
        let disk = json!({"name": "a", "revision": 1, "size": 2, "features": 3});
        json!({"known": {"link": "l", "disks": vec![disk; count]}})
    };
    assert_eq!(read(&known(KNOWN_MAX), 0), Ok(()));
    assert_eq!(
        read(&known(KNOWN_MAX + 1), 0),
        Err("129 disks of a link in one packet, more than 128".to_string())
    );
    let shard = |words: u64, bytes: u64| json!({"seat": {"link": "l", "seat": 0, "words": words, "bytes": bytes}});
    assert_eq!(read(&shard(1 << 31, 1 << 31), 0), Ok(()));
    for (words, bytes, sum) in [(1, 1 << 32, (1 << 32) + 1), (u64::MAX, u64::MAX, u64::MAX)] {
        let expected = format!("{sum} bytes of a shard, more than 4294967296");
        assert_eq!(read(&shard(words, bytes), 0), Err(expected));
    }
}

#[test]
fn a_format_that_is_not_spoken_is_refused_and_the_best_of_both_is_taken() {
    for format in [0, 6, u32::MAX] {
        let begin = json!({"begin": {"format": format, "api": "/a"}});
        let said = refused(&mut Estate::default(), &begin, 1);
        assert_eq!(said, format!("format {format} is not known"));
    }
    for format in FORMATS {
        // As a program said that knew of nothing else.
        let begin = json!({"begin": {"format": format, "api": "/a"}});
        let mut estate = Estate::default();
        take(&mut estate, &begin, 1).expect("taken");
        assert_eq!((estate.format, estate.state_dir.as_deref()), (format, None));
        assert!(estate.api.is_some() && estate.api_read.is_none() && estate.state_lock.is_none());
    }
    for (theirs, common) in [
        (&[1, 2, 3, 4, 5, 6][..], Some(5)),
        (&[4, 3], Some(4)),
        (&[1], Some(1)),
        (&[3, 1], Some(3)),
        (&[9, 2], Some(2)),
        (&[0, 6], None),
        (&[], None),
    ] {
        assert_eq!(wire::common_format(theirs), common, "{theirs:?}");
    }
}

#[test]
fn a_field_that_is_not_known_or_not_there_is_no_packet() {
    let packets = [
        json!({"yours": {"more": 1}}),
        json!({"link": {"runs": true, "more": 1}}),
        json!({"link": {}}),
        json!({"flip": {"sync_failed": []}}),
        json!({"seat": {"link": "l", "shard": 0, "words": 1, "bytes": 1}}),
        json!({"shard": {}}),
        json!({"tap": {"name": "t", "queue": 65536, "made": true}}),
        json!({"told": {"message": [256]}}),
        json!({"told": {"message": "text"}}),
        json!("yours"),
        json!([]),
        json!(null),
    ];
    for packet in packets {
        let said = refused(&mut begun(), &packet, 0);
        assert!(said.starts_with("a packet that makes no sense: "), "{packet}: {said}");
    }
}

/// Whoever refuses ends, and must not keep anybody's descriptors until then.
#[test]
fn descriptors_of_an_estate_that_is_refused_are_closed_with_it() {
    let mut others = Vec::new();
    let mut lent = || -> OwnedFd {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("set");
        others.push(ours);
        theirs.into()
    };
    let mut estate = Estate::default();
    let say =
        |estate: &mut Estate, packet: Value, fds| estate.take(packet.to_string().as_bytes(), fds);
    say(&mut estate, device("d", &["cached"], Some(false)), vec![lent()]).expect("taken");
    say(&mut estate, connection(), vec![lent()]).expect("taken");
    let told = json!({"told": {"message": [1]}});
    say(&mut estate, told.clone(), vec![lent(), lent()]).expect("taken");
    say(&mut estate, json!({"unread": {"bytes": [1]}}), vec![lent()]).expect("taken");
    assert_eq!(estate.descriptors(), 5, "what bounds are told of");
    // More than one of what there is one of, and what makes no sense.
    assert!(
        say(&mut estate, device("e", &["cached", "cached"], Some(false)), vec![lent(), lent()])
            .is_err()
    );
    assert!(say(&mut estate, json!({"nothing": {}}), vec![lent()]).is_err());
    let is_closed = |end: &mut UnixStream| end.read(&mut [0; 1]).is_ok_and(|read| read == 0);
    let closed: Vec<bool> = others.iter_mut().map(is_closed).collect();
    assert_eq!(closed, [false, false, false, false, false, true, true, true]);
    drop(estate);
    assert!(others.iter_mut().all(is_closed));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// A whole estate of which a packet is left out, comes early, or has another byte or descriptor: it is taken or refused
    /// there, and no more is held than came.
    #[test]
    fn an_estate_with_a_fault_is_taken_or_refused(
        at in any::<prop::sample::Index>(),
        fault in 0usize..4,
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut all: Vec<(usize, Vec<u8>)> =
            whole().map(|(fds, packet)| (fds, packet.as_bytes().to_vec())).collect();
        let (at, to) = (at.index(all.len()), place.index(all.len()));
        match fault {
            0 => drop(all.remove(at)),
            1 => all.swap(at, to),
            2 => all[at].0 += 1,
            _ => {
                let packet = &mut all[at].1;
                let place = place.index(packet.len());
                packet[place] = byte;
            }
        }
        let (mut estate, mut given) = (Estate::default(), 0);
        for (fds, packet) in all {
            given += fds;
            let taken = estate.take(&packet, (0..fds).map(|_| null()).collect());
            prop_assert!(estate.descriptors() <= given);
            if let Err(why) = taken {
                prop_assert!(!why.to_string().is_empty());
                break;
            }
        }
    }
}
