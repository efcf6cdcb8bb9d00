//! One flush of a disk at a time, and one for all that wait.
//!
//! The kernel tells of a page that could not be written once per open file, to whichever flush asks
//! first; another that runs at the same time is told that all is well. So of one disk, over all its
//! queues, only one flush is with the kernel, and the next is sent when its result was seen
//! ([`crate::Disk::sync_failed`] is set by then). A flush that waited ends with any flush that began
//! after it came, so however many wait, two are enough.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The flushes of one disk, numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    busy: AtomicBool,
    begun: AtomicU64,
    /// The highest number that ended well.
    well: AtomicU64,
}

impl Flushes {
    /// The first flush that will cover everything written before this call: one that has not begun.
    pub(crate) fn needed(&self) -> u64 {
        self.begun.load(Ordering::SeqCst) + 1
    }

    /// Whether that flush, or one after it, has ended well.
    pub(crate) fn ended_well(&self, needed: u64) -> bool {
        self.well.load(Ordering::SeqCst) >= needed
    }

    /// Whether one is with the kernel.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::SeqCst)
    }

    /// The number of a flush that may be sent now; `None` while one is with the kernel.
    pub(crate) fn begin(&self) -> Option<u64> {
        self.busy
            .compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst)
            .ok()
            .map(|_| self.begun.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Its result was seen.
    pub(crate) fn end(&self, number: u64, ok: bool) {
        if ok {
            self.well.fetch_max(number, Ordering::SeqCst);
        }
        self.busy.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::Flushes;

    #[test]
    fn two_flushes_serve_all_that_wait() {
        let flushes = Flushes::default();
        let early = flushes.needed();
        let first = flushes.begin().expect("nothing runs");
        // These came after the first began, so it does not cover what they ask for.
        let late = [flushes.needed(), flushes.needed()];
        assert_eq!(flushes.begin(), None);
        flushes.end(first, true);
        assert!(flushes.ended_well(early));
        assert!(!late.iter().any(|needed| flushes.ended_well(*needed)));
        let second = flushes.begin().expect("nothing runs");
        flushes.end(second, true);
        assert!(late.iter().all(|needed| flushes.ended_well(*needed)));
    }

    #[test]
    fn a_failed_flush_serves_nobody() {
        let flushes = Flushes::default();
        let needed = flushes.needed();
        let first = flushes.begin().expect("nothing runs");
        flushes.end(first, false);
        assert!(!flushes.ended_well(needed));
        assert!(flushes.begin().is_some());
    }
}
