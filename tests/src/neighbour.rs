//! A daemon with two disks: a well-behaved guest works on one, anything may happen to the other.
//!
//! What is proved of every misdeed: the neighbour sees no error, the daemon lives, no descriptor
//! and no mapping is left, and the abused disk serves the next front-end.

use anyhow::{Context, Result, ensure};
use testing::frontend::{Frontend, FrontendSpec};

use crate::door::{Door, Held};
use testing::bed::tests_all;
use testing::daemon::Daemon;
use testing::verified::Load;

/// The abused disk.
pub const BAD: &str = "bad";
const VICTIM: &str = "victim";

/// The daemon, the load on its first disk, and what it holds while nobody is at the second.
#[derive(Debug)]
pub struct Neighbour {
    /// The daemon.
    pub daemon: Daemon,
    load: Load,
    held: Held,
    /// Last, so that it stays connected.
    _frontend: Frontend,
}

impl Neighbour {
    /// Starts the daemon and the load; `disk` is the rest of the abused one's `[[disk]]`.
    ///
    /// # Errors
    /// One of them does not start.
    pub fn start(name: &str, disk: &str) -> Result<Neighbour> {
        let disks = format!(
            "[[disk]]\nid = \"{VICTIM}\"\nbackend = \"memory\"\nsize = \"4M\"\n\
             [[disk]]\nid = \"{BAD}\"\n{disk}\n"
        );
        let daemon = Daemon::start(name, &disks)?;
        let mut frontend = daemon.frontend(VICTIM, &FrontendSpec::default())?;
        // Started in order, nothing is left to do.
        daemon.await_sleep()?;
        let mut held = Held::now(&daemon)?;
        if disk.contains("path = ") {
            held = held.with_ring();
        }
        let load = Load::witness(&mut frontend)?;
        load.await_requests(50)?;
        let mut neighbour = Neighbour { daemon, load, held, _frontend: frontend };
        neighbour.door().is_of_use()?;
        neighbour.is_unharmed().context("after a good front-end")?;
        Ok(neighbour)
    }

    /// The way to the abused disk.
    pub fn door(&self) -> Door<'_> {
        let Neighbour { daemon, load, held, .. } = self;
        Door { daemon, disk: BAD, load, held, is_long: tests_all() }
    }

    /// After the abuse, with every front-end of it gone: nothing may be left of it.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn is_unharmed(&mut self) -> Result<()> {
        self.daemon.is_alive()?;
        self.door().is_unharmed()
    }

    /// As [`Neighbour::is_unharmed`], and the abused disk serves; then all ends.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn finish(mut self) -> Result<()> {
        self.is_unharmed()?;
        self.door().is_of_use().context("a good front-end after the bad ones")?;
        self.load.finish().context("the neighbour")?;
        let errors = self.daemon.shown(VICTIM, "counters")?["errors"].clone();
        ensure!(errors == 0, "the neighbour has {errors} errors");
        Ok(())
    }
}
