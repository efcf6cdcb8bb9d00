//! Messages to a peer and back, one after the other, and messages to it as fast as they are taken.
//!
//! Not messages from it (`receive`). The other end is `lab peer`. Everything that waits has an end: a peer that is silent is an error. Called
//! by `guest`.

mod receive;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use testing::clock::now_ns;

use super::measure::{Amount, measure};
use crate::grant::WRITE_SIZES;
use crate::orders::Answer;
pub(super) use receive::{tcp_receive, udp_receive};

/// A datagram over IPv4 holds no more.
const DATAGRAM_SIZES: RangeInclusive<u32> = 1..=65_507;
/// What an echo surely takes while it sends back what came before.
const EXCHANGE_SIZES: RangeInclusive<u32> = 1..=65_536;

/// A datagram that is not back by then is lost; on one machine it takes a thousandth of that.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// Datagrams of a load that may be lost, or come back late. More of them are no measurement.
const LOST_MAX: u32 = 100;
/// Sendings of one datagram. Nobody is there then.
const SENDINGS_MAX: u32 = 20;
/// Until a connection stands.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// Until a peer goes on reading or answering; emulated machines have pauses of seconds.
const STALL: Duration = Duration::from_secs(20);

/// A datagram to the echo and back, `amount` times.
///
/// # Errors
/// What is wrong with the order, or with the way to the peer.
pub(super) fn udp_rr(peer: SocketAddr, bytes: u32, amount: Amount) -> Result<Answer> {
    let message = message(bytes, &DATAGRAM_SIZES)?;
    let mut exchange = Exchange::new(peer, message, LOST_AFTER)?;
    let answer = exchange.measured(amount);
    if exchange.lost > 0 {
        // Nobody may be there to read it.
        let _ = writeln!(io::stderr(), "lab: {} datagrams were lost or late", exchange.lost);
    }
    answer
}

/// Datagrams to the sink. The last of them may still be in the guest's queues at the end.
///
/// # Errors
/// As [`udp_rr`].
pub(super) fn udp_send(peer: SocketAddr, bytes: u32, amount: Amount) -> Result<Answer> {
    let message = message(bytes, &DATAGRAM_SIZES)?;
    let socket = connected(peer)?;
    socket.set_write_timeout(Some(LOST_AFTER))?;
    measure(amount, |count, _| {
        for _ in 0..count {
            send(&socket, &message)
                .with_context(|| format!("sending to {peer} (`lab peer` is the other end)"))?;
        }
        Ok(count)
    })
}

/// A message to the echo and back over one connection, `amount` times.
///
/// # Errors
/// As [`udp_rr`].
pub(super) fn tcp_rr(peer: SocketAddr, bytes: u32, amount: Amount) -> Result<Answer> {
    let message = message(bytes, &EXCHANGE_SIZES)?;
    let mut back = vec![0; message.len()];
    let mut stream = dial(peer)?;
    stream.set_nodelay(true)?;
    measure(amount, |count, latency| {
        let mut since = now_ns();
        for _ in 0..count {
            stream.write_all(&message).with_context(|| format!("sending to {peer}"))?;
            stream.read_exact(&mut back).with_context(|| format!("waiting for {peer}"))?;
            let now = now_ns();
            latency.record(now - since);
            since = now;
        }
        Ok(count)
    })
}

/// Writes to the sink over one connection, as TCP likes to put them into segments. The warm-up has filled
/// the connection's buffers, so what is left in them at the end was in them at the beginning.
///
/// # Errors
/// As [`udp_rr`], and that the sink did not take all of it.
pub(super) fn tcp_send(peer: SocketAddr, bytes: u32, amount: Amount) -> Result<Answer> {
    let message = message(bytes, &WRITE_SIZES)?;
    let mut stream = dial(peer)?;
    let answer = measure(amount, |count, _| {
        for _ in 0..count {
            stream.write_all(&message).with_context(|| format!("sending to {peer}"))?;
        }
        Ok(count)
    })?;
    stream.shutdown(Shutdown::Write).with_context(|| format!("ending {peer}"))?;
    let said = stream.read(&mut [0; 1]).with_context(|| format!("{peer} did not take all"))?;
    ensure!(said == 0, "{peer} is no sink: it answers");
    Ok(answer)
}

fn within(bytes: u32, sizes: &RangeInclusive<u32>) -> Result<()> {
    let (least, most) = (sizes.start(), sizes.end());
    ensure!(sizes.contains(&bytes), "bytes: {bytes}, not {least} to {most}");
    Ok(())
}

fn message(bytes: u32, sizes: &RangeInclusive<u32>) -> Result<Vec<u8>> {
    within(bytes, sizes)?;
    Ok((0..bytes).map(|index| index as u8).collect())
}

fn connected(peer: SocketAddr) -> Result<UdpSocket> {
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(peer).with_context(|| format!("the way to {peer}"))?;
    Ok(socket)
}

fn dial(peer: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&peer, CONNECT_WAIT)
        .with_context(|| format!("connecting to {peer} (`lab peer` is the other end)"))?;
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    Ok(stream)
}

/// Sends one datagram, again while there is no room for it.
#[inline]
fn send(socket: &UdpSocket, message: &[u8]) -> Result<()> {
    let mut until = None;
    loop {
        match socket.send(message) {
            Ok(_) => return Ok(()),
            Err(error) if is_full(&error) => {
                let now = now_ns();
                let until = *until.get_or_insert(now + STALL.as_nanos() as u64);
                ensure!(now < until, "no room for a datagram in {} s", STALL.as_secs());
                thread::yield_now();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    [Errno::NOBUFS, Errno::AGAIN].map(|e| Some(e.raw_os_error())).contains(&error.raw_os_error())
}

/// A datagram that is answered before the next is sent, each with a number.
struct Exchange {
    socket: UdpSocket,
    peer: SocketAddr,
    message: Vec<u8>,
    back: Vec<u8>,
    number: u64,
    /// Lost or late, since the beginning.
    lost: u32,
}

impl Exchange {
    fn new(peer: SocketAddr, message: Vec<u8>, lost_after: Duration) -> Result<Exchange> {
        let socket = connected(peer)?;
        socket.set_read_timeout(Some(lost_after))?;
        socket.set_write_timeout(Some(lost_after))?;
        // A byte more, so that a longer answer is not taken for the right one.
        let back = vec![0; message.len() + 1];
        Ok(Exchange { socket, peer, message, back, number: 0, lost: 0 })
    }

    fn measured(&mut self, amount: Amount) -> Result<Answer> {
        measure(amount, |count, latency| {
            let mut since = now_ns();
            for _ in 0..count {
                self.once()?;
                let now = now_ns();
                latency.record(now - since);
                since = now;
            }
            Ok(count)
        })
    }

    /// There and back, if need be after several sendings.
    #[inline]
    fn once(&mut self) -> Result<()> {
        self.number += 1;
        let numbered = self.message.len().min(8);
        self.message[..numbered].copy_from_slice(&self.number.to_le_bytes()[..numbered]);
        let peer = self.peer;
        let whom = |verb| format!("{verb} {peer} (`lab peer` is the other end)");
        for _ in 0..SENDINGS_MAX {
            send(&self.socket, &self.message).with_context(|| whom("sending to"))?;
            if self.comes_back(numbered).with_context(|| whom("waiting for"))? {
                return Ok(());
            }
        }
        bail!("{}: {SENDINGS_MAX} datagrams in a row were lost", whom("waiting for"));
    }

    /// Whether the answer to the last number came in time.
    #[inline]
    fn comes_back(&mut self, numbered: usize) -> Result<bool> {
        loop {
            match self.socket.recv(&mut self.back) {
                Ok(bytes) => {
                    let same = self.back[..numbered] == self.message[..numbered];
                    if bytes == self.message.len() && same {
                        return Ok(true);
                    }
                    // The answer to an earlier sending.
                    self.miss()?;
                }
                Err(error) if is_full(&error) => {
                    self.miss()?;
                    return Ok(false);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn miss(&mut self) -> Result<()> {
        self.lost += 1;
        if self.lost > LOST_MAX {
            bail!("more than {LOST_MAX} datagrams were lost or late");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
