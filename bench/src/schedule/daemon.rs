//! A daemon of one sidecore with disks of a kind, for the parts of `bench schedule`.
//!
//! Not here: what is asked of the disks.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use testing::clock::now_ns;
use testing::daemon::Config;
use testing::frontend::{Frontend, FrontendSpec};
use testing::server::{CpuTime, Server, Who};

use super::counters::{self, Counters};
use super::{Options, PATIENCE_NS};
use crate::bed::{DRIVER_CORE, SERVER_CORE};

/// One disk, as it stands in the configuration file.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    /// Name; also of its socket.
    pub(super) id: String,
    /// `null` or `memory`.
    pub(super) backend: &'static str,
    /// Capacity, bytes.
    pub(super) size_bytes: u64,
    /// Queues offered.
    pub(super) queues: u16,
    /// When its queues are polled; the daemon's default if it says nothing.
    pub(super) policy: Option<&'static str>,
}

impl Disk {
    /// A disk of `queues` queues that does nothing.
    pub(super) fn null(id: String, queues: u16) -> Disk {
        Disk { id, backend: "null", size_bytes: 1 << 30, queues, policy: None }
    }

    fn config(&self) -> String {
        let Disk { id, backend, size_bytes, queues, policy } = self;
        let policy = policy.map(|policy| format!("policy = \"{policy}\"\n")).unwrap_or_default();
        format!(
            "[[disk]]\nid = \"{id}\"\nqueues = {queues}\nbackend = \"{backend}\"\n\
             size = \"{size_bytes}\"\n{policy}"
        )
    }
}

/// A running daemon.
#[derive(Debug)]
pub(super) struct Daemon(testing::daemon::Daemon);

impl Daemon {
    /// Starts one; `sidecores` are lines of that part of the configuration file. `name` tells the
    /// daemons of this process apart.
    pub(super) fn start(
        options: &Options,
        name: &str,
        sidecores: &str,
        disks: &[Disk],
    ) -> Result<Daemon> {
        let cores = SERVER_CORE.to_string();
        Ok(Daemon(config(options, name, &cores, sidecores, disks).start()?))
    }

    /// Starts one with a sidecore on each core, each at real-time priority if `ahead`: then what else runs on its
    /// core waits while it has something to do, as if the core were its own.
    pub(super) fn start_on_all(
        options: &Options,
        name: &str,
        ahead: bool,
        disks: &[Disk],
    ) -> Result<Daemon> {
        let cores = format!("{SERVER_CORE},{DRIVER_CORE}");
        let config = config(options, name, &cores, "", disks);
        let config = if ahead { config.through(&["chrt", "-f", "20"]) } else { config };
        Ok(Daemon(config.start()?))
    }

    /// Where its files are.
    pub(super) fn place(&self) -> &Path {
        self.0.dir()
    }

    /// Connects to a disk as soon as it listens.
    pub(super) fn frontend(&self, id: &str, spec: &FrontendSpec) -> Result<Frontend> {
        self.0.frontend(id, spec).with_context(|| format!("disk {id}"))
    }

    /// Connects to all these disks.
    pub(super) fn frontends(&self, ids: &[String], spec: &FrontendSpec) -> Result<Vec<Frontend>> {
        ids.iter().map(|id| self.frontend(id, spec)).collect()
    }

    /// To be measured as others are.
    pub(super) fn into_server(self) -> Server {
        Server::ours(Who::Sidecore, self.0)
    }

    /// What its sidecore counted so far.
    pub(super) fn counters(&self) -> Result<Counters> {
        let all = self.counters_of_all()?;
        ensure!(all.len() == 1, "{} sidecores instead of one", all.len());
        all.first().copied().context("no sidecore")
    }

    /// What each of its sidecores counted so far.
    pub(super) fn counters_of_all(&self) -> Result<Vec<Counters>> {
        counters::ask(&self.0.socket("api"))
    }

    /// CPU time so far of all its threads, and of its sidecore alone.
    pub(super) fn cpu(&self) -> Result<[CpuTime; 2]> {
        let pid = self.0.pid();
        Ok([CpuTime::of_process(pid)?, CpuTime::of_threads(pid, "sidecore-")?])
    }

    /// Keeps it from running, and returns when no thread of it runs any more.
    pub(super) fn stop(&self) -> Result<()> {
        self.0.halt()?;
        let start = now_ns();
        while !is_stopped(self.0.pid())? {
            ensure!(now_ns() - start < PATIENCE_NS, "the daemon does not stop at a signal");
        }
        Ok(())
    }

    /// Lets it run again.
    pub(super) fn go_on(&self) -> Result<()> {
        self.0.resume()
    }
}

fn config(options: &Options, name: &str, cores: &str, sidecores: &str, disks: &[Disk]) -> Config {
    let disks: String = disks.iter().map(Disk::config).collect();
    let config = testing::daemon::Daemon::with(name, &disks).program(options.sidecore.as_deref());
    config.sidecores(&format!("cpus = \"{cores}\"\n{sidecores}")).pinned(cores)
}

/// Whether every thread of a process is stopped by a signal.
fn is_stopped(pid: u32) -> Result<bool> {
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).context("the daemon is gone")? {
        let stat = std::fs::read_to_string(task?.path().join("stat")).unwrap_or_default();
        if state_of(&stat) != Some('T') {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The state in a line of `/proc/PID/stat`: what follows the name, which may contain anything.
fn state_of(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_stands_behind_the_name() {
        assert_eq!(state_of("17 (sidecore-0) T 1 17 17 0"), Some('T'));
        assert_eq!(state_of("17 (a) R (b) S 1 17"), Some('S'));
        assert_eq!(state_of(""), None);
    }

    #[test]
    fn a_disk_says_its_policy_only_if_it_has_one() {
        let mut disk = Disk::null("d".to_string(), 2);
        assert!(!disk.config().contains("policy"));
        disk.policy = Some("poll");
        let text = disk.config();
        assert!(text.ends_with("size = \"1073741824\"\npolicy = \"poll\"\n"), "{text}");
        assert!(text.contains("id = \"d\"\nqueues = 2\n"), "{text}");
    }
}
