//! What kinds of device there are, and what differs between them.
//!
//! A [`Kind`] is the parts of one device; a [`Personality`] is what its front-ends see of it; a
//! [`DevicePlan`] is what it was asked to be. Not here: what all devices have (`device`).

use std::sync::Arc;

use config::plan::{DiskPlan, NicPlan, Origin, ServicePlan};
use config::spec::{DRAIN_TIMEOUT_DEFAULT_S, Mode, SocketRights};
use device::{blk, net};
use vhost_user::{DeviceClass, DeviceFacts};
use virtqueue::{Format, inflight, layout};

use crate::disk::DiskParts;
use crate::network::nic::NicParts;

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

/// The parts that only this kind of device has.
pub(crate) enum Kind {
    Disk(DiskParts),
    Nic(NicParts),
}

impl Kind {
    pub(crate) fn disk(&self) -> Option<&DiskParts> {
        match self {
            Kind::Disk(disk) => Some(disk),
            Kind::Nic(_) => None,
        }
    }

    pub(crate) fn disk_mut(&mut self) -> Option<&mut DiskParts> {
        match self {
            Kind::Disk(disk) => Some(disk),
            Kind::Nic(_) => None,
        }
    }

    pub(crate) fn nic(&self) -> Option<&NicParts> {
        match self {
            Kind::Nic(nic) => Some(nic),
            Kind::Disk(_) => None,
        }
    }

    pub(crate) fn nic_mut(&mut self) -> Option<&mut NicParts> {
        match self {
            Kind::Nic(nic) => Some(nic),
            Kind::Disk(_) => None,
        }
    }

    /// What it was asked to be.
    pub(crate) fn plan(&self) -> DevicePlan {
        match self {
            Kind::Disk(disk) => DevicePlan::Disk(disk.plan.clone()),
            Kind::Nic(nic) => DevicePlan::Nic(nic.plan().clone()),
        }
    }

    /// What its front-ends see.
    pub(crate) fn personality(&self) -> Personality {
        match self {
            Kind::Disk(disk) => Personality::Disk(disk.shape.clone(), Arc::clone(&disk.live)),
            Kind::Nic(nic) => Personality::Nic(nic.shape().clone(), Arc::clone(nic.live())),
        }
    }

    /// Whether no front-end may be there: a NIC whose cable is out.
    pub(crate) fn is_off(&self) -> bool {
        self.nic().is_some_and(|nic| !nic.is_up())
    }

    /// Whether a new size waits for the queues.
    pub(crate) fn is_resizing(&self) -> bool {
        self.disk().is_some_and(|disk| disk.resizing.is_some())
    }

    /// The front-end that ran it is gone: the next driver starts anew, and a NIC may go where it likes.
    pub(crate) fn reset(&mut self) {
        self.personality().reset();
        let nic = match self {
            Kind::Disk(disk) => return disk.bond.forget_refusal(),
            Kind::Nic(nic) => nic,
        };
        nic.let_go();
    }
}

/// Why the MTU of a guest is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MtuRefused {
    /// It was told to a disk.
    #[error("a disk has no packets of {mtu} bytes")]
    Disk {
        /// Bytes.
        mtu: u16,
    },
    /// It is larger than the NIC's own.
    #[error("the nic's MTU is {own}: give it a larger one")]
    Nic {
        /// Bytes.
        own: u16,
    },
}

/// A device as a front-end sees it: features and config space.
#[derive(Clone)]
pub(crate) enum Personality {
    Disk(blk::Shape, Arc<blk::Live>),
    Nic(net::Shape, Arc<net::Live>),
}

impl Personality {
    /// What a session has to know.
    pub(crate) fn facts(&self, rings: u16) -> DeviceFacts {
        let (features, class) = match self {
            Personality::Disk(shape, _) => {
                (blk::offered(shape), DeviceClass::Disk { inflight_len })
            }
            Personality::Nic(shape, _) => (net::offered(shape), DeviceClass::Nic),
        };
        DeviceFacts { features, class, queues_max: rings, ring_size_max: layout::RING_SIZE_MAX }
    }

    pub(crate) fn read_config(&self, offset: u32, into: &mut [u8]) -> bool {
        match self {
            Personality::Disk(shape, live) => blk::read_config(shape, live, offset, into),
            Personality::Nic(shape, live) => net::read_config(shape, live, offset, into),
        }
    }

    pub(crate) fn write_config(&self, negotiated: u64, offset: u32, bytes: &[u8]) -> bool {
        match self {
            Personality::Disk(_, live) => blk::write_config(live, negotiated, offset, bytes),
            Personality::Nic(_, live) => net::write_config(live, negotiated, offset, bytes),
        }
    }

    /// Takes the MTU that a front-end says its guest has.
    ///
    /// # Errors
    /// More than the NIC's own.
    pub(crate) fn set_mtu(&self, mtu: u16) -> Result<(), MtuRefused> {
        match self {
            // The session asks no disk.
            Personality::Disk(..) => Err(MtuRefused::Disk { mtu }),
            Personality::Nic(shape, live) => match live.set_mtu(shape, mtu.into()) {
                true => Ok(()),
                false => Err(MtuRefused::Nic { own: shape.mtu }),
            },
        }
    }

    /// The driver starts anew.
    pub(crate) fn reset(&self) {
        match self {
            Personality::Disk(_, live) => live.set_writeback(true),
            Personality::Nic(shape, live) => {
                live.set_mac(shape.mac);
                live.set_mtu(shape, shape.mtu.into());
            }
        }
    }
}

/// Bytes of one queue's part of an in-flight record.
fn inflight_len(size: u16, packed: bool) -> u64 {
    let format = if packed { Format::Packed } else { Format::Split };
    inflight::queue_region_len(format, size)
}
