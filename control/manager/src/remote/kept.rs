//! What is kept of disks of other machines, before their guests can write: how they stand, and which image their guests
//! are on; and what happens when their IOhost has another one.
//!
//! Not here: where it is kept (`standings`, `bonds`), nor the comparison, which the protocol's client makes before
//! anything is asked (`remote::client`). Called by `using`, which hears it.

use backend::link::LinkKey;
use remote::client::Standing;
use sidecore::ToClient;
use tracing::warn;

use super::Manager;
use super::using::Asked;
use crate::defects::{found, late};
use crate::disk::DiskParts;

impl Manager {
    /// How a disk stands is kept before its guest can write, and a loss beyond a power cut.
    pub(super) fn stands(&mut self, key: LinkKey, number: u16, standing: Option<Standing>) {
        let using = found!(
            self.rooms.turn.defects,
            self.rooms.remote.using(key),
            "client's end of that link"
        );
        let asked = using.numbers.get(&number).cloned();
        let asked =
            found!(self.rooms.turn.defects, asked, "disk or NIC that its link has by that number");
        // Nothing is kept of a NIC.
        let Asked::Disk(device, id, whose) = asked else { return };
        if let Err(error) = self.rooms.remote.standings.keep(&id, &whose, standing) {
            warn!(disk = id, %error, "how it stands at its IOhost cannot be kept: a restart of this daemon forgets it");
        }
        let is_lost = standing.is_some_and(|standing| standing.is_lost);
        self.is_on(device, &id, standing.map_or(0, |standing| standing.image));
        if !is_lost {
            return;
        }
        let Some(parts) = self.remote_parts_mut(device) else { return late("disk of a link") };
        if !std::mem::replace(&mut parts.is_lost, true) {
            self.mark_unsynced(device);
        }
    }

    /// An operator knows what a disk has lost.
    pub(crate) fn forgive_remote(&mut self, device: u32) {
        // Of all disks, that may be another one.
        let Some(parts) = self.remote_parts_mut(device) else { return };
        parts.is_lost = false;
        if let (key, Some(disk)) = (parts.link, parts.number) {
            self.tell_client(key, ToClient::Forgive(disk));
        }
    }

    /// The guest of a disk is on that image of its IOhost's; 0: on whatever it has.
    pub(super) fn is_on(&mut self, device: u32, id: &str, image: u64) {
        let parts = self.rooms.devices.disk_mut(device).filter(|parts| parts.plan.id == id);
        if let Some(image) = parts.and_then(|parts| parts.bond.tell(image)) {
            self.rooms.devices.keep_image(id, &image, &mut self.rooms.bonds, &self.rooms.plan);
        }
    }

    /// Its IOhost has another image than the one that the guest of a disk is on: nothing is asked of it.
    pub(super) fn is_other(&mut self, key: LinkKey, number: u16) {
        let Some(parts) = self.asked_for(key, number) else { return late("disk of a link") };
        if let Some(remote) = &mut parts.remote {
            remote.is_bound = false;
            remote.waits.asked_at = None;
        }
        let (id, name) = (parts.plan.id.clone(), parts.bond.name());
        parts.bond.refuse_there(format!(
            "its guest was on another image of {name}, or other contents, than its IOhost has now: its requests \
             wait; put that image back there, or start the guest anew; `sidecore disk accept {id}` has it go on \
             with what is there, which destroys data unless both hold the same"
        ));
        if !parts.bond.is_refused_again()
            && let Some(why) = parts.bond.refused()
        {
            warn!(disk = id, "{why}");
        }
    }

    /// An operator has a guest go on with what its IOhost has.
    pub(crate) fn accept_remote(&mut self, device: u32) {
        let asked = self.remote_parts(device).and_then(|parts| Some((parts.link, parts.number?)));
        if let Some((key, disk)) = asked {
            self.tell_client(key, ToClient::Accept(disk));
        }
    }

    /// The device whose disk has that number of its link, or had it before it was given back: it may be gone. `None`: it
    /// is no disk's that is asked for.
    pub(super) fn disk_of(&mut self, key: LinkKey, number: u16) -> Option<u32> {
        let using = found!(
            self.rooms.turn.defects,
            self.rooms.remote.using(key),
            "client's end of that link"
        );
        let asked = using.numbers.get(&number);
        let asked =
            found!(self.rooms.turn.defects, asked, "disk or NIC that its link has by that number");
        match asked {
            Asked::Disk(device, ..) => Some(*device),
            Asked::Look(_) | Asked::Nic(_) => None,
        }
    }

    /// The disk that is asked for by that number.
    pub(super) fn asked_for(&mut self, key: LinkKey, number: u16) -> Option<&mut DiskParts> {
        let device = self.disk_of(key, number)?;
        let is_it = |parts: &&mut DiskParts| {
            parts.remote.as_ref().is_some_and(|remote| remote.number == Some(number))
        };
        self.rooms.devices.disk_mut(device).filter(is_it)
    }
}
