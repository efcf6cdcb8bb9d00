//! What guests do at the same time: a load has a part for each kind of it, and a part its guests.

use std::ops::Range;

use super::asking::Asked;
use super::cells::Kind;
use crate::orders::Server;

/// What is ordered together, and answered together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) parts: Vec<Part>,
}

/// Guests that do the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// As in the names of rows.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Of each guest; with a time, what is repeated in it.
    pub(crate) operations: u64,
    pub(crate) for_ms: Option<u32>,
    /// By number. No guest has two parts.
    pub(crate) guests: Range<usize>,
}

/// A single load's time; half of it if it is to be quick.
const GUESTS_MS: u32 = 3000;
/// Of the computing that says what time in guest is to be had.
const SPIN_MS: u32 = 1000;
/// As many times as others an echo is asked.
const ECHO_TIMES: u32 = 10;
/// Bytes of a message of a stream.
const STREAM_BYTES: u32 = 1024;

impl Load {
    /// How many guests have something to do.
    pub(crate) fn guests(&self) -> usize {
        self.parts.iter().map(|part| part.guests.len()).sum()
    }

    /// The first one's name, and how many there are.
    pub(crate) fn name(&self) -> String {
        let names: Vec<&str> = self.parts.iter().map(|part| part.name.as_str()).collect();
        names.join(" and ")
    }

    pub(crate) fn spin() -> Load {
        Load::of(vec![timed("spin".to_string(), Kind::Spin, 100, SPIN_MS, 0..1)])
    }

    /// So many guests, each 4 threads that read and 4 that write.
    pub(crate) fn blocks(guests: usize, quick: bool) -> Load {
        let name = format!("blk.guests{guests}.mixed4k");
        Load::of(vec![timed(name, Kind::Mixed { threads: 4 }, 400, within(quick), 0..guests)])
    }

    /// So many guests, each a datagram and back.
    pub(crate) fn exchanges(guests: usize, quick: bool) -> Load {
        let name = format!("net.guests{guests}.udp_rr");
        Load::of(vec![timed(name, Kind::UdpRr, 100, within(quick), 0..guests)])
    }

    /// So many guests, each a stream.
    pub(crate) fn streams(guests: usize, quick: bool) -> Load {
        let name = format!("net.guests{guests}.tcp_send_{STREAM_BYTES}");
        Load::of(vec![stream(name, quick, 0..guests)])
    }

    /// The first guest sends a datagram and waits for it, so many others a stream each.
    pub(crate) fn exchange_beside(streams: usize, quick: bool) -> Load {
        let name = |what: &str| format!("mixed.streams{streams}.{what}");
        let mut parts = vec![timed(name("udp_rr"), Kind::UdpRr, 100, within(quick), 0..1)];
        if streams > 0 {
            parts.push(stream(name("stream"), quick, 1..1 + streams));
        }
        Load::of(parts)
    }

    /// The first guest's server is asked.
    pub(crate) fn served(server: Server, quick: bool) -> Load {
        let name = match server {
            Server::Memcached => "servers.memcached",
            Server::Http => "servers.http",
            Server::Echo => "servers.echo",
        };
        let asked = Asked { server, apart: false };
        Load::of(vec![timed(name.to_string(), Kind::Served(asked), 1, within(quick), 0..1)])
    }

    /// The first guest's echo is asked by one who waits for the answer: one after the other, or `apart`. Longer than
    /// others, for a percentile of what a slice of a vCPU makes late.
    pub(crate) fn echoed(apart: bool, quick: bool) -> Load {
        let name = if apart { "redirect.udp_apart" } else { "redirect.udp_rr" };
        let asked = Asked { server: Server::Echo, apart };
        let for_ms = within(quick) * ECHO_TIMES;
        Load::of(vec![timed(name.to_string(), Kind::Served(asked), 1, for_ms, 0..1)])
    }

    fn of(parts: Vec<Part>) -> Load {
        Load { parts }
    }
}

fn within(quick: bool) -> u32 {
    if quick { GUESTS_MS / 2 } else { GUESTS_MS }
}

fn stream(name: String, quick: bool, guests: Range<usize>) -> Part {
    timed(name, Kind::TcpSend { bytes: STREAM_BYTES }, 2000, within(quick), guests)
}

fn timed(name: String, kind: Kind, operations: u64, for_ms: u32, guests: Range<usize>) -> Part {
    Part { name, kind, operations, for_ms: Some(for_ms), guests }
}
