//! `bench schedule`: how one sidecore shares itself out, and what it costs when little is to do.
//!
//! | part | what |
//! |---|---|
//! | `mixed` | a client that waits for each answer, alone and beside six streams of 64 KiB; how often the machine stops who copies |
//! | `idle` | CPU of a daemon with a thousand attached queues of which none has work |
//! | `saturated` | kicks for each request where there is always work |
//! | `between` | CPU, latency and kicks at set rates, for each policy |
//! | `scaling` | time of a request with 1 to 4,096 busy queues |
//! | `moving` | how long nobody looks at a queue that moves between sidecores |
//!
//! Every daemon runs as a process on core 0, the driver side is one thread on core 1; for `moving` both
//! have both. Rounds alternate
//! between what is compared; a daemon that is not measured is stopped by a signal.

mod between;
mod client;
mod counters;
mod daemon;
mod idle;
mod mixed;
mod moving;
mod saturated;
mod scaling;
mod stalls;

use std::path::PathBuf;

use anyhow::{Context, Result};
use testing::clock::now_ns;
use testing::report::Row;
use testing::server::{CpuTime, Who};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

use crate::bed::{DISTURBED_MAX, DRIVER_CORE};

/// Descriptors that the bench, or a daemon, needs: two for each of 4,369 queues and some.
const FILES: u64 = 16_384;
/// A device that completes nothing for so long is given up.
const PATIENCE_NS: u64 = 90_000_000_000;
/// A ring of 128 requests, an indirect table to a request: what Linux's driver makes.
const USUAL_RING: RingSpec =
    RingSpec { size: 128, format: Format::Split, event_index: true, indirect_entries: 3 };

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Fewer and shorter rounds: all of it in under a minute.
    #[arg(long)]
    quick: bool,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t =
        [Part::Mixed, Part::Idle, Part::Saturated, Part::Between, Part::Scaling, Part::Moving])]
    what: Vec<Part>,
    /// The sidecore program. Default: beside this one, or SIDECORE_BIN.
    #[arg(long, value_name = "PATH")]
    sidecore: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// A client that waits for each answer beside streams.
    Mixed,
    /// A thousand idle queues.
    Idle,
    /// Kicks where there is always work.
    Saturated,
    /// Set rates, for each policy.
    Between,
    /// 1 to 4,096 busy queues.
    Scaling,
    /// Queues that move between two sidecores.
    Moving,
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>> {
    crate::blk::pin(DRIVER_CORE)?;
    crate::many::allow_files(FILES)?;
    let mut rows = Vec::new();
    for part in &options.what {
        let (before, start_ns) = (CpuTime::own(), now_ns());
        let measured = match part {
            Part::Mixed => mixed::measure(options).map(|mut rows| {
                rows.extend(stalls::measure(options));
                rows
            }),
            Part::Idle => idle::measure(options),
            Part::Saturated => saturated::measure(options),
            Part::Between => between::measure(options),
            Part::Scaling => scaling::measure(options),
            Part::Moving => moving::measure(options),
        };
        rows.extend(measured.with_context(|| format!("schedule, part {part:?}"))?);
        let waited_ns = CpuTime::own().since(before).waited_ns as f64;
        let disturbed = waited_ns / (now_ns() - start_ns).max(1) as f64;
        if disturbed > DISTURBED_MAX {
            let percent = disturbed * 100.0;
            eprintln!("bench: schedule, {part:?}: others took {percent:.0}% of the driver's core");
        }
    }
    Ok(rows)
}

/// One number of sidecore's, from one value a round.
fn row(name: String, unit: &'static str, values: &[f64]) -> Row {
    Row::new(format!("schedule.{name}"), Who::Sidecore, unit, values)
}
