//! What a device serves from: opened, measured and resized by control.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use crate::file::{Facts, FaultSnapshot, File, Opened};
use crate::link::{LinkKey, Remote};
use crate::names::{KernelNames, Names};
use crate::{Backend, Memory, Null, SECTOR_SIZE, Staged, Stages, Vet, Waits};

mod anchor;
mod errors;
mod handing;
mod identity;

pub use anchor::Anchor;
pub(crate) use anchor::{Anchored, reopen};
pub use errors::{OpenError, ResizeError};
pub use handing::{Handles, Inherited};

/// Largest disk, bytes: the largest file offset.
const SIZE_MAX_BYTES: u64 = i64::MAX as u64 / SECTOR_SIZE * SECTOR_SIZE;

/// What an operator asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Answers without doing.
    Null {
        /// Bytes, a multiple of 512.
        size_bytes: u64,
    },
    /// A RAM disk, lost with the daemon.
    Memory {
        /// Bytes, a multiple of 512.
        size_bytes: u64,
    },
    /// A raw file or a block device.
    File {
        /// Where.
        path: PathBuf,
        /// Bytes, a multiple of 512. A missing file is then made and a shorter one grown (sparse);
        /// of a longer one, or of a device, the first bytes are served. `None`: all of it, which must be
        /// a multiple of 512.
        size_bytes: Option<u64>,
        /// Only read.
        readonly: bool,
        /// Through the page cache or past it.
        cache: Cache,
        /// Which failures requests wait out.
        waits: Waits,
    },
}

/// Through the host's page cache or past it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// Past it where the file can be opened so (`O_DIRECT`), otherwise through it.
    #[default]
    Auto,
    /// Past it, or the disk is refused. Requests that are not aligned for it still pass through it.
    Direct,
    /// Through it.
    Page,
}

/// What the disk can do in one command, in sectors of 512 bytes; 0 when it cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Sectors of one discard.
    pub discard_sectors_max: u32,
    /// Sectors of one write-zeroes.
    pub zeroes_sectors_max: u32,
}

/// How a disk is best used, besides [`Disk::physical_block_size`]; bytes. Of what is 0, nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grain {
    /// From its start to the first physical block that is whole.
    pub alignment_offset: u32,
    /// The smallest request that costs no reading of neighbours.
    pub io_min: u32,
    /// The best request.
    pub io_best: u32,
    /// What a discard frees is a multiple of so many, aligned to it.
    pub discard: u32,
}

/// What a device serves from. Opened once per device, shared by its queues, never changed.
#[derive(Debug)]
pub struct Disk {
    kind: Kind,
    size_bytes: u64,
}

#[derive(Clone, Debug)]
enum Kind {
    Null,
    Memory(Memory),
    File(Arc<Opened>),
    /// A file that is not open here, and what was seen of it.
    Away(Facts),
    Remote(RemoteDisk),
}

/// A disk at an IOhost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteDisk {
    /// By which link.
    pub link: LinkKey,
    /// The link's number of it ([`crate::link::ClientLink::attach`]).
    pub disk: u16,
    /// As the IOhost says, bytes, a multiple of 512.
    pub size_bytes: u64,
    /// As there, bytes, a power of two.
    pub block_size: u32,
    /// As there, bytes, a power of two.
    pub physical_block_size: u32,
    /// As there.
    pub grain: Grain,
    /// As there.
    pub limits: Limits,
    /// Writes are refused.
    pub readonly: bool,
}

impl Disk {
    /// Opens an image that is known to be raw, by a path that nobody else can change ([`KernelNames`]); otherwise as
    /// [`Self::open_by`].
    ///
    /// # Errors
    /// [`OpenError`]. A file that was made or grown before an error stays so.
    pub fn open(source: &Source) -> Result<Arc<Disk>, OpenError> {
        Self::open_by(source, &KernelNames, Vet::Raw)
    }

    /// Opens it; `names` finds its file. May block, make a file, and grow a file. Reads no data but the first bytes of
    /// an image that may be of another format, and writes none.
    ///
    /// # Errors
    /// [`OpenError`]. A file that was made or grown before an error stays so; a foreign one is untouched.
    pub fn open_by(source: &Source, names: &dyn Names, vet: Vet) -> Result<Arc<Disk>, OpenError> {
        Self::made_of(source, |path, asked, readonly, cache| {
            let (opened, size_bytes) = Opened::open(names, path, asked, readonly, cache, vet)?;
            Ok((Kind::File(Arc::new(opened)), size_bytes))
        })
    }

    /// One at an IOhost. Nothing is asked of it.
    pub fn remote(remote: RemoteDisk) -> Arc<Disk> {
        Arc::new(Disk { kind: Kind::Remote(remote), size_bytes: remote.size_bytes })
    }

    /// The same without any lock, for an image that another process has: what would be served is
    /// known then, and nothing is ([`Self::is_away`]). `names` finds its file. Changes nothing; may block.
    ///
    /// # Errors
    /// [`OpenError`], but not [`OpenError::Held`].
    pub fn look(source: &Source, names: &dyn Names, vet: Vet) -> Result<Arc<Disk>, OpenError> {
        Self::made_of(source, |path, asked, readonly, cache| {
            let (facts, size_bytes) = Opened::look(names, path, asked, readonly, cache, vet)?;
            Ok((Kind::Away(facts), size_bytes))
        })
    }

    /// Whether [`Self::open`] would succeed once nobody else has the image, as far as can be told before, and what is
    /// known of it then. Takes no lock, changes nothing, and keeps nothing open; may block.
    ///
    /// # Errors
    /// [`OpenError`], but not [`OpenError::Held`].
    pub fn check(source: &Source, names: &dyn Names, vet: Vet) -> Result<Arc<Disk>, OpenError> {
        // No memory is taken for a RAM disk only to see that there is some.
        let source = match source {
            Source::Memory { size_bytes } => &Source::Null { size_bytes: *size_bytes },
            source => source,
        };
        Self::made_of(source, |path, asked, readonly, cache| {
            let (facts, size_bytes) = Opened::check(names, path, asked, readonly, cache, vet)?;
            Ok((Kind::Away(facts), size_bytes))
        })
    }

    /// Whether [`Self::open`] would have the locks of an image now, as far as that is known without asking for one.
    /// Changes nothing, and keeps nothing open; may block. Of what cannot be opened nothing is said.
    ///
    /// # Errors
    /// [`OpenError::Held`] and [`OpenError::UsedByHost`].
    pub fn is_free(source: &Source, names: &dyn Names) -> Result<(), OpenError> {
        match source {
            Source::File { path, readonly, .. } => Opened::is_free(names, path, *readonly),
            Source::Null { .. } | Source::Memory { .. } => Ok(()),
        }
    }

    fn made_of(
        source: &Source,
        file: impl FnOnce(&Path, Option<u64>, bool, Cache) -> Result<(Kind, u64), OpenError>,
    ) -> Result<Arc<Disk>, OpenError> {
        let check = |size_bytes: u64| match size_bytes {
            SECTOR_SIZE..=SIZE_MAX_BYTES if size_bytes.is_multiple_of(SECTOR_SIZE) => {
                Ok(size_bytes)
            }
            _ => Err(OpenError::Size(size_bytes)),
        };
        let (kind, size_bytes) = match source {
            Source::Null { size_bytes } => (Kind::Null, check(*size_bytes)?),
            Source::Memory { size_bytes } => {
                let size_bytes = check(*size_bytes)?;
                (Kind::Memory(Memory::new(size_bytes)?), size_bytes)
            }
            Source::File { path, size_bytes, readonly, cache, .. } => {
                let asked = size_bytes.map(check).transpose()?;
                file(path, asked, *readonly, *cache)?
            }
        };
        let disk = Disk { kind, size_bytes };
        if let Source::File { waits, .. } = source {
            disk.set_waits(*waits);
        }
        Ok(Arc::new(disk))
    }

    /// Which file an open image is, by its device and its number there; nothing of what is no file or not open.
    pub fn file_id(&self) -> Option<(u64, u64)> {
        match &self.kind {
            Kind::File(opened) => opened.file_id(),
            _ => None,
        }
    }

    /// What stays known of it when it is closed; itself if it is no file.
    pub fn away(&self) -> Arc<Disk> {
        let kind = match &self.kind {
            Kind::File(opened) => Kind::Away(opened.facts()),
            kind => kind.clone(),
        };
        Arc::new(Disk { kind, size_bytes: self.size_bytes })
    }

    /// Whether it is not open, so that nothing can be served of it.
    pub fn is_away(&self) -> bool {
        matches!(self.kind, Kind::Away(_))
    }

    /// Makes everything that was written stable, so that others see it, whatever the page cache here
    /// holds. To be called with no request in flight, on a thread that may wait for the disk. False: it
    /// could not be, now or before ([`Self::sync_failed`]).
    pub fn sync(&self) -> bool {
        match &self.kind {
            Kind::File(opened) => opened.sync(),
            _ => true,
        }
    }

    /// Whether its back-ends end each request when it is submitted ([`Backend::answers_at_once`]).
    pub fn answers_at_once(&self) -> bool {
        match &self.kind {
            Kind::Null | Kind::Memory(_) => true,
            Kind::File(opened) => opened.in_memory(),
            Kind::Away(facts) => facts.in_memory,
            Kind::Remote(_) => false,
        }
    }

    /// A file that is opened and locked like any other, and whose commands `kernel` runs. Its bytes are
    /// `kernel`'s.
    ///
    /// # Errors
    /// As [`Disk::open`].
    #[cfg(feature = "simulated")]
    pub fn open_simulated(
        path: &std::path::Path,
        size_bytes: u64,
        cache: Cache,
        kernel: &Arc<dyn crate::Kernel>,
    ) -> Result<Arc<Disk>, OpenError> {
        let (opened, size_bytes) = Opened::open_simulated(path, size_bytes, cache, kernel)?;
        Ok(Arc::new(Disk { kind: Kind::File(Arc::new(opened)), size_bytes }))
    }

    /// Bytes that are served, a multiple of 512.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Logical block size that a guest is to see unless its operator says another, bytes: 512, so that any
    /// firmware can boot from it; of a disk at an IOhost what is said there. Requests of any sectors are served
    /// in either case.
    pub fn block_size(&self) -> u32 {
        match &self.kind {
            Kind::Remote(remote) => remote.block_size,
            _ => SECTOR_SIZE as u32,
        }
    }

    /// How it is best used.
    pub fn grain(&self) -> Grain {
        match &self.kind {
            Kind::Null => Grain::default(),
            Kind::Memory(_) => Grain { discard: 4096, ..Grain::default() },
            Kind::File(opened) => opened.grain(),
            Kind::Away(facts) => facts.grain,
            Kind::Remote(remote) => remote.grain,
        }
    }

    /// What each request must be a multiple of, bytes, where the page cache cannot help: more than 512 only of
    /// an image with `cache = "direct"` on a file system that takes one description of it.
    pub fn blocks_only(&self) -> u32 {
        match &self.kind {
            Kind::File(opened) => opened.blocks_only(),
            Kind::Away(facts) => facts.blocks_only,
            Kind::Null | Kind::Memory(_) | Kind::Remote(_) => 0,
        }
    }

    /// What requests should be aligned to, bytes, a power of two: what costs no reading of
    /// neighbours.
    pub fn physical_block_size(&self) -> u32 {
        match &self.kind {
            Kind::Null => SECTOR_SIZE as u32,
            Kind::Memory(_) => 4096,
            Kind::File(opened) => opened.physical_block_size(),
            Kind::Away(facts) => facts.physical_block_size,
            Kind::Remote(remote) => remote.physical_block_size,
        }
    }

    /// What one discard and one write-zeroes can do.
    pub fn limits(&self) -> Limits {
        match &self.kind {
            Kind::Null => Limits { discard_sectors_max: u32::MAX, zeroes_sectors_max: u32::MAX },
            // Done at once, so bounded: a gigabyte of pages is given back in some milliseconds.
            Kind::Memory(_) => at_most(64 << 20),
            Kind::File(opened) => opened.limits(),
            Kind::Away(facts) => facts.limits,
            Kind::Remote(remote) => remote.limits,
        }
    }

    /// Whether writes are refused.
    pub fn is_readonly(&self) -> bool {
        match &self.kind {
            Kind::File(opened) => opened.is_readonly(),
            Kind::Remote(remote) => remote.readonly,
            Kind::Null | Kind::Memory(_) | Kind::Away(_) => false,
        }
    }

    /// How it is served, in a few words for people: `null`, `memory`, `file, direct`, `file, page
    /// cache`, `file, in memory`.
    pub fn describe(&self) -> &'static str {
        match &self.kind {
            Kind::Null => "null",
            Kind::Memory(_) => "memory",
            Kind::File(opened) => opened.describe(),
            Kind::Away(facts) => facts.described,
            Kind::Remote(_) => "remote",
        }
    }

    /// Which failures requests wait out from now on; those that wait hear of it when they are tried again.
    /// Only a file's requests wait.
    pub fn set_waits(&self, waits: Waits) {
        if let Kind::File(opened) = &self.kind {
            opened.waits.set(waits);
        }
    }

    /// Failures that requests met since the disk was opened.
    pub fn faults(&self) -> FaultSnapshot {
        match &self.kind {
            Kind::File(opened) => opened.faults(),
            Kind::Away(facts) => facts.faults,
            Kind::Null | Kind::Memory(_) | Kind::Remote(_) => FaultSnapshot::default(),
        }
    }

    /// Counts on from what was counted of `before`, which was the same disk when it was open last.
    pub fn count_on_from(&self, before: &Disk) {
        if let Kind::File(opened) = &self.kind {
            opened.faults.add(before.faults());
        }
    }

    /// Whether it held nothing when it was opened: an image that was made just then, or one of no
    /// length, or a RAM disk. Whoever used it before has lost what it held.
    pub fn was_empty(&self) -> bool {
        match &self.kind {
            Kind::Null | Kind::Away(_) | Kind::Remote(_) => false,
            Kind::Memory(_) => true,
            Kind::File(opened) => opened.was_empty(),
        }
    }

    /// Whether the kernel once failed to make data stable. No flush and no synchronous write ends
    /// `Ok` any more: the kernel reports a lost page only once, so that a later success would lie.
    /// Until [`Self::forget_sync_failure`].
    pub fn sync_failed(&self) -> bool {
        matches!(&self.kind, Kind::File(opened) if opened.sync_failed())
    }

    /// Readable when [`Self::sync_failed`] has become true by a failure of the kernel's; whoever
    /// reads it resets it. `None` for a disk that cannot fail so.
    pub fn sync_failure_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.kind {
            Kind::File(opened) => Some(opened.sync_failure_fd()),
            Kind::Null | Kind::Memory(_) | Kind::Away(_) | Kind::Remote(_) => None,
        }
    }

    /// Has [`Self::sync_failed`] be true from the start: a daemon before this one met the failure,
    /// and the kernel will not tell of it again.
    pub fn assume_sync_failed(&self) {
        if let Kind::File(opened) = &self.kind {
            opened.set_sync_failed(true);
        }
    }

    /// Whether its file says itself that it has lost data.
    pub fn is_marked(&self) -> bool {
        matches!(&self.kind, Kind::File(opened) if opened.is_marked())
    }

    /// Why its file could not be marked, though it has lost data: nobody else who opens it knows.
    pub fn unmarked(&self) -> Option<Errno> {
        match &self.kind {
            Kind::File(opened) => opened.unmarked(),
            _ => None,
        }
    }

    /// Takes the mark off its file, and ends [`Self::sync_failed`]. Waits for its file system.
    ///
    /// # Errors
    /// The mark is still there, and it has failed as before.
    pub fn clear_mark(&self) -> Result<(), Errno> {
        match &self.kind {
            Kind::File(opened) => opened.clear_mark(),
            _ => Ok(()),
        }
    }

    /// Has the image say itself that it has lost data, if it has and does not say so; whoever opens it later sees that.
    /// Waits for its file system.
    pub fn mark_lost(&self) {
        if let Kind::File(opened) = &self.kind {
            opened.mark_lost();
        }
    }

    /// Ends [`Self::sync_failed`]: an operator knows what was lost. True if there was a failure.
    pub fn forget_sync_failure(&self) -> bool {
        let failed = self.sync_failed();
        if let Kind::File(opened) = &self.kind {
            opened.set_sync_failed(false);
        }
        failed
    }

    /// The way of one queue. Of a disk that [`Self::is_away`], one that refuses every transfer.
    pub fn backend(self: &Arc<Self>) -> Backend {
        match &self.kind {
            Kind::Away(_) => Backend::Null(Null { size_bytes: 0 }),
            Kind::Null => Backend::Null(Null { size_bytes: self.size_bytes }),
            Kind::Memory(memory) => Backend::Memory(memory.clone()),
            Kind::File(opened) => Backend::File(File::new(Arc::clone(opened), self.size_bytes)),
            Kind::Remote(remote) => Backend::Remote(Remote::new(remote, self.size_bytes)),
        }
    }

    /// The same with something done to requests on the way; nothing of a disk that [`Self::is_away`].
    pub fn backend_through(self: &Arc<Self>, stages: Stages) -> Backend {
        let medium = self.backend();
        if stages.is_none() || self.is_away() {
            return medium;
        }
        Backend::Staged(Box::new(Staged::new(medium, stages)))
    }

    /// Whether [`Self::resize`] would be refused for what the disk lies on. Changes nothing. Of a disk that
    /// [`Self::is_away`] nothing is known.
    ///
    /// # Errors
    /// [`ResizeError`].
    pub fn check_size(&self, size_bytes: u64) -> Result<(), ResizeError> {
        match &self.kind {
            Kind::File(opened) => opened.check_size(size_bytes),
            Kind::Null | Kind::Memory(_) | Kind::Away(_) | Kind::Remote(_) => Ok(()),
        }
    }

    /// Bytes of the file system that the image lies on, used or free. `None` for what is no file of a
    /// file system, or one that tells no size.
    pub fn medium_bytes(&self) -> Option<u64> {
        match &self.kind {
            Kind::File(opened) => opened.medium_bytes(),
            Kind::Away(facts) => facts.medium_bytes,
            Kind::Null | Kind::Memory(_) | Kind::Remote(_) => None,
        }
    }

    /// Bytes that its image has, as far as this process knows, whatever is served of them; `None` for what has none, or
    /// one that was not seen here.
    pub fn image_bytes(&self) -> Option<u64> {
        match &self.kind {
            Kind::File(opened) => Some(opened.longest_known()),
            _ => self.image().map(crate::ImageFacts::bytes),
        }
    }

    /// Gives it another size. To be called with every queue detached; every back-end must be made
    /// anew, and the old ones dropped.
    ///
    /// Growing: a file is made longer (sparse), a RAM disk gets zeroes, of a device more is served.
    /// Shrinking: of a file or device less is served and its bytes stay; a RAM disk loses them.
    ///
    /// # Errors
    /// [`ResizeError`]; the disk is then unchanged.
    pub fn resize(disk: &mut Arc<Disk>, size_bytes: u64) -> Result<(), ResizeError> {
        if !(SECTOR_SIZE..=SIZE_MAX_BYTES).contains(&size_bytes)
            || !size_bytes.is_multiple_of(SECTOR_SIZE)
        {
            return Err(ResizeError::Size(size_bytes));
        }
        let kind = match &disk.kind {
            // Who opens it next makes it longer; an IOhost has told of it.
            kind @ (Kind::Null | Kind::Away(_) | Kind::Remote(_)) => kind.clone(),
            Kind::Memory(memory) => Kind::Memory(memory.resized(size_bytes)?),
            Kind::File(opened) => {
                opened.ensure_size(size_bytes)?;
                Kind::File(Arc::clone(opened))
            }
        };
        *disk = Arc::new(Disk { kind, size_bytes });
        Ok(())
    }
}

/// The same limit for both, of so many bytes.
pub(crate) fn at_most(bytes: u64) -> Limits {
    let sectors = u32::try_from(bytes / SECTOR_SIZE).unwrap_or(u32::MAX);
    Limits { discard_sectors_max: sectors, zeroes_sectors_max: sectors }
}
