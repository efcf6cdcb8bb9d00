//! `serve --check`: what the file names is there, and the daemon could have what its devices may take.
//!
//! What is said depends on who has the file's `api` and `state_dir`:
//!
//! | who has them | what is looked at or asked | what is said besides | status |
//! |---|---|---|---|
//! | nobody | this host | | 0, or 1 |
//! | the daemon of this file | this host, but what that one has; `GET /v1/reload` | what a reload would do, or that it takes an upgrade; a device that is not open there | 0, or 1 |
//! | it, and it is stopped or stuck | this host, but what that one has | what any command says of it | 3 |
//! | it, and its API socket was removed | likewise | that SIGHUP makes it again | 3 |
//! | it, and does not let this user ask | likewise | who may ask | 3 |
//! | it, which runs as another user | this host, as this user | as which user to check, where that matters | as above |
//! | a daemon with another file | this host, but what that one has | that it has another file | 0, or 1 |
//! | another daemon has one of `api`, `api_read`, `state_dir`, or a device's socket | | what a start would say | 1 |
//!
//! A mistake in the file is 2, and is found before (`serve`): nothing that is found here is one, since it may be otherwise
//! another time. Not here: the file itself (`config`), nor what is known only when it is opened. Called by `serve`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use config::api::{BoundView, BoundsView};
use config::plan::{DiskPlan, Origin};
use config::{HostPlan, Plan, Source};
use manager::StateError;
use manager::check::{CheckError, Images};

use crate::failure::Failure;
use crate::output::Output;
use crate::reload;
use beside::{Beside, Has};

mod beside;
mod shared;
mod taken;

/// Says what the file makes, or the first thing that a start would stumble over; and what a reload would do, if a daemon
/// runs with that file. An answer of that one is waited for no longer than that.
pub(crate) fn check(
    (file, path): (&str, &Path),
    plan: &Plan,
    limit: Option<Duration>,
    output: &Output,
) -> Result<(), Failure> {
    let mut beside = Beside::of(path, plan, limit)?;
    let looked =
        look(plan, beside.as_ref()).map_err(|why| Checker::of(beside.as_ref()).told(why))?;
    let Looked { whole, notes, bounds } = looked;
    let mut report = report(file, (plan, &whole), &bounds);
    report["notes"] = notes.clone().into();
    let mut text = format!("{file}: right; {}\n", report["summary"].as_str().unwrap_or_default());
    notes.iter().for_each(|note| text += &format!("note: {note}\n"));
    let mut refused = None;
    match &mut beside {
        // Whoever goes on has to know that it is not known what becomes of the daemon.
        Some(Beside { silence: Some(_), .. }) => {}
        Some(Beside { pid, is_of_file: true, client, .. }) => {
            // It is right for a start, and whoever goes on to a reload has to know.
            let view = reload::dry_run(client).map_err(|refused| refused.at_a_reload(*pid))?;
            text += &format!("\nprocess {pid} runs with it. {}", reload::text(&view, output.room));
            report["reload"] = serde_json::to_value(&view).unwrap_or_default();
            refused = reload::misfit(&view)
                .map(|refused| refused.at_a_reload(*pid))
                .or_else(|| reload::failed(&view, *pid));
        }
        Some(Beside { pid, .. }) => {
            text += &format!(
                "\nprocess {pid} runs with another file, and has this `api` and `state_dir`\n"
            );
        }
        None => {}
    }
    output.show(&report, |_| text)?;
    let silence = beside.and_then(|beside| beside.silence);
    // An upgrade would do it all the same.
    refused.or(silence).map_or(Ok(()), Err)
}

/// What a look at this host has found.
struct Looked {
    /// What a start serves: the file's, and what was made by command.
    whole: Plan,
    notes: Vec<String>,
    bounds: BoundsView,
}

/// Looks at all that a start of this plan takes.
fn look(plan: &Plan, beside: Option<&Beside>) -> Result<Looked, Failure> {
    let checker = Checker::of(beside);
    let hint = checker.state_hint();
    manager::check::state_dir(plan).map_err(|error| Failure::host(error, hint.clone()))?;
    let whole = manager::check::with_kept(plan).map_err(|error| not_kept(error, hint))?;
    let has = beside.map_or(Ok(Some(Has::default())), Beside::has)?;
    let mut notes = images_are_there(&whole, &checker)?;
    shared::is_nobody_elses(&whole)?;
    interfaces_are_there(&whole, has.as_ref(), &checker)?;
    links_can_be_opened(&whole)?;
    let hint = "nobody else could open the socket then";
    manager::check::rights(&whole).map_err(|error| Failure::host(error, hint))?;
    if let Some(Has { sockets, .. }) = &has {
        let hint = "name another `socket`, or see who has that one";
        manager::check::device_sockets(&whole, sockets)
            .map_err(|error| Failure::host(error, hint))?;
    }
    taken::is_free(&whole, beside.map(Beside::seen), has.as_ref())?;
    let bounds = devices_fit(&whole)?;
    notes.extend(beyond_the_host(&bounds));
    Ok(Looked { whole, notes, bounds })
}

/// Who looks, and for whom.
struct Checker {
    user: u32,
    /// The daemon that runs, for people, and its user.
    daemon: Option<(String, u32)>,
}

impl Checker {
    fn of(beside: Option<&Beside>) -> Checker {
        let daemon = beside.and_then(|beside| Some((beside.name(), beside.user()?)));
        Checker { user: rustix::process::geteuid().as_raw(), daemon }
    }

    fn who(&self) -> String {
        let daemon = match &self.daemon {
            Some((daemon, user)) if *user != self.user => {
                format!(", as whom {daemon} runs: {user}")
            }
            _ => String::new(),
        };
        format!(
            "the user that checks, which is {} here: check as the daemon's user{daemon}",
            self.user
        )
    }

    fn state_hint(&self) -> String {
        format!(
            "make room, or give the folder to the daemon's user; until then a start refuses it, or serves what is \
             there and keeps nothing; it is looked at as {}",
            self.who()
        )
    }

    /// What is wrong for who looks alone may be right for the daemon that runs.
    fn told(&self, why: Failure) -> Failure {
        let (Failure::Daemon { error, hint }, Some((daemon, user))) = (&why, &self.daemon) else {
            return why;
        };
        let is_of_another = names_user(error, *user);
        // What follows that is for whoever has not meant it.
        let meant = "who could put anything there";
        let what = error.find(meant).and_then(|at| error.get(..at + meant.len()));
        match *user != self.user && is_of_another {
            true => Failure::host(
                what.unwrap_or(error),
                format!(
                    "{daemon} runs with this file as that user, and it is looked at as user {}: \
                     check as user {user} (`sudo -u '#{user}' sidecore serve --check ..`)",
                    self.user
                ),
            ),
            false => Failure::host(error.clone(), hint.clone()),
        }
    }
}

/// Whether words name that user, and not one whose number begins with the same digits.
fn names_user(words: &str, user: u32) -> bool {
    let name = format!("user {user}");
    words.split(&name).skip(1).any(|behind| !behind.starts_with(|next: char| next.is_ascii_digit()))
}

/// What was made by command cannot be read, or does not go with the file.
fn not_kept(error: CheckError, state_hint: String) -> Failure {
    let text = error.to_string();
    match (&error, text.rsplit_once("; ")) {
        (CheckError::Kept(StateError::Text { .. }), Some((error, hint))) => {
            Failure::host(error, hint)
        }
        (CheckError::Kept(StateError::Device { .. }), _) => Failure::host(
            text,
            "correct the file, or remove that device by command while the daemon runs without this change",
        ),
        _ => Failure::host(text, state_hint),
    }
}

/// That memory disks may have more than the host, if so.
fn beyond_the_host(bounds: &BoundsView) -> Option<String> {
    let BoundView { own, promised, extra, .. } = bounds.memory_bytes;
    let (taken, host) = (own + promised + extra, bounds.host_memory_bytes?);
    (taken > host).then(|| {
        format!(
            "memory disks and the daemon may take {} MiB, and this host has {} MiB, swap included",
            taken >> 20,
            host >> 20
        )
    })
}

/// That every image is there and opens, or can be made. Another process may hold it now (`taken`). Gives what a start serves, and
/// an operator may not have meant.
fn images_are_there(plan: &Plan, checker: &Checker) -> Result<Vec<String>, Failure> {
    let images = Images::known_to(plan);
    let mut notes = Vec::new();
    for disk in &plan.disks {
        let Source::File { path, .. } = &disk.source else { continue };
        let path = Path::new(path);
        let is_there = path.symlink_metadata().is_ok();
        if is_there || manager::check::image_name(disk).is_err() {
            notes.extend(image_opens(disk, &images, checker)?);
            continue;
        }
        if let Some(why) = images.is_gone(disk, plan) {
            let (why, hint) = why.split_once("; ").unwrap_or((&why, ""));
            let error = format!("{}: {why}", at(&disk.origin, "disk", &disk.id));
            return Err(Failure::host(error, hint));
        }
        let can_be_made = disk.spec.size.is_some() && !disk.readonly;
        let volume = manager::check::to_activate(disk);
        if can_be_made && (volume.is_some() || path.parent().is_some_and(Path::is_dir)) {
            notes.extend(image_opens(disk, &images, checker)?);
            continue;
        }
        let hint = match (volume, can_be_made) {
            (Some(activate), _) => activate,
            (None, true) => "correct `path`, or make the folder that it names",
            (None, false) => {
                "correct `path`, put the image back, or for a new disk add a `size`: then an empty one \
                 is made"
            }
        };
        let what = at(&disk.origin, "disk", &disk.id);
        let error = format!("{what}: there is no {}", path.display());
        return Err(Failure::host(error, hint));
    }
    Ok(notes)
}

/// That an image can be opened, or made, by whoever checks. What its size does not fit, if so.
fn image_opens(
    disk: &DiskPlan,
    images: &Images,
    checker: &Checker,
) -> Result<Option<String>, Failure> {
    let misfit = images.check(disk).map_err(|why| {
        let why = why.to_string();
        let (error, advice) = why.split_once("; ").unwrap_or((&why, ""));
        let hint = match advice.is_empty() {
            true => "correct `path` or `size`, or put the image right".to_string(),
            false => advice.to_string(),
        };
        let hint = match why.contains("ermission denied") {
            true => format!("{hint}; images are opened as {}", checker.who()),
            false => hint,
        };
        Failure::host(format!("{}: {error}", at(&disk.origin, "disk", &disk.id)), hint)
    })?;
    Ok(misfit.map(|misfit| format!("{}: {misfit}", disk.origin)))
}

/// That every interface is there that a port is to be connected to, is a tap where it is to be one, and may be opened. A
/// tap may still be made. What a daemon `has` it may open.
fn interfaces_are_there(plan: &Plan, has: Option<&Has>, checker: &Checker) -> Result<(), Failure> {
    for (who, host) in hosts(plan) {
        manager::check::interface(host).map_err(|why| {
            let hint = match host {
                HostPlan::Tap { .. } => "correct `tap`",
                _ => "correct `interface`, or write `tap` to have one made",
            };
            Failure::host(format!("{who}: {why}"), hint)
        })?;
        let (Some(has), Some(name)) = (has, host.interface()) else { continue };
        // As its opener says it.
        let not_opened =
            [format!("cannot open tap {name}: "), format!("cannot open interface {name}: ")];
        let is_it = |problem: &&String| not_opened.iter().any(|words| problem.contains(words));
        if let Some(problem) = has.problems.iter().find(is_it) {
            let hint =
                "that is what the daemon says that runs; put it right, then `sidecore reload`";
            return Err(Failure::host(format!("{who}: {problem}"), hint));
        }
        if !has.interfaces.contains(name) {
            manager::check::may_open(host).map_err(|why| {
                let hint = format!(
                    "the rights are those of {}; under systemd the unit sets them",
                    checker.who()
                );
                Failure::host(format!("{who}: {why}"), hint)
            })?;
        }
    }
    Ok(())
}

/// Where a device is declared, and which it is.
fn at(origin: &Origin, kind: &str, id: &str) -> String {
    match origin {
        Origin::Api => format!("{kind} {id:?}, which was made by command"),
        Origin::File { .. } => format!("{origin}: {kind} {id:?}"),
    }
}

/// What ports of the file are to be on, each with its place and name.
fn hosts(plan: &Plan) -> impl Iterator<Item = (String, &HostPlan)> {
    let of_nics =
        plan.nics.iter().filter_map(|nic| Some((at(&nic.origin, "nic", &nic.id), nic.host()?)));
    let of_switches = plan.switches.iter().flat_map(|switch| {
        let name = at(&switch.origin, "switch", &switch.id);
        switch.uplinks.iter().map(move |uplink| (name.clone(), &uplink.host))
    });
    of_nics.chain(of_switches)
}

/// Whether this process's network namespace has that interface.
fn is_there(name: &str) -> bool {
    manager::check::has_interface(name)
}

/// The kernel's folder for an interface; of another network namespace, if `/sys` is.
fn interface(name: &str) -> PathBuf {
    Path::new("/sys/class/net").join(name)
}

/// That every link's key can be read and used, and that its interface is there and carries its packets.
fn links_can_be_opened(plan: &Plan) -> Result<(), Failure> {
    for link in &plan.links {
        let who = format!("{}: link {:?}", link.origin, link.id);
        manager::check::link_key(link).map_err(|error| {
            let hint =
                "correct it; `sidecore link key FILE` makes a key, and prints its public half";
            Failure::host(format!("{who}: {error}"), hint)
        })?;
        let Some(name) = link.interface().map(|on| on.name.as_str()) else { continue };
        let folder = interface(name);
        if !is_there(name) {
            let hint = "correct `interface` (`ip link` lists those there are)";
            return Err(Failure::host(format!("{who}: there is no interface {name:?}"), hint));
        }
        let carries = std::fs::read_to_string(folder.join("mtu")).ok();
        let carries = carries.and_then(|text| text.trim().parse::<u32>().ok());
        if let Some(carries) = carries.filter(|carries| *carries < u32::from(link.mtu)) {
            let error = format!(
                "{who}: interface {name:?} carries packets of {carries} bytes, and `mtu` is {}",
                link.mtu
            );
            return Err(Failure::host(error, "make them equal"));
        }
    }
    Ok(())
}

/// That each device of the file can be promised what it may take, as at the start.
fn devices_fit(plan: &Plan) -> Result<BoundsView, Failure> {
    manager::check::bounds(plan).map_err(|(origin, device, why)| {
        let hint = "the limits are those of the process that checks; under systemd the unit sets a daemon's own";
        let place = match origin {
            Origin::Api => "made by command".to_string(),
            Origin::File { .. } => origin.to_string(),
        };
        Failure::host(format!("{place}: {device}: {why}"), hint)
    })
}

fn report(file: &str, (plan, whole): (&Plan, &Plan), bounds: &BoundsView) -> serde_json::Value {
    let Plan { disks, groups, switches, nics, links, .. } = plan;
    let cpus = &plan.sidecores.cpus;
    let mut summary = counted(disks.len(), "disk", "disks");
    if !(nics.is_empty() && switches.is_empty()) {
        let nics = counted(nics.len(), "nic", "nics");
        summary += &format!(", {nics}, {}", counted(switches.len(), "switch", "switches"));
    }
    if !groups.is_empty() {
        summary += &format!(", {}", counted(groups.len(), "group", "groups"));
    }
    if !links.is_empty() {
        summary += &format!(", {}", counted(links.len(), "link", "links"));
    }
    let (one, many) = ("a sidecore on cpu", "sidecores on cpus");
    let on = if cpus.len() == 1 { one } else { many };
    summary += &format!(", {on} {}", cpus::format(cpus));
    let devices = |plan: &Plan| plan.disks.len() + plan.nics.len();
    let by_command = devices(whole) - devices(plan);
    if by_command > 0 {
        summary += &format!("; and {} made by command", counted(by_command, "device", "devices"));
    }
    serde_json::json!({
        "file": file,
        "summary": summary,
        "cpus": cpus,
        "disks": disks.iter().map(|disk| &disk.id).collect::<Vec<_>>(),
        "groups": groups.iter().map(|group| &group.id).collect::<Vec<_>>(),
        "switches": switches.iter().map(|switch| &switch.id).collect::<Vec<_>>(),
        "nics": nics.iter().map(|nic| &nic.id).collect::<Vec<_>>(),
        "links": links.iter().map(|link| &link.id).collect::<Vec<_>>(),
        "bounds": bounds,
    })
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_not_one_whose_number_begins_so() {
        assert!(names_user("/x belongs to user 1, who could", 1));
        assert!(!names_user("/x belongs to user 1234, who could", 1));
        assert!(names_user("user 1234 and user 1", 1) && !names_user("user", 1));
    }
}
