//! Opening a file or block device, and the facts that requests need to know of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Mode, OFlags, SeekFrom, Stat, StatxFlags, fallocate,
    fcntl_getfl, fcntl_setfl, fstat, fstatfs, ftruncate, ioctl_blksszget, open, seek, statx,
};
use rustix::io::Errno;

use super::faults::{FaultSnapshot, Faults};
use super::flushes::Flushes;
use super::writers::Writers;
use crate::disk::at_most;
use crate::sys::Ring;
use crate::{Cache, Limits, OpenError, ResizeError, SECTOR_SIZE};

/// File systems whose files live in memory (linux/magic.h).
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
/// Bytes of one discard or write-zeroes done by the kernel's workers: long enough for any driver,
/// short enough that the file's lock is not held for seconds.
const RANGE_MAX_BYTES: u64 = 1 << 30;
/// The same where the sidecore itself does it, at some 100 ns a page.
const RANGE_NOW_MAX_BYTES: u64 = 16 << 20;
/// Alignment for `O_DIRECT` where the kernel (before 6.1) does not tell: no device needs more.
const ALIGN_UNKNOWN: u32 = 4096;

/// Something the file system cannot do, learnt from its refusal.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Lack {
    PunchHole = 1,
    ZeroRange = 2,
    StableWrite = 4,
}

/// An open file, shared by the queues of its device.
#[derive(Debug)]
pub(crate) struct Opened {
    path: PathBuf,
    cached: OwnedFd,
    direct: Option<Direct>,
    readonly: bool,
    is_block: bool,
    in_memory: bool,
    physical_block_size: u32,
    limits: Limits,
    lacks: AtomicU8,
    sync_failed: AtomicBool,
    pub(crate) writers: Writers,
    pub(crate) flushes: Flushes,
    pub(crate) faults: Faults,
}

/// The way past the page cache, and what it demands.
#[derive(Debug)]
struct Direct {
    fd: OwnedFd,
    /// Of addresses, minus one.
    memory_mask: u64,
    /// Of offsets and lengths, minus one.
    offset_mask: u64,
}

impl Opened {
    /// Opens `path`, and says how many bytes of it are served.
    pub(crate) fn open(
        path: &Path,
        asked_bytes: Option<u64>,
        readonly: bool,
        cache: Cache,
    ) -> Result<(Opened, u64), OpenError> {
        let os = |what| move |source| OpenError::Os { what, path: path.into(), source };
        let access = if readonly { OFlags::RDONLY } else { OFlags::RDWR };
        let create =
            if asked_bytes.is_some() && !readonly { OFlags::CREATE } else { OFlags::empty() };
        // A FIFO or a device without its medium would wait in `open`.
        let flags = access | create | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let cached = open(path, flags, Mode::from_raw_mode(0o600)).map_err(os("open"))?;
        let stat = fstat(&cached).map_err(os("look at"))?;
        let is_block = match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => true,
            FileType::RegularFile => false,
            _ => return Err(OpenError::NotADisk(path.into())),
        };
        // io_uring reports EAGAIN for descriptors that do not block.
        let plain = fcntl_getfl(&cached).map_err(os("look at"))? - OFlags::NONBLOCK;
        fcntl_setfl(&cached, plain).map_err(os("set up"))?;
        let in_memory = !is_block
            && fstatfs(&cached).is_ok_and(|fs| {
                [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(fs.f_type as u64 & u64::from(u32::MAX)))
            });
        if !in_memory {
            Ring::new(2).map_err(OpenError::NoUring)?;
        }
        // A file in memory has nothing to be passed by.
        let direct = match cache {
            Cache::Page => None,
            _ if in_memory => None,
            Cache::Auto => open_direct(path, access, &stat).ok(),
            Cache::Direct => {
                let direct = open_direct(path, access, &stat);
                Some(direct.map_err(|error| match error {
                    Errno::INVAL | Errno::OPNOTSUPP => OpenError::NoDirect(path.into()),
                    error => os("open")(error),
                })?)
            }
        };
        let mut opened = Opened {
            path: path.into(),
            cached,
            direct,
            readonly,
            is_block,
            in_memory,
            physical_block_size: 4096,
            limits: Limits::default(),
            lacks: AtomicU8::new(0),
            sync_failed: AtomicBool::new(false),
            writers: Writers::default(),
            flushes: Flushes::default(),
            faults: Faults::default(),
        };
        let size_bytes = opened.served_bytes(asked_bytes)?;
        opened.learn(&stat, size_bytes);
        Ok((opened, size_bytes))
    }

    /// Through the page cache.
    pub(crate) fn cached(&self) -> BorrowedFd<'_> {
        self.cached.as_fd()
    }

    /// Past the page cache.
    pub(crate) fn direct(&self) -> Option<BorrowedFd<'_>> {
        self.direct.as_ref().map(|direct| direct.fd.as_fd())
    }

    /// Whether a transfer may go past the page cache: `bits` are its offset, length, and lengths of
    /// pieces, `addresses` the pieces' addresses, each ORed together.
    #[inline]
    pub(crate) fn is_aligned(&self, bits: u64, addresses: u64) -> bool {
        self.direct.as_ref().is_some_and(|direct| {
            bits & direct.offset_mask == 0 && addresses & direct.memory_mask == 0
        })
    }

    pub(crate) fn is_readonly(&self) -> bool {
        self.readonly
    }

    pub(crate) fn is_block(&self) -> bool {
        self.is_block
    }

    /// Whether its file system never waits for a device.
    #[inline]
    pub(crate) fn in_memory(&self) -> bool {
        self.in_memory
    }

    pub(crate) fn physical_block_size(&self) -> u32 {
        self.physical_block_size
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn describe(&self) -> &'static str {
        match (&self.direct, self.in_memory) {
            (_, true) => "file, in memory",
            (Some(_), _) => "file, direct",
            (None, _) => "file, page cache",
        }
    }

    pub(crate) fn faults(&self) -> FaultSnapshot {
        self.faults.snapshot()
    }

    pub(crate) fn lacks(&self, what: Lack) -> bool {
        self.lacks.load(Ordering::Relaxed) & what as u8 != 0
    }

    pub(crate) fn note_lack(&self, what: Lack) {
        self.lacks.fetch_or(what as u8, Ordering::Relaxed);
    }

    /// See [`crate::Disk::sync_failed`].
    pub(crate) fn sync_failed(&self) -> bool {
        self.sync_failed.load(Ordering::SeqCst)
    }

    pub(crate) fn latch_sync_failed(&self) {
        self.sync_failed.store(true, Ordering::SeqCst);
    }

    /// Sees to it that `size_bytes` can be served.
    pub(crate) fn ensure_size(&self, size_bytes: u64) -> Result<(), ResizeError> {
        let os = |source| ResizeError::Os { path: self.path.clone(), source };
        let has = self.end().map_err(os)?;
        if has >= size_bytes {
            return Ok(());
        }
        let why = match (self.is_block, self.readonly) {
            (true, _) => "grow the device first",
            (_, true) => "it is read-only",
            _ => return ftruncate(&self.cached, size_bytes).map_err(os),
        };
        let path = self.path.clone();
        Err(ResizeError::TooSmall { path, size_bytes: has, asked_bytes: size_bytes, why })
    }

    fn served_bytes(&self, asked_bytes: Option<u64>) -> Result<u64, OpenError> {
        let path = || self.path.clone();
        if let Some(asked) = asked_bytes {
            self.ensure_size(asked).map_err(|error| match error {
                ResizeError::TooSmall { path, size_bytes, asked_bytes, why } => {
                    OpenError::TooSmall { path, size_bytes, asked_bytes, why }
                }
                ResizeError::Os { path, source } => OpenError::Os { what: "grow", path, source },
                ResizeError::Size(size) => OpenError::Size(size),
                ResizeError::Memory(error) => OpenError::Memory(error),
            })?;
            return Ok(asked);
        }
        let os = |source| OpenError::Os { what: "measure", path: path(), source };
        let size_bytes = self.end().map_err(os)?;
        match size_bytes / SECTOR_SIZE * SECTOR_SIZE {
            0 => Err(OpenError::Empty { path: path(), size_bytes }),
            whole => Ok(whole),
        }
    }

    /// Bytes in it now.
    fn end(&self) -> Result<u64, Errno> {
        if self.is_block {
            return seek(&self.cached, SeekFrom::End(0));
        }
        Ok(u64::try_from(fstat(&self.cached)?.st_size).unwrap_or(0))
    }

    /// What discards and physical blocks it has.
    fn learn(&mut self, stat: &Stat, size_bytes: u64) {
        let align = self.direct.as_ref().map_or(0, |direct| direct.offset_mask as u32 + 1);
        self.physical_block_size = align.max(4096);
        if self.readonly {
            return;
        }
        let range = if self.in_memory { RANGE_NOW_MAX_BYTES } else { RANGE_MAX_BYTES };
        self.limits = at_most(range);
        let discards = if self.is_block { device_discards(stat) } else { self.punches(size_bytes) };
        if !discards {
            self.limits.discard_sectors_max = 0;
            self.note_lack(Lack::PunchHole);
        }
    }

    /// Whether holes can be punched, tried where there is nothing to lose: beyond the end.
    fn punches(&self, size_bytes: u64) -> bool {
        let end = self.end().unwrap_or(size_bytes).max(size_bytes).next_multiple_of(1 << 20);
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.cached, mode, end, 4096).is_ok()
    }
}

/// A second descriptor of the same file that passes the page cache.
fn open_direct(path: &Path, access: OFlags, first: &Stat) -> Result<Direct, Errno> {
    let fd = open(path, access | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&fd)?;
    if (stat.st_dev, stat.st_ino) != (first.st_dev, first.st_ino) {
        // Another file was put in its place between the two.
        return Err(Errno::STALE);
    }
    let facts = statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let (memory, offset) = match facts {
        Ok(facts) if facts.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            (facts.stx_dio_mem_align, facts.stx_dio_offset_align)
        }
        _ if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice => {
            let block = ioctl_blksszget(&fd).unwrap_or(ALIGN_UNKNOWN);
            (block, block)
        }
        _ => (ALIGN_UNKNOWN, ALIGN_UNKNOWN),
    };
    if !(memory.is_power_of_two() && offset.is_power_of_two()) {
        // Zero says: opens so, and goes through the cache all the same.
        return Err(Errno::OPNOTSUPP);
    }
    Ok(Direct { fd, memory_mask: u64::from(memory) - 1, offset_mask: u64::from(offset) - 1 })
}

/// Whether a block device takes discards, as its queue says; a partition has its disk's queue.
fn device_discards(stat: &Stat) -> bool {
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    ["queue", "../queue"].iter().any(|queue| {
        let file = format!("/sys/dev/block/{major}:{minor}/{queue}/discard_max_bytes");
        std::fs::read_to_string(file).is_ok_and(|text| text.trim() != "0")
    })
}
