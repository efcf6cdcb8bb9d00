//! What the kernel says of a daemon's process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Daemon, await_that};

impl Daemon {
    /// Descriptors that it has open.
    ///
    /// # Errors
    /// It is gone.
    pub fn descriptors(&self) -> Result<usize> {
        Ok(std::fs::read_dir(self.proc("fd"))?.count())
    }

    /// Waits until it has no more than `most` descriptors open.
    ///
    /// # Errors
    /// It still has after [`crate::timing::PATIENCE`].
    pub fn await_descriptors(&self, most: usize) -> Result<()> {
        let waited = await_that("descriptors to be closed", || Ok(self.descriptors()? <= most));
        waited.with_context(|| format!("{most} are expected, open are {:?}", self.open()))
    }

    /// What it has open: how many of each kind.
    pub fn open(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        let open = std::fs::read_dir(self.proc("fd")).into_iter().flatten().flatten();
        for target in open.filter_map(|entry| std::fs::read_link(entry.path()).ok()) {
            let target = target.to_string_lossy();
            // Of a socket, without its number.
            let kind = target.split_once(":[").filter(|(kind, _)| *kind != "anon_inode");
            *kinds.entry(kind.map_or(&*target, |(kind, _)| kind).to_owned()).or_default() += 1;
        }
        kinds
    }

    /// Memory of its own that it holds, bytes: not what it shares with front-ends, nor its RAM disks.
    ///
    /// # Errors
    /// It is gone.
    pub fn own_bytes(&self) -> Result<u64> {
        let status = std::fs::read_to_string(self.proc("status"))?;
        let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib: u64 = own.context("no RssAnon")?.trim().trim_end_matches(" kB").parse()?;
        Ok(kib << 10)
    }

    /// What it has mapped, as the kernel lists it.
    ///
    /// # Errors
    /// It is gone.
    pub fn mappings(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.proc("maps"))?)
    }

    /// Its threads: the name of each, and the processors it may run on as the kernel lists them.
    ///
    /// # Errors
    /// It has ended.
    pub fn threads(&self) -> Result<Vec<(String, String)>> {
        let mut threads = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            // A thread that ends between the two has no name.
            let Ok(status) = std::fs::read_to_string(entry?.path().join("status")) else {
                continue;
            };
            let field = |name| {
                let found = status.lines().find_map(|line| line.strip_prefix(name));
                found.map(|value| value.trim().to_owned()).context(name)
            };
            threads.push((field("Name:")?, field("Cpus_allowed_list:")?));
        }
        Ok(threads)
    }

    /// CPU time of all its threads, user and system, in clock ticks of 10 ms.
    ///
    /// # Errors
    /// It is gone.
    pub fn cpu_ticks(&self) -> Result<u64> {
        let stat = std::fs::read_to_string(self.proc("stat"))?;
        let fields = stat_fields(&stat).context("an odd /proc/PID/stat")?;
        // Fields 14 and 15 of the whole line; the name and the process number are cut off.
        let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
        number(11).zip(number(12)).map(|(user, system)| user + system).context("no times")
    }

    /// Waits until every thread of it sleeps, so that only a kick or a message wakes it.
    ///
    /// # Errors
    /// It does not within [`crate::timing::PATIENCE`].
    pub fn await_sleep(&self) -> Result<()> {
        let mut looks = 0;
        await_that("the daemon to sleep", || {
            looks = if self.is_asleep()? { looks + 1 } else { 0 };
            Ok(looks == 3)
        })
    }

    fn is_asleep(&self) -> Result<bool> {
        for task in std::fs::read_dir(self.proc("task"))? {
            // A thread that ends between the two is no hindrance.
            let Ok(stat) = std::fs::read_to_string(task?.path().join("stat")) else { continue };
            if stat_fields(&stat).and_then(|fields| fields.first().copied()) != Some("S") {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Descriptors that it has open, and mappings of memory that front-ends have lent.
    ///
    /// # Errors
    /// It is gone.
    pub fn holds(&self) -> Result<(usize, usize)> {
        let lent = self.mappings()?.lines().filter(|line| line.contains("memfd:")).count();
        Ok((self.descriptors()?, lent))
    }

    fn proc(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.pid().to_string()).join(name)
    }
}

/// What follows the name in a line of `/proc/PID/stat`, from the state on.
fn stat_fields(stat: &str) -> Option<Vec<&str>> {
    Some(stat.rsplit_once(") ")?.1.split(' ').collect())
}
