//! Counts of what went wrong with a file, by kind, and of syncs. Rare, so shared by the disk's
//! queues.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

/// Failures and syncs since the disk was opened. Each request that failed is counted once, short transfers
/// each time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultSnapshot {
    /// The medium failed (`EIO`), or a flush did.
    pub eio: u64,
    /// No space (`ENOSPC`, `EDQUOT`, `EFBIG`).
    pub enospc: u64,
    /// The kernel transferred less than asked; most are resumed and end well.
    pub short: u64,
    /// Syncs that were asked of the kernel and ended, well or not: `fdatasync`, and writes that are
    /// stable when they end (in a file in memory those are ordinary writes).
    pub syncs: u64,
    /// Anything else, for instance guest memory that the host cannot touch (`EFAULT`).
    pub other: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    eio: AtomicU64,
    enospc: AtomicU64,
    short: AtomicU64,
    other: AtomicU64,
    syncs: AtomicU64,
}

impl Faults {
    #[cold]
    pub(crate) fn count(&self, error: Errno) {
        let kind = match error {
            Errno::IO => &self.eio,
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => &self.enospc,
            _ => &self.other,
        };
        kind.fetch_add(1, Ordering::Relaxed);
    }

    #[cold]
    pub(crate) fn count_short(&self) {
        self.short.fetch_add(1, Ordering::Relaxed);
    }

    /// Of a disk whose every write is stable this is once a write, which took a disk's time.
    pub(crate) fn count_sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    /// Goes on from what was counted before.
    pub(crate) fn add(&self, before: FaultSnapshot) {
        let FaultSnapshot { eio, enospc, short, other, syncs } = before;
        let counts = [(&self.eio, eio), (&self.enospc, enospc), (&self.short, short)];
        for (kind, count) in counts.into_iter().chain([(&self.other, other), (&self.syncs, syncs)])
        {
            kind.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(crate) fn snapshot(&self) -> FaultSnapshot {
        let of = |kind: &AtomicU64| kind.load(Ordering::Relaxed);
        FaultSnapshot {
            eio: of(&self.eio),
            enospc: of(&self.enospc),
            short: of(&self.short),
            other: of(&self.other),
            syncs: of(&self.syncs),
        }
    }
}
