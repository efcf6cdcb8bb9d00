//! Disks on their way from one process to another: descriptors, and what is known over them.
//!
//! Nothing is in flight meanwhile. Called by both sides of an upgrade (`manager`).

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::{Anchor, Disk, Grain, Kind, Limits, OpenError, SIZE_MAX_BYTES, Source};
use crate::file::{Facts, FaultSnapshot, Opened};
use crate::{Memory, SECTOR_SIZE};

/// What is known of a disk that another process serves, besides its [`Handles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// As [`Disk::size_bytes`].
    pub size_bytes: u64,
    /// As [`Disk::physical_block_size`].
    pub physical_block_size: u32,
    /// As [`Disk::grain`].
    pub grain: Grain,
    /// As [`Disk::limits`].
    pub limits: Limits,
    /// As [`Disk::was_empty`].
    pub was_empty: bool,
    /// As [`Disk::answers_at_once`].
    pub at_once: bool,
    /// Of an image that was given up and is only read ([`Anchor`]).
    pub mark: Option<u64>,
}

/// What of an open disk another process needs to go on with it, nothing being in flight. Open file
/// descriptions bring their locks along.
#[derive(Debug)]
pub enum Handles<F> {
    /// Of `null`.
    Null,
    /// The file of a RAM disk.
    Memory(F),
    /// The descriptions of an image.
    File {
        /// Through the page cache, or the only one.
        cached: F,
        /// Past it.
        direct: Option<F>,
    },
    /// Of an image that is not open ([`Disk::is_away`]), and of a disk at an IOhost, which is not handed over.
    Away {
        /// What leads to an image that was [given up](Disk::give_up).
        anchor: Option<F>,
    },
}

impl Disk {
    /// What [`Self::inherit`] takes in another process.
    pub fn handles(&self) -> Handles<BorrowedFd<'_>> {
        match &self.kind {
            Kind::Null => Handles::Null,
            Kind::Away(_) | Kind::Remote(_) => {
                Handles::Away { anchor: self.anchor().and_then(Anchor::file) }
            }
            Kind::Memory(memory) => Handles::Memory(memory.file()),
            Kind::File(opened) => {
                let (cached, direct) = opened.descriptions();
                Handles::File { cached, direct }
            }
        }
    }

    /// The disk that another process served until now, as it was there; `source` says what it is to be.
    /// Opens nothing, asks for no lock, and touches no data.
    ///
    /// # Errors
    /// [`OpenError`]: the handles are not of such a disk.
    pub fn inherit(
        source: &Source,
        facts: &Inherited,
        handles: Handles<OwnedFd>,
    ) -> Result<Arc<Disk>, OpenError> {
        let size_bytes = facts.size_bytes;
        if !(SECTOR_SIZE..=SIZE_MAX_BYTES).contains(&size_bytes)
            || !size_bytes.is_multiple_of(SECTOR_SIZE)
        {
            return Err(OpenError::Size(size_bytes));
        }
        if !(SECTOR_SIZE as u32..=1 << 20).contains(&facts.physical_block_size)
            || !facts.physical_block_size.is_power_of_two()
        {
            return Err(OpenError::NotIt("a disk with such blocks"));
        }
        let kind = match (source, handles) {
            (Source::Null { .. }, Handles::Null) => Kind::Null,
            (Source::Memory { .. }, Handles::Memory(file)) => {
                Kind::Memory(Memory::over(file, size_bytes)?)
            }
            (Source::File { path, readonly, waits, .. }, Handles::File { cached, direct }) => {
                let opened = Opened::inherit(path, *readonly, facts, cached, direct)?;
                opened.waits.set(*waits);
                Kind::File(Arc::new(opened))
            }
            (Source::File { path, .. }, Handles::Away { anchor }) => Kind::Away(Facts {
                physical_block_size: facts.physical_block_size,
                grain: facts.grain,
                blocks_only: 0,
                limits: facts.limits,
                in_memory: facts.at_once,
                described: "file",
                faults: FaultSnapshot::default(),
                image: None,
                medium_bytes: None,
                anchor: Anchor::of(path, anchor, facts.mark),
            }),
            (Source::Null { .. }, _) => return Err(OpenError::NotIt("a null disk")),
            (Source::Memory { .. }, _) => return Err(OpenError::NotIt("a RAM disk")),
            (Source::File { .. }, _) => return Err(OpenError::NotIt("an image")),
        };
        Ok(Arc::new(Disk { kind, size_bytes }))
    }
}
