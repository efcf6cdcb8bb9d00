//! A reload's changes, in their order: all of them in one event, since what differs was judged just before.
//!
//! Not here: what is waited for afterwards (`super`).

use std::collections::BTreeSet;
use std::time::Duration;

use config::api::{ApiError, EffectView, ReloadView};
use config::plan::DevicePlan;
use config::{Change, Size};
use control::mode::Mode;
use schedule::Nanos;
use sidecore::nanos_of;
use tracing::warn;

use super::late::Late;
use super::prepare::Prepared;
use super::wanted::Wanted;
use super::warn_of_restart;
use crate::api::Listening;
use crate::calls::{nics, removal};
use crate::devices::Devices;
use crate::network::reload::{Hosts, NotDone};
use crate::opening::open;
use crate::opening::shut::Shut;
use crate::rights::given;
use crate::rooms::Rooms;

/// How long the answer waits for disks that take over from others.
const TAKE_OVER_TIME_MAX: Duration = Duration::from_secs(10);

/// What a reload has done, and what is waited for.
pub(super) struct Applied {
    /// What is opened later.
    pub(super) late: Vec<Late>,
    /// Devices that are planned otherwise than before, or no more.
    pub(super) removed: BTreeSet<String>,
    /// Disks that get another size.
    pub(super) resizing: Vec<(u32, Size)>,
    pub(super) view: ReloadView,
    /// What else was done if all that is opened later is, in words.
    pub(super) reopened: Vec<String>,
    /// What could not be done though the rest was, in words.
    pub(super) undone: Vec<String>,
    /// How long that is waited for.
    pub(super) until: Nanos,
}

/// Reads the file, judges it, and opens what is new. Nothing is changed if that fails.
pub(super) fn prepare(
    force: bool,
    rooms: &mut Rooms,
    mode: Mode,
) -> Result<(Wanted, Vec<EffectView>, Prepared), ApiError> {
    let mut wanted = Wanted::read(rooms)?;
    let effects = wanted.judge(rooms, !force)?;
    // What is opened is opened for who may have it then.
    let links = std::mem::take(&mut wanted.links);
    let before = std::mem::replace(&mut rooms.plan.links, links);
    let prepared = Prepared::open(&wanted, rooms, mode);
    let prepared = prepared.inspect_err(|_| rooms.plan.links = before)?;
    Ok((wanted, effects, prepared))
}

/// Does what is different, in its order.
pub(super) fn apply(
    (wanted, effects, mut prepared): (Wanted, Vec<EffectView>, Prepared),
    listening: &mut Listening,
    rooms: &mut Rooms,
    mode: Mode,
) -> Applied {
    let Wanted { plan: mut wanted, changes, restart_needed, .. } = wanted;
    let mut view = ReloadView {
        file: rooms.options.file.clone(),
        changes: Vec::new(),
        restart_needed,
        not_open: Vec::new(),
        effects,
        dry_run: false,
        upgrade_needed: None,
    };
    prepared.take_sockets(rooms);
    let closed = closed(&changes, rooms);
    let switches = rooms.plan.switches.clone();
    let mut undone = Vec::new();
    for change in &changes {
        match apply_change(change, &mut prepared.hosts, rooms, mode) {
            Ok(()) => view.changes.push(change.to_string()),
            Err(why) => {
                warn!("not done: {why}");
                why.plan_as_before(&switches, &mut wanted.switches);
                undone.push(why.to_string());
            }
        }
    }
    // Lines may have moved without any change.
    for plan in &wanted.disks {
        rooms.set_plan(DevicePlan::Disk(plan.clone()));
    }
    for plan in &wanted.switches {
        rooms.switch_calls().set_plan(plan.clone());
    }
    for plan in &wanted.nics {
        rooms.set_plan(DevicePlan::Nic(plan.clone()));
    }
    rooms.plan.disks = wanted.disks;
    rooms.state.seen.look_again(rooms.turn.now());
    rooms.plan.switches = wanted.switches;
    rooms.plan.nics = wanted.nics;
    rooms.plan.groups = wanted.groups;
    rooms.plan.sidecores.policies = wanted.sidecores.policies;
    rooms.plan.daemon.follow_rights(&wanted.daemon);
    rooms.network.are_seen_to();
    rooms.services().set_changed(&changes);
    // Not before: one that is made anew is in no plan for a while.
    closed.iter().for_each(|id| rooms.unsynced.forget_gone(id, &rooms.plan));
    let Rooms { devices, plan, turn, .. } = &mut *rooms;
    undone.extend(given::apply(&changes, listening, devices, plan, &mut turn.accounts));
    // Those that could not be opened before.
    let is_shut = |late: &&Late| rooms.shut.named(late.plan.id()).is_some();
    let reopened = prepared.later.iter().filter(is_shut);
    let reopened = reopened.map(|late| format!("opened {}", late.plan.title())).collect();
    let late = serve(prepared, (&mut view, &mut undone), rooms, mode);
    warn_of_restart(&view);
    // From when its images were waited for.
    let until = nanos_of(rooms.turn.tick() + TAKE_OVER_TIME_MAX);
    let resizing = resizing(&changes, &rooms.devices);
    let removed = changes.iter().filter_map(removed).cloned().collect();
    Applied { late, removed, resizing, view, reopened, undone, until }
}

/// The devices that are removed and not open. One that is open is forgotten when it has gone.
fn closed(changes: &[Change], rooms: &Rooms) -> Vec<String> {
    let is_closed = |id: &&String| rooms.shut.named(id).is_some();
    changes.iter().filter_map(removed).filter(is_closed).cloned().collect()
}

fn removed(change: &Change) -> Option<&String> {
    match change {
        Change::Remove { id, .. } => Some(id),
        _ => None,
    }
}

/// The disks whose plans have other sizes now. One that is not open is opened with that size.
fn resizing(changes: &[Change], devices: &Devices) -> Vec<(u32, Size)> {
    let resized = |change: &Change| match change {
        Change::Resize { id, size_bytes } => {
            devices.number_of(id).map(|number| (number, Size(*size_bytes)))
        }
        _ => None,
    };
    changes.iter().filter_map(resized).collect()
}

/// Serves what was opened; what is opened later stands among what is not open until then.
fn serve(
    mut prepared: Prepared,
    (done, undone): (&mut ReloadView, &mut Vec<String>),
    rooms: &mut Rooms,
    mode: Mode,
) -> Vec<Late> {
    for mut device in prepared.opened {
        prepared.hosts.wire(&mut device);
        let plan = device.plan();
        // One that could not be opened before is open now.
        if rooms.shut.remove(plan.id()).is_some() {
            done.changes.push(format!("opened {}", plan.title()));
        }
        match open::serve(device, rooms, mode) {
            // It listens where another one did that had no socket, or with the listener of the one before.
            Ok(number) => {
                let Rooms { devices, turn, .. } = &mut *rooms;
                let device = devices.get_mut(number);
                let put = device.map(|device| given::put_or_show(device, &mut turn.accounts));
                undone.extend(put.and_then(Result::err).map(|error| error.to_string()));
                rooms.turn.touch(number);
            }
            Err(error) => {
                warn!(device = plan.id(), "cannot be served: {error}");
                undone.push(format!("{} cannot be served: {error}", plan.name()));
                rooms.shut.insert(Shut::failed(plan, error.to_string()));
            }
        }
    }
    for (plan, why) in prepared.still_shut {
        rooms.shut.insert(Shut::failed(plan, why.to_string()));
    }
    for Late { plan, why, .. } in &prepared.later {
        rooms.shut.insert(Shut::waiting_for(plan.clone(), why, rooms.turn.now()));
    }
    prepared.hosts.give_back(&rooms.network);
    prepared.later
}

/// # Errors
/// It is not done; the others are.
fn apply_change(
    change: &Change,
    hosts: &mut Hosts,
    rooms: &mut Rooms,
    mode: Mode,
) -> Result<(), NotDone> {
    match change {
        Change::SetClients { link, .. } => {
            rooms.have_links(mode, |remote, around| remote.set_link_clients(link, around));
            // Ports that waited for the right to have them.
            rooms.network.hasten(rooms.turn.now());
        }
        Change::Remove { id, .. } => match rooms.devices.number_of(id) {
            // It goes when its client has it no more.
            Some(number)
                if rooms.have_links(mode, |remote, around| {
                    remote.take_from_clients(number, around)
                }) => {}
            Some(number) => removal::begin(number, None, rooms, mode),
            None => removal::unplan_shut(id, rooms),
        },
        Change::Listen { id, .. } => {
            let number = rooms.devices.number_of(id);
            if let Some(device) = number.and_then(|number| rooms.devices.get_mut(number)) {
                device.make_socket_again(&rooms.poll, &mut rooms.turn);
            }
        }
        // Done when all plans are in force.
        Change::Set(device, _) => {
            device.nic().into_iter().for_each(|plan| nics::follow(plan, rooms));
            // Whether it is there was judged before.
            let promise = rooms.bounds.promise_again(device);
            if let Some(served) = rooms.devices.named_mut(device.id()) {
                served.promise_instead(promise);
            }
        }
        Change::SetRights { .. }
        | Change::SetApiRights(_)
        | Change::AddGroup(_)
        | Change::SetGroup(..)
        | Change::RemoveGroup { .. }
        | Change::Resize { .. }
        | Change::OwnSize { .. } => {}
        // Opened before, or shut until others are gone.
        Change::Add(_) => {}
        Change::RemoveUplink { .. }
        | Change::RemoveSwitch { .. }
        | Change::SetSwitch(..)
        | Change::SetUplink { .. }
        | Change::AddSwitch(_)
        | Change::AddUplink { .. } => return rooms.switch_calls().apply(change, hosts),
    }
    Ok(())
}
