//! Sockets that are there, given to those of their plans: of devices that run, and of the API.
//!
//! Not here: what giving is (`rights`), and a socket that is made (`device`). Called by operators' calls, a reload,
//! and whoever takes over.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::Path;

use config::api::{ApiError, ErrorKind};
use config::plan::DevicePlan;
use config::spec::SocketRights;
use config::{Change, Plan};
use tracing::{info, warn};

use super::{Accounts, Rights, RightsError, UngivenError, check_at};
use crate::api::Listening;
use crate::devices::Devices;
use crate::devices::device::Device;
use crate::devices::device_plan::Facts;
use crate::rooms::Rooms;
use crate::sockets;

/// [`Rights::put`], or what leaves more as it is.
type How = fn(&Rights, &Path) -> Result<(), RightsError>;

/// Has the socket of a device that runs be opened by those of its plan.
///
/// # Errors
/// Why not, with the socket's name.
pub(crate) fn put(device: &mut Device, accounts: &mut Accounts) -> Result<(), UngivenError> {
    let put = put_as(device, Rights::put, accounts);
    if put.is_ok() {
        device.note_ungiven(None);
    }
    put
}

/// The same where no call is to be refused: until a reload can do it, that is shown.
///
/// # Errors
/// As [`put`], with the device's name.
pub(crate) fn put_or_show(
    device: &mut Device,
    accounts: &mut Accounts,
) -> Result<(), UngivenError> {
    let put = put(device, accounts);
    show(device, put)
}

fn show(device: &mut Device, put: Result<(), UngivenError>) -> Result<(), UngivenError> {
    let Err(error) = put else { return Ok(()) };
    device.note_ungiven(Some(format!(
        "{error}; it is opened by those who could before, until that is put right and reloaded"
    )));
    warn!(device = device.facts().id, "is opened by those who could before: {error}");
    Err(UngivenError::Named { name: device.plan().name(), source: Box::new(error) })
}

fn put_as(device: &Device, how: How, accounts: &mut Accounts) -> Result<(), UngivenError> {
    if device.listener().is_none() {
        // It has them when it listens.
        return Ok(());
    }
    let socket = &device.facts().socket;
    let put =
        Rights::of(&device.facts().rights, accounts).and_then(|it| how(&it, Path::new(socket)));
    put.map_err(|source| UngivenError::Device { socket: socket.clone(), source })
}

/// The same of the API's sockets. Why that could not be done is written into the log, and remembered.
fn put_api(
    listening: &mut Listening,
    plan: &Plan,
    how: How,
    accounts: &mut Accounts,
) -> Result<(), UngivenError> {
    let daemon = &plan.daemon;
    let read = daemon.api_read.as_ref().map(|read| (read, daemon.api_read_rights()));
    let read = read.filter(|_| listening.read.is_some());
    let mut sockets = [(&daemon.api, daemon.api_rights())].into_iter().chain(read);
    let put = sockets.try_for_each(|(path, written)| {
        let put = Rights::of(&written, accounts).and_then(|it| how(&it, Path::new(path)));
        put.map_err(|source| UngivenError::Api { path: path.clone(), source })
    });
    listening.is_ungiven = put.is_err();
    put.inspect_err(|error| warn!("{error}"))
}

/// After another process's sockets were taken over: its file may have been another. One that was removed meanwhile is
/// made again.
pub(crate) fn keep_all(listening: &mut Listening, rooms: &mut Rooms) {
    let Rooms { devices, plan, poll, turn, .. } = rooms;
    // What comes of it is in the log.
    let _ = listening.make_again(&plan.daemon, &mut turn.accounts);
    // It is in the log, and shown.
    let _ = put_api(listening, plan, Rights::keep, &mut turn.accounts);
    for device in devices.values_mut() {
        if device.has_lost_its_socket() {
            info!(device = device.facts().id, "its socket was removed, and is made again");
            device.make_socket_again(poll, turn);
        }
        let put = put_as(device, Rights::keep, &mut turn.accounts);
        let _ = show(device, put);
    }
}

/// That every user and group whom changes of a reload name is there, and that sockets can be given to them.
///
/// # Errors
/// Whose is not, and where it is declared.
pub(crate) fn check(
    changes: &[Change],
    wanted: &Plan,
    devices: &Devices,
    accounts: &mut Accounts,
) -> Result<(), ApiError> {
    let refuse = |whose: String, error: RightsError| {
        let hint = "put that right and reload again; nothing was changed";
        ApiError::new(ErrorKind::Refused, format!("{whose}: {error}"), hint)
    };
    let whose = |plan: &DevicePlan| format!("{} ({})", plan.name(), plan.origin());
    for change in changes {
        match change {
            Change::SetApiRights(_) => {
                let daemon = &wanted.daemon;
                let api = (daemon.api_rights(), Some(&daemon.api));
                for (rights, path) in [api, (daemon.api_read_rights(), daemon.api_read.as_ref())] {
                    let given = check_at(&rights, path, accounts)
                        .and_then(|()| may_give(&rights, path, accounts));
                    given.map_err(|error| refuse("[daemon]".to_string(), error))?;
                }
            }
            Change::Add(plan) => {
                let (socket, _, rights) = plan.socket();
                check_at(rights, Some(socket), accounts)
                    .map_err(|error| refuse(whose(plan), error))?;
            }
            Change::SetRights { id, .. } => {
                let Some(plan) = wanted.device(id) else { continue };
                let (socket, _, rights) = plan.socket();
                // What has no socket now is given it when it listens.
                let device = devices.number_of(id).and_then(|number| devices.get(number));
                let listens = device.is_some_and(|device| device.listener().is_some());
                check_at(rights, Some(socket), accounts)
                    .and_then(|()| may_give(rights, listens.then_some(socket), accounts))
                    .map_err(|error| refuse(whose(&plan), error))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Puts into force what [`check`] found possible, and what could not be done before; the plan is in force. What could
/// not be done, in words.
pub(crate) fn apply(
    changes: &[Change],
    listening: &mut Listening,
    devices: &mut Devices,
    plan: &Plan,
    accounts: &mut Accounts,
) -> Vec<String> {
    let mut failed = Vec::new();
    if listening.is_ungiven
        || changes.iter().any(|change| matches!(change, Change::SetApiRights(_)))
    {
        let put = put_api(listening, plan, Rights::put, accounts);
        failed.extend(put.err().map(|error| error.to_string()));
    }
    let changed = changes.iter().filter_map(|change| match change {
        Change::SetRights { id, .. } => Some(id.as_str()),
        _ => None,
    });
    let changed: HashSet<&str> = changed.collect();
    let is_due = |device: &&mut Device| {
        let is_due = device.ungiven().is_some() || changed.contains(device.facts().id.as_str());
        is_due && !device.is_going()
    };
    let due = devices.values_mut().filter(is_due);
    let put = due.filter_map(|device| put_or_show(device, accounts).err());
    failed.extend(put.map(|error| error.to_string()));
    failed
}

/// That this process may give a socket there to those who are written, if there is one.
fn may_give(
    written: &SocketRights,
    path: Option<&String>,
    accounts: &mut Accounts,
) -> Result<(), RightsError> {
    let Some(path) = path else { return Ok(()) };
    Rights::of(written, accounts)?.check_may_give(Path::new(path))
}

/// Gives a socket that listens to those who may open it from now on. Who could before, and has connected and not been
/// accepted, is sent away: what is served here now is another device.
///
/// # Errors
/// [`RightsError`]; the listener is nobody's then, since who could before may still wait there.
pub(crate) fn hand_on(
    listener: &OwnedFd,
    facts: &Facts,
    accounts: &mut Accounts,
) -> Result<(), RightsError> {
    Rights::of(&facts.rights, accounts)?.put(Path::new(&facts.socket))?;
    Ok(sockets::send_away(listener)?)
}
