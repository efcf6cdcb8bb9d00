//! A guest at work on a disk with a limit, and a front-end that is silent, while the wall clock of the
//! machine is set back and ahead: neither notices (reliability O15).
//!
//! `clock_client SOCKET IOPS`: of a disk whose limit is so many requests a second. It sets the clock of the machine that
//! it runs in, so it belongs into an emulated one: started there by tests/guest/service/run. It prints what it found, and ends
//! with an error at the first thing that was wrong.
#![expect(clippy::disallowed_macros, reason = "a program of the tests prints what it found")]

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testing::clock::now_ns;
use testing::daemon::pause;
use testing::frontend::{Frontend, FrontendSpec};
use testing::verified::Load;

/// What is done to the clock, one after the other: nothing, an hour back, an hour ahead, and right again.
const STEPS: [&str; 4] = ["now", "1 hour ago", "2 hours", "1 hour ago"];
/// How long the load is counted after each of them.
const COUNTED: Duration = Duration::from_secs(2);
/// Of the limit. The machine is emulated, and its processors are away now and then: what a limit does not save up for
/// so long is lost. A limit by the wall clock would let nothing pass, or everything.
const RATE: std::ops::RangeInclusive<f64> = 0.5..=1.05;
/// A request that waits for longer was forgotten.
const AWAY_NS: u64 = 2_000_000_000;
/// After so long without a word the daemon ends a connection (ARCHITECTURE.md, the bounds).
const SILENCE_NS: u64 = 10_000_000_000;
/// How much later, and how much earlier by this program's clock: it is an emulated machine's, whose processors are away
/// now and then, between two readings of it too. A timer by the wall clock would be off by an hour.
const SILENCE_LATE_NS: u64 = 80_000_000_000;
const SILENCE_EARLY_NS: u64 = 500_000_000;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let socket = arguments.next().context("no socket")?;
    let wanted = arguments.next().context("no limit")?.parse::<f64>()?;
    let spec = FrontendSpec { inflight: true, ..FrontendSpec::linux() };
    let mut frontend = Frontend::connect(Path::new(&socket), spec)?;
    let (load, _) = Load::start(&mut frontend)?;
    // Until what was saved up for the first moment is used up.
    load.await_requests(wanted as u64)?;
    // Before it is connected: the daemon may see it, and count, before this program goes on.
    let silent_ns = now_ns();
    let mut silent = UnixStream::connect(&socket)?;
    silent.set_read_timeout(Some(Duration::from_nanos(SILENCE_NS + SILENCE_LATE_NS)))?;
    for step in STEPS {
        set_clock(step)?;
        let (rate, worst_ns) = count(&load)?;
        println!("date -s '{step}': {rate:.1} requests a second, one took {worst_ns} ns at most");
        testing::timing::judge(RATE.contains(&(rate / wanted)), || {
            format!("{rate:.1} a second after '{step}'")
        })?;
        testing::timing::judge(worst_ns < AWAY_NS, || {
            format!("a request took {worst_ns} ns after '{step}'")
        })?;
        if now_ns() - silent_ns < SILENCE_NS - COUNTED.as_nanos() as u64 / 2 {
            ensure!(is_open(&mut silent)?, "'{step}' ended a connection before its time");
        }
    }
    ensure!(silent.read(&mut [0])? == 0, "the daemon said something to nobody");
    let after_ns = now_ns() - silent_ns;
    ensure!(
        after_ns >= SILENCE_NS - SILENCE_EARLY_NS,
        "a silent connection was ended after {after_ns} ns"
    );
    load.await_requests(1)?;
    let finished = load.finish()?;
    println!(
        "{} requests were right, a silent connection ended after {:.1} s",
        finished.requests,
        after_ns as f64 / 1e9
    );
    Ok(())
}

fn set_clock(to: &str) -> Result<()> {
    let output = Command::new("date").args(["-s", to]).output().context("running date")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "date -s '{to}': {said}");
    Ok(())
}

/// Requests a second, and the longest of them.
fn count(load: &Load) -> Result<(f64, u64)> {
    load.take_worst_ns();
    let (began_ns, before) = (now_ns(), load.done());
    pause(COUNTED);
    let rate = (load.done() - before) as f64 * 1e9 / (now_ns() - began_ns) as f64;
    // One that failed would have ended it.
    load.await_requests(1)?;
    Ok((rate, load.take_worst_ns()))
}

fn is_open(stream: &mut UnixStream) -> Result<bool> {
    stream.set_nonblocking(true)?;
    let open = match stream.read(&mut [0]) {
        Ok(read) => read > 0,
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    };
    stream.set_nonblocking(false)?;
    Ok(open)
}
