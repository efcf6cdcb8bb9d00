//! What will run: a spec with every default filled in and every mistake refused.
//!
//! [`load`] makes a [`Plan`] of the configuration file; [`Plan::disk_from_api`] and its like make one
//! device more. A plan that exists is sound: names, sockets, images and interfaces are distinct, sizes
//! fit, cpus and switches are there.
//! Not here: whether an image can be opened or a socket made; only trying tells.

use std::collections::HashSet;

use crate::api::{ApiError, ErrorKind};
use crate::mistake::{Mistake, Path, Refusal};
use crate::near::Near;
use crate::read::Document;
use crate::size::Size;
use crate::spec::{
    BackendKind, Cache, DaemonSpec, DiskSpec, Format, LinkRole, Mode, OnFailure, Policy,
    SidecoresSpec, SocketRights, Spec, Urgency,
};
use cpus::HostCpus;

mod device;
mod disk;
mod from_api;
mod group;
mod limit;
mod link;
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
pub use names::Origin;
pub use nic::{NicPeer, NicPlan};
pub use policy::{Policies, PolicyPlan};
pub use port::{HostPlan, NullPlan, VlanPlan};
pub use service::ServicePlan;
pub(crate) use stages::wrong_with_kept;
pub use stages::{FaultOps, FaultPlan, StagePlan, StagesPlan, TracePlan};
pub use switch::{SwitchPlan, UplinkPlan};

/// Longest path of a Unix socket, in bytes: `sun_path` without the final NUL.
pub const SOCKET_PATH_MAX: usize = 107;

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

/// Reads a configuration file's text into a plan.
///
/// `file` is its name for messages, `folder` the absolute path that relative paths start from.
/// `running` is the plan in force, at a reload: what it has from the API stays and may not
/// clash with the file's, and its `[daemon]` decides the default sockets until a restart.
pub fn load(
    text: &str,
    file: &str,
    folder: &str,
    host: &HostCpus,
    running: Option<&Plan>,
) -> Result<Plan, Refusal> {
    let document = Document::parse(text, file)?;
    let mut mistakes = Vec::new();
    let plan = resolve(&document, folder, host, running, &mut mistakes);
    match plan {
        Some(plan) if mistakes.is_empty() => Ok(plan),
        _ => Err(document.refuse(mistakes)),
    }
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

/// What devices take from the rest of the spec.
pub(crate) struct Defaults<'a> {
    pub(crate) daemon: &'a DaemonSpec,
    pub(crate) policies: Policies,
    pub(crate) groups: &'a [GroupPlan],
    pub(crate) near_groups: Near<'a>,
    pub(crate) links: &'a [LinkPlan],
    /// Those whose role is that of a client.
    pub(crate) near_links: Near<'a>,
    /// Links of the file that have mistakes, and so are none of those.
    pub(crate) mistaken_links: HashSet<&'a str>,
}

impl<'a> Defaults<'a> {
    fn of(
        (daemon, policies): (&'a DaemonSpec, Policies),
        groups: &'a [GroupPlan],
        (links, mistaken_links): (&'a [LinkPlan], HashSet<&'a str>),
    ) -> Defaults<'a> {
        let clients = links.iter().filter(|link| link.role() == LinkRole::Client);
        let near_links = Near::of(clients.map(|link| link.id.as_str()));
        let near_groups = Near::of(groups.iter().map(|group| group.id.as_str()));
        Defaults { daemon, policies, groups, near_groups, links, near_links, mistaken_links }
    }
}

fn resolve(
    document: &Document,
    folder: &str,
    host: &HostCpus,
    running: Option<&Plan>,
    mistakes: &mut Vec<Mistake>,
) -> Option<Plan> {
    let Spec { daemon, sidecores, .. } = &document.spec;
    let daemon = resolve_daemon(daemon, folder, mistakes);
    let in_force = in_force(&daemon, running);
    let groups = group::resolve_all(document, running, mistakes);
    let at = Path::root().key("sidecores");
    let policies = policy::resolve(&document.spec.sidecores, &at, mistakes);
    let origin =
        |at: &Path| Origin::File { file: document.file().to_string(), line: document.line_of(at) };
    let links = link::resolve_all(&document.spec.link, folder, origin, mistakes);
    // What devices may name is what runs: links come and go with an upgrade only.
    let usable = running.map_or(&links, |plan| &plan.links);
    let mistaken_links = link::mistaken(&document.spec.link, &links);
    let defaults = Defaults::of((&in_force, policies), &groups, (usable, mistaken_links));
    let sidecores = resolve_sidecores(sidecores, policies, host, mistakes);
    let reading = reading::Reading { document, folder, defaults, running };
    let devices = reading.devices(mistakes)?;
    let (disks, switches, nics) = (devices.disks, devices.switches, devices.nics);
    link::check_disks(&links, &disks, &document.spec.link, mistakes);
    link::check_nics(&links, &switches, &document.spec.link, mistakes);
    Some(Plan { daemon, sidecores: sidecores?, disks, groups, switches, nics, links })
}

fn resolve_daemon(spec: &DaemonSpec, folder: &str, mistakes: &mut Vec<Mistake>) -> DaemonSpec {
    let at = Path::root().key("daemon");
    let mut path = |written: &str, key: &str, longest: usize| {
        let is_socket = key.starts_with("api");
        let absolute = if is_socket { names::absolute_file } else { names::absolute };
        absolute(written, Some(folder), longest, &at.key(key), mistakes).unwrap_or_default()
    };
    let image_folders = spec.image_folders.iter();
    let image_folders =
        image_folders.map(|folder| path(folder, "image_folders", disk::PATH_MAX)).collect();
    let daemon = DaemonSpec {
        image_folders,
        api: path(&spec.api, "api", SOCKET_PATH_MAX),
        api_read: spec.api_read.as_ref().map(|read| path(read, "api_read", SOCKET_PATH_MAX)),
        run_dir: path(&spec.run_dir, "run_dir", disk::PATH_MAX),
        state_dir: path(&spec.state_dir, "state_dir", disk::PATH_MAX),
        ..spec.clone()
    };
    if daemon.api_read.as_ref() == Some(&daemon.api) {
        let wrong = format!("{:?} is the socket of the API", daemon.api);
        let right = "give the socket that only shows a path of its own";
        mistakes.push(Mistake::new(at.key("api_read"), wrong, right));
    }
    rights::check_daemon(spec, &at, mistakes);
    daemon
}

/// What devices go by: paths are those of the running daemon, who may open sockets is the file's.
fn in_force(wanted: &DaemonSpec, running: Option<&Plan>) -> DaemonSpec {
    let Some(running) = running else { return wanted.clone() };
    let mut in_force = running.daemon.clone();
    in_force.follow_rights(wanted);
    in_force
}

fn resolve_sidecores(
    spec: &SidecoresSpec,
    policies: Policies,
    host: &HostCpus,
    mistakes: &mut Vec<Mistake>,
) -> Option<SidecoresPlan> {
    let at = Path::root().key("sidecores");
    let (candidates, suitable) = match spec.cpus.trim() {
        "auto" => (host.auto.clone(), usize::from(host.auto_count.max(1))),
        list => {
            let right = "write cpus such as \"2,3\" or \"2-5\", or \"auto\"";
            let cpus = cpus::parse(list)
                .map_err(|e| mistakes.push(Mistake::new(at.key("cpus"), e.to_string(), right)))
                .ok()?;
            let absent: Vec<u32> =
                cpus.iter().copied().filter(|cpu| !host.online.contains(cpu)).collect();
            if !absent.is_empty() {
                let wrong = format!("this host does not run cpu {}", cpus::format(&absent));
                let right = format!("its cpus are {}", cpus::format(&host.online));
                mistakes.push(Mistake::new(at.key("cpus"), wrong, right));
                return None;
            }
            let count = cpus.len();
            (cpus, count)
        }
    };
    let (min, max) = (spec.min.map_or(1, usize::from), spec.max.map(usize::from));
    if let Some(max) = max.filter(|max| *max < min) {
        let wrong = format!("min is {min}, but max is {max}");
        mistakes.push(Mistake::new(at.key("min"), wrong, "make min at most max"));
        return None;
    }
    let there = candidates.len();
    for (name, wanted) in [("min", Some(min)), ("max", max)] {
        // Without any cpu that is what is said, below.
        let Some(wanted) = wanted.filter(|wanted| *wanted > there && there > 0) else { continue };
        let are = if there == 1 { "is 1 cpu".to_string() } else { format!("are {there} cpus") };
        let wrong = format!("{name} is {wanted}, but there {are} to use");
        let right = match spec.cpus.trim() == "auto" && there < host.online.len() {
            true => format!(
                "lower {name}, or give more cpus: \"auto\" takes {there} here; write cpus = {:?}",
                cpus::format(&host.online)
            ),
            false => format!("lower {name}, or give more cpus"),
        };
        mistakes.push(Mistake::new(at.key(name), wrong, right));
        return None;
    }
    let count = max.unwrap_or(suitable.max(min)).min(there);
    let cpus: Vec<u32> = candidates.iter().copied().take(count).collect();
    if cpus.is_empty() {
        let right = "write the cpus to use, such as cpus = \"1\"";
        mistakes.push(Mistake::new(at.key("cpus"), "this host shows no cpu to use", right));
        return None;
    }
    let urgency = spec.urgency;
    Some(SidecoresPlan { cpus, candidates, max, min: min.max(1), policies, urgency })
}

#[cfg(test)]
mod tests;
