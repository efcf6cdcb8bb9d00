//! What is refused, by the session or by its owner, and that it changes nothing.

use super::*;

/// Messages that must change nothing: with an acknowledgement asked for, they are refused by one.
fn refused() -> Vec<Message> {
    let area = |size, queues, queue_size| {
        Message::SetInflightFd(InflightArea { size, queues, queue_size, ..Default::default() })
    };
    let span = |offset, size, flags, len| ConfigSpan { offset, size, flags, bytes: vec![0; len] };
    let mut all = vec![
        Message::SetFeatures(1 << 5),
        Message::SetProtocolFeatures(1 << 14),
        Message::SetProtocolFeatures(u64::MAX),
        Message::SetProtocolFeatures(bits::RARP),
        Message::SetProtocolFeatures(bits::NET_MTU),
        Message::SendRarp(mac([2, 0, 0, 0, 0, 1], 0)),
        Message::NetSetMtu(1500),
        Message::SetMemTable(vec![]),
        Message::SetMemTable(vec![region(0), region(0xfff)]),
        Message::SetMemTable(vec![MemoryRegion { size: 0, ..region(0) }]),
        Message::SetMemTable(vec![MemoryRegion { size: u64::MAX, ..region(1) }]),
        Message::AddMemReg(region(0)),
        Message::AddMemReg(MemoryRegion { user: u64::MAX, ..region(0x5000) }),
        Message::RemMemReg(region(0x1000)),
        Message::SetLogBase(LogArea { size: 0, offset: 0 }),
        Message::SetLogBase(LogArea { size: 2, offset: u64::MAX }),
        Message::SetVringBase(state(0, 0x10000)),
        Message::SetVringAddr((0, RingAddresses { descriptors: 8, ..addresses() })),
        Message::SetVringAddr((0, RingAddresses { driver: 1, ..addresses() })),
        Message::SetVringAddr((0, RingAddresses { device: 2, ..addresses() })),
        Message::SetConfig(span(31, 1, 0, 1)),
        Message::SetConfig(span(32, 2, 0, 1)),
        Message::SetConfig(span(32, 1, 2, 1)),
        Message::SetConfig(span(u32::MAX, 1, 0, 1)),
        Message::SetConfig(span(256, 1, 0, 1)),
        area(2048, 3, 128),
        area(2048, 0, 128),
        area(2048, 1, 0),
        area(2047, 1, 128),
        area(u64::MAX, 1, 40000),
    ];
    for size in [0, 3, 65535, 0x10000, u32::MAX] {
        all.push(Message::SetVringNum(state(0, size)));
    }
    for queue in [2, 0x100, 0x10000, u32::MAX] {
        all.push(Message::SetVringNum(state(queue, 128)));
        all.push(Message::SetVringBase(state(queue, 0)));
        all.push(Message::GetVringBase(state(queue, 0)));
        all.push(Message::SetVringEnable(state(queue, 1)));
        all.push(Message::SetVringAddr((queue, addresses())));
    }
    for queue in [2, 255] {
        all.push(Message::SetVringKick(ring(queue)));
        all.push(Message::SetVringCall(ring(queue)));
        all.push(Message::SetVringErr(RingFd { queue, has_fd: false }));
    }
    all
}

#[test]
fn a_refusal_changes_nothing_and_leaks_nothing() {
    let mut world = World::default();
    let mut session = running(&mut world);
    let (before, open) = (format!("{session:?}"), world.open());
    for message in refused() {
        let reject = say(&mut session, &mut world, &message).unwrap_err();
        let nak = reject.nak.as_deref().map(|bytes| &bytes[12..]);
        assert_eq!(nak, Some(&1u64.to_ne_bytes()[..]), "{message:?}: {}", reject.reason);
        assert!(!reject.is_fatal());
        assert_eq!(format!("{session:?}"), before, "{message:?}");
        assert_eq!(world.open(), open, "{message:?}");
    }
}

#[test]
fn what_the_owner_refuses_changes_nothing() {
    let mut world = World::default();
    let mut session = running(&mut world);
    let (before, open) = (format!("{session:?}"), world.open());
    world.refuse.set(true);
    let area = InflightArea { size: 2048, queues: 1, queue_size: 128, ..Default::default() };
    let asked = [
        Message::SetMemTable(vec![region(0), region(0x1000)]),
        Message::AddMemReg(region(0x1000)),
        Message::RemMemReg(region(0)),
        Message::SetLogBase(LogArea { size: 4096, offset: 0 }),
        Message::SetVringKick(ring(0)),
        Message::SetVringCall(ring(1)),
        Message::SetVringErr(ring(1)),
        Message::SetBackendReqFd,
        Message::GetInflightFd(area),
        Message::SetInflightFd(area),
    ];
    for message in asked {
        let reject = say(&mut session, &mut world, &message).unwrap_err();
        assert_eq!(reject.reason.to_string(), format!("{}: no", message.name()));
        assert_eq!((format!("{session:?}"), world.open()), (before.clone(), open));
    }
}

#[test]
fn without_an_acknowledgement_a_refusal_ends_the_connection() {
    let mut world = World::default();
    let mut fresh = session();
    for message in [Message::SetVringNum(state(9, 1)), Message::SetFeatures(2)] {
        assert!(say(&mut fresh, &mut world, &message).unwrap_err().is_fatal());
    }
    let mut session = running(&mut world);
    let unasked = session.apply(Message::SetVringNum(state(9, 1)), vec![], false, &mut world);
    assert!(unasked.unwrap_err().is_fatal());
    // Nor does a payload of the wrong size leave anything to go on with.
    let mut frame = Frame { request: 8, need_reply: true, payload: vec![0; 9], fds: vec![] };
    assert!(session.parse(&frame).unwrap_err().is_fatal());
    frame.request = 22;
    assert!(!session.parse(&frame).unwrap_err().is_fatal(), "unknown, but of a known form");
    frame.fds = vec![world.fd()];
    (frame.request, frame.payload) = (8, vec![0; 8]);
    assert!(!session.parse(&frame).unwrap_err().is_fatal(), "a descriptor too many");
    let open = world.open();
    drop(frame);
    assert_eq!(world.open(), open - 1);
}
