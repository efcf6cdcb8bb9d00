//! A good session beside frames that are none: does it lose more than it costs to receive them?
//!
//! One thread is the good client, 32 requests at a time, and between its turns the stranger, so that both rounds of a
//! pair have the same to send: in one the strange frames go to a place where nobody looks, in the other to the link. What
//! a strange frame costs its receiver is measured while the good client asks for nothing: the time of its sidecore's
//! passes that found work, for each frame. Called by `remote`.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use backend::link::{Address, ETHER_TYPE, LinkSocket, LinkSource};
use backend::net::{HostPort, HostSource, Rest, Sent};
use remote::wire::{Header as FrameHeader, Kind, VERSION};
use testing::clock::now_ns;
use testing::load::Random;
use testing::net_frontend::Header;
use testing::report::Row;
use testing::server::Who;
use testing::slots::Kind as Access;

use super::iohost::{Iohost, STATION, Site};
use super::{BLOCK_BYTES, DISK_BYTES, Far, Options, Peer};

const DEPTH: u16 = 32;
/// Strange frames a second, if the machine can.
const RATE: u64 = 1_000_000;
/// Of them in one go, at most.
const BURST: u64 = 256;
/// Frames of a kind, sent in turn; and their length, as short as a stranger has them.
const FRAMES: usize = 64;
const FRAME_BYTES: usize = 100;
/// The same kept, for all that is known here: rounds differ by more.
const MARGIN: f64 = 0.05;
/// An EtherType that nobody hears: IEEE 802, local experimental 2.
const DEAF_TYPE: u16 = 0x88b6;
const WAIT: Duration = testing::timing::PATIENCE;

/// What a stranger sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Garbage {
    /// Bytes without any sense.
    Random,
    /// The same, each a message of its own for the kernel.
    Apart,
    /// A good header, of a session that there is not.
    Unknown,
    /// A hello that nobody has said.
    Hello,
    /// What the good session has sent.
    Replayed,
    /// A header of the good session, with a counter that it had not, and nothing behind that it has sealed.
    Forged,
}

const KINDS: [(Garbage, &str); 6] = [
    (Garbage::Random, "random"),
    (Garbage::Apart, "random-apart"),
    (Garbage::Unknown, "unknown"),
    (Garbage::Hello, "hello"),
    (Garbage::Replayed, "replayed"),
    (Garbage::Forged, "forged"),
];

/// Where strange frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Nobody,
    Deaf,
    Link,
}

/// Who sends them.
enum Stranger {
    Port(Box<LinkSocket>, [Address; 2]),
    Wire(Box<HostPort>, [u8; 6]),
}

/// What one round saw.
#[derive(Clone, Copy, Default)]
struct Seen {
    iops: f64,
    /// Strange frames that were sent, a second.
    rate: f64,
    /// Of the IOhost: frames that came, and its sidecore's time in passes with work.
    frames: f64,
    busy_ns: f64,
    elapsed_s: f64,
}

pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for peer in options.peers() {
        if matches!(peer, Peer::Sealed | Peer::Packet | Peer::Xdp) {
            rows.extend(of_peer(peer, options).context(peer.who().word())?);
        }
    }
    Ok(rows)
}

fn of_peer(peer: Peer, options: &Options) -> Result<Vec<Row>> {
    let binary = options.binary()?;
    let name = format!("flood-{peer:?}").to_lowercase();
    let site = Site::new(&binary, &name, peer.over(options, 200), options.mtu, "")?;
    let mut server = site.serve(peer.who(), &options.inside)?;
    let mut good = site.connect().with_context(|| server.last_words())?;
    good.keep_sent();
    super::fill(&mut good)?;
    // A second one, that stands still: its port is where nobody looks.
    let mut deaf = None;
    let mut stranger = match peer {
        Peer::Sealed => {
            let over = Peer::Sidecore.over(options, 200);
            let other = Site::new(&binary, &format!("{name}-deaf"), over, options.mtu, "")?;
            let stopped = other.serve(Who::Sidecore, &options.inside)?;
            other.connect().with_context(|| stopped.last_words())?;
            stopped.pause()?;
            deaf = Some(stopped);
            let bind: SocketAddr = "0.0.0.0:0".parse()?;
            let socket = LinkSocket::open(&LinkSource::Udp { bind })?;
            Stranger::Port(Box::new(socket), [other.to(), site.to()])
        }
        _ => {
            let interface = if peer == Peer::Xdp { "xdp" } else { "packet" }.to_string();
            let station = std::fs::read_to_string(format!("/sys/class/net/{interface}/address"))?;
            let mut from = [0; 6];
            for (byte, text) in from.iter_mut().zip(station.trim().split(':')) {
                *byte = u8::from_str_radix(text, 16)?;
            }
            Stranger::Wire(Box::new(HostPort::open(&HostSource::Packet { interface })?), from)
        }
    };
    let api = server.wait_for("api")?;
    let mut rows = Vec::new();
    for (kind, word) in KINDS {
        let frames = kind.frames(good.sent())?;
        let mut one = |good: &mut Iohost, depth, to| {
            round(good, depth, &mut stranger, &frames, to, options.times_ms(), &api)
        };
        let mut seen: [Vec<Seen>; 3] = Default::default();
        let mut costs = Vec::new();
        for _ in 0..options.rounds {
            for (seen, to) in seen.iter_mut().zip([To::Nobody, To::Deaf, To::Link]) {
                seen.push(one(&mut good, DEPTH, to)?);
            }
            let alone = one(&mut good, 0, To::Link)?;
            costs.push(alone.busy_ns / alone.frames.max(1.0));
        }
        let name = format!("remote.mtu{}.flood.{word}", options.mtu);
        rows.extend(judge(&name, peer, &seen, &costs));
    }
    drop(deaf);
    Ok(rows)
}

fn judge(name: &str, peer: Peer, [alone, deaf, live]: &[Vec<Seen>; 3], costs: &[f64]) -> Vec<Row> {
    let row = |what: &str, unit, values: &[f64]| {
        Row::new(format!("{name}.{what}"), peer.who(), unit, values)
    };
    let iops = |seen: &[Seen]| seen.iter().map(|one| one.iops).collect::<Vec<_>>();
    // Frames of the good session are as many for each request as without strange ones.
    let good = |seen: &Seen| seen.frames / (seen.iops * seen.elapsed_s).max(1.0);
    let rates: Vec<f64> = live
        .iter()
        .zip(deaf)
        .map(|(live, deaf)| live.frames / live.elapsed_s - good(deaf) * live.iops)
        .collect();
    let kept: Vec<f64> = live.iter().zip(deaf).map(|(live, deaf)| live.iops / deaf.iops).collect();
    let (cost, rate) = (row("cost_ns", "ns", costs), row("received_per_s", "1/s", &rates));
    let bounds: Vec<f64> =
        rates.iter().map(|rate| (1.0 - rate * cost.value / 1e9).max(0.0)).collect();
    let sent: Vec<f64> = live.iter().map(|one| one.rate).collect();
    let (kept, bound) = (row("kept", "", &kept), row("bound", "", &bounds));
    eprintln!(
        "bench: {name}: {}: {:.0} a second came, {:.0} ns each; kept {:.3}, and {:.3} is asked: {}",
        peer.who().word(),
        rate.value,
        cost.value,
        kept.value,
        bound.value,
        if kept.value >= bound.value - MARGIN { "met" } else { "not met" }
    );
    vec![
        row("alone_iops", "1/s", &iops(alone)),
        row("deaf_iops", "1/s", &iops(deaf)),
        row("iops", "1/s", &iops(live)),
        row("sent_per_s", "1/s", &sent),
        rate,
        cost,
        kept,
        bound,
    ]
}

/// Requests of the good client, and strange frames between its turns.
fn round(
    good: &mut Iohost,
    depth: u16,
    stranger: &mut Stranger,
    frames: &[Vec<u8>],
    to: To,
    [warm_ms, measured_ms]: [u64; 2],
    api: &Path,
) -> Result<Seen> {
    let mut random = Random(0x5eed);
    let mut free: Vec<u16> = (0..depth).collect();
    let (mut done, mut sent, mut left_out, mut before) = (0_u64, 0_u64, 0_u64, None);
    let start = now_ns();
    loop {
        let now = now_ns();
        let is_over = now - start >= (warm_ms + measured_ms) * 1_000_000;
        if before.is_none() && now - start >= warm_ms * 1_000_000 {
            before = Some((now, done, sent - left_out, counters(api)?));
        }
        if is_over && let Some((at, done_before, sent_before, [frames, busy])) = before {
            let [frames_after, busy_after] = counters(api)?;
            let elapsed_s = (now - at) as f64 / 1e9;
            // What is under way ends, and what waits at the IOhost is taken.
            while free.len() < depth.into() {
                good.send()?;
                good.take(&mut |tag| free.push(tag))?;
            }
            return Ok(Seen {
                iops: (done - done_before) as f64 / elapsed_s,
                rate: (sent - left_out - sent_before) as f64 / elapsed_s,
                frames: frames_after - frames,
                busy_ns: busy_after - busy,
                elapsed_s,
            });
        }
        while let Some(tag) = free.pop() {
            let block = random.below(DISK_BYTES / BLOCK_BYTES as u64);
            good.ask(Access::Read, block, tag)?;
        }
        good.send()?;
        if to != To::Nobody {
            let due = ((now - start) * (RATE / 1000) / 1_000_000).saturating_sub(sent);
            let count = due.min(BURST);
            stranger.send(frames, sent, count, to == To::Link);
            // What could not be sent in time is not sent later.
            sent += due;
            left_out += due - count;
        }
        good.take(&mut |tag| {
            done += 1;
            free.push(tag);
        })?;
    }
}

impl Stranger {
    fn send(&mut self, frames: &[Vec<u8>], from: u64, count: u64, is_live: bool) {
        for number in from..from + count {
            let frame = &frames[number as usize % frames.len()];
            match self {
                Stranger::Port(socket, to) => {
                    let to = to[usize::from(is_live)];
                    socket.send(|place| {
                        place.get_mut(..frame.len())?.copy_from_slice(frame);
                        Some((frame.len(), to))
                    });
                }
                Stranger::Wire(port, own) => {
                    let kind = if is_live { ETHER_TYPE } else { DEAF_TYPE }.to_be_bytes();
                    let len = (frame.len() as u16).to_be_bytes();
                    let head = [&STATION[..], &own[..], &kind, &len].concat();
                    let whole = [&head[..], frame].concat();
                    if port.send(&Header::default(), &whole, Rest::Private(&[])) == Sent::Full {
                        port.flush();
                    }
                }
            }
        }
        match self {
            Stranger::Port(socket, _) => socket.flush(),
            Stranger::Wire(port, _) => port.flush(),
        }
    }
}

impl Garbage {
    fn frames(self, sent: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
        let mut random = Random(0xbad);
        let mut bytes =
            |len: usize| -> Vec<u8> { (0..len).map(|_| random.below(256) as u8).collect() };
        let mut sealed = sent.iter().filter_map(|frame| FrameHeader::parse(frame).ok());
        let known = sealed.next_back().context("the good client has sent nothing")?;
        let headed = |mut frame: Vec<u8>, kind: Kind, session: u32, counter: u64| {
            frame[..4].copy_from_slice(&[VERSION, kind as u8, 0, 0]);
            frame[4..8].copy_from_slice(&session.to_le_bytes());
            frame[8..16].copy_from_slice(&counter.to_le_bytes());
            frame
        };
        let frames: Vec<Vec<u8>> = (0..FRAMES)
            .map(|number| match self {
                Garbage::Random => bytes(FRAME_BYTES),
                // Longer than the one before: a message ends with a shorter one.
                Garbage::Apart => bytes(FRAME_BYTES + number),
                Garbage::Unknown => {
                    headed(bytes(FRAME_BYTES), Kind::Sealed, known.session ^ 0x0055_0000, 1)
                }
                Garbage::Hello => headed(bytes(FRAME_BYTES), Kind::Hello, 0, 0),
                Garbage::Replayed => sent[number % sent.len()].clone(),
                Garbage::Forged => {
                    let counter = known.counter + (1 << 40) + number as u64;
                    headed(bytes(FRAME_BYTES), Kind::Sealed, known.session, counter)
                }
            })
            .collect();
        ensure!(frames.iter().all(|frame| frame.len() >= 16), "frames without a header");
        Ok(frames)
    }
}

/// Of the IOhost: frames that came by its link, and the time of its sidecore's passes that found work.
fn counters(api: &Path) -> Result<[f64; 2]> {
    let link = get(api, "/v1/links")?;
    let cores = get(api, "/v1/sidecores")?;
    let of = |value: &serde_json::Value, list: &str, name: &str| {
        value[list][0][name].as_f64().with_context(|| format!("no {name}: {value}"))
    };
    Ok([of(&link, "links", "frames_in")?, of(&cores, "sidecores", "busy_ns")?])
}

/// What a daemon's API answers.
pub(super) fn get(api: &Path, path: &str) -> Result<serde_json::Value> {
    let mut stream = UnixStream::connect(api).context("connecting to the daemon's API")?;
    stream.set_read_timeout(Some(WAIT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: sidecore\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "the daemon's API says: {answer}");
    Ok(serde_json::from_str(body)?)
}
