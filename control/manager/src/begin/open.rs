//! Opens all that is planned, at a start: what cannot be is shut, and tried again later.
//!
//! Not here: what the loop is made of (`begin`), and how one device is opened (`opening`).

use config::Plan;
use config::plan::{DevicePlan, DiskPlan, NicPlan, SwitchPlan};
use control::mode::Mode;

use super::error::StartError;
use crate::api::Calls;
use crate::opening::open::take_in;
use crate::opening::shut::Shut;
use crate::poll::Token;
use crate::remote::Remote;
use crate::rooms::Rooms;
use crate::state::{self, SeenImages};
use crate::upgrade::launcher::Launcher;

/// Opens all that is planned, and what is kept beside that.
///
/// # Errors
/// What could not be opened, and what to do.
pub(crate) fn open_all(
    rooms: &mut Rooms,
    calls: &Calls,
    plan: Plan,
    mode: Mode,
) -> Result<(), StartError> {
    let mut all = plan.clone();
    // Before anything is opened.
    let mut kept = state::plan_kept(&rooms.state, &mut all)?;
    let images = kept.images.take();
    rooms.state.staged = std::mem::take(&mut kept.staged);
    // All that is planned is, so that nothing is taken for gone which is opened last.
    let Plan { disks, switches, nics, groups, .. } = &mut rooms.plan;
    (*disks, *switches) = (all.disks.clone(), all.switches.clone());
    (*nics, *groups) = (all.nics.clone(), all.groups.clone());
    rooms.state.seen = SeenImages::of(images, &all, |disk| rooms.bonds.remember(disk));
    for (index, core) in rooms.cores.handles().enumerate() {
        rooms.poll.add(core.event_fd(), Token::Core(index as u32)).map_err(StartError::Loop)?;
    }
    rooms.poll.add(calls.wake_fd(), Token::Calls).map_err(StartError::Loop)?;
    if let Some(fd) = rooms.openers.wake_fd() {
        rooms.poll.add(fd, Token::Openers).map_err(StartError::Loop)?;
    }
    let launchers = rooms.options.launcher.iter().flat_map(Launcher::ends);
    for (at, end) in launchers.enumerate() {
        rooms.poll.add(end, Token::Launcher(at as u32)).map_err(StartError::Loop)?;
    }
    rooms.have_links(mode, |remote, around| remote.begin_links(&plan.links, around))?;
    match &mut rooms.estate {
        // Another process has them until this one serves.
        Some(estate) => {
            let known = std::mem::take(&mut estate.known);
            rooms.remote.know_as_before(estate.run, &known);
        }
        None => rooms.have_links(mode, Remote::open_links),
    }
    // With what is kept of them.
    let of_file: Vec<DiskPlan> = all.disks.into_iter().take(plan.disks.len()).collect();
    take_in_all((of_file, plan.switches, plan.nics), rooms, mode)?;
    take_in_all((kept.disks, kept.switches, kept.nics), rooms, mode)?;
    match rooms.estate {
        // What it serves is open, and the rest is opened later.
        Some(_) => refuse_if_served_is_shut(rooms),
        None => {
            rooms.network.find_left_taps(rooms.turn.now());
            rooms.open_ports(mode);
            Ok(())
        }
    }
}

/// A device that a predecessor serves must not end by being taken over.
fn refuse_if_served_is_shut(rooms: &mut Rooms) -> Result<(), StartError> {
    let Some(estate) = &mut rooms.estate else { return Ok(()) };
    let is_served = |shut: &&Shut| estate.device_of(shut.plan()).is_some();
    match rooms.shut.iter().find(is_served) {
        Some(shut) => {
            let (name, problem) = (shut.plan().name(), shut.problem().to_string());
            Err(StartError::NotTakenOver { name, problem })
        }
        None => Ok(()),
    }
}

/// Devices and switches of the file, or those that were made through the API before.
fn take_in_all(
    (disks, switches, nics): (Vec<DiskPlan>, Vec<SwitchPlan>, Vec<NicPlan>),
    rooms: &mut Rooms,
    mode: Mode,
) -> Result<(), StartError> {
    for disk in disks {
        take_in(DevicePlan::Disk(disk), rooms, mode);
    }
    for switch in switches {
        let id = switch.id.clone();
        let (network, mut around) = rooms.network();
        let served = network.serve_switch(switch, Vec::new(), &mut around);
        served.map_err(|source| StartError::Switch { id, source })?;
    }
    for nic in nics {
        take_in(DevicePlan::Nic(nic), rooms, mode);
    }
    Ok(())
}
