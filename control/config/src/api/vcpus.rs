//! What the API shows of a guest's vCPUs: which of them have a core, and what was done about it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::Redirect;

/// The vCPUs of a NIC's guest, and where frames went by what they did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunStateView {
    /// When frames go to another queue than their flow's own.
    pub redirect: Redirect,
    /// Why frames do not, if they do not though they might, or why the guest's VMM does not say by `qmp` which vCPUs it
    /// has, so that they are known by their names: what is lacking, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Frames that went to another queue than their flow's, since that one's vCPU had no core.
    pub redirected: u64,
    /// Frames for a vCPU that had no core, because no other one had one, or the flow had to stay.
    pub stayed: u64,
    /// Microseconds that those that were redirected would have waited, by an estimate.
    pub avoided_us: u64,
    /// The guest's vCPUs that are known, by their numbers; absent in a list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vcpus: Vec<VcpuView>,
}

/// One vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VcpuView {
    /// Its number in the guest.
    pub index: u16,
    /// Its thread.
    pub thread: u32,
    /// What it does now.
    pub state: VcpuState,
    /// The processor that it has, or had last; null, as what follows, while its `state` is unknown.
    #[serde(default)]
    pub cpu: Option<u32>,
    /// For how long it does that, microseconds.
    #[serde(default)]
    pub for_us: Option<u64>,
    /// How long it had a processor in all, since it is followed, milliseconds.
    #[serde(default)]
    pub ran_ms: Option<u64>,
    /// How long it had none, asleep or not, milliseconds.
    #[serde(default)]
    pub off_ms: Option<u64>,
    /// For how long it had one when it was last taken from it, microseconds; null: it never was.
    #[serde(default)]
    pub slice_us: Option<u64>,
    /// The sidecore whose processor it uses, or used last: the two take it from one another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_sidecore: Option<u16>,
}

/// What a vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VcpuState {
    /// It was not switched since it is followed, or it could not be read.
    Unknown,
    /// It has a processor.
    Runs,
    /// It waits for one.
    Waits,
    /// Its guest has halted it.
    Sleeps,
}

impl VcpuState {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            VcpuState::Unknown => "unknown",
            VcpuState::Runs => "runs",
            VcpuState::Waits => "waits",
            VcpuState::Sleeps => "sleeps",
        }
    }
}
