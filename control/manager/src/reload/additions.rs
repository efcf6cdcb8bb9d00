//! Whether what a reload adds could be opened, as far as can be told without opening anything for good.
//!
//! Not here: opening it (`prepare`).

use std::collections::HashMap;

use config::api::{ApiError, ErrorKind};
use config::plan::{DevicePlan, DiskPlan, Source};
use config::{Change, HostPlan};

use super::growing::Growing;
use crate::bounds::Claim;
use crate::check;
use crate::devices::Devices;
use crate::disk::images::{self, FileId};
use crate::network::reload::{Wanted, wanted};
use crate::opening::apart::Sockets;
use crate::opening::not_open::NotOpen;
use crate::opening::open::{ImageName, check_socket};
use crate::opening::openers::{Lies, Looked};
use crate::rooms::Rooms;
use crate::sizes::misfit::{Misfit, is_same_part};

/// What to do about what cannot be opened.
const PUT_RIGHT: &str = "put that right and reload again; nothing was changed";

/// A device that goes.
struct Gone {
    plan: DevicePlan,
    socket: String,
    /// What its image is, whatever its name.
    file: Option<FileId>,
}

/// The devices that are open and go, by what others may have in common with them. Each is looked up: a file may
/// have thousands of them made anew.
pub(super) struct Going {
    all: Vec<Gone>,
    by_id: HashMap<String, usize>,
    by_file: HashMap<FileId, usize>,
    by_image: HashMap<ImageName, usize>,
    by_socket: Sockets<usize>,
}

impl Going {
    pub(super) fn of(changes: &[Change], devices: &Devices) -> Going {
        let gone = |change: &Change| {
            let Change::Remove { id, .. } = change else { return None };
            let device = devices.number_of(id).and_then(|number| devices.get(number))?;
            let (plan, socket) = (device.plan(), device.facts().socket.clone());
            let file = device.disk().and_then(|parts| parts.file);
            Some(Gone { plan, socket, file })
        };
        let all: Vec<Gone> = changes.iter().filter_map(gone).collect();
        let (mut by_id, mut by_file) = (HashMap::new(), HashMap::new());
        let mut by_image = HashMap::new();
        for (at, Gone { plan, file, .. }) in all.iter().enumerate() {
            by_id.insert(plan.id().to_string(), at);
            if let Some(file) = *file {
                by_file.entry(file).or_insert(at);
            }
            if let Some(image) = plan.disk().and_then(|disk| ImageName::of(&disk.source)) {
                by_image.entry(image).or_insert(at);
            }
        }
        let sockets = all.iter().enumerate().map(|(at, gone)| (gone.socket.as_str(), at));
        let by_socket = Sockets::of(sockets);
        Going { all, by_id, by_file, by_image, by_socket }
    }

    pub(super) fn plans(&self) -> impl Iterator<Item = &DevicePlan> {
        self.all.iter().map(|gone| &gone.plan)
    }

    /// The one of that name.
    pub(super) fn named(&self, id: &str) -> Option<&DevicePlan> {
        self.by_id.get(id).map(|at| &self.all[*at].plan)
    }

    /// Whether one listens where that socket is.
    pub(super) fn has_socket(&mut self, socket: &str) -> bool {
        self.by_socket.at(socket).is_some()
    }

    /// Whether a disk goes: then one may have the image of another that is added.
    pub(super) fn has_disks(&self) -> bool {
        self.all.iter().any(|gone| gone.plan.disk().is_some())
    }

    /// The first whose image is that file, or has that name.
    pub(super) fn with_image(&self, file: Option<FileId>, source: &Source) -> Option<&DevicePlan> {
        let is_file = file.and_then(|file| self.by_file.get(&file));
        let is_named = ImageName::of(source).and_then(|image| self.by_image.get(&image));
        is_file.into_iter().chain(is_named).min().map(|at| &self.all[*at].plan)
    }
}

/// Which devices have a file as their image.
type Holders = HashMap<FileId, Vec<u32>>;

/// What is to be known of disks that could be added.
#[derive(Default)]
pub(super) struct Additions {
    /// Those for which an empty image would be made.
    pub(super) made: Vec<String>,
    /// Those that only an operator who insists gives such a size.
    pub(super) misfits: Vec<Misfit>,
}

/// What a reload would refuse of what it adds, and that there is enough for that and for what devices that stay come to
/// need.
///
/// # Errors
/// The first that could not be opened, or for which too little is left.
pub(super) fn check(changes: &[Change], rooms: &mut Rooms) -> Result<Additions, ApiError> {
    let mut going = Going::of(changes, &rooms.devices);
    let growing = Growing::of(changes, &rooms.devices);
    rooms.bounds.lend(going.plans().chain(growing.before()));
    let checked = growing.promise(&rooms.bounds);
    let checked = checked.and_then(|promised| check_each(changes, &mut going, promised, rooms));
    rooms.bounds.lend([]);
    checked
}

fn check_each(
    changes: &[Change],
    going: &mut Going,
    mut promised: Vec<Claim>,
    rooms: &mut Rooms,
) -> Result<Additions, ApiError> {
    let Rooms { bounds, devices, openers, bonds, state, plan: in_force, .. } = rooms;
    let mut additions = Additions::default();
    let holders = holders(devices);
    for change in changes {
        let Change::Add(plan) = change else { continue };
        let checked = bounds.promise(plan).map_err(NotOpen::wrong).and_then(|promise| {
            promised.push(promise);
            match &**plan {
                DevicePlan::Disk(disk) => {
                    let Looked { lies, misfit } = openers.check(disk, bonds)?;
                    if lies == Lies::Nowhere && state.seen.has(disk, in_force) {
                        // A device that is missing was refused as such.
                        return Err(NotOpen::Wrong(images::is_gone(disk, false)));
                    }
                    additions.made.extend((lies == Lies::Nowhere).then(|| disk.id.clone()));
                    additions.misfits.extend(misfit.filter(|_| !has_that_part(disk, going)));
                    let goes = |id: &str| going.named(id).is_some();
                    check_disk(disk, lies, goes, (devices, &holders))
                }
                DevicePlan::Nic(nic) => nic.host().map_or(Ok(()), check_interface),
            }
        });
        let checked = checked.and_then(|()| {
            let is_passed_on = going.has_socket(plan.socket().0);
            check_socket(plan, in_force, is_passed_on)
        });
        checked.map_err(|why| refusal(plan, &why))?;
    }
    let uplinks = changes.iter().filter(|change| !matches!(change, Change::Add(_)));
    for Wanted { host, whose, .. } in uplinks.flat_map(wanted) {
        check_interface(&host).map_err(|why| {
            ApiError::new(ErrorKind::Refused, format!("{whose}: {why}"), PUT_RIGHT)
        })?;
    }
    Ok(additions)
}

/// Whether a disk that goes has what this one is to have, and as much of it: an operator has insisted on that.
fn has_that_part(disk: &DiskPlan, going: &Going) -> bool {
    let before = going.with_image(None, &disk.source).and_then(DevicePlan::disk);
    before.is_some_and(|before| is_same_part(&before.source, &disk.source))
}

fn holders(devices: &Devices) -> Holders {
    let mut holders = Holders::new();
    for device in devices.values().filter(|device| !device.is_going()) {
        let file = device.disk().and_then(|parts| parts.file);
        file.into_iter().for_each(|file| holders.entry(file).or_default().push(device.number()));
    }
    holders
}

fn check_disk(
    disk: &DiskPlan,
    lies: Lies,
    goes: impl Fn(&str) -> bool,
    (devices, holders): (&Devices, &Holders),
) -> Result<(), NotOpen> {
    let Some((path, file)) = disk.source.path().zip(lies.file()) else { return Ok(()) };
    let stays = |number: &&u32| {
        let Some(device) = devices.get(**number) else { return false };
        let both_read = disk.readonly && device.disk().is_some_and(|it| it.plan.readonly);
        !both_read && !goes(&device.facts().id)
    };
    match holders.get(&file).into_iter().flatten().find(stays) {
        Some(_) => Err(NotOpen::Ours(devices.name_holder(format!("{path} is in use"), file))),
        None => Ok(()),
    }
}

/// Refuses a reload for what cannot be opened.
pub(super) fn refusal(plan: &DevicePlan, why: &NotOpen) -> ApiError {
    let what = format!("{} ({}): {why}", plan.name(), plan.origin());
    let kind = match why {
        NotOpen::Ended(_) | NotOpen::Late(_) => ErrorKind::Busy,
        _ => ErrorKind::Refused,
    };
    ApiError::new(kind, what, PUT_RIGHT)
}

/// As [`check::interface`] says.
fn check_interface(host: &HostPlan) -> Result<(), NotOpen> {
    check::interface(host).map_err(NotOpen::wrong)
}
