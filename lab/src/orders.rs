//! What the place tells a guest to do, and what the guest answers: a JSON object a line each.
//!
//! Not how either is carried, nor how a load is done (`guest`). Used by both ends.

use serde::{Deserialize, Serialize};

/// A load, and how much of it.
///
/// Where it has `for_ms` (60,000 at most), the load of `operations` is repeated until so many milliseconds
/// have passed.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(tag = "load", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Order {
    /// Random reads of 4 KiB from a block device, `depth` of them in flight.
    BlkRead {
        /// Path of the device.
        device: String,
        /// 1 to 128.
        depth: u16,
        /// So many in all.
        operations: u64,
        /// Milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u32>,
    },
    /// As `BlkRead`, writes.
    BlkWrite {
        /// Path of the device.
        device: String,
        /// 1 to 128.
        depth: u16,
        /// So many in all.
        operations: u64,
        /// Milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u32>,
    },
    /// Random reads and writes of 4 KiB at the same time, by threads.
    BlkMixed {
        /// Path of the device.
        device: String,
        /// Threads that read, 1 to 16.
        readers: u16,
        /// Threads that write, 1 to 16.
        writers: u16,
        /// So many of all threads.
        operations: u64,
        /// Milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u32>,
    },
    /// A datagram of `bytes` to `peer` and one of as many back, one after the other.
    UdpRr {
        /// Address and port.
        peer: String,
        /// Of the datagram.
        bytes: u32,
        /// So many in all.
        operations: u64,
        /// Milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u32>,
    },
    /// As `UdpRr`, over one TCP connection without delay.
    TcpRr {
        /// Address and port.
        peer: String,
        /// Of the message.
        bytes: u32,
        /// So many in all.
        operations: u64,
        /// Milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u32>,
    },
    /// Datagrams of `bytes`, as fast as it goes.
    UdpSend {
        /// Address and port.
        peer: String,
        /// Of the datagram.
        bytes: u32,
        /// So many in all.
        operations: u64,
        /// Milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u32>,
    },
    /// Datagrams of `bytes` from `peer`, as fast as it goes.
    UdpReceive {
        /// Address and port.
        peer: String,
        /// Of the datagram.
        bytes: u32,
        /// So many in all.
        operations: u64,
        /// Milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u32>,
    },
    /// Writes of `bytes` to one TCP connection, as fast as it goes.
    TcpSend {
        /// Address and port.
        peer: String,
        /// Of the write.
        bytes: u32,
        /// So many in all.
        operations: u64,
        /// Milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u32>,
    },
    /// Messages of `bytes` from one TCP connection, as fast as it goes.
    TcpReceive {
        /// Address and port.
        peer: String,
        /// Of the read.
        bytes: u32,
        /// So many in all.
        operations: u64,
        /// Milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u32>,
    },
    /// Computes, and does no I/O.
    Spin {
        /// So many in all, each of 1,000 steps.
        operations: u64,
        /// Milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u32>,
    },
    /// Only the marker: what happens until the next is somebody else's load. The answer counts nothing.
    Mark {
        /// The one that ends.
        end: bool,
    },
    /// A server listens in the guest from then on, for loads of somebody else. The answer counts nothing.
    Serve {
        /// Which.
        server: Server,
    },
}

/// What the guest has, on all its addresses.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Server {
    /// memcached, on port 11211
    Memcached,
    /// nginx, on port 80, with files /1k and /8k
    Http,
    /// `lab echo`, on port 7011: a worker for datagrams on each CPU, beside what keeps that CPU busy
    Echo,
}

/// The first line of a guest.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Ready {
    /// True.
    pub(crate) ready: bool,
    /// Of its kernel; empty where that says none. Others than `kvm-clock` and `tsc` cost an exit a look.
    pub(crate) clocksource: String,
}

/// What it came to.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Answer {
    /// Between the markers.
    Done {
        /// So many, of all repeats.
        operations: u64,
        /// From the first to the end of the last, nanoseconds.
        elapsed_ns: u64,
        /// Half of them took no longer; 0 where single ones are not timed (as of sends).
        p50_ns: u64,
        /// 99 of 100 took no longer; 0 as above.
        p99_ns: u64,
    },
    /// It could not be done, and why.
    Failed {
        /// In words.
        error: String,
    },
}

impl Answer {
    /// To an order that is no load.
    pub(crate) const NOTHING: Answer =
        Answer::Done { operations: 0, elapsed_ns: 0, p50_ns: 0, p99_ns: 0 };
}

/// The leaf of CPUID that says that a load begins.
pub(crate) const MARKER_BEGIN: u32 = 0x4c41_0001;
/// And that it has ended.
pub(crate) const MARKER_END: u32 = 0x4c41_0002;
/// The port of the peer's UDP echo, UDP sink, TCP echo, TCP sink, UDP source and TCP source, in this order
/// from here on.
pub(crate) const PEER_PORT: u16 = 7001;
/// The port of a guest's echo.
pub(crate) const ECHO_PORT: u16 = 7011;
