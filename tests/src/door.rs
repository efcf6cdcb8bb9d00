//! Where a hostile front-end gets in: one disk of a daemon that serves others as well, and what must be
//! true once such a front-end has gone.
//!
//! Not what it does (`misdeeds`), nor who is beside it (`neighbour`, and `tests/tests/hostile/crowd.rs`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use testing::clock::now_ns;
use testing::frontend::{Frontend, FrontendSpec};

use crate::hostile_guest::{Guest, Layout};
use crate::raw_front_end::Raw;
use crate::single::Single;
use testing::daemon::{Daemon, await_that};
use testing::timing::judge;
use testing::verified::Load;

/// Hundreds of mappings are not undone in one moment.
const GIVEN_BACK_NS: u64 = 1_000_000_000;

/// What a daemon has of its front-ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Descriptors by their kinds, its own among them.
    open: BTreeMap<String, usize>,
    /// Mappings of memory that front-ends have lent.
    pub mappings: usize,
}

impl Held {
    /// As it is now.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn now(daemon: &Daemon) -> Result<Held> {
        Ok(Held { open: daemon.open(), mappings: guest_mappings(daemon)? })
    }

    /// And what a sidecore makes with its first disk on a file, and keeps: an io_uring, and what wakes it.
    #[must_use]
    pub fn with_ring(mut self) -> Held {
        for kind in ["anon_inode:[io_uring]", "anon_inode:[eventfd]"] {
            *self.open.entry(kind.to_owned()).or_default() += 1;
        }
        self
    }

    /// How many descriptors.
    pub fn descriptors(&self) -> usize {
        self.open.values().sum()
    }

    /// Waits until the daemon has no more than this.
    ///
    /// # Errors
    /// It keeps something: what.
    pub fn awaited(&self, daemon: &Daemon) -> Result<()> {
        let waited = daemon.await_descriptors(self.descriptors());
        waited.with_context(|| format!("before it was {:?}", self.open))?;
        let (mut found, start) = (0, now_ns());
        let waited = await_that("memory to be given back", || {
            found = guest_mappings(daemon)?;
            Ok(found == self.mappings)
        });
        waited.with_context(|| format!("{found} guest mappings, not {}", self.mappings))?;
        let took_ns = now_ns() - start;
        judge(took_ns < GIVEN_BACK_NS, || format!("memory was given back after {took_ns} ns"))
    }
}

fn guest_mappings(daemon: &Daemon) -> Result<usize> {
    let maps = daemon.mappings()?;
    // A RAM disk is the daemon's own.
    let lent = |line: &&str| line.contains("memfd:") && !line.contains("memfd:sidecore-");
    Ok(maps.lines().filter(lent).count())
}

/// The place, and what is beside it.
#[derive(Clone, Copy, Debug)]
pub struct Door<'a> {
    /// The daemon.
    pub daemon: &'a Daemon,
    /// The disk's name. It has 4 MiB and two queues unless a misdeed asks for another.
    pub disk: &'a str,
    /// Somebody who is at work on another disk.
    pub load: &'a Load,
    /// What the daemon has while nobody is at this one.
    pub held: &'a Held,
    /// Whether misdeeds that can be repeated without end are repeated very often.
    pub is_long: bool,
}

impl Door<'_> {
    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.daemon.socket(self.disk)
    }

    /// A front-end that negotiated everything offered.
    ///
    /// # Errors
    /// As [`Raw::negotiated`].
    pub fn raw(&self) -> Result<Raw> {
        Raw::negotiated(&self.socket(), 0)
    }

    /// A front-end that behaves.
    ///
    /// # Errors
    /// As [`Daemon::frontend`].
    pub fn frontend(&self, spec: &FrontendSpec) -> Result<Frontend> {
        self.daemon.frontend(self.disk, spec)
    }

    /// A guest without a driver.
    ///
    /// # Errors
    /// As [`Guest::start`], with the daemon's last words.
    pub fn guest(&self, layout: Layout) -> Result<Guest> {
        let started = Guest::start(&self.socket(), layout);
        started.with_context(|| format!("the daemon says:\n{}", self.daemon.last_words()))
    }

    /// Queues of the disk that are served.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    pub fn served(&self) -> Result<u64> {
        let served = self.daemon.shown(self.disk, "queues_attached")?;
        served.as_u64().context("no number of queues")
    }

    /// After a misdeed, with every front-end of it gone: the others go on, and nothing is left of it.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn is_unharmed(&self) -> Result<()> {
        self.load.await_requests(20)?;
        self.held.awaited(self.daemon)
    }

    /// A good front-end comes, works, and goes.
    ///
    /// # Errors
    /// It is not served.
    pub fn is_of_use(&self) -> Result<()> {
        let spec = FrontendSpec { queues: 2, ..FrontendSpec::default() };
        let mut frontend = None;
        // One that did what costs others time is kept out for 10 s.
        let waited = await_that("the next front-end", || {
            frontend = self.frontend(&spec).ok();
            Ok(frontend.is_some())
        });
        waited.with_context(|| format!("the daemon says:\n{}", self.daemon.last_words()))?;
        let mut frontend = frontend.context("no front-end")?;
        let single = Single::new(&mut frontend)?;
        for queue in frontend.queues() {
            single.exercise(queue, 900)?;
        }
        frontend.disconnect()
    }

    /// What was measured, for the record.
    #[expect(clippy::disallowed_macros, reason = "what was measured is for the record")]
    pub fn note(&self, measured: &str) {
        println!("{}: {measured}", self.disk);
    }
}
