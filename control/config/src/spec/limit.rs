//! Groups of devices, and the bounds of what a limit may be.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::size::Size;

/// Most requests a second that a limit can say: beyond it, there is none.
pub const LIMIT_IOPS_MAX: u32 = 1_000_000_000;
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

/// Disks that have a limit together, such as those of one guest or of one tenant. They name the group
/// with `group`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// Name of the group: 1 to 64 of a-z, 0-9, `-`, `_`, `.`, beginning with a letter or digit.
    pub id: String,
    /// Most requests a second of all its disks together. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub limit_iops: Option<u32>,
    /// Most bytes a second, read and written, of all its disks together: `4K` or more; discards and
    /// zeroing count as requests only. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<Size>,
    /// What may be used at once after a pause, as milliseconds of the full limit. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 4, max = 60000))]
    pub limit_burst_ms: Option<u32>,
}
