//! `bench net`: frames a second of one NIC beside DPDK's vhost library, and of two on a switch.
//!
//! | row | what |
//! |---|---|
//! | `net.rx.SIZE.mpps` | the server makes frames, the driver takes them |
//! | `net.tx.SIZE.mpps` | the driver makes frames, the server takes them |
//! | `net.loop.SIZE.mpps` | 128 frames go round, their addresses swapped by the server; each is counted once a round |
//! | `net.packed...` | the same with packed rings |
//! | `net.switch.64.mpps` | guest to guest through learning and forwarding |
//! | `net.switch.64k.gbps` | the same with 64 KiB TCP segments, GB/s, beside plain copies of as many bytes |
//!
//! The server runs on core 0, its driver on core 1: `dpdk-testpmd` with virtio-user, the same for both
//! servers, or for the switch our own. Rounds alternate; who is not measured is stopped by a signal.

mod pairs;
mod switched;

use std::path::PathBuf;

use anyhow::Result;
use testing::daemon::Daemon;
use testing::report::{ROUNDS_MIN, Row};

use crate::bed::DRIVER_CORE;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Shorter rounds: all of it in about two minutes.
    #[arg(long)]
    quick: bool,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',',
        default_values_t = [What::Rx, What::Tx, What::Loop, What::Switch])]
    what: Vec<What>,
    /// Whom to measure. The switch has no counterpart.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Peer::Sidecore, Peer::Dpdk])]
    who: Vec<Peer>,
    /// Bytes of a frame.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1518])]
    size: Vec<u32>,
    /// Which rings.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Ring::Split, Ring::Packed])]
    ring: Vec<Ring>,
    /// Let the driver use buffers in any order, instead of in order.
    #[arg(long)]
    any_order: bool,
    /// Rounds; a reported number stands on at least five.
    #[arg(long, default_value_t = ROUNDS_MIN, value_parser = crate::blk::rounds)]
    rounds: usize,
    /// The sidecore program. Default: beside this one, or SIDECORE_BIN.
    #[arg(long, value_name = "PATH")]
    sidecore: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// The guest receives.
    Rx,
    /// The guest transmits.
    Tx,
    /// Frames go round.
    Loop,
    /// Guest to guest.
    Switch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    Sidecore,
    Dpdk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Ring {
    Split,
    Packed,
}

impl Options {
    /// This project's daemon with these devices.
    fn start(&self, name: &str, devices: &str) -> Result<Daemon> {
        crate::bed::sidecore(name, devices, self.sidecore.as_deref()).start()
    }

    /// Unmeasured and measured time of a round, milliseconds.
    fn times_ms(&self) -> [u64; 2] {
        if self.quick { [100, 400] } else { [200, 1500] }
    }
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>> {
    crate::blk::pin(DRIVER_CORE)?;
    let mut rows = Vec::new();
    for ring in &options.ring {
        for size in &options.size {
            for what in options.what.iter().filter(|what| **what != What::Switch) {
                rows.extend(pairs::measure(options, *ring, *what, *size)?);
            }
        }
    }
    if options.what.contains(&What::Switch) {
        rows.extend(switched::measure(options)?);
    }
    Ok(rows)
}
