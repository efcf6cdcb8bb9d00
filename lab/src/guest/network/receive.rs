//! Messages from the peer's sources, as fast as the guest takes them.
//!
//! Datagrams come only where they were asked for, some ahead of those that are taken: the peer never floods
//! a guest, nor the CPU of what serves it. Called by `guest`.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::net::sockopt;

use super::{LOST_AFTER, LOST_MAX, SENDINGS_MAX, connected, dial, is_full, send, within};
use crate::grant::{COUNT_MAX, DATAGRAM_SIZES, Grant, WRITE_SIZES};
use crate::guest::measure::{Amount, measure};
use crate::orders::Answer;

/// Datagrams that are asked for and have not come yet: twice what is asked for at once, so that some come
/// while the next are asked for.
const AHEAD_MAX: u64 = 2 * COUNT_MAX as u64;
/// Memory that the kernel takes for a datagram in a socket, at most.
const DATAGRAM_MEMORY: usize = 8 << 10;

/// Datagrams of `bytes` from the source.
///
/// # Errors
/// What is wrong with the order, or with the way to the peer.
pub(in crate::guest) fn udp_receive(
    peer: SocketAddr,
    bytes: u32,
    amount: Amount,
) -> Result<Answer> {
    let mut reception = Reception::new(peer, bytes, LOST_AFTER)?;
    let answer = measure(amount, |count, _| reception.take(count));
    if reception.lost > 0 {
        // Nobody may be there to read it.
        let _ = writeln!(io::stderr(), "lab: {} datagrams were lost or late", reception.lost);
    }
    answer.with_context(|| format!("receiving from {peer} (`lab peer` is the other end)"))
}

/// Messages of `bytes` from the source over one connection, each read whole. What has come and is not read
/// at the end, had as much in its place at the beginning: the warm-up has filled the connection's buffers.
///
/// # Errors
/// As [`udp_receive`].
pub(in crate::guest) fn tcp_receive(
    peer: SocketAddr,
    bytes: u32,
    amount: Amount,
) -> Result<Answer> {
    within(bytes, &WRITE_SIZES)?;
    let mut message = vec![0; bytes as usize];
    let mut stream = dial(peer)?;
    stream.write_all(&bytes.to_le_bytes()).with_context(|| format!("asking {peer}"))?;
    measure(amount, |count, _| {
        for _ in 0..count {
            stream
                .read_exact(&mut message)
                .with_context(|| format!("receiving from {peer} (`lab peer` is the other end)"))?;
        }
        Ok(count)
    })
}

/// Datagrams, each with a number, of which some have been asked for.
struct Reception {
    socket: UdpSocket,
    bytes: u32,
    buffer: Vec<u8>,
    /// The number of the next to ask for.
    asked: u64,
    /// The number after the greatest that came or was given up.
    seen: u64,
    received: u64,
    /// Lost or late, since the beginning.
    lost: u64,
    /// Times nothing came.
    silences: u32,
}

impl Reception {
    fn new(peer: SocketAddr, bytes: u32, lost_after: Duration) -> Result<Reception> {
        within(bytes, &DATAGRAM_SIZES)?;
        let socket = connected(peer)?;
        socket.set_read_timeout(Some(lost_after))?;
        socket.set_write_timeout(Some(lost_after))?;
        let memory = AHEAD_MAX as usize * DATAGRAM_MEMORY;
        if sockopt::set_socket_recv_buffer_size_force(&socket, memory).is_err() {
            // Not privileged: what the system allows.
            sockopt::set_socket_recv_buffer_size(&socket, memory)?;
        }
        // A byte more, so that a longer one is not taken for the right one.
        let buffer = vec![0; bytes as usize + 1];
        let (asked, seen, received, lost, silences) = (0, 0, 0, 0, 0);
        Ok(Reception { socket, bytes, buffer, asked, seen, received, lost, silences })
    }

    /// So many of them; nothing is on its way after the last.
    fn take(&mut self, count: u64) -> Result<u64> {
        let mut taken = 0;
        let mut silences_in_a_row = 0;
        while taken < count {
            self.ask(count - taken)?;
            match self.next()? {
                Next::Right => {
                    taken += 1;
                    self.received += 1;
                    silences_in_a_row = 0;
                }
                Next::Wrong => self.miss(1)?,
                Next::Silence => {
                    silences_in_a_row += 1;
                    self.silences += 1;
                    ensure!(silences_in_a_row < SENDINGS_MAX, "{SENDINGS_MAX} times nothing came");
                    ensure!(self.silences <= LOST_MAX, "more than {LOST_MAX} times nothing came");
                    self.miss(self.asked - self.seen)?;
                    self.seen = self.asked;
                }
            }
        }
        Ok(taken)
    }

    /// For as many as there is room for, and no more than `wanted`.
    #[inline]
    fn ask(&mut self, wanted: u64) -> Result<()> {
        let at_once = u64::from(COUNT_MAX);
        loop {
            let ahead = self.asked - self.seen;
            if ahead >= wanted || ahead + at_once > AHEAD_MAX {
                return Ok(());
            }
            let count = (wanted - ahead).min(at_once);
            let grant = Grant { from: self.asked, count: count as u32, bytes: self.bytes };
            send(&self.socket, &grant.encode())?;
            self.asked += count;
        }
    }

    #[inline]
    fn next(&mut self) -> Result<Next> {
        let came = loop {
            match self.socket.recv(&mut self.buffer) {
                Ok(came) => break came,
                Err(error) if is_full(&error) => return Ok(Next::Silence),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        };
        let number = self.buffer.first_chunk().map(|number| u64::from_le_bytes(*number));
        match number {
            Some(number)
                if came == self.bytes as usize && (self.seen..self.asked).contains(&number) =>
            {
                self.miss(number - self.seen)?;
                self.seen = number + 1;
                Ok(Next::Right)
            }
            _ => Ok(Next::Wrong),
        }
    }

    fn miss(&mut self, count: u64) -> Result<()> {
        self.lost += count;
        // A tenth, and a window that was lost whole.
        let most = AHEAD_MAX + self.received / 10;
        ensure!(self.lost <= most, "{} datagrams of {} were lost or late", self.lost, self.asked);
        Ok(())
    }
}

/// What came.
enum Next {
    /// One that was asked for.
    Right,
    /// Another.
    Wrong,
    /// Nothing, in time.
    Silence,
}

#[cfg(test)]
mod tests;
