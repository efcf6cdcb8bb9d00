//! `bench many`: what a thousand idle queues cost the busy one beside them.
//!
//! Two daemons on core 0, measured in turn: one with a single device, one with that device and
//! sixteen more of 64 queues, all attached by front-ends that never ask for anything.

use std::path::PathBuf;

use anyhow::{Context, Result};
use bench::frontend::{Frontend, FrontendSpec};
use bench::load::Load;
use bench::report::{ROUNDS_MIN, Row};
use bench::scratch::Scratch;
use bench::server::{DiskSetup, Medium, Server, Who, sidecore_binary};
use bench::slots::{Kind, Slots};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

const SERVER_CORE: u16 = 0;
const DRIVER_CORE: u16 = 1;
const IDLE_DEVICES: u16 = 16;
const QUEUES_PER_DEVICE: u16 = 64;
const DEPTH: u16 = 32;
const BLOCK_BYTES: u32 = 4096;
const DISK_BYTES: u64 = 1 << 30;
const BUSY: &str = "busy";
/// Descriptors that the bench, or the daemon, needs: two for each queue and some.
const FILES: u64 = 8192;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Shorter rounds: all of it in under half a minute.
    #[arg(long)]
    quick: bool,
    /// Rounds; a reported number stands on at least five.
    #[arg(long, default_value_t = 2 * ROUNDS_MIN, value_parser = crate::blk::rounds)]
    rounds: usize,
    /// The sidecore program. Default: beside this one, or SIDECORE_BIN.
    #[arg(long, value_name = "PATH")]
    sidecore: Option<PathBuf>,
}

/// A daemon with one busy disk and perhaps idle ones.
struct Bed {
    busy: Frontend,
    slots: Slots,
    capacity_sectors: u64,
    /// Attached for as long as the bed stands.
    _idle: Vec<Frontend>,
    server: Server,
    _dir: Scratch,
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>> {
    crate::blk::pin(DRIVER_CORE)?;
    allow_files(FILES)?;
    eprintln!("bench: starting one daemon with 1 queue and one with 1,025");
    let mut alone = Bed::new(options, "alone", 0)?;
    let mut beside = Bed::new(options, "beside", IDLE_DEVICES)?;
    let (mut alone_iops, mut beside_iops, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        let (first, second) = (alone.round(options)?, beside.round(options)?);
        eprintln!("bench: round {round}: alone {first:.0}, beside 1,024 {second:.0} IOPS");
        alone_iops.push(first);
        beside_iops.push(second);
        ratios.push(second / first);
    }
    let row = |name: &str, unit, values: &[f64]| {
        Row::new(format!("many.{name}"), Who::Sidecore, unit, values)
    };
    Ok(vec![
        row("alone.iops", "1/s", &alone_iops),
        row("beside_1000.iops", "1/s", &beside_iops),
        row("beside_1000.ratio", "1", &ratios),
    ])
}

impl Bed {
    fn new(options: &Options, name: &str, idle_devices: u16) -> Result<Bed> {
        let binary = match &options.sidecore {
            Some(path) => path.clone(),
            None => sidecore_binary()?,
        };
        let dir = Scratch::new(&std::env::temp_dir(), name)?;
        let mut disks = vec![null_disk(BUSY, 1)];
        for device in 0..idle_devices {
            disks.push(null_disk(&idle_id(device), QUEUES_PER_DEVICE));
        }
        let mut server = Server::sidecore(&binary, dir.path(), SERVER_CORE, &disks)?;
        let mut idle = Vec::new();
        for device in 0..idle_devices {
            let spec = FrontendSpec { queues: QUEUES_PER_DEVICE, ..FrontendSpec::default() };
            let what = || format!("idle device {device}");
            idle.push(server.frontend(&idle_id(device), &spec).with_context(what)?);
        }
        let ring =
            RingSpec { size: 128, format: Format::Split, event_index: true, indirect_entries: 3 };
        let spec = FrontendSpec { ring, ..FrontendSpec::default() };
        let mut busy = server.frontend(BUSY, &spec)?;
        let capacity_sectors = busy.capacity_sectors()?;
        let slots = Slots::new(busy.memory(), DEPTH, BLOCK_BYTES)?;
        server.pause()?;
        Ok(Bed { busy, slots, capacity_sectors, _idle: idle, server, _dir: dir })
    }

    /// Requests a second in one round.
    fn round(&mut self, options: &Options) -> Result<f64> {
        self.server.resume()?;
        let queue = self.busy.queue(0);
        let (slots, capacity) = (&self.slots, self.capacity_sectors);
        let mut load = Load::new(&mut queue.driver, slots, Kind::Read, DEPTH, capacity)?;
        let times = if options.quick { [50, 450] } else { [200, 1800] };
        let times = times.map(|ms| ms * 1_000_000);
        let round = load.run(queue, slots, times, || (), || ())?;
        load.end(&mut queue.driver);
        self.server.pause()?;
        Ok(round.iops())
    }
}

fn null_disk(id: &str, queues: u16) -> DiskSetup {
    DiskSetup {
        id: id.to_string(),
        medium: Medium::Null,
        size_bytes: DISK_BYTES,
        queues,
        unsealed_memory: false,
    }
}

fn idle_id(device: u16) -> String {
    format!("idle{device}")
}

/// Raises the limit of open files for this process and the daemons that it starts.
fn allow_files(wanted: u64) -> Result<()> {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|files| files >= wanted) {
        return Ok(());
    }
    let maximum = now.maximum.map(|most| most.max(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).with_context(|| {
        format!("the bench needs {wanted} open files: raise the limit (ulimit -Hn {wanted})")
    })
}
