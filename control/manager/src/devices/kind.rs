//! What kinds of device there are, and what differs between them.
//!
//! A [`Kind`] is the parts of one device; a [`Personality`] is what its front-ends see of it. Not here: what it was
//! asked to be (`device_plan`), and what all devices have (`device`).

use std::sync::Arc;

use config::plan::DevicePlan;
use device::{blk, net};
use vhost_user::{DeviceClass, DeviceFacts};
use virtqueue::{Format, inflight, layout};

use crate::disk::DiskParts;
use crate::network::nic::NicParts;

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

    /// A queue of a driver is to be served, of which none is yet if it is the first.
    pub(crate) fn begin(&self, is_first: bool) {
        let disk = self.disk().filter(|_| is_first);
        disk.into_iter().for_each(|disk| disk.live.begin());
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
            Personality::Disk(_, live) => live.reset(),
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
