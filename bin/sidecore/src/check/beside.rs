//! The daemon that runs with a file that is checked, or in whose place one with that file would be started.
//!
//! Nothing is locked and nothing changed. Not here: what that daemon would do with the file (`reload`).

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::Plan;
use config::api::{DaemonView, DiskList, LinkList, LinkView, NicList, PortKind, SwitchList};
use config::routes::Method;
use config::spec::LinkRole;
use manager::check::Keeper;

use super::Checker;
use crate::client::{Client, is_stopped};
use crate::failure::Failure;
use crate::process::Process;

/// A daemon that has the file's `api` or `state_dir`.
pub(super) struct Beside {
    /// As it says itself, else as the kernel shows it; 0 where neither is so.
    pub(super) pid: u32,
    /// It was started with this very file.
    pub(super) is_of_file: bool,
    pub(super) client: Client,
    /// Why it says nothing, if so.
    pub(super) silence: Option<Failure>,
}

/// What a daemon has that serves.
#[derive(Default)]
pub(super) struct Has {
    /// The sockets of its devices.
    pub(super) sockets: Vec<String>,
    /// The images that it has locked.
    pub(super) images: Vec<PathBuf>,
    /// The interfaces that its ports are on.
    pub(super) interfaces: BTreeSet<String>,
    /// What it says of the ports that are on none.
    pub(super) problems: Vec<String>,
    /// The addresses of its links that are open.
    pub(super) addresses: Vec<SocketAddr>,
}

impl Has {
    /// Whether it has locked the image of that name, by this or another one.
    pub(super) fn has_image(&self, path: &Path) -> bool {
        let id = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
        match id(path) {
            Some(file) => self.images.iter().any(|own| id(own) == Some(file)),
            // Neither is there, or to be seen.
            None => self.images.iter().any(|own| own == path),
        }
    }
}

impl Beside {
    /// The one that a daemon with that file would take the place of; nothing, where none runs that can be seen.
    ///
    /// # Errors
    /// What a start would say: another daemon has its `api`, its `api_read` or its `state_dir`.
    pub(super) fn of(
        path: &Path,
        plan: &Plan,
        limit: Option<Duration>,
    ) -> Result<Option<Beside>, Failure> {
        let keeper = manager::check::keeper(plan);
        let ask = |api: &str| Beside::at(api, path, limit);
        let keeps = |beside: &Beside| keeper.as_ref().is_some_and(|keeper| beside.keeps(keeper));
        let named =
            |beside: Beside| match keeper.as_ref().filter(|keeper| beside.is_unknown(keeper)) {
                Some(keeper) => Beside { pid: keeper.pid().unwrap_or(0), ..beside },
                None => beside,
            };
        let at_api = ask(&plan.daemon.api).map(named);
        let at_api = at_api.filter(|beside| beside.is_of_file || beside.pid == 0 || keeps(beside));
        // One of this file, with another `api` until it is started anew.
        let its = || {
            let keeper = keeper.as_ref()?;
            let api = keeper.api().filter(|api| *api != plan.daemon.api);
            api.and_then(ask).filter(|beside| beside.is_of_file)
        };
        let lost = || Beside::without_socket(keeper.as_ref()?, path, plan, limit);
        let Some(beside) = at_api.or_else(its).or_else(lost) else {
            if let Some(refusal) = keeper.and_then(Keeper::refusal) {
                return Err(Failure::host(refusal.to_string(), hint()));
            }
            manager::check::api_sockets(plan, None)
                .map_err(|error| Failure::host(error, hint()))?;
            return Ok(None);
        };
        beside.has_it_all(plan, keeper).map_err(|why| Checker::of(Some(&beside)).told(why))?;
        Ok(Some(beside))
    }

    /// That nobody else has what a daemon with this plan would have in its place.
    fn has_it_all(&self, plan: &Plan, keeper: Option<Keeper>) -> Result<(), Failure> {
        let of_another = keeper.filter(|keeper| keeper.pid().is_some() && !self.keeps(keeper));
        if let Some(refusal) = of_another.and_then(Keeper::refusal) {
            return Err(Failure::host(refusal.to_string(), hint()));
        }
        // Of one that is silent it is known whose socket that is.
        if self.silence.is_some() && self.client.socket() == plan.daemon.api {
            return Ok(());
        }
        manager::check::api_sockets(plan, Some(self.seen()))
            .map_err(|error| Failure::host(error, hint()))
    }

    /// The daemon at that socket, if one is there.
    fn at(api: &str, path: &Path, limit: Option<Duration>) -> Option<Beside> {
        let client = Client::new(api.to_string()).within(limit);
        let asked = client.ask::<DaemonView>(Method::Get, "/v1/daemon");
        let seen = client.number_of(0);
        match asked {
            Ok(DaemonView { pid, file, .. }) => {
                let is_of_file = is_same(path, Path::new(&file));
                Some(Beside { pid, is_of_file, client, silence: None })
            }
            Err(failure @ (Failure::Silent { .. } | Failure::Refused(_))) => {
                let is_of_file = runs_with(seen, path);
                Some(Beside { pid: seen, is_of_file, client, silence: Some(failure) })
            }
            Err(failure) if client.unreached() == Some(ErrorKind::PermissionDenied) => {
                Some(Beside { pid: 0, is_of_file: false, client, silence: Some(failure) })
            }
            // Nobody, or no daemon.
            Err(_) => None,
        }
    }

    /// The one that has the `state_dir`, and whose API nobody finds at its socket.
    fn without_socket(
        keeper: &Keeper,
        path: &Path,
        plan: &Plan,
        limit: Option<Duration>,
    ) -> Option<Beside> {
        let (pid, api) = (keeper.pid()?, keeper.api()?);
        let is_of_file = runs_with(pid, path);
        let client = Client::new(api.to_string()).within(limit);
        let is_gone = || {
            let asked = client.ask::<DaemonView>(Method::Get, "/v1/daemon");
            asked.is_err() && client.unreached().is_some()
        };
        if !(is_of_file || api == plan.daemon.api) || !is_gone() {
            return None;
        }
        let error = format!(
            "process {pid} runs with this `state_dir`, and nobody listens at its API socket {api}"
        );
        let hint = match is_stopped(pid) {
            true => format!("it is stopped: `kill -CONT {pid}` lets it go on"),
            false => {
                format!("it makes its socket anew on SIGHUP: `kill -HUP {pid}`")
            }
        };
        let silence = Some(Failure::Unreachable { error, hint });
        Some(Beside { pid, is_of_file, client, silence })
    }

    /// Whether that lock is this one's.
    fn keeps(&self, keeper: &Keeper) -> bool {
        self.pid != 0 && (keeper.is(self.pid) || keeper.is(self.seen()))
    }

    /// Whether nothing is known of it but that it may not be asked, and that lock is of a daemon whose API is there.
    fn is_unknown(&self, keeper: &Keeper) -> bool {
        self.pid == 0 && self.silence.is_some() && keeper.api() == Some(self.client.socket())
    }

    /// Its number here.
    pub(super) fn seen(&self) -> u32 {
        match self.silence {
            Some(_) => self.pid,
            None => self.client.number_of(self.pid),
        }
    }

    /// Who it is, for people.
    pub(super) fn name(&self) -> String {
        match self.seen() {
            0 => format!("the daemon at {}", self.client.socket()),
            pid => format!("process {pid}"),
        }
    }

    /// The user that it runs as, where that can be seen; of one that may not be asked, whose its socket is.
    pub(super) fn user(&self) -> Option<u32> {
        if self.seen() == 0 && self.silence.is_some() {
            return std::fs::metadata(self.client.socket()).ok().map(|socket| socket.uid());
        }
        Process::of(self.seen())?.user()
    }

    /// What it has; nothing is known of one that says nothing.
    ///
    /// # Errors
    /// It cannot be asked any more.
    pub(super) fn has(&self) -> Result<Option<Has>, Failure> {
        if self.silence.is_some() {
            return Ok(None);
        }
        let DiskList { disks } = self.client.ask(Method::Get, "/v1/disks")?;
        let NicList { nics } = self.client.ask(Method::Get, "/v1/nics")?;
        let SwitchList { switches } = self.client.ask(Method::Get, "/v1/switches")?;
        let LinkList { links } = self.client.ask(Method::Get, "/v1/links")?;
        let mut has = Has::default();
        // Those of a client are its IOhosts'.
        let is_open = |link: &LinkView| link.role == LinkRole::Iohost && link.problem.is_none();
        let open = links.into_iter().filter(is_open).flat_map(|link| link.addresses);
        has.addresses = open.filter_map(|address| address.parse().ok()).collect();
        let locked = disks.iter().filter(|disk| disk.locked == Some(true));
        has.images = locked.filter_map(|disk| disk.path.as_ref().map(PathBuf::from)).collect();
        let sockets = disks.into_iter().filter_map(|disk| disk.access.socket);
        has.sockets =
            sockets.chain(nics.iter().filter_map(|nic| nic.access.socket.clone())).collect();
        let wires =
            nics.into_iter().filter_map(|nic| Some((nic.tap.or(nic.interface)?, nic.problem)));
        let ports = switches.into_iter().flat_map(|switch| switch.ports);
        let uplinks = ports.filter(|port| port.kind != PortKind::Nic);
        for (interface, problem) in wires.chain(uplinks.map(|port| (port.name, port.problem))) {
            match problem.filter(|problem| problem.contains("cannot open ")) {
                Some(problem) => has.problems.push(problem),
                None => has.interfaces.extend([interface]),
            }
        }
        Ok(Some(has))
    }
}

/// Whether both are names of one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    real(one).is_some() && real(one) == real(other)
}

/// Whether that process was started to serve with this file, as far as its command line shows.
fn runs_with(pid: u32, path: &Path) -> bool {
    let words = Process::of(pid).map(|process| process.words()).unwrap_or_default();
    let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
    if !words.iter().any(|word| word == "serve") {
        return false;
    }
    let behind =
        words.windows(2).find(|words| words[0] == "--config").map(|words| words[1].to_string());
    let within =
        || words.iter().find_map(|word| word.strip_prefix("--config=").map(str::to_string));
    let usual = || "/etc/sidecore/sidecore.toml".to_string();
    let named = PathBuf::from(behind.or_else(within).unwrap_or_else(usual));
    let folder = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
    is_same(path, &folder.join(named))
}

/// What is right besides.
fn hint() -> String {
    format!(
        "{}; a file for the daemon that runs has the `api` and the `state_dir` of that one",
        manager::STOP_THAT_ONE
    )
}
