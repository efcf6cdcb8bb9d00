//! When rings are ready, what stops them, and whom a message disturbs.

use super::*;

#[test]
fn a_ring_is_ready_when_the_last_fact_comes_whatever_the_order() {
    // Each rotation begins elsewhere, but negotiation comes first.
    for turn in 0..7 {
        let (mut world, mut session) = (World::default(), session());
        let mut script = script();
        script[3..].rotate_left(turn);
        for (index, message) in script.iter().enumerate() {
            assert!(session.ready(0).is_none(), "after {index} of turn {turn}");
            assert_eq!(say(&mut session, &mut world, message).unwrap(), ACK);
            let is_last_needed = !script[index + 1..]
                .iter()
                .any(|later| !matches!(later, Message::SetVringCall(_) | Message::SetVringBase(_)));
            if is_last_needed {
                break;
            }
        }
        assert_eq!(session.ready(0).map(|facts| facts.size), Some(128), "turn {turn}");
        assert!(session.ready(1).is_none());
    }
}

#[test]
fn without_protocol_features_rings_start_enabled() {
    let (mut world, mut session) = (World::default(), session());
    for message in script() {
        let message = match message {
            Message::SetFeatures(_) => Message::SetFeatures(VERSION_1),
            Message::SetVringEnable(_) => continue,
            other => other,
        };
        say(&mut session, &mut world, &message).unwrap();
    }
    assert!(session.ready(0).is_some());
    say(&mut session, &mut world, &Message::SetVringEnable(state(0, 0))).unwrap();
    assert!(session.ready(0).is_none(), "what the front-end says counts more");
}

#[test]
fn scopes_name_the_queues_that_stand_on_what_changes() {
    let mut world = World::default();
    let session = running(&mut world);
    let area = InflightArea { size: 4096, queues: 1, queue_size: 8, ..InflightArea::default() };
    let span = ConfigSpan { offset: 32, size: 1, flags: 0, bytes: vec![0] };
    let table = [
        (Message::GetFeatures, Scope::None),
        (Message::SetFeatures(VERSION_1 | bits::PROTOCOL_FEATURES), Scope::None),
        (Message::SetFeatures(VERSION_1 | bits::TRANSPORT), Scope::All),
        (Message::SetOwner, Scope::None),
        (Message::ResetOwner, Scope::All),
        (Message::SetMemTable(vec![region(0)]), Scope::All),
        (Message::SetLogBase(LogArea { size: 1, offset: 0 }), Scope::All),
        (Message::SetLogFd, Scope::None),
        (Message::SetVringNum(state(1, 8)), Scope::Queue(1)),
        (Message::SetVringAddr((1, addresses())), Scope::Queue(1)),
        (Message::SetVringBase(state(1, 8)), Scope::Queue(1)),
        (Message::GetVringBase(state(1, 0)), Scope::Queue(1)),
        (Message::SetVringKick(ring(1)), Scope::Queue(1)),
        (Message::SetVringCall(ring(1)), Scope::None),
        (Message::SetVringErr(ring(1)), Scope::None),
        (Message::SetVringEnable(state(1, 0)), Scope::Queue(1)),
        (Message::SetVringEnable(state(1, 1)), Scope::None),
        (Message::SetVringEnable(state(2, 0)), Scope::None),
        (Message::GetVringBase(state(0x10000, 0)), Scope::None),
        (Message::SetProtocolFeatures(0), Scope::None),
        (Message::SendRarp(mac([2, 0, 0, 0, 0, 1], 0)), Scope::None),
        (Message::NetSetMtu(1500), Scope::None),
        (Message::SetBackendReqFd, Scope::None),
        (Message::GetConfig(span.clone()), Scope::None),
        (Message::SetConfig(span), Scope::None),
        (Message::GetInflightFd(area), Scope::None),
        (Message::SetInflightFd(area), Scope::All),
        (Message::ResetDevice, Scope::All),
        (Message::AddMemReg(region(0x1000)), Scope::All),
        (Message::RemMemReg(region(0)), Scope::All),
    ];
    for (message, expected) in table {
        assert_eq!(session.scope(&message), expected, "{}", message.name());
    }
}

#[test]
fn stopping_gives_the_base_and_closes_the_descriptors() {
    let mut world = World::default();
    let mut session = running(&mut world);
    assert_eq!(session.ready(0).map(|facts| facts.base), Some(7));
    session.stopped_at(0, 0x1234);
    let before = world.open();
    let reply = say(&mut session, &mut world, &Message::GetVringBase(state(0, 0))).unwrap();
    assert_eq!(reply, [0, 0, 0, 0, 0x34, 0x12, 0, 0]);
    assert_eq!(world.open(), before - 2);
    assert!(session.ready(0).is_none());
    say(&mut session, &mut world, &Message::SetVringKick(ring(0))).unwrap();
    assert!(session.ready(0).is_some(), "a new kick starts it again");
}

#[test]
fn resets_stop_every_ring_and_keep_what_is_not_sent_again() {
    for reset in [Message::ResetDevice, Message::ResetOwner] {
        let mut world = World::default();
        let mut session = running(&mut world);
        say(&mut session, &mut world, &Message::SetVringErr(ring(0))).unwrap();
        say(&mut session, &mut world, &reset).unwrap();
        assert_eq!(world.resets, u32::from(reset == Message::ResetDevice));
        assert!(session.ready(0).is_none());
        assert!(session.has_memory());
        for message in script().into_iter().skip(4) {
            let is_call = matches!(message, Message::SetVringCall(_));
            drop((!is_call).then(|| say(&mut session, &mut world, &message).unwrap()));
        }
        assert!(session.ready(0).is_some_and(|facts| facts.call.is_some()));
        assert!(session.failed(0).is_some());
    }
}

#[test]
fn a_failed_queue_waits_for_stop_or_reset() {
    let mut world = World::default();
    let mut session = running(&mut world);
    assert!(session.failed(0).is_none(), "no error descriptor was set");
    let call = Message::SetVringCall(ring(0));
    for message in [call, Message::SetVringKick(ring(0)), Message::SetMemTable(vec![region(0)])] {
        say(&mut session, &mut world, &message).unwrap();
        assert!(session.ready(0).is_none(), "{}", message.name());
    }
    say(&mut session, &mut world, &Message::GetVringBase(state(0, 0))).unwrap();
    say(&mut session, &mut world, &Message::SetVringKick(ring(0))).unwrap();
    assert!(session.ready(0).is_some());
}

#[test]
fn packed_rings_have_any_size_and_a_base_of_two_halves() {
    let (mut world, mut session) = (World::default(), session());
    say(&mut session, &mut world, &Message::SetProtocolFeatures(bits::OFFERED_BY_DISK)).unwrap();
    say(&mut session, &mut world, &Message::SetFeatures(VERSION_1 | bits::RING_PACKED)).unwrap();
    for size in [1, 3, 32767, 32768] {
        say(&mut session, &mut world, &Message::SetVringNum(state(1, size))).unwrap();
    }
    say(&mut session, &mut world, &Message::SetVringBase(state(1, 0x8001_8001))).unwrap();
    let odd = RingAddresses { driver: 2, ..addresses() };
    assert!(say(&mut session, &mut world, &Message::SetVringAddr((1, odd))).is_err());
    let reply = say(&mut session, &mut world, &Message::GetVringBase(state(1, 0))).unwrap();
    assert_eq!(reply[4..], 0x8001_8001u32.to_ne_bytes());
}

#[test]
fn what_was_said_is_retold_whole_and_what_no_longer_makes_sense_is_left_out() {
    let mut world = World::default();
    let mut session = running(&mut world);
    session.stopped_at(0, 9);
    let fd = world.fd();
    let lent = || vec![(Message::AddMemReg(region(0)), vec![&fd])];
    let names = |session: &Session<Fd>| -> Vec<&'static str> {
        session.retell(lent()).iter().map(|(message, _)| message.name()).collect()
    };
    assert_eq!(
        names(&session),
        [
            "SET_OWNER",
            "SET_PROTOCOL_FEATURES",
            "SET_FEATURES",
            "ADD_MEM_REG",
            "SET_VRING_NUM",
            "SET_VRING_BASE",
            "SET_VRING_ADDR",
            "SET_VRING_KICK",
            "SET_VRING_CALL",
            "SET_VRING_ENABLE",
        ]
    );
    let base = |session: &Session<Fd>| {
        session.retell(lent()).into_iter().find_map(|(message, _)| match message {
            Message::SetVringBase(state) => Some(state.value),
            _ => None,
        })
    };
    // Where its front-end knows it to stand, for when that comes again and says so.
    assert_eq!((base(&session), session.base(0)), (Some(7), Some(9)));
    let stop = Message::GetVringBase(state(0, 0));
    say(&mut session, &mut world, &stop).unwrap();
    assert_eq!((base(&session), session.base(0)), (Some(9), Some(9)));
    let packed = VERSION_1 | bits::PROTOCOL_FEATURES | bits::RING_PACKED;
    say(&mut session, &mut world, &Message::SetFeatures(packed)).unwrap();
    say(&mut session, &mut world, &Message::SetVringNum(state(0, 100))).unwrap();
    assert!(names(&session).contains(&"SET_VRING_NUM"));
    let split = VERSION_1 | bits::PROTOCOL_FEATURES;
    say(&mut session, &mut world, &Message::SetFeatures(split)).unwrap();
    assert!(!names(&session).contains(&"SET_VRING_NUM"), "a split ring of 100");
}
