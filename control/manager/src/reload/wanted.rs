//! What a reload is about to do: the file read and compared, and judged before anything is opened.
//!
//! Not here: what is opened (`prepare`), and what is changed (`apply`).

use config::api::{ApiError, EffectView, ErrorKind, TakenFileView};
use config::plan::LinkPlan;
use config::{Change, Difference, Plan};

use super::additions::Additions;
use super::effects::{Seen, refuse_losses, refuse_misfits, say_made};
use crate::devices::device::Device;
use crate::in_use::InUse;
use crate::options::Unread;
use crate::remote::party::check_key;
use crate::rights::given;
use crate::rooms::Rooms;
use crate::sizes::misfit::Misfit;
use crate::sizes::{Own, Sizes};

/// What the file wants, and what is different.
pub(crate) struct Wanted {
    pub(super) plan: Plan,
    pub(super) changes: Vec<Change>,
    /// Fields that only a restart or an upgrade puts into force.
    pub(super) restart_needed: Vec<String>,
    /// The links of the plan in force, with their new clients.
    pub(super) links: Vec<LinkPlan>,
}

impl Wanted {
    /// Reads the file again. Nothing is changed.
    ///
    /// # Errors
    /// The file is wrong, or asks for what no reload can do.
    pub(crate) fn read(rooms: &mut Rooms) -> Result<Wanted, ApiError> {
        let plan = (rooms.options.load)(&rooms.plan)?;
        Wanted::of(plan, rooms)
    }

    /// The same of a plan that was made of the file.
    ///
    /// # Errors
    /// It asks for what no reload can do.
    pub(super) fn of(mut plan: Plan, rooms: &mut Rooms) -> Result<Wanted, ApiError> {
        let mut difference = config::diff(&rooms.plan, &plan);
        settle_own_sizes(&mut difference.changes, &mut plan, rooms)?;
        add_reopenings(&mut difference.changes, &plan, rooms);
        add_sockets(&mut difference.changes, rooms);
        let changes = difference.changes;
        check_links(&rooms.plan, &plan)?;
        given::check(&changes, &plan, &rooms.devices, &mut rooms.turn.accounts)?;
        let links = config::links_after(&rooms.plan, &plan);
        check_exports(&changes, [&rooms.plan.links, &links], rooms)?;
        Ok(Wanted { plan, changes, restart_needed: difference.restart_needed, links })
    }

    /// Judges what would be done, as far as can be told without opening anything for good. With `refuses` also what
    /// guests lose.
    ///
    /// # Errors
    /// What it is refused for.
    pub(crate) fn judge(
        &self,
        rooms: &mut Rooms,
        refuses: bool,
    ) -> Result<Vec<EffectView>, ApiError> {
        let mut misfits = check_sizes(&self.changes, rooms)?;
        // First, since what is opened may be made by that.
        let Additions { made, misfits: added } = super::additions::check(&self.changes, rooms)?;
        misfits.extend(added);
        if refuses {
            refuse_misfits(&misfits)?;
        }
        let in_use = InUse { devices: &rooms.devices, remote: &rooms.remote };
        let seen = Seen { in_use, plan: &rooms.plan };
        let effects = say_made(seen.effects(&self.changes, &self.plan, &misfits), &made);
        if refuses {
            refuse_losses(&effects)?;
            seen.refuse_waiting(&self.changes)?;
        }
        Ok(effects)
    }
}

/// That no guest loses by the file, and that what is new in it could be opened, as at a reload: an heir opens it when
/// there is no way back. Where it puts something into force that no reload does, or knows words that this program does
/// not, it is judged there. Says what is different.
///
/// # Errors
/// What a reload would be refused for; with `force` not that a new disk does not fit its image.
pub(crate) fn check_file(rooms: &mut Rooms, force: bool) -> Result<TakenFileView, ApiError> {
    let file = rooms.options.file.clone();
    let mut wanted = match (rooms.options.load)(&rooms.plan) {
        Ok(wanted) => wanted,
        Err(Unread { of_an_heir: Some(wanted), .. }) => *wanted,
        Err(Unread { refused, .. }) => {
            // What is behind the first line is for who corrects the file, and the new process takes it as it is.
            let not_compared = refused.error.lines().next().map(str::to_string);
            return Ok(TakenFileView { file, not_compared, ..TakenFileView::default() });
        }
    };
    let Difference { mut changes, restart_needed } = config::diff(&rooms.plan, &wanted);
    let not_replaced = |why: &ApiError, hint: &str| {
        ApiError::new(why.kind, format!("the daemon was not replaced: {}", why.error), hint)
    };
    settle_own_sizes(&mut changes, &mut wanted, rooms)
        .map_err(|why| not_replaced(&why, "it goes on as it is"))?;
    let in_use = InUse { devices: &rooms.devices, remote: &rooms.remote };
    let lost = Seen { in_use, plan: &rooms.plan }.lost_to_heir(&changes, &wanted);
    refuse_losses(&lost).map_err(|why| {
        let hint = "put the file back, or stop those guests, or have `sidecore reload --force` do it first; it goes on \
                    as it is";
        not_replaced(&why, hint)
    })?;
    let hint = "correct the file, or put it back; it goes on as it is";
    match check_misfits(&changes, rooms) {
        Ok(misfits) if !force => refuse_misfits(&misfits)
            .map_err(|why| not_replaced(&why, &format!("{}; it goes on as it is", why.hint)))?,
        // What cannot be opened here may be by an heir, which has what the file puts into force.
        Err(_) if !restart_needed.is_empty() => {}
        checked => checked.map(drop).map_err(|why| not_replaced(&why, hint))?,
    }
    add_sockets(&mut changes, rooms);
    let in_use = InUse { devices: &rooms.devices, remote: &rooms.remote };
    let changes = Seen { in_use, plan: &rooms.plan }.told_of_heir(&changes, &wanted);
    Ok(TakenFileView { file, changes, put_into_force: restart_needed, not_compared: None })
}

/// That what is new and what gets another size can have it: those that only an operator who insists makes so.
fn check_misfits(changes: &[Change], rooms: &mut Rooms) -> Result<Vec<Misfit>, ApiError> {
    let mut misfits = check_sizes(changes, rooms)?;
    misfits.extend(super::additions::check(changes, rooms)?.misfits);
    Ok(misfits)
}

fn check_sizes(changes: &[Change], rooms: &mut Rooms) -> Result<Vec<Misfit>, ApiError> {
    let Rooms { devices, remote, openers, bounds, .. } = rooms;
    Sizes { devices, remote, openers, bounds }.check_changes(changes)
}

/// Says of each disk whose size the file does not name any more what that is: its image's own, which is nothing new
/// where the disk has it. One that is not open gets it when it is opened.
///
/// # Errors
/// A file system that does not answer.
fn settle_own_sizes(
    changes: &mut Vec<Change>,
    wanted: &mut Plan,
    rooms: &mut Rooms,
) -> Result<(), ApiError> {
    let Rooms { devices, remote, openers, bounds, .. } = rooms;
    let mut sizes = Sizes { devices, remote, openers, bounds };
    let mut settled = Vec::with_capacity(changes.len());
    for change in changes.drain(..) {
        let own = match &change {
            Change::OwnSize { id, .. } => sizes.own(id)?.map(|own| (id.clone(), own)),
            _ => None,
        };
        let Some((id, Own { has, own })) = own else {
            settled.push(change);
            continue;
        };
        if own != has {
            // What is planned so is tried again when it fails, as a size that the file names.
            let plan = wanted.disks.iter_mut().filter(|disk| disk.id == id);
            plan.for_each(|disk| disk.resized(own));
            settled.push(Change::Resize { id, size_bytes: own });
        }
    }
    *changes = settled;
    Ok(())
}

/// Disks that are no different, and are to be opened anew.
fn add_reopenings(changes: &mut Vec<Change>, wanted: &Plan, rooms: &mut Rooms) {
    let anew = rooms.images().opened_anew(wanted);
    let goes = |id: &str| {
        changes.iter().any(|change| matches!(change, Change::Remove { id: gone, .. } if gone == id))
    };
    let is_new = |change: &Change| match change {
        Change::Remove { id, .. } => !goes(id),
        Change::Add(device) => !goes(device.id()),
        _ => false,
    };
    let anew: Vec<Change> = anew.into_iter().filter(is_new).collect();
    changes.extend(anew);
}

/// Sockets of devices that stay, whose files were removed.
fn add_sockets(changes: &mut Vec<Change>, rooms: &Rooms) {
    let goes = |id: &str| {
        changes.iter().any(|change| matches!(change, Change::Remove { id: gone, .. } if gone == id))
    };
    let lost = rooms.devices.values().filter(|device| {
        !device.is_going() && !goes(&device.facts().id) && device.has_lost_its_socket()
    });
    let listen = |device: &Device| {
        let plan = device.plan();
        Change::Listen { kind: plan.kind(), id: plan.id().to_string() }
    };
    // Before they are given to others.
    let lost: Vec<Change> = lost.map(listen).collect();
    changes.splice(0..0, lost);
}

/// A link that is different comes with an upgrade or a restart, which must not fail then.
fn check_links(running: &Plan, wanted: &Plan) -> Result<(), ApiError> {
    for link in wanted.links.iter().filter(|link| !running.links.contains(link)) {
        check_key(link).map_err(|error| {
            let error = format!("{}: link {:?}: {error}", link.origin, link.id);
            let hint = "correct the file and reload again; nothing was changed";
            ApiError::new(ErrorKind::Refused, error, hint)
        })?;
    }
    Ok(())
}

/// Refuses to take a disk from the clients of a link that goes on to have it.
fn check_exports(
    changes: &[Change],
    [before, after]: [&[LinkPlan]; 2],
    rooms: &Rooms,
) -> Result<(), ApiError> {
    let exports = |links: &[LinkPlan], id: &String| {
        links.iter().flat_map(LinkPlan::clients).any(|client| client.disks.contains(id))
    };
    let stays = |change: &Change| match change {
        Change::Remove { id, .. } if exports(before, id) && exports(after, id) => {
            rooms.devices.number_of(id).map(|_| id.clone())
        }
        _ => None,
    };
    let Some(id) = changes.iter().find_map(stays) else { return Ok(()) };
    let what = format!("disk {id:?} is one that clients of a link may have");
    let hint = "restart the daemon with the new file; nothing was changed";
    Err(ApiError::new(ErrorKind::Refused, what, hint))
}

#[cfg(test)]
mod tests;
