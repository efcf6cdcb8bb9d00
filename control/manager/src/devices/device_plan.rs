//! What a plan says of any device. Not here: what only a disk or a NIC is (`kind`).

use config::plan::{DiskPlan, NicPlan, Origin, ServicePlan};
use config::spec::{DRAIN_TIMEOUT_DEFAULT_S, Mode, SocketRights};

/// What a plan says of any device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) id: String,
    pub(crate) origin: Origin,
    pub(crate) socket: String,
    pub(crate) mode: Mode,
    /// Who may open its socket.
    pub(crate) rights: SocketRights,
    /// How its queues are served.
    pub(crate) service: ServicePlan,
    pub(crate) allow_unsealed_memory: bool,
    /// Seconds that a front-end waits for its queues.
    pub(crate) drain_timeout_s: u32,
    /// Rings of the device.
    pub(crate) rings: u16,
}

impl From<&DiskPlan> for Facts {
    fn from(plan: &DiskPlan) -> Facts {
        Facts {
            id: plan.id.clone(),
            origin: plan.origin.clone(),
            socket: plan.socket.clone(),
            mode: plan.mode,
            rights: plan.rights.clone(),
            service: plan.service.clone(),
            allow_unsealed_memory: plan.allow_unsealed_memory,
            drain_timeout_s: plan.drain_timeout_s,
            rings: plan.queues,
        }
    }
}

impl From<&NicPlan> for Facts {
    fn from(plan: &NicPlan) -> Facts {
        Facts {
            id: plan.id.clone(),
            origin: plan.origin.clone(),
            socket: plan.socket.clone(),
            mode: plan.mode,
            rights: plan.rights.clone(),
            service: plan.service.clone(),
            allow_unsealed_memory: plan.allow_unsealed_memory,
            // Its queues wait for no disk.
            drain_timeout_s: DRAIN_TIMEOUT_DEFAULT_S,
            rings: 2 * plan.queues,
        }
    }
}
