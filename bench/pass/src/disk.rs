//! Requests of one disk: a ring, a back-end, a sidecore, and the driver's side, on one thread.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use backend::trace::Ring;
use backend::{Cache, Disk, Source, Stages, Waits};
use device::blk::{Blk, Live, Shape};
use device::features;
use guest_memory::GuestMap;
use schedule::{Nanos, Policy};
use sidecore::{Command as Order, Handle, QueueKey, RoleSpec, Served, ServedSpec};
use sidecore::{Sidecore, SidecoreSpec};
use testing::load::Load;
use testing::scratch::Scratch;
use testing::slots::{Kind, SECTOR_SIZE, Slots};
use virtqueue::driver::{Arena, Driver, RingSpec, first_base};
use virtqueue::{Format, Queue};

use crate::{BLOCK_BYTES, DEPTH, DISK_BYTES, TURN_NS, counted_pass, own_program};

const MEMORY_BYTES: u64 = 8 << 20;
/// Turns before anything is counted: attach, first use of every slot.
pub(crate) const WARM_TURNS: u64 = 64;
/// Where a file is one in memory.
const IN_MEMORY: &str = "/dev/shm";

/// A ring, a back-end, and what is asked of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    medium: Medium,
    kind: Kind,
    format: Format,
    indirect_entries: u16,
    /// Each request is recorded on its way.
    is_traced: bool,
}

/// What is behind the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Medium {
    Null,
    Memory,
    /// A file in memory, which answers at once.
    MemoryFile,
    /// A file through the page cache, which has all of it: the kernel ends each request when it is given it, so that
    /// what is counted does not depend on a device.
    CachedFile,
}

pub(crate) const CASES: [Case; 14] = [
    case("null.randread.split", Medium::Null, Kind::Read, Format::Split, 0),
    case("null.randread.indirect", Medium::Null, Kind::Read, Format::Split, 3),
    case("null.randread.packed", Medium::Null, Kind::Read, Format::Packed, 0),
    case("null.randread.packed_indirect", Medium::Null, Kind::Read, Format::Packed, 3),
    case("null.randwrite.indirect", Medium::Null, Kind::Write, Format::Split, 3),
    case("memory.randread.split", Medium::Memory, Kind::Read, Format::Split, 0),
    case("memory.randread.indirect", Medium::Memory, Kind::Read, Format::Split, 3),
    case("memory.randwrite.indirect", Medium::Memory, Kind::Write, Format::Split, 3),
    case("file.memory.randread.split", Medium::MemoryFile, Kind::Read, Format::Split, 0),
    case("file.memory.randwrite.indirect", Medium::MemoryFile, Kind::Write, Format::Split, 3),
    case("file.cached.randread.split", Medium::CachedFile, Kind::Read, Format::Split, 0),
    case("file.cached.randread.packed", Medium::CachedFile, Kind::Read, Format::Packed, 0),
    traced(case("traced.null.randread.split", Medium::Null, Kind::Read, Format::Split, 0)),
    traced(case("traced.file.cached.randread", Medium::CachedFile, Kind::Read, Format::Split, 0)),
];

const fn traced(case: Case) -> Case {
    Case { is_traced: true, ..case }
}

const fn case(
    name: &'static str,
    medium: Medium,
    kind: Kind,
    format: Format,
    indirect_entries: u16,
) -> Case {
    Case { name, medium, kind, format, indirect_entries, is_traced: false }
}

/// A sidecore with one queue, and the driver of that queue.
pub(crate) struct Bed {
    sidecore: Sidecore,
    _handle: Handle,
    driver: Driver,
    slots: Slots,
    load: Load,
    now: Nanos,
    _folder: Option<Scratch>,
}

impl Bed {
    pub(crate) fn new(case: Case) -> Result<Bed> {
        let map = Arc::new(GuestMap::anonymous(MEMORY_BYTES)?);
        let area = map.area_at_user(0, MEMORY_BYTES).context("guest memory")?;
        let mut arena = Arena::new(area, 0);
        let ring = RingSpec {
            // Two loads of 32 requests, three entries each, are prepared at once.
            size: 256,
            format: case.format,
            event_index: true,
            indirect_entries: case.indirect_entries,
        };
        let (mut driver, places) = arena.driver(ring)?;
        let spec = ring.queue_spec(&map, places, first_base(ring.format));
        let queue = Queue::new(spec.context("the ring is not in memory")?)?;
        let key = QueueKey { device: 0, queue: 0 };
        let (source, folder) = case.medium.source()?;
        let trace = case.is_traced.then(|| Ring::new(4_096));
        let stages = Stages { trace, fault: None };
        let served = served(&source, key, queue, Arc::clone(&map), stages)?;
        let spec =
            SidecoreSpec { index: 0, cpu: None, workers: None, watches: true, queues_max: 16 };
        let (sidecore, mut handle) = Sidecore::new(spec)?;
        let sent = handle.send(Order::Attach(served));
        ensure!(sent.is_ok(), "the sidecore takes no queue");
        let slots = Slots::new(&mut arena, DEPTH, BLOCK_BYTES)?;
        let capacity = DISK_BYTES / SECTOR_SIZE;
        let load = Load::new(&mut driver, &slots, case.kind, DEPTH, capacity)?;
        let (now, _folder, _handle) = (Nanos(1), folder, handle);
        let mut bed = Bed { sidecore, _handle, driver, slots, load, now, _folder };
        bed.warm()?;
        Ok(bed)
    }

    /// Turns that are not counted: the attach and the first requests.
    fn warm(&mut self) -> Result<()> {
        self.driver.disarm_calls();
        self.sidecore.pass(self.now, &self.now);
        self.load.start(&mut self.driver, &self.slots);
        for _ in 0..WARM_TURNS {
            self.driver.publish();
            self.advance();
            self.sidecore.pass(self.now, &self.now);
            while self.load.turn(&mut self.driver, &self.slots) > 0 {
                self.driver.publish();
            }
        }
        self.load.check(&self.driver)
    }

    /// Gives nearly every block of a RAM disk a page of its own, which a read would not.
    pub(crate) fn fill(&mut self) -> Result<()> {
        let capacity = DISK_BYTES / SECTOR_SIZE;
        let writes = Load::new(&mut self.driver, &self.slots, Kind::Write, DEPTH, capacity)?;
        self.drain()?;
        let reads = std::mem::replace(&mut self.load, writes);
        self.load.start(&mut self.driver, &self.slots);
        self.driver.publish();
        self.run(4 * DISK_BYTES / u64::from(BLOCK_BYTES))?;
        self.drain()?;
        std::mem::replace(&mut self.load, reads).end(&mut self.driver);
        self.load.reset(&self.slots);
        self.load.start(&mut self.driver, &self.slots);
        self.driver.publish();
        Ok(())
    }

    /// Lets what is in flight end.
    fn drain(&mut self) -> Result<()> {
        for _ in 0..1000 {
            if self.driver.in_flight() == 0 {
                return Ok(());
            }
            self.advance();
            self.sidecore.pass(self.now, &self.now);
            while self.driver.take_used().is_some() {}
        }
        bail!("the sidecore did not finish its requests")
    }

    /// At least `requests` requests; gives how many there were.
    pub(crate) fn run(&mut self, requests: u64) -> Result<u64> {
        let (mut done, mut idle) = (0, 0);
        while done < requests {
            self.advance();
            counted_pass(&mut self.sidecore, self.now);
            let before = done;
            loop {
                let taken = self.load.turn(&mut self.driver, &self.slots);
                if taken == 0 {
                    break;
                }
                done += taken as u64;
            }
            self.driver.publish();
            idle = if done == before { idle + 1 } else { 0 };
            ensure!(idle < 1000, "the sidecore does nothing any more");
        }
        self.load.check(&self.driver)?;
        Ok(done)
    }

    fn advance(&mut self) {
        self.now = Nanos(self.now.0 + TURN_NS);
    }
}

impl Case {
    /// Whether the kernel is handed each request.
    pub(crate) fn is_handed_over(self) -> bool {
        self.medium == Medium::CachedFile
    }

    /// Whether a read of its disk would find no page of its own.
    pub(crate) fn needs_pages(self) -> bool {
        self.medium == Medium::Memory
    }
}

impl Medium {
    /// What is opened, and where it lies.
    fn source(self) -> Result<(Source, Option<Scratch>)> {
        let folder = match self {
            Medium::Null => return Ok((Source::Null { size_bytes: DISK_BYTES }, None)),
            Medium::Memory => return Ok((Source::Memory { size_bytes: DISK_BYTES }, None)),
            Medium::MemoryFile => Scratch::new(Path::new(IN_MEMORY), "bench-pass")?,
            // Beside the program: a folder for files that do not last may be in memory.
            Medium::CachedFile => {
                let program = own_program()?;
                Scratch::new(program.parent().context("the program's folder")?, "bench-pass")?
            }
        };
        let path = folder.path().join("disk");
        // Written, so that the page cache has each page.
        std::fs::write(&path, vec![0; DISK_BYTES as usize]).context("writing an image")?;
        let (size_bytes, readonly, waits) = (None, false, Waits::default());
        Ok((Source::File { path, size_bytes, readonly, cache: Cache::Page, waits }, Some(folder)))
    }
}

pub(crate) fn served(
    source: &Source,
    key: QueueKey,
    queue: Queue,
    memory: Arc<GuestMap>,
    stages: Stages,
) -> Result<Box<Served>> {
    let disk = Disk::open(source)?;
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
    let blk = Blk::new(&shape, Live::new(DISK_BYTES), negotiated);
    Ok(Served::new(ServedSpec {
        key,
        queue,
        memory,
        role: RoleSpec::Disk { blk, backend: disk.backend_through(stages) },
        kick: None,
        call: None,
        share: 100,
        policy: Policy::Poll,
        target_ns: None,
        moderate_ns: 0,
        gate: None,
        counters: Arc::default(),
    }))
}
