//! In a guest that is measured: takes orders from a serial port, does them, answers.
//!
//! Not how a load is done (`block`, `network`), nor what is counted meanwhile: that is the kernel's, below
//! the guest (`docs/decisions/0008-lab.md`). Called by `lab guest`.

mod block;
mod flight;
mod measure;
mod network;
mod servers;
mod spin;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use crate::orders::{Answer, MARKER_BEGIN, MARKER_END, Order, Ready};
use measure::Amount;
use servers::Servers;

/// Bytes of an order without its end; a path of 4,095 bytes fits.
const LINE_MAX: usize = 8 << 10;
/// Where the kernel says by what it tells the time.
const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Does what is ordered until the port is closed. The first line it writes is a [`Ready`].
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
    let mut say = |line: &str| answers.write_all(format!("{line}\n").as_bytes());
    let clocksource = std::fs::read_to_string(CLOCKSOURCE).unwrap_or_default().trim().to_owned();
    say(&serde_json::to_string(&Ready { ready: true, clocksource })?).context("writing")?;
    let mut servers = Servers::default();
    let mut line = Vec::with_capacity(LINE_MAX);
    loop {
        let done = match next_line(&mut orders, &mut line).context("reading")? {
            Line::End => return Ok(()),
            // What a terminal sends when it is opened is no order.
            Line::Whole if line.trim_ascii().is_empty() => continue,
            Line::Whole => obey(&line, &mut servers),
            Line::TooLong => Err(anyhow::anyhow!("a line of more than {LINE_MAX} bytes")),
        };
        let answer = done.unwrap_or_else(|error| Answer::Failed { error: format!("{error:#}") });
        say(&serde_json::to_string(&answer)?).context("writing")?;
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
fn obey(line: &[u8], servers: &mut Servers) -> Result<Answer> {
    match serde_json::from_slice(line).context("no order")? {
        Order::BlkRead { device, depth, operations, for_ms } => {
            block::load(&device, block::Way::Read, depth, Amount::new(operations, for_ms)?)
        }
        Order::BlkWrite { device, depth, operations, for_ms } => {
            block::load(&device, block::Way::Write, depth, Amount::new(operations, for_ms)?)
        }
        Order::BlkMixed { device, readers, writers, operations, for_ms } => {
            block::mixed(&device, readers, writers, Amount::new(operations, for_ms)?)
        }
        Order::UdpRr { peer, bytes, operations, for_ms } => {
            network::udp_rr(reachable(&peer)?, bytes, Amount::new(operations, for_ms)?)
        }
        Order::TcpRr { peer, bytes, operations, for_ms } => {
            network::tcp_rr(reachable(&peer)?, bytes, Amount::new(operations, for_ms)?)
        }
        Order::UdpSend { peer, bytes, operations, for_ms } => {
            network::udp_send(reachable(&peer)?, bytes, Amount::new(operations, for_ms)?)
        }
        Order::TcpSend { peer, bytes, operations, for_ms } => {
            network::tcp_send(reachable(&peer)?, bytes, Amount::new(operations, for_ms)?)
        }
        Order::UdpReceive { peer, bytes, operations, for_ms } => {
            network::udp_receive(reachable(&peer)?, bytes, Amount::new(operations, for_ms)?)
        }
        Order::TcpReceive { peer, bytes, operations, for_ms } => {
            network::tcp_receive(reachable(&peer)?, bytes, Amount::new(operations, for_ms)?)
        }
        Order::Spin { operations, for_ms } => spin::spin(operations, for_ms),
        Order::Mark { end } => {
            measure::mark(if end { MARKER_END } else { MARKER_BEGIN });
            Ok(Answer::NOTHING)
        }
        Order::Serve { server } => servers.start(server),
    }
}

fn reachable(peer: &str) -> Result<SocketAddr> {
    peer.parse()
        .with_context(|| format!("peer: `{peer}`, not an address and a port (10.0.0.1:7001)"))
}
