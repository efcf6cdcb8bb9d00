//! Keeps writes through the page cache apart from writes past it.
//!
//! A write of part of a page through the cache reads the page first, and later writes all of it
//! back. If a direct write to the rest of that page lands in between, it is overwritten with what
//! was there before: an acknowledged write is lost. (The kernel cannot drop a dirty page after a
//! direct write, and says so only in its log.) So of one file only writes of one kind are in flight
//! at any time, over all its queues. Direct writes are the rule; a write that cannot be direct
//! makes those that come after it go through the cache too, until none is left, and itself waits
//! for the direct ones before it.
//!
//! # Reads
//!
//! A direct read writes dirty pages back first, and a direct write to a file drops clean pages after
//! it. To a block device it drops them only before it (`blkdev_direct_write`, where the device answers
//! later): a read through the cache at the same time leaves a page there with what was before the write,
//! and a later write of a part of it puts that on the disk. So there such a read is let in as a write.

use std::sync::atomic::{AtomicU64, Ordering};

/// One write through the cache; direct ones are counted below.
const CACHED: u64 = 1 << 32;

/// What is in flight of one file.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    /// Low half: direct writes. High half: writes through the cache, also those that wait.
    counts: AtomicU64,
}

/// The right to write, held by one request. Given back by [`Writers::leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Past the cache.
    Direct,
    /// Through it.
    Cached,
    /// Through it, once [`Writers::may_start`].
    Waiting,
}

impl Writers {
    /// Lets a write in. One step: nobody sees a direct write that is none, and waits for its end.
    pub(crate) fn enter(&self, can_be_direct: bool) -> Pass {
        let mut before = self.counts.load(Ordering::Relaxed);
        loop {
            let direct = can_be_direct && before < CACHED;
            let after = before + if direct { 1 } else { CACHED };
            let order = Ordering::SeqCst;
            match self.counts.compare_exchange_weak(before, after, order, Ordering::Relaxed) {
                Ok(_) if direct => return Pass::Direct,
                Ok(_) if before.is_multiple_of(CACHED) => return Pass::Cached,
                Ok(_) => return Pass::Waiting,
                Err(now) => before = now,
            }
        }
    }

    /// Whether no direct write is left. None comes while anyone waits, so this becomes true when
    /// the device has done what it has.
    pub(crate) fn may_start(&self) -> bool {
        self.counts.load(Ordering::SeqCst).is_multiple_of(CACHED)
    }

    /// The end of a write, or of waiting for one. True when it was what others waited for.
    pub(crate) fn leave(&self, pass: Pass) -> bool {
        let one = match pass {
            Pass::Direct => 1,
            Pass::Cached | Pass::Waiting => CACHED,
        };
        let left = self.counts.fetch_sub(one, Ordering::SeqCst) - one;
        pass == Pass::Direct && left != 0 && left.is_multiple_of(CACHED)
    }
}

#[cfg(test)]
mod tests {
    use super::{Pass, Writers};

    #[test]
    fn only_one_kind_is_in_flight() {
        let writers = Writers::default();
        let direct = writers.enter(true);
        assert_eq!(direct, Pass::Direct);
        assert_eq!(writers.enter(false), Pass::Waiting);
        // The next one cannot be direct any more, or the first would wait for ever.
        assert_eq!(writers.enter(true), Pass::Waiting);
        assert!(!writers.may_start());
        assert!(writers.leave(direct), "others waited for it");
        assert!(writers.may_start());
        assert_eq!(writers.enter(true), Pass::Cached);
        for pass in [Pass::Waiting, Pass::Waiting, Pass::Cached] {
            assert!(!writers.leave(pass));
        }
        assert_eq!(writers.enter(true), Pass::Direct);
    }
}
