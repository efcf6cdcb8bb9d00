//! Groups of devices, and the bounds of what a limit may be.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::size::Size;

/// Most requests a second that a limit can say: beyond it, there is none.
pub const LIMIT_IOPS_MAX: u32 = 1_000_000_000;
/// Most packets a second that a limit can say.
pub const LIMIT_PACKETS_MAX: u32 = 1_000_000_000;
/// Fewest bytes a second: with less, one request would take minutes.
pub const LIMIT_BYTES_MIN: u64 = 4096;
/// Shortest burst, milliseconds: with less, a sidecore that wakes late would lose allowance.
pub const BURST_MS_MIN: u32 = 4;
/// Longest burst, milliseconds.
pub const BURST_MS_MAX: u32 = 60_000;
/// Burst of a limit that says nothing, milliseconds.
pub const BURST_MS_DEFAULT: u32 = 100;
/// Most groups of one daemon.
pub const GROUPS_MAX: usize = 4096;

/// Disks and NICs that have a limit together, such as those of one guest or of one tenant. They name the
/// group with `group`. It counts what they use: requests of its disks, packets of its NICs, bytes of
/// both. What its NICs receive is counted apart, with the same limits: nobody who sends to them takes
/// from what they may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// Name of the group: 1 to 64 lower-case letters, digits, `-`, `_`, `.`, beginning with a letter or
    /// digit.
    pub id: String,
    /// Most requests a second of all its disks together. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u32>("limit_iops", 1..=1_000_000_000)))]
    pub limit_iops: Option<u32>,
    /// Most packets a second that all its NICs together send, and as many that they receive. A packet
    /// is what the guest's ring carries: up to 64 KiB with offloads. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u32>("limit_packets", 1..=1_000_000_000)))]
    pub limit_packets: Option<u32>,
    /// Most bytes a second that all its disks read and write and all its NICs send, together, and as many
    /// that its NICs receive: `4K` or more (powers of 1024); discards and zeroing count as requests only.
    /// Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "SIZE",
        value_parser = crate::number::size))]
    pub limit_bytes: Option<Size>,
    /// What may be used at once after a pause, as milliseconds of the full limit. A request
    /// that is larger is served whole, and those after it wait until it is earned. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 4, max = 60000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "MS",
        value_parser = crate::number::of::<u32>("limit_burst_ms", 4..=60_000)))]
    pub limit_burst_ms: Option<u32>,
}

/// What may be changed of a group. What is not named stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[cfg_attr(feature = "cli", group(required = true, multiple = true))]
#[serde(deny_unknown_fields)]
pub struct GroupChange {
    /// Most requests a second of all its disks together; 0 for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u32>("limit_iops", 0..=1_000_000_000)))]
    pub limit_iops: Option<u32>,
    /// Most packets a second that all its NICs together send, and as many that they receive; 0 for no
    /// limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N",
        value_parser = crate::number::of::<u32>("limit_packets", 0..=1_000_000_000)))]
    pub limit_packets: Option<u32>,
    /// Most bytes a second that all its disks read and write and all its NICs send, together, and as
    /// many that its NICs receive (K, M, G, T: powers of 1024); 0 for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "SIZE",
        value_parser = crate::number::size))]
    pub limit_bytes: Option<Size>,
    /// What may be used at once after a pause, as milliseconds of the full limit. It stays when the limit
    /// is taken away, for the next one, also over a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 4, max = 60000))]
    #[cfg_attr(feature = "cli", arg(long, value_name = "MS",
        value_parser = crate::number::of::<u32>("limit_burst_ms", 4..=60_000)))]
    pub limit_burst_ms: Option<u32>,
}
