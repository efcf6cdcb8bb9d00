//! Whether what is to come finds what it needs: VMMs the sockets of devices, and an upgrade its launchers.
//!
//! Not here: who may open those sockets (`reach`).

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use config::api::{DaemonView, DiskList, LaunchersView, NicList};
use config::routes::Method;
use config::spec::{Carrier, Mode};
use host::doctor::{Check, State};

use super::check;
use super::heir::{self, Heir};
use crate::client::{Client, is_stopped};
use crate::failure::Failure;
use crate::process::Process;

/// Both, of a daemon that can be asked.
pub(super) fn checks(client: &Client) -> Vec<Check> {
    let daemon = client.ask::<DaemonView>(Method::Get, "/v1/daemon").ok();
    let here = |view: &DaemonView| client.shares_numbers(view.pid).then_some(view.pid);
    let upgrade = daemon.and_then(|view| upgrade(&view.launchers, here(&view)));
    upgrade.into_iter().chain(sockets(client)).collect()
}

/// Whether another daemon can be started by this one. Nothing of a daemon that started none, or says nothing of it. Of one
/// that is not `here`, by its number, but in another container, numbers and names are others' here; of one that has other
/// mounts, names are.
fn upgrade(view: &LaunchersView, here: Option<u32>) -> Option<Check> {
    let LaunchersView { started, living, pids, program } = view;
    let mut found = format!("{living} of {started} launchers");
    let its = pids.iter().copied().filter(|_| here.is_some());
    let stopped: Vec<u32> = its.filter(|pid| is_stopped(*pid)).collect();
    if !stopped.is_empty() {
        found += &format!(", of which {} stopped", stopped.len());
    }
    let program = Path::new(program);
    let has_others =
        |pid: u32| Process::of(pid).and_then(|it| it.shares_names()).is_some_and(|same| !same);
    let here = here.filter(|daemon| !has_others(*daemon));
    let absent = here.and_then(|_| not_startable(program));
    let asked = here.filter(|_| absent.is_none());
    let asked = asked.map_or(Heir::Unknown, |daemon| heir::ask(program, pids, daemon));
    let program = program.display();
    let strange = if let Heir::None(why) = &asked { Some(why.clone()) } else { None };
    if let Some(why) = absent.map(str::to_string).or_else(|| strange.clone()) {
        found += &format!("; {program} {why}");
    }
    let warn = |means: &str, todo: &str| check("upgrade", State::Warn, found.clone(), means, todo);
    Some(match (*started, *living) {
        (0, _) => return None,
        (_, 0) => warn(
            "`sidecore upgrade` is refused until the daemon is started again, which is a pause for guests",
            "restart the daemon when that suits; see who ends its children, `sidecore launcher`",
        ),
        _ if absent.is_some() => warn(
            "`sidecore upgrade` is refused until a program is there that can be started",
            &format!("install it as {program}"),
        ),
        _ if strange.is_some() => warn(
            "`sidecore upgrade` is refused: what it starts would not take over, and the daemon goes on",
            &format!("install sidecore as {program}"),
        ),
        _ if !stopped.is_empty() => warn(
            "`sidecore upgrade` waits for one that is stopped, and is refused when all are",
            &stopped.iter().map(|pid| format!("`kill -CONT {pid}`")).collect::<Vec<_>>().join(", "),
        ),
        (started, living) if living < started => warn(
            "with the last one there is no `sidecore upgrade`",
            "`sidecore upgrade`: the next daemon has all again; see who ends its children",
        ),
        _ => {
            let mut means = "`sidecore upgrade` has what starts another daemon".to_string();
            if let Heir::Unasked(why) = &asked {
                means += &format!("\n{program} was not asked which version it is: {why}");
            }
            check("upgrade", State::Ok, found, &means, "")
        }
    })
}

/// Why a program cannot be started, as far as a look tells. What may not be looked at may be there.
fn not_startable(program: &Path) -> Option<&'static str> {
    if program.as_os_str().is_empty() {
        // A daemon of an earlier version does not say what it starts.
        return None;
    }
    match program.metadata() {
        Ok(there) if !there.is_file() => Some("is no file"),
        Ok(there) if there.mode() & 0o111 == 0 => Some("is not executable"),
        Ok(_) => None,
        Err(error) => [ErrorKind::NotFound, ErrorKind::NotADirectory]
            .contains(&error.kind())
            .then_some("is not there"),
    }
}

/// Whether the files of sockets are there that devices listen at.
fn sockets(client: &Client) -> Result<Check, Failure> {
    let DiskList { disks } = client.ask(Method::Get, "/v1/disks")?;
    let NicList { nics } = client.ask(Method::Get, "/v1/nics")?;
    // One that is not open has none, nor has a NIC whose cable is out.
    let disks = disks.into_iter().filter(|disk| disk.served_as.is_some());
    let nics = nics.into_iter().filter(|nic| nic.problem.is_none() && nic.link == Carrier::Up);
    let disks = disks.map(|disk| ("disk", disk.id, disk.access));
    let all = disks.chain(nics.map(|nic| ("nic", nic.id, nic.access)));
    let sockets: Vec<(String, String)> = all
        .filter(|(.., access)| access.mode == Mode::Listen)
        .filter_map(|(kind, id, access)| Some((format!("{kind} {id}"), access.socket?)))
        .collect();
    Ok(of_files(&sockets))
}

/// The same of devices by name, each with its socket.
fn of_files(sockets: &[(String, String)]) -> Check {
    let is_gone = |(_, socket): &&(String, String)| {
        let looked = std::fs::symlink_metadata(socket);
        looked.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    let gone: Vec<String> =
        sockets.iter().filter(is_gone).map(|(name, socket)| format!("{name} ({socket})")).collect();
    let all = sockets.len();
    if gone.is_empty() {
        let means = "each device can be connected to where it is to be";
        return check("sockets", State::Ok, format!("{all} of {all} are there"), means, "");
    }
    let found = format!("{} of {all} were removed", gone.len());
    let means = format!("no VMM can come to {}; one that is connected goes on", gone.join(", "));
    check("sockets", State::Warn, found, &means, "`sidecore reload` makes them again")
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    use super::*;

    #[test]
    fn launchers_that_ended_are_told_of_before_an_upgrade_needs_them() {
        let told = |started, living| {
            upgrade(
                &LaunchersView { started, living, ..LaunchersView::default() },
                Some(std::process::id()),
            )
        };
        assert!(told(0, 0).is_none());
        assert_eq!(told(2, 2).map(|check| check.state), Some(State::Ok));
        let one = told(2, 1).expect("a check");
        assert_eq!((one.state, one.found.as_str()), (State::Warn, "1 of 2 launchers"));
        let none = told(2, 0).expect("a check");
        assert!(none.means.contains("is refused until"), "{}", none.means);
    }

    #[test]
    fn a_program_that_cannot_be_started_is_told_of_before_an_upgrade_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("sidecore");
        let view = LaunchersView {
            started: 2,
            living: 2,
            program: program.display().to_string(),
            ..LaunchersView::default()
        };
        let told = || upgrade(&view, Some(std::process::id())).expect("a check");
        let is_there = |why: &str| format!("2 of 2 launchers; {} {why}", program.display());
        let gone = told();
        assert_eq!((gone.state, gone.found), (State::Warn, is_there("is not there")));
        assert_eq!(gone.todo, format!("install it as {}", program.display()));
        std::fs::write(&program, "").expect("a file");
        let set = |mode| std::fs::set_permissions(&program, Permissions::from_mode(mode));
        set(0o644).expect("its mode");
        assert_eq!(told().found, is_there("is not executable"));
        set(0o755).expect("its mode");
        assert_eq!(told().state, State::Ok);
        std::fs::remove_file(&program).expect("removed");
        std::fs::create_dir(&program).expect("a folder");
        assert_eq!(told().found, is_there("is no file"));
        assert_eq!(upgrade(&view, None).map(|check| check.state), Some(State::Ok), "not here");
    }

    #[test]
    fn a_launcher_that_is_stopped_is_told_of() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("a process");
        let pid = child.id();
        let view = LaunchersView { started: 2, living: 2, pids: vec![pid], ..Default::default() };
        let told = || upgrade(&view, Some(std::process::id())).expect("a check");
        assert_eq!(told().state, State::Ok);
        let id = Pid::from_child(&child);
        kill_process(id, Signal::STOP).expect("it is there");
        // It stops when it has its processor next.
        waitpid(Some(id), WaitOptions::UNTRACED).expect("it stops");
        let stopped = told();
        let elsewhere = upgrade(&view, None).expect("a check");
        child.kill().expect("it ends");
        child.wait().expect("it has ended");
        assert_eq!(stopped.state, State::Warn);
        assert_eq!(stopped.found, "2 of 2 launchers, of which 1 stopped");
        assert_eq!(stopped.todo, format!("`kill -CONT {pid}`"));
        assert_eq!((elsewhere.state, elsewhere.found.as_str()), (State::Ok, "2 of 2 launchers"));
    }

    #[test]
    fn a_socket_that_was_removed_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(path("a.sock"), "").expect("a file");
        let [here, gone] = ["a", "b"].map(|id| (format!("disk {id}"), path(&format!("{id}.sock"))));
        assert_eq!(of_files(std::slice::from_ref(&here)).state, State::Ok);
        let told = of_files(&[here, gone]);
        assert_eq!((told.state, told.found.as_str()), (State::Warn, "1 of 2 were removed"));
        assert!(told.means.starts_with(&format!("no VMM can come to disk b ({})", path("b.sock"))));
    }
}
