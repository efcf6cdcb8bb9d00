//! Opening devices: disks and NICs, in the order of what can be refused without having changed anything.
//!
//! Not here: what an image is opened by (`openers`), and how long that is tried (`shut`). Called at the start, by a
//! reload, and for operators.

use std::fmt;
use std::io;
use std::path::Path;

use config::plan::{DevicePlan, DiskPlan, Source};
use config::spec::Mode as SocketMode;
use config::{Plan, Size};
use confine::Landlock;
use control::mode::Mode;
use tracing::{info, warn};

use super::not_open::NotOpen;
use super::openers::Patience;
use super::shut::Shut;
use crate::devices::device::Device;
use crate::devices::device_plan::Facts;
use crate::devices::kind::Kind;
use crate::disk::DiskParts;
use crate::disk::images;
use crate::network::nic::NicParts;
use crate::poll::{DEVICES_END, Token};
use crate::rights::Rights;
use crate::rooms::Rooms;
use crate::sizes::misfit::Misfit;
use crate::sockets;
use crate::upgrade::estate::DeviceEstate;

/// Where the socket of a device comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Socket {
    /// It is made when the device is opened.
    Own,
    /// The device gets that of another one, which goes.
    OfAnother,
}

/// Opens a device and its socket, outside of the plan and of the loop.
///
/// # Errors
/// Why not; nothing was changed.
pub(crate) fn open(
    plan: DevicePlan,
    socket: Socket,
    rooms: &mut Rooms,
    mode: Mode,
) -> Result<Device, NotOpen> {
    let number = rooms.devices.next_number();
    if number >= DEVICES_END {
        let all = "this daemon has made all the devices it can name; restart it";
        return Err(NotOpen::Wrong(all.to_string()));
    }
    let inherited = rooms.estate.as_mut().and_then(|estate| estate.device_of(&plan));
    let promise = match &inherited {
        Some(_) => rooms.bounds.promise_again(&plan),
        None => rooms.bounds.promise(&plan).map_err(NotOpen::wrong)?,
    };
    let runs =
        |device: &&mut DeviceEstate| device.connections.iter().any(|connection| connection.runs);
    let has_guest = inherited.as_ref().is_some_and(runs);
    let is_exported = rooms.plan.link_of(plan.id()).is_some();
    let (listener, disk, is_up) = match inherited {
        Some(device) => {
            let is_up = device.words.nic.as_ref().map(|nic| nic.is_up);
            // One that a link serves has no socket: it is taken away when this process serves.
            let listener = device.listener.take_if(|_| !is_exported);
            (listener, device.take_disk(), is_up)
        }
        None => (None, None, None),
    };
    let inherited = plan.disk().filter(|_| disk.is_some());
    if let Some(why) = inherited.and_then(images::given_up) {
        return Err(NotOpen::Wrong(why));
    }
    // Of one that another machine has nothing comes but what its link knows.
    let is_remote = |plan: &DiskPlan| matches!(plan.source, Source::Remote { .. });
    let disk = disk.filter(|_| !plan.disk().is_some_and(is_remote));
    let mut begun = None;
    let mut device = match (plan, disk) {
        (DevicePlan::Disk(plan), Some((handles, facts, is_fenced))) => {
            let mut parts = DiskParts::inherit(plan, &facts, handles, &rooms.bonds)?;
            parts.locks.were_fenced(is_fenced);
            rooms.unsynced.recall(&mut parts);
            // Now, and not when its rings stand still.
            begun = has_guest.then(|| parts.bond.inherit()).flatten();
            Device::new(number, Facts::from(&parts.plan), Kind::Disk(parts))
        }
        (DevicePlan::Disk(plan), None) => open_disk(number, plan, rooms, mode)?,
        (DevicePlan::Nic(plan), _) => {
            let parts = NicParts::new(plan, None);
            is_up.into_iter().for_each(|is_up| parts.live().set_up(is_up));
            Device::new(number, Facts::from(parts.plan()), Kind::Nic(parts))
        }
    };
    if is_exported {
        device.export();
    }
    if let Some(image) = begun {
        device.keep_image(&image, &mut rooms.bonds, &rooms.plan);
    }
    listener.into_iter().for_each(|listener| device.listen_at(listener));
    device.promise(promise, &rooms.bounds);
    if let Err(why) = open_socket(&mut device, socket, rooms) {
        device.close_image(&mut rooms.openers, None);
        return Err(why);
    }
    rooms.devices.use_number();
    Ok(device)
}

/// That a device can listen where it is to, unless a socket there is passed on.
pub(crate) fn check_socket(
    plan: &DevicePlan,
    in_force: &Plan,
    is_passed_on: bool,
) -> Result<(), NotOpen> {
    let (socket, mode, _) = plan.socket();
    if mode != SocketMode::Listen || is_passed_on || in_force.link_of(plan.id()).is_some() {
        return Ok(());
    }
    sockets::check_name(Path::new(socket))
        .map_err(|why| NotOpen::Wrong(not_made(Path::new(socket), &why)))
}

/// Has a device that was opened listen, if it is to have a socket of its own that it has not.
fn open_socket(device: &mut Device, socket: Socket, rooms: &mut Rooms) -> Result<(), NotOpen> {
    let is_heir = rooms.estate.is_some();
    let listens = device.facts().mode == SocketMode::Listen && !device.is_off();
    let listens = listens && !device.is_exported() && socket == Socket::Own;
    let path = Path::new(&device.facts().socket);
    let of_socket = |error: &dyn fmt::Display| {
        NotOpen::Wrong(format!("its socket {}: {error}", path.display()))
    };
    // Also of an heir's, which is to be found wrong before it serves.
    let rights = Rights::of(&device.facts().rights, &mut rooms.turn.accounts);
    let rights = rights.map_err(|e| of_socket(&e))?;
    if socket == Socket::OfAnother {
        let given = rights.check_place(path).and_then(|()| rights.check_may_give(path));
        given.map_err(|e| of_socket(&e))?;
    }
    // An heir makes no socket that its predecessor has not: it listens when it serves.
    if listens && device.listener().is_none() && !is_heir {
        let listener = sockets::open_listener(path, &rights)
            .map_err(|why| NotOpen::Wrong(not_made(path, &why)))?;
        device.listen_at(listener);
    }
    Ok(())
}

/// Why a socket cannot be made there, in words. What landlock keeps it from has no reason that the kernel would give.
fn not_made(path: &Path, why: &io::Error) -> String {
    let is_kept = confine::confined().is_some_and(|it| it.landlock == Landlock::Folders);
    let more = match is_kept && why.kind() == io::ErrorKind::PermissionDenied {
        true => {
            "; with `image_folders` the daemon makes sockets only in `run_dir`, and where sockets were that its file \
             named when it was started"
        }
        false => "",
    };
    format!("its socket {}: {why}{more}", path.display())
}

fn open_disk(
    number: u32,
    plan: DiskPlan,
    rooms: &mut Rooms,
    mode: Mode,
) -> Result<Device, NotOpen> {
    if matches!(plan.source, Source::Remote { .. }) {
        let facts = Facts::from(&plan);
        let opened = rooms.have_links(mode, |remote, around| remote.open_remote(plan, around));
        let mut parts = opened?.bound(&rooms.bonds);
        let is_lost = rooms.unsynced.recall(&mut parts);
        if let Some(remote) = &mut parts.remote {
            remote.set_lost(is_lost);
        }
        return Ok(Device::new(number, facts, Kind::Disk(parts)));
    }
    let known = (rooms.was_there(&plan), rooms.unsynced.is_lost(&plan));
    let is_tried_again = rooms.shut.named(&plan.id).is_some();
    let patience = if is_tried_again { Patience::Again } else { Patience::First };
    let facts = Facts::from(&plan);
    let opened = DiskParts::open(plan, known, &rooms.bonds, &mut rooms.openers, patience);
    let mut parts = opened.map_err(|error| match error {
        (NotOpen::Ours(text), Some(file)) => NotOpen::Ours(rooms.devices.name_holder(text, file)),
        (error, _) => error,
    })?;
    if let Some(ours) = rooms.devices.shares_unlocked(&parts) {
        rooms.openers.undo(&parts.plan, parts.disk, parts.made, None);
        return Err(ours);
    }
    rooms.unsynced.recall(&mut parts);
    if parts.was_empty
        && let Some(path) = parts.plan.source.path()
    {
        warn!(disk = facts.id, "{path} was missing or empty; the disk is empty now");
    }
    if let Some(misfit) = Misfit::of_disk(&facts.id, &parts.disk) {
        let size = Size(parts.disk.size_bytes());
        warn!(disk = facts.id, "it has {size}, and {misfit}");
    }
    Ok(Device::new(number, facts, Kind::Disk(parts)))
}

/// Serves a device that was opened; its plan is in the plan or about to be.
///
/// # Errors
/// The control loop takes no more sockets, or the NIC has no port; the device is closed.
pub(crate) fn serve(mut device: Device, rooms: &mut Rooms, mode: Mode) -> Result<u32, NotOpen> {
    let number = device.number();
    if let Some(listener) = device.listener()
        && let Err(error) = rooms.poll.add(listener, Token::Listener(number))
    {
        discard(device, rooms);
        return Err(NotOpen::Wrong(format!("its socket: {error}")));
    }
    if let Some(failure) = device.disk().and_then(|disk| disk.disk.sync_failure_fd())
        && let Err(error) = rooms.poll.add(failure, Token::Unsynced(number))
    {
        discard(device, rooms);
        return Err(NotOpen::Wrong(format!("it cannot be watched: {error}")));
    }
    rooms.watch.wake();
    rooms.groups.meter(&mut device, &rooms.plan);
    device.plan_connect(rooms.turn.now());
    let plan = device.plan();
    rooms.devices.insert(number, device);
    let count = rooms.cores.count();
    let before = rooms.estate.as_mut().and_then(|estate| estate.home_of(&plan, count));
    let (network, mut around) = rooms.network();
    if let Err(error) = network.plug_in(number, before, &mut around) {
        if let Some(device) = rooms.devices.remove(number) {
            discard(device, rooms);
        }
        return Err(NotOpen::wrong(error));
    }
    if !mode.is_inheriting() {
        // That its image was cut, which the next start would not see.
        rooms.devices.keep_begun(number, &mut rooms.bonds, &rooms.plan);
    }
    rooms.have_links(mode, |remote, around| remote.export_disk(number, around));
    rooms.state.seen.look_again(rooms.turn.now());
    Ok(number)
}

/// Closes a device that could not be served. The socket of one that another daemon still serves stays
/// where it is.
fn discard(mut device: Device, rooms: &mut Rooms) {
    match rooms.estate {
        Some(_) => drop(device.take_listener()),
        None => device.close_socket(&rooms.poll),
    }
    device.close_image(&mut rooms.openers, None);
}

/// Takes a device of the plan in at the start: open when that can be, otherwise shut. One image
/// that is missing must not take every tenant down when the daemon starts again after a crash.
pub(crate) fn take_in(plan: DevicePlan, rooms: &mut Rooms, mode: Mode) {
    if let Some(estate) = &mut rooms.estate
        && estate.device_of(&plan).is_none()
    {
        // Nothing is opened by name before the predecessor has let go.
        let why = NotOpen::Late("waits until the daemon before this one has ended".to_string());
        return rooms.shut.insert(Shut::waiting_for(plan, &why, rooms.turn.now()));
    }
    let opened =
        open(plan.clone(), Socket::Own, rooms, mode).and_then(|device| serve(device, rooms, mode));
    if let Err(why) = opened {
        rooms.shut.insert(match why {
            NotOpen::Ended(_)
            | NotOpen::Hidden(_)
            | NotOpen::Late(_)
            | NotOpen::Living(_)
            | NotOpen::Landing(_) => Shut::waiting_for(plan, &why, rooms.turn.now()),
            NotOpen::Ours(_) | NotOpen::Unfit(_) | NotOpen::Wrong(_) => {
                Shut::failed(plan, why.to_string())
            }
        });
    }
}

/// Tries again what is due.
pub(crate) fn open_shut(rooms: &mut Rooms, mode: Mode) {
    let now = rooms.turn.now();
    for plan in rooms.shut.due(now) {
        open_again(plan, rooms, mode);
    }
}

fn open_again(plan: DevicePlan, rooms: &mut Rooms, mode: Mode) {
    let now = rooms.turn.now();
    let id = plan.id().to_string();
    let opened = open(plan, Socket::Own, rooms, mode).and_then(|device| serve(device, rooms, mode));
    let removing = rooms.devices.values().any(|device| device.is_going())
        || rooms.openers.is_closing()
        || rooms.remote.is_taking();
    match opened {
        Ok(_) => {
            rooms.shut.remove(&id);
            info!(device = id, "open now");
        }
        Err(why) if rooms.shut.still(&id, &why, removing, now) => {}
        Err(_) => rooms.turn.defects.note("device that is not open"),
    }
}

/// An image as far as names tell: a path, or a link and the name that a disk has at its IOhost.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct ImageName {
    link: Option<String>,
    name: String,
}

impl ImageName {
    /// That of a disk; of memory there is none, since each is its own.
    pub(crate) fn of(source: &Source) -> Option<ImageName> {
        match source {
            Source::Remote { link, name } => {
                Some(ImageName { link: Some(link.clone()), name: name.clone() })
            }
            source => source.path().map(|path| ImageName { link: None, name: path.to_string() }),
        }
    }
}

#[cfg(test)]
mod tests;
