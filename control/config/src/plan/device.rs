//! A device of the plan, whichever kind it is of.

use super::{DiskPlan, NicPlan, Origin, Plan, ServicePlan};
use crate::spec::{Mode, SocketRights};

/// Kinds of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A disk.
    Disk,
    /// A NIC.
    Nic,
}

impl DeviceKind {
    /// As messages name it.
    pub fn word(self) -> &'static str {
        match self {
            DeviceKind::Disk => "disk",
            DeviceKind::Nic => "nic",
        }
    }
}

/// What a device was asked to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DevicePlan {
    /// A disk.
    Disk(DiskPlan),
    /// A NIC.
    Nic(NicPlan),
}

impl Plan {
    /// The device of that name.
    pub fn device(&self, id: &str) -> Option<DevicePlan> {
        let disk = self.disk(id).cloned().map(DevicePlan::Disk);
        disk.or_else(|| self.nic(id).cloned().map(DevicePlan::Nic))
    }

    /// Puts another plan in the place of that of the device of its name, whatever that is, if there is one.
    pub fn replace(&mut self, plan: DevicePlan) {
        match plan {
            DevicePlan::Disk(plan) => {
                if let Some(mine) = self.disks.iter_mut().find(|mine| mine.id == plan.id) {
                    *mine = plan;
                } else if let Some(other) = self.nics.iter().position(|it| it.id == plan.id) {
                    self.nics.remove(other);
                    self.disks.push(plan);
                }
            }
            DevicePlan::Nic(plan) => {
                if let Some(mine) = self.nics.iter_mut().find(|mine| mine.id == plan.id) {
                    *mine = plan;
                } else if let Some(other) = self.disks.iter().position(|it| it.id == plan.id) {
                    self.disks.remove(other);
                    self.nics.push(plan);
                }
            }
        }
    }
}

impl DevicePlan {
    /// What it is.
    pub fn kind(&self) -> DeviceKind {
        match self {
            DevicePlan::Disk(_) => DeviceKind::Disk,
            DevicePlan::Nic(_) => DeviceKind::Nic,
        }
    }

    /// Its name.
    pub fn id(&self) -> &str {
        match self {
            DevicePlan::Disk(plan) => &plan.id,
            DevicePlan::Nic(plan) => &plan.id,
        }
    }

    /// Where it was declared.
    pub fn origin(&self) -> &Origin {
        match self {
            DevicePlan::Disk(plan) => &plan.origin,
            DevicePlan::Nic(plan) => &plan.origin,
        }
    }

    /// Its socket, how front-ends come to it, and who may open it.
    pub fn socket(&self) -> (&String, Mode, &SocketRights) {
        match self {
            DevicePlan::Disk(plan) => (&plan.socket, plan.mode, &plan.rights),
            DevicePlan::Nic(plan) => (&plan.socket, plan.mode, &plan.rights),
        }
    }

    /// How its queues are served.
    pub fn service(&self) -> &ServicePlan {
        match self {
            DevicePlan::Disk(plan) => &plan.service,
            DevicePlan::Nic(plan) => &plan.service,
        }
    }

    /// As a message names it.
    pub fn name(&self) -> String {
        format!("{} {:?}", self.kind().word(), self.id())
    }

    /// As a list of changes names it.
    pub fn title(&self) -> String {
        format!("{} {}", self.kind().word(), self.id())
    }

    /// The disk that it is.
    pub fn disk(&self) -> Option<&DiskPlan> {
        match self {
            DevicePlan::Disk(plan) => Some(plan),
            DevicePlan::Nic(_) => None,
        }
    }

    /// The NIC that it is.
    pub fn nic(&self) -> Option<&NicPlan> {
        match self {
            DevicePlan::Nic(plan) => Some(plan),
            DevicePlan::Disk(_) => None,
        }
    }
}
