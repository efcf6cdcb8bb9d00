//! What a device was asked to be, whichever kind it is of. Not here: what it is (`kind`).

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

/// What a device was asked to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DevicePlan {
    Disk(DiskPlan),
    Nic(NicPlan),
}

impl DevicePlan {
    pub(crate) fn id(&self) -> &str {
        match self {
            DevicePlan::Disk(plan) => &plan.id,
            DevicePlan::Nic(plan) => &plan.id,
        }
    }

    pub(crate) fn origin(&self) -> &Origin {
        match self {
            DevicePlan::Disk(plan) => &plan.origin,
            DevicePlan::Nic(plan) => &plan.origin,
        }
    }

    /// As a message names it.
    pub(crate) fn name(&self) -> String {
        match self {
            DevicePlan::Disk(plan) => format!("disk {:?}", plan.id),
            DevicePlan::Nic(plan) => format!("nic {:?}", plan.id),
        }
    }

    /// As a list of changes names it.
    pub(crate) fn title(&self) -> String {
        match self {
            DevicePlan::Disk(plan) => format!("disk {}", plan.id),
            DevicePlan::Nic(plan) => format!("nic {}", plan.id),
        }
    }

    pub(crate) fn disk(&self) -> Option<&DiskPlan> {
        match self {
            DevicePlan::Disk(plan) => Some(plan),
            DevicePlan::Nic(_) => None,
        }
    }

    pub(crate) fn nic(&self) -> Option<&NicPlan> {
        match self {
            DevicePlan::Nic(plan) => Some(plan),
            DevicePlan::Disk(_) => None,
        }
    }
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
