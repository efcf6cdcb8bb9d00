//! What asks a server in a guest: connections that each have one request out at a time, for a time.
//!
//! Not the server (`guest::servers`), nor what its requests look like (`protocol`, `datagrams`). Runs in the place,
//! as `lab ask`.

mod datagrams;
mod protocol;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use testing::clock::now_ns;
use testing::histogram::Histogram;

use crate::orders::{Answer, Server};
use datagrams::Datagrams;
use protocol::{KEYS, Protocol, REPLY_MAX};

/// Until a connection stands.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// Until a server goes on answering; emulated machines have pauses of seconds.
const STALL: Duration = Duration::from_secs(20);

/// What is asked, and how long.
#[derive(Debug, clap::Args)]
pub(crate) struct AskArguments {
    /// Nine gets and a set of 1 KiB, GET of a file, or a datagram
    #[arg(value_enum)]
    server: Server,
    /// Its address and port
    address: SocketAddr,
    /// Each with one request out at a time
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: u16,
    /// Milliseconds
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    for_ms: u32,
    /// The file, of HTTP
    #[arg(long, default_value = "/1k")]
    path: String,
    /// Of datagrams, each 10 to 30 ms after the answer to the one before, by no pattern
    #[arg(long)]
    apart: bool,
}

/// Asks, and writes what it came to as a line of JSON on standard output, as a guest answers a load.
/// Values that `memcached` lacks are stored before the time begins; the next one finds them.
///
/// # Errors
/// The server cannot be reached, or an answer is none.
pub(crate) fn ask(arguments: &AskArguments) -> Result<()> {
    let answer = asked(arguments).with_context(|| format!("asking {}", arguments.address))?;
    let mut out = io::stdout();
    writeln!(out, "{}", serde_json::to_string(&answer)?).context("standard output")?;
    Ok(())
}

fn asked(arguments: &AskArguments) -> Result<Answer> {
    let connect = |number| Asking::new(arguments, number);
    let mut connections = (0..arguments.connections).map(connect).collect::<Result<Vec<_>>>()?;
    if let (Server::Memcached, Some(Asking::Stream(first))) =
        (arguments.server, connections.first_mut())
    {
        first.fill()?;
    }
    let from = now_ns();
    let until = from + u64::from(arguments.for_ms) * 1_000_000;
    let ended: Result<Vec<Histogram>> = thread::scope(|scope| {
        let start = |mut connection: Asking| scope.spawn(move || connection.run(until));
        let threads: Vec<_> = connections.into_iter().map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Histogram>>| match thread.join() {
            Ok(ended) => ended,
            Err(_) => bail!("a thread has panicked"),
        };
        threads.into_iter().map(join).collect()
    });
    let elapsed_ns = now_ns() - from;
    let mut all = Histogram::default();
    ended?.iter().for_each(|latency| all.merge(latency));
    let (p50_ns, p99_ns) = (all.percentile(50), all.percentile(99));
    Ok(Answer::Done { operations: all.count(), elapsed_ns, p50_ns, p99_ns })
}

/// Who has one request out at a time.
enum Asking {
    Stream(Connection),
    Datagrams(Datagrams),
}

impl Asking {
    fn new(arguments: &AskArguments, number: u16) -> Result<Asking> {
        let protocol = match arguments.server {
            Server::Memcached => Protocol::memcached(number),
            Server::Http => Protocol::http(&arguments.path)?,
            Server::Echo => {
                return Datagrams::new(arguments.address, arguments.apart).map(Asking::Datagrams);
            }
        };
        Connection::new(arguments.address, protocol).map(Asking::Stream)
    }

    fn run(&mut self, until: u64) -> Result<Histogram> {
        match self {
            Asking::Stream(connection) => connection.run(until),
            Asking::Datagrams(datagrams) => datagrams.run(until),
        }
    }
}

/// A connection, and what it asks.
struct Connection {
    stream: TcpStream,
    protocol: Protocol,
    reply: Box<[u8; REPLY_MAX]>,
}

impl Connection {
    fn new(address: SocketAddr, protocol: Protocol) -> Result<Connection> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_WAIT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STALL))?;
        stream.set_write_timeout(Some(STALL))?;
        Ok(Connection { stream, protocol, reply: Box::new([0; REPLY_MAX]) })
    }

    /// One request after the other until that time.
    fn run(&mut self, until: u64) -> Result<Histogram> {
        let mut latency = Histogram::default();
        let mut since = now_ns();
        while since < until {
            self.protocol.next();
            self.once()?;
            let now = now_ns();
            latency.record(now - since);
            since = now;
        }
        Ok(latency)
    }

    /// Stores all values, if the last is not there.
    fn fill(&mut self) -> Result<()> {
        self.protocol.get(KEYS - 1);
        if self.once().is_ok() {
            return Ok(());
        }
        for key in 0..KEYS {
            self.protocol.set(key);
            self.once()?;
        }
        Ok(())
    }

    /// A request and its answer.
    fn once(&mut self) -> Result<()> {
        self.stream.write_all(self.protocol.request())?;
        let mut came = 0;
        loop {
            if let Some(whole) = self.protocol.reply_bytes(&self.reply[..came])? {
                ensure!(came <= whole, "more came than was asked for");
                if came == whole {
                    return Ok(());
                }
            }
            let bytes = match self.stream.read(&mut self.reply[came..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            ensure!(
                bytes > 0,
                "the connection was closed, or an answer is longer than {REPLY_MAX} bytes"
            );
            came += bytes;
        }
    }
}
