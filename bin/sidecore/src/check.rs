//! `serve --check`: what the file names is there, and the daemon could have what its devices may take.
//!
//! Not here: the file itself (`config`), nor what is known only when it is opened. Called by `serve`.

use std::path::{Path, PathBuf};

use config::api::{BoundView, BoundsView};
use config::plan::DiskPlan;
use config::{HostPlan, Plan, Source};
use manager::StateError;
use manager::check::{CheckError, Images};

use crate::failure::Failure;
use crate::output::Output;
use crate::reload;
use beside::Beside;

mod beside;
mod taken;

/// Says what the file makes, or the first thing that a start would stumble over; and what a reload would do, if a daemon
/// runs with that file.
pub(crate) fn check(file: &str, path: &Path, plan: &Plan, output: &Output) -> Result<(), Failure> {
    let mut notes = images_are_there(plan)?;
    interfaces_are_there(plan)?;
    links_can_be_opened(plan)?;
    let hint = "nobody else could open the socket then";
    manager::check::rights(plan).map_err(|error| Failure::host(error, hint))?;
    let hint = state_hint();
    manager::check::state_dir(plan).map_err(|error| Failure::host(error, hint))?;
    manager::check::kept(plan).map_err(not_kept)?;
    let beside = Beside::of(path, plan)?;
    if beside.is_none() {
        let hint = "name another `socket`, or see who has that one";
        manager::check::device_sockets(plan).map_err(|error| Failure::host(error, hint))?;
    }
    taken::is_free(plan, beside.as_ref().map(|beside| beside.client.number_of(beside.pid)))?;
    let bounds = devices_fit(plan)?;
    notes.extend(beyond_the_host(&bounds));
    let mut report = report(file, plan, &bounds);
    report["notes"] = notes.clone().into();
    let mut refused = None;
    let mut text = format!("{file}: right; {}\n", report["summary"].as_str().unwrap_or_default());
    notes.iter().for_each(|note| text += &format!("note: {note}\n"));
    match beside {
        Some(Beside { pid, is_of_file: true, client }) => {
            // It is right for a start, and whoever goes on to a reload has to know.
            let view = reload::dry_run(&client).map_err(|refused| refused.at_a_reload(pid))?;
            text += &format!("\nprocess {pid} runs with it. {}", reload::text(&view, output.room));
            report["reload"] = serde_json::to_value(&view).unwrap_or_default();
            refused = reload::misfit(&view).map(|refused| refused.at_a_reload(pid));
        }
        Some(Beside { pid, .. }) => {
            text += &format!(
                "\nprocess {pid} runs with another file, and has this `api` and `state_dir`\n"
            );
        }
        None => {}
    }
    output.show(&report, |_| text)?;
    // An upgrade would do it all the same.
    refused.map_or(Ok(()), Err)
}

/// What was made by command cannot be read, or does not go with the file.
fn not_kept(error: CheckError) -> Failure {
    let text = error.to_string();
    match (&error, text.rsplit_once("; ")) {
        (CheckError::Kept(StateError::Text { .. }), Some((error, hint))) => {
            Failure::host(error, hint)
        }
        (CheckError::Kept(StateError::Device { .. }), _) => Failure::host(
            text,
            "correct the file, or remove that device by command while the daemon runs without this change",
        ),
        _ => Failure::host(text, state_hint()),
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
fn images_are_there(plan: &Plan) -> Result<Vec<String>, Failure> {
    let images = Images::known_to(plan);
    let mut notes = Vec::new();
    for disk in &plan.disks {
        let Source::File { path, .. } = &disk.source else { continue };
        let path = Path::new(path);
        let is_there = path.symlink_metadata().is_ok();
        if is_there || manager::check::image_name(disk).is_err() {
            notes.extend(image_opens(disk, &images)?);
            continue;
        }
        if let Some(why) = images.is_gone(disk, plan) {
            let (why, hint) = why.split_once("; ").unwrap_or((&why, ""));
            return Err(Failure::usage(
                format!("{}: disk {:?}: {why}", disk.origin, disk.id),
                hint,
            ));
        }
        let can_be_made = disk.spec.size.is_some() && !disk.readonly;
        if can_be_made && path.parent().is_some_and(Path::is_dir) {
            notes.extend(image_opens(disk, &images)?);
            continue;
        }
        let hint = match can_be_made {
            true => "correct `path`, or make the folder that it names",
            false => {
                "correct `path`, put the image back, or for a new disk add a `size`: then an empty one \
                 is made"
            }
        };
        let error = format!("{}: disk {:?}: there is no {}", disk.origin, disk.id, path.display());
        return Err(Failure::host(error, hint));
    }
    Ok(notes)
}

fn state_hint() -> String {
    format!(
        "make room, or give the folder to the daemon's user; until then a start refuses it, or serves what is there and \
         keeps nothing; it is looked at as {}",
        who_checks()
    )
}

fn who_checks() -> String {
    let user = rustix::process::geteuid().as_raw();
    format!("the user that checks, which is {user} here: check as the daemon's user")
}

/// That an image can be opened, or made, by whoever checks. What its size does not fit, if so.
fn image_opens(disk: &DiskPlan, images: &Images) -> Result<Option<String>, Failure> {
    let misfit = images.check(disk).map_err(|why| {
        let why = why.to_string();
        let (error, advice) = why.split_once("; ").unwrap_or((&why, ""));
        let hint = match advice.is_empty() {
            true => "correct `path` or `size`, or put the image right".to_string(),
            false => advice.to_string(),
        };
        let hint = match why.contains("ermission denied") {
            true => format!("{hint}; images are opened as {}", who_checks()),
            false => hint,
        };
        Failure::host(format!("{}: disk {:?}: {error}", disk.origin, disk.id), hint)
    })?;
    Ok(misfit.map(|misfit| format!("{}: {misfit}", disk.origin)))
}

/// That every interface is there that a port is to be connected to, and is a tap where it is to be one. A tap may still
/// be made.
fn interfaces_are_there(plan: &Plan) -> Result<(), Failure> {
    for (who, host) in hosts(plan) {
        manager::check::interface(host).map_err(|why| {
            let hint = match host {
                HostPlan::Tap { .. } => "correct `tap`",
                _ => "correct `interface`, or write `tap` to have one made",
            };
            Failure::host(format!("{who}: {why}"), hint)
        })?;
    }
    Ok(())
}

/// What ports of the file are to be on, each with its place and name.
fn hosts(plan: &Plan) -> impl Iterator<Item = (String, &HostPlan)> {
    let of_nics = plan
        .nics
        .iter()
        .filter_map(|nic| Some((format!("{}: nic {:?}", nic.origin, nic.id), nic.host()?)));
    let of_switches = plan.switches.iter().flat_map(|switch| {
        let name = format!("{}: switch {:?}", switch.origin, switch.id);
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
        Failure::host(format!("{origin}: {device}: {why}"), hint)
    })
}

fn report(file: &str, plan: &Plan, bounds: &BoundsView) -> serde_json::Value {
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
