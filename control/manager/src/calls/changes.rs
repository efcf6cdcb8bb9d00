//! A device gets a plan from an operator: it is kept and in force, or all is as it was.
//!
//! Not here: which changes there are (`config`), and what follows from them (`disks`, `nics`).

use config::api::ApiError;
use config::plan::{DeviceKind, DevicePlan};
use control::mode::Mode;
use tracing::info;

use super::{UNDONE, UNKEPT, not_kept, removal, shown};
use crate::api::Reply;
use crate::rights::{Rights, given, refused_rights};
use crate::rooms::Rooms;

/// Keeps a device that was added: whoever added it is shown it. One that cannot be kept is none after all, which is told
/// when it is gone.
pub(super) fn keep_added(
    (kind, id): (DeviceKind, &str),
    reply: Reply,
    rooms: &mut Rooms,
    mode: Mode,
) {
    let Err(error) = rooms.keep() else {
        match kind {
            DeviceKind::Disk => info!(disk = id, "added"),
            DeviceKind::Nic => info!(nic = id, "added"),
        }
        // Not when that is looked at: an heir may be waited for until the daemon stops.
        rooms.devices.is_told(id);
        return reply.answer(shown::named(rooms, id, true));
    };
    let why = not_kept(&error, UNDONE);
    match rooms.devices.number_of(id) {
        Some(number) => removal::begin(number, Some(reply.refusing(why)), rooms, mode),
        None => {
            // A mark of lost data was there before it was added.
            removal::unplan_shut(id, rooms);
            reply.answer(Err(why));
        }
    }
}

/// Puts `after` in the place of `before`.
///
/// # Errors
/// Its rights are none, or it could not be kept.
pub(super) fn change(
    before: DevicePlan,
    after: DevicePlan,
    rooms: &mut Rooms,
) -> Result<(), ApiError> {
    let rights = [&before, &after].map(|plan| plan.socket().2);
    Rights::of(rights[1], &mut rooms.turn.accounts).map_err(refused_rights)?;
    let (has_others, id) = (rights[0] != rights[1], after.id().to_string());
    plan_otherwise(after, &before, rooms)?;
    let device = rooms.devices.named_mut(&id).filter(|_| has_others);
    if let Some(Err(error)) = device.map(|device| given::put(device, &mut rooms.turn.accounts)) {
        return Err(undone(before, refused_rights(error), rooms));
    }
    Ok(())
}

/// Has `after` in the plan and kept in the place of `before`. What follows from it is done then, since it could not be
/// taken back.
///
/// # Errors
/// It cannot be kept; nothing is planned otherwise.
pub(super) fn plan_otherwise(
    after: DevicePlan,
    before: &DevicePlan,
    rooms: &mut Rooms,
) -> Result<(), ApiError> {
    rooms.set_plan(after);
    rooms.keep().map_err(|error| {
        rooms.set_plan(before.clone());
        not_kept(&error, UNDONE)
    })
}

/// Takes a plan back of which nothing came, for that reason: why, with what the operator has to know besides.
pub(super) fn undone(before: DevicePlan, mut why: ApiError, rooms: &mut Rooms) -> ApiError {
    rooms.set_plan(before);
    if let Err(error) = rooms.keep() {
        why.hint += &format!("; {UNKEPT}: {error}");
    }
    why
}
