//! How a visit is cut into pieces, and when its time is measured.
//!
//! Not what is done in a piece, nor what is looked at between two of them: the caller's. Used by the
//! sidecore and by the simulation, which must cut alike.

use crate::budget::{Budget, Visited};

/// What is done between two looks around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Requests, at most.
    pub requests: u32,
    /// No request is begun once so many bytes were taken.
    pub bytes: u64,
    /// Of a request that is worked on in slices, one slice, bytes.
    pub slice_bytes: u64,
}

/// So many bytes or requests after the last time, the clock is read again: some 4 us of copying, or 1 us and
/// more of requests. A visit of fewer is too short to be measured.
const CLOCK_BYTES: u64 = 40 << 10;
const CLOCK_REQUESTS: u32 = 16;

impl Piece {
    /// While nobody else is watched: some 13 us of copying, then the clock is read. A slice: 25 us.
    pub const ALONE: Piece = Piece { requests: 16, bytes: 128 << 10, slice_bytes: 256 << 10 };
    /// While others are watched: 1 us of copying, or a few small requests. A queue that asks little waits
    /// for half of one, on average.
    pub const WATCHFUL: Piece = Piece { requests: 4, bytes: 8 << 10, slice_bytes: 8 << 10 };
    /// While none of those that are watched will ask soon, going by what each did so far: a slice is shorter
    /// than [`Piece::QUIET_NS`], and the clock is read after each that is longer than a watchful one.
    pub const QUIET: Piece = Piece { requests: 16, bytes: 32 << 10, slice_bytes: 32 << 10 };
    /// So long before the first of them is expected, nanoseconds, pieces are small again.
    pub const QUIET_NS: u64 = 5_000;
    /// While one is expected. What that costs is made up for by the time before, so only where each asks at
    /// distances of [`Piece::REGULAR_NS`] and more.
    pub const NEAR: Piece = Piece { slice_bytes: 4 << 10, ..Piece::WATCHFUL };
    /// Nanoseconds.
    pub const REGULAR_NS: u64 = 16_000;
    /// Of frames: what they brought is shown, and called for, after each piece, so theirs are larger.
    pub const FRAMES: Piece = Piece { requests: u32::MAX, ..Piece::ALONE };

    /// The next piece of what is left of a visit.
    #[inline]
    #[must_use]
    pub fn of(self, budget: Budget, done: Visited) -> Budget {
        Budget {
            requests: budget.requests.saturating_sub(done.requests).min(self.requests),
            bytes: budget.bytes.saturating_sub(done.bytes).min(self.bytes),
            nanos: budget.nanos,
        }
    }
}

impl Visited {
    /// Whether who is watched has waited long when a visit ends with this piece, so that the next one is not
    /// begun before a look around: half of a slice.
    #[inline]
    pub fn took_long(self) -> bool {
        self.bytes >= Piece::WATCHFUL.slice_bytes / 2
    }

    /// Whether a visit that came so far is to be timed now, `clocked` being how far it was when the clock was
    /// read last.
    #[inline]
    pub fn is_to_be_clocked(self, clocked: Visited) -> bool {
        self.bytes - clocked.bytes >= CLOCK_BYTES
            || self.requests - clocked.requests >= CLOCK_REQUESTS
    }
}
