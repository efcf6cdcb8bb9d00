//! Guests, a sidecore, and its time.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use backend::{Disk, Source};
use device::blk::{Blk, Live, Shape};
use device::features;
use guest_memory::{Area, GuestMap, Health, Mapping, Region, Seal};
use rustix::fs::MemfdFlags;
use schedule::{Clock, Nanos, Policy};
use virtqueue::driver::{Arena, Buffer, Driver, Places, RingSpec, first_base};
use virtqueue::{Format, Inflight, Queue};

use crate::rest::eventfd;
use crate::{
    Command, Event, Handle, Progress, QueueCounters, QueueKey, RoleSpec, Served, ServedSpec,
    Sidecore, SidecoreSpec,
};

/// What a pass takes, in the tests' time.
pub(super) const PASS_NS: u64 = 1_000;
/// Passes after which a queue without work is armed, beside others too: its looks have cost what a kick does.
pub(super) const IDLE_PASSES: u32 = 500;
/// Bytes of the data of one request.
pub(super) const BLOCK: usize = 4096;
/// Bytes of a disk.
pub(super) const DISK: u64 = 16 << 20;

pub(super) const READ: u32 = 0;
pub(super) const WRITE: u32 = 1;
pub(super) const FLUSH: u32 = 4;

/// Where the rings, headers and blocks are.
const MEMORY: u64 = 8 << 20;
/// After them: guest memory for what a test needs besides.
pub(super) const SPARE_AT: u64 = MEMORY;
pub(super) const SPARE: u64 = 16 << 20;
/// Bytes for the header and the status of one request.
const LINE: usize = 64;
const STATUS_AT: usize = 16;

/// A usual ring.
pub(super) fn ring(size: u16) -> RingSpec {
    RingSpec { size, format: Format::Split, event_index: true, indirect_entries: 0 }
}

/// A guest with one ring; its requests are numbered.
pub(super) struct Guest {
    pub(super) map: Arc<GuestMap>,
    pub(super) driver: Driver,
    pub(super) kick: Option<OwnedFd>,
    pub(super) call: OwnedFd,
    ring: RingSpec,
    places: Places,
    lines: Area,
    lines_gpa: u64,
    data: Area,
    data_gpa: u64,
}

impl Guest {
    pub(super) fn new(ring: RingSpec) -> Guest {
        Guest::over(GuestMap::anonymous(MEMORY + SPARE).unwrap(), ring)
    }

    /// A guest whose memory its front-end can take away: the file of it, too.
    pub(super) fn lent(ring: RingSpec) -> (Guest, OwnedFd) {
        guest_memory::recover_from_sigbus().unwrap();
        let fd = rustix::fs::memfd_create("lent", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, MEMORY + SPARE).unwrap();
        let mapping = Mapping::shared(&fd, 0, MEMORY + SPARE, Seal::Any, &Health::default());
        let region = Region { gpa: 0, user: 0, mapping: mapping.unwrap() };
        (Guest::over(GuestMap::new(vec![region]).unwrap(), ring), fd)
    }

    fn over(map: GuestMap, ring: RingSpec) -> Guest {
        let map = Arc::new(map);
        let mut arena = Arena::new(map.area_at_user(0, MEMORY).unwrap(), 0);
        let (driver, places) = arena.driver(ring).unwrap();
        let requests = usize::from(ring.size);
        let (lines, lines_gpa) = arena.take(requests * LINE, LINE).unwrap();
        let (data, data_gpa) = arena.take(requests * BLOCK, BLOCK).unwrap();
        let (kick, call) = (Some(eventfd().unwrap()), eventfd().unwrap());
        Guest { map, driver, kick, call, ring, places, lines, lines_gpa, data, data_gpa }
    }

    /// The device's side of its ring.
    pub(super) fn queue(&self, base: u32) -> Queue {
        Queue::new(self.ring.queue_spec(&self.map, self.places, base).unwrap()).unwrap()
    }

    /// The same, with an in-flight record behind the blocks.
    pub(super) fn recorded_queue(&self, base: u32) -> Queue {
        let mut spec = self.ring.queue_spec(&self.map, self.places, base).unwrap();
        let area = self.map.area_at_user(SPARE_AT, 64 << 10).unwrap();
        spec.inflight = Some(Inflight::new(area, self.ring.format, self.ring.size).unwrap());
        Queue::new(spec).unwrap()
    }

    /// Everything a sidecore needs to serve it from `disk`, under `key`.
    pub(super) fn spec(&self, device: u32, disk: &Arc<Disk>) -> ServedSpec {
        let shape = Shape {
            block_size: disk.block_size(),
            physical_block_exp: 0,
            topology: Default::default(),
            readonly: false,
            queues: 1,
            serial: [0; 20],
            limits: device::blk::Limits::default(),
            in_order: false,
        };
        let negotiated = features::VERSION_1 | features::BLK_FLUSH;
        let copy = |fd: &OwnedFd| fd.try_clone().unwrap();
        ServedSpec {
            key: key(device),
            queue: self.queue(first_base(self.ring.format)),
            memory: Arc::clone(&self.map),
            role: RoleSpec::Disk {
                blk: Blk::new(&shape, Live::new(disk.size_bytes()), negotiated),
                backend: disk.backend(),
            },
            kick: self.kick.as_ref().map(copy),
            call: Some(copy(&self.call)),
            share: schedule::SHARE_USUAL,
            policy: Policy::Adaptive,
            target_ns: None,
            moderate_ns: 0,
            gate: None,
            counters: Arc::new(QueueCounters::default()),
        }
    }

    /// Adds request `number`, of one block in `pieces` pieces. Not published.
    pub(super) fn add(&mut self, number: usize, kind: u32, sector: u64, pieces: usize) {
        let piece = BLOCK / pieces;
        let data = (0..pieces).map(|index| Buffer {
            gpa: self.data_gpa + (number * BLOCK + index * piece) as u64,
            len: piece as u32,
            device_writes: kind == READ,
        });
        let data: Vec<Buffer> = if kind == FLUSH { Vec::new() } else { data.collect() };
        self.add_over(number, kind, sector, &data);
    }

    /// Adds request `number` with `data` as its data buffers. Not published.
    pub(super) fn add_over(&mut self, number: usize, kind: u32, sector: u64, data: &[Buffer]) {
        let line = number * LINE;
        self.lines.store_u32(line, kind);
        self.lines.store_u64(line + 8, sector);
        self.lines.store_u8(line + STATUS_AT, 0xff);
        let line_gpa = self.lines_gpa + line as u64;
        let mut buffers = vec![Buffer { gpa: line_gpa, len: 16, device_writes: false }];
        buffers.extend_from_slice(data);
        let status = line_gpa + STATUS_AT as u64;
        buffers.push(Buffer { gpa: status, len: 1, device_writes: true });
        self.driver.add(&buffers, number as u64).unwrap();
    }

    /// The status byte of request `number`; 0xff when nobody wrote it.
    pub(super) fn status(&self, number: usize) -> u8 {
        self.lines.load_u8(number * LINE + STATUS_AT)
    }

    /// Adds requests `0..count`, one block each from the start of the disk, and publishes them.
    /// Kicks when it is asked to.
    pub(super) fn ask(&mut self, count: usize, kind: u32) {
        for number in 0..count {
            self.add(number, kind, sector(number), 1);
        }
        if self.driver.publish() {
            self.kick();
        }
    }

    pub(super) fn kick(&self) {
        if let Some(kick) = &self.kick {
            crate::inbox::wake(kick);
        }
    }

    /// The requests that were completed since the last time, with their status.
    pub(super) fn take(&mut self) -> Vec<(usize, u8)> {
        let mut taken = Vec::new();
        while let Some(used) = self.driver.take_used() {
            let number = used.token as usize;
            taken.push((number, self.lines.load_u8(number * LINE + STATUS_AT)));
        }
        assert_eq!(self.driver.fault(), None);
        taken
    }

    /// Takes completions and says how many there were; all of them ended well.
    pub(super) fn take_ok(&mut self) -> usize {
        let taken = self.take();
        assert!(taken.iter().all(|(_, status)| *status == 0), "{taken:?}");
        taken.len()
    }

    pub(super) fn fill(&self, number: usize, byte: u8) {
        assert!(self.data.write(number * BLOCK, &[byte; BLOCK]));
    }

    pub(super) fn holds(&self, number: usize, byte: u8) -> bool {
        let mut block = [0; BLOCK];
        assert!(self.data.read(number * BLOCK, &mut block));
        block == [byte; BLOCK]
    }

    /// Calls since the last time.
    pub(super) fn calls(&self) -> u64 {
        count(&self.call)
    }
}

/// What an eventfd counted since it was last read.
pub(super) fn count(eventfd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(eventfd, &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(_) => 0,
    }
}

/// Where block `number` lies on the disk.
pub(super) fn sector(number: usize) -> u64 {
    (number * BLOCK / 512) as u64
}

pub(super) fn key(device: u32) -> QueueKey {
    QueueKey { device, queue: 0 }
}

pub(super) fn null() -> Arc<Disk> {
    Disk::open(&Source::Null { size_bytes: DISK }).unwrap()
}

pub(super) fn memory() -> Arc<Disk> {
    Disk::open(&Source::Memory { size_bytes: DISK }).unwrap()
}

/// A sidecore without a thread, and its time.
pub(super) struct Core {
    pub(super) sidecore: Sidecore,
    pub(super) handle: Handle,
    pub(super) now: Nanos,
    /// So long after the last one is the next reading of the clock within a pass.
    pub(super) tick_ns: u64,
}

/// A clock that goes on by as much whenever it is read.
struct Ticking {
    at: std::cell::Cell<Nanos>,
    tick_ns: u64,
}

impl Clock for Ticking {
    fn now(&self) -> Nanos {
        self.at.set(self.at.get().after(self.tick_ns));
        self.at.get()
    }
}

impl Core {
    pub(super) fn new(queues_max: u16) -> Core {
        Core::numbered(0, queues_max)
    }

    pub(super) fn numbered(index: u16, queues_max: u16) -> Core {
        let spec = SidecoreSpec { index, cpu: None, workers: None, watches: true, queues_max };
        let (sidecore, handle) = Sidecore::new(spec).unwrap();
        Core { sidecore, handle, now: Nanos(PASS_NS), tick_ns: 0 }
    }

    /// Attaches in a pass of its own; the guest is called once for that, which is taken away.
    pub(super) fn attach(&mut self, guest: &Guest, spec: ServedSpec) -> Arc<QueueCounters> {
        let counters = Arc::clone(&spec.counters);
        self.send(Command::Attach(Served::new(spec)));
        assert_eq!(self.pass().commands, 1);
        guest.calls();
        counters
    }

    pub(super) fn send(&mut self, command: Command) {
        assert!(self.handle.send(command).is_ok(), "the inbox is full");
    }

    /// One pass, one microsecond.
    pub(super) fn pass(&mut self) -> Progress {
        let clock = Ticking { at: self.now.into(), tick_ns: self.tick_ns };
        let progress = self.sidecore.pass(self.now, &clock);
        self.now = clock.at.get().after(PASS_NS);
        progress
    }

    /// So many passes; the requests that they took.
    pub(super) fn passes(&mut self, passes: u32) -> u32 {
        (0..passes).map(|_| self.pass().requests).sum()
    }

    /// Passes without work until nothing is polled.
    pub(super) fn idle(&mut self) {
        for _ in 0..IDLE_PASSES {
            self.pass();
        }
    }

    /// Sleeps as the thread would, if it would.
    pub(super) fn rest(&mut self) -> bool {
        let clock = Ticking { at: self.now.into(), tick_ns: self.tick_ns };
        self.sidecore.rest(self.now, &clock)
    }

    /// The same, and it is so much later when it wakes.
    pub(super) fn rest_for(&mut self, ns: u64) -> bool {
        let before = self.now;
        self.now = before.after(ns);
        let clock = Ticking { at: self.now.into(), tick_ns: self.tick_ns };
        self.sidecore.rest(before, &clock)
    }

    /// Whether something in its inbox's descriptor would end a sleep.
    pub(super) fn rest_would_end(&self) -> bool {
        count(&self.handle.command_fd) > 0
    }

    pub(super) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.handle.take_event()).collect()
    }

    /// Detaches one queue; it is the only event.
    pub(super) fn detach(&mut self, device: u32) -> Box<Served> {
        self.send(Command::Detach(key(device)));
        self.pass();
        detached(self.events(), device)
    }
}

/// The queue of `device`, given back by the one event there is.
pub(super) fn detached(mut events: Vec<Event>, device: u32) -> Box<Served> {
    assert_eq!(events.len(), 1, "{events:?}");
    match events.pop() {
        Some(Event::Detached(served)) if served.key() == key(device) => served,
        other => panic!("not the queue of device {device}: {other:?}"),
    }
}
