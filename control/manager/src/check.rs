//! What a start would refuse that is not in the file itself: for `serve --check`.
//!
//! Nothing stays open here, and nothing is made or locked. Called by the program; `begin` and `opening` do the same when they start.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};

use backend::net::{HostOpenError, Why};
use backend::{Disk, Holder, OpenError};
use config::api::BoundsView;
use config::plan::{DevicePlan, DiskPlan, LinkPlan};
use config::{HostPlan, Origin, Plan, Source};
use names::Refused;

use crate::api::listen;
use crate::bounds::{Bounds, BoundsError};
use crate::disk::bonds::{Bonds, Vetting};
use crate::disk::images::{self, ImageError, ImageNames};
use crate::opening::apart::{self, SameSocket};
use crate::opening::open::check_socket;
use crate::opening::openers::check_image;
use crate::remote::error::LinkKeyError;
use crate::remote::{self, party};
use crate::rights::{Accounts, Rights, RightsError};
use crate::state::{self, SeenImages, StateError, StateFile};

mod ports;

pub use crate::state::Keeper;
pub use ports::may_open;

/// Reason for which a start or a reload would be refused.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Interface that is missing, is no tap and is to be one, or cannot be looked for: in the words of who opens it.
    #[error("{0}")]
    Interface(#[from] HostOpenError),
    /// Address of a link.
    #[error("{0}")]
    Address(#[source] Box<dyn Error + Send + Sync>),
    /// The same, which somebody has.
    #[error("{0}")]
    AddressTaken(#[source] Box<dyn Error + Send + Sync>),
    /// Key of a link.
    #[error("{0}")]
    Key(#[from] LinkKeyError),
    /// Socket of two devices.
    #[error("{}: {} {:?}: {_0}", _0.origin, _0.kind.word(), _0.id)]
    Socket(#[source] Box<SameSocket>),
    /// Rights to the API's sockets.
    #[error("[daemon]: {0}")]
    ApiRights(#[source] RightsError),
    /// Rights to the socket of a device.
    #[error("{origin}: {kind} {id:?}: {source}")]
    Rights {
        /// Place of its declaration.
        origin: Origin,
        /// Its kind.
        kind: &'static str,
        /// Its name.
        id: String,
        /// Reason.
        source: Box<RightsError>,
    },
    /// Socket of the API.
    #[error("the API socket {path}: {source}")]
    Api {
        /// Its path.
        path: String,
        /// Reason.
        source: std::io::Error,
    },
    /// Socket of a device.
    #[error("{origin}: {name}: {why}")]
    DeviceSocket {
        /// Place of its declaration.
        origin: Origin,
        /// Its kind and name.
        name: String,
        /// Reason.
        why: String,
    },
    /// Folder in which nothing can be kept.
    #[error("nothing can be kept in `state_dir`: {0}")]
    StateDir(#[from] Refused),
    /// Devices that are kept.
    #[error("{0}")]
    Kept(#[from] StateError),
    /// Name of an image.
    #[error("{0}")]
    Image(#[from] ImageError),
    /// Image that does not open.
    #[error("{0}")]
    NotOpen(#[source] Box<dyn Error + Send + Sync>),
}

impl From<CheckError> for String {
    /// For the program, which prints it.
    fn from(error: CheckError) -> String {
        error.to_string()
    }
}

/// Whether this process's network namespace has that interface.
pub fn has_interface(name: &str) -> bool {
    backend::net::index_of(name).is_ok_and(|index| index.is_some())
}

/// That an interface is there, and that what is to be a tap is one if it is there. A tap may still be made.
///
/// # Errors
/// What a reload would say.
pub fn interface(host: &HostPlan) -> Result<(), CheckError> {
    let (HostPlan::Interface { name, .. } | HostPlan::Tap { name }) = host else { return Ok(()) };
    let index = index_of(name)?;
    let is_shown = index.is_some_and(|index| kernel_shows(name, index));
    match host {
        HostPlan::Tap { .. } if is_shown && kernel_says(name, "tun_flags").is_none() => {
            Err(refused("tap", name, Why::NotATap))
        }
        HostPlan::Interface { .. } if index.is_none() => {
            Err(refused("interface", name, Why::Missing))
        }
        _ => Ok(()),
    }
}

/// Whether the kernel's folder of that name is of the interface of that number: /sys may show another network namespace.
fn kernel_shows(name: &str, index: u32) -> bool {
    kernel_says(name, "ifindex").and_then(|text| text.trim().parse().ok()) == Some(index)
}

fn kernel_says(name: &str, file: &str) -> Option<String> {
    names::kernel_text(Path::new("/sys/class/net").join(name).join(file)).ok()
}

fn refused(kind: &'static str, name: &str, why: Why) -> CheckError {
    HostOpenError { kind, interface: name.to_string(), why }.into()
}

fn index_of(interface: &str) -> Result<Option<u32>, HostOpenError> {
    #[cfg(any(test, feature = "simulated"))]
    if let Some(machine) = crate::simulated::machine() {
        return machine.index_of(interface);
    }
    backend::net::index_of(interface)
}

/// That a link's key can be read, and is one.
///
/// # Errors
/// What a start would say.
pub fn link_key(link: &LinkPlan) -> Result<(), CheckError> {
    Ok(party::check_key(link)?)
}

/// That no two devices have one socket, however their paths are spelled.
///
/// # Errors
/// Which has that of which.
pub fn sockets(plan: &Plan) -> Result<(), CheckError> {
    apart::check(plan, None).map_err(|same| CheckError::Socket(Box::new(same)))
}

/// That every user and group is there who is to open a socket.
///
/// # Errors
/// Whose socket it is, and who is not there.
pub fn rights(plan: &Plan) -> Result<(), CheckError> {
    let (daemon, mut accounts) = (&plan.daemon, Accounts::default());
    for rights in [daemon.api_rights(), daemon.api_read_rights()] {
        Rights::of(&rights, &mut accounts).map_err(CheckError::ApiRights)?;
    }
    let disks = plan.disks.iter().map(|disk| ("disk", &disk.origin, &disk.id, &disk.rights));
    let nics = plan.nics.iter().map(|nic| ("nic", &nic.origin, &nic.id, &nic.rights));
    for (kind, origin, id, rights) in disks.chain(nics) {
        Rights::of(rights, &mut accounts).map_err(|source| {
            let (origin, id, source) = (origin.clone(), id.clone(), Box::new(source));
            CheckError::Rights { origin, kind, id, source }
        })?;
    }
    Ok(())
}

/// That a daemon could keep in `state_dir` what it has to, as far as a look tells whoever checks.
///
/// # Errors
/// What a start would say.
pub fn state_dir(plan: &Plan) -> Result<(), CheckError> {
    Ok(state::look_at(&plan.daemon.state_dir)?)
}

/// The plan of the file with what was made by command, and is kept in `state_dir`: all that a start serves.
///
/// # Errors
/// What a start would say: it cannot be read, or does not go with the file.
pub fn with_kept(plan: &Plan) -> Result<Plan, CheckError> {
    let state = StateFile::of_a_look(&plan.daemon.state_dir);
    let mut whole = plan.clone();
    state::plan_kept(&state, &mut whole)?;
    Ok(whole)
}

/// Who keeps its state where a daemon with that plan would, or did so last.
pub fn keeper(plan: &Plan) -> Option<Keeper> {
    Keeper::of(&plan.daemon.state_dir)
}

/// That the API's sockets could be made; with `but`, where that process listens.
///
/// # Errors
/// What a start would say.
pub fn api_sockets(plan: &Plan, but: Option<u32>) -> Result<(), CheckError> {
    let daemon = &plan.daemon;
    for path in [Some(&daemon.api), daemon.api_read.as_ref()].into_iter().flatten() {
        listen::check(Path::new(path), but)
            .map_err(|source| CheckError::Api { path: path.clone(), source })?;
    }
    Ok(())
}

/// That the sockets of all devices could be made, but those at `had`: a daemon listens there that the one of this plan
/// takes the place of.
///
/// # Errors
/// What a start would say of the first that could not be.
pub fn device_sockets(plan: &Plan, had: &[String]) -> Result<(), CheckError> {
    let had: BTreeSet<PathBuf> = had.iter().map(|path| names::real_name(Path::new(path))).collect();
    let disks = plan.disks.iter().cloned().map(DevicePlan::Disk);
    let nics = plan.nics.iter().cloned().map(DevicePlan::Nic);
    for device in disks.chain(nics) {
        let is_had = had.contains(&names::real_name(Path::new(device.socket().0)));
        check_socket(&device, plan, is_had).map_err(|why| CheckError::DeviceSocket {
            origin: device.origin().clone(),
            name: device.name(),
            why: why.to_string(),
        })?;
    }
    Ok(())
}

/// What is known of images before they are opened.
pub struct Images {
    bonds: Bonds,
    seen: SeenImages,
}

impl Images {
    /// What a daemon has kept in the `state_dir` of that plan.
    pub fn known_to(plan: &Plan) -> Images {
        let folder = &plan.daemon.state_dir;
        let bonds = Bonds::in_folder(folder);
        // That it cannot be read is found by `kept`.
        let kept = StateFile::of_a_look(folder).read().unwrap_or_default();
        let seen = SeenImages::of(kept.images, plan, |disk| bonds.remember(disk));
        Images { bonds, seen }
    }

    /// Why a missing image of that disk of the plan is not made anew, if so.
    pub fn is_gone(&self, disk: &DiskPlan, plan: &Plan) -> Option<String> {
        self.seen.has(disk, plan).then(|| images::is_gone(disk, images::is_among_devices(disk)))
    }

    /// That the name of a disk's image leads through no folder that others could change, and that this process can open
    /// what is there, or make one if nothing is. Whether another process holds it is known when it is served. Gives what
    /// its size does not fit, in words, which a start serves all the same.
    ///
    /// # Errors
    /// What a start would say.
    pub fn check(&self, disk: &DiskPlan) -> Result<Option<String>, CheckError> {
        image_name(disk)?;
        let vetting = Vetting::of(disk, &self.bonds, self.bonds.may_have_missed(false));
        match disk.source {
            Source::File { .. } => {
                let misfit = check_image(disk, &vetting);
                let misfit = misfit.map_err(|why| CheckError::NotOpen(why.into()))?;
                Ok(misfit.map(|misfit| misfit.refusal().error))
            }
            Source::Null { .. } | Source::Memory { .. } | Source::Remote { .. } => Ok(None),
        }
    }
}

/// That the name of a disk's image leads through no folder that others could change.
///
/// # Errors
/// Which step of it does.
pub fn image_name(disk: &DiskPlan) -> Result<(), CheckError> {
    Ok(images::check(disk)?)
}

/// What to do about an image that is missing, if it is a device: it is never made.
pub fn to_activate(disk: &DiskPlan) -> Option<&'static str> {
    images::is_among_devices(disk).then_some(names::ACTIVATE)
}

/// That nobody has locked the image of a disk, but process `but`, which serves it. One that may move is served when the
/// other host's daemon has let it go. Whose lock it is may not be seen; it is that one's where it says that it has the
/// image locked (`may_have`).
///
/// # Errors
/// What a start would say.
pub fn image_is_free(disk: &DiskPlan, but: Option<u32>, may_have: bool) -> Result<(), CheckError> {
    if disk.migratable || !matches!(disk.source, Source::File { .. }) {
        return Ok(());
    }
    match Disk::is_free(&images::source_of(disk), &ImageNames::of(disk)) {
        Err(OpenError::Held { holder, .. }) if is_its(&holder, but, may_have) => Ok(()),
        free => free.map_err(|why| CheckError::NotOpen(why.into())),
    }
}

/// Whether what `holder` has locked is process `but`'s. Locks as only others have them are none of a daemon's, whatever it
/// says: an image that was put in the place of its own has the same name.
fn is_its(holder: &Holder, but: Option<u32>, may_have: bool) -> bool {
    match holder {
        Holder::Living(pid) => but == Some(*pid),
        Holder::Ended(_) | Holder::Heir { .. } => but.is_some() && may_have,
        Holder::Hidden => false,
    }
}

/// That nobody has the tap open that a port is to be on.
///
/// # Errors
/// What a start would say.
pub fn tap_is_free(host: &HostPlan) -> Result<(), CheckError> {
    match host {
        HostPlan::Tap { name } if backend::net::is_tap_taken(name) => {
            Err(refused("tap", name, Why::TapInUse))
        }
        _ => Ok(()),
    }
}

/// That the address of a link of an IOhost is to be had. It is had for a moment, of UDP.
///
/// # Errors
/// What a start would say.
pub fn link_address(link: &LinkPlan) -> Result<(), CheckError> {
    if link.udp().is_none() {
        return Ok(());
    }
    remote::sockets::check(link).map_err(|why| match why.is_of_others() {
        true => CheckError::AddressTaken(why.into()),
        false => CheckError::Address(why.into()),
    })
}

/// That each device of the plan can be promised what it may take, one after the other as at a start.
///
/// # Errors
/// Where the first one is written for which too little is left, its name, and of what.
pub fn bounds(plan: &Plan) -> Result<BoundsView, (Origin, String, BoundsError)> {
    let uplinks = plan.switches.iter().map(|switch| switch.uplinks.len()).sum();
    promised(plan, &Bounds::of_a_start(plan.sidecores.cpus.len(), uplinks))
}

fn promised(plan: &Plan, bounds: &Bounds) -> Result<BoundsView, (Origin, String, BoundsError)> {
    let disks = plan.disks.iter().cloned().map(DevicePlan::Disk);
    let nics = plan.nics.iter().cloned().map(DevicePlan::Nic);
    let mut claims = Vec::new();
    for device in disks.chain(nics) {
        let claim = bounds.promise(&device);
        claims.push(claim.map_err(|why| (device.origin().clone(), device.name(), why))?);
    }
    Ok(bounds.view())
}

#[cfg(test)]
mod tests {
    use config::plan::load;
    use cpus::HostCpus;

    use super::*;

    #[test]
    fn an_image_that_somebody_else_has_locked_is_not_taken_for_the_daemons() {
        let heir = Holder::Heir { maker: 5, pid: 7 };
        let cases = [
            (Holder::Living(7), Some(7), false, true),
            (Holder::Living(8), Some(7), true, false),
            (Holder::Ended(None), Some(7), true, true),
            (Holder::Ended(Some(5)), Some(7), false, false),
            (heir, Some(7), true, true),
            (heir, None, true, false),
            // Another image by the name of the daemon's: QEMU's, which shows nobody what it has.
            (Holder::Hidden, Some(7), true, false),
        ];
        for (holder, but, may_have, expected) in cases {
            assert_eq!(is_its(&holder, but, may_have), expected, "{holder:?} {but:?} {may_have}");
        }
    }

    #[test]
    fn the_first_device_that_does_not_fit_is_named() {
        let host = HostCpus { online: vec![0], auto: vec![0], auto_count: 1 };
        let disk = |id: &str| format!("[[disk]]\nid = {id:?}\npath = \"/{id}\"\n");
        let text = format!("{}{}[[nic]]\nid = \"n\"\ntap = \"t\"\n", disk("a"), disk("b"));
        let plan = load(&text, "f", "/etc", &host, None).unwrap();
        // 17 for each disk, and 13 + 4 * 2 + 5 for the NIC.
        let view = promised(&plan, &Bounds::with_descriptors(60)).unwrap();
        assert_eq!((view.devices, view.descriptors.promised), (3, 60));
        let (origin, device, why) = promised(&plan, &Bounds::with_descriptors(59)).unwrap_err();
        assert_eq!((origin.to_string(), device), ("f:7".to_string(), "nic \"n\"".to_string()));
        let expected = "it may take 26 descriptors, and of 59 only 25 are left beside what 2 devices and the \
                        daemon itself may take: raise LimitNOFILE in the unit (`ulimit -Hn`), or give \
                        devices fewer queues";
        assert_eq!(why.to_string(), expected);
    }
}
