//! Who reaches the sockets of disks and NICs: a VMM's user, by trying as that user, and the members of groups.
//!
//! `doctor --vmm USER` starts this program again as `reach`, which becomes that user and asks the kernel
//! about each folder on the way and the socket: so groups, ACLs and mount options are in it. Nothing is
//! connected to, since that would be a front-end.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use config::api::{DaemonView, DiskList, NicList};
use config::routes::Method;
use config::spec::Mode;
use host::Accounts;
use host::accounts::User;
use host::doctor::{Check, State};
use rustix::fs::{Access, access};
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::check;
use crate::client::Client;
use crate::failure::Failure;
use crate::process::Process;

/// The word on the command line of the process that tries.
pub(crate) const REACH_COMMAND: &str = "reach";

/// A device with a socket that a VMM is to connect to.
struct Device {
    kind: &'static str,
    id: String,
    /// `api`, or the file and line.
    declared: String,
    socket: String,
}

impl Device {
    fn name(&self) -> String {
        format!("{} {}", self.kind, self.id)
    }
}

/// The checks about sockets; with a VMM's user one for each device more.
pub(super) fn checks(client: &Client, vmm: Option<&str>) -> Result<Vec<Check>, Failure> {
    let devices = match devices(client) {
        Ok(devices) => devices,
        Err(failure) if vmm.is_some() => return Err(failure),
        // Others say that no daemon can be asked.
        Err(_) => return Ok(Vec::new()),
    };
    let accounts = Accounts::of_this_host().map_err(|error| {
        Failure::usage(format!("users and groups of this host: {error}"), "see to /etc/passwd")
    })?;
    let mut checks = shared(&devices, client.socket(), &accounts);
    let Some(vmm) = vmm else { return Ok(checks) };
    let daemon: DaemonView = client.ask(Method::Get, "/v1/daemon")?;
    let process = Process::of(client.number_of(daemon.pid));
    let daemon_uid = process.and_then(|process| process.user()).unwrap_or(0);
    let user = accounts.user(vmm).ok_or_else(|| {
        let hint = "name the user that the VMM's process has (`ps -o user= -C qemu-system-x86_64`)";
        Failure::usage(format!("there is no user {vmm:?} in /etc/passwd"), hint)
    })?;
    let groups = accounts.groups_of(&user);
    let mut sockets: Vec<&str> = devices.iter().map(|device| device.socket.as_str()).collect();
    sockets.push(client.socket());
    let mut steps = try_as(&user, &groups, &sockets)?;
    checks.extend(commands(&user, client.socket(), steps.pop().flatten().as_ref()));
    let of_device =
        |(device, step): (&Device, &Option<Step>)| match of_another(&user, daemon_uid, device) {
            Some(check) if step.is_some() => check,
            _ => told(&user, &groups, device, step.as_ref()),
        };
    checks.extend(devices.iter().zip(&steps).map(of_device));
    if devices.is_empty() {
        let found = "there is no disk and no NIC that a VMM connects to".to_string();
        checks.push(check("reach", State::Ok, found, "nothing is to be reached", ""));
    }
    Ok(checks)
}

/// That a VMM's user does not command the daemon: whoever does has it open what root can.
fn commands(user: &User, api: &str, step: Option<&Step>) -> Option<Check> {
    if step.is_some() || user.uid == 0 {
        return None;
    }
    let found = format!("{} may write to the API's socket {api}", user.name);
    let means = "whoever breaks out of a VM of that user has every disk of this host";
    let todo =
        "take that user out of api_owner and api_group in [daemon]; a monitor reads at api_read";
    Some(check("access", State::Warn, found, means, todo))
}

fn devices(client: &Client) -> Result<Vec<Device>, Failure> {
    let disks: DiskList = client.ask(Method::Get, "/v1/disks")?;
    let nics: NicList = client.ask(Method::Get, "/v1/nics")?;
    let disks = disks
        .disks
        .into_iter()
        .map(|it| ("disk", it.id, it.declared, it.access.socket, it.access.mode));
    let nics = nics
        .nics
        .into_iter()
        .map(|it| ("nic", it.id, it.declared, it.access.socket, it.access.mode));
    let listens = disks.chain(nics).filter_map(|(kind, id, declared, socket, mode)| {
        // What a link has has no socket here.
        let socket = socket.filter(|_| mode == Mode::Listen)?;
        Some(Device { kind, id, declared, socket })
    });
    Ok(listens.collect())
}

/// What could not be passed, and why.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Step {
    path: PathBuf,
    why: String,
    is_missing: bool,
}

/// Has a process try as that user.
fn try_as(user: &User, groups: &[u32], sockets: &[&str]) -> Result<Vec<Option<Step>>, Failure> {
    if !geteuid().is_root() && geteuid().as_raw() != user.uid {
        let hint = "run it as root, or as that user";
        let error = format!("only root can try what user {:?} may", user.name);
        return Err(Failure::usage(error, hint));
    }
    let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
    let output = Command::new("/proc/self/exe")
        .args([REACH_COMMAND, &user.uid.to_string(), &groups.join(",")])
        .arg("--")
        .args(sockets)
        .output();
    let failed = |error: &dyn std::fmt::Display| {
        Failure::usage(
            format!("it could not be tried as {:?}: {error}", user.name),
            "run it as root",
        )
    };
    let output = output.map_err(|error| failed(&error))?;
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(&error))
}

/// `reach`: becomes that user and says for each socket what cannot be passed.
pub(crate) fn reach(uid: u32, groups: &[u32], sockets: &[PathBuf]) -> Result<(), Failure> {
    let failed = |error: rustix::io::Errno| Failure::usage(error.to_string(), "it takes root");
    if geteuid().as_raw() != uid || geteuid().is_root() {
        let all: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let own = all.first().copied();
        set_thread_groups(&all).map_err(failed)?;
        set_thread_res_gid(own, own, own).map_err(failed)?;
        let uid = Some(Uid::from_raw(uid));
        set_thread_res_uid(uid, uid, uid).map_err(failed)?;
    }
    let steps: Vec<Option<Step>> = sockets.iter().map(|socket| first_closed(socket)).collect();
    let output = crate::output::Output { json: true, room: crate::table::Room::Whole };
    output.show(&steps, |_| String::new())
}

/// The first folder on the way, from the root, that cannot be passed; or the socket, if it cannot be opened.
fn first_closed(socket: &Path) -> Option<Step> {
    let mut folders: Vec<&Path> = socket.ancestors().skip(1).collect();
    folders.reverse();
    let folders = folders.into_iter().map(|folder| (folder, Access::EXEC_OK));
    let steps = folders.chain([(socket, Access::WRITE_OK)]);
    steps.into_iter().find_map(|(path, wanted)| {
        let error = access(path, wanted).err()?;
        let is_missing = error == rustix::io::Errno::NOENT;
        Some(Step { path: path.to_path_buf(), why: error.to_string(), is_missing })
    })
}

/// A device that was given to another user, as it should be where each VM has one of its own.
fn of_another(user: &User, daemon_uid: u32, device: &Device) -> Option<Check> {
    let seen = rights_of(Path::new(&device.socket))?;
    let is_given = seen.uid != daemon_uid && seen.uid != 0 && seen.uid != user.uid;
    is_given.then(|| {
        let found = format!("{} is another user's ({})", device.name(), seen.text);
        let means =
            format!("{} may not open it, which is right if its VM is another one", user.name);
        check("reach", State::Ok, found, &means, "")
    })
}

/// What is found of one device, and the line that helps.
fn told(user: &User, groups: &[u32], device: &Device, step: Option<&Step>) -> Check {
    let (name, device_name) = (&user.name, device.name());
    let Some(Step { path, why, is_missing }) = step else {
        let found = format!("{name} reaches {device_name} at {}", device.socket);
        return check("reach", State::Ok, found, "a VMM of that user can connect", "");
    };
    let means = "a VMM of that user cannot connect";
    let (path, is_socket) = (path.display(), *path == Path::new(&device.socket));
    if *is_missing {
        let found = format!("{device_name}: there is no {path}");
        let todo = format!("`sidecore show {}` says why", device.id);
        return check("reach", State::Warn, found, means, &todo);
    }
    let seen = rights_of(Path::new(&device.socket));
    let opens = |rights: &Seen| rights.lets(user.uid, groups);
    let owner = match device.declared.as_str() {
        "api" => format!("`sidecore {} set {} --socket-owner {name}`", device.kind, device.id),
        place => format!("write socket_owner = \"{name}\" at {place}, then `sidecore reload`"),
    };
    if is_socket {
        let is = seen.map(|seen| format!(" ({})", seen.text)).unwrap_or_default();
        let found = format!("{name} may not write to {path}{is}: {why}");
        let todo =
            format!("{owner}; or until the socket is made anew: `setfacl -m u:{name}:rw {path}`");
        return check("reach", State::Warn, found, means, &todo);
    }
    let found =
        format!("{name} may not pass the folder {path}, on the way to {device_name}: {why}");
    let mut todo = format!(
        "`setfacl -m u:{name}:x {path}`; for the unit's own folder RuntimeDirectoryMode=0711 in a drop-in, \
         which lasts"
    );
    // Behind a folder that is closed the socket cannot be tried; its ACL is not looked at here.
    if !seen.as_ref().is_some_and(opens) {
        todo += &format!("; and {owner}");
    }
    check("reach", State::Warn, found, means, &todo)
}

/// Owner, group and mode of a socket.
struct Seen {
    uid: u32,
    gid: u32,
    mode: u32,
    text: String,
}

impl Seen {
    fn lets(&self, uid: u32, groups: &[u32]) -> bool {
        let bit = match (uid == self.uid, groups.contains(&self.gid)) {
            (true, _) => 0o200,
            (_, true) => 0o020,
            _ => 0o002,
        };
        uid == 0 || self.mode & bit != 0
    }
}

fn rights_of(socket: &Path) -> Option<Seen> {
    let there = std::fs::symlink_metadata(socket).ok()?;
    let (uid, gid, mode) = (there.uid(), there.gid(), there.mode() & 0o777);
    let accounts = Accounts::of_this_host().unwrap_or_default();
    let (owner, group) = (accounts.name_of_user(uid), accounts.name_of_group(gid));
    Some(Seen { uid, gid, mode, text: format!("user {owner}, group {group}, mode {mode:04o}") })
}

/// Groups with several users, each of whom may open what the group may.
fn shared(devices: &[Device], api: &str, accounts: &Accounts) -> Vec<Check> {
    let mut of_group: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let group_of = |socket: &str| {
        let seen = rights_of(Path::new(socket))?;
        (seen.mode & 0o020 != 0).then_some(seen.gid)
    };
    for device in devices {
        if let Some(gid) = group_of(&device.socket) {
            of_group.entry(gid).or_default().push(device.name());
        }
    }
    let api_group = group_of(api);
    let mut checks = Vec::new();
    for (gid, names) in &of_group {
        let group = accounts.name_of_group(*gid);
        let members: BTreeSet<String> =
            accounts.members_of(*gid).into_iter().filter(|name| name != "root").collect();
        let members: Vec<&str> = members.iter().map(String::as_str).collect();
        if api_group == Some(*gid) {
            let found = format!(
                "group {group} may open the API's socket {api} and that of {}",
                shorten(names)
            );
            let means = "whoever takes over one VMM of it commands the daemon, which opens what it may open";
            let todo = "give `api_group` in [daemon] a group of operators, or leave it out; then `sidecore reload`";
            checks.push(check("access", State::Warn, found, means, todo));
        } else if members.len() > 1 {
            let found = format!(
                "group {group} has {} users ({}), and each may open the socket of {}",
                members.len(),
                members.iter().take(8).copied().collect::<Vec<_>>().join(", "),
                shorten(names)
            );
            let means = "a VMM of any of them can be the guest of each of these devices";
            let todo = "give each VMM a user of its own, and its devices that `socket_owner`";
            checks.push(check("access", State::Warn, found, means, todo));
        }
    }
    checks
}

/// A line that a terminal can show, however many names there are.
fn shorten(names: &[String]) -> String {
    let shown = names.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(4) {
        Some(more @ 1..) => format!("{shown} and {more} more"),
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told_of(declared: &str, step: Option<Step>) -> Check {
        let user = User { name: "vm7".into(), uid: 1007, gid: 1007 };
        let (id, socket) = ("d".to_string(), "/no-such/s".to_string());
        let device = Device { kind: "disk", id, declared: declared.to_string(), socket };
        told(&user, &[1007], &device, step.as_ref())
    }

    fn closed(path: &str, is_missing: bool) -> Option<Step> {
        Some(Step { path: path.into(), why: "Permission denied".to_string(), is_missing })
    }

    #[test]
    fn the_line_that_helps_is_that_which_lasts() {
        let check = told_of("api", closed("/no-such/s", false));
        let wanted = "`sidecore disk set d --socket-owner vm7`; or until the socket is made anew: \
                      `setfacl -m u:vm7:rw /no-such/s`";
        assert_eq!((check.state, check.todo.as_str()), (State::Warn, wanted));
        let check = told_of("/etc/s.toml:4", closed("/no-such", false));
        let wanted = "`setfacl -m u:vm7:x /no-such`; for the unit's own folder \
                      RuntimeDirectoryMode=0711 in a drop-in, which lasts; and write socket_owner = \
                      \"vm7\" at /etc/s.toml:4, then `sidecore reload`";
        assert_eq!(check.todo, wanted);
        assert_eq!(told_of("api", closed("/no-such/s", true)).todo, "`sidecore show d` says why");
        assert_eq!(told_of("api", None).state, State::Ok);
    }

    #[test]
    fn a_group_s_mode_is_for_its_members() {
        let seen = Seen { uid: 7, gid: 8, mode: 0o660, text: String::new() };
        assert!(seen.lets(7, &[1]) && seen.lets(3, &[1, 8]) && seen.lets(0, &[]));
        assert!(!seen.lets(3, &[1]));
        // The owner's bits hold for the owner, whatever the group may.
        assert!(!Seen { mode: 0o060, ..seen }.lets(7, &[8]));
    }
}
