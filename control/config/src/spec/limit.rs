//! Groups of devices, and the bounds of what a limit may be.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::told::{Change, Number, Set, Told, Written};
use crate::size::Size;

/// Fewest bytes a second: with less, one request would take minutes.
pub const LIMIT_BYTES_MIN: u64 = 4096;
/// Burst of a limit that says nothing, milliseconds.
pub const BURST_MS_DEFAULT: u32 = 100;
/// Most groups of one daemon.
pub const GROUPS_MAX: usize = 4096;

told! {
    /// Disks and NICs that have a limit together, such as those of one guest or of one tenant. They name the
    /// group with `group`. It counts what they use: requests of its disks, packets of its NICs, bytes of
    /// both. What its NICs receive is counted apart, with the same limits: nobody who sends to them takes
    /// from what they may do.
    spec GroupSpec;
    /// What may be changed of a group. What is not named stays.
    #[cfg_attr(feature = "cli", group(required = true, multiple = true))]
    change GroupChange;

    /// Name of the group: 1 to 64 lower-case letters, digits, `-`, `_`, `.`, beginning with a letter or
    /// digit.
    id: (String) anew;
    /// Most requests a second of all its disks together. Default: no limit.
    limit_iops: Option<u32> ("N", 1..=1_000_000_000, 5000, "limit"),
        /// Most requests a second of all its disks together; 0 for no limit.
        set service (0..=1_000_000_000);
    /// Most packets a second that all its NICs together send, and as many that they receive. A packet
    /// is what the guest's ring carries: up to 64 KiB with offloads. Default: no limit.
    limit_packets: Option<u32> ("N", 1..=1_000_000_000, 100_000, "limit"),
        /// Most packets a second that all its NICs together send, and as many that they receive; 0 for no
        /// limit.
        set service (0..=1_000_000_000);
    /// Most bytes a second that all its disks read and write and all its NICs send, together, and as many
    /// that its NICs receive: `4K` or more (powers of 1024); discards and zeroing count as requests only.
    /// Default: no limit.
    limit_bytes: Option<Size> ("SIZE"),
        /// Most bytes a second that all its disks read and write and all its NICs send, together, and as
        /// many that its NICs receive (K, M, G, T: powers of 1024); 0 for no limit.
        set service;
    /// What may be used at once after a pause, as milliseconds of the full limit. A request
    /// that is larger is served whole, and those after it wait until it is earned. Default: 100.
    limit_burst_ms: Option<u32> ("MS", 4..=60_000, 100),
        /// What may be used at once after a pause, as milliseconds of the full limit. It stays when the limit
        /// is taken away, for the next one, also over a restart.
        set service;
}

impl GroupSpec {
    /// A group of that name without a limit.
    pub fn new(id: &str) -> GroupSpec {
        GroupSpec { id: id.to_string(), ..GroupSpec::default() }
    }
}
