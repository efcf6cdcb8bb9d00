//! What operators ask of disks: add, change, resize.
//!
//! Not here: what is asked of any device (`answer`), and `clear` (`unsynced`).

use std::sync::Arc;
use std::time::Duration;

use config::api::{ApiError, ErrorKind};
use config::plan::{DiskPlan, Origin, ServicePlan};
use config::spec::{DiskChange, DiskResize};
use config::{DiskSpec, Size};
use tracing::{info, warn};

use crate::api::Reply;
use crate::calls::{Answered, UNDONE, UNTIL_RESTART, not_kept};
use crate::defects::found;
use crate::disk::DiskParts;
use crate::images::{source_of, waits_of};
use crate::kind::{DevicePlan, Facts};
use crate::manager::Manager;
use crate::opening::not_open::{NotOpen, refused_with};
use crate::opening::open::Socket;
use crate::opening::openers::Patience;
use crate::opening::shut::Shut;
use crate::reload::check_socket;
use crate::rights::given;
use crate::rights::{Rights, check_at, refused_rights};
use crate::rooms::Rooms;
use crate::sizes::Sizes;

/// Characters of a name in the log, which may be any text; one that a disk can have is as short.
const ID_SHOWN_MAX: usize = 64;

impl Manager {
    /// Adds a disk when its image is open, so that nobody else waits for that.
    pub(crate) fn add_when_open(&mut self, spec: DiskSpec, reply: Reply) {
        if let Err(refused) = self.check_to_add(&spec) {
            return self.not_added(&spec, reply, refused);
        }
        match self.begin_to_add(&spec) {
            Some(wait) => self.rooms.waiting.add(spec, reply, wait, &mut self.rooms.turn),
            None => self.add_now(&spec, reply),
        }
    }

    /// What is known to be wrong before an image is opened, which may make it or make it longer.
    fn check_to_add(&self, spec: &DiskSpec) -> Result<(), ApiError> {
        let plan = self.rooms.plan.disk_from_api(spec)?;
        check_at(&plan.rights, Some(&plan.socket)).map_err(refused_rights)?;
        let id = plan.id.clone();
        check_socket(&DevicePlan::Disk(plan), &self.rooms.plan, |_| false)
            .map_err(|why| refused_with(&format!("disk {id:?}"), &why, "name another socket"))
    }

    fn not_added(&self, spec: &DiskSpec, reply: Reply, refused: ApiError) {
        let id: String = spec.id.chars().take(ID_SHOWN_MAX).collect();
        warn!("not added: disk {id:?}: {}", refused.error);
        reply.answer(Err(refused));
    }

    /// Has the image opened of a disk that can be added otherwise, as far as is known now: how long it is waited for.
    fn begin_to_add(&mut self, spec: &DiskSpec) -> Option<Duration> {
        let plan = self.rooms.plan.disk_from_api(spec).ok()?;
        // An image may be made by that.
        drop(self.rooms.bounds.promise(&DevicePlan::Disk(plan.clone())).ok()?);
        DiskParts::begin(&plan, false, &self.rooms.bonds, &mut self.rooms.openers)
    }

    /// Adds a disk now, and says in the log when it does not.
    pub(super) fn add_now(&mut self, spec: &DiskSpec, reply: Reply) {
        match self.add(spec) {
            Err(refused) => self.not_added(spec, reply, refused),
            added => reply.answer(added),
        }
    }

    fn add(&mut self, spec: &DiskSpec) -> Answered {
        let plan = self.rooms.plan.disk_from_api(spec)?;
        let id = plan.id.clone();
        let refused = |error: NotOpen| {
            refused_with(&format!("disk {id:?}"), &error, "name another image or socket")
        };
        match DevicePlan::Disk(plan.clone()).open(Socket::Own, &mut self.rooms) {
            Ok(device) => {
                self.serve_device(device).map_err(refused)?;
            }
            Err(NotOpen::Ended(why) | NotOpen::Late(why)) => {
                let waits = DevicePlan::Disk(plan.clone());
                self.rooms
                    .shut
                    .insert(Shut::waiting(waits, why, self.rooms.turn.now()).never_open());
            }
            Err(error) => return Err(refused(error)),
        }
        self.rooms.plan.disks.push(plan);
        if let Err(error) = self.rooms.state.keep(&self.rooms.plan) {
            match self.rooms.devices.number_of(&id) {
                Some(number) => self.begin_removal(number, None),
                None => self.drop_shut(&id),
            }
            self.settle();
            return Err(not_kept(&error, UNDONE));
        }
        info!(disk = id, "added");
        self.show(&id, true)
    }

    pub(crate) fn change(&mut self, id: &str, change: &DiskChange) -> Answered {
        self.check_made_by_api(id)?;
        let after = self.rooms.plan.disk_changed(id, change)?;
        let before =
            self.rooms.plan.disk(id).cloned().ok_or_else(|| self.rooms.plan.no_such_disk(id))?;
        let ServicePlan { share, policy, limit, group, .. } = after.service.clone();
        Rights::of(&after.rights).map_err(refused_rights)?;
        let has_others = before.rights != after.rights;
        self.set_plan(after);
        if let Err(error) = self.rooms.state.keep(&self.rooms.plan) {
            self.set_plan(before);
            return Err(not_kept(&error, UNDONE));
        }
        if has_others && let Some(Err(error)) = self.rooms.devices.named_mut(id).map(given::put) {
            self.set_plan(before);
            self.rooms
                .state
                .keep(&self.rooms.plan)
                .map_err(|error| not_kept(&error, UNTIL_RESTART))?;
            return Err(refused_rights(error));
        }
        if let Some(number) = self.rooms.devices.number_of(id) {
            self.rooms.services().set(number);
        }
        info!(disk = id, share, %policy, %limit, group, "set");
        self.show(id, true)
    }

    pub(crate) fn resize(&mut self, id: &str, resize: &DiskResize, force: bool, reply: Reply) {
        let begun = self.made_by_api(id).and_then(|number| {
            let Rooms { devices, remote, openers, .. } = &mut self.rooms;
            Sizes { devices, remote, openers }.check(id, resize.size.0, force)?;
            self.begin_resize(number, resize.size)
        });
        match begun {
            Ok(number) => {
                self.rooms.waiting.resize(number, Some(reply), &mut self.rooms.turn);
                self.rooms.turn.touch(number);
            }
            Err(error) => reply.answer(Err(error)),
        }
    }

    /// Notes a new size; it is given when the queues are back.
    pub(crate) fn begin_resize(&mut self, number: u32, size: Size) -> Result<u32, ApiError> {
        let Some(disk) = self.rooms.devices.disk_mut(number) else {
            return Err(ApiError::new(ErrorKind::NotFound, "there is no such disk", ""));
        };
        if disk.remote.is_some() {
            let error = "its size is that of the disk at its IOhost";
            return Err(ApiError::new(ErrorKind::Refused, error, "resize it there"));
        }
        if disk.resizing.is_some() {
            let hint = "try again in a moment";
            return Err(ApiError::new(ErrorKind::Busy, "it is being resized already", hint));
        }
        if size.0 == 0 || !size.0.is_multiple_of(512) {
            let error = format!("a size of {} bytes is not whole sectors", size.0);
            let hint = "give a multiple of 512 bytes, such as 10G";
            return Err(ApiError::new(ErrorKind::Refused, error, hint));
        }
        let block_size = disk.shape.block_size;
        if !size.0.is_multiple_of(block_size.into()) {
            let error = format!("a size of {} bytes is not whole blocks of {block_size}", size.0);
            let hint = format!("give a multiple of {block_size} bytes, the disk's `block_size`");
            return Err(ApiError::new(ErrorKind::Refused, error, hint));
        }
        disk.resizing = Some(size.0);
        Ok(number)
    }

    pub(crate) fn finish_resize(&mut self, number: u32, size: u64) -> Answered {
        let gone = || ApiError::new(ErrorKind::NotFound, "the disk is gone", "");
        let disk = self.rooms.devices.get_mut(number).and_then(|device| device.kind.disk_mut());
        let disk = disk.ok_or_else(gone)?;
        let id = disk.plan.id.clone();
        let mut plan = disk.plan.clone();
        plan.resized(size);
        let refused = |error: &dyn std::fmt::Display| {
            let hint = "the disk is as it was";
            ApiError::new(ErrorKind::Refused, format!("disk {id:?}: {error}"), hint)
        };
        // What was asked of its file system is not taken back.
        let late = |error: &dyn std::fmt::Display| {
            let hint = "its guest sees the size that it had, and the image may still become longer";
            ApiError::new(ErrorKind::Busy, format!("disk {id:?}: {error}"), hint)
        };
        match disk.is_here() {
            // As its IOhost has said, which it was not asked for.
            _ if disk.remote.is_some() => {
                backend::Disk::resize(&mut disk.disk, size).map_err(|e| refused(&e))?;
                self.tell_capacity(number);
                info!(disk = id, size, "resized");
                return self.show(&id, true);
            }
            true => {
                let mut longer = Arc::clone(&disk.disk);
                let resized = self.rooms.openers.aside(source_of(&plan), move || {
                    backend::Disk::resize(&mut longer, size).map(|()| longer)
                });
                let slow = |_| late(&"its file system does not answer; ask again");
                disk.disk = resized.map_err(slow)?.map_err(|error| refused(&error))?;
            }
            // Made longer under its locks, which are not kept.
            false => {
                let opened = disk.open_again(
                    &plan,
                    &self.rooms.bonds,
                    &mut self.rooms.openers,
                    Patience::First,
                );
                let opened = opened.map_err(|error| match error {
                    NotOpen::Late(_) => late(&error),
                    NotOpen::Ended(_)
                    | NotOpen::Ours(_)
                    | NotOpen::Living(_)
                    | NotOpen::Wrong(_) => refused(&error),
                })?;
                disk.disk = opened.away();
                self.rooms.openers.let_go(&plan, opened, None);
            }
        }
        disk.astray = None;
        let image = disk.bond.resized(size);
        image.into_iter().for_each(|image| {
            self.rooms.devices.keep_image(&id, &image, &mut self.rooms.bonds, &self.rooms.plan)
        });
        if let Some(device) = self.rooms.devices.get_mut(number) {
            device.judge_again(&mut self.rooms.turn);
        }
        self.tell_capacity(number);
        let origin = plan.origin.clone();
        self.set_plan(plan);
        info!(disk = id, size, "resized");
        if origin == Origin::Api {
            self.rooms
                .state
                .keep(&self.rooms.plan)
                .map_err(|error| not_kept(&error, UNTIL_RESTART))?;
        }
        self.show(&id, true)
    }

    /// A disk that was to have the size of its plan has not got it: its plan says again what it has, so that the next
    /// reload does it, and that is shown. An operator who asked is answered, and nothing is planned otherwise.
    pub(crate) fn is_not_resized(&mut self, number: u32, size: u64, why: &str) {
        let disk = found!(
            self.rooms.turn.defects,
            self.rooms.devices.disk(number),
            "disk that is not resized"
        );
        let has = disk.disk.size_bytes();
        if disk.plan.source.size_bytes() != Some(size) || has == size {
            return;
        }
        let mut plan = disk.plan.clone();
        plan.resized(has);
        let name = format!("disk {:?}: ", plan.id);
        let why = why.strip_prefix(&name).unwrap_or(why);
        let told = format!("it has {} and not {}: {why}", Size(has), Size(size));
        self.set_plan(plan);
        let disk = self.rooms.devices.disk_mut(number);
        let disk = found!(self.rooms.turn.defects, disk, "disk that is not resized");
        disk.unresized = Some(format!("{told}; `sidecore reload` tries it again"));
        self.reloading.not_resized(number, format!("{name}{told}"));
    }

    /// An operator has the guest of a disk go on with the image that is there.
    pub(crate) fn accept_image(&mut self, id: &str) -> Answered {
        let number =
            self.rooms.devices.number_of(id).ok_or_else(|| match self.rooms.plan.disk(id) {
                Some(_) => {
                    let error = format!("disk {id:?} is not open");
                    ApiError::new(ErrorKind::Refused, error, "`sidecore show` says why")
                }
                None => self.rooms.plan.no_such_disk(id),
            })?;
        let parts = self.rooms.devices.disk(number).ok_or_else(|| ApiError::no_such_disk(id))?;
        if parts.bond.is_served() && !parts.was_empty {
            let error = format!("the guest of disk {id:?} is on the image that is there");
            return Err(ApiError::new(ErrorKind::Conflict, error, "there is nothing to accept"));
        }
        self.rooms.images().named(number).may_be_accepted(id)?;
        let parts =
            self.rooms.devices.disk_mut(number).ok_or_else(|| ApiError::no_such_disk(id))?;
        parts.was_empty = false;
        if let Some(image) = parts.bond.accept() {
            self.rooms.devices.keep_image(id, &image, &mut self.rooms.bonds, &self.rooms.plan);
            info!(disk = id, "accepted: its guest goes on with {image}");
        }
        self.links(|remote, around| remote.accept_remote(number, around));
        if let Some(device) = self.rooms.devices.get_mut(number) {
            device.judge_again(&mut self.rooms.turn);
        }
        self.settle();
        self.show(id, true)
    }

    /// The operator knows what was lost.
    pub(crate) fn clear(&mut self, id: &str) -> Answered {
        let number =
            self.rooms.devices.number_of(id).ok_or_else(|| self.rooms.plan.no_such_disk(id))?;
        let parts =
            self.rooms.devices.disk(number).ok_or_else(|| self.rooms.plan.no_such_disk(id))?;
        if !parts.sync_failed() {
            let error = format!("disk {id:?} has lost no data that it knows of");
            return Err(ApiError::new(ErrorKind::Conflict, error, "there is nothing to clear"));
        }
        self.rooms.unsynced.forget(id).map_err(|error| {
            let error = format!("the mark of disk {id:?} cannot be removed: {error}");
            ApiError::new(ErrorKind::Internal, error, "mend the state folder and clear it again")
        })?;
        parts.disk.forget_sync_failure();
        self.links(|remote, around| remote.forgive_remote(number, around));
        info!(disk = id, "cleared: it may flush again");
        self.show(id, true)
    }

    /// The capacity of a disk is another now: whoever has it is told.
    fn tell_capacity(&mut self, number: u32) {
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device with another capacity");
        device.tell_capacity(&mut self.rooms.turn);
        if device.is_exported() {
            self.rooms.turn.touch(number);
            self.links(|remote, around| remote.tell_clients(number, around));
        }
    }

    /// The device of that name, which is to be changed through the API and open.
    fn made_by_api(&self, id: &str) -> Result<u32, ApiError> {
        self.check_made_by_api(id)?;
        self.rooms.devices.number_of(id).ok_or_else(|| {
            let hint = "`sidecore show` says why; remove it, or put that right";
            ApiError::new(ErrorKind::Refused, format!("disk {id:?} is not open"), hint)
        })
    }

    /// Puts another plan in the place of the disk's of that name.
    pub(crate) fn set_plan(&mut self, plan: DiskPlan) {
        if let Some(device) = self
            .rooms
            .devices
            .number_of(&plan.id)
            .and_then(|number| self.rooms.devices.get_mut(number))
            && let Some(disk) = device.kind.disk_mut()
        {
            disk.plan.clone_from(&plan);
            disk.unresized = None;
            disk.disk.set_waits(waits_of(&plan));
            device.facts = Facts::from(&plan);
        }
        self.rooms.shut.set_plan(&DevicePlan::Disk(plan.clone()));
        if let Some(mine) = self.rooms.plan.disks.iter_mut().find(|mine| mine.id == plan.id) {
            *mine = plan;
        }
    }
}
