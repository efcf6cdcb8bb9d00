//! Groups as the API shows them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Every group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupList {
    /// The groups, in the order they were declared.
    pub groups: Vec<GroupView>,
}

/// One group as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupView {
    /// Its name.
    pub id: String,
    /// Where it was declared: `api`, or the file and line.
    pub declared: String,
    /// Most requests a second of its disks; absent without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_iops: Option<u32>,
    /// Most packets a second that its NICs send, and that they receive; absent without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_packets: Option<u32>,
    /// Most bytes a second of its disks and of what its NICs send, and that these receive; absent
    /// without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// What may be used at once after a pause, as milliseconds of the full limit; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_burst_ms: Option<u32>,
    /// The disks in it.
    pub disks: Vec<String>,
    /// The NICs in it.
    pub nics: Vec<String>,
    /// What those that are in it now did since each was made; the difference of two looks is what
    /// the group uses.
    pub used: GroupUseView,
}

/// What the members of a group did, in the units of its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupUseView {
    /// Requests of its disks that were answered.
    pub requests: u64,
    /// Bytes that its disks read and wrote.
    pub disk_bytes: u64,
    /// Packets that its NICs sent.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that its NICs received.
    pub received_packets: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Times that a queue of its disks, or a transmit queue of its NICs, had something to be taken and had
    /// to wait for the group's limit; of waits that are over.
    #[serde(default)]
    pub held: u64,
    /// How long they had to, in nanoseconds; of several queues the sum, so that it may be more than the
    /// time that went by.
    #[serde(default)]
    pub held_ns: u64,
    /// Packets for its NICs that were dropped, since they were beyond a limit: the group's, or the NIC's
    /// own.
    #[serde(default)]
    pub over_limit_packets: u64,
}
