//! An honest guest with a disk: it keeps the rules of VIRTIO, remembers what it wrote and flushed, and
//! looks at everything that comes back.
//!
//! It takes completions when it is called for them; so a call, or a kick, that is lost is a request that
//! never ends. What a block may hold is the `ledger`'s matter.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use device::features as bit;
use ledger::{Flushing, Ledger, Reading, SECTOR_SIZE, What, Writing};
use random::Random;
use rustix::event::{EventfdFlags, eventfd};
use virtqueue::driver::{Arena, Buffer, Driver, RingSpec};

use crate::layout::{CANARY, LINE, Memory, PAGE, QueueLayout, ROOM, SLOTS};
use crate::trace::Trace;

/// Sectors of one request at most.
const SECTORS_MAX: u64 = 8;

const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

const OK: u8 = 0;
const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// What a place for data has that nobody has written to.
static CANARIES: [u8; ROOM] = [CANARY; ROOM];

/// What the guest waits for.
#[derive(Debug)]
pub(crate) enum Awaited {
    Read {
        reading: Reading,
        at: usize,
        len: usize,
    },
    Write(Writing),
    Flush(Flushing),
    Identity {
        at: usize,
    },
    /// A frame that was sent, by its number.
    Frame(u64),
    /// A place for a frame.
    Buffer {
        len: usize,
    },
}

/// One queue, as its driver has it.
#[derive(Debug)]
pub(crate) struct GuestQueue {
    pub(crate) layout: QueueLayout,
    pub(crate) driver: Driver,
    pub(crate) kick: OwnedFd,
    pub(crate) call: OwnedFd,
    pub(crate) slots: Vec<Option<Awaited>>,
    /// Where each of them ends, in sectors.
    pub(crate) ends: [u64; SLOTS],
    /// Counts the requests, so that each has a token of its own.
    pub(crate) sent: u64,
}

/// What a guest is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuestSpec {
    pub(crate) number: u64,
    /// The VLAN of its NIC; with `None` its device is a disk.
    pub(crate) vlan: Option<u16>,
    pub(crate) queues: u16,
    pub(crate) ring: RingSpec,
    /// As its driver has negotiated them.
    pub(crate) features: u64,
    /// The driver has switched the cache to write-through.
    pub(crate) write_through: bool,
    /// Requests of each queue that it has in flight at most.
    pub(crate) depth: usize,
    /// It looks now and then without being called.
    pub(crate) looks: bool,
    /// Its VMM keeps a record of what is in flight.
    pub(crate) is_recorded: bool,
}

#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) spec: GuestSpec,
    pub(crate) memory: Memory,
    pub(crate) queues: Vec<GuestQueue>,
    /// Pages that it wrote itself, since somebody last asked: its VMM knows of these.
    pub(crate) written: BTreeSet<u64>,
    /// Sectors that the disk is known to have; and the fewest that it was known to have.
    pub(crate) sectors: u64,
    pub(crate) least: u64,
    /// It sends nothing new, and looks only when it is called.
    pub(crate) quiet: bool,
    /// Its disk has failed before, so an I/O error is no surprise.
    pub(crate) may_fail: bool,
    pub(crate) ended: u64,
    pub(crate) random: Random,
    pub(crate) trace: Trace,
}

impl Guest {
    pub(crate) fn new(
        spec: GuestSpec,
        sectors: u64,
        random: Random,
        trace: &Trace,
    ) -> Result<Guest, String> {
        let memory = Memory::new()?;
        let queues = queues_over(&memory, &spec)?;
        for queue in &queues {
            fill(queue, CANARY);
        }
        let (written, trace) = (BTreeSet::new(), trace.clone());
        let (quiet, may_fail, ended, least) = (false, false, 0, u64::MAX);
        Ok(Guest {
            spec,
            memory,
            queues,
            written,
            sectors,
            least,
            quiet,
            may_fail,
            ended,
            random,
            trace,
        })
    }

    /// Its disk has so many sectors, of which it uses `most`.
    pub(crate) fn resize(&mut self, sectors: u64, most: u64) {
        self.trace.note(0, "size", [self.spec.number, self.sectors, sectors]);
        self.sectors = sectors.min(most);
        self.least = self.least.min(sectors);
    }

    /// What lies in a page, in a word.
    pub(crate) fn part_of(&self, page: u64) -> String {
        let gpa = page * PAGE;
        for (index, queue) in self.queues.iter().enumerate() {
            let QueueLayout {
                descriptors, driver, device, tables, lines, statuses, out, into, ..
            } = &queue.layout;
            let parts = [
                ("descriptors", descriptors),
                ("driver's part", driver),
                ("device's part", device),
                ("tables", tables),
                ("headers", lines),
                ("statuses", statuses),
                ("data written", out),
                ("data read", into),
            ];
            let is_in = |part: &crate::layout::Part| {
                (part.gpa..part.gpa + part.area.len() as u64).contains(&gpa)
            };
            if let Some((name, _)) = parts.iter().find(|(_, part)| is_in(part)) {
                return format!("queue {index}, {name}");
            }
        }
        "nobody's".into()
    }

    /// Requests that it waits for.
    pub(crate) fn waiting(&self) -> usize {
        let awaited = self.queues.iter().flat_map(|queue| queue.slots.iter().flatten());
        awaited.filter(|awaited| !matches!(awaited, Awaited::Buffer { .. })).count()
    }

    /// Its driver starts anew, all rings empty. What it waited for it does not know the end of.
    pub(crate) fn reset(&mut self, ledger: &mut Ledger) -> Result<(), String> {
        self.forget(ledger);
        for queue in &mut self.queues {
            queue.driver = queue.layout.driver()?;
            fill(queue, CANARY);
            crate::signal::take(&queue.call);
            crate::signal::take(&queue.kick);
        }
        Ok(())
    }

    /// Nobody will tell how what it waits for has ended.
    pub(crate) fn forget(&mut self, ledger: &mut Ledger) {
        for awaited in self.queues.iter_mut().flat_map(|queue| queue.slots.iter_mut()) {
            match awaited.take() {
                Some(Awaited::Write(writing)) => ledger.failed(writing),
                Some(Awaited::Read { reading, .. }) => ledger.unread(reading),
                Some(_) | None => {}
            }
        }
    }

    /// Takes what it was called for, and sends a little. True when it did something.
    ///
    /// # Errors
    /// What the device did wrong.
    pub(crate) fn act(&mut self, now_ns: u64, ledger: &mut Ledger) -> Result<bool, String> {
        let mut acted = false;
        for index in 0..self.queues.len() {
            let is_called = crate::signal::take(&self.queues[index].call) > 0;
            if is_called || self.spec.looks && !self.quiet && self.random.one_in(16) {
                acted |= self.take(index, now_ns, ledger)?;
            }
        }
        if !self.quiet {
            let index = self.random.below(self.queues.len() as u64) as usize;
            let most = self.random.below(4);
            let sent = (0..most).filter(|_| self.send(index, now_ns, ledger)).count();
            if sent > 0 && self.publish(index) {
                crate::signal::raise(&self.queues[index].kick);
                self.trace.note(now_ns, "kick", [self.spec.number, index as u64, 0]);
            }
            acted |= sent > 0;
        }
        Ok(acted)
    }

    /// Shows what was added. True: kick.
    pub(crate) fn publish(&mut self, index: usize) -> bool {
        let queue = &mut self.queues[index];
        let kick = queue.driver.publish();
        for part in [&queue.layout.driver, &queue.layout.descriptors] {
            mark(&mut self.written, part.gpa, part.area.len() as u64);
        }
        kick
    }

    fn take(&mut self, index: usize, now_ns: u64, ledger: &mut Ledger) -> Result<bool, String> {
        let mut some = false;
        loop {
            while let Some(used) = self.queues[index].driver.take_used() {
                some = true;
                self.end(index, used.token, used.len, now_ns, ledger)?;
            }
            if let Some(fault) = self.queues[index].driver.fault() {
                return Err(format!("guest {} queue {index}: {fault}", self.spec.number));
            }
            if !self.arm_calls(index) {
                return Ok(some);
            }
        }
    }

    /// Asks for a call for what comes from now on. True when something has come already.
    pub(crate) fn arm_calls(&mut self, index: usize) -> bool {
        let queue = &mut self.queues[index];
        let driver = &queue.layout.driver;
        mark(&mut self.written, driver.gpa, driver.area.len() as u64);
        queue.driver.arm_calls()
    }

    pub(crate) fn mark(&mut self, gpa: u64, len: u64) {
        mark(&mut self.written, gpa, len);
    }

    fn end(
        &mut self,
        index: usize,
        token: u64,
        len: u32,
        now_ns: u64,
        ledger: &mut Ledger,
    ) -> Result<(), String> {
        let number = self.spec.number;
        let at = (token % SLOTS as u64) as usize;
        let queue = &mut self.queues[index];
        let status = queue.layout.statuses.area.load_u8(at * LINE);
        self.trace.note(now_ns, "done", [number << 8 | index as u64, token, status.into()]);
        self.ended += 1;
        let wrong = |what: String| format!("guest {number} queue {index} request {token}: {what}");
        let Some(awaited) = queue.slots[at].take() else {
            return Err(wrong("completed, and not in flight".into()));
        };
        let room = &queue.layout.into.area;
        let (from, data) = match &awaited {
            Awaited::Read { at, len, .. } => (*at, *len),
            Awaited::Identity { at } => (*at, 20),
            _ => (0, 0),
        };
        let mut bytes = vec![0; ROOM];
        let _ = room.read(at * ROOM, &mut bytes);
        let beside = [0..from, from + data..ROOM];
        let changed = beside.into_iter().find(|part| bytes[part.clone()] != CANARIES[part.clone()]);
        let mut changed = changed.into_iter().flatten();
        if let Some(place) = changed.find(|place| bytes[*place] != CANARY) {
            return Err(wrong(format!("byte {place} beside its buffer at {from} was written")));
        }
        let wrote = if status == OK { data as u32 + 1 } else { 1 };
        if len != wrote {
            return Err(wrong(format!("it says {len} bytes written, not {wrote}")));
        }
        let may_lack = matches!(awaited, Awaited::Write(_));
        let is_beyond = queue.ends[at] > self.least;
        match status {
            OK => {}
            IO_ERROR if self.may_fail || is_beyond => {}
            UNSUPPORTED if may_lack => {}
            IO_ERROR => return Err(wrong("an I/O error from a disk that has not failed".into())),
            other => return Err(wrong(format!("status {other}"))),
        }
        match awaited {
            Awaited::Read { reading, .. } if status == OK => {
                let found = &bytes[from..from + data];
                ledger.found(reading, found).map_err(|e| wrong(e.to_string()))?;
            }
            Awaited::Read { reading, .. } => ledger.unread(reading),
            Awaited::Write(writing) if status == OK => ledger.wrote(writing),
            Awaited::Write(writing) => ledger.failed(writing),
            Awaited::Flush(flushing) if status == OK => ledger.flushed(flushing),
            Awaited::Flush(_) | Awaited::Identity { .. } => {}
            Awaited::Frame(_) | Awaited::Buffer { .. } => {}
        }
        let _ = room.write(at * ROOM + from, &CANARIES[..data]);
        mark(&mut self.written, queue.layout.into.gpa + (at * ROOM) as u64, ROOM as u64);
        Ok(())
    }

    /// Adds a request of any kind. False when there is no room for it.
    fn send(&mut self, index: usize, now_ns: u64, ledger: &mut Ledger) -> bool {
        // Without a record nobody knows of more which are done.
        let depth = if self.spec.is_recorded { self.spec.depth } else { 1 };
        let queue = &mut self.queues[index];
        let mut slots = queue.slots.iter().take(depth);
        let Some(at) = slots.position(Option::is_none) else { return false };
        // Header in two pieces, data in three, status.
        if queue.driver.free_descriptors() < 6 || self.sectors < SECTORS_MAX {
            return false;
        }
        let random = &mut self.random;
        let sectors = random.between(1, SECTORS_MAX);
        let first = random.below(self.sectors - sectors + 1);
        let kind = pick(random, self.spec.features);
        // Not always where a page begins, and seldom where no sector could.
        let from = random.of(&[0, 0, 512, 1024, 24, 4096 - 256]);
        let len = sectors as usize * SECTOR_SIZE;
        let layout = &queue.layout;
        let (mut data, writes) = (Vec::new(), kind == READ || kind == GET_ID);
        let part = if writes { &layout.into } else { &layout.out };
        let gpa = part.gpa + (at * ROOM) as u64;
        let awaited = match kind {
            READ => {
                data = pieces(random, gpa + from as u64, len as u32, true);
                Awaited::Read { reading: ledger.read(first, sectors), at: from, len }
            }
            WRITE => {
                let writing = ledger.write(What::Data, first, sectors);
                let mut bytes = vec![0; len];
                ledger.fill(&writing, &mut bytes);
                let _ = part.area.write(at * ROOM + from, &bytes);
                data = pieces(random, gpa + from as u64, len as u32, false);
                Awaited::Write(writing)
            }
            GET_ID => {
                data.push(Buffer { gpa: gpa + from as u64, len: 20, device_writes: true });
                Awaited::Identity { at: from }
            }
            FLUSH => Awaited::Flush(ledger.flush()),
            _ => {
                let what = if kind == DISCARD { What::Discard } else { What::Zeroes };
                let line = &layout.lines;
                line.area.store_u64(at * LINE + 16, first);
                line.area.store_u32(at * LINE + 24, sectors as u32);
                let unmap = u32::from(kind == WRITE_ZEROES && random.one_in(2));
                line.area.store_u32(at * LINE + 28, unmap);
                let gpa = line.gpa + (at * LINE) as u64 + 16;
                data.push(Buffer { gpa, len: 16, device_writes: false });
                Awaited::Write(ledger.write(what, first, sectors))
            }
        };
        mark(&mut self.written, gpa, ROOM as u64);
        let sector = if kind == READ || kind == WRITE { first } else { 0 };
        let buffers = framed(&mut self.random, layout, at, kind, sector, &data);
        queue.sent += 1;
        let token = queue.sent * SLOTS as u64 + at as u64;
        let added = queue.driver.add(&buffers, token);
        debug_assert!(added.is_ok(), "{added:?}");
        queue.slots[at] = Some(awaited);
        let has_place = ![FLUSH, GET_ID].contains(&kind);
        queue.ends[at] = if has_place { first + sectors } else { 0 };
        for part in [&queue.layout.lines, &queue.layout.statuses, &queue.layout.tables] {
            mark(&mut self.written, part.gpa, part.area.len() as u64);
        }
        let place = self.spec.number << 8 | index as u64;
        self.trace.note(now_ns, "ask", [place, token, u64::from(kind) << 32 | first]);
        true
    }
}

/// Header, data and status of a request; the header sometimes in two pieces.
fn framed(
    random: &mut Random,
    layout: &QueueLayout,
    at: usize,
    kind: u32,
    sector: u64,
    data: &[Buffer],
) -> Vec<Buffer> {
    let (line, status) = (at * LINE, layout.statuses.gpa + (at * LINE) as u64);
    layout.lines.area.store_u32(line, kind);
    layout.lines.area.store_u64(line + 8, sector);
    layout.statuses.area.store_u8(line, 0xff);
    let gpa = layout.lines.gpa + line as u64;
    let first = if random.one_in(8) { 10 } else { 16 };
    let mut buffers = vec![Buffer { gpa, len: first, device_writes: false }];
    if first < 16 {
        let gpa = gpa + u64::from(first);
        buffers.push(Buffer { gpa, len: 16 - first, device_writes: false });
    }
    buffers.extend_from_slice(data);
    buffers.push(Buffer { gpa: status, len: 1, device_writes: true });
    buffers
}

/// A buffer in up to three pieces.
fn pieces(random: &mut Random, gpa: u64, len: u32, device_writes: bool) -> Vec<Buffer> {
    let mut cuts = vec![0, len];
    for _ in 0..random.below(3) {
        let unit = if random.one_in(4) { 1 } else { 512 };
        cuts.push(random.below(u64::from(len / unit)) as u32 * unit);
    }
    cuts.sort_unstable();
    cuts.dedup();
    let piece = |pair: &[u32]| Buffer {
        gpa: gpa + u64::from(pair[0]),
        len: pair[1] - pair[0],
        device_writes,
    };
    cuts.windows(2).map(piece).collect()
}

fn pick(random: &mut Random, features: u64) -> u32 {
    let kind = match random.below(100) {
        0..38 => READ,
        38..76 => WRITE,
        76..88 => FLUSH,
        88..94 => WRITE_ZEROES,
        94..97 => DISCARD,
        _ => GET_ID,
    };
    let needs = match kind {
        FLUSH => bit::BLK_FLUSH,
        WRITE_ZEROES => bit::BLK_WRITE_ZEROES,
        DISCARD => bit::BLK_DISCARD,
        _ => 0,
    };
    if features & needs == needs { kind } else { WRITE }
}

fn queues_over(memory: &Memory, spec: &GuestSpec) -> Result<Vec<GuestQueue>, String> {
    let mut arena = Arena::new(memory.whole.clone(), 0);
    // The first page is nobody's.
    arena.take(PAGE as usize, PAGE as usize);
    let queue = |_| {
        let layout = QueueLayout::take(&mut arena, spec.ring).ok_or("no room for a ring")?;
        let driver = layout.driver()?;
        let signal = || {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            eventfd(0, flags).map_err(|e| e.to_string())
        };
        let slots = (0..SLOTS).map(|_| None).collect();
        Ok(GuestQueue {
            layout,
            driver,
            kick: signal()?,
            call: signal()?,
            slots,
            ends: [0; SLOTS],
            sent: 0,
        })
    };
    (0..spec.queues).map(queue).collect()
}

fn fill(queue: &GuestQueue, byte: u8) {
    let _ = queue.layout.into.area.write(0, &vec![byte; SLOTS * ROOM]);
}

/// The guest has written there.
fn mark(written: &mut BTreeSet<u64>, gpa: u64, len: u64) {
    written.extend(gpa / PAGE..=(gpa + len.max(1) - 1) / PAGE);
}
