//! A wire between UDP sockets that loses, doubles, delays and so reorders datagrams, both ways, from a seed.
//!
//! `bad_wire LISTEN TO SEED LOSS_PERCENT DOUBLE_PERCENT DELAY_US`: what comes at LISTEN goes on to TO, from a
//! socket for each sender, and what comes back goes back. A datagram waits for up to DELAY_US. It ends when its standard
//! input does, and then says on one line how many datagrams there were, were lost and were doubled.
//!
//! Not a shaper: it has no bandwidth. Run by `tests/remote*.rs` between a client and an IOhost.
#![expect(clippy::disallowed_macros, reason = "a program prints")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testing::clock::now_ns;
use testing::load::Random;

/// Senders that are known: a test has two at a time. One more takes the place of the one that came first, which is taken
/// for gone.
const SENDERS_MAX: usize = 16;
/// Datagrams that wait; what is more is lost, as in any switch.
const WAITING_MAX: usize = 16_384;
/// Longest datagram, bytes.
const DATAGRAM_MAX: usize = 65_536;

/// What is done to datagrams.
struct Faults {
    random: Random,
    loss_percent: u64,
    double_percent: u64,
    delay_ns: u64,
}

/// A datagram on its way: when it arrives, in which order it came, by which socket it leaves, and to whom.
type Waiting = Reverse<(u64, u64, usize, Option<SocketAddr>, Vec<u8>)>;

/// One end of the wire: who sends, and the socket that speaks for it.
struct Sender {
    address: SocketAddr,
    socket: UdpSocket,
}

#[derive(Default)]
struct Counts {
    came: u64,
    lost: u64,
    doubled: u64,
}

struct Wire {
    listen: UdpSocket,
    to: SocketAddr,
    senders: Vec<Sender>,
    /// Whose place the next one takes, when there are as many as may be.
    oldest: usize,
    waiting: BinaryHeap<Waiting>,
    faults: Faults,
    counts: Counts,
}

impl Wire {
    /// Where a sender's datagrams leave: at a socket of its own.
    fn sender(&mut self, address: SocketAddr) -> Result<usize> {
        if let Some(at) = self.senders.iter().position(|sender| sender.address == address) {
            return Ok(at);
        }
        let any: SocketAddr = if self.to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse()?;
        let socket = UdpSocket::bind(any)?;
        socket.connect(self.to)?;
        socket.set_nonblocking(true)?;
        let sender = Sender { address, socket };
        if self.senders.len() < SENDERS_MAX {
            self.senders.push(sender);
            return Ok(self.senders.len() - 1);
        }
        let at = self.oldest;
        self.waiting.retain(|Reverse((_, _, socket, to, _))| *socket != at || to.is_some());
        self.senders[at] = sender;
        self.oldest = (at + 1) % SENDERS_MAX;
        Ok(at)
    }

    /// A datagram has come, and leaves later, or twice, or never.
    fn take(&mut self, socket: usize, to: Option<SocketAddr>, bytes: &[u8]) {
        self.counts.came += 1;
        let faults = &mut self.faults;
        let mut hits = |percent: u64| faults.random.below(100) < percent;
        if hits(faults.loss_percent) || self.waiting.len() >= WAITING_MAX {
            self.counts.lost += 1;
            return;
        }
        let copies = 1 + u64::from(hits(faults.double_percent));
        self.counts.doubled += copies - 1;
        for _ in 0..copies {
            let wait_ns = faults.random.below(faults.delay_ns + 1);
            let order = self.counts.came;
            self.waiting.push(Reverse((now_ns() + wait_ns, order, socket, to, bytes.to_vec())));
        }
    }

    /// All that has come by now.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<()> {
        while let Some((len, from)) = heard(self.listen.recv_from(buffer))? {
            let at = self.sender(from)?;
            self.take(at, None, &buffer[..len]);
        }
        for at in 0..self.senders.len() {
            let back = self.senders[at].address;
            while let Some(len) = heard(self.senders[at].socket.recv(buffer))? {
                self.take(at, Some(back), &buffer[..len]);
            }
        }
        Ok(())
    }

    /// What has waited long enough. A send that is refused is a loss: nobody is there.
    fn deliver(&mut self) {
        let now = now_ns();
        while self.waiting.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((_, _, socket, to, bytes))) = self.waiting.pop() else { return };
            let sent = match to {
                Some(address) => self.listen.send_to(&bytes, address),
                None => self.senders[socket].socket.send(&bytes),
            };
            self.counts.lost += u64::from(sent.is_err());
        }
    }

    /// Waits for a datagram, for the time of one, or for the end. True at the end.
    fn wait(&self) -> Result<bool> {
        let input = std::io::stdin();
        let mut fds =
            vec![PollFd::new(&input, PollFlags::IN), PollFd::new(&self.listen, PollFlags::IN)];
        fds.extend(self.senders.iter().map(|sender| PollFd::new(&sender.socket, PollFlags::IN)));
        let wait = self.waiting.peek().map(|Reverse((at, ..))| {
            let wait = Duration::from_nanos(at.saturating_sub(now_ns()));
            Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() }
        });
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(!fds[0].revents().is_empty())
    }
}

/// What a socket gave; nothing now, or nobody at the other end, is `None`.
fn heard<T>(result: std::io::Result<T>) -> Result<Option<T>> {
    use std::io::ErrorKind::{ConnectionRefused, Interrupted, WouldBlock};
    match result {
        Ok(got) => Ok(Some(got)),
        Err(error) if [WouldBlock, Interrupted, ConnectionRefused].contains(&error.kind()) => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [listen, to, seed, loss, double, delay] = &words[..] else {
        bail!("bad_wire LISTEN TO SEED LOSS_PERCENT DOUBLE_PERCENT DELAY_US, not {words:?}")
    };
    let number = |text: &String| text.parse::<u64>().with_context(|| format!("{text:?}"));
    let listen = UdpSocket::bind(listen.as_str()).with_context(|| listen.clone())?;
    listen.set_nonblocking(true)?;
    let faults = Faults {
        random: Random(number(seed)?),
        loss_percent: number(loss)?,
        double_percent: number(double)?,
        delay_ns: number(delay)? * 1000,
    };
    let mut wire = Wire {
        listen,
        to: to.parse()?,
        senders: Vec::new(),
        oldest: 0,
        waiting: BinaryHeap::new(),
        faults,
        counts: Counts::default(),
    };
    let mut buffer = vec![0; DATAGRAM_MAX];
    while !wire.wait()? {
        wire.receive(&mut buffer)?;
        wire.deliver();
    }
    let Counts { came, lost, doubled } = wire.counts;
    println!("{came} datagrams, {lost} lost, {doubled} doubled");
    Ok(())
}
