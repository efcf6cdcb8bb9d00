//! Waiting for a limit, as the API shows it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What queues waited for limits. Only waits that are over count, so a queue that waits now has more. What
/// comes for a NIC does not wait: beyond the limit it is dropped, and counted as `over_limit` among its
/// `drops`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeldView {
    /// Times that a queue had something to be taken and had to wait for a limit, its device's or its
    /// group's; a wait counts when it is over.
    #[serde(default)]
    pub held: u64,
    /// How long it had to, in nanoseconds; of several queues the sum.
    #[serde(default)]
    pub held_ns: u64,
    /// Those of these times that were for the group's limit.
    #[serde(default)]
    pub group_held: u64,
    /// Their nanoseconds.
    #[serde(default)]
    pub group_held_ns: u64,
}
