//! What was done: numbers written by one sidecore and read by anyone, without a lock.
//!
//! A count is a relaxed load and store by its single writer, never a locked operation.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::latency::{Latency, LatencySnapshot};

/// A number with one writer.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        if n != 0 {
            self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Makes the counters of something and their snapshot from one list.
macro_rules! counters {
    ($(#[$about:meta])* $counters:ident, $snapshot:ident { $($(#[$doc:meta])* $name:ident,)* }
     $($(#[$extra_doc:meta])* $extra:ident: $kind:ident => $value:ty,)?) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        pub struct $counters {
            $(pub(crate) $name: Count,)*
            $(pub(crate) $extra: $kind,)?
        }

        /// The counters at one moment. Each is exact; together they may be a few requests apart.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $snapshot {
            $($(#[$doc])* pub $name: u64,)*
            $($(#[$extra_doc])* pub $extra: $value,)?
        }

        impl $counters {
            /// The values now.
            pub fn snapshot(&self) -> $snapshot {
                $snapshot {
                    $($name: self.$name.get(),)*
                    $($extra: self.$extra.snapshot(),)?
                }
            }
        }
    };
}

counters! {
    /// Counters of one queue; they live as long as the device, over detach and attach.
    QueueCounters, QueueSnapshot {
        /// Requests ended.
        requests,
        /// Reads that went to the back-end.
        reads,
        /// Writes that went to the back-end.
        writes,
        /// Flushes that went to the back-end.
        flushes,
        /// Discards and write-zeroes that went to the back-end.
        discards,
        /// Bytes asked for by reads.
        read_bytes,
        /// Bytes given by writes.
        written_bytes,
        /// Requests that ended with an error or as unsupported.
        errors,
        /// Kicks seen.
        kicks,
        /// Calls made.
        calls,
        /// Visits that found something.
        visits,
        /// Requests taken and not ended.
        in_flight,
    }
    /// From taking a request to showing its completion, nanoseconds.
    latency: Latency => LatencySnapshot,
}

counters! {
    /// Counters of one sidecore.
    SidecoreCounters, SidecoreSnapshot {
        /// Trips of the loop.
        passes,
        /// Nanoseconds in passes that found work.
        busy_ns,
        /// Nanoseconds in passes that found none.
        idle_ns,
        /// Times it slept.
        sleeps,
        /// Nanoseconds asleep.
        asleep_ns,
        /// Kicks seen.
        kicks,
        /// Queues attached.
        queues,
        /// Submissions to the kernel that failed outright; their requests were tried again.
        io_errors,
    }
}
