//! A daemon of one sidecore with disks of a kind, for the parts of `bench schedule`.
//!
//! Not here: what is asked of the disks.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use testing::clock::now_ns;
use testing::frontend::{Frontend, FrontendSpec};
use testing::scratch::Scratch;
use testing::server::{CpuTime, Server};

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

    fn config(&self, place: &str) -> String {
        let Disk { id, backend, size_bytes, queues, policy } = self;
        let policy = policy.map(|policy| format!("policy = \"{policy}\"\n")).unwrap_or_default();
        format!(
            "\n[[disk]]\nid = \"{id}\"\nsocket = \"{place}/{id}.sock\"\nqueues = {queues}\n\
             backend = \"{backend}\"\nsize = \"{size_bytes}\"\n{policy}"
        )
    }
}

/// A running daemon. The folder goes away after it.
#[derive(Debug)]
pub(super) struct Daemon {
    server: Server,
    dir: Scratch,
}

impl Daemon {
    /// Starts one; `sidecores` are lines of that part of the configuration file. `name` tells the
    /// daemons of this process apart.
    pub(super) fn start(
        options: &Options,
        name: &str,
        sidecores: &str,
        disks: &[Disk],
    ) -> Result<Daemon> {
        let dir = Scratch::new(&std::env::temp_dir(), name)?;
        let place = dir.path().display().to_string();
        let disks: String = disks.iter().map(|disk| disk.config(&place)).collect();
        let config = format!("{sidecores}{disks}");
        let binary = options.sidecore()?;
        let server = Server::sidecore_with(&binary, dir.path(), SERVER_CORE, &config)?;
        Ok(Daemon { server, dir })
    }

    /// Starts one with a sidecore on each core, as [`Server::sidecores_with`].
    pub(super) fn start_on_all(
        options: &Options,
        name: &str,
        ahead: bool,
        disks: &[Disk],
    ) -> Result<Daemon> {
        let dir = Scratch::new(&std::env::temp_dir(), name)?;
        let place = dir.path().display().to_string();
        let disks: String = disks.iter().map(|disk| disk.config(&place)).collect();
        let cores = format!("{SERVER_CORE},{DRIVER_CORE}");
        let binary = options.sidecore()?;
        let server = Server::sidecores_with(&binary, dir.path(), &cores, ahead, &disks)?;
        Ok(Daemon { server, dir })
    }

    /// Where its files are.
    pub(super) fn place(&self) -> &Path {
        self.dir.path()
    }

    /// Connects to a disk as soon as it listens.
    pub(super) fn frontend(&mut self, id: &str, spec: &FrontendSpec) -> Result<Frontend> {
        self.server.frontend(id, spec).with_context(|| format!("disk {id}"))
    }

    /// Connects to all these disks, which were started in this order. Looks only for the last one's
    /// socket: looking for each of a thousand takes seconds.
    pub(super) fn frontends(
        &mut self,
        ids: &[String],
        spec: &FrontendSpec,
    ) -> Result<Vec<Frontend>> {
        if let Some(last) = ids.last() {
            self.server.wait_for(last)?;
        }
        let place = self.dir.path();
        let connect = |id: &String| {
            Frontend::connect(&place.join(format!("{id}.sock")), spec.clone()).with_context(|| {
                format!("disk {id}; the daemon says:\n{}", self.server.last_words())
            })
        };
        ids.iter().map(connect).collect()
    }

    /// The process, and what must go away after it.
    pub(super) fn into_parts(self) -> (Server, Scratch) {
        (self.server, self.dir)
    }

    /// What its sidecore counted so far.
    pub(super) fn counters(&self) -> Result<Counters> {
        let all = self.counters_of_all()?;
        ensure!(all.len() == 1, "{} sidecores instead of one", all.len());
        all.first().copied().context("no sidecore")
    }

    /// What each of its sidecores counted so far.
    pub(super) fn counters_of_all(&self) -> Result<Vec<Counters>> {
        counters::ask(&self.dir.path().join("api.sock"))
    }

    /// CPU time so far of all its threads, and of its sidecore alone.
    pub(super) fn cpu(&self) -> Result<[CpuTime; 2]> {
        let pid = self.server.pid();
        Ok([CpuTime::of_process(pid)?, CpuTime::of_threads(pid, "sidecore-")?])
    }

    /// Keeps it from running, and returns when no thread of it runs any more.
    pub(super) fn stop(&self) -> Result<()> {
        self.server.pause()?;
        let start = now_ns();
        while !is_stopped(self.server.pid())? {
            ensure!(now_ns() - start < PATIENCE_NS, "the daemon does not stop at a signal");
        }
        Ok(())
    }

    /// Lets it run again.
    pub(super) fn go_on(&self) -> Result<()> {
        self.server.resume()
    }
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
        assert!(!disk.config("/p").contains("policy"));
        disk.policy = Some("poll");
        let text = disk.config("/p");
        assert!(text.ends_with("size = \"1073741824\"\npolicy = \"poll\"\n"), "{text}");
        assert!(text.contains("socket = \"/p/d.sock\"\nqueues = 2\n"), "{text}");
    }
}
