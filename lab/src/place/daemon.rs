//! Starting the programs that serve: the daemon of this project, and what is beside it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::configurations::{Configuration, Server, Site};
use super::cpus::Cpus;
use crate::children::Children;
use crate::waiting;

/// Until a program has its sockets.
pub(super) const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// Starts sidecore with these devices, which have the ids `prefix0`, `prefix1` and so on; gives their sockets.
///
/// # Errors
/// It does not start.
pub(super) fn start_sidecore(
    site: &Site<'_>,
    server: Server,
    devices: &str,
    prefix: &str,
    children: &mut Children,
) -> Result<Vec<PathBuf>> {
    let (at, cpu, policy) = (site.dir.display(), site.cpus.server, policy_of(server));
    let config = format!(
        "[daemon]\napi = \"{at}/api.sock\"\nrun_dir = \"{at}/run\"\nstate_dir = \"{at}/state\"\n\n\
         [sidecores]\ncpus = \"{cpu}\"\n{policy}\n{devices}"
    );
    let file = site.dir.join("sidecore.toml");
    std::fs::write(&file, config)?;
    for folder in ["run", "state"] {
        std::fs::create_dir_all(site.dir.join(folder))?;
    }
    let mut command = Command::new(site.sidecore);
    command.args(["serve", "--config"]).arg(&file);
    children.start("sidecore", &site.dir.join("server.log"), &command)?;
    let socket = |number| site.dir.join("run").join(format!("{prefix}{number}.sock"));
    let sockets: Vec<PathBuf> = (0..site.guests).map(socket).collect();
    sockets.iter().try_for_each(|socket| await_socket(socket, children))?;
    Ok(sockets)
}

/// Its lines in `[sidecores]`.
fn policy_of(server: Server) -> String {
    match server {
        Server::Sidecore { policy } => format!("policy = \"{policy}\"\n"),
        Server::Unmoderated | Server::Pairs { .. } => "policy = \"poll\"\n".to_string(),
        Server::Quota { frames } => {
            format!("policy = \"es2\"\nes2 = {{ quota_nic = {frames} }}\n")
        }
        _ => String::new(),
    }
}

pub(super) fn await_socket(socket: &Path, children: &mut Children) -> Result<()> {
    waiting::until(&socket.display().to_string(), STARTS_WITHIN, || {
        children.are_alive()?;
        Ok(socket.exists().then_some(()))
    })
}

/// A program of somebody else's that serves, where it belongs.
pub(super) fn on_server(program: &str, configuration: &Configuration, cpus: &Cpus) -> Command {
    if !configuration.is_pinned {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", &cpus.server.to_string(), program]);
    command
}

pub(super) fn words<'a>(all: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    all.into_iter().map(ToString::to_string).collect()
}
