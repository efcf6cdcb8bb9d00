//! What a reload opens before anything is changed: images, interfaces, sockets, and what all of them are promised.
//!
//! An image that a disk which goes has until then can only be looked at ([`Late`]): it has one lock. A socket that a
//! device which goes listens on is passed on as it is, so that no VMM finds it missing. Called by `reload`.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use config::api::ApiError;
use config::plan::{DevicePlan, DiskPlan, NicPlan};
use config::spec::Mode as SocketMode;
use config::{Change, Plan};
use control::mode::Mode;
use tracing::warn;

use super::additions::{Going, refusal};
use super::late::{Before, Late};
use super::wanted::Wanted;
use crate::bounds::Claim;
use crate::devices::device::Device;
use crate::in_use::InUse;
use crate::network::reload::Hosts;
use crate::opening::apart::Sockets;
use crate::opening::not_open::NotOpen;
use crate::opening::open::{Socket, open};
use crate::opening::shut::ShutDevices;
use crate::rights::Rights;
use crate::rights::given;
use crate::rooms::Rooms;
use crate::sockets;

/// What a reload is about to do.
#[derive(Default)]
pub(crate) struct Prepared {
    pub(crate) opened: Vec<Device>,
    /// To be opened when other devices are gone, or other processes' requests are.
    pub(crate) later: Vec<Late>,
    /// Could not be opened before, and cannot be now.
    pub(crate) still_shut: Vec<(DevicePlan, NotOpen)>,
    /// What new uplinks are on, and new NICs wired to.
    pub(crate) hosts: Hosts,
    /// What those are promised that are opened later, so that it is not promised to others before.
    promised: Vec<Claim>,
}

impl Prepared {
    /// Opens what is to be added, and again what is not open though it could be by now.
    ///
    /// # Errors
    /// The first that cannot be; what was opened before it is closed, and images that were made for it go.
    pub(super) fn open(
        wanted: &Wanted,
        rooms: &mut Rooms,
        mode: Mode,
    ) -> Result<Prepared, ApiError> {
        let mut going = Going::of(&wanted.changes, &rooms.devices);
        let mut prepared = Prepared::default();
        rooms.bounds.lend(going.plans());
        let disks = prepared.open_disks(wanted, &mut going, rooms, mode);
        let all = disks.and_then(|()| prepared.open_net(wanted, &mut going, rooms, mode));
        rooms.bounds.lend([]);
        prepared.promised.clear();
        if let Err(refused) = all {
            prepared.opened.iter_mut().for_each(|device| device.close_socket(&rooms.poll));
            prepared.hosts.give_back(&rooms.network);
            for device in prepared.opened {
                device.close_image(&mut rooms.openers, None);
            }
            return Err(refused);
        }
        Ok(prepared)
    }

    fn open_disks(
        &mut self,
        wanted: &Wanted,
        going: &mut Going,
        rooms: &mut Rooms,
        mode: Mode,
    ) -> Result<(), ApiError> {
        let failed = failed(&rooms.shut);
        let new: BTreeSet<&str> = wanted.changes.iter().filter_map(added_disk).collect();
        let added = |plan: &&DiskPlan| new.contains(plan.id.as_str()) || failed.contains(&plan.id);
        for plan in wanted.plan.disks.iter().filter(added) {
            let is_new = new.contains(plan.id.as_str());
            if let Err(why) = self.open_disk(plan, going, rooms, mode) {
                // One that did not open before is no mistake of the file: it stays as it is, and the rest is done.
                if !is_new {
                    self.still_shut.push((DevicePlan::Disk(plan.clone()), why));
                    continue;
                }
                return Err(refusal(&DevicePlan::Disk(plan.clone()), &why));
            }
        }
        Ok(())
    }

    /// Opens a disk, or finds that it can be opened when another is gone.
    fn open_disk(
        &mut self,
        disk: &DiskPlan,
        going: &mut Going,
        rooms: &mut Rooms,
        mode: Mode,
    ) -> Result<(), NotOpen> {
        let plan = DevicePlan::Disk(disk.clone());
        let before = before_of(&disk.id, going, &rooms.plan);
        let takes_socket = going.has_socket(&disk.socket);
        // Only one that goes has an image that is open now.
        let file = match going.has_disks() {
            true => rooms.openers.check(disk, &rooms.bonds)?.lies.file(),
            false => None,
        };
        if let Some(old) = going.with_image(file, &disk.source) {
            if !takes_socket
                && disk.mode == SocketMode::Listen
                && rooms.plan.link_of(&disk.id).is_none()
            {
                let rights =
                    Rights::of(&disk.rights, &mut rooms.turn.accounts).map_err(io::Error::from);
                let made = rights
                    .and_then(|rights| sockets::check_listener(Path::new(&disk.socket), &rights));
                made.map_err(|why| NotOpen::Wrong(format!("its socket {}: {why}", disk.socket)))?;
            }
            let promise = rooms.bounds.promise(&plan).map_err(NotOpen::wrong)?;
            self.promised.push(promise);
            let why = NotOpen::Late(format!("waits until {} is gone", old.name()));
            self.later.push(Late { plan, why, before });
            return Ok(());
        }
        let socket = if takes_socket { Socket::OfAnother } else { Socket::Own };
        match open(plan.clone(), socket, rooms, mode) {
            Ok(device) => self.opened.push(device),
            // It would take a disk away from its guest, and give it another one at some time.
            Err(why @ (NotOpen::Ended(_) | NotOpen::Late(_)))
                if before.is_some()
                    && InUse { devices: &rooms.devices, remote: &rooms.remote }
                        .has_guest(&disk.id) =>
            {
                return Err(why);
            }
            Err(why @ (NotOpen::Ended(_) | NotOpen::Late(_))) => {
                self.later.push(Late { plan, why, before });
            }
            Err(why) => return Err(why),
        }
        Ok(())
    }

    /// Opens what switches and NICs are added on, then the sockets of the NICs.
    fn open_net(
        &mut self,
        wanted: &Wanted,
        going: &mut Going,
        rooms: &mut Rooms,
        mode: Mode,
    ) -> Result<(), ApiError> {
        self.hosts = Hosts::open(&wanted.changes, &rooms.network)?;
        for change in &wanted.changes {
            let Change::Add(plan) = change else { continue };
            let Some(nic) = plan.nic() else { continue };
            let plan = (**plan).clone();
            if going.has_socket(&nic.socket) {
                let promise = rooms.bounds.promise(&plan).map_err(NotOpen::wrong);
                self.promised.push(promise.map_err(|why| refusal(&plan, &why))?);
                let why = "waits until the device is gone whose socket it takes over";
                let why = NotOpen::Late(why.to_string());
                let before = before_of(&nic.id, going, &rooms.plan);
                self.later.push(Late { plan, why, before });
                continue;
            }
            let opened = open(plan.clone(), Socket::Own, rooms, mode);
            self.opened.push(opened.map_err(|why| refusal(&plan, &why))?);
        }
        self.open_failed_nics(wanted, rooms, mode);
        Ok(())
    }

    /// Opens NICs again which could not be opened before, and are to be as they were. What they are wired to is opened
    /// when they are.
    fn open_failed_nics(&mut self, wanted: &Wanted, rooms: &mut Rooms, mode: Mode) {
        let failed = failed(&rooms.shut);
        let changed = wanted.changes.iter().filter_map(|change| match change {
            Change::Add(device) => Some(device.id()),
            _ => None,
        });
        let changed: BTreeSet<&str> = changed.collect();
        let again = |nic: &&NicPlan| failed.contains(&nic.id) && !changed.contains(nic.id.as_str());
        for nic in wanted.plan.nics.iter().filter(again) {
            let plan = DevicePlan::Nic(nic.clone());
            match open(plan.clone(), Socket::Own, rooms, mode) {
                Ok(device) => self.opened.push(device),
                Err(why) => self.still_shut.push((plan, why)),
            }
        }
    }

    /// Gives devices that were opened the sockets that others listen on which go.
    pub(super) fn take_sockets(&mut self, rooms: &mut Rooms) {
        let Rooms { devices, poll, turn, .. } = rooms;
        let at = |(number, device): (&u32, &Device)| (device.facts().socket.clone(), *number);
        let there = devices.iter().filter(|(_, device)| !device.is_going()).map(at);
        let there: Vec<(String, u32)> = there.collect();
        let mut there = Sockets::of(there.iter().map(|(socket, number)| (&**socket, *number)));
        for device in &mut self.opened {
            let facts = device.facts();
            let listens =
                facts.mode == SocketMode::Listen && !device.is_off() && !device.is_exported();
            if !listens || device.listener().is_some() {
                continue;
            }
            let old = there.at(&facts.socket).and_then(|number| devices.get_mut(*number));
            let Some(old) = old else { continue };
            let has_others = old.facts().rights != facts.rights;
            let Some(listener) = old.take_listener() else { continue };
            poll.remove(&listener);
            let given = if has_others {
                given::hand_on(&listener, facts, &mut turn.accounts)
            } else {
                Ok(())
            };
            match given {
                Ok(()) => device.listen_at(listener),
                // It is tried once more when the device listens, and is shown then.
                Err(error) => warn!(device = facts.id, "its socket {}: {error}", facts.socket),
            }
        }
    }
}

/// What goes of that name, as it is in force.
fn before_of(id: &str, going: &Going, in_force: &Plan) -> Option<Before> {
    going.named(id).map(|old| Before::of(old, in_force))
}

/// Devices that are not open, and are not tried again by themselves.
fn failed(shut: &ShutDevices) -> BTreeSet<String> {
    let failed = shut.iter().filter(|shut| !shut.is_waiting());
    failed.map(|shut| shut.plan().id().to_string()).collect()
}

fn added_disk(change: &Change) -> Option<&str> {
    match change {
        Change::Add(device) => device.disk().map(|disk| disk.id.as_str()),
        _ => None,
    }
}
