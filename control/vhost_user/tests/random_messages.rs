//! Whatever a front-end sends: no panic, a refusal changes nothing, and no descriptor is kept that
//! the session does not show.

use std::rc::Rc;

use proptest::prelude::*;
use vhost_user::{
    DeviceClass, DeviceFacts, Frame, InflightArea, LogArea, MemoryRegion, Message, Owner,
    RingFacts, Scope, Session, bits,
};

/// Refuses or takes, as told; keeps nothing.
struct World(bool);

type Fd = Rc<()>;

impl World {
    fn answer(&self) -> Result<(), &'static str> {
        if self.0 { Ok(()) } else { Err("no") }
    }
}

impl Owner<Fd> for World {
    type Error = &'static str;

    fn read_config(&self, _offset: u32, _into: &mut [u8]) -> bool {
        self.0
    }
    fn write_config(&mut self, _negotiated: u64, _offset: u32, _bytes: &[u8]) -> bool {
        self.0
    }
    fn set_memory(&mut self, _regions: &[MemoryRegion], _fds: Vec<Fd>) -> Result<(), &'static str> {
        self.answer()
    }
    fn add_region(&mut self, _region: &MemoryRegion, _fd: Fd) -> Result<(), &'static str> {
        self.answer()
    }
    fn remove_region(&mut self, _region: &MemoryRegion) -> Result<(), &'static str> {
        self.answer()
    }
    fn set_log(&mut self, _area: LogArea, _fd: Fd) -> Result<(), &'static str> {
        self.answer()
    }
    fn make_inflight(&mut self, _len: u64) -> Result<Fd, &'static str> {
        self.answer().map(|()| Rc::new(()))
    }
    fn set_inflight(&mut self, _area: &InflightArea, _fd: Fd) -> Result<(), &'static str> {
        self.answer()
    }
    fn check_signal(&self, _fd: &Fd) -> Result<(), &'static str> {
        self.answer()
    }
    fn set_channel(&mut self, _fd: Fd) -> Result<(), &'static str> {
        self.answer()
    }
    fn reset(&mut self) {}
    fn announce(&mut self, _mac: [u8; 6]) -> Result<(), &'static str> {
        self.answer()
    }
    fn set_mtu(&mut self, _mtu: u16) -> Result<(), &'static str> {
        self.answer()
    }
}

/// Small numbers and the edges of their types, so that messages are often about the same thing.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        6 => 0u32..4,
        2 => prop::sample::select(vec![16, 128, 256, 0x1000, 32768, 0x1_0000]),
        1 => prop::sample::select(vec![u32::MAX, 1 << 31, 0xffff, 0x8000_0000]),
        1 => any::<u32>(),
    ]
}

fn frame() -> impl Strategy<Value = (u32, bool, Vec<u32>, usize, usize)> {
    (0u32..42, any::<bool>(), prop::collection::vec(word(), 0..20), 0usize..4, 0usize..4)
}

/// Another process takes over: it takes every message, and each ring that could run, and that it was
/// told all of, is the same there.
fn retold(session: &Session<Fd>, facts: DeviceFacts) -> Result<(), TestCaseError> {
    let fd: Fd = Rc::new(());
    let region = MemoryRegion { gpa: 0, size: 0x1000, user: 1 << 40, offset: 0 };
    let lent = match session.has_memory() {
        true => vec![(Message::SetMemTable(vec![region]), vec![&fd])],
        false => Vec::new(),
    };
    let told = session.retell(lent);
    let mut heir: Session<Fd> = Session::new(facts);
    for (message, fds) in &told {
        let fds = fds.iter().map(|fd| Rc::clone(fd)).collect();
        let bytes = message.emit(false);
        let parsed = Message::parse(message.id(), &bytes[12..]);
        prop_assert_eq!(parsed.as_ref(), Ok(message));
        let taken = heir.apply(message.clone(), fds, false, &mut World(true));
        prop_assert!(taken.is_ok(), "{}: {:?}", message.name(), taken);
    }
    prop_assert_eq!(heir.features(), session.features());
    prop_assert_eq!(heir.has_owner(), session.has_owner());
    prop_assert_eq!(heir.has_memory(), session.has_memory());
    for queue in 0..facts.queues_max {
        let of_it = |message: &Message| match message {
            Message::SetVringNum(state) => state.queue == u32::from(queue),
            Message::SetVringAddr((ring, _)) => *ring == u32::from(queue),
            _ => false,
        };
        let is_whole = told.iter().filter(|(message, _)| of_it(message)).count() == 2;
        if let Some(before) = session.ready(queue).filter(|_| is_whole) {
            let after = heir.ready(queue);
            prop_assert!(after.is_some(), "ring {queue} does not run any more");
            let fact = |facts: &RingFacts<'_, Fd>| {
                (facts.size, facts.addresses, facts.kick.is_some(), facts.call.is_some())
            };
            prop_assert_eq!(after.as_ref().map(fact), Some(fact(&before)));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_message_does_harm(
        frames in prop::collection::vec(frame(), 1..30),
        takes in prop::collection::vec(any::<bool>(), 30),
        is_nic in any::<bool>(),
    ) {
        let inflight_len = |size: u16, packed: bool| u64::from(size) * if packed { 32 } else { 16 };
        let features = 1 << 32 | bits::RING_PACKED;
        let class = if is_nic { DeviceClass::Nic } else { DeviceClass::Disk { inflight_len } };
        let facts = DeviceFacts { class, features, queues_max: 3, ring_size_max: 32768 };
        let mut session: Session<Fd> = Session::new(facts);
        let open: Fd = Rc::new(());
        for ((request, need_reply, words, fds, cut), take) in frames.into_iter().zip(takes) {
            let mut payload: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            // Mostly of the length that the message has, so that more than lengths is tried.
            if cut != 0 {
                let right = (0..200).find(|len| {
                    Message::parse(request, &vec![0; *len]).is_ok()
                });
                payload.resize(right.unwrap_or(cut), 0);
            }
            let frame = Frame { request, need_reply, payload, fds: vec![Rc::clone(&open); fds] };
            let before = format!("{session:?}");
            let held = Rc::strong_count(&open) - fds;
            let Ok(message) = session.parse(&frame) else {
                prop_assert_eq!(format!("{:?}", session), before);
                continue;
            };
            if let Scope::Queue(queue) = session.scope(&message) {
                prop_assert!(queue < 3);
            }
            let applied = session.apply(message, frame.fds, need_reply, &mut World(take));
            if let Err(reject) = applied {
                prop_assert_eq!(format!("{:?}", session), before);
                prop_assert_eq!(Rc::strong_count(&open), held);
                prop_assert!(!reject.reason.to_string().is_empty());
            }
            // Three for each queue, and the one for logging.
            prop_assert!(Rc::strong_count(&open) <= 1 + 3 * 3 + 1);
            for queue in 0..3 {
                if let Some(facts) = session.ready(queue) {
                    prop_assert!(facts.size >= 1 && facts.size <= 32768);
                }
            }
        }
        retold(&session, facts)?;
        drop(session);
        prop_assert_eq!(Rc::strong_count(&open), 1);
    }
}
