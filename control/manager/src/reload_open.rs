//! What a reload opens before anything is changed: images, interfaces, sockets, and what all of them are promised.
//!
//! An image that a disk which goes has until then can only be looked at ([`Late`]): it has one lock. A socket that a
//! device which goes listens on is passed on as it is, so that no VMM finds it missing. Called by `reload`.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::path::Path;

use config::api::{ApiError, ErrorKind};
use config::plan::{DiskPlan, LinkPlan, Origin};
use config::spec::Mode;
use config::{Change, HostPlan, Plan};
use tracing::{error, info, warn};

use crate::bounds::Claim;
use crate::check;
use crate::device::Device;
use crate::images::FileId;
use crate::kind::DevicePlan;
use crate::manager::Manager;
use crate::network::reload::Hosts;
use crate::opening::not_open::NotOpen;
use crate::opening::open::{Socket, is_same_image};
use crate::opening::openers::Lies;
use crate::opening::shut::Shut;
use crate::rights::{self, Rights};
use crate::sockets;

/// What to do about what cannot be opened.
const PUT_RIGHT: &str = "put that right and reload again; nothing was changed";

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

/// A device that is opened when another one is gone.
pub(crate) struct Late {
    pub(crate) plan: DevicePlan,
    /// What it waits for.
    pub(crate) why: String,
    /// The device of that name that went for it.
    before: Option<DevicePlan>,
}

impl Late {
    /// Whether it is that device.
    pub(crate) fn is(&self, shut: &Shut) -> bool {
        self.plan.id() == shut.plan().id()
    }
}

/// A device that goes.
struct Going {
    plan: DevicePlan,
    socket: String,
    /// What its image is, whatever its name.
    file: Option<FileId>,
}

impl Manager {
    /// Opens what is to be added, and again what is not open though it could be by now. `made` are the disks
    /// whose images are missing.
    ///
    /// # Errors
    /// The first that cannot be; what was opened before it is closed. An image that was made for it stays, and is
    /// told of.
    pub(crate) fn prepare(
        &mut self,
        changes: &[Change],
        wanted: &Plan,
        made: &[String],
    ) -> Result<Prepared, ApiError> {
        let going = self.going(changes);
        let mut prepared = Prepared::default();
        self.rooms.bounds.lend(going.iter().map(|going| &going.plan));
        let disks = self.prepare_disks(changes, wanted, &going, &mut prepared);
        let all = disks.and_then(|()| self.prepare_net(changes, &going, &mut prepared));
        self.rooms.bounds.lend([]);
        prepared.promised.clear();
        if let Err(mut refused) = all {
            prepared.opened.iter_mut().for_each(Device::close_socket);
            let disks = prepared.opened.iter().filter_map(|device| device.kind.disk());
            let new = disks.filter(|disk| made.contains(&disk.plan.id));
            let new: Vec<&str> = new.filter_map(|disk| disk.plan.source.path()).collect();
            if !new.is_empty() {
                refused.hint += &format!(", but empty images were made: {}", new.join(", "));
            }
            prepared.hosts.give_back(&self.rooms.network);
            for device in prepared.opened {
                device.close_image(&mut self.rooms.openers, None);
            }
            return Err(refused);
        }
        Ok(prepared)
    }

    /// The devices that are open and go.
    fn going(&self, changes: &[Change]) -> Vec<Going> {
        let going = |change: &Change| {
            let (Change::Remove { id } | Change::RemoveNic { id }) = change else { return None };
            let device = self
                .rooms
                .devices
                .number_of(id)
                .and_then(|number| self.rooms.devices.get(number))?;
            let (plan, socket) = (device.kind.plan(), device.facts.socket.clone());
            let file = device.kind.disk().and_then(|parts| parts.file);
            Some(Going { plan, socket, file })
        };
        changes.iter().filter_map(going).collect()
    }

    fn prepare_disks(
        &mut self,
        changes: &[Change],
        wanted: &Plan,
        going: &[Going],
        prepared: &mut Prepared,
    ) -> Result<(), ApiError> {
        let failed = self.rooms.shut.iter().filter(|shut| !shut.is_waiting());
        let failed: BTreeSet<String> = failed.map(|shut| shut.plan().id().to_string()).collect();
        let new: BTreeSet<&str> = changes.iter().filter_map(added_disk).collect();
        let added = |plan: &&DiskPlan| new.contains(plan.id.as_str()) || failed.contains(&plan.id);
        for plan in wanted.disks.iter().filter(added) {
            let is_new = new.contains(plan.id.as_str());
            if let Err(why) = self.prepare_disk(plan, going, prepared) {
                // One of the API that still does not open is no mistake of the file.
                if plan.origin == Origin::Api && !is_new {
                    continue;
                }
                // Nor is one that did not open before: it stays as it is, and the rest is done.
                if !is_new {
                    prepared.still_shut.push((DevicePlan::Disk(plan.clone()), why));
                    continue;
                }
                return Err(refusal(&DevicePlan::Disk(plan.clone()), &why));
            }
        }
        Ok(())
    }

    /// Refuses to take a disk from the clients of a link that goes on to have it.
    pub(crate) fn check_exports(
        &self,
        changes: &[Change],
        before: &[LinkPlan],
        after: &[LinkPlan],
    ) -> Result<(), ApiError> {
        let exports = |links: &[LinkPlan], id: &String| {
            links.iter().flat_map(LinkPlan::clients).any(|client| client.disks.contains(id))
        };
        let stays = |change: &Change| match change {
            Change::Remove { id } if exports(before, id) && exports(after, id) => {
                self.rooms.devices.number_of(id).map(|_| id.clone())
            }
            _ => None,
        };
        let Some(id) = changes.iter().find_map(stays) else { return Ok(()) };
        let what = format!("disk {id:?} is one that clients of a link may have");
        let hint = "restart the daemon with the new file; nothing was changed";
        Err(ApiError::new(ErrorKind::Refused, what, hint))
    }

    /// Opens a disk, or finds that it can be opened when another is gone.
    fn prepare_disk(
        &mut self,
        disk: &DiskPlan,
        going: &[Going],
        prepared: &mut Prepared,
    ) -> Result<(), NotOpen> {
        let plan = DevicePlan::Disk(disk.clone());
        let before = going.iter().find(|old| old.plan.id() == disk.id);
        let before = before.map(|old| old.plan.clone());
        let takes_socket = going.iter().any(|old| old.socket == disk.socket);
        let has_name_of = |old: &Going| {
            old.plan.disk().is_some_and(|mine| is_same_image(&mine.source, &disk.source))
        };
        // Only one that goes has an image that is open now.
        let file = match going.iter().any(|old| old.plan.disk().is_some()) {
            true => self.rooms.openers.check(disk, &self.rooms.bonds)?.file(),
            false => None,
        };
        let is_one_file = |old: &Going| old.file.is_some() && old.file == file;
        if let Some(old) = going.iter().find(|old| is_one_file(old) || has_name_of(old)) {
            if !takes_socket
                && disk.mode == Mode::Listen
                && !self.rooms.plan.link_of(&disk.id).is_some()
            {
                let rights = Rights::of(&disk.rights).map_err(io::Error::from);
                let made = rights
                    .and_then(|rights| sockets::check_listener(Path::new(&disk.socket), &rights));
                made.map_err(|why| NotOpen::Wrong(format!("its socket {}: {why}", disk.socket)))?;
            }
            let promise = self.rooms.bounds.promise(&plan).map_err(NotOpen::wrong)?;
            prepared.promised.push(promise);
            let why = format!("waits until {} is gone", old.plan.name());
            prepared.later.push(Late { plan, why, before });
            return Ok(());
        }
        let socket = if takes_socket { Socket::OfAnother } else { Socket::Own };
        match self.open_device_with(plan.clone(), socket) {
            Ok(device) => prepared.opened.push(device),
            // It would take a disk away from its guest, and give it another one at some time.
            Err(why @ (NotOpen::Ended(_) | NotOpen::Late(_)))
                if before.is_some() && self.has_guest(&disk.id) =>
            {
                return Err(why);
            }
            Err(NotOpen::Ended(why) | NotOpen::Late(why)) => {
                prepared.later.push(Late { plan, why, before })
            }
            Err(why) => return Err(why),
        }
        Ok(())
    }

    /// Opens what switches and NICs are added on, then the sockets of the NICs.
    fn prepare_net(
        &mut self,
        changes: &[Change],
        going: &[Going],
        prepared: &mut Prepared,
    ) -> Result<(), ApiError> {
        prepared.hosts = Hosts::open(changes, &self.rooms.network)?;
        for change in changes {
            let Change::AddNic(nic) = change else { continue };
            let plan = DevicePlan::Nic((**nic).clone());
            if going.iter().any(|old| old.socket == nic.socket) {
                let promise = self.rooms.bounds.promise(&plan).map_err(NotOpen::wrong);
                prepared.promised.push(promise.map_err(|why| refusal(&plan, &why))?);
                let why = "waits until the device is gone whose socket it takes over".to_string();
                let before = going.iter().find(|old| old.plan.id() == nic.id);
                let before = before.map(|old| old.plan.clone());
                prepared.later.push(Late { plan, why, before });
                continue;
            }
            let opened = self.open_nic_on((**nic).clone(), None);
            prepared.opened.push(opened.map_err(|why| refusal(&plan, &why))?);
        }
        Ok(())
    }

    /// What [`Self::prepare`] would refuse, as far as can be told without opening anything for good.
    ///
    /// Gives the disks for which an empty image would be made.
    ///
    /// # Errors
    /// The first that could not be opened.
    pub(crate) fn check_additions(&mut self, changes: &[Change]) -> Result<Vec<String>, ApiError> {
        let going = self.going(changes);
        self.rooms.bounds.lend(going.iter().map(|going| &going.plan));
        let checked = self.check_each(changes, &going);
        self.rooms.bounds.lend([]);
        checked
    }

    fn check_each(&mut self, changes: &[Change], going: &[Going]) -> Result<Vec<String>, ApiError> {
        let (mut promised, mut made) = (Vec::new(), Vec::new());
        let holders = self.holders();
        for change in changes {
            let plan = match change {
                Change::Add(disk) => DevicePlan::Disk((**disk).clone()),
                Change::AddNic(nic) => DevicePlan::Nic((**nic).clone()),
                _ => continue,
            };
            let checked =
                self.rooms.bounds.promise(&plan).map_err(NotOpen::wrong).and_then(|promise| {
                    promised.push(promise);
                    match &plan {
                        DevicePlan::Disk(disk) => {
                            let lies = self.rooms.openers.check(disk, &self.rooms.bonds)?;
                            made.extend((lies == Lies::Nowhere).then(|| disk.id.clone()));
                            self.check_disk(disk, lies, going, &holders)
                        }
                        DevicePlan::Nic(nic) => nic.host().map_or(Ok(()), check_interface),
                    }
                });
            let checked = checked.and_then(|()| self.check_socket(&plan, going));
            checked.map_err(|why| refusal(&plan, &why))?;
        }
        for host in changes.iter().flat_map(added_uplinks) {
            check_interface(host)
                .map_err(|why| ApiError::new(ErrorKind::Refused, why.to_string(), PUT_RIGHT))?;
        }
        Ok(made)
    }

    /// That a device can listen where it is to.
    pub(crate) fn check_free_socket(&self, plan: &DevicePlan) -> Result<(), NotOpen> {
        self.check_socket(plan, &[])
    }

    /// That a device can listen where nobody does who goes.
    fn check_socket(&self, plan: &DevicePlan, going: &[Going]) -> Result<(), NotOpen> {
        let (socket, mode) = match plan {
            DevicePlan::Disk(disk) => (&disk.socket, disk.mode),
            DevicePlan::Nic(nic) => (&nic.socket, nic.mode),
        };
        let is_passed_on = going.iter().any(|old| old.socket == *socket);
        if mode != Mode::Listen || is_passed_on || self.rooms.plan.link_of(plan.id()).is_some() {
            return Ok(());
        }
        sockets::check_name(Path::new(socket))
            .map_err(|why| NotOpen::Wrong(format!("its socket {socket}: {why}")))
    }

    fn holders(&self) -> Holders {
        let mut holders = Holders::new();
        for device in self.rooms.devices.values().filter(|device| !device.is_going()) {
            let file = device.kind.disk().and_then(|parts| parts.file);
            file.into_iter().for_each(|file| holders.entry(file).or_default().push(device.number));
        }
        holders
    }

    fn check_disk(
        &self,
        disk: &DiskPlan,
        lies: Lies,
        going: &[Going],
        holders: &Holders,
    ) -> Result<(), NotOpen> {
        let Some((path, file)) = disk.source.path().zip(lies.file()) else { return Ok(()) };
        let goes = |id: &str| going.iter().any(|old| old.plan.id() == id);
        let stays = |number: &&u32| {
            let Some(device) = self.rooms.devices.get(**number) else { return false };
            let both_read = disk.readonly && device.kind.disk().is_some_and(|it| it.plan.readonly);
            !both_read && !goes(&device.facts.id)
        };
        match holders.get(&file).into_iter().flatten().find(stays) {
            Some(_) => Err(NotOpen::Ours(
                self.rooms.devices.name_holder(format!("{path} is in use"), file),
            )),
            None => Ok(()),
        }
    }

    /// Gives devices that were opened the sockets that others listen on which go.
    pub(crate) fn pass_sockets_on(&mut self, prepared: &mut Prepared) {
        for device in &mut prepared.opened {
            let facts = &device.facts;
            let listens =
                facts.mode == Mode::Listen && !device.kind.is_off() && !device.is_exported();
            if !listens || device.listener().is_some() {
                continue;
            }
            let has_it = |old: &&mut Device| old.facts.socket == facts.socket && !old.is_going();
            let Some(old) = self.rooms.devices.values_mut().find(has_it) else { continue };
            let has_others = old.facts.rights != facts.rights;
            let Some(listener) = old.take_listener() else { continue };
            self.rooms.poll.remove(&listener);
            let given = if has_others { rights::hand_on(&listener, facts) } else { Ok(()) };
            match given {
                Ok(()) => device.listen_at(listener),
                // It is tried once more when the device listens, and is shown then.
                Err(error) => warn!(device = facts.id, "its socket {}: {error}", facts.socket),
            }
        }
    }

    /// Serves what went for devices that could not be opened after all, at once or as soon as it can be opened.
    pub(crate) fn restore(&mut self, late: &[Late]) -> Restored {
        let mut restored = Restored::default();
        for Late { plan, before, .. } in late {
            let has_failed =
                self.rooms.shut.named(plan.id()).is_some_and(|shut| !shut.is_waiting());
            let Some(before) = before.clone().filter(|_| has_failed) else { continue };
            // What stands among those that are not open is tried again, with the patience for that.
            let failed = self.rooms.shut.remove(plan.id());
            let opened = self.open_device(before.clone());
            let why = match opened.and_then(|device| self.serve_device(device)) {
                Ok(number) => {
                    self.put_in_force(&before);
                    self.rooms.turn.touch(number);
                    info!(device = plan.id(), "served as before");
                    restored.served.push(before.title());
                    continue;
                }
                Err(why) => why,
            };
            match why {
                NotOpen::Wrong(_) => {
                    error!(device = plan.id(), "cannot be served as before either: {why}");
                    failed.into_iter().for_each(|failed| self.rooms.shut.insert(failed));
                }
                // Who has its image may be about to let go of it.
                NotOpen::Ended(_) | NotOpen::Late(_) | NotOpen::Ours(_) | NotOpen::Living(_) => {
                    warn!(device = plan.id(), "waits to be served as before: {why}");
                    restored.waiting.push(format!("{} ({why})", before.title()));
                    self.put_in_force(&before);
                    self.rooms.shut.insert(Shut::waiting_for(before, &why, self.rooms.turn.now()));
                }
            }
        }
        restored
    }

    /// Puts the plan of a device that is planned otherwise into its place.
    fn put_in_force(&mut self, plan: &DevicePlan) {
        match plan {
            DevicePlan::Disk(disk) => self.set_plan(disk.clone()),
            DevicePlan::Nic(nic) => self.rooms.nic_calls().set_plan(nic.clone()),
        }
    }
}

/// Devices that went for others which could not be opened, in words.
#[derive(Default)]
pub(crate) struct Restored {
    /// Are served again.
    served: Vec<String>,
    /// Are as soon as they can be opened.
    waiting: Vec<String>,
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.served.is_empty() {
            write!(f, ", and served again as before: {}", self.served.join(", "))?;
        }
        if !self.waiting.is_empty() {
            let names = self.waiting.join(", ");
            write!(f, ", and served again as before as soon as it can be opened: {names}")?;
        }
        Ok(())
    }
}

/// Which devices have a file as their image.
type Holders = HashMap<FileId, Vec<u32>>;

fn refusal(plan: &DevicePlan, why: &NotOpen) -> ApiError {
    let what = format!("{} ({}): {why}", plan.name(), plan.origin());
    let kind = match why {
        NotOpen::Ended(_) | NotOpen::Late(_) => ErrorKind::Busy,
        _ => ErrorKind::Refused,
    };
    ApiError::new(kind, what, PUT_RIGHT)
}

/// As [`check::interface`] says.
fn check_interface(host: &HostPlan) -> Result<(), NotOpen> {
    check::interface(host).map_err(NotOpen::wrong)
}

fn added_disk(change: &Change) -> Option<&str> {
    match change {
        Change::Add(disk) => Some(&disk.id),
        _ => None,
    }
}

fn added_uplinks(change: &Change) -> Vec<&HostPlan> {
    match change {
        Change::AddSwitch(switch) => switch.uplinks.iter().map(|uplink| &uplink.host).collect(),
        Change::AddUplink { uplink, .. } => vec![&uplink.host],
        _ => Vec::new(),
    }
}
