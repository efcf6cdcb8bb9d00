//! A front-end that sends any bytes and any number of descriptors, in any pieces, to the protocol's
//! state machine, and an owner that refuses when told.
//!
//! What must hold: nothing panics; a message that was refused changed nothing and kept no
//! descriptor; descriptors held are bounded; a ring that could run has a size that rings have; the
//! owner is asked for nothing beyond the bounds.

use std::rc::Rc;

use vhost_user::{
    DeviceClass, DeviceFacts, FDS_MAX, Framer, InflightArea, LogArea, MEMORY_SLOTS_MAX,
    MemoryRegion, Owner, Scope, Session, bits,
};

use crate::bytes::Bytes;

type Fd = Rc<()>;

const QUEUES: u16 = 3;
/// Bytes of the largest in-flight record of three queues.
const RECORD_MAX: u64 = 3 * 32768 * 32;

struct World {
    takes: bool,
    regions: usize,
}

impl World {
    fn answer(&self) -> Result<(), &'static str> {
        if self.takes { Ok(()) } else { Err("no") }
    }
}

impl Owner<Fd> for World {
    type Error = &'static str;

    fn read_config(&self, offset: u32, into: &mut [u8]) -> bool {
        assert!(into.len() <= 256);
        self.takes && offset as usize + into.len() <= 256
    }

    fn write_config(&mut self, _negotiated: u64, offset: u32, bytes: &[u8]) -> bool {
        assert!(offset as usize + bytes.len() <= 256);
        self.takes
    }

    fn set_memory(&mut self, regions: &[MemoryRegion], fds: Vec<Fd>) -> Result<(), &'static str> {
        assert_eq!(regions.len(), fds.len());
        assert!(regions.len() <= FDS_MAX);
        apart(regions);
        self.answer()?;
        self.regions = regions.len();
        Ok(())
    }

    fn add_region(&mut self, region: &MemoryRegion, _fd: Fd) -> Result<(), &'static str> {
        apart(std::slice::from_ref(region));
        self.answer()?;
        self.regions += 1;
        assert!(self.regions <= MEMORY_SLOTS_MAX);
        Ok(())
    }

    fn remove_region(&mut self, _region: &MemoryRegion) -> Result<(), &'static str> {
        assert!(self.regions > 0, "a region that is not there is removed");
        self.answer()?;
        self.regions -= 1;
        Ok(())
    }

    fn set_log(&mut self, area: LogArea, _fd: Fd) -> Result<(), &'static str> {
        assert!(area.size > 0 && area.offset.checked_add(area.size).is_some());
        self.answer()
    }

    fn make_inflight(&mut self, len: u64) -> Result<Fd, &'static str> {
        assert!(len > 0 && len <= RECORD_MAX, "a record of {len} bytes");
        self.answer().map(|()| Rc::new(()))
    }

    fn set_inflight(&mut self, area: &InflightArea, _fd: Fd) -> Result<(), &'static str> {
        assert!(area.offset.checked_add(area.size).is_some());
        assert!(area.queues >= 1 && area.queues <= QUEUES && area.queue_size >= 1);
        self.answer()
    }

    fn check_signal(&self, _fd: &Fd) -> Result<(), &'static str> {
        self.answer()
    }

    fn set_channel(&mut self, _fd: Fd) -> Result<(), &'static str> {
        self.answer()
    }

    fn reset(&mut self) {}

    fn announce(&mut self, mac: [u8; 6]) -> Result<(), &'static str> {
        assert!(mac[0] & 1 == 0 && mac != [0; 6], "a group's address");
        self.answer()
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), &'static str> {
        assert!(mtu >= 68, "an MTU of {mtu}");
        self.answer()
    }
}

/// Regions have a size, do not wrap, and do not overlap in guest addresses.
fn apart(regions: &[MemoryRegion]) {
    for (at, one) in regions.iter().enumerate() {
        let end = one.gpa.checked_add(one.size).expect("a region that wraps");
        assert!(one.size > 0, "a region of no size");
        for other in &regions[at + 1..] {
            let meets = other.gpa < end && one.gpa < other.gpa.saturating_add(other.size);
            assert!(!meets, "regions overlap");
        }
    }
}

/// Makes one input happen to a session.
pub fn run(input: &[u8]) {
    let mut bytes = Bytes(input);
    let inflight_len = |size: u16, packed: bool| u64::from(size) * if packed { 32 } else { 16 };
    let features = 1 << 32 | bits::RING_PACKED;
    // One seed in four is of a NIC; the others keep the class that they were found with.
    let class = match input.first().is_some_and(|first| first >> 6 == 3) {
        true => DeviceClass::Nic,
        false => DeviceClass::Disk { inflight_len },
    };
    let facts = DeviceFacts { class, features, queues_max: QUEUES, ring_size_max: 32768 };
    let mut session: Session<Fd> = Session::new(facts);
    let mut framer = Framer::default();
    let mut world = World { takes: true, regions: 0 };
    let open: Fd = Rc::new(());
    while !bytes.is_empty() {
        let control = bytes.u8();
        world.takes = control & 1 == 0;
        let count = usize::from(control >> 1 & 3) + if control & 8 != 0 { 30 } else { 0 };
        let mut fds = vec![Rc::clone(&open); count];
        let piece_bytes = piece(control, &mut bytes);
        let mut piece = &piece_bytes[..];
        loop {
            assert!(framer.wants() > 0);
            let frame = match framer.push(&mut piece, &mut fds) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                // The connection ends, and everything of it is closed.
                Err(_) => {
                    drop((session, framer, fds));
                    assert_eq!(Rc::strong_count(&open), 1, "a descriptor is left");
                    return;
                }
            };
            assert!(frame.fds.len() <= FDS_MAX);
            apply(&mut session, &mut world, frame);
            session.failed(u16::from(control >> 4));
            let held = 1 + 3 * usize::from(QUEUES) + 1;
            assert!(Rc::strong_count(&open) <= held, "{} held", Rc::strong_count(&open));
        }
    }
    drop((session, framer));
    assert_eq!(Rc::strong_count(&open), 1, "a descriptor is left");
}

/// Raw bytes, or a message whose header is right, so that more than headers is tried.
fn piece(control: u8, bytes: &mut Bytes<'_>) -> Vec<u8> {
    if control & 0x40 != 0 {
        let len = usize::from(bytes.u8());
        return bytes.take(len).to_vec();
    }
    let request = u32::from(bytes.u8()) % 45;
    let flags = 1 | if control & 0x80 != 0 { 8 } else { 0 };
    // Mostly of the length that such a message has.
    let right = (0..=340).find(|len| vhost_user::Message::parse(request, &vec![0; *len]).is_ok());
    let given = usize::from(bytes.u8());
    let len = if given == 0 { usize::from(bytes.u8()) } else { right.unwrap_or(given) };
    let mut payload = Vec::with_capacity(len);
    while payload.len() < len {
        // Small numbers in words of 64 bits, now and then any.
        let word = match bytes.u8() {
            small @ 0..=199 => u64::from(small),
            200..=219 => 1 << (bytes.u8() % 64),
            220..=239 => u64::from(bytes.u8()) << 32 | u64::from(bytes.u8()),
            _ => bytes.u64(),
        };
        payload.extend(word.to_ne_bytes());
    }
    payload.truncate(len);
    let mut message: Vec<u8> =
        [request, flags, len as u32].iter().flat_map(|word| word.to_ne_bytes()).collect();
    message.extend(payload);
    message
}

fn apply(session: &mut Session<Fd>, world: &mut World, frame: vhost_user::Frame<Fd>) {
    let before = format!("{session:?}");
    let need_reply = frame.need_reply;
    let Ok(message) = session.parse(&frame) else {
        assert_eq!(format!("{session:?}"), before, "what was not understood changed something");
        return;
    };
    if let Scope::Queue(queue) = session.scope(&message) {
        assert!(queue < QUEUES);
    }
    match session.apply(message, frame.fds, need_reply, world) {
        Ok(Some(reply)) => assert!(reply.bytes.len() <= 12 + 4096),
        Ok(None) => {}
        Err(reject) => {
            assert_eq!(format!("{session:?}"), before, "a refusal changed something");
            assert!(!reject.reason.to_string().is_empty());
        }
    }
    for queue in 0..QUEUES {
        if let Some(facts) = session.ready(queue) {
            assert!((1..=32768).contains(&facts.size));
            assert!(session.has_memory());
        }
    }
    assert!(session.ready(QUEUES).is_none());
}
