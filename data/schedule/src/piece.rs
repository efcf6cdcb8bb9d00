//! How a visit is cut into pieces, when its time is measured, and when what it did is shown.
//!
//! Not what is done in a piece, nor what is looked at between two of them: the caller's. Used by the
//! sidecore and by the simulation, which must cut alike.

use crate::budget::{Budget, Visited};
use crate::urgency::INTERRUPTION;

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
    /// Requests of up to so many bytes are taken whole, without asking what is left of the piece: some 3 us of
    /// copying.
    pub const SMALL_BYTES: u64 = 32 << 10;
    /// Requests after which a piece of a disk shows what was completed. A driver that polls then works on
    /// these while we work on the next: at depth 32 both sides are busy at once instead of in turns. In steps
    /// of 8 they fight for the same cache lines and are slower than without; 16 gains a tenth
    /// (`bench blk --backend null`).
    pub const SHOW_EVERY: u32 = 16;

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

    /// Whether the clock is read after this piece, which came to `visited`, whatever the visit came to: after
    /// one that is long because nobody was expected, so that it is known when somebody is.
    #[inline]
    #[must_use]
    pub fn is_to_be_clocked(self, visited: Visited) -> bool {
        self == Piece::QUIET && visited.bytes >= Piece::WATCHFUL.bytes
    }

    /// Whether nothing of this one is larger than of `other`.
    const fn is_within(self, other: Piece) -> bool {
        self.requests <= other.requests
            && self.bytes <= other.bytes
            && self.slice_bytes <= other.slice_bytes
    }
}

// The more is known of who will ask, the smaller or larger.
const _: () = assert!(Piece::NEAR.is_within(Piece::WATCHFUL));
const _: () = assert!(Piece::WATCHFUL.is_within(Piece::QUIET));
const _: () = assert!(Piece::QUIET.is_within(Piece::ALONE));
const _: () = assert!(Piece::ALONE.is_within(Piece::FRAMES));
// While others are watched, a piece that has begun is over after one slice, or one small request, more.
const _: () = assert!(Piece::QUIET.slice_bytes <= Piece::QUIET.bytes);
const _: () = assert!(Piece::SMALL_BYTES <= Piece::QUIET.bytes);
const _: () = assert!(Piece::NEAR.slice_bytes > 0 && Piece::NEAR.requests > 0);
// An interruption is served in slices of a watchful piece, and may do two of those.
const _: () = assert!(INTERRUPTION.bytes == 2 * Piece::WATCHFUL.bytes);
const _: () = assert!(INTERRUPTION.requests == Piece::WATCHFUL.requests);
// A whole piece of one that is alone is measured.
const _: () = assert!(CLOCK_BYTES <= Piece::ALONE.bytes && CLOCK_REQUESTS <= Piece::ALONE.requests);
// What is saved up before one is expected is more than what small pieces last.
const _: () = assert!(2 * Piece::QUIET_NS < Piece::REGULAR_NS);

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
