//! A daemon with two disks on one sidecore: a well-behaved guest works on one, the medium of the
//! other fails.
//!
//! As [`crate::neighbour`], where the front-end is what misbehaves.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use guest_memory::Area;
use testing::frontend::{FrontQueue, Frontend, FrontendSpec, LINUX_FEATURES};
use testing::slots::{SECTOR_SIZE, STATUS_UNWRITTEN};
use virtqueue::driver::Buffer;

use crate::fuse_disk::{Call, FuseDisk, FuseDiskSpec, How, Rule, When};
use crate::ledger::Order;
use crate::single::complete;
use testing::daemon::{Daemon, await_that};
use testing::verified::Load;

/// Bytes of the medium that fails.
pub const DISK_BYTES: u64 = 4 << 20;
/// The status byte of a request that failed.
pub const STATUS_IOERR: u8 = 1;
/// VIRTIO_BLK_F_FLUSH.
pub const F_FLUSH: u64 = 1 << 9;
/// VIRTIO_BLK_F_CONFIG_WCE.
pub const F_CONFIG_WCE: u64 = 1 << 11;
/// The disk whose medium fails.
pub const BAD: &str = "bad";
const VICTIM: &str = "victim";
const DISKS: &str = "[[disk]]\nid = \"victim\"\nbackend = \"memory\"\nsize = \"4M\"\n";
/// A request of the neighbour takes less, whatever the other disk does, on a machine that also does
/// other work.
const NEIGHBOUR_NS_MAX: u64 = 250_000_000;

/// A medium that does what it is told; `writeback_cache` is the kernel's, above it.
///
/// # Errors
/// It cannot be mounted.
pub fn disk(name: &str, writeback_cache: bool) -> Result<FuseDisk> {
    let order = Order::default();
    FuseDisk::mount(name, &FuseDiskSpec { size_bytes: DISK_BYTES, writeback_cache, order })
}

/// What a medium is told: which calls fail or wait, and how.
pub fn rule(call: Call, when: When, how: How) -> Rule {
    Rule { call, when, how }
}

/// The daemon, and the load on its good disk.
#[derive(Debug)]
pub struct Faulty {
    /// The daemon.
    pub daemon: Daemon,
    load: Load,
    /// Last, so that it stays connected.
    _frontend: Frontend,
}

impl Faulty {
    /// Starts the daemon and the load.
    ///
    /// # Errors
    /// One of them does not start.
    pub fn start(name: &str) -> Result<Faulty> {
        let daemon = Daemon::start(name, DISKS)?;
        let mut frontend = daemon.frontend(VICTIM, &FrontendSpec::default())?;
        let load = Load::witness(&mut frontend)?;
        load.await_requests(50)?;
        Ok(Faulty { daemon, load, _frontend: frontend })
    }

    /// Makes the disk whose medium is `path`; `more` are options of `disk add`.
    ///
    /// # Errors
    /// It was refused.
    pub fn add(&self, path: &Path, more: &str) -> Result<()> {
        let line = format!("disk add {BAD} --path {} {more}", path.display());
        self.daemon.ask(line.trim_end()).map(drop)
    }

    /// A guest of that disk with one queue, which accepted what Linux accepts but `without`.
    ///
    /// # Errors
    /// As [`Daemon::frontend`].
    pub fn guest(&self, without: u64) -> Result<Frontend> {
        let features = LINUX_FEATURES & !without;
        self.daemon.frontend(BAD, &FrontendSpec { features, ..FrontendSpec::default() })
    }

    /// A field of `faults` of that disk.
    ///
    /// # Errors
    /// It is not shown.
    pub fn faults(&self, field: &str) -> Result<u64> {
        let faults = self.daemon.shown(BAD, "faults")?;
        faults[field].as_u64().with_context(|| format!("no {field} in {faults}"))
    }

    /// Waits until the operator is shown a problem of that disk that says `what`.
    ///
    /// # Errors
    /// None is in time.
    pub fn await_problem(&self, what: &str) -> Result<()> {
        let mut shown = serde_json::Value::Null;
        await_that("the problem to be shown", || {
            shown = self.daemon.shown(BAD, "problem")?;
            Ok(shown.as_str().is_some_and(|problem| problem.contains(what)))
        })
        .with_context(|| format!("shown is {shown}, expected is {what:?}"))
    }

    /// The daemon lives, and the neighbour goes on.
    ///
    /// # Errors
    /// What is not so.
    pub fn is_unharmed(&mut self) -> Result<()> {
        self.daemon.is_alive()?;
        self.load.await_requests(20)
    }

    /// As [`Faulty::is_unharmed`]; then all ends, and the neighbour has seen no error and no stall.
    ///
    /// # Errors
    /// What is not so.
    pub fn finish(mut self) -> Result<()> {
        self.is_unharmed()?;
        let done = self.load.finish().context("the neighbour")?;
        let errors = self.daemon.shown(VICTIM, "counters")?["errors"].clone();
        ensure!(errors == 0, "the neighbour has {errors} errors");
        let longest_ns = done.max_ns;
        testing::timing::judge(longest_ns < NEIGHBOUR_NS_MAX, || {
            format!("a request of the neighbour took {longest_ns} ns")
        })?;
        Ok(())
    }
}

/// Requests whose data lies anywhere: at any address, in any pieces.
#[derive(Debug)]
pub struct Anywhere {
    line: Area,
    line_gpa: u64,
    data: Area,
    data_gpa: u64,
}

/// One piece of a request's data.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Bytes from the start of the memory.
    pub at: usize,
    /// Bytes.
    pub len: usize,
}

impl Anywhere {
    /// Takes `bytes` of memory for data.
    ///
    /// # Errors
    /// They are not left.
    pub fn new(frontend: &mut Frontend, bytes: usize) -> Result<Anywhere> {
        let full = "guest memory is too small";
        let (line, line_gpa) = frontend.memory().take(64, 64).context(full)?;
        let (data, data_gpa) = frontend.memory().take(bytes, 4096).context(full)?;
        Ok(Anywhere { line, line_gpa, data, data_gpa })
    }

    /// Writes `bytes`, scattered over `pieces`, from `sector` on; gives the status.
    ///
    /// # Errors
    /// It did not end within a minute, or the ring's rules were broken.
    pub fn write(
        &self,
        queue: &mut FrontQueue,
        sector: u64,
        pieces: &[Piece],
        bytes: &[u8],
    ) -> Result<u8> {
        let mut rest = bytes;
        for piece in pieces {
            let (now, later) = rest.split_at(piece.len);
            self.data.write(piece.at, now);
            rest = later;
        }
        self.send(queue, 1, sector, pieces)
    }

    /// Reads from `sector` on into `pieces`; gives the status and what came.
    ///
    /// # Errors
    /// As [`Anywhere::write`].
    pub fn read(
        &self,
        queue: &mut FrontQueue,
        sector: u64,
        pieces: &[Piece],
    ) -> Result<(u8, Vec<u8>)> {
        self.data.write(0, &vec![0xa5; self.data.len()]);
        let status = self.send(queue, 0, sector, pieces)?;
        let mut bytes = Vec::new();
        for piece in pieces {
            let mut part = vec![0; piece.len];
            self.data.read(piece.at, &mut part);
            bytes.extend(part);
        }
        Ok((status, bytes))
    }

    /// What lies around and between the pieces was not touched by the last read.
    ///
    /// # Errors
    /// It was.
    pub fn is_clean_beside(&self, pieces: &[Piece]) -> Result<()> {
        let mut all = vec![0; self.data.len()];
        self.data.read(0, &mut all);
        for piece in pieces {
            all[piece.at..piece.at + piece.len].fill(0xa5);
        }
        ensure!(all.iter().all(|byte| *byte == 0xa5), "bytes beside {pieces:?} were written");
        Ok(())
    }

    fn send(&self, queue: &mut FrontQueue, kind: u64, sector: u64, pieces: &[Piece]) -> Result<u8> {
        self.line.store_u64(0, kind);
        self.line.store_u64(8, sector);
        self.line.store_u8(16, STATUS_UNWRITTEN);
        let mut buffers = vec![Buffer { gpa: self.line_gpa, len: 16, device_writes: false }];
        buffers.extend(pieces.iter().map(|piece| Buffer {
            gpa: self.data_gpa + piece.at as u64,
            len: piece.len as u32,
            device_writes: kind == 0,
        }));
        buffers.push(Buffer { gpa: self.line_gpa + 16, len: 1, device_writes: true });
        complete(queue, &buffers)?;
        Ok(self.line.load_u8(16))
    }
}

/// Bytes of so many sectors.
pub const fn sectors(count: u64) -> usize {
    (count * SECTOR_SIZE) as usize
}
