//! What a NIC has beside what a disk has, and front-ends that say the same for each pair.

use super::*;

#[test]
fn a_nic_offers_and_counts_what_a_nic_has() {
    let (mut world, mut session) = (World::default(), nic());
    let mut ask = |message| {
        let bytes = say(&mut session, &mut world, &message).unwrap();
        u64::from_ne_bytes(bytes.try_into().unwrap())
    };
    let offered = ask(Message::GetProtocolFeatures);
    assert_eq!(offered & (bits::RARP | bits::NET_MTU), bits::RARP | bits::NET_MTU);
    assert_eq!(offered & (bits::INFLIGHT_SHMFD | bits::CONFIG), 0);
    assert_eq!(ask(Message::GetQueueNum), 2, "pairs, for QEMU, which has not said SET_OWNER yet");
    say(&mut session, &mut world, &Message::SetProtocolFeatures(bits::OFFERED_BY_NIC)).unwrap();
    let area = InflightArea { size: 2048, queues: 1, queue_size: 128, ..Default::default() };
    let reply = say(&mut session, &mut world, &Message::GetInflightFd(area)).unwrap();
    assert_eq!(reply[..8], [0; 8], "there is no such record");
    assert!(say(&mut session, &mut world, &Message::SetInflightFd(area)).is_err());
    let more = Message::SetProtocolFeatures(bits::OFFERED_BY_DISK);
    let refused = say(&mut session, &mut world, &more).unwrap_err();
    let only_disks = bits::INFLIGHT_SHMFD | bits::CONFIG;
    assert_eq!(refused.reason, Reason::ProtocolFeatures(only_disks).into());
    for queue in [3, 4] {
        let answer = say(&mut session, &mut world, &Message::SetVringNum(state(queue, 256)));
        assert_eq!(answer.is_ok(), queue < 4, "four rings");
    }
}

#[test]
fn rings_are_counted_for_whoever_owns_first() {
    let (mut world, mut session) = (World::default(), nic());
    say(&mut session, &mut world, &Message::SetOwner).unwrap();
    let answer = say(&mut session, &mut world, &Message::GetQueueNum).unwrap();
    assert_eq!(u64::from_ne_bytes(answer.try_into().unwrap()), 4);
}

/// A guest that took `RING_RESET` from an earlier version of the daemon keeps its NIC.
#[test]
fn a_ring_reset_is_not_offered_and_harms_no_guest_that_has_it() {
    for mut session in [nic(), session()] {
        let mut world = World::default();
        let offered = say(&mut session, &mut world, &Message::GetFeatures).unwrap();
        let offered = u64::from_ne_bytes(offered.try_into().unwrap());
        assert_eq!(offered & bits::RING_RESET, 0);
        let taken = offered & !bits::LOG_ALL;
        let message = Message::SetFeatures(taken | bits::RING_RESET);
        say(&mut session, &mut world, &message).unwrap();
        assert_eq!(session.features(), taken & !bits::TRANSPORT);
        assert_eq!(session.scope(&message), Scope::None, "nothing would change");
        let unknown = Message::SetFeatures(taken | 1 << 41);
        let refused = say(&mut session, &mut world, &unknown).unwrap_err();
        assert_eq!(refused.reason, Reason::Features(1 << 41).into());
    }
}

#[test]
fn addresses_and_mtus_reach_the_owner_when_they_make_sense() {
    let (mut world, mut session) = (World::default(), nic());
    let announce = Message::SendRarp(mac([2, 1, 2, 3, 4, 5], 0));
    let early = session.apply(announce.clone(), vec![], true, &mut world).unwrap_err();
    assert_eq!(early.reason, Reason::NotNegotiated { message: "SEND_RARP" }.into());
    say(&mut session, &mut world, &Message::SetProtocolFeatures(bits::OFFERED_BY_NIC)).unwrap();
    for message in [announce.clone(), announce.clone(), Message::NetSetMtu(1500)] {
        assert_eq!(say(&mut session, &mut world, &message).unwrap(), ACK);
    }
    for mtu in [68, 65535] {
        assert_eq!(say(&mut session, &mut world, &Message::NetSetMtu(mtu)).unwrap(), ACK);
    }
    let expected = [1500, 68, 65535];
    assert_eq!((world.announced.len(), &world.mtus[..]), (2, &expected[..]));
    assert_eq!(world.announced[0], [2, 1, 2, 3, 4, 5]);
    let before = format!("{session:?}");
    let senseless = [
        (Message::SendRarp(mac([0; 6], 0)), 0),
        (Message::SendRarp(mac([1, 0, 0, 0, 0, 1], 0)), 0x0100_0000_0001_0000),
        (Message::SendRarp(mac([0xff; 6], 0)), 0xffff_ffff_ffff_0000),
        (Message::SendRarp(mac([2, 0, 0, 0, 0, 1], 0x0300)), 0x0200_0000_0001_0300),
        (Message::NetSetMtu(0), 0),
        (Message::NetSetMtu(67), 67),
        (Message::NetSetMtu(65536), 65536),
        (Message::NetSetMtu(u64::MAX), u64::MAX),
    ];
    for (message, value) in senseless {
        let reject = say(&mut session, &mut world, &message).unwrap_err();
        assert_eq!(reject.reason, Reason::Value { message: message.name(), value }.into());
    }
    world.refuse.set(true);
    for message in [announce, Message::NetSetMtu(1500)] {
        let reject = say(&mut session, &mut world, &message).unwrap_err();
        assert_eq!(reject.reason.to_string(), format!("{}: no", message.name()));
    }
    assert_eq!(format!("{session:?}"), before);
    assert_eq!((world.announced.len(), world.mtus.len()), (2, 3), "nothing was taken");
}

/// What QEMU says for one pair of rings when its guest's driver has started: it has a `vhost_dev` for
/// each pair, and most of them say again what the first has said.
fn start_of_pair(pair: u32) -> Vec<Message> {
    let mut all = vec![Message::SetFeatures(VERSION_1 | bits::PROTOCOL_FEATURES)];
    if pair == 0 {
        all.push(Message::SetMemTable(vec![region(0)]));
    }
    for queue in [2 * pair, 2 * pair + 1] {
        all.extend([
            Message::SetVringNum(state(queue, 256)),
            Message::SetVringBase(state(queue, 0)),
            Message::SetVringAddr((queue, addresses())),
            Message::SetVringKick(ring(queue)),
            Message::SetVringCall(ring(queue)),
        ]);
    }
    all.extend([2 * pair, 2 * pair + 1].map(|queue| Message::SetVringEnable(state(queue, 1))));
    all
}

#[test]
fn one_pair_of_a_nic_starts_and_stops_without_the_other() {
    let (mut world, mut session) = (World::default(), nic());
    // Each `vhost_dev` negotiates for itself, over the one connection.
    for _ in 0..2 {
        say(&mut session, &mut world, &Message::SetProtocolFeatures(bits::OFFERED_BY_NIC)).unwrap();
        say(&mut session, &mut world, &Message::SetOwner).unwrap();
    }
    for message in start_of_pair(0) {
        say(&mut session, &mut world, &message).unwrap();
    }
    assert!(session.ready(0).is_some() && session.ready(1).is_some());
    for message in start_of_pair(1) {
        let scope = session.scope(&message);
        let apart = matches!(scope, Scope::None | Scope::Queue(2 | 3));
        assert!(apart, "{}: {scope:?}", message.name());
        say(&mut session, &mut world, &message).unwrap();
        assert!(session.ready(0).is_some() && session.ready(1).is_some(), "{}", message.name());
    }
    assert!((0..4).all(|queue| session.ready(queue).is_some()));
    // The driver turns one pair off and on at run time.
    for (value, runs) in [(0, false), (0, false), (1, true), (1, true)] {
        for queue in [2, 3] {
            say(&mut session, &mut world, &Message::SetVringEnable(state(queue, value))).unwrap();
        }
        assert!(session.ready(0).is_some() && session.ready(1).is_some());
        assert_eq!(session.ready(2).is_some() && session.ready(3).is_some(), runs);
    }
    session.stopped_at(3, 9);
    let reply = say(&mut session, &mut world, &Message::GetVringBase(state(3, 0))).unwrap();
    assert_eq!(reply[4..], 9u32.to_ne_bytes());
    assert!(session.ready(2).is_some() && session.ready(3).is_none());
}

#[test]
fn what_is_said_twice_is_as_if_it_was_said_once() {
    let (mut world, mut session) = (World::default(), nic());
    let mut script = vec![Message::SetProtocolFeatures(bits::OFFERED_BY_NIC), Message::SetOwner];
    script.extend(start_of_pair(0));
    script.extend(start_of_pair(1));
    for message in &script {
        say(&mut session, &mut world, message).unwrap();
        let (once, open) = (format!("{session:?}"), world.open());
        say(&mut session, &mut world, message).unwrap();
        // Its count of changes moves, and that is all.
        let plain = |text: &str| text.split("changes").next().map(str::to_string);
        assert_eq!(plain(&format!("{session:?}")), plain(&once), "{}", message.name());
        assert_eq!(world.open(), open, "{}", message.name());
    }
    assert!((0..4).all(|queue| session.ready(queue).is_some()));
}

#[test]
fn regions_of_a_nic_are_added_and_removed_by_each_of_its_pairs() {
    let mut world = World::default();
    let mut session = nic();
    let add = Message::AddMemReg(region(0));
    let remove = Message::RemMemReg(region(0));
    assert_eq!(session.scope(&add), Scope::All);
    say(&mut session, &mut world, &add).unwrap();
    let open = world.open();
    assert_eq!(session.scope(&add), Scope::None, "queues that run are not disturbed");
    say(&mut session, &mut world, &add).unwrap();
    assert_eq!((world.regions.len(), world.open()), (1, open), "one region, one descriptor");
    let other = MemoryRegion { offset: 0x1000, ..region(0) };
    let reject = say(&mut session, &mut world, &Message::AddMemReg(other)).unwrap_err();
    assert_eq!(reject.reason, Reason::RegionOverlap { gpa: 0 }.into(), "another one in its place");
    assert_eq!(session.scope(&remove), Scope::All);
    say(&mut session, &mut world, &remove).unwrap();
    assert_eq!(session.scope(&remove), Scope::None);
    say(&mut session, &mut world, &remove).unwrap();
    assert!(world.regions.is_empty() && !session.has_memory());
}
