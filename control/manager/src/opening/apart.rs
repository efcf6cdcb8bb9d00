//! That the sockets of a plan are as many as its devices: two paths may be one place, by `..`, `//` or a link.
//!
//! Places are compared as the kernel does, without a look at who listens there. Not here: paths that read the same
//! (`config`). Called by whoever checks a file, by a start for what is kept, and for operators.

use std::collections::HashMap;
use std::path::Path;

use config::Plan;
use config::api::{ApiError, ErrorKind};
use config::plan::{DeviceKind, DevicePlan, DiskPlan, NicPlan, Origin};
use names::{Spot, Spots};

/// Device whose socket is that of another one, or the API's.
#[derive(Debug, thiserror::Error)]
#[error("the socket {socket:?} is {whose}")]
pub struct SameSocket {
    /// Its kind.
    pub(crate) kind: DeviceKind,
    /// Its name.
    pub(crate) id: String,
    /// Where it is declared.
    pub(crate) origin: Origin,
    socket: String,
    /// Whose that socket is.
    whose: String,
}

impl SameSocket {
    /// What to do.
    fn hint(&self) -> String {
        format!("give each {} a socket of its own", self.kind.word())
    }
}

impl From<SameSocket> for ApiError {
    fn from(same: SameSocket) -> ApiError {
        ApiError::new(ErrorKind::Conflict, format!("socket: {same}"), same.hint())
    }
}

/// That no socket of `plan`, or of `more` beside it, is that of another device or the API's.
///
/// # Errors
/// The first that is.
pub(crate) fn check(plan: &Plan, more: Option<&DevicePlan>) -> Result<(), SameSocket> {
    let mut spots = Spots::default();
    let mut taken: HashMap<Spot, String> = HashMap::new();
    for api in std::iter::once(&plan.daemon.api).chain(&plan.daemon.api_read) {
        if let Some(spot) = spots.of(Path::new(api)) {
            taken.insert(spot, "the socket of the API".to_string());
        }
    }
    let disks = plan.disks.iter().map(one_disk);
    let more = more.into_iter().map(|plan| match plan {
        DevicePlan::Disk(disk) => one_disk(disk),
        DevicePlan::Nic(nic) => one_nic(nic),
    });
    for (kind, id, socket, origin) in disks.chain(plan.nics.iter().map(one_nic)).chain(more) {
        // What clients of a link have has none.
        if plan.link_of(id).is_some() {
            continue;
        }
        let Some(spot) = spots.of(Path::new(socket)) else { continue };
        let name = format!("that of {} {id:?} ({origin})", kind.word());
        if let Some(whose) = taken.insert(spot, name) {
            let (id, origin, socket) = (id.to_string(), origin.clone(), socket.to_string());
            return Err(SameSocket { kind, id, origin, socket, whose });
        }
    }
    Ok(())
}

type One<'a> = (DeviceKind, &'a str, &'a str, &'a Origin);

fn one_disk(disk: &DiskPlan) -> One<'_> {
    (DeviceKind::Disk, &disk.id, &disk.socket, &disk.origin)
}

fn one_nic(nic: &NicPlan) -> One<'_> {
    (DeviceKind::Nic, &nic.id, &nic.socket, &nic.origin)
}

/// Whether both paths are one place.
pub(crate) fn is_one(a: &str, b: &str) -> bool {
    let mut spots = Spots::default();
    let mut spot = |path: &str| spots.of(Path::new(path));
    a == b || spot(a).is_some_and(|here| Some(here) == spot(b))
}
