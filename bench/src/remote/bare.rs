//! A datagram of UDP there and back, between two sockets whose owners do nothing else: what the machine takes for the way
//! of a frame and its answer, which a link over UDP cannot be below.
//!
//! Called by `net`. The other end is a thread of this process, in the servers' namespace and on their core; it polls, as a
//! sidecore does, and sleeps when nothing came for a while.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::mpsc;

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use testing::clock::now_ns;
use testing::histogram::Histogram;

use super::{Options, SERVER_CORE};
use crate::blk::pin;

/// Without a datagram it polls for so long.
const POLL_NS: u64 = 20_000_000;
const LENGTH_MAX: usize = 2048;
const PATIENCE_NS: u64 = 1_000_000_000;
/// Sent alone, it ends the other end.
const END: [u8; 1] = [0];

/// This end.
pub(super) struct Bare {
    socket: UdpSocket,
}

impl Bare {
    /// Starts the other one.
    pub(super) fn start(options: &Options) -> Result<Bare> {
        let (namespace, at) = (options.inside.clone(), options.at);
        let (says, hears) = mpsc::channel();
        std::thread::Builder::new().name("bare".to_string()).spawn(move || {
            // Whoever waits hears of an error, and then there is nobody to tell.
            let _ = match open(&namespace, at) {
                Ok((socket, to)) => says.send(Ok(to)).map(|()| drop(answer(&socket))),
                Err(error) => says.send(Err(error)),
            };
        })?;
        let to = hears.recv().context("the far end is gone")??;
        let socket = UdpSocket::bind(match to {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        })?;
        socket.connect(to)?;
        socket.set_nonblocking(true)?;
        Ok(Bare { socket })
    }

    /// Round trips of datagrams of so many bytes.
    pub(super) fn round(&self, len: usize, [warm_ms, measured_ms]: [u64; 2]) -> Result<Histogram> {
        // With its headers a frame of that length, as far as one is long enough.
        let mut bytes = vec![0x5a; len.saturating_sub(42).max(8)];
        let mut back = [0; LENGTH_MAX];
        let mut times = Histogram::default();
        let start = now_ns();
        let from = start + warm_ms * 1_000_000;
        for number in 0_u64.. {
            let sent_at = now_ns();
            if sent_at >= from + measured_ms * 1_000_000 {
                break;
            }
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            self.socket.send(&bytes)?;
            loop {
                match self.socket.recv(&mut back) {
                    Ok(got) if back[..got] == bytes => break,
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error).context("what was sent does not come back"),
                }
                ensure!(now_ns() - sent_at < PATIENCE_NS, "a datagram did not come back");
            }
            if sent_at >= from {
                times.record(now_ns() - sent_at);
            }
        }
        ensure!(times.count() > 0, "nothing came back");
        Ok(times)
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // If it does not come there it ends with this process.
        let _ = self.socket.send(&END);
    }
}

/// The far end, on its core and in its namespace.
fn open(namespace: &str, at: IpAddr) -> Result<(UdpSocket, SocketAddr)> {
    pin(SERVER_CORE)?;
    let path = format!("/run/netns/{namespace}");
    let file = File::open(&path).with_context(|| path.clone())?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).context(path)?;
    let socket = UdpSocket::bind(SocketAddr::new(at, 0)).with_context(|| at.to_string())?;
    let to = socket.local_addr()?;
    Ok((socket, to))
}

/// Sends back what comes, until it is told to end.
fn answer(socket: &UdpSocket) -> std::io::Result<()> {
    let mut bytes = [0; LENGTH_MAX];
    let (mut heard_at, mut polls) = (now_ns(), true);
    socket.set_nonblocking(true)?;
    loop {
        match socket.recv_from(&mut bytes) {
            Ok((1, _)) => return Ok(()),
            Ok((len, from)) => {
                socket.send_to(&bytes[..len], from)?;
                heard_at = now_ns();
                if !std::mem::replace(&mut polls, true) {
                    socket.set_nonblocking(true)?;
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if now_ns() - heard_at > POLL_NS {
                    polls = false;
                    socket.set_nonblocking(false)?;
                }
            }
            Err(error) => return Err(error),
        }
    }
}
