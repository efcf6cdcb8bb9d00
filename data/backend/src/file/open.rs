//! Opening a file or block device behind its fence, and the facts that requests need to know of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
#[cfg(feature = "simulated")]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use rustix::fs::{
    Advice, FileType, OFlags, SeekFrom, Stat, fadvise, fcntl_getfl, fcntl_setfl, fstat, fstatfs,
    seek,
};
use rustix::io::Errno;

use super::faults::{FaultSnapshot, Faults, Patience};
use super::flushes::Flushes;
use super::format::Foreign;
use super::image::ImageFacts;
use super::lock::{self, Refused};
use super::mark::Mark;
use super::writers::Writers;
use super::{Holder, device, holder, mark};
use crate::disk::at_most;
use crate::names::{Names, Unopened};
#[cfg(feature = "simulated")]
use crate::simulated::Kernel;
use crate::sys::Ring;
use crate::wake::Sleepers;
use crate::{Anchor, Cache, Grain, Limits, OpenError, Vet};

mod anchor;
mod direct;
mod holes;
mod identity;
mod inherit;
mod locks;
mod size;
mod sync;

use direct::{Direct, PHYSICAL_MAX, block_of, told_align};
use identity::end_of;
use size::grown;

/// File systems whose files live in memory (linux/magic.h).
pub(super) const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
/// Bytes of one discard or write-zeroes done by the kernel's workers: long enough for any driver,
/// short enough that the file's lock is not held for seconds.
const RANGE_MAX_BYTES: u64 = 1 << 30;
/// The same where the sidecore itself does it, at some 100 ns a page.
const RANGE_NOW_MAX_BYTES: u64 = 16 << 20;

/// How often a file may be put in the place of the one just opened.
const REPLACED_MAX: u32 = 8;

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
    /// `cached` is past the page cache too: a file that may have one description only.
    is_direct_only: bool,
    readonly: bool,
    is_block: bool,
    in_memory: bool,
    physical_block_size: u32,
    grain: Grain,
    limits: Limits,
    lacks: AtomicU8,
    was_empty: bool,
    image: ImageFacts,
    /// The most bytes that it was to have since it was opened: who makes it longer than that is somebody else.
    longest: AtomicU64,
    /// A label was tried, whatever came of it.
    is_labelled: AtomicBool,
    sync_failed: AtomicBool,
    /// Whether that stands on the file itself.
    mark: Mark,
    /// Readable once that was latched, for control.
    sync_failure: OwnedFd,
    pub(crate) writers: Writers,
    pub(crate) flushes: Flushes,
    pub(crate) faults: Faults,
    /// Which failures requests wait out.
    pub(crate) waits: Patience,
    /// Sidecores with requests that wait for `writers` or `flushes`.
    pub(crate) sleepers: Sleepers,
    #[cfg(feature = "simulated")]
    kernel: Option<Arc<dyn Kernel>>,
}

/// What is known of a file that is not open.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) physical_block_size: u32,
    pub(crate) grain: Grain,
    pub(crate) blocks_only: u32,
    pub(crate) limits: Limits,
    pub(crate) in_memory: bool,
    pub(crate) described: &'static str,
    pub(crate) faults: FaultSnapshot,
    /// Nothing where another process has it and did not say.
    pub(crate) image: Option<ImageFacts>,
    /// As [`crate::Disk::medium_bytes`].
    pub(crate) medium_bytes: Option<u64>,
    /// What it is to be opened by again, if it is not merely elsewhere.
    pub(crate) anchor: Option<Anchor>,
}

impl Opened {
    /// Opens and locks `path`, and says how many bytes of it are served. Waits for nobody; changes
    /// nothing before the locks are held, but that it makes a missing file.
    pub(crate) fn open(
        names: &dyn Names,
        path: &Path,
        asked_bytes: Option<u64>,
        readonly: bool,
        cache: Cache,
        vet: Vet,
    ) -> Result<(Opened, u64), OpenError> {
        let create = asked_bytes.is_some() && !readonly;
        How { vet, ..How::of(names, path, create, readonly, cache) }.opened(asked_bytes)
    }

    /// The same, for a file whose commands `kernel` is to run.
    #[cfg(feature = "simulated")]
    pub(crate) fn open_simulated(
        path: &Path,
        size_bytes: u64,
        cache: Cache,
        kernel: &Arc<dyn Kernel>,
    ) -> Result<(Opened, u64), OpenError> {
        let how = How {
            kernel: Some(Arc::clone(kernel)),
            ..How::of(&crate::names::KernelNames, path, true, false, cache)
        };
        how.opened(Some(size_bytes))
    }

    /// What [`Self::open`] would find, found without a lock: for a disk that another process has.
    /// Changes nothing, and keeps nothing open.
    pub(crate) fn look(
        names: &dyn Names,
        path: &Path,
        asked_bytes: Option<u64>,
        readonly: bool,
        cache: Cache,
        vet: Vet,
    ) -> Result<(Facts, u64), OpenError> {
        let how = How { fenced: false, vet, ..How::of(names, path, false, readonly, cache) };
        how.opened(asked_bytes).map(|(opened, size_bytes)| (opened.facts(), size_bytes))
    }

    /// What [`Self::look`] finds, and whether the file can have the size that is asked for.
    pub(crate) fn check(
        names: &dyn Names,
        path: &Path,
        asked_bytes: Option<u64>,
        readonly: bool,
        cache: Cache,
        vet: Vet,
    ) -> Result<(Facts, u64), OpenError> {
        let how = How { fenced: false, vet, ..How::of(names, path, false, readonly, cache) };
        let (opened, size_bytes) = how.opened(asked_bytes)?;
        asked_bytes.map_or(Ok(()), |asked| opened.check_size(asked)).map_err(grown)?;
        Ok((opened.facts(), size_bytes))
    }

    /// Whether [`Self::open`] would have its locks, as far as that is known without asking for one. Changes nothing; of
    /// what cannot be opened nothing is said.
    pub(crate) fn is_free(names: &dyn Names, path: &Path, readonly: bool) -> Result<(), OpenError> {
        let how = How { fenced: false, ..How::of(names, path, false, readonly, Cache::Page) };
        let Ok(file) = how.open(OFlags::empty()) else { return Ok(()) };
        let stat = fstat(&file).map_err(how.os("look at"))?;
        if is_block(&stat) && !readonly && device::is_used_by_host(&stat) {
            return Err(OpenError::UsedByHost(path.into()));
        }
        match lock::kept_by(file.as_fd(), !readonly) {
            Some(holder) => Err(how.held(&file, holder, false)),
            None => Ok(()),
        }
    }

    /// What stays known of it when it is closed.
    pub(crate) fn facts(&self) -> Facts {
        Facts {
            physical_block_size: self.physical_block_size,
            grain: self.grain,
            blocks_only: self.blocks_only(),
            limits: self.limits,
            in_memory: self.in_memory,
            described: self.describe(),
            faults: self.faults(),
            image: Some(self.image.clone()),
            medium_bytes: self.medium_bytes(),
            anchor: None,
        }
    }

    /// Through the page cache.
    pub(crate) fn cached(&self) -> BorrowedFd<'_> {
        self.cached.as_fd()
    }

    /// What runs its commands instead of the kernel.
    #[cfg(feature = "simulated")]
    pub(crate) fn kernel(&self) -> Option<&Arc<dyn Kernel>> {
        self.kernel.as_ref()
    }

    /// Past the page cache.
    pub(crate) fn direct(&self) -> Option<BorrowedFd<'_>> {
        self.direct.as_ref().map(|direct| direct.fd.as_fd())
    }

    /// Whether its transfers may go past the page cache through buffers of ours. A simulation has no memory
    /// but the guest's.
    pub(crate) fn bounces(&self) -> bool {
        #[cfg(feature = "simulated")]
        if self.kernel.is_some() {
            return false;
        }
        self.direct.is_some()
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

    /// See [`crate::Disk::grain`].
    pub(crate) fn grain(&self) -> Grain {
        self.grain
    }

    /// See [`crate::Disk::blocks_only`].
    pub(crate) fn blocks_only(&self) -> u32 {
        match self.is_direct_only {
            // Where nothing is told (NFS, FUSE) any request is taken.
            true => told_align(self.cached.as_fd()).map_or(0, |(_, offset)| offset),
            false => 0,
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn describe(&self) -> &'static str {
        match (self.direct.is_some() || self.is_direct_only, self.in_memory) {
            (_, true) => "file, in memory",
            (true, _) => "file, direct",
            (false, _) => "file, page cache",
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

    /// See [`crate::Disk::was_empty`].
    pub(crate) fn was_empty(&self) -> bool {
        self.was_empty
    }

    /// What discards and physical blocks it has. One that is not `fenced` may be another process's, so nothing is tried
    /// on it: where its file system does not tell, it has discards until one is refused ([`Lack`]), as a guest is told
    /// that moves here from where they were tried.
    fn learn(&mut self, stat: &Stat, size_bytes: u64, fenced: bool) {
        let align = self.direct.as_ref().map_or(0, |direct| direct.offset_mask as u32 + 1);
        self.physical_block_size = align.max(4096);
        self.grain = match self.is_block {
            true => {
                let (physical, grain) = device::grain(stat);
                if physical.is_power_of_two() && physical <= PHYSICAL_MAX {
                    self.physical_block_size = self.physical_block_size.max(physical);
                }
                grain
            }
            // A hole is made of whole blocks of the file system.
            false => Grain { discard: block_of(self.cached.as_fd()), ..Grain::default() },
        };
        if self.readonly {
            return;
        }
        let range = if self.in_memory { RANGE_NOW_MAX_BYTES } else { RANGE_MAX_BYTES };
        self.limits = at_most(range);
        let discards = match self.is_block {
            true => device::discards(stat),
            false => holes::are_known(&self.cached) || !fenced || self.punches(size_bytes),
        };
        if !discards {
            self.limits.discard_sectors_max = 0;
            self.note_lack(Lack::PunchHole);
        }
    }
}

/// What is opened, and how.
struct How<'a> {
    names: &'a dyn Names,
    path: &'a Path,
    /// Make it when it is missing.
    create: bool,
    readonly: bool,
    cache: Cache,
    /// With the locks; otherwise only to look.
    fenced: bool,
    /// What was kept of it when it was given up, by whoever asks.
    kept: Option<BorrowedFd<'a>>,
    vet: Vet,
    #[cfg(feature = "simulated")]
    kernel: Option<Arc<dyn Kernel>>,
}

/// A file that nobody else uses, or that is only read.
struct Fenced {
    cached: OwnedFd,
    direct: Option<Direct>,
    stat: Stat,
    in_memory: bool,
    is_direct_only: bool,
}

impl<'a> How<'a> {
    fn of(
        names: &'a dyn Names,
        path: &'a Path,
        create: bool,
        readonly: bool,
        cache: Cache,
    ) -> How<'a> {
        How {
            names,
            path,
            create,
            readonly,
            cache,
            fenced: true,
            kept: None,
            vet: Vet::Raw,
            #[cfg(feature = "simulated")]
            kernel: crate::simulated::here(),
        }
    }

    /// Whether a simulation answers for the file; what it lies on is then of no meaning.
    #[cfg(feature = "simulated")]
    fn is_simulated(&self) -> bool {
        self.kernel.is_some()
    }

    #[cfg(not(feature = "simulated"))]
    fn is_simulated(&self) -> bool {
        false
    }

    /// Opens it, with what is to be known of it, and how many bytes are served.
    fn opened(&self, asked_bytes: Option<u64>) -> Result<(Opened, u64), OpenError> {
        for _ in 0..REPLACED_MAX {
            let Some(fenced) = self.fenced()? else { continue };
            let Fenced { cached, direct, stat, in_memory, is_direct_only } = fenced;
            let image = self.image(&cached)?;
            let mark = self.mark(&cached);
            let mut opened = Opened {
                path: self.path.into(),
                cached,
                direct,
                is_direct_only,
                readonly: self.readonly,
                is_block: is_block(&stat),
                in_memory,
                physical_block_size: 4096,
                grain: Grain::default(),
                limits: Limits::default(),
                lacks: AtomicU8::new(0),
                was_empty: false,
                image,
                longest: AtomicU64::new(0),
                is_labelled: AtomicBool::new(true),
                sync_failed: AtomicBool::new(mark.is_there()),
                mark,
                sync_failure: failure_fd().map_err(self.os("watch"))?,
                writers: Writers::default(),
                flushes: Flushes::default(),
                faults: Faults::default(),
                waits: Patience::default(),
                sleepers: Sleepers::default(),
                #[cfg(feature = "simulated")]
                kernel: self.kernel.clone(),
            };
            if opened.is_block {
                // Another host may have written since somebody here read.
                let _ = fadvise(&opened.cached, 0, None, Advice::DontNeed);
            }
            opened.was_empty = opened.end().map_err(self.os("measure"))? == 0;
            let size_bytes = match asked_bytes {
                // Whoever has it may be about to make it longer.
                Some(asked) if !self.fenced => asked,
                asked => opened.served_bytes(asked)?,
            };
            opened.learn(&stat, size_bytes, self.fenced);
            #[cfg(feature = "simulated")]
            if let Some(kernel) = self.kernel.as_ref().filter(|_| self.fenced) {
                kernel.opened(self.path, opened.cached(), opened.direct());
            }
            return Ok((opened, size_bytes));
        }
        Err(self.os("open")(Errno::STALE))
    }

    /// Opens and locks it. `None`: another file was put in its place meanwhile.
    fn fenced(&self) -> Result<Option<Fenced>, OpenError> {
        let create = if self.create { OFlags::CREATE } else { OFlags::empty() };
        let cached = self.open(create).map_err(|why| self.unopened(why))?;
        let stat = fstat(&cached).map_err(self.os("look at"))?;
        let file_type = FileType::from_raw_mode(stat.st_mode);
        if !matches!(file_type, FileType::BlockDevice | FileType::RegularFile) {
            return Err(OpenError::NotADisk(self.path.into()));
        }
        self.lock(&cached)?;
        let one_lock_only = lock::one_lock_only(cached.as_fd());
        let is_direct_only = one_lock_only && self.cache == Cache::Direct;
        // io_uring reports EAGAIN for descriptors that do not block.
        let mut flags = fcntl_getfl(&cached).map_err(self.os("look at"))? - OFlags::NONBLOCK;
        if is_direct_only {
            flags |= OFlags::DIRECT;
        }
        fcntl_setfl(&cached, flags).map_err(|error| self.not_direct(error))?;
        let in_memory = !self.is_simulated() && is_in_memory(&cached, &stat);
        if !in_memory && !self.is_simulated() {
            Ring::new(2, None).map_err(OpenError::NoUring)?;
        }
        // A file in memory has nothing to be passed by.
        let direct = match self.cache {
            _ if in_memory || one_lock_only => None,
            Cache::Page => None,
            Cache::Auto | Cache::Direct => match self.open_direct(&stat) {
                Ok(direct) => Some(direct),
                Err(Errno::STALE) => return Ok(None),
                Err(Errno::BUSY) if self.claims(&stat) => {
                    return Err(self.claimed(cached.as_fd(), &stat));
                }
                Err(_) if self.cache == Cache::Auto => None,
                Err(error) => return Err(self.not_direct(error)),
            },
        };
        let cached = match &direct {
            None if self.claims(&stat) => self.claim_cached(cached, &stat)?,
            _ => cached,
        };
        if self.fenced && !one_lock_only {
            let second = direct.as_ref().map_or(cached.as_fd(), |direct| direct.fd.as_fd());
            lock::lock_bytes(second, !self.readonly)
                .map_err(|error| self.refused(second, error))?;
            // It may have been given up for a moment between two looks, by whoever has it.
            self.ask_owner(&cached)?;
        }
        let locked = fstat(&cached).map_err(self.os("look at"))?;
        let now = self.names.open(self.path, OFlags::PATH | OFlags::CLOEXEC);
        let now = now.ok().and_then(|now| fstat(now).ok());
        if !now.is_some_and(|now| [&stat, &locked].iter().all(|one| is_same(&now, one))) {
            return Ok(None);
        }
        Ok(Some(Fenced { cached, direct, stat, in_memory, is_direct_only }))
    }

    fn open(&self, more: OFlags) -> Result<OwnedFd, Unopened> {
        // A FIFO, a lease, or a device without its medium would wait in `open`.
        let flags = self.access() | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | more;
        self.names.open(self.path, flags)
    }

    fn access(&self) -> OFlags {
        if self.readonly { OFlags::RDONLY } else { OFlags::RDWR }
    }

    /// A second descriptor of the same file that passes the page cache.
    fn open_direct(&self, first: &Stat) -> Result<Direct, Errno> {
        let claim = if self.claims(first) { OFlags::EXCL } else { OFlags::empty() };
        // Not every file system that a simulation lies on has it.
        let direct = if self.is_simulated() { OFlags::empty() } else { OFlags::DIRECT };
        let fd = match self.open(claim | direct) {
            // Another one, or none, was put in its place between the two.
            Err(Unopened::Os(error)) if error != Errno::NOENT => return Err(error),
            Err(_) => return Err(Errno::STALE),
            Ok(fd) => fd,
        };
        // io_uring reports EAGAIN for descriptors that do not block.
        fcntl_setfl(&fd, fcntl_getfl(&fd)? - OFlags::NONBLOCK)?;
        let stat = fstat(&fd)?;
        if !is_same(&stat, first) {
            // Another file was put in its place between the two.
            return Err(Errno::STALE);
        }
        if self.is_simulated() {
            return Ok(Direct::simulated(fd));
        }
        Direct::of(fd, &stat)
    }

    fn os(&self, what: &'static str) -> impl Fn(Errno) -> OpenError {
        move |source| OpenError::Os { what, path: self.path.into(), source }
    }

    fn unopened(&self, why: Unopened) -> OpenError {
        let path = || self.path.into();
        match why {
            // It was asked not to wait.
            Unopened::Os(Errno::AGAIN) => OpenError::Leased(path()),
            Unopened::Os(error) => self.os("open")(error),
            Unopened::NotADisk => OpenError::NotADisk(path()),
            Unopened::Refused(why) => OpenError::Refused { path: path(), why },
        }
    }

    fn not_direct(&self, error: Errno) -> OpenError {
        match error {
            Errno::INVAL | Errno::OPNOTSUPP => OpenError::NoDirect(self.path.into()),
            error => self.os("open")(error),
        }
    }

    /// Whoever has it may keep it for what it has lost, unless it is whoever asks that had it.
    fn held(&self, file: impl AsFd, holder: Holder, may_land: bool) -> OpenError {
        let may_keep = !self.is_simulated() && !self.readonly && self.kept.is_none();
        let is_marked = may_keep && mark::is_on(file);
        OpenError::Held { path: self.path.into(), holder, may_land, is_marked }
    }

    fn refused(&self, file: impl AsFd, refused: Refused) -> OpenError {
        match refused {
            Refused::Held { holder, may_land } => self.held(file, holder, may_land),
            Refused::Os(error) => self.os("lock")(error),
        }
    }
}

fn is_block(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice
}

/// Whether it is a file whose file system never waits for a device.
fn is_in_memory(file: &OwnedFd, stat: &Stat) -> bool {
    let memory = [TMPFS_MAGIC, RAMFS_MAGIC];
    !is_block(stat)
        && fstatfs(file).is_ok_and(|fs| memory.contains(&(fs.f_type as u64 & u64::from(u32::MAX))))
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// An eventfd that nobody else has.
fn failure_fd() -> Result<OwnedFd, Errno> {
    use rustix::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}
