//! Whether what is to come finds what it needs: VMMs the sockets of devices, and an upgrade its launchers.
//!
//! Not here: who may open those sockets (`reach`).

use std::io::ErrorKind;

use config::api::{DaemonView, DiskList, LaunchersView, NicList};
use config::routes::Method;
use config::spec::{Carrier, Mode};
use host::doctor::{Check, State};

use super::check;
use crate::client::Client;
use crate::failure::Failure;

/// Both, of a daemon that can be asked.
pub(super) fn checks(client: &Client) -> Vec<Check> {
    let daemon = client.ask::<DaemonView>(Method::Get, "/v1/daemon").ok();
    let upgrade = daemon.and_then(|view| upgrade(&view.launchers));
    upgrade.into_iter().chain(sockets(client)).collect()
}

/// Whether another daemon can be started by this one. Nothing of a daemon that started none, or says nothing of it.
fn upgrade(LaunchersView { started, living }: &LaunchersView) -> Option<Check> {
    let found = format!("{living} of {started} launchers");
    Some(match (*started, *living) {
        (0, _) => return None,
        (started, living) if living >= started => {
            let means = "`sidecore upgrade` has what starts another daemon";
            check("upgrade", State::Ok, found, means, "")
        }
        (_, 0) => {
            let means = "`sidecore upgrade` is refused until the daemon is started again, which is a pause for guests";
            let todo = "restart the daemon when that suits; see who ends its children, `sidecore launcher`";
            check("upgrade", State::Warn, found, means, todo)
        }
        _ => {
            let means = "with the last one there is no `sidecore upgrade`";
            let todo =
                "`sidecore upgrade`: the next daemon has all again; see who ends its children";
            check("upgrade", State::Warn, found, means, todo)
        }
    })
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
    use super::*;

    #[test]
    fn launchers_that_ended_are_told_of_before_an_upgrade_needs_them() {
        let told = |started, living| upgrade(&LaunchersView { started, living });
        assert!(told(0, 0).is_none());
        assert_eq!(told(2, 2).map(|check| check.state), Some(State::Ok));
        let one = told(2, 1).expect("a check");
        assert_eq!((one.state, one.found.as_str()), (State::Warn, "1 of 2 launchers"));
        let none = told(2, 0).expect("a check");
        assert!(none.means.contains("is refused until"), "{}", none.means);
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
