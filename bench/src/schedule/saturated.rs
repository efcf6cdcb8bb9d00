//! Kicks for each request on a queue that always has work, counted by the driver that makes them.

use anyhow::Result;
use testing::frontend::FrontendSpec;
use testing::load::BATCH;
use testing::report::{ROUNDS_MIN, Row};
use testing::slots::Kind;

use super::daemon::{Daemon, Disk};
use super::{Options, USUAL_RING, row};
use crate::bed::{Bed, RoundSpec, warn_if_disturbed};

const DEPTHS: [u16; 2] = [32, 128];
const BLOCK_BYTES: u32 = 4096;
const DISK: &str = "busy";

pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    eprintln!("bench: schedule.saturated: starting a daemon");
    let daemon = Daemon::start(options, "saturated", "", &[Disk::null(DISK.to_string(), 1)])?;
    let spec = FrontendSpec { ring: USUAL_RING, ..FrontendSpec::linux() };
    let frontend = daemon.frontend(DISK, &spec)?;
    let deepest = DEPTHS.into_iter().max().unwrap_or(1);
    let mut bed = Bed::new(daemon.into_server(), frontend, [deepest.into(), BLOCK_BYTES], None)?;
    let times_ms = if options.quick { [50, 150] } else { [100, 500] };
    let mut rows = Vec::new();
    for depth in DEPTHS {
        let spec = RoundSpec { kind: Kind::Read, depth, batch: BATCH, times_ms };
        let rounds = (0..ROUNDS_MIN).map(|_| bed.round(spec)).collect::<Result<Vec<_>>>()?;
        let name = format!("saturated.qd{depth}");
        warn_if_disturbed(&name, rounds.iter());
        let kicks = rounds.iter().map(|m| m.round.kicks as f64 / m.round.requests.max(1) as f64);
        let kicks: Vec<f64> = kicks.collect();
        rows.push(row(format!("{name}.kicks_per_request"), "1", &kicks));
        let iops: Vec<f64> = rounds.iter().map(|m| m.round.iops()).collect();
        let iops = row(format!("{name}.iops"), "1/s", &iops);
        eprintln!("bench: {}: {:.0}", iops.name, iops.value);
        rows.push(iops);
    }
    let of_kicks = rows.iter().filter(|row| row.unit == "1");
    if let Some(worst) = of_kicks.max_by(|a, b| a.value.total_cmp(&b.value)) {
        let name = "schedule.saturated.kicks_per_request".to_string();
        rows.insert(0, Row { name, ..worst.clone() });
    }
    Ok(rows)
}
