//! When queues are polled, and the numbers of the policies that have some.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Least and most that a quota of `es2` can be: a turn takes no more than 32 requests, so a larger one would
/// never be reached.
pub const QUOTA: (u32, u32) = (1, 32);
/// Least and most a second that a rate of `elvis` can be: it is taken over a millisecond.
pub const RATE: (u32, u32) = (1_000, 10_000_000);

/// When the queues of a disk or NIC are polled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Polled while that is cheaper than kicks, otherwise woken by kicks: learned for each queue,
    /// and never more than twice as dear as the better of `poll` and `notify`.
    #[default]
    Adaptive,
    /// Always polled: least latency, and the core is never idle.
    Poll,
    /// Only on a kick: least CPU, most exits.
    Notify,
    /// As the paper ES2 has it: polled until a look finds fewer than a quota, which is 8 frames, or 4
    /// requests of a disk, unless `[sidecores.es2]` says otherwise; then woken by a kick.
    Es2,
    /// As the paper ELVIS has it: polled from 10,000 kicks a second on, until fewer than 5,000
    /// requests a second come, unless `[sidecores.elvis]` says otherwise.
    Elvis,
}

/// When the policy `es2` waits for a kick: after a look that found fewer than the quota and left nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Es2Spec {
    /// Requests of a disk.
    #[schemars(range(min = 1, max = 32))]
    pub quota_disk: u16,
    /// Frames of a NIC, and of an uplink.
    #[schemars(range(min = 1, max = 32))]
    pub quota_nic: u16,
}

impl Default for Es2Spec {
    fn default() -> Es2Spec {
        Es2Spec { quota_disk: 4, quota_nic: 8 }
    }
}

/// When the policy `elvis` polls, and when it waits for a kick; both rates are taken over a millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ElvisSpec {
    /// Kicks a second from which on a queue is polled.
    #[schemars(range(min = 1_000, max = 10_000_000))]
    pub rate_in: u32,
    /// Requests a second below which it waits for a kick again; at most `rate_in`.
    #[schemars(range(min = 1_000, max = 10_000_000))]
    pub rate_out: u32,
}

impl Default for ElvisSpec {
    fn default() -> ElvisSpec {
        ElvisSpec { rate_in: 10_000, rate_out: 5_000 }
    }
}
