//! A small frame there and back: between two guests' NICs on a switch of one daemon, and with the first of them on
//! another machine, whose end of the link is the protocol's own client. Who sends back what comes is the second one's
//! driver (`net`), or somebody outside, across a pair of interfaces of its own (`outside`): what vRIO measures (table 4,
//! netperf's request and response), since most of what a guest talks to is not beside it. Beside them a datagram of the
//! same length and back, between two sockets that do nothing else (`bare`).
//!
//! Called by `remote`. Both ends, drivers, client, or who is outside, are this thread; the daemon has the other core.

use anyhow::{Context, Result, ensure};
use backend::net::{HostPort, HostSource, Rest, Sent};
use testing::clock::now_ns;
use testing::histogram::Histogram;
use testing::net_frontend::frames::{self, SMALL_BYTES};
use testing::net_frontend::{Header, Nic, NicSpec, Received};
use testing::report::Row;
use testing::server::{Server, Who};

use super::bare::Bare;
use super::iohost::{Iohost, Site};
use super::{Options, Peer};
use crate::bed::sidecore;

/// Bytes of the frames: the smallest that are common, and a full one of Ethernet's with its header.
const LENGTHS: [usize; 2] = [SMALL_BYTES, 1514];
/// Longest that a frame may take.
const PATIENCE_NS: u64 = 1_000_000_000;
/// The name of the far NIC.
const FAR: &str = "far";
const ECHO: &str = "echo";

/// The pair of interfaces of a daemon of this namespace and of whoever is outside. One of the other namespace has a pair
/// of its own, whose ends are both called `out0` and so on (`wires`).
const OUTSIDE: [&str; 2] = ["near", "nigh"];

/// Who sends back what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    /// Another guest of the daemon.
    Guest,
    /// Somebody on a wire of the daemon's machine.
    Outside,
}

/// Where the first NIC is.
enum Near {
    /// On the same switch.
    Here(Box<Nic>),
    /// On another machine.
    Far(Box<Iohost>),
}

enum Echo {
    Guest(Box<Nic>),
    Outside(Box<HostPort>),
}

/// A NIC and whom it speaks to.
struct Pair {
    near: Near,
    echo: Echo,
    _server: Server,
}

enum Bench {
    Pair(Box<Pair>),
    Bare(Bare),
}

/// Round trips of each peer that has NICs, in turns.
pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (answers, word) in [(Answers::Guest, "net"), (Answers::Outside, "outside")] {
        rows.extend(measure_with(options, answers, word)?);
    }
    Ok(rows)
}

fn measure_with(options: &Options, answers: Answers, word: &str) -> Result<Vec<Row>> {
    let mut benches = Vec::new();
    for peer in options.peers() {
        let bench = match peer {
            Peer::Nbdkit | Peer::QemuNbd => continue,
            Peer::Bare => Bench::Bare(Bare::start(options)?),
            _ => {
                eprintln!("bench: starting {} with NICs", peer.who().word());
                let pair = Pair::start(peer, answers, options).context(peer.who().word())?;
                Bench::Pair(Box::new(pair))
            }
        };
        benches.push((peer, bench));
    }
    let mut rows = Vec::new();
    for len in LENGTHS {
        let name = format!("remote.mtu{}.{word}.{len}", options.mtu);
        let mut seen: Vec<Vec<[f64; 2]>> = benches.iter().map(|_| Vec::new()).collect();
        for _ in 0..options.rounds {
            for ((peer, bench), seen) in benches.iter_mut().zip(&mut seen) {
                let times = match bench {
                    Bench::Pair(pair) => pair.round(len, options.times_ms()),
                    Bench::Bare(bare) => bare.round(len, options.times_ms()),
                };
                let times = times.with_context(|| format!("{name} of {}", peer.who().word()))?;
                seen.push([0.5, 0.99].map(|part| times.quantile(part) as f64));
            }
        }
        for ((peer, _), seen) in benches.iter().zip(&seen) {
            for (at, what) in ["p50_ns", "p99_ns"].into_iter().enumerate() {
                let values: Vec<f64> = seen.iter().map(|one| one[at]).collect();
                rows.push(Row::new(format!("{name}.{what}"), peer.who(), "ns", &values));
            }
            let half = &rows[rows.len() - 2];
            eprintln!("bench: {name}: {} {:.0} ns", peer.who().word(), half.value);
        }
    }
    Ok(rows)
}

fn mac(number: u16) -> String {
    frames::mac(number).map(|byte| format!("{byte:02x}")).join(":")
}

fn nic(id: &str, number: u16) -> String {
    format!("\n[[nic]]\nid = \"{id}\"\nswitch = \"lan\"\nmac = \"{}\"\n", mac(number))
}

impl Pair {
    fn start(peer: Peer, answers: Answers, options: &Options) -> Result<Pair> {
        let binary = options.binary()?;
        let name = format!("{answers:?}-{peer:?}").to_lowercase();
        let spec = NicSpec { send_slots: 16, ..NicSpec::default() };
        let connect = |server: &mut Server, id: &str| -> Result<Nic> {
            let socket = server.wait_for(id)?;
            Nic::connect(&socket, spec.clone()).with_context(|| server.last_words())
        };
        let [inner, outer] = match peer {
            Peer::Local => OUTSIDE.map(ToString::to_string),
            _ => [(); 2].map(|()| format!("out{}", peer as u16)),
        };
        let answering = match answers {
            Answers::Guest => nic(ECHO, 1),
            Answers::Outside => format!("[[switch.uplink]]\ninterface = \"{inner}\"\n"),
        };
        let (near, mut server) = if peer == Peer::Local {
            // A switch's uplinks come before the next table.
            let nic = nic(FAR, 0);
            let devices = format!("\n[[switch]]\nid = \"lan\"\n{answering}{nic}");
            let config = sidecore(&name, &devices, options.sidecore.as_deref());
            let mut server = Server::ours(Who::SidecoreLocal, config.start()?);
            (Near::Here(Box::new(connect(&mut server, FAR)?)), server)
        } else {
            let devices = format!(
                "\n[[switch]]\nid = \"lan\"\n[[switch.uplink]]\nremote = \"{FAR}\"\nmac = \"{}\"\n{answering}",
                mac(0),
            );
            // A port of a link each, since all of them live at once.
            let more = if answers == Answers::Guest { 100 } else { 120 };
            let site = Site::new(&binary, &name, peer.over(options, more), options.mtu, &devices)?;
            let server = site.serve(peer.who(), &options.inside)?;
            let near = site.connect_nic(FAR).with_context(|| server.last_words())?;
            (Near::Far(Box::new(near)), server)
        };
        let echo = match answers {
            Answers::Guest => Echo::Guest(Box::new(connect(&mut server, ECHO)?)),
            Answers::Outside => {
                let source = HostSource::Packet { interface: outer };
                Echo::Outside(Box::new(HostPort::open(&source)?))
            }
        };
        Ok(Pair { near, echo, _server: server })
    }

    fn round(&mut self, len: usize, [warm_ms, measured_ms]: [u64; 2]) -> Result<Histogram> {
        let there = frame(0, 1, len);
        let back = frame(1, 0, len);
        let mut received = Received::default();
        let mut times = Histogram::default();
        let start = now_ns();
        let from = start + warm_ms * 1_000_000;
        loop {
            let sent_at = now_ns();
            if sent_at >= from + measured_ms * 1_000_000 {
                ensure!(times.count() > 0, "nothing came back");
                return Ok(times);
            }
            self.near.send(&there)?;
            let mut is_back = false;
            while !is_back {
                self.echo.answer(&there, &back, &mut received)?;
                is_back = self.near.has(&back, &mut received)?;
                ensure!(now_ns() - sent_at < PATIENCE_NS, "a frame did not come back");
            }
            if sent_at >= from {
                times.record(now_ns() - sent_at);
            }
        }
    }
}

impl Echo {
    /// Sends `back` if `there` has come.
    fn answer(&mut self, there: &[u8], back: &[u8], received: &mut Received) -> Result<()> {
        match self {
            Echo::Guest(nic) => {
                if nic.pair(0).receive_into(received)? && received.bytes == there {
                    nic.pair(0).reap()?;
                    let sent = nic.pair(0).send(&Header::default(), back, &[])?;
                    ensure!(sent, "no room in an empty ring");
                }
            }
            Echo::Outside(port) => {
                while let Some(found) = port.receive(now_ns()) {
                    if found.bytes == there {
                        let sent = port.send(&Header::default(), back, Rest::Private(&[]));
                        ensure!(sent == Sent::Done, "the interface takes nothing");
                        port.flush();
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Near {
    fn send(&mut self, frame: &[u8]) -> Result<()> {
        match self {
            Near::Here(nic) => {
                nic.pair(0).reap()?;
                ensure!(nic.pair(0).send(&Header::default(), frame, &[])?, "no room in a ring");
                Ok(())
            }
            Near::Far(iohost) => iohost.send_frame(frame),
        }
    }

    /// Whether this frame has come.
    fn has(&mut self, wanted: &[u8], received: &mut Received) -> Result<bool> {
        match self {
            Near::Here(nic) => Ok(nic.pair(0).receive_into(received)? && received.bytes == wanted),
            Near::Far(iohost) => iohost.has_frame(wanted),
        }
    }
}

fn frame(from: u16, to: u16, len: usize) -> Vec<u8> {
    let mut frame = frames::small(frames::mac(from), frames::mac(to));
    frame.resize(len, 0x5a);
    frame
}
