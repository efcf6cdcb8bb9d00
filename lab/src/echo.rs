//! An echo for datagrams as servers for many are made: a worker on each CPU, which has what its CPU receives. All of
//! them are kept busy beside it, by what gives way at once.
//!
//! Not who asks (`ask`). Runs in a guest that is measured as `lab echo`, started on order (`guest::servers`), and ends
//! with its process.

use std::hint::black_box;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use anyhow::{Context, Result, ensure};
use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use socket2::{Domain, Socket, Type};

use crate::orders::ECHO_PORT;

/// More than a guest of the lab has.
const WORKERS_MAX: usize = 64;
/// Frames of Ethernet hold no more.
const DATAGRAM_MAX: usize = 1500;
/// The least there is: a worker that is woken comes before it.
const NICE: i32 = 19;

/// Serves until it is ended. It can be connected to on the same port when all workers are there.
///
/// # Errors
/// The port cannot be had, or a worker fails.
pub(crate) fn serve() -> Result<()> {
    let allowed = sched_getaffinity(None)?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let ended = start(SocketAddr::from((Ipv4Addr::UNSPECIFIED, ECHO_PORT)), &cpus)?;
    for cpu in cpus {
        thread::Builder::new().name(format!("busy {cpu}")).spawn(move || compute(cpu))?;
    }
    let _ready = TcpListener::bind((Ipv4Addr::UNSPECIFIED, ECHO_PORT)).context("TCP")?;
    Err(ended.recv()?)
}

/// Starts a worker on each of these CPUs; what is given gets the failure of one that ended.
fn start(at: SocketAddr, cpus: &[usize]) -> Result<Receiver<anyhow::Error>> {
    ensure!(cpus.len() <= WORKERS_MAX, "{} CPUs, not {WORKERS_MAX} at most", cpus.len());
    let (ending, ended) = channel();
    for cpu in cpus.iter().copied() {
        let socket = socket_of(at, cpu).with_context(|| format!("UDP {at}"))?;
        let ending: Sender<anyhow::Error> = ending.clone();
        let worker = move || {
            let Err(error) = on_cpu(cpu).and_then(|()| echo(&socket));
            // Without a receiver the process is at its end.
            let _ = ending.send(anyhow::Error::new(error).context(format!("CPU {cpu}")));
        };
        thread::Builder::new().name(format!("echo {cpu}")).spawn(worker)?;
    }
    Ok(ended)
}

/// Of all that share the port, the one that has what this CPU receives (`SO_INCOMING_CPU`; of unconnected sockets
/// the kernel chooses so since Linux 6.2).
fn socket_of(at: SocketAddr, cpu: usize) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(at), Type::DGRAM, None)?;
    socket.set_reuse_port(true)?;
    socket.set_cpu_affinity(cpu)?;
    socket.bind(&at.into())?;
    Ok(socket.into())
}

fn on_cpu(cpu: usize) -> io::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    Ok(sched_setaffinity(None, &cpus)?)
}

fn echo(socket: &UdpSocket) -> io::Result<std::convert::Infallible> {
    let mut buffer = [0; DATAGRAM_MAX];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((bytes, from)) => {
                // One that cannot be sent back is lost: who asked sends it again.
                let _ = socket.send_to(&buffer[..bytes], from);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Keeps a CPU busy, and gives way to whatever else has work on it.
fn compute(cpu: usize) {
    // Of a thread, on Linux. What has no CPU of its own would take that of a worker.
    if on_cpu(cpu).is_err() || setpriority_process(None, NICE).is_err() {
        return;
    }
    let mut mixed = 1_u64;
    loop {
        mixed = black_box((mixed ^ mixed >> 31).wrapping_mul(0x94d0_49bb_1331_11eb));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use testing::lacking::left_out;

    use super::*;

    /// An address of this machine that nobody has.
    fn free() -> Result<SocketAddr> {
        Ok(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
    }

    fn asking(at: SocketAddr) -> Result<UdpSocket> {
        let asks = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        asks.set_read_timeout(Some(Duration::from_secs(20)))?;
        asks.connect(at)?;
        Ok(asks)
    }

    #[test]
    fn datagrams_come_back_as_they_were() -> Result<()> {
        let at = free()?;
        let ended = start(at, &[0])?;
        let asks = asking(at)?;
        let mut back = [0; 16];
        for message in [&b"one"[..], b"another"] {
            asks.send(message)?;
            let bytes = asks.recv(&mut back)?;
            assert_eq!(&back[..bytes], message);
        }
        assert!(ended.try_recv().is_err());
        let said = start(at, &[0; 65]).map_err(|error| error.to_string());
        assert!(said.is_err_and(|said| said == "65 CPUs, not 64 at most"));
        Ok(())
    }

    /// Over loopback a datagram is received where it was sent. Kernels before 6.2 choose by its hash.
    #[test]
    fn a_worker_has_what_its_cpu_receives() -> Result<()> {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
        let allowed = sched_getaffinity(None)?;
        let cpus: Vec<usize> = (0..64).filter(|cpu| allowed.is_set(*cpu)).collect();
        if (numbers.next(), numbers.next()) < (Some(6), Some(2)) || cpus.len() < 2 {
            left_out("a socket for each processor takes two of them, and Linux 6.2");
            return Ok(());
        }
        let at = free()?;
        let of = |cpu: &usize| socket_of(at, *cpu);
        let sockets = cpus.iter().map(of).collect::<io::Result<Vec<UdpSocket>>>()?;
        for (cpu, socket) in cpus.iter().zip(&sockets) {
            on_cpu(*cpu)?;
            socket.set_read_timeout(Some(Duration::from_secs(20)))?;
            for _ in 0..5 {
                // A new flow each time, which has another hash.
                asking(at)?.send(b"x")?;
                assert_eq!(socket.recv(&mut [0; 4])?, 1);
            }
        }
        Ok(())
    }
}
