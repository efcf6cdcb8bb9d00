//! What will run: a spec with every default filled in and every mistake refused.
//!
//! [`load`] makes a [`Plan`] of the configuration file; [`Plan::disk_from_api`] and its like make one
//! device more. A plan that exists is sound: names, sockets, images and interfaces are distinct, sizes
//! fit, cpus and switches are there.
//! Not here: whether an image can be opened or a socket made; only trying tells.

use crate::api::{ApiError, ErrorKind};
use crate::mistake::Mistake;
use crate::spec::{DaemonSpec, SocketRights, Urgency};

mod defaults;
mod device;
mod disk;
mod from_api;
mod group;
mod limit;
mod link;
mod load;
mod names;
mod network;
mod nic;
mod policy;
mod port;
mod reading;
mod rights;
mod service;
mod stages;
mod switch;

pub use device::{DeviceKind, DevicePlan};
pub use disk::{DiskPlan, Source};
pub use group::GroupPlan;
pub use limit::LimitPlan;
pub use link::{LinkAt, LinkClientPlan, LinkEnd, LinkInterface, LinkPeer, LinkPlan};
pub use load::load;
pub use names::{Origin, SOCKET_PATH_MAX};
pub use nic::{NicPeer, NicPlan};
pub use policy::{Policies, PolicyPlan};
pub use port::{HostPlan, NullPlan, VlanPlan};
pub use service::ServicePlan;
pub(crate) use stages::wrong_with_kept;
pub use stages::{FaultOps, FaultPlan, StagePlan, StagesPlan, TracePlan};
pub use switch::{SwitchPlan, UplinkPlan};

/// What will run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Sockets and state; every path absolute.
    pub daemon: DaemonSpec,
    /// The cores that do the work.
    pub sidecores: SidecoresPlan,
    /// The disks: those of the file in its order, then those made through the API.
    pub disks: Vec<DiskPlan>,
    /// The groups, in the same order. That of each disk and NIC is among them.
    pub groups: Vec<GroupPlan>,
    /// The switches, in the same order.
    pub switches: Vec<SwitchPlan>,
    /// The NICs, in the same order. Each one's switch is among `switches`.
    pub nics: Vec<NicPlan>,
    /// The links, all of the file.
    pub links: Vec<LinkPlan>,
}

/// The cores that do the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidecoresPlan {
    /// One sidecore for each, pinned to it. Never empty.
    pub cpus: Vec<u32>,
    /// What `cpus` names: those above are the first of them.
    pub candidates: Vec<u32>,
    /// `max`, if it was written.
    pub max: Option<usize>,
    /// So many of them are in use at least: 1 to all.
    pub min: usize,
    /// What policies mean, and that of devices that have none of their own.
    pub policies: Policies,
    /// Whether queues that ask little may interrupt others.
    pub urgency: Urgency,
}

impl Plan {
    /// The disk of that name.
    pub fn disk(&self, id: &str) -> Option<&DiskPlan> {
        self.disks.iter().find(|disk| disk.id == id)
    }

    /// The link of that name.
    pub fn link(&self, id: &str) -> Option<&LinkPlan> {
        self.links.iter().find(|link| link.id == id)
    }

    /// The link by which clients may have this disk, which then has no socket.
    pub fn link_of(&self, disk: &str) -> Option<&LinkPlan> {
        let has = |link: &&LinkPlan| {
            link.clients().iter().any(|client| client.disks.iter().any(|id| id == disk))
        };
        self.links.iter().find(has)
    }

    /// Whether the socket of the API or of a device is another user's or group's than the daemon's own.
    pub fn gives_sockets_away(&self) -> bool {
        let daemon = [self.daemon.api_rights(), self.daemon.api_read_rights()];
        let of_daemon = daemon.iter().any(SocketRights::names_somebody);
        let [owner, group] = [&self.daemon.socket_owner, &self.daemon.socket_group];
        let of_devices = self.disks.iter().map(|disk| &disk.rights);
        let mut of_devices = of_devices.chain(self.nics.iter().map(|nic| &nic.rights));
        of_daemon
            || owner.is_some()
            || group.is_some()
            || of_devices.any(SocketRights::names_somebody)
    }

    /// The switch of that name.
    pub fn switch(&self, id: &str) -> Option<&SwitchPlan> {
        self.switches.iter().find(|switch| switch.id == id)
    }

    /// The NIC of that name.
    pub fn nic(&self, id: &str) -> Option<&NicPlan> {
        self.nics.iter().find(|nic| nic.id == id)
    }

    /// Whether an uplink, or a NIC's wire, is on that interface.
    pub fn is_on(&self, interface: &str) -> bool {
        let uplinks = self.switches.iter().flat_map(|switch| &switch.uplinks);
        let hosts = uplinks.map(|uplink| &uplink.host);
        let mut hosts = hosts.chain(self.nics.iter().filter_map(NicPlan::host));
        hosts.any(|host| host.interface() == Some(interface))
    }
}

/// Several mistakes as one refusal of the API.
pub fn api_error(kind: ErrorKind, mistakes: &[Mistake]) -> ApiError {
    let mut hints: Vec<&str> = Vec::new();
    for mistake in mistakes {
        if !mistake.right.is_empty() && !hints.contains(&mistake.right.as_str()) {
            hints.push(&mistake.right);
        }
    }
    if hints.is_empty() {
        hints.push("/openapi.json describes every request and its body");
    }
    let errors: Vec<String> = mistakes.iter().map(Mistake::to_string).collect();
    ApiError::new(kind, errors.join("; "), hints.join("; "))
}

#[cfg(test)]
mod tests;
