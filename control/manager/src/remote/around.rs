//! What links reach of the house, and what they have others do.
//!
//! Made by whoever owns the rooms, for one call. Not here: what is done then (`by_links`).

use backend::link::LinkKey;
use config::Plan;

use super::export::Had;
use crate::defects::found;
use crate::devices::Devices;
use crate::devices::device::Device;
use crate::disk::bonds::Bonds;
use crate::disk::image::Image;
use crate::disk::unsynced::Unsynced;
use crate::network::Network;
use crate::poll::Poll;
use crate::sidecores::Cores;
use crate::turn::Turn;

/// The rooms that lie below links.
pub(crate) struct Around<'a> {
    pub(crate) turn: &'a mut Turn,
    pub(crate) devices: &'a mut Devices,
    pub(crate) cores: &'a mut Cores,
    pub(crate) bonds: &'a mut Bonds,
    pub(crate) poll: &'a Poll,
    pub(crate) plan: &'a Plan,
    pub(crate) network: &'a Network,
    pub(crate) unsynced: &'a Unsynced,
    /// What is to be done next, in order.
    pub(crate) next: Vec<Next>,
}

impl Around<'_> {
    /// Keeps which image the guest of a device is on.
    pub(super) fn keep_image(&mut self, device: u32, image: &Image) {
        self.devices.keep_image(device, image, self.bonds, self.plan);
    }

    /// That a disk of another machine has lost data is kept.
    pub(super) fn mark_unsynced(&mut self, device: u32) {
        let parts = self.devices.disk(device);
        self.unsynced.mark(found!(self.turn.defects, parts, "disk that has lost data"));
    }

    /// Devices that are not open are to be tried again.
    pub(super) fn retry_shut(&mut self) {
        self.next.push(Next::RetryShut);
    }

    /// Whether a port is there.
    pub(super) fn has_port(&self, port: u32) -> bool {
        self.network.uplink(port).is_some()
    }

    /// The NIC whose wire a port is an end of.
    pub(super) fn nic_of(&mut self, port: u32) -> Option<&mut Device> {
        self.devices.get_mut(self.network.uplink(port)?.device()?)
    }
}

/// What others are to do, since it concerns rooms above or beside.
#[derive(Debug)]
pub(crate) enum Next {
    /// Take the locks of a disk, if they are not here, and then open it for a client.
    Open(Opening),
    /// Remove a device.
    Remove(u32),
    /// Try devices again that are not open.
    RetryShut,
}

/// A client's wish for a disk.
#[derive(Debug)]
pub(crate) struct Opening {
    /// The disk.
    pub(crate) device: u32,
    pub(super) key: LinkKey,
    pub(super) export: u16,
    pub(super) shard: usize,
    pub(super) generation: u64,
    /// It has changed hands.
    pub(super) is_new: bool,
    pub(super) slots: u16,
    pub(super) slot_bytes: u32,
    /// Who had it.
    pub(super) before: Option<Had>,
}
