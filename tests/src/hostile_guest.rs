//! A guest without a driver: it writes the bytes of its rings as it likes, over a real session.
//!
//! Memory, descriptors and indices are the test's to spoil; what the device did is read back from
//! the rings and the descriptors for calls and errors. Shares no code with either side of
//! `virtqueue`. Not here: what each misdeed must come to (`tests/hostile_*.rs`).

mod ends;
mod memory;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use guest_memory::{Area, Health, Mapping, Seal};

use crate::raw_front_end::{
    Answer, Raw, VERSION, request, ring_addresses, ring_state, sealed_memory, signal, words,
};

/// Where guest memory begins, in the guest's addresses.
pub const BASE: u64 = 1 << 32;
/// Bytes of guest memory.
pub const MEMORY: u64 = 4 << 20;
/// Where the second region begins, when there are two.
pub const SECOND: u64 = BASE + MEMORY / 2;
/// Where indirect tables are put.
pub const TABLE: u64 = BASE + 0x10_0000;
/// Where headers are put, 64 bytes apart; each status byte is at 32 bytes behind its header.
pub const HEADER: u64 = BASE + 0x18_0000;
/// Where the status byte of the first header is.
pub const STATUS: u64 = HEADER + 32;
/// Where data is put.
pub const DATA: u64 = BASE + 0x20_0000;
/// One past the last byte of guest memory.
pub const END: u64 = BASE + MEMORY;

/// Descriptor flag: another follows.
pub const NEXT: u16 = 1;
/// Descriptor flag: the device writes.
pub const WRITE: u16 = 2;
/// Descriptor flag: a table of descriptors.
pub const INDIRECT: u16 = 4;
/// Packed descriptor flags: the laps of driver and device.
pub const AVAIL: u16 = 1 << 7;
/// As [`AVAIL`].
pub const USED: u16 = 1 << 15;

/// Feature: indirect tables.
pub const F_INDIRECT: u64 = 1 << 28;
/// Feature: event indices.
pub const F_EVENT_IDX: u64 = 1 << 29;
/// Feature: packed rings.
pub const F_PACKED: u64 = 1 << 34;
/// Features of a block device that a Linux guest takes.
pub const F_BLK: u64 = 1 << 9 | 1 << 11 | 1 << 13 | 1 << 14;

/// Added to a guest address to get the front-end's own.
pub const USER: u64 = 1 << 40;
/// In the file there is a gap before the second region, so that it is elsewhere in the host too.
const GAP: u64 = 1 << 20;
/// Nothing that a test waits for takes longer.
const WAIT_MS: u64 = 60_000;

/// What the queues of a guest are like.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Features accepted besides VERSION_1.
    pub features: u64,
    /// Entries of each ring.
    pub size: u16,
    /// Rings.
    pub queues: u16,
    /// Memory is in two regions that touch.
    pub two_regions: bool,
    /// Where the rings begin to count.
    pub base: u16,
}

impl Default for Layout {
    fn default() -> Layout {
        Layout { features: F_BLK, size: 16, queues: 1, two_regions: false, base: 0 }
    }
}

impl Layout {
    /// With indirect tables.
    pub fn indirect() -> Layout {
        Layout { features: F_BLK | F_INDIRECT, ..Layout::default() }
    }

    /// A packed ring of 8 entries.
    pub fn packed() -> Layout {
        Layout { features: F_BLK | F_PACKED, size: 8, ..Layout::default() }
    }

    fn is_packed(&self) -> bool {
        self.features & F_PACKED != 0
    }
}

/// A descriptor, field by field; of a packed ring the last is the id.
#[derive(Clone, Copy, Debug, Default)]
pub struct D(pub u64, pub u32, pub u16, pub u16);

/// How something offered ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It came back, with that id and length.
    Used(u32, u32),
    /// The error descriptor was signalled.
    Broken,
}

/// Where a ring is, guest addresses, and how far it is.
#[derive(Debug)]
struct Ring {
    descriptors: u64,
    driver: u64,
    device: u64,
    kick: OwnedFd,
    call: OwnedFd,
    err: OwnedFd,
    /// Split: next available and used index. Packed: next places.
    avail: u16,
    used: u16,
    avail_lap: bool,
    used_lap: bool,
    /// Packed: entries of each id in flight.
    entries: HashMap<u16, u16>,
}

/// The guest.
#[derive(Debug)]
pub struct Guest {
    /// Its session.
    pub raw: Raw,
    layout: Layout,
    memory: Area,
    file: OwnedFd,
    rings: Vec<Ring>,
    /// Memory besides: guest address, bytes, front-end's address, offset in the file.
    lent: Vec<([u64; 4], OwnedFd)>,
    /// The ring that all methods are about.
    pub at: usize,
}

impl Guest {
    /// Connects to a disk and starts its rings.
    ///
    /// # Errors
    /// The session's.
    pub fn start(socket: &Path, layout: Layout) -> Result<Guest> {
        Guest::start_in(socket, layout, sealed_memory(MEMORY + GAP)?)
    }

    /// As [`Guest::start`], in memory that can be cut off.
    ///
    /// # Errors
    /// The session's.
    pub fn start_unsealed(socket: &Path, layout: Layout) -> Result<Guest> {
        let file = rustix::fs::memfd_create("raw-guest", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, MEMORY + GAP)?;
        Guest::start_in(socket, layout, file)
    }

    fn start_in(socket: &Path, layout: Layout, file: OwnedFd) -> Result<Guest> {
        let raw = Raw::negotiated(socket, layout.features)?;
        let memory =
            Area::whole(Mapping::shared(&file, 0, MEMORY + GAP, Seal::Any, &Health::default())?);
        let rings = (0..layout.queues)
            .map(|index| {
                let small = BASE + 0xf_0000 + u64::from(index) * 0x2000;
                let (descriptors, driver, device) = match layout.size > 128 {
                    true => (BASE, BASE + 0x8_0000, BASE + 0xa_0000),
                    false => (small, small + 0x1000, small + 0x1800),
                };
                Ok(Ring {
                    descriptors,
                    driver,
                    device,
                    kick: signal()?,
                    call: signal()?,
                    err: signal()?,
                    avail: 0,
                    used: 0,
                    avail_lap: true,
                    used_lap: true,
                    entries: HashMap::new(),
                })
            })
            .collect::<Result<_>>()?;
        let mut guest = Guest { raw, layout, memory, file, rings, lent: Vec::new(), at: 0 };
        guest.share_memory()?;
        for index in 0..guest.rings.len() {
            guest.at = index;
            guest.set_up()?;
        }
        guest.at = 0;
        guest.settle()?;
        Ok(guest)
    }

    /// What the queues are like.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The descriptors for kicks, calls and errors.
    pub fn signals(&self) -> [&OwnedFd; 3] {
        let Ring { kick, call, err, .. } = &self.rings[self.at];
        [kick, call, err]
    }

    /// Where the three parts of the ring are, guest addresses.
    pub fn places(&self) -> [u64; 3] {
        let ring = &self.rings[self.at];
        [ring.descriptors, ring.driver, ring.device]
    }

    /// Puts the ring elsewhere from its next start on.
    pub fn place(&mut self, [descriptors, driver, device]: [u64; 3]) {
        let ring = &mut self.rings[self.at];
        (ring.descriptors, ring.driver, ring.device) = (descriptors, driver, device);
    }

    /// Sends all that makes the ring run, over zeroed memory.
    ///
    /// # Errors
    /// The session's.
    pub fn set_up(&mut self) -> Result<()> {
        let (packed, size, base) = (self.layout.is_packed(), self.layout.size, self.layout.base);
        let [descriptors, driver, device] = self.places();
        let event = if packed { 4 } else { 6 };
        let entry = |bytes: u64| if packed { 0 } else { bytes * u64::from(size) };
        self.zero(descriptors, 16 * u64::from(size));
        self.zero(driver, event + entry(2));
        self.zero(device, event + entry(8));
        if !packed {
            self.put_u16(driver + 2, base);
            self.put_u16(device + 2, base);
        }
        let index = self.at as u32;
        let ring = &mut self.rings[self.at];
        (ring.avail, ring.used) = (base, base);
        (ring.avail_lap, ring.used_lap) = (true, true);
        ring.entries.clear();
        drain(&ring.call)?;
        drain(&ring.err)?;
        let ring_base = if packed { 1 << 15 | 1 << 31 } else { u32::from(base) };
        let number = words(&[index.into()]);
        let user = [descriptors + USER, device + USER, driver + USER];
        let raw = &self.raw;
        raw.send(request::SET_VRING_NUM, VERSION, &ring_state(index, size.into()), &[])?;
        raw.send(request::SET_VRING_BASE, VERSION, &ring_state(index, ring_base), &[])?;
        raw.send(request::SET_VRING_ADDR, VERSION, &ring_addresses(index, user), &[])?;
        raw.send(request::SET_VRING_ERR, VERSION, &number, &[ring.err.as_fd()])?;
        raw.send(request::SET_VRING_CALL, VERSION, &number, &[ring.call.as_fd()])?;
        raw.send(request::SET_VRING_KICK, VERSION, &number, &[ring.kick.as_fd()])?;
        raw.send(request::SET_VRING_ENABLE, VERSION, &ring_state(index, 1), &[])
    }

    /// Kicks and enables the ring as it is, after [`Guest::stop`].
    ///
    /// # Errors
    /// The session's.
    pub fn start_again(&mut self) -> Result<()> {
        let index = self.at as u32;
        let ring = &self.rings[self.at];
        let number = words(&[index.into()]);
        self.raw.send(request::SET_VRING_KICK, VERSION, &number, &[ring.kick.as_fd()])?;
        self.raw.send(request::SET_VRING_ENABLE, VERSION, &ring_state(index, 1), &[])
    }

    /// Waits until everything sent was handled.
    ///
    /// # Errors
    /// The session ended.
    pub fn settle(&mut self) -> Result<()> {
        self.raw.ask(request::GET_FEATURES).map(drop)
    }

    /// Stops the ring; gives the base as it was answered.
    ///
    /// # Errors
    /// The session's.
    pub fn stop(&mut self) -> Result<u32> {
        let index = self.at as u32;
        self.raw.send(request::GET_VRING_BASE, VERSION, &ring_state(index, 0), &[])?;
        match self.raw.answer()? {
            Answer::Reply(request::GET_VRING_BASE, payload) => {
                let base = payload.get(4..8).and_then(|bytes| bytes.try_into().ok());
                base.map(u32::from_ne_bytes).context("a base that is no number")
            }
            other => bail!("GET_VRING_BASE was answered by {other:?}"),
        }
    }

    /// Stops the ring and starts it anew, as a driver does that resets its queue.
    ///
    /// # Errors
    /// The session's.
    pub fn revive(&mut self) -> Result<()> {
        self.stop()?;
        self.set_up()?;
        self.settle()
    }

    /// Makes those descriptors the ring's first ones and offers the chain at the first; of a packed
    /// ring, the next ones. Kicks.
    ///
    /// # Errors
    /// The kick's.
    pub fn offer(&mut self, descriptors: &[D]) -> Result<()> {
        if self.layout.is_packed() {
            self.offer_packed(descriptors);
        } else {
            let table = self.rings[self.at].descriptors;
            for (index, descriptor) in (0..).zip(descriptors) {
                self.entry(table, index, *descriptor);
            }
            self.offer_heads(&[0]);
        }
        self.kick()
    }

    fn offer_packed(&mut self, descriptors: &[D]) {
        let ring = &self.rings[self.at];
        let (table, start, lap) = (ring.descriptors, ring.avail, ring.avail_lap);
        let size = usize::from(self.layout.size);
        // The first is shown last.
        for (index, D(gpa, len, flags, id)) in descriptors.iter().enumerate().rev() {
            let place = usize::from(start) + index;
            let lap = lap ^ (place >= size);
            let flags = flags | if lap { AVAIL } else { USED };
            self.entry(table, (place % size) as u16, D(*gpa, *len, flags, *id));
        }
        let place = usize::from(start) + descriptors.len();
        let ring = &mut self.rings[self.at];
        (ring.avail, ring.avail_lap) = ((place % size) as u16, lap ^ (place >= size));
        if let Some(D(.., id)) = descriptors.last() {
            ring.entries.insert(*id, descriptors.len() as u16);
        }
    }

    /// Split: makes heads available, without a kick.
    pub fn offer_heads(&mut self, heads: &[u16]) {
        let size = self.layout.size;
        let ring = &mut self.rings[self.at];
        let (driver, mut avail) = (ring.driver, ring.avail);
        ring.avail = avail.wrapping_add(heads.len() as u16);
        for head in heads {
            self.put_u16(driver + 4 + 2 * u64::from(avail % size), *head);
            avail = avail.wrapping_add(1);
        }
        self.set_avail(avail);
    }

    /// Split: the available index, whatever it is.
    pub fn set_avail(&self, index: u16) {
        self.put_u16(self.rings[self.at].driver + 2, index);
    }

    /// Split: requests offered so far.
    pub fn avail(&self) -> u16 {
        self.rings[self.at].avail
    }

    /// Wakes the device. A full counter is as good as a kick.
    ///
    /// # Errors
    /// The system's.
    pub fn kick(&self) -> Result<()> {
        self.kick_by(1)
    }

    /// As [`Guest::kick`], adding `count` to the counter.
    ///
    /// # Errors
    /// The system's.
    pub fn kick_by(&self, count: u64) -> Result<()> {
        match rustix::io::write(&self.rings[self.at].kick, &count.to_ne_bytes()) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(error).context("kicking"),
        }
    }

    /// Sets the counter of kicks to zero.
    ///
    /// # Errors
    /// The system's.
    pub fn forget_kicks(&self) -> Result<()> {
        match rustix::io::read(&self.rings[self.at].kick, &mut [0; 8]) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(error).context("reading the counter of kicks"),
        }
    }

    /// One request as any driver lays it out: header, `len` bytes at [`DATA`], status.
    ///
    /// # Errors
    /// It did not end as a request that was done.
    pub fn honest(&mut self, kind: u32, sector: u64, len: u32) -> Result<()> {
        self.header(kind, sector);
        let writes = if kind == 1 { 0 } else { WRITE };
        self.offer(&[
            D(HEADER, 16, NEXT, 1),
            D(DATA, len, NEXT | writes, 2),
            D(STATUS, 1, WRITE, 0),
        ])?;
        let end = self.end()?;
        let expected = if kind == 1 { 1 } else { len + 1 };
        ensure!(
            matches!(end, End::Used(_, len) if len == expected) && self.status() == 0,
            "an honest request of type {kind} ended as {end:?}, status {}",
            self.status()
        );
        Ok(())
    }
}

/// Takes what was signalled; whether there was anything.
fn drain(fd: &OwnedFd) -> Result<bool> {
    match rustix::io::read(fd, &mut [0; 8]) {
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::AGAIN) => Ok(false),
        Err(error) => Err(error).context("reading an eventfd"),
    }
}
