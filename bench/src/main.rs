//! The benches of Sidecore: `bench blk`, `bench many`, `bench net`, `bench peers`, `bench recover`,
//! `bench remote`, `bench runstate`, `bench schedule`, `bench tap`. `bench pass` is a program of its
//! own, in `pass`.
//!
//! Numbers go to standard output, as a table or with `--json` one object a line; progress goes to
//! standard error.
#![expect(clippy::disallowed_macros, reason = "a program prints")]

mod bed;
mod blk;
mod guests;
mod many;
mod net;
mod peers;
mod recover;
mod remote;
mod runstate;
mod schedule;
mod tap;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use testing::report::write;

/// What has a program of its own, and an example.
const AFTER_HELP: &str = "\
`./x bench pass` is the walk alone: allocations and instructions of a request.

Example: bench blk --quick --backend null --json";

/// Measures sidecore, and what it is compared with, on this machine.
#[derive(Debug, Parser)]
#[command(name = "bench", after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
    /// One JSON object a line instead of a table.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// 4 KiB random reads and writes on one queue, beside qemu-storage-daemon and SPDK.
    Blk(blk::Options),
    /// One busy queue alone, and beside a thousand idle ones.
    Many(many::Options),
    /// Frames of a NIC, beside DPDK's vhost library, and of two on a switch.
    Net(net::Options),
    /// All of it beside SPDK, QEMU and DPDK with others' clients, and the table of the docs.
    Peers(peers::Options),
    /// A guest's NIC on a tap, beside QEMU's own.
    Tap(tap::Options),
    /// How long guests wait for a daemon that was killed or replaced, and what they lost.
    Recover(recover::Options),
    /// A disk of another machine, beside NBD servers on the same wire.
    Remote(remote::Options),
    /// Whether run state is what the kernel accounts for, what it costs, and what a guest has of it.
    Runstate(runstate::Options),
    /// Who is served next, and what idling costs: mixed loads, idle queues, many queues.
    Schedule(schedule::Options),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.bench {
        Bench::Blk(options) => blk::run(options),
        Bench::Many(options) => many::run(options),
        Bench::Net(options) => net::run(options),
        Bench::Peers(options) => peers::run(options, cli.json),
        Bench::Tap(options) => tap::run(options),
        Bench::Recover(options) => recover::run(options),
        Bench::Remote(options) => remote::run(options),
        Bench::Runstate(options) => runstate::run(options),
        Bench::Schedule(options) => schedule::run(options),
    };
    match result.and_then(|rows| write(&rows, cli.json, &mut std::io::stdout().lock())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
