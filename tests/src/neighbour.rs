//! A daemon with two disks: a well-behaved guest works on one, anything may happen to the other.
//!
//! What is proved of every misdeed: the neighbour sees no error, the daemon lives, no descriptor
//! and no mapping is left, and the abused disk serves the next front-end.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bench::frontend::{Frontend, FrontendSpec};

use crate::daemon::{Daemon, await_that};
use crate::load::Load;
use crate::raw_front_end::Raw;
use crate::single::Single;

/// The abused disk; it has two queues.
pub const BAD: &str = "bad";
const VICTIM: &str = "victim";
const DISKS: &str = "[[disk]]\nid = \"victim\"\nbackend = \"memory\"\nsize = \"4M\"\n";

/// The daemon, the load on its first disk, and what it holds while nobody is at the second.
#[derive(Debug)]
pub struct Neighbour {
    /// The daemon.
    pub daemon: Daemon,
    load: Load,
    descriptors: usize,
    mappings: usize,
    /// Last, so that it stays connected.
    _frontend: Frontend,
}

impl Neighbour {
    /// Starts the daemon and the load.
    ///
    /// # Errors
    /// One of them does not start.
    pub fn start(name: &str) -> Result<Neighbour> {
        let daemon = Daemon::start(name, DISKS)?;
        daemon.ask(&format!("disk add {BAD} --backend memory --size 4M --queues 2"))?;
        let mut frontend = daemon.frontend(VICTIM, &FrontendSpec::default())?;
        // The commands' connections are closed when nothing is left to do.
        daemon.await_sleep()?;
        let (descriptors, mappings) = (daemon.descriptors()?, guest_mappings(&daemon)?);
        let (load, _) = Load::start(&mut frontend)?;
        load.await_requests(50)?;
        use_bad_disk(&daemon)?;
        let mut neighbour = Neighbour { daemon, load, descriptors, mappings, _frontend: frontend };
        neighbour.is_unharmed().context("after a good front-end")?;
        Ok(neighbour)
    }

    /// A front-end of the abused disk that negotiated everything offered.
    ///
    /// # Errors
    /// As [`Raw::negotiated`].
    pub fn raw(&self) -> Result<Raw> {
        Raw::negotiated(&self.daemon.socket(BAD), 0)
    }

    /// Queues of the abused disk that are served.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    pub fn served(&self) -> Result<u64> {
        self.daemon.shown(BAD, "queues_attached")?.as_u64().context("no number of queues")
    }

    /// After the abuse, with every front-end of it gone: nothing may be left of it.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn is_unharmed(&mut self) -> Result<()> {
        self.daemon.is_alive()?;
        self.load.await_requests(20)?;
        self.daemon.await_descriptors(self.descriptors)?;
        // Hundreds of them are not unmapped in one moment.
        let mut found = 0;
        let waited = await_that(Duration::from_secs(1), "memory to be given back", || {
            found = guest_mappings(&self.daemon)?;
            Ok(found == self.mappings)
        });
        waited.with_context(|| format!("{found} guest mappings, not {}", self.mappings))
    }

    /// As [`Neighbour::is_unharmed`], and the abused disk serves; then all ends.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn finish(mut self) -> Result<()> {
        self.is_unharmed()?;
        use_bad_disk(&self.daemon).context("a good front-end after the bad ones")?;
        self.load.finish().context("the neighbour")?;
        let errors = self.daemon.shown(VICTIM, "counters")?["errors"].clone();
        ensure!(errors == 0, "the neighbour has {errors} errors");
        Ok(())
    }
}

/// A good front-end comes, works, and goes.
fn use_bad_disk(daemon: &Daemon) -> Result<()> {
    let spec = FrontendSpec { queues: 2, ..FrontendSpec::default() };
    let mut frontend = daemon.frontend(BAD, &spec)?;
    let single = Single::new(&mut frontend)?;
    for queue in frontend.queues() {
        single.exercise(queue, 900)?;
    }
    frontend.disconnect()
}

/// Mappings of memory that front-ends have lent.
fn guest_mappings(daemon: &Daemon) -> Result<usize> {
    let maps = daemon.mappings()?;
    Ok(maps.lines().filter(|line| line.contains("memfd:")).count())
}
