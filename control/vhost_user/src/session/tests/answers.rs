//! Questions and their answers: features, config space, in-flight record, dirty log.

use super::*;

#[test]
fn questions_are_answered() {
    let (mut world, mut session) = (World::default(), session());
    let mut ask = |message| {
        let bytes = say(&mut session, &mut world, &message).unwrap();
        u64::from_ne_bytes(bytes.try_into().unwrap())
    };
    assert_eq!(ask(Message::GetFeatures), VERSION_1 | bits::RING_PACKED | bits::TRANSPORT);
    assert_eq!(ask(Message::GetProtocolFeatures), bits::OFFERED_BY_DISK);
    assert_eq!(ask(Message::GetQueueNum), 2);
    assert_eq!(ask(Message::GetMaxMemSlots), 509);
}

#[test]
fn the_config_space_is_read_whole_or_not_at_all() {
    let mut world = World::default();
    let mut session = running(&mut world);
    let mut get = |offset, size, len| {
        let span = ConfigSpan { offset, size, flags: 0, bytes: vec![0; len] };
        say(&mut session, &mut world, &Message::GetConfig(span)).unwrap()
    };
    let whole = get(0, 256, 256);
    assert_eq!(whole.len(), 12 + 256);
    assert_eq!(whole[12 + 255], 255);
    assert_eq!(get(8, 4, 4)[12..], [8, 9, 10, 11]);
    for (offset, size, len) in [(0, 0, 0), (0, 257, 257), (0, 8, 4), (255, 2, 2), (u32::MAX, 8, 8)]
    {
        assert_eq!(get(offset, size, len), [0u8; 0], "{offset} {size} {len}");
    }
    let span = ConfigSpan { offset: 32, size: 1, flags: 0, bytes: vec![0] };
    assert_eq!(say(&mut session, &mut world, &Message::SetConfig(span)).unwrap(), ACK);
}

#[test]
fn an_inflight_record_is_made_and_bounded() {
    let mut world = World::default();
    let mut session = running(&mut world);
    let mut get = |queues, queue_size, padded| {
        let area = InflightArea { queues, queue_size, padded, ..Default::default() };
        say(&mut session, &mut world, &Message::GetInflightFd(area)).unwrap()
    };
    let made = get(2, 128, false);
    assert_eq!((made.len(), &made[..8]), (20, &4096u64.to_ne_bytes()[..]));
    assert_eq!(get(2, 128, true).len(), 24);
    for (queues, queue_size) in [(65535, 65535), (3, 128), (0, 128), (1, 0)] {
        assert_eq!(get(queues, queue_size, false)[..8], [0; 8]);
    }
}

#[test]
fn logging_needs_both_a_log_and_the_feature() {
    let mut world = World::default();
    let mut session = running(&mut world);
    say(&mut session, &mut world, &Message::SetFeatures(VERSION_1 | bits::TRANSPORT)).unwrap();
    assert!(!session.is_logging());
    let area = LogArea { size: 4096, offset: 0 };
    let reply = say(&mut session, &mut world, &Message::SetLogBase(area)).unwrap();
    assert_eq!(reply, message::payload(&area));
    assert!(session.is_logging());
    assert_eq!(session.features(), VERSION_1, "the device does not see the transport's bits");
    say(&mut session, &mut world, &Message::SetFeatures(VERSION_1)).unwrap();
    assert!(!session.is_logging());
}

#[test]
fn a_config_change_is_announced_where_there_is_a_channel() {
    let mut world = World::default();
    let mut session = running(&mut world);
    assert_eq!(session.config_changed(), None);
    say(&mut session, &mut world, &Message::SetBackendReqFd).unwrap();
    let bytes = session.config_changed().unwrap();
    assert_eq!(bytes, [2u32, 1, 0].iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>());
    say(&mut session, &mut world, &Message::SetProtocolFeatures(bits::REPLY_ACK)).unwrap();
    assert_eq!(session.config_changed(), None);
}
