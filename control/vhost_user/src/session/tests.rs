//! The table of messages and states; hostile and foreign front-ends. Here is what the tests are made of.

mod answers;
mod fields;
mod nic;
mod orders;
mod refusals;
mod retold;
mod rings;

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
    fn answer(&self) -> Result<(), &'static str> {
        if self.refuse.get() { Err("no") } else { Ok(()) }
    }
}

impl Owner<Fd> for World {
    type Error = &'static str;

    fn read_config(&self, offset: u32, into: &mut [u8]) -> bool {
        into.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i + offset as usize) as u8);
        (offset as usize).saturating_add(into.len()) <= 256
    }
    fn write_config(&mut self, _negotiated: u64, offset: u32, bytes: &[u8]) -> bool {
        self.config_written.push((offset, bytes.to_vec()));
        offset == 32
    }
    fn set_memory(&mut self, regions: &[MemoryRegion], fds: Vec<Fd>) -> Result<(), &'static str> {
        assert_eq!(regions.len(), fds.len());
        self.answer()?;
        self.regions = regions.iter().copied().zip(fds).collect();
        Ok(())
    }
    fn add_region(&mut self, region: &MemoryRegion, fd: Fd) -> Result<(), &'static str> {
        self.answer()?;
        self.regions.push((*region, fd));
        Ok(())
    }
    fn remove_region(&mut self, region: &MemoryRegion) -> Result<(), &'static str> {
        self.answer()?;
        self.regions.retain(|(other, _)| other.gpa != region.gpa);
        Ok(())
    }
    fn set_log(&mut self, _area: LogArea, fd: Fd) -> Result<(), &'static str> {
        self.answer()?;
        self.held.push(fd);
        Ok(())
    }
    fn make_inflight(&mut self, _len: u64) -> Result<Fd, &'static str> {
        self.answer().map(|()| self.fd())
    }
    fn set_inflight(&mut self, _area: &InflightArea, fd: Fd) -> Result<(), &'static str> {
        self.answer()?;
        self.held.push(fd);
        Ok(())
    }
    fn check_signal(&self, _fd: &Fd) -> Result<(), &'static str> {
        self.answer()
    }
    fn set_channel(&mut self, fd: Fd) -> Result<(), &'static str> {
        self.answer()?;
        self.held.push(fd);
        Ok(())
    }
    fn reset(&mut self) {
        self.resets += 1;
    }
    fn announce(&mut self, mac: [u8; 6]) -> Result<(), &'static str> {
        self.answer()?;
        self.announced.push(mac);
        Ok(())
    }
    fn set_mtu(&mut self, mtu: u16) -> Result<(), &'static str> {
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
fn say(
    session: &mut Session<Fd>,
    world: &mut World,
    message: &Message,
) -> Result<Vec<u8>, Reject<Refused<&'static str>>> {
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
