//! A device goes: its socket and front-ends at once, the rest when its queues are back.
//!
//! And what else waits for queues. Not here: the lives of calls that wait (`waiting`).

use config::Plan;
use config::api::ApiError;
use control::mode::Mode;
use tracing::info;

use super::resizing::{self, Undone};
use super::{UNDONE, not_kept, shown};
use crate::api::Reply;
use crate::defects::{found, late};
use crate::devices::kind::Kind;
use crate::rooms::Rooms;

/// An operator removes a device, which may be open or not.
pub(crate) fn remove(id: &str, reply: Reply, rooms: &mut Rooms, mode: Mode) {
    match rooms.devices.number_of(id) {
        None => {
            let answer = shown::named(rooms, id, false);
            if let Err(error) = keep_without(id, rooms) {
                return reply.answer(Err(error));
            }
            drop_shut(id, rooms);
            reply.answer(answer);
        }
        Some(number) => match keep_without(id, rooms) {
            Ok(()) => begin(number, Some(reply), rooms, mode),
            Err(error) => reply.answer(Err(error)),
        },
    }
}

/// Keeps that a device is planned no more, before it is removed, since that could not be taken back.
///
/// # Errors
/// It could not be kept, and is planned as before.
fn keep_without(id: &str, rooms: &mut Rooms) -> Result<(), ApiError> {
    let before = (rooms.plan.disks.clone(), rooms.plan.nics.clone());
    forget_plan(id, &mut rooms.plan);
    rooms.keep().map_err(|error| {
        (rooms.plan.disks, rooms.plan.nics) = before;
        not_kept(&error, UNDONE)
    })
}

/// Forgets a device that is not open.
fn drop_shut(id: &str, rooms: &mut Rooms) {
    unplan_shut(id, rooms);
    rooms.unsynced.forget_gone(id, &rooms.plan);
}

/// A device that is not open is planned no more, or another one of its name is about to be: what is kept of it is not
/// looked at.
pub(crate) fn unplan_shut(id: &str, rooms: &mut Rooms) {
    rooms.shut.remove(id);
    forget_plan(id, &mut rooms.plan);
}

/// Nothing is planned of that name any more.
fn forget_plan(id: &str, plan: &mut Plan) {
    plan.disks.retain(|disk| disk.id != id);
    plan.nics.retain(|nic| nic.id != id);
}

/// Closes a device's socket and front-ends; it is gone when its queues are back.
pub(crate) fn begin(number: u32, reply: Option<Reply>, rooms: &mut Rooms, mode: Mode) {
    let device = rooms.devices.get(number);
    let id = found!(rooms.turn.defects, device, "device to remove").facts().id.clone();
    forget_plan(&id, &mut rooms.plan);
    remove_device(number, reply, rooms, mode);
}

/// The same of one of whose name another one may be planned.
pub(crate) fn remove_device(number: u32, reply: Option<Reply>, rooms: &mut Rooms, mode: Mode) {
    // While the daemon stops it may go before a client has let go of it.
    let Some(device) = rooms.devices.get_mut(number) else { return late("device") };
    device.go();
    device.close_socket(&rooms.poll);
    let connections = device.connections().keys().copied().collect::<Vec<_>>();
    let why = if mode.is_stopping() { "the daemon stops" } else { "the device is removed" };
    for connection in connections {
        rooms.front_ends(mode).close(number, connection, why);
    }
    rooms.waiting.remove(number, reply, &mut rooms.turn);
    rooms.turn.touch(number);
}

/// Every queue of a device that was held back is here: what waited for that is done. Gives what is undone of that.
pub(crate) fn all_are_back(number: u32, rooms: &mut Rooms, mode: Mode) -> Option<Undone> {
    let device = rooms.devices.get_mut(number);
    let device = found!(rooms.turn.defects, device, "device whose queues are all back");
    if device.are_back() {
        is_gone(number, rooms, mode);
        return None;
    }
    if let Kind::Nic(nic) = device.kind_mut()
        && nic.take_new_switch()
    {
        let (network, mut around) = rooms.network();
        network.plug_in_anew(number, &mut around);
    }
    let undone = resizing::go_on(number, rooms, mode);
    rooms.turn.touch(number);
    undone
}

/// Forgets a device that was removed and has no queue away.
fn is_gone(number: u32, rooms: &mut Rooms, mode: Mode) {
    let (network, mut around) = rooms.network();
    if !network.unplug(number, &mut around) {
        return;
    }
    rooms.have_links(mode, |remote, around| remote.release_remote(number, around));
    rooms.hear_unsynced(number);
    let mut device =
        found!(rooms.turn.defects, rooms.devices.remove(number), "device that is gone");
    rooms.guests.forget(&mut device, rooms.turn.now());
    let (id, view) = (device.facts().id.clone(), shown::device(rooms, &device));
    // With a daemon that stops all go, and are there again at the next start.
    if !mode.is_stopping() {
        info!(device = id, "removed");
    }
    rooms.unsynced.forget_gone(&id, &rooms.plan);
    let is_closing = device.close_image(&mut rooms.openers, Some(number));
    // Its socket is free.
    rooms.shut.retry_all(rooms.turn.now());
    rooms.waiting.gone(number, &id, view, is_closing);
}

/// With the image of a device that was removed its locks have gone.
pub(crate) fn image_is_closed(number: u32, rooms: &mut Rooms) {
    rooms.shut.retry_all(rooms.turn.now());
    rooms.waiting.closed(number);
}

#[cfg(test)]
mod tests;
