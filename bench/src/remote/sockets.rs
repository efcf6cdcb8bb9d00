//! What a frame costs by each kind of socket of a link without IP, all of it on one processor: `sendmmsg` of a packet
//! socket, the kernel's way over a pair of interfaces, and who takes it: `recvmmsg`, the ring of a packet socket
//! (`TPACKET_V2`, as NICs have it), or AF_XDP.
//!
//! Called by `remote`. Each burst is sent and then taken by this thread, so that the time of the thread is that of the
//! frame: the kernel delivers within the call that sends.

use anyhow::{Context, Result, ensure};
use backend::link::{Address, ETHER_TYPE, LinkSocket, LinkSource};
use backend::net::{HostPort, HostSource};
use testing::clock::now_ns;
use testing::report::Row;
use testing::server::{CpuTime, Who};

use super::Options;

/// As many as a link has under way with 32 reads of 4 KiB, by the MTU of 1500, and few.
const BURSTS: [usize; 3] = [1, 16, 96];
/// Longest that nothing comes.
const PATIENCE_NS: u64 = 1_000_000_000;
/// The pair of interfaces, both here.
const ENDS: [&str; 2] = ["near", "nigh"];
const STATION: [u8; 6] = [2, 0, 0, 0x78, 0, 4];

/// Who takes frames.
enum Taker {
    Calls(Box<LinkSocket>),
    Ring(Box<HostPort>),
    Xdp(Box<LinkSocket>),
}

pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let name = |end: usize| ENDS[end].to_string();
    let mut from = LinkSocket::open(&LinkSource::Interface { name: name(0) })?;
    let len = from.frame_bytes();
    for burst in BURSTS {
        let kinds = [(0, "calls"), (1, "ring"), (2, "xdp")];
        let mut seen: [Vec<f64>; 3] = Default::default();
        for _ in 0..options.rounds {
            for (kind, word) in kinds {
                // One at a time: several would each have the frame.
                let made = match kind {
                    0 => LinkSocket::open(&LinkSource::Interface { name: name(1) })
                        .map(|socket| Taker::Calls(Box::new(socket)))?,
                    1 => HostPort::open(&HostSource::Packet { interface: name(1) })
                        .map(|port| Taker::Ring(Box::new(port)))?,
                    _ => match LinkSocket::open(&LinkSource::Xdp { name: name(1) }) {
                        Ok(socket) => Taker::Xdp(Box::new(socket)),
                        Err(error) => {
                            eprintln!("bench: {error}");
                            continue;
                        }
                    },
                };
                let mut taker = made;
                if taker.longest() < len {
                    continue;
                }
                let cost = round(&mut from, &mut taker, burst, len, options.times_ms());
                seen[kind].push(cost.with_context(|| word.to_string())?);
            }
        }
        for ((_, word), seen) in kinds.iter().zip(&seen).filter(|(_, seen)| !seen.is_empty()) {
            let name = format!("remote.mtu{}.frame.{word}.burst{burst}.ns", options.mtu);
            let row = Row::new(name, Who::Sidecore, "ns", seen);
            eprintln!("bench: {}: {:.0} ns", row.name, row.value);
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Nanoseconds of the thread's time for a frame.
fn round(
    from: &mut LinkSocket,
    taker: &mut Taker,
    burst: usize,
    len: usize,
    [warm_ms, measured_ms]: [u64; 2],
) -> Result<f64> {
    let start = now_ns();
    let (mut frames, mut sum, mut before) = (0_u64, 0_u64, None);
    loop {
        let now = now_ns();
        if before.is_none() && now - start >= warm_ms * 1_000_000 {
            before = Some((CpuTime::own(), frames, now));
        }
        if now - start >= (warm_ms + measured_ms) * 1_000_000
            && let Some((used, counted, _)) = before
        {
            ensure!(sum != 1, "frames of nothing");
            let used_ns = CpuTime::own().since(used).used_ns;
            return Ok(used_ns as f64 / (frames - counted).max(1) as f64);
        }
        for _ in 0..burst {
            from.send(|place| {
                place.get_mut(..len)?.fill(frames as u8);
                Some((len, Address::station(STATION)))
            });
        }
        from.flush();
        let mut left = burst;
        while left > 0 {
            taker.take(&mut |frame| {
                // Each line of it is looked at, as opening it does.
                sum += frame.iter().step_by(64).map(|byte| u64::from(*byte)).sum::<u64>();
                left = left.saturating_sub(1);
            });
            ensure!(now_ns() - now < PATIENCE_NS, "{left} of {burst} frames did not come");
        }
        frames += burst as u64;
    }
}

impl Taker {
    /// Bytes of the longest frame.
    fn longest(&self) -> usize {
        match self {
            Taker::Calls(socket) | Taker::Xdp(socket) => socket.frame_bytes(),
            Taker::Ring(_) => usize::MAX,
        }
    }

    /// Gives what has come.
    fn take(&mut self, one: &mut dyn FnMut(&[u8])) {
        match self {
            Taker::Calls(socket) | Taker::Xdp(socket) => {
                while let Some((_, frame)) = socket.receive() {
                    one(frame);
                }
            }
            Taker::Ring(port) => {
                while let Some(found) = port.receive(now_ns()) {
                    if found.bytes.get(12..14) == Some(&ETHER_TYPE.to_be_bytes()) {
                        one(found.bytes);
                    }
                }
            }
        }
    }
}
