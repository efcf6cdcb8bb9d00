//! A server under test with the front-end that loads it, measured one round at a time.
//!
//! Shared by `bench blk`, `bench many` and `bench schedule`. Between rounds the server is stopped by a signal.

use std::path::Path;

use anyhow::Result;
use testing::daemon::{Config, Daemon};
use testing::frontend::Frontend;
use testing::load::{Load, Round};
use testing::report::Row;
use testing::scratch::Scratch;
use testing::server::{CpuTime, Server};
use testing::slots::{Kind, Slots};

/// The core of the server that is measured.
pub(crate) const SERVER_CORE: u16 = 0;
/// The core of the driver side.
pub(crate) const DRIVER_CORE: u16 = 1;

/// Part of the time that others may take without a word.
pub(crate) const DISTURBED_MAX: f64 = 0.02;

/// A server and its front-end, whose queue 0 is loaded.
pub(crate) struct Bed {
    frontend: Frontend,
    slots: Slots,
    capacity_sectors: u64,
    server: Server,
    /// What must go away after the server.
    _kept: Option<Scratch>,
}

/// What a round is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundSpec {
    /// Reads or writes.
    pub(crate) kind: Kind,
    /// Requests in flight.
    pub(crate) depth: u16,
    /// Completions taken before publishing.
    pub(crate) batch: usize,
    /// Unmeasured and measured time, milliseconds.
    pub(crate) times_ms: [u64; 2],
}

/// One round of one server.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// What the driver side saw.
    pub(crate) round: Round,
    /// CPU time of the server for each request, nanoseconds.
    pub(crate) cpu_ns_per_op: f64,
    /// Part of the time in which another process had a core that was needed here.
    disturbed: f64,
}

/// This project's daemon with these devices, all of it on the core of the server.
pub(crate) fn sidecore(name: &str, devices: &str, program: Option<&Path>) -> Config {
    let core = SERVER_CORE.to_string();
    Daemon::with(name, devices).program(program).cpus(&core).pinned(&core)
}

impl Bed {
    /// Over a server that has been filled and compared; stops it. `kept` is dropped last.
    pub(crate) fn new(
        server: Server,
        mut frontend: Frontend,
        [depth, block_bytes]: [u32; 2],
        kept: Option<Scratch>,
    ) -> Result<Bed> {
        let capacity_sectors = frontend.capacity_sectors()?;
        let slots = Slots::new(frontend.memory(), depth as u16, block_bytes)?;
        server.pause()?;
        Ok(Bed { frontend, slots, capacity_sectors, server, _kept: kept })
    }

    /// The server.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// One round, and what the two sides had of their cores.
    pub(crate) fn round(&mut self, spec: RoundSpec) -> Result<Measured> {
        self.server.resume()?;
        let queue = self.frontend.queue(0);
        let (slots, capacity) = (&self.slots, self.capacity_sectors);
        let load = Load::new(&mut queue.driver, slots, spec.kind, spec.depth, capacity)?;
        let mut load = load.with_batch(spec.batch);
        let mut times = [[CpuTime::default(); 2]; 2];
        let [before, after] = &mut times;
        let server = &self.server;
        let both = || [server.cpu().unwrap_or_default(), CpuTime::own()];
        let times_ns = spec.times_ms.map(|ms| ms * 1_000_000);
        let round = load.run(queue, slots, times_ns, || *before = both(), || *after = both())?;
        load.end(&mut queue.driver);
        self.server.pause()?;
        let [[server_before, own_before], [server_after, own_after]] = times;
        let (server, own) = (server_after.since(server_before), own_after.since(own_before));
        let cpu_ns_per_op = server.used_ns as f64 / round.requests.max(1) as f64;
        let waited_ns = server.waited_ns.max(own.waited_ns);
        let disturbed = waited_ns as f64 / round.elapsed_ns.max(1) as f64;
        Ok(Measured { round, cpu_ns_per_op, disturbed })
    }

    /// What `rounds` of this server say, under the dotted `name`.
    pub(crate) fn rows(&self, name: &str, rounds: &[Measured]) -> Vec<Row> {
        let row = |what: &str, unit, value: &dyn Fn(&Measured) -> f64| {
            let values: Vec<f64> = rounds.iter().map(value).collect();
            Row::new(format!("{name}.{what}"), self.server.who(), unit, &values)
        };
        vec![
            row("iops", "1/s", &|m| m.round.iops()),
            row("p50_ns", "ns", &|m| m.round.p50_ns as f64),
            row("p99_ns", "ns", &|m| m.round.p99_ns as f64),
            row("cpu_ns_per_op", "ns", &|m| m.cpu_ns_per_op),
        ]
    }
}

/// Tells the reader when others took the cores, which makes IOPS too low and spreads wide.
pub(crate) fn warn_if_disturbed<'a>(name: &str, rounds: impl Iterator<Item = &'a Measured>) {
    let disturbed = rounds.map(|m| m.disturbed).fold(0.0, f64::max);
    if disturbed > DISTURBED_MAX {
        let percent = disturbed * 100.0;
        eprintln!("bench: {name}: other processes took up to {percent:.0}% of a core");
    }
}
