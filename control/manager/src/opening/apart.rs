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

/// Where a socket is; one of which that cannot be told is where it reads the same.
#[derive(PartialEq, Eq, Hash)]
enum Place {
    At(Spot),
    Written(String),
}

/// Whose sockets are where. Each folder is asked for once, of however many devices: one socket is not compared with
/// each other one.
pub(crate) struct Sockets<T> {
    spots: Spots,
    whose: HashMap<Place, T>,
}

impl<T> Sockets<T> {
    /// Those; of one place, the first one's.
    pub(crate) fn of<'a>(sockets: impl IntoIterator<Item = (&'a str, T)>) -> Sockets<T> {
        let mut all = Sockets { spots: Spots::default(), whose: HashMap::new() };
        for (socket, whose) in sockets {
            let place = all.place(socket);
            all.whose.entry(place).or_insert(whose);
        }
        all
    }

    /// Whose the place of that socket is.
    pub(crate) fn at(&mut self, socket: &str) -> Option<&T> {
        let place = self.place(socket);
        self.whose.get(&place)
    }

    fn place(&mut self, socket: &str) -> Place {
        #[cfg(test)]
        LOOKS.with(|looks| looks.set(looks.get() + 1));
        let spot = self.spots.of(Path::new(socket));
        spot.map_or_else(|| Place::Written(socket.to_string()), Place::At)
    }
}

#[cfg(test)]
thread_local! {
    /// How often it was asked where a socket is.
    pub(crate) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_a_socket_is_goes_by_its_place_and_the_first_has_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().display().to_string();
        std::os::unix::fs::symlink(&root, format!("{root}/link")).expect("a link");
        let [a, b] = ["a.sock", "b.sock"].map(|name| format!("{root}/{name}"));
        let mut sockets = Sockets::of([(&*a, 1), (&*b, 2), (&*a, 3), ("", 4)]);
        assert_eq!(sockets.at(&format!("{root}/link/./a.sock")), Some(&1));
        assert_eq!(sockets.at(&format!("{root}//b.sock")), Some(&2));
        assert_eq!(sockets.at(&format!("{root}/c.sock")), None);
        // One that is at no place is itself all the same.
        assert_eq!(sockets.at(""), Some(&4));
        assert_eq!(sockets.at("/"), None);
    }
}
