//! A datagram to a guest's echo and back, one after the other, or at moments of no pattern.
//!
//! Not the echo (`crate::echo`). Used by `ask`.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testing::clock::now_ns;
use testing::histogram::Histogram;

/// A datagram that is not back by then is lost; emulated machines have pauses.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// Lost or late ones, in all. More of them are no measurement.
const LOST_MAX: u32 = 20;
/// Bytes of a datagram: its number.
const SIZE: usize = 8;
/// Between two that are asked apart; a pattern would fall in with the slices of vCPUs.
const APART_MS: std::ops::Range<u64> = 10..30;

/// One at a time. Each time has in it what was sent again because it was lost.
pub(super) struct Datagrams {
    socket: UdpSocket,
    number: u64,
    lost: u32,
    /// What the next pause comes from, if there are any.
    apart: Option<u64>,
}

impl Datagrams {
    pub(super) fn new(peer: SocketAddr, apart: bool) -> Result<Datagrams> {
        let any: SocketAddr = match peer {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(peer)?;
        socket.set_read_timeout(Some(LOST_AFTER))?;
        Ok(Datagrams { socket, number: 0, lost: 0, apart: apart.then_some(1) })
    }

    /// Until that time.
    pub(super) fn run(&mut self, until: u64) -> Result<Histogram> {
        let mut latency = Histogram::default();
        loop {
            if let Some(state) = &mut self.apart {
                // Nothing comes now but what was sent again.
                let mut late = [PollFd::new(&self.socket, PollFlags::IN)];
                poll(&mut late, Some(&pause(state)))?;
            }
            let since = now_ns();
            if since >= until {
                return Ok(latency);
            }
            self.once()?;
            latency.record(now_ns() - since);
        }
    }

    fn once(&mut self) -> Result<()> {
        self.number += 1;
        let message = self.number.to_le_bytes();
        loop {
            self.socket.send(&message).context("sending")?;
            if self.comes_back(message)? {
                return Ok(());
            }
        }
    }

    /// Whether the last one came back in time.
    fn comes_back(&mut self, message: [u8; SIZE]) -> Result<bool> {
        let mut back = [0; SIZE + 1];
        loop {
            match self.socket.recv(&mut back) {
                Ok(bytes) if back[..bytes] == message => return Ok(true),
                // An earlier one, that was sent again.
                Ok(_) => self.miss()?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
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
        ensure!(self.lost <= LOST_MAX, "more than {LOST_MAX} datagrams were lost or late");
        Ok(())
    }
}

/// The same ones in each run (xorshift).
fn pause(state: &mut u64) -> Timespec {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    let span_us = (APART_MS.end - APART_MS.start) * 1000;
    let pause_us = APART_MS.start * 1000 + *state % span_us;
    Timespec { tv_sec: 0, tv_nsec: pause_us as i64 * 1000 }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Sends back what `keeps` does not keep, by its number.
    fn echo(keeps: fn(u64) -> bool) -> Result<SocketAddr> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let at = socket.local_addr()?;
        thread::spawn(move || {
            let (mut came, mut buffer) = (0, [0; 64]);
            while let Ok((bytes, from)) = socket.recv_from(&mut buffer) {
                came += 1;
                if !keeps(came) {
                    let _ = socket.send_to(&buffer[..bytes], from);
                }
            }
        });
        Ok(at)
    }

    #[test]
    fn each_is_back_before_the_next_and_one_that_is_lost_is_sent_again() -> Result<()> {
        let mut datagrams = Datagrams::new(echo(|came| came == 3)?, false)?;
        let latency = datagrams.run(now_ns() + 1_300_000_000)?;
        assert_eq!((datagrams.number, datagrams.lost), (latency.count(), 1));
        assert!(latency.count() > 3);
        Ok(())
    }

    #[test]
    fn who_asks_apart_waits_between_and_not_in_step() -> Result<()> {
        let mut state = 1;
        let pauses: Vec<i64> = (0..1000).map(|_| pause(&mut state).tv_nsec / 1000).collect();
        assert!(pauses.iter().all(|pause| (10_000..30_000).contains(pause)));
        let mean = pauses.iter().sum::<i64>() / 1000;
        assert!((19_000..22_000).contains(&mean), "{mean}");
        let mut datagrams = Datagrams::new(echo(|_| false)?, true)?;
        let latency = datagrams.run(now_ns() + 200_000_000)?;
        assert!((1..=20).contains(&latency.count()));
        Ok(())
    }
}
