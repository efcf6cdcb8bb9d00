//! A disk gets another size: it is noted, its queues come back, and then its image is made longer or shorter.
//!
//! For operators, for a reload, and after an upgrade. Not here: which size it may have (`sizes`).

use std::sync::Arc;

use config::Size;
use config::api::{ApiError, ErrorKind};
use config::plan::{DevicePlan, DiskPlan, Origin};
use config::spec::DiskResize;
use control::mode::Mode;
use sidecore::nanos_of;
use tracing::{info, warn};

use super::{Answered, changes, check_disk_made_by_api, shown};
use crate::api::Reply;
use crate::defects::found;
use crate::devices::Devices;
use crate::devices::unrecorded::Unrecorded;
use crate::disk::images::source_of;
use crate::disk::locks::Taken;
use crate::opening::not_open::NotOpen;
use crate::opening::openers::Patience;
use crate::rooms::Rooms;
use crate::sizes::Sizes;

/// A disk that has not got the size of its plan, and why, in words. A reload that asked for it says so.
pub(crate) struct Undone {
    pub(crate) device: u32,
    pub(crate) what: String,
}

/// An operator has a disk resized; he is answered when its queues are back and that is done.
pub(crate) fn ask(id: &str, resize: &DiskResize, force: bool, reply: Reply, rooms: &mut Rooms) {
    let begun = made_by_api(id, rooms).and_then(|number| {
        let Rooms { devices, remote, openers, bounds, .. } = &mut *rooms;
        Sizes { devices, remote, openers, bounds }.check(id, resize.size.0, force)?;
        if !force && let Some(waiting) = Unrecorded::of(devices.get(number)) {
            let as_it_was = "the disk is as it was";
            return Err(waiting.refusal("the disk is not resized", "resize it", as_it_was));
        }
        begin(number, resize.size, devices).map(|()| number)
    });
    match begun {
        Ok(number) => {
            rooms.waiting.resize(number, Some(reply), &mut rooms.turn);
            rooms.turn.touch(number);
        }
        Err(error) => reply.answer(Err(error)),
    }
}

/// Gives a disk the size of its plan when its queues are back, which is waited for as for an operator. Gives what is
/// undone, in words, if it cannot have that.
pub(crate) fn to_plan(number: u32, size: Size, rooms: &mut Rooms) -> Option<Undone> {
    let undone = match begin(number, size, &mut rooms.devices) {
        Ok(()) => {
            rooms.waiting.resize(number, None, &mut rooms.turn);
            None
        }
        Err(error) => {
            warn!("a disk is not resized: {}; {}", error.error, error.hint);
            not_resized(number, size.0, &error.error, rooms)
        }
    };
    rooms.turn.touch(number);
    undone
}

/// The queues of a disk are back: it gets the size that it is to have, if any. Gives what is undone if it does not.
pub(super) fn go_on(number: u32, rooms: &mut Rooms, mode: Mode) -> Option<Undone> {
    let size = rooms.devices.disk_mut(number).and_then(|disk| disk.resizing.take())?;
    let answer = finish(number, size, rooms, mode);
    let undone = answer.as_ref().err().and_then(|error| {
        warn!("a resize was refused: {}", error.error);
        not_resized(number, size, &error.error, rooms)
    });
    rooms.waiting.resized(number, answer);
    undone
}

/// The queues of a disk do not come back: its size is as it was.
pub(super) fn give_up(number: u32, why: &str, rooms: &mut Rooms) -> Option<Undone> {
    let size = rooms.devices.disk_mut(number).and_then(|disk| disk.resizing.take());
    // Those of its queues that are back go on.
    rooms.turn.touch(number);
    not_resized(number, size?, why, rooms)
}

/// Notes a new size; it is given when the queues are back.
fn begin(number: u32, size: Size, devices: &mut Devices) -> Result<(), ApiError> {
    let Some(disk) = devices.disk_mut(number) else {
        return Err(ApiError::gone("disk"));
    };
    if disk.remote.is_some() {
        let error = "its size is that of the disk at its IOhost";
        return Err(ApiError::new(ErrorKind::Refused, error, "resize it there"));
    }
    if disk.resizing.is_some() {
        let hint = "try again in a moment";
        return Err(ApiError::new(ErrorKind::Busy, "it is being resized already", hint));
    }
    disk.check_size(size.0)?;
    disk.resizing = Some(size.0);
    if let Some(waiting) = Unrecorded::of(devices.get(number)) {
        waiting.say_they_end();
    }
    Ok(())
}

/// Keeps the new size, and then gives it: what could not be kept is not done. A disk that does not get it has the plan
/// that it had.
fn finish(number: u32, size: u64, rooms: &mut Rooms, mode: Mode) -> Answered {
    let gone = || ApiError::gone("disk");
    let disk = rooms.devices.disk(number).ok_or_else(gone)?;
    let (id, is_remote, before) = (disk.plan.id.clone(), disk.remote.is_some(), disk.plan.clone());
    let mut plan = before.clone();
    plan.resized(size);
    let (after, before) = (DevicePlan::Disk(plan.clone()), DevicePlan::Disk(before));
    let is_kept = plan.origin == Origin::Api && !is_remote;
    let promise = rooms.bounds.promise_instead(&before, &after).map_err(|why| {
        let error = format!("disk {id:?}: {why}");
        ApiError::new(ErrorKind::Refused, error, "the disk is as it was")
    })?;
    if is_kept {
        changes::plan_otherwise(after.clone(), &before, rooms)?;
    }
    give(number, size, &plan, rooms).map_err(|why| match is_kept {
        true => changes::undone(before, why, rooms),
        false => why,
    })?;
    match rooms.devices.get_mut(number) {
        Some(device) => device.promise_instead(promise),
        None => rooms.turn.defects.note("device that was resized"),
    }
    if !is_remote {
        has_size(number, size, rooms);
        rooms.set_plan(after);
    }
    tell_capacity(number, rooms, mode);
    info!(disk = id, size, "resized");
    shown::disk(rooms, &id, true)
}

/// Gives a disk whose queues are back its new size.
///
/// # Errors
/// It has the size that it had.
fn give(number: u32, size: u64, plan: &DiskPlan, rooms: &mut Rooms) -> Result<(), ApiError> {
    let id = &plan.id;
    let refused = |error: &dyn std::fmt::Display| {
        let hint = "the disk is as it was";
        ApiError::new(ErrorKind::Refused, format!("disk {id:?}: {error}"), hint)
    };
    // What was asked of its file system is not taken back.
    let late = |error: &dyn std::fmt::Display| {
        let hint = "its guest sees the size that it had, and the image may still become longer";
        ApiError::new(ErrorKind::Busy, format!("disk {id:?}: {error}"), hint)
    };
    let gone = || ApiError::gone("disk");
    // One that was given up is made longer when it is here, and stays.
    let disk = rooms.devices.disk_mut(number).ok_or_else(gone)?;
    if disk.locks.is_fenced() {
        disk.locks.hurry(nanos_of(rooms.turn.now()));
        if rooms.locks().take(number) == Taken::Not {
            let disk = rooms.devices.disk(number).ok_or_else(gone)?;
            return Err(match (disk.locks.why(), disk.waits_for()) {
                (Some(NotOpen::Late(_)), Some(why)) => late(&why),
                (_, why) => refused(&why.unwrap_or_default()),
            });
        }
    }
    let Rooms { devices, openers, bonds, .. } = rooms;
    let disk = devices.disk_mut(number).ok_or_else(gone)?;
    match disk.locks.is_here() {
        // As its IOhost has said, which it was not asked for.
        _ if disk.remote.is_some() => {
            backend::Disk::resize(&mut disk.disk, size).map_err(|e| refused(&e))?;
        }
        true => {
            let mut longer = Arc::clone(&disk.disk);
            let resized = openers.aside(source_of(plan), move || {
                backend::Disk::resize(&mut longer, size).map(|()| longer)
            });
            let slow = |_| late(&"its file system does not answer; ask again");
            disk.disk = resized.map_err(slow)?.map_err(|error| refused(&error))?;
        }
        // Made longer under its locks, which are not kept.
        false => {
            let opened = disk.open_again(plan, bonds, openers, Patience::First);
            let opened = opened.map_err(|error| match error {
                NotOpen::Late(_) => late(&error),
                NotOpen::Ended(_)
                | NotOpen::Hidden(_)
                | NotOpen::Ours(_)
                | NotOpen::Living(_)
                | NotOpen::Landing(_)
                | NotOpen::Unfit(_)
                | NotOpen::Wrong(_) => refused(&error),
            })?;
            disk.disk = opened.away();
            openers.let_go(plan, opened, None);
        }
    }
    Ok(())
}

/// An image has its new size: what is known of it holds for that.
fn has_size(number: u32, size: u64, rooms: &mut Rooms) {
    let Rooms { devices, bonds, plan, turn, .. } = rooms;
    let disk = found!(turn.defects, devices.disk_mut(number), "disk that was resized");
    disk.astray = None;
    let image = disk.bond.resized(size);
    image.into_iter().for_each(|image| devices.keep_image(number, &image, bonds, plan));
    let device = found!(turn.defects, devices.get_mut(number), "device that was resized");
    device.judge_again(turn);
}

/// A disk that was to have the size of its plan has not got it: its plan says again what it has, so that the next
/// reload does it, and that is shown. An operator who asked is answered, and nothing is planned otherwise.
fn not_resized(number: u32, size: u64, why: &str, rooms: &mut Rooms) -> Option<Undone> {
    let disk = found!(rooms.turn.defects, rooms.devices.disk(number), "disk that is not resized");
    let has = disk.disk.size_bytes();
    if disk.plan.source.size_bytes() != Some(size) || has == size {
        return None;
    }
    let mut plan = disk.plan.clone();
    plan.resized(has);
    let name = format!("disk {:?}: ", plan.id);
    let why = why.strip_prefix(&name).unwrap_or(why);
    let told = format!("it has {} and not {}: {why}", Size(has), Size(size));
    rooms.set_plan(DevicePlan::Disk(plan));
    let disk = rooms.devices.disk_mut(number);
    let disk = found!(rooms.turn.defects, disk, "disk that is not resized");
    disk.unresized = Some(format!("{told}; `sidecore reload` tries it again"));
    Some(Undone { device: number, what: format!("{name}{told}") })
}

/// The capacity of a disk is another now: whoever has it is told.
fn tell_capacity(number: u32, rooms: &mut Rooms, mode: Mode) {
    let device = rooms.devices.get_mut(number);
    let device = found!(rooms.turn.defects, device, "device with another capacity");
    device.tell_capacity(&mut rooms.turn);
    if device.is_exported() {
        rooms.turn.touch(number);
        rooms.have_links(mode, |remote, around| remote.tell_clients(number, around));
    }
}

/// The device of that name, which is to be changed through the API and open.
fn made_by_api(id: &str, rooms: &Rooms) -> Result<u32, ApiError> {
    check_disk_made_by_api(id, &rooms.plan)?;
    rooms.open_disk(id)
}

#[cfg(test)]
mod tests;
