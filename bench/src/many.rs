//! `bench many`: what a thousand idle queues cost the busy one beside them.
//!
//! Two daemons on core 0, measured in turn: one with a single device, one with that device and
//! sixteen more of 64 queues, all attached by front-ends that never ask for anything.

use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use testing::frontend::{Frontend, FrontendSpec};
use testing::load::BATCH;
use testing::report::{ROUNDS_MIN, Row};
use testing::server::{DiskSetup, Medium, Server, Who};
use testing::slots::Kind;
use virtqueue::Format;
use virtqueue::driver::RingSpec;

use crate::bed::{Bed, DRIVER_CORE, RoundSpec, sidecore, warn_if_disturbed};

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

pub(crate) fn run(options: &Options) -> Result<Vec<Row>> {
    crate::blk::pin(DRIVER_CORE)?;
    allow_files(FILES)?;
    eprintln!("bench: starting one daemon with 1 queue and one with 1,025");
    let (mut alone, _) = start(options, "alone", 0)?;
    // Attached for as long as the bench runs.
    let (mut beside, _idle) = start(options, "beside", IDLE_DEVICES)?;
    let times_ms = if options.quick { [50, 450] } else { [200, 1800] };
    let spec = RoundSpec { kind: Kind::Read, depth: DEPTH, batch: BATCH, times_ms };
    let (mut alone_rounds, mut beside_rounds) = (Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        alone_rounds.push(alone.round(spec)?);
        beside_rounds.push(beside.round(spec)?);
        eprintln!("bench: many: round {round} of {}", options.rounds);
    }
    warn_if_disturbed("many", alone_rounds.iter().chain(&beside_rounds));
    let mut rows = alone.rows("many.alone", &alone_rounds);
    rows.extend(beside.rows("many.beside_1000", &beside_rounds));
    // Round by round, so that drift hits both sides of a ratio.
    let pairs = || beside_rounds.iter().zip(&alone_rounds);
    let ratio = |name: &str, values: Vec<f64>| {
        Row::new(format!("many.ratio.{name}"), Who::Sidecore, "1", &values)
    };
    let iops = pairs().map(|(beside, alone)| beside.round.iops() / alone.round.iops());
    let cpu = pairs().map(|(beside, alone)| beside.cpu_ns_per_op / alone.cpu_ns_per_op);
    rows.push(ratio("iops", iops.collect()));
    rows.push(ratio("cpu_ns_per_op", cpu.collect()));
    Ok(rows)
}

/// Starts a daemon with one disk to be busy and some to be idle, all attached.
fn start(options: &Options, name: &str, idle_devices: u16) -> Result<(Bed, Vec<Frontend>)> {
    let mut disks = vec![null_disk(BUSY, 1)];
    for device in 0..idle_devices {
        disks.push(null_disk(&idle_id(device), QUEUES_PER_DEVICE));
    }
    let disks: String = disks.iter().map(DiskSetup::declared).collect();
    let config = sidecore(name, &disks, options.sidecore.as_deref());
    let mut server = Server::ours(Who::Sidecore, config.start()?);
    let mut idle = Vec::new();
    for device in 0..idle_devices {
        let spec = FrontendSpec { queues: QUEUES_PER_DEVICE, ..FrontendSpec::linux() };
        let what = || format!("idle device {device}");
        idle.push(server.frontend(&idle_id(device), &spec).with_context(what)?);
    }
    let ring =
        RingSpec { size: 128, format: Format::Split, event_index: true, indirect_entries: 3 };
    let spec = FrontendSpec { ring, ..FrontendSpec::linux() };
    let busy = server.frontend(BUSY, &spec)?;
    Ok((Bed::new(server, busy, [DEPTH.into(), BLOCK_BYTES], None)?, idle))
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
pub(crate) fn allow_files(wanted: u64) -> Result<()> {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|files| files >= wanted) {
        return Ok(());
    }
    let maximum = now.maximum.map(|most| most.max(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).with_context(|| {
        format!("the bench needs {wanted} open files: raise the limit (ulimit -Hn {wanted})")
    })
}
