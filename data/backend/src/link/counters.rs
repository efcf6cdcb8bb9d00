//! What a client's link counts, for whoever shows it.
//!
//! Plain atomics with one writer, the link; read by control at any time. Not consistent with one another.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a client's link.
        #[derive(Debug, Default)]
        pub struct LinkCounters {
            $(pub(super) $name: Count,)*
        }

        /// What [`LinkCounters`] showed.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct LinkSnapshot {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl LinkCounters {
            /// What they show now.
            pub fn snapshot(&self) -> LinkSnapshot {
                LinkSnapshot { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Frames that came.
    frames_in,
    /// Frames that were sent.
    frames_out,
    /// Of those that came: from somebody else than the IOhost that is spoken to, or nothing that it says to a client.
    strange,
    /// Of those that came: not of this session, not authentic, or seen before.
    dropped,
    /// That were lost on the way in, here: too long, or no room in the socket.
    lost_in,
    /// That the kernel refused to send.
    lost_out,
    /// Handshakes that were asked for.
    handshakes,
    /// Sessions that were made.
    sessions,
    /// With which IOhost the last one is, from 0 in the order of the configuration.
    iohost,
    /// Whether there is one now: 1, or 0.
    is_up,
    /// Chunks of requests under way, each in a slot.
    in_flight,
    /// Answers whose bytes were not what their checksum says.
    mismatches,
    /// Sessions that ended because the IOhost said what it must not.
    violations,
    /// Writes that were answered and not flushed, and done once more by a machine that had lost them.
    writes_again,
    /// The smoothed round trip; 0 before the first.
    round_trip_ns,
    /// Of this session, as [`remote::SessionStats`] has them, looked at ten times a second: frames that are acknowledged.
    frames_sent,
    /// Of them: taken for lost.
    frames_lost,
    /// Records that went once more.
    records_again,
    /// Frames under way now.
    frames_under_way,
    /// Frames that may be, by what was lost.
    window_frames,
    /// Frames that may be, by the IOhost's memory.
    credit_frames,
}

/// A number with one writer.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn add(&self, value: u64) {
        self.set(self.0.load(Ordering::Relaxed).wrapping_add(value));
    }
}
