//! Sidecores, as they are shown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Every sidecore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SidecoreList {
    /// The sidecores, by number.
    pub sidecores: Vec<SidecoreView>,
}

/// Whether a sidecore is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SidecoreState {
    /// It has queues, or gets the next ones.
    #[default]
    InUse,
    /// There is too little to do: its queues are being moved to others, then it is parked.
    Leaving,
    /// It sleeps, until the load asks for it or a queue is moved there.
    Parked,
}

impl SidecoreState {
    /// As it is shown.
    pub fn word(self) -> &'static str {
        match self {
            SidecoreState::InUse => "in use",
            SidecoreState::Leaving => "leaving",
            SidecoreState::Parked => "parked",
        }
    }
}

/// One sidecore as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SidecoreView {
    /// Its number.
    pub index: u16,
    /// The cpu it is pinned to; absent if it is not pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Its NUMA node; absent on a host that has one only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// Whether it is in use.
    #[serde(default)]
    pub state: SidecoreState,
    /// Time it worked, of the time between the last two looks, in percent; looking at empty queues is no
    /// work. A look is made every 100 ms while there is load, else every second.
    #[serde(default)]
    pub busy_percent: u32,
    /// Time in which it looked at empty queues, of the same, in percent: it took its cpu, and worked nothing.
    /// What these two leave of 100 it slept.
    #[serde(default)]
    pub poll_percent: u32,
    /// Time in which it would have run and others had its cpu, of the same, in percent; null where the kernel does not
    /// count it, and while it serves nothing, when nobody looks.
    #[serde(default)]
    pub lost_percent: Option<u32>,
    /// Queues it serves.
    pub queues: u16,
    /// Trips of its loop.
    pub passes: u64,
    /// Time in trips that found work, in nanoseconds.
    pub busy_ns: u64,
    /// Time in trips that found none, in nanoseconds; sleep is not counted.
    pub idle_ns: u64,
    /// How often it slept.
    pub sleeps: u64,
    /// Time asleep, in nanoseconds; of sleeps that have ended.
    #[serde(default)]
    pub asleep_ns: u64,
    /// Kicks it took.
    pub kicks: u64,
    /// How often a queue was served in the middle of another's visit, by `urgency`.
    #[serde(default)]
    pub interruptions: u64,
    /// Requests and frames it took from rings.
    #[serde(default)]
    pub requests: u64,
    /// Requests and frames that needed no kick: those it took, less its kicks.
    #[serde(default)]
    pub kicks_avoided: u64,
    /// Queues that came from another sidecore while they ran.
    #[serde(default)]
    pub moves_in: u64,
    /// Queues that went to another sidecore while they ran.
    #[serde(default)]
    pub moves_out: u64,
    /// Queues of disks, and NICs, that were to go to another sidecore and stayed, most because requests or
    /// frames under way did not end in time.
    #[serde(default)]
    pub moves_stayed: u64,
    /// Half of the queues that came were looked at by nobody for no longer than so many nanoseconds; null before the
    /// first.
    #[serde(default)]
    pub move_pause_p50_ns: Option<u64>,
    /// The same for 99 of 100.
    #[serde(default)]
    pub move_pause_p99_ns: Option<u64>,
    /// The same for all.
    #[serde(default)]
    pub move_pause_max_ns: Option<u64>,
    /// Times that the kernel took no requests at all; they were tried again.
    #[serde(default)]
    pub io_errors: u64,
}
