//! What a process that takes over is told of a session: all that it needs to make the same.

use super::*;

/// Sizes, places and signals of a ring, without the descriptors themselves.
fn plain(facts: Option<RingFacts<'_, Fd>>) -> Option<(u16, RingAddresses, u32, bool, bool)> {
    facts.map(|it| (it.size, it.addresses, it.told, it.kick.is_some(), it.call.is_some()))
}

#[test]
fn all_that_a_session_holds_is_retold_and_makes_the_same() {
    let mut world = World::default();
    let mut session = running(&mut world);
    let log = LogArea { size: 4096, offset: 0 };
    let record = InflightArea { size: 4096, queues: 2, queue_size: 128, ..Default::default() };
    for message in [
        Message::SetFeatures(VERSION_1 | bits::TRANSPORT),
        Message::SetBackendReqFd,
        Message::SetLogBase(log),
        Message::SetLogFd,
        Message::SetInflightFd(record),
        Message::SetVringErr(ring(0)),
        // The other one is polled, and not enabled.
        Message::SetVringNum(state(1, 64)),
        Message::SetVringAddr((1, addresses())),
        Message::SetVringKick(RingFd { queue: 1, has_fd: false }),
    ] {
        say(&mut session, &mut world, &message).unwrap();
    }
    let fd = world.fd();
    let lent = vec![
        (Message::SetMemTable(vec![region(0)]), vec![&fd]),
        (Message::SetLogBase(log), vec![&fd]),
        (Message::SetInflightFd(record), vec![&fd]),
        (Message::SetBackendReqFd, vec![&fd]),
    ];
    let (mut heirs_world, mut heir) = (World::default(), self::session());
    for (message, fds) in session.retell(lent) {
        let fds = fds.into_iter().cloned().collect();
        heir.apply(message, fds, false, &mut heirs_world).unwrap();
    }
    assert_eq!((heirs_world.regions.len(), heirs_world.held.len()), (1, 3));
    for queue in 0..2 {
        let facts = plain(session.set_up(queue));
        assert!(facts.is_some_and(|(.., has_kick, _)| has_kick == (queue == 0)), "{facts:?}");
        assert_eq!(plain(heir.set_up(queue)), facts);
        assert_eq!(heir.ready(queue).is_some(), session.ready(queue).is_some());
    }
    assert!(heir.is_logging() && heir.failed(0).is_some() && heir.config_changed().is_some());
    assert_eq!(heir.features(), session.features());
    assert!(heir.set_up(2).is_none());
}
