//! A file's text as a plan: what lies beside the devices, and then these.
//!
//! Each kind of device is its own file's; what the API makes is `from_api`'s.

use super::defaults::Defaults;
use super::policy::Policies;
use super::reading::Reading;
use super::{Origin, Plan, SidecoresPlan, group, link, names, policy, rights};
use crate::mistake::{Mistake, Path, Refusal};
use crate::plan::names::{PATH_MAX, SOCKET_PATH_MAX};
use crate::read::Document;
use crate::spec::{DaemonSpec, SidecoresSpec, Spec};
use cpus::HostCpus;

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
    let groups = group::resolve_all(document, running.map_or(&[], |plan| &plan.groups), mistakes);
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
    let reading = Reading { document, folder, defaults, running };
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
        image_folders.map(|folder| path(folder, "image_folders", PATH_MAX)).collect();
    let daemon = DaemonSpec {
        image_folders,
        api: path(&spec.api, "api", SOCKET_PATH_MAX),
        api_read: spec.api_read.as_ref().map(|read| path(read, "api_read", SOCKET_PATH_MAX)),
        run_dir: path(&spec.run_dir, "run_dir", PATH_MAX),
        state_dir: path(&spec.state_dir, "state_dir", PATH_MAX),
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
