//! The other end of network loads: an echo, a sink and a source, each for datagrams and for connections.
//!
//! Not what is measured, and nothing that measures. Runs in the place as `lab peer`, and ends with its
//! process.

mod source;

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::{SockFilter, SockRef};

use crate::orders::PEER_PORT;

/// Connections at once, of echo, sink and source together, each with a thread. One that is too many is
/// closed at once.
const CONNECTIONS_MAX: usize = 64;
/// A guest that was ended in the midst of a load leaves a connection that nobody closes.
const SILENCE: Duration = Duration::from_secs(60);
/// A datagram fits, and what TCP has at a time.
const BUFFER_SIZE: usize = 128 << 10;
/// Failures of a socket one after the other that are borne: guests and their NICs come and go.
const FAILURES_MAX: u32 = 100;

/// Serves until it is ended. Says `{"ready":true}` on standard output when all ports are had.
///
/// # Errors
/// A port cannot be had, or fails again and again.
pub(crate) fn serve(address: IpAddr) -> Result<()> {
    let failed = start(address)?;
    let mut out = io::stdout();
    writeln!(out, "{}", serde_json::json!({ "ready": true })).context("standard output")?;
    out.flush().context("standard output")?;
    Err(failed.recv()?)
}

/// Serves `address` on threads of its own; what is returned gets the failure of one that ended.
///
/// # Errors
/// A port cannot be had.
pub(crate) fn start(address: IpAddr) -> Result<Receiver<anyhow::Error>> {
    let at = |offset| SocketAddr::new(address, PEER_PORT + offset);
    let udp = |offset| UdpSocket::bind(at(offset)).with_context(|| format!("UDP {}", at(offset)));
    let tcp = |offset| TcpListener::bind(at(offset)).with_context(|| format!("TCP {}", at(offset)));
    let (udp_echo, udp_sink, udp_source) = (udp(0)?, udp(1)?, udp(4)?);
    let (tcp_source, tcp_echo, tcp_sink) = (tcp(5)?, tcp(2)?, tcp(3)?);
    let open = Arc::new(AtomicUsize::new(0));
    let [of_echo, of_sink, of_source] = [Arc::clone(&open), Arc::clone(&open), open];
    let (failing, failed) = channel();
    run("UDP echo", &failing, move || echo_datagrams(&udp_echo))?;
    run("UDP sink", &failing, move || sink_datagrams(&udp_sink))?;
    run("UDP source", &failing, move || source::datagrams(&udp_source))?;
    run("TCP echo", &failing, move || accept(&tcp_echo, &of_echo, echo))?;
    run("TCP sink", &failing, move || accept(&tcp_sink, &of_sink, sink))?;
    run("TCP source", &failing, move || accept(&tcp_source, &of_source, source::messages))?;
    Ok(failed)
}

/// Runs `job` on a thread.
fn run(
    name: &'static str,
    failing: &Sender<anyhow::Error>,
    job: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> Result<()> {
    let failing = failing.clone();
    let thread = move || {
        if let Err(error) = job() {
            // Without a receiver the process is at its end.
            let _ = failing.send(anyhow::Error::new(error).context(name));
        }
    };
    thread::Builder::new().name(name.to_owned()).spawn(thread).context(name)?;
    Ok(())
}

/// How often a socket failed since it last worked.
#[derive(Default)]
struct Failures(u32);

impl Failures {
    /// What worked, or nothing for a failure that is borne.
    fn bear<T>(&mut self, result: io::Result<T>) -> io::Result<Option<T>> {
        match result {
            Ok(worked) => {
                self.0 = 0;
                Ok(Some(worked))
            }
            Err(_) if self.0 < FAILURES_MAX => {
                self.0 += 1;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn echo_datagrams(socket: &UdpSocket) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_SIZE];
    let mut failures = Failures::default();
    loop {
        if let Some((bytes, from)) = failures.bear(socket.recv_from(&mut buffer))? {
            // One that cannot be sent back is lost: the guest sends it again.
            let _ = socket.send_to(&buffer[..bytes], from);
        }
    }
}

/// The kernel drops what comes, so that the peer is not woken for it: with few CPUs it would read it on
/// that of the server, and the papers' receiver is another machine.
fn sink_datagrams(socket: &UdpSocket) -> io::Result<()> {
    drop_all(socket)?;
    // Nothing comes; the socket is kept, and what is wrong with it told.
    let mut failures = Failures::default();
    loop {
        failures.bear(socket.recv(&mut []))?;
    }
}

/// A filter of one instruction: of each datagram, 0 bytes are kept, and so it is dropped.
fn drop_all(socket: &UdpSocket) -> io::Result<()> {
    const RETURN: u16 = 0x06;
    SockRef::from(socket).attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)])
}

/// One of the connections that are open.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(open: &Arc<AtomicUsize>) -> Option<Place> {
        let place = Place(Arc::clone(open));
        // If it is one too many, the place is given back by being dropped.
        (open.fetch_add(1, Ordering::Relaxed) < CONNECTIONS_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Gives each connection a thread on which `job` ends by itself.
fn accept(
    listener: &TcpListener,
    open: &Arc<AtomicUsize>,
    job: fn(TcpStream) -> io::Result<()>,
) -> io::Result<()> {
    let mut failures = Failures::default();
    loop {
        let Some((stream, _)) = failures.bear(listener.accept())? else { continue };
        let Some(place) = Place::take(open) else { continue };
        let thread = move || {
            let _place = place;
            // Its guest sees that it ended; nobody else is concerned.
            let _ = job(stream);
        };
        failures.bear(thread::Builder::new().spawn(thread))?;
    }
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    each(&mut stream, |stream, bytes| stream.write_all(bytes))
}

fn sink(mut stream: TcpStream) -> io::Result<()> {
    each(&mut stream, |_, _| Ok(()))
}

/// Lets `with` have whatever comes, until the other end sends no more.
fn each(
    stream: &mut TcpStream,
    with: impl Fn(&mut TcpStream, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let mut buffer = vec![0; BUFFER_SIZE];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(bytes) => with(stream, &buffer[..bytes])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
