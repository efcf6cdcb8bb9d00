//! What operators ask of disks: add, change, go on with an image, forget what was lost.
//!
//! Not here: what is asked of any device (`removal`), and sizes (`resizing`).

use std::sync::Arc;
use std::time::Duration;

use backend::Disk;
use config::api::{ApiError, ErrorKind};
use config::plan::{DeviceKind, DevicePlan, DiskPlan, ServicePlan};
use config::spec::DiskChange;
use config::{DiskSpec, Plan};
use control::mode::Mode;
use tracing::info;

use super::{Answered, changes, check_disk_made_by_api, shown};
use crate::api::Reply;
use crate::devices::device::Device;
use crate::devices::queue::Queue;
use crate::disk::DiskParts;
use crate::disk::images::source_of;
use crate::opening::apart;
use crate::opening::not_open::{NotOpen, refused_with};
use crate::opening::open::{self, Socket, check_socket};
use crate::opening::shut::Shut;
use crate::rights::{Accounts, check_at, refused_rights};
use crate::rooms::Rooms;

/// Adds a disk when its image is open, so that nobody else waits for that. Without `force` it is to fit its image.
pub(crate) fn add_when_open(
    (spec, force): (DiskSpec, bool),
    reply: Reply,
    rooms: &mut Rooms,
    mode: Mode,
) {
    if let Err(refused) = check_to_add(&spec, &rooms.plan, &mut rooms.turn.accounts) {
        return reply.answer(Err(refused));
    }
    match begin_to_add(&spec, force, rooms) {
        Some(wait) => rooms.waiting.add(spec, reply, wait, &mut rooms.turn),
        None => add_now(&spec, reply, rooms, mode),
    }
}

/// What is known to be wrong before an image is opened, which may make it or make it longer.
fn check_to_add(spec: &DiskSpec, in_force: &Plan, accounts: &mut Accounts) -> Result<(), ApiError> {
    let plan = in_force.disk_from_api(spec)?;
    check_at(&plan.rights, Some(&plan.socket), accounts).map_err(refused_rights)?;
    let (id, plan) = (plan.id.clone(), DevicePlan::Disk(plan));
    apart::check(in_force, Some(&plan))?;
    check_socket(&plan, in_force, false)
        .map_err(|why| refused_with(&format!("disk {id:?}"), &why, "name another socket"))
}

/// Has the image opened of a disk that can be added otherwise, as far as is known now: how long it is waited for.
fn begin_to_add(spec: &DiskSpec, force: bool, rooms: &mut Rooms) -> Option<Duration> {
    let plan = rooms.plan.disk_from_api(spec).ok()?;
    // An image may be made by that.
    drop(rooms.bounds.promise(&DevicePlan::Disk(plan.clone())).ok()?);
    DiskParts::begin(&plan, !force, &rooms.bonds, &mut rooms.openers)
}

/// Adds a disk now.
pub(crate) fn add_now(spec: &DiskSpec, reply: Reply, rooms: &mut Rooms, mode: Mode) {
    match add(spec, rooms, mode) {
        Ok(id) => changes::keep_added((DeviceKind::Disk, &id), reply, rooms, mode),
        Err(refused) => reply.answer(Err(refused)),
    }
}

/// Serves a disk more, which is not kept yet: its name.
fn add(spec: &DiskSpec, rooms: &mut Rooms, mode: Mode) -> Result<String, ApiError> {
    let plan = rooms.plan.disk_from_api(spec)?;
    let id = plan.id.clone();
    let refused = |error: NotOpen| {
        refused_with(&format!("disk {id:?}"), &error, "name another image or socket")
    };
    match open::open(DevicePlan::Disk(plan.clone()), Socket::Own, rooms, mode) {
        Ok(device) => {
            open::serve(device, rooms, mode).map_err(refused)?;
        }
        Err(why @ (NotOpen::Ended(_) | NotOpen::Late(_))) => {
            let waits = DevicePlan::Disk(plan.clone());
            rooms.shut.insert(Shut::waiting_for(waits, &why, rooms.turn.now()));
        }
        Err(NotOpen::Unfit(misfit)) => return Err(misfit.refusal()),
        Err(error) => return Err(refused(error)),
    }
    rooms.plan.disks.push(plan);
    Ok(id)
}

/// Changes how a disk is served, and who may open its socket.
pub(crate) fn change(id: &str, change: &DiskChange, rooms: &mut Rooms) -> Answered {
    check_disk_made_by_api(id, &rooms.plan)?;
    let after = rooms.plan.disk_changed(id, change)?;
    let before = rooms.plan.disk(id).cloned().ok_or_else(|| rooms.plan.no_such_disk(id))?;
    let ServicePlan { share, policy, limit, group, .. } = after.service.clone();
    changes::change(DevicePlan::Disk(before), DevicePlan::Disk(after), rooms)?;
    if let Some(number) = rooms.devices.number_of(id) {
        rooms.services().set(number);
    }
    info!(disk = id, share, %policy, %limit, group, "set");
    shown::disk(rooms, id, true)
}

/// An operator has the guest of a disk go on with the image that is there.
pub(crate) fn accept_image(id: &str, rooms: &mut Rooms, mode: Mode) -> Result<(), ApiError> {
    let number = rooms.open_disk(id)?;
    let device = rooms.devices.get(number).ok_or_else(|| ApiError::no_such_disk(id))?;
    let parts = device.disk().ok_or_else(|| ApiError::no_such_disk(id))?;
    if parts.bond.is_served() && !may_have_lost(device, parts) {
        let error = match parts.bond.is_new() {
            true => format!("no guest of disk {id:?} was on another image"),
            false => format!("the guest of disk {id:?} is on the image that is there"),
        };
        return Err(ApiError::new(ErrorKind::Conflict, error, "there is nothing to accept"));
    }
    rooms.images().named(number).may_be_accepted(id)?;
    let parts = rooms.devices.disk_mut(number).ok_or_else(|| ApiError::no_such_disk(id))?;
    parts.was_empty = false;
    if let Some(image) = parts.bond.accept() {
        rooms.devices.keep_image(number, &image, &mut rooms.bonds, &rooms.plan);
        info!(disk = id, "accepted: its guest goes on with {image}");
    }
    rooms.have_links(mode, |remote, around| remote.accept_remote(number, around));
    if let Some(device) = rooms.devices.get_mut(number) {
        device.judge_again(&mut rooms.turn);
    }
    Ok(())
}

/// Whether a guest was, or may come back that was, on what a disk that is empty held before.
fn may_have_lost(device: &Device, parts: &DiskParts) -> bool {
    let waits = device.queues().iter().any(|queue| queue.problem().is_some());
    let was_served = device.queues().iter().any(Queue::was_attached);
    parts.was_empty && (waits || !was_served && !parts.bond.is_new())
}

/// The operator knows what was lost.
pub(crate) fn clear(id: &str, rooms: &mut Rooms, mode: Mode) -> Answered {
    let number = rooms.open_disk(id)?;
    let parts = rooms.devices.disk(number).ok_or_else(|| rooms.plan.no_such_disk(id))?;
    // The latter where the image was cleared late, and nobody was told.
    if !(parts.sync_failed() || rooms.unsynced.is_lost(&parts.plan)) {
        let error = format!("disk {id:?} has lost no data that it knows of");
        return Err(ApiError::new(ErrorKind::Conflict, error, "there is nothing to clear"));
    }
    if parts.locks.is_fenced() {
        let why = parts.waits_for().unwrap_or_else(|| "it waits for its image".to_string());
        let hint = "what was lost stands on it: clear it when it is here";
        return Err(ApiError::new(ErrorKind::Conflict, format!("disk {id:?}: {why}"), hint));
    }
    let (disk, plan) = (Arc::clone(&parts.disk), parts.plan.clone());
    clear_image(&disk, &plan, rooms)?;
    rooms.unsynced.forget(id).map_err(|error| {
        disk.assume_sync_failed();
        let error = format!("the mark of disk {id:?} cannot be removed: {error}");
        ApiError::new(ErrorKind::Internal, error, "mend the state folder and clear it again")
    })?;
    disk.forget_sync_failure();
    let parts = rooms.devices.disk_mut(number).ok_or_else(|| rooms.plan.no_such_disk(id))?;
    parts.lost_before = false;
    // Its image may have stayed for that alone, and be waited for elsewhere.
    rooms.turn.touch(number);
    rooms.have_links(mode, |remote, around| remote.forgive_remote(number, around));
    info!(disk = id, "cleared: it may flush again");
    shown::disk(rooms, id, true)
}

/// Takes the mark of lost data off an image that has one.
fn clear_image(disk: &Arc<Disk>, plan: &DiskPlan, rooms: &mut Rooms) -> Result<(), ApiError> {
    if !disk.is_marked() {
        return Ok(());
    }
    let clears = Arc::clone(disk);
    let cleared = rooms.openers.aside(source_of(plan), move || clears.clear_mark());
    let (why, hint) = match cleared {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => {
            (error.to_string(), "have its file system be writable, and clear it again")
        }
        Err(_) => {
            let why = "its file system has not answered yet".to_string();
            (why, "clear it again when that answers")
        }
    };
    let path = plan.source.path().unwrap_or_default();
    let error = format!("the mark on {path} cannot be removed: {why}");
    Err(ApiError::new(ErrorKind::Internal, error, hint))
}

#[cfg(test)]
mod tests;
