//! Counts of what went wrong with a file, by kind, and of syncs. Rare, so shared by the disk's
//! queues.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use rustix::io::Errno;

use crate::{Stall, Waits};

/// Failures and syncs since the disk was opened. Each request that failed is counted once, short transfers
/// each time; one that waits has not failed.
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
    /// The code (`errno`) of the last one among `other`; 0 when there was none.
    pub other_code: i32,
}

/// Which failures requests wait out, as an operator may change it at any time.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    full: AtomicBool,
    failed: AtomicBool,
}

impl Patience {
    pub(crate) fn set(&self, waits: Waits) {
        self.full.store(waits.full, Ordering::Relaxed);
        self.failed.store(waits.failed, Ordering::Relaxed);
    }

    /// What a request that met `error` waits for, if it is to wait.
    #[cold]
    pub(crate) fn with(&self, error: Errno) -> Option<Stall> {
        let (stall, waits) = match stall_by(error)? {
            Stall::Full => (Stall::Full, &self.full),
            Stall::Failed => (Stall::Failed, &self.failed),
        };
        waits.load(Ordering::Relaxed).then_some(stall)
    }
}

/// What may be different at another time: space, and what block layer and file systems say of a medium or of
/// the way to it. All else is about the request or about this program, and stays as it is.
fn stall_by(error: Errno) -> Option<Stall> {
    Some(match error {
        Errno::NOSPC | Errno::DQUOT => Stall::Full,
        Errno::IO
        | Errno::NODATA
        | Errno::ILSEQ
        | Errno::REMOTEIO
        | Errno::NOLINK
        | Errno::BADE
        | Errno::TIMEDOUT
        | Errno::TIME
        | Errno::NODEV
        | Errno::NXIO
        | Errno::NOMEDIUM
        | Errno::ROFS
        | Errno::STALE
        | Errno::NOMEM => Stall::Failed,
        _ => return None,
    })
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    eio: AtomicU64,
    enospc: AtomicU64,
    short: AtomicU64,
    other: AtomicU64,
    other_code: AtomicI32,
    syncs: AtomicU64,
}

impl Faults {
    #[cold]
    pub(crate) fn count(&self, error: Errno) {
        let kind = match error {
            Errno::IO => &self.eio,
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => &self.enospc,
            _ => {
                self.other_code.store(error.raw_os_error(), Ordering::Relaxed);
                &self.other
            }
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
        let FaultSnapshot { eio, enospc, short, other, other_code, syncs } = before;
        self.other_code.store(other_code, Ordering::Relaxed);
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
            other_code: self.other_code.load(Ordering::Relaxed),
            syncs: of(&self.syncs),
        }
    }
}
