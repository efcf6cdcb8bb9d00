//! `bench net`: frames a second of one NIC beside DPDK's vhost library, and of two on a switch.
//!
//! | row | what |
//! |---|---|
//! | `net.rx.SIZE.mpps` | the server makes frames, the driver takes them |
//! | `net.tx.SIZE.mpps` | the driver makes frames, the server takes them |
//! | `net.loop.SIZE.mpps` | 128 frames go round, their addresses swapped by the server; each is counted once a round |
//! | `net.packed...` | the same with packed rings |
//! | `net.switch.SIZE.mpps` | guest to guest through learning and forwarding |
//! | `net.switch.64k.gbps` | the same with 64 KiB TCP segments, GB/s, beside plain copies of as many bytes |
//!
//! The server runs on core 0, its driver on core 1: `dpdk-testpmd` with virtio-user, the same for all
//! servers, or for the switch our own. Beside the switch, DPDK forwards between two ports and looks at
//! no address. Rounds alternate; who is not measured is stopped by a signal.

mod pairs;
mod switched;

use std::path::PathBuf;

use anyhow::Result;
use testing::daemon::Daemon;
use testing::report::{ROUNDS_MIN, Row};
use testing::server::Who;
use testing::unpacked::Program;

use crate::bed::DRIVER_CORE;

const TESTPMD: &str = "dpdk-testpmd";

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Shorter rounds: all of it in about two minutes.
    #[arg(long)]
    pub(crate) quick: bool,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',',
        default_values_t = [What::Rx, What::Tx, What::Loop, What::Switch])]
    pub(crate) what: Vec<What>,
    /// Whom to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Peer::Sidecore, Peer::Dpdk])]
    pub(crate) who: Vec<Peer>,
    /// Whose driver, of one NIC: Debian 12's testpmd, or Debian 13's, which is unpacked beside.
    #[arg(long, value_enum, default_value_t = Driver::Testpmd)]
    pub(crate) client: Driver,
    /// Bytes of a frame.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1514])]
    pub(crate) size: Vec<u32>,
    /// Which rings.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Ring::Split, Ring::Packed])]
    pub(crate) ring: Vec<Ring>,
    /// Let the driver use buffers in any order, instead of in order.
    #[arg(long)]
    pub(crate) any_order: bool,
    /// Rounds; a reported number stands on at least five.
    #[arg(long, default_value_t = ROUNDS_MIN, value_parser = crate::blk::rounds)]
    pub(crate) rounds: usize,
    /// The sidecore program. Default: beside this one, or SIDECORE_BIN.
    #[arg(long, value_name = "PATH")]
    pub(crate) sidecore: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum What {
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
pub(crate) enum Peer {
    Sidecore,
    Dpdk,
    /// Debian 13's.
    #[value(name = "dpdk-24.11")]
    DpdkNewer,
}

/// Whose driver it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Driver {
    Testpmd,
    /// Debian 13's.
    #[value(name = "testpmd-24.11")]
    TestpmdNewer,
}

impl Driver {
    fn program(self) -> Result<Program> {
        match self {
            Driver::Testpmd => Ok(Program::installed(TESTPMD)),
            Driver::TestpmdNewer => Program::of_debian_13(TESTPMD),
        }
    }
}

impl Peer {
    /// Whose testpmd is the server; our daemon is none.
    fn program(self) -> Result<Option<(Who, Program)>> {
        Ok(match self {
            Peer::Sidecore => None,
            Peer::Dpdk => Some((Who::Dpdk, Program::installed(TESTPMD))),
            Peer::DpdkNewer => Some((Who::DpdkNewer, Program::of_debian_13(TESTPMD)?)),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Ring {
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
    let mut rows = Vec::new();
    for ring in &options.ring {
        for size in &options.size {
            for what in options.what.iter().filter(|what| **what != What::Switch) {
                rows.extend(measure(options, *ring, *what, *size)?);
            }
        }
    }
    if options.what.contains(&What::Switch) {
        for ring in &options.ring {
            for size in &options.size {
                rows.extend(measure(options, *ring, What::Switch, *size)?);
            }
            rows.extend(segments(options, *ring)?);
        }
    }
    Ok(rows)
}

/// One cell of the comparison: all servers in turn, round by round.
pub(crate) fn measure(
    options: &Options,
    ring: Ring,
    what: What,
    frame_bytes: u32,
) -> Result<Vec<Row>> {
    crate::blk::pin(DRIVER_CORE)?;
    match what {
        What::Switch => switched::frames(options, ring, frame_bytes),
        _ => pairs::measure(options, ring, what, frame_bytes),
    }
}

/// 64 KiB segments from guest to guest, beside plain copies of as many bytes.
pub(crate) fn segments(options: &Options, ring: Ring) -> Result<Vec<Row>> {
    crate::blk::pin(DRIVER_CORE)?;
    switched::segments(options, ring)
}
