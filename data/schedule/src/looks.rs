//! How often kicks are looked for while something is polled.
//!
//! Not the looking, which is the caller's: the sidecore's, and the simulation's, which must look alike.

/// Between two looks for kicks while something is polled, nanoseconds.
pub const LOOK_INTERVAL_NS: u64 = 50_000;

/// What one look takes at most: kicks, and whatever else wakes a sidecore. The next look finds the others.
pub const LOOK_EVENTS_MAX: usize = 64;
