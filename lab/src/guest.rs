//! In a guest that is measured: takes orders from a serial port, does them, answers.
//!
//! Not how a load is done (`block`, `network`), nor what is counted meanwhile: that is the kernel's, below
//! the guest (`docs/decisions/0008-lab.md`). Called by `lab guest`.

mod block;
mod flight;
mod latency;
mod measure;
mod network;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use serde_json::json;

use crate::orders::{Answer, Order};

/// Bytes of an order without its end; a path of 4,095 bytes fits.
const LINE_MAX: usize = 8 << 10;
/// Operations of an order: minutes of the fastest load there is.
const OPERATIONS_MAX: u64 = 1_000_000_000;

/// Does what is ordered until the port is closed. The first line it writes is `{"ready":true}`.
///
/// # Errors
/// The port cannot be opened, read or written.
pub(crate) fn serve(port: &Path) -> Result<()> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let port_name = || format!("the port {}", port.display());
    let opened = rustix::fs::open(port, flags, Mode::empty());
    let port = File::from(opened.with_context(|| format!("opening {}", port_name()))?);
    make_raw(&port).with_context(|| format!("making {} raw", port_name()))?;
    converse(BufReader::new(&port), &port).with_context(port_name)
}

/// A terminal that echoes would take its own answers for orders.
fn make_raw(port: impl AsFd) -> Result<()> {
    match tcgetattr(&port) {
        Ok(mut settings) => {
            settings.make_raw();
            Ok(tcsetattr(&port, OptionalActions::Now, &settings)?)
        }
        Err(Errno::NOTTY) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Answers each line of `orders` with one, to its end.
fn converse(mut orders: impl BufRead, mut answers: impl Write) -> Result<()> {
    let mut say = |line: serde_json::Value| answers.write_all(format!("{line}\n").as_bytes());
    say(json!({ "ready": true })).context("writing")?;
    let mut line = Vec::with_capacity(LINE_MAX);
    loop {
        let done = match next_line(&mut orders, &mut line).context("reading")? {
            Line::End => return Ok(()),
            // What a terminal sends when it is opened is no order.
            Line::Whole if line.trim_ascii().is_empty() => continue,
            Line::Whole => obey(&line),
            Line::TooLong => Err(anyhow::anyhow!("a line of more than {LINE_MAX} bytes")),
        };
        let answer = done.unwrap_or_else(|error| Answer::Failed { error: format!("{error:#}") });
        say(serde_json::to_value(answer)?).context("writing")?;
    }
}

/// What was found up to the end of a line.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    /// It is in the buffer, without its end.
    Whole,
    /// It was passed over.
    TooLong,
    /// There is none.
    End,
}

/// Reads into `line`, never more than `LINE_MAX` and one byte.
fn next_line(orders: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Line> {
    line.clear();
    let read = orders.by_ref().take(LINE_MAX as u64 + 1).read_until(b'\n', line);
    match read {
        // A terminal whose other end is gone.
        Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => Ok(Line::End),
        Err(error) => Err(error),
        Ok(0) => Ok(Line::End),
        Ok(_) if line.ends_with(b"\n") => {
            line.pop();
            Ok(Line::Whole)
        }
        // The last line may lack its end.
        Ok(read) if read <= LINE_MAX => Ok(Line::Whole),
        Ok(_) => orders.skip_until(b'\n').map(|_| Line::TooLong),
    }
}

/// Does one order.
fn obey(line: &[u8]) -> Result<Answer> {
    match serde_json::from_slice(line).context("no order")? {
        Order::BlkRead { device, depth, operations, .. } => {
            block::load(&device, block::Way::Read, depth, counted(operations)?)
        }
        Order::BlkWrite { device, depth, operations, .. } => {
            block::load(&device, block::Way::Write, depth, counted(operations)?)
        }
        Order::UdpRr { peer, bytes, operations, .. } => {
            network::udp_rr(reachable(&peer)?, bytes, counted(operations)?)
        }
        Order::TcpRr { peer, bytes, operations, .. } => {
            network::tcp_rr(reachable(&peer)?, bytes, counted(operations)?)
        }
        Order::UdpSend { peer, bytes, operations, .. } => {
            network::udp_send(reachable(&peer)?, bytes, counted(operations)?)
        }
        Order::TcpSend { peer, bytes, operations, .. } => {
            network::tcp_send(reachable(&peer)?, bytes, counted(operations)?)
        }
        order => anyhow::bail!("no such load here: {order:?}"),
    }
}

fn counted(operations: u64) -> Result<u64> {
    let range = 1..=OPERATIONS_MAX;
    ensure!(range.contains(&operations), "operations: {operations}, not 1 to {OPERATIONS_MAX}");
    Ok(operations)
}

fn reachable(peer: &str) -> Result<SocketAddr> {
    peer.parse()
        .with_context(|| format!("peer: `{peer}`, not an address and a port (10.0.0.1:7001)"))
}
