//! The table of messages and states; hostile and foreign front-ends.

use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::Framer;
use crate::message::{MacAddress, RingAddresses, RingFd, RingState};

/// A descriptor that counts how many of it are open.
#[derive(Clone, Debug)]
struct Fd(#[expect(dead_code, reason = "held for its count")] Rc<()>);

/// An owner that remembers, and refuses on demand.
#[derive(Default)]
struct World {
    open: Rc<()>,
    refuse: Cell<bool>,
    regions: Vec<(MemoryRegion, Fd)>,
    held: Vec<Fd>,
    config_written: Vec<(u32, Vec<u8>)>,
    resets: u32,
    announced: Vec<[u8; 6]>,
    mtus: Vec<u16>,
}

impl World {
    fn fd(&self) -> Fd {
        Fd(Rc::clone(&self.open))
    }
    fn open(&self) -> usize {
        Rc::strong_count(&self.open) - 1
    }
    fn answer(&self) -> Result<(), String> {
        if self.refuse.get() { Err("no".to_string()) } else { Ok(()) }
    }
}

impl Owner<Fd> for World {
    fn read_config(&self, offset: u32, into: &mut [u8]) -> bool {
        into.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i + offset as usize) as u8);
        (offset as usize).saturating_add(into.len()) <= 256
    }
    fn write_config(&mut self, _negotiated: u64, offset: u32, bytes: &[u8]) -> bool {
        self.config_written.push((offset, bytes.to_vec()));
        offset == 32
    }
    fn set_memory(&mut self, regions: &[MemoryRegion], fds: Vec<Fd>) -> Result<(), String> {
        assert_eq!(regions.len(), fds.len());
        self.answer()?;
        self.regions = regions.iter().copied().zip(fds).collect();
        Ok(())
    }
    fn add_region(&mut self, region: &MemoryRegion, fd: Fd) -> Result<(), String> {
        self.answer()?;
        self.regions.push((*region, fd));
        Ok(())
    }
    fn remove_region(&mut self, region: &MemoryRegion) -> Result<(), String> {
        self.answer()?;
        self.regions.retain(|(other, _)| other.gpa != region.gpa);
        Ok(())
    }
    fn set_log(&mut self, _area: LogArea, fd: Fd) -> Result<(), String> {
        self.answer()?;
        self.held.push(fd);
        Ok(())
    }
    fn make_inflight(&mut self, _len: u64) -> Result<Fd, String> {
        self.answer().map(|()| self.fd())
    }
    fn set_inflight(&mut self, _area: &InflightArea, fd: Fd) -> Result<(), String> {
        self.answer()?;
        self.held.push(fd);
        Ok(())
    }
    fn check_signal(&self, _fd: &Fd) -> Result<(), String> {
        self.answer()
    }
    fn set_channel(&mut self, fd: Fd) -> Result<(), String> {
        self.answer()?;
        self.held.push(fd);
        Ok(())
    }
    fn reset(&mut self) {
        self.resets += 1;
    }
    fn announce(&mut self, mac: [u8; 6]) -> Result<(), String> {
        self.answer()?;
        self.announced.push(mac);
        Ok(())
    }
    fn set_mtu(&mut self, mtu: u16) -> Result<(), String> {
        self.answer()?;
        self.mtus.push(mtu);
        Ok(())
    }
}

const VERSION_1: u64 = 1 << 32;

fn session() -> Session<Fd> {
    let features = VERSION_1 | bits::RING_PACKED;
    let inflight_len = |size: u16, packed: bool| u64::from(size) * if packed { 32 } else { 16 };
    let class = DeviceClass::Disk { inflight_len };
    Session::new(DeviceFacts { class, features, queues_max: 2, ring_size_max: 32768 })
}

/// A NIC of two pairs.
fn nic() -> Session<Fd> {
    let features = VERSION_1 | bits::RING_PACKED;
    let class = DeviceClass::Nic;
    Session::new(DeviceFacts { class, features, queues_max: 4, ring_size_max: 32768 })
}

/// Parses and applies, as the manager does, with the descriptors that the message expects.
fn say(session: &mut Session<Fd>, world: &mut World, message: &Message) -> Result<Vec<u8>, Reject> {
    let count = (0..40).find(|n| message.check_fds(*n).is_ok()).unwrap();
    let mut fds: Vec<Fd> = (0..count).map(|_| world.fd()).collect();
    let bytes = message.emit(true);
    let frame = Framer::default().push(&mut &bytes[..], &mut fds).unwrap().unwrap();
    let parsed = session.parse(&frame)?;
    assert_eq!(parsed, *message);
    let reply = session.apply(parsed, frame.fds, frame.need_reply, world)?;
    Ok(reply.map_or(Vec::new(), |reply| reply.bytes[12..].to_vec()))
}

fn state(queue: u32, value: u32) -> RingState {
    RingState { queue, value }
}

fn mac(bytes: [u8; 6], rest: u16) -> MacAddress {
    MacAddress { bytes, rest }
}

fn ring(queue: u32) -> RingFd {
    RingFd { queue, has_fd: true }
}

fn region(gpa: u64) -> MemoryRegion {
    MemoryRegion { gpa, size: 0x1000, user: gpa + (1 << 40), offset: 0 }
}

fn addresses() -> RingAddresses {
    let (descriptors, driver, device) = (1 << 40, (1 << 40) + 0x400, (1 << 40) + 0x800);
    RingAddresses { descriptors, driver, device, log: 0, logged: false }
}

/// All that queue 0 needs, in QEMU's order.
fn script() -> Vec<Message> {
    vec![
        Message::SetProtocolFeatures(bits::OFFERED_BY_DISK),
        Message::SetOwner,
        Message::SetFeatures(VERSION_1 | bits::PROTOCOL_FEATURES),
        Message::AddMemReg(region(0)),
        Message::SetVringNum(state(0, 128)),
        Message::SetVringBase(state(0, 7)),
        Message::SetVringAddr((0, addresses())),
        Message::SetVringKick(ring(0)),
        Message::SetVringCall(ring(0)),
        Message::SetVringEnable(state(0, 1)),
    ]
}

fn running(world: &mut World) -> Session<Fd> {
    let mut session = session();
    script().iter().for_each(|message| drop(say(&mut session, world, message).unwrap()));
    assert!(session.ready(0).is_some());
    session
}

const ACK: [u8; 8] = [0; 8];

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
        assert!(matches!(reject.reason, Reason::Owner { .. }), "{reject:?}");
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
fn a_nic_offers_and_counts_what_a_nic_has() {
    let (mut world, mut session) = (World::default(), nic());
    let mut ask = |message| {
        let bytes = say(&mut session, &mut world, &message).unwrap();
        u64::from_ne_bytes(bytes.try_into().unwrap())
    };
    let offered = ask(Message::GetProtocolFeatures);
    assert_eq!(offered & (bits::RARP | bits::NET_MTU), bits::RARP | bits::NET_MTU);
    assert_eq!(offered & (bits::INFLIGHT_SHMFD | bits::CONFIG), 0);
    assert_eq!(ask(Message::GetQueueNum), 2, "pairs, not rings");
    say(&mut session, &mut world, &Message::SetProtocolFeatures(bits::OFFERED_BY_NIC)).unwrap();
    let area = InflightArea { size: 2048, queues: 1, queue_size: 128, ..Default::default() };
    let reply = say(&mut session, &mut world, &Message::GetInflightFd(area)).unwrap();
    assert_eq!(reply[..8], [0; 8], "there is no such record");
    assert!(say(&mut session, &mut world, &Message::SetInflightFd(area)).is_err());
    let more = Message::SetProtocolFeatures(bits::OFFERED_BY_DISK);
    let refused = say(&mut session, &mut world, &more).unwrap_err();
    let only_disks = bits::INFLIGHT_SHMFD | bits::CONFIG;
    assert_eq!(refused.reason, Reason::ProtocolFeatures(only_disks));
    for queue in [3, 4] {
        let answer = say(&mut session, &mut world, &Message::SetVringNum(state(queue, 256)));
        assert_eq!(answer.is_ok(), queue < 4, "four rings");
    }
}

#[test]
fn addresses_and_mtus_reach_the_owner_when_they_make_sense() {
    let (mut world, mut session) = (World::default(), nic());
    let announce = Message::SendRarp(mac([2, 1, 2, 3, 4, 5], 0));
    let early = session.apply(announce.clone(), vec![], true, &mut world).unwrap_err();
    assert_eq!(early.reason, Reason::NotNegotiated { message: "SEND_RARP" });
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
        assert_eq!(reject.reason, Reason::Value { message: message.name(), value });
    }
    world.refuse.set(true);
    for message in [announce, Message::NetSetMtu(1500)] {
        let reject = say(&mut session, &mut world, &message).unwrap_err();
        assert!(matches!(reject.reason, Reason::Owner { .. }), "{reject:?}");
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
    assert_eq!(reject.reason, Reason::RegionOverlap { gpa: 0 }, "another one in its place");
    assert_eq!(session.scope(&remove), Scope::All);
    say(&mut session, &mut world, &remove).unwrap();
    assert_eq!(session.scope(&remove), Scope::None);
    say(&mut session, &mut world, &remove).unwrap();
    assert!(world.regions.is_empty() && !session.has_memory());
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
