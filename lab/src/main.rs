//! The lab: what a guest's I/O costs on real KVM, counted by the kernel that runs it, beside what people
//! run today (`docs/decisions/0008-lab.md`). Run by `./x lab`.

#![expect(
    clippy::disallowed_macros,
    reason = "a program for people: rows to stdout, progress to stderr"
)]

mod ask;
mod children;
mod echo;
mod grant;
mod guest;
mod host;
mod orders;
mod peer;
mod place;
mod report;
mod rows;
mod waiting;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "lab", about = "What a guest's I/O costs on real KVM")]
struct Arguments {
    #[command(subcommand)]
    job: Job,
}

#[derive(Debug, Subcommand)]
enum Job {
    Measure(host::HostArguments),
    /// Where guests run on real KVM: measures
    Run(place::RunArguments),
    /// Shows what was measured
    Report(report::ReportArguments),
    /// In a guest that is measured: does loads on order
    Guest {
        /// The serial port that orders come from
        port: std::path::PathBuf,
    },
    /// Beside a guest that is measured: the other end of its network loads
    Peer {
        /// The address to listen on
        address: std::net::IpAddr,
    },
    /// Beside a guest that is measured: asks a server in it
    Ask(ask::AskArguments),
    /// In a guest that is measured: sends datagrams back on each CPU, all of which it keeps busy
    Echo,
}

fn main() -> Result<()> {
    match Arguments::parse().job {
        Job::Measure(arguments) => host::measure(&arguments),
        Job::Run(arguments) => place::run(&arguments),
        Job::Report(arguments) => report::show(&arguments),
        Job::Guest { port } => guest::serve(&port),
        Job::Ask(arguments) => ask::ask(&arguments),
        Job::Echo => echo::serve(),
        Job::Peer { address } => peer::serve(address),
    }
}
