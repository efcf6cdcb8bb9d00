//! `bench remote`: a disk of another machine over a pair of interfaces, beside NBD servers on the same pair, and
//! beside the same disk on this machine; a NIC of another machine beside one of this (`net`); a good session beside
//! strangers' frames (`flood`); a frame's cost by each kind of socket (`sockets`); sidecores of two hosts
//! on one IOhost (`consolidation`).
//!
//! Each server is a process on core 0 in a network namespace of its own, and a client in this process polls on core 1:
//! ours is the protocol's own, theirs a lean NBD client, so that servers are compared and not clients. Rounds take turns.
//! `wires` makes the namespaces. Not: a guest behind a daemon behind the wire (`./x demo remote`).
//!
//! | rows, each after `remote.mtuM.` |
//! |---|
//! | `{randread,randwrite}.qdN.{iops,p50_ns,p99_ns,cpu_ns_per_op}` |
//! | `{net,outside}.BYTES.{p50_ns,p99_ns}` |
//! | `flood.KIND.{alone_iops,deaf_iops,iops,sent_per_s,received_per_s,cost_ns,kept,bound}` |
//! | `frame.{calls,ring,xdp}.burstN.ns` |
//! | `consolidation.{half,same}.{4k,64k}.{own,shared}.{busy_iops,idle_p50_ns,idle_p99_ns,iohost_ns_per_op,client_ns_per_op,lost,core0,core1}` |
//! | `consolidation.{half,same}.{4k,64k}.{ratio,bound,far,rest}` |

mod bare;
mod consolidation;
mod flood;
mod iohost;
mod nbd;
mod net;
mod sockets;
mod wires;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use testing::clock::now_ns;
use testing::content;
use testing::daemon::sidecore_binary;
use testing::frontend::FrontendSpec;
use testing::histogram::Histogram;
use testing::load::{BATCH, Random};
use testing::report::{ROUNDS_MIN, Row};
use testing::scratch::Scratch;
use testing::server::{CpuTime, Server, Who};
use testing::slots::Kind;

use crate::bed::{Bed, DRIVER_CORE, RoundSpec, SERVER_CORE, sidecore};
use crate::blk::{Ring, pin, rounds};

pub(crate) const BLOCK_BYTES: usize = 4096;
pub(crate) const DISK_BYTES: u64 = 256 << 20;
pub(crate) const DISK_ID: &str = "bench";
pub(crate) const DEPTH_MAX: u16 = 128;
/// What veth's driver has room for, beside a program.
const XDP_MTU_MAX: u16 = 3500;
/// Longest that nothing may end.
const PATIENCE_NS: u64 = 5_000_000_000;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Of what.
    #[arg(value_enum, default_values_t = [What::Disk, What::Net])]
    what: Vec<What>,
    /// Shorter rounds.
    #[arg(long)]
    quick: bool,
    /// MTUs of the pairs of interfaces, which are made one after the other.
    #[arg(long = "mtu", value_name = "MTU", value_delimiter = ',', default_values_t = [1500, 9000])]
    mtus: Vec<u16>,
    /// Of those that this process measures with.
    #[arg(skip)]
    mtu: u16,
    /// The servers' namespace, as `ip netns` names it, once this process is in the one that is joined to it.
    #[arg(long, hide = true, default_value = "")]
    inside: String,
    /// The servers' address there.
    #[arg(skip = wires::AT)]
    at: IpAddr,
    /// Whom to measure.
    #[arg(long, value_enum, value_delimiter = ',',
        default_values_t = [Peer::Sidecore, Peer::Sealed, Peer::Packet, Peer::Xdp, Peer::Local, Peer::Bare,
            Peer::Nbdkit, Peer::QemuNbd])]
    who: Vec<Peer>,
    /// Requests in flight.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 32])]
    depth: Vec<u16>,
    /// Rounds; a reported number stands on at least five.
    #[arg(long, default_value_t = ROUNDS_MIN, value_parser = rounds)]
    rounds: usize,
    /// The sidecore program. Default: beside this one, or SIDECORE_BIN.
    #[arg(long, value_name = "PATH")]
    sidecore: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Requests of a disk.
    Disk,
    /// Round trips of a frame.
    Net,
    /// A good session beside frames that are none.
    Flood,
    /// What a frame costs each kind of socket.
    Sockets,
    /// Sidecores of a busy host and an idle one, each with its own, and on one IOhost.
    Consolidation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    /// An IOhost, with checksums only.
    Sidecore,
    /// An IOhost, all of whose frames are sealed.
    Sealed,
    /// The same without IP, by packet sockets.
    Packet,
    /// The same by AF_XDP.
    Xdp,
    /// The same disk by a vhost-user ring on this machine.
    Local,
    /// Of round trips: a datagram there and back, between sockets that do nothing else.
    Bare,
    /// nbdkit's RAM disk.
    Nbdkit,
    /// qemu-nbd with a file on a tmpfs.
    QemuNbd,
}

/// A client of a server across the wire.
pub(crate) trait Far {
    /// Takes a request on, which goes with the next [`Far::send`]. A write writes [`block`]s.
    fn ask(&mut self, kind: Kind, block: u64, tag: u16) -> Result<()>;
    /// Sends what waits, as far as there is room.
    fn send(&mut self) -> Result<()>;
    /// Gives the tags of what has ended; what was read was looked at.
    fn take(&mut self, ended: &mut dyn FnMut(u16)) -> Result<()>;
}

/// What a block of the disk begins with: its number, twice.
pub(crate) fn mark(block: u64) -> [u8; 16] {
    let mut mark = [0; 16];
    mark[..8].copy_from_slice(&block.to_le_bytes());
    mark[8..].copy_from_slice(&(!block).to_le_bytes());
    mark
}

/// Refuses what is not the block.
pub(crate) fn check(block: u64, bytes: &[u8]) -> Result<()> {
    ensure!(
        bytes.len() == BLOCK_BYTES && bytes.starts_with(&mark(block)),
        "block {block} is another"
    );
    Ok(())
}

/// Who is measured.
enum Bench {
    /// Across the wire.
    Far { far: Box<dyn Far>, server: Server, _kept: Vec<Scratch> },
    /// On this machine.
    Near(Box<Bed>),
}

#[derive(Clone, Copy)]
struct Seen {
    iops: f64,
    p50_ns: f64,
    p99_ns: f64,
    cpu_ns_per_op: f64,
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>> {
    if options.inside.is_empty() {
        wires::measure_with(&options.mtus)?;
        return Ok(Vec::new());
    }
    let mtu = options.mtus.last().copied().context("no MTU")?;
    let options = &Options { mtu, ..options.clone() };
    pin(DRIVER_CORE)?;
    let mut rows = Vec::new();
    for what in &options.what {
        rows.extend(match what {
            What::Disk => disks(options)?,
            What::Net => net::measure(options)?,
            What::Flood => flood::measure(options)?,
            What::Sockets => sockets::measure(options)?,
            What::Consolidation => consolidation::measure(options)?,
        });
    }
    Ok(rows)
}

impl Options {
    /// Whom to measure, as far as the interfaces carry it.
    fn peers(&self) -> Vec<Peer> {
        let fits = |peer: &Peer| *peer != Peer::Xdp || self.mtu <= XDP_MTU_MAX;
        self.who.iter().copied().filter(fits).collect()
    }

    fn binary(&self) -> Result<PathBuf> {
        self.sidecore.clone().map_or_else(sidecore_binary, Ok)
    }

    /// Warming up, and measuring.
    fn times_ms(&self) -> [u64; 2] {
        if self.quick { [20, 180] } else { [100, 900] }
    }
}

fn disks(options: &Options) -> Result<Vec<Row>> {
    let mut benches = Vec::new();
    for who in options.peers().iter().filter(|who| **who != Peer::Bare) {
        eprintln!("bench: starting {}", who.who().word());
        let made = who.start(options).context(who.who().word())?;
        benches.push((who.who(), made));
    }
    let mut rows = Vec::new();
    for kind in [Kind::Read, Kind::Write] {
        for depth in &options.depth {
            ensure!((1..=DEPTH_MAX).contains(depth), "at most {DEPTH_MAX} requests in flight");
            let word = if kind == Kind::Read { "randread" } else { "randwrite" };
            let name = format!("remote.mtu{}.{word}.qd{depth}", options.mtu);
            let mut seen: Vec<Vec<Seen>> = benches.iter().map(|_| Vec::new()).collect();
            for _ in 0..options.rounds {
                for ((who, bench), seen) in benches.iter_mut().zip(&mut seen) {
                    let round = bench.round(kind, *depth, options);
                    seen.push(round.with_context(|| format!("{name} of {}", who.word()))?);
                }
            }
            for ((who, _), seen) in benches.iter().zip(&seen) {
                let of_one = rows_of(&name, *who, seen);
                eprintln!("bench: {name}: {} {:.0} IOPS", who.word(), of_one[0].value);
                rows.extend(of_one);
            }
        }
    }
    Ok(rows)
}

fn rows_of(name: &str, who: Who, seen: &[Seen]) -> Vec<Row> {
    let row = |what: &str, unit, value: &dyn Fn(&Seen) -> f64| {
        let values: Vec<f64> = seen.iter().map(value).collect();
        Row::new(format!("{name}.{what}"), who, unit, &values)
    };
    vec![
        row("iops", "1/s", &|seen| seen.iops),
        row("p50_ns", "ns", &|seen| seen.p50_ns),
        row("p99_ns", "ns", &|seen| seen.p99_ns),
        row("cpu_ns_per_op", "ns", &|seen| seen.cpu_ns_per_op),
    ]
}

impl Peer {
    fn who(self) -> Who {
        match self {
            Peer::Sidecore => Who::Sidecore,
            Peer::Sealed => Who::SidecoreSealed,
            Peer::Packet => Who::SidecorePacket,
            Peer::Xdp => Who::SidecoreXdp,
            Peer::Local => Who::SidecoreLocal,
            Peer::Bare => Who::Machine,
            Peer::Nbdkit => Who::Nbdkit,
            Peer::QemuNbd => Who::QemuNbd,
        }
    }

    /// A port each, since all of them live at once; `more` are those of other benches.
    fn port(self, more: u16) -> u16 {
        7450 + more + self as u16
    }

    /// How its link goes, and whether it is sealed.
    fn over(self, options: &Options, more: u16) -> (iohost::Over, bool) {
        let udp = iohost::Over::Udp(SocketAddr::new(options.at, self.port(more)));
        match self {
            Peer::Packet => (iohost::Over::Ethernet("packet"), true),
            Peer::Xdp => (iohost::Over::Ethernet("xdp"), true),
            _ => (udp, self == Peer::Sealed),
        }
    }

    /// Starts it with a disk that is full of marked blocks.
    fn start(self, options: &Options) -> Result<Bench> {
        let binary = options.binary()?;
        let name = format!("remote-{self:?}").to_lowercase();
        let at = SocketAddr::new(options.at, self.port(0));
        let core = SERVER_CORE.to_string();
        let dir = Scratch::new(&std::env::temp_dir(), &format!("{name}-other"))?;
        let start = |program: &str, arguments: &[&str]| {
            Server::inside(self.who(), dir.path(), &core, &options.inside, program, arguments)
        };
        let (mut far, server, kept): (Box<dyn Far>, Server, _) = match self {
            Peer::Local => return Ok(Bench::Near(Box::new(local(options)?))),
            Peer::Bare => bail!("it has no disk"),
            Peer::Sidecore | Peer::Sealed | Peer::Packet | Peer::Xdp => {
                let over = self.over(options, 0);
                let site = iohost::Site::new(&binary, &name, over, options.mtu, "")?;
                let server = site.serve(self.who(), &options.inside)?;
                let far = site.connect().with_context(|| server.last_words())?;
                (Box::new(far), server, vec![dir])
            }
            Peer::Nbdkit => {
                let (port, size) = (at.port().to_string(), DISK_BYTES.to_string());
                let address = at.ip().to_string();
                let words =
                    ["--foreground", "--port", &port, "--ipaddr", &address, "memory", &size];
                let server = start("nbdkit", &words)
                    .context("starting nbdkit (Debian: apt-get install nbdkit)")?;
                let far = nbd::Nbd::connect(at).with_context(|| server.last_words())?;
                (Box::new(far), server, vec![dir])
            }
            Peer::QemuNbd => {
                let files = Scratch::new(Path::new("/dev/shm"), "remote-qemu-nbd")?;
                let image = files.path().join("disk.raw");
                std::fs::File::create(&image)?.set_len(DISK_BYTES)?;
                let (port, image) = (at.port().to_string(), image.display().to_string());
                let address = at.ip().to_string();
                let words = ["--persistent", "--format=raw", "-p", &port, "-b", &address, &image];
                let server = start("qemu-nbd", &words)
                    .context("starting qemu-nbd (Debian: apt-get install qemu-utils)")?;
                let far = nbd::Nbd::connect(at).with_context(|| server.last_words())?;
                (Box::new(far), server, vec![dir, files])
            }
        };
        fill(far.as_mut())?;
        Ok(Bench::Far { far, server, _kept: kept })
    }
}

/// The same disk by a ring of this machine.
fn local(options: &Options) -> Result<Bed> {
    let disk =
        format!("[[disk]]\nid = \"{DISK_ID}\"\nbackend = \"memory\"\nsize = \"{DISK_BYTES}\"\n");
    let config = sidecore("remote-local", &disk, options.sidecore.as_deref());
    let mut server = Server::ours(Who::Sidecore, config.start()?);
    let memory = u64::from(DEPTH_MAX) * BLOCK_BYTES as u64 + content::MEMORY_BYTES;
    let spec = FrontendSpec {
        memory_bytes: (memory + (1 << 20)).next_multiple_of(2 << 20),
        ring: Ring::Indirect.spec(),
        ..FrontendSpec::linux()
    };
    let mut frontend = server.frontend(DISK_ID, &spec)?;
    let capacity_sectors = frontend.capacity_sectors()?;
    content::fill(&mut frontend, capacity_sectors)?;
    Bed::new(server, frontend, [DEPTH_MAX.into(), BLOCK_BYTES as u32], None)
}

impl Bench {
    fn round(&mut self, kind: Kind, depth: u16, options: &Options) -> Result<Seen> {
        let times_ms = options.times_ms();
        match self {
            Bench::Near(bed) => {
                let measured = bed.round(RoundSpec { kind, depth, batch: BATCH, times_ms })?;
                Ok(Seen {
                    iops: measured.round.iops(),
                    p50_ns: measured.round.p50_ns as f64,
                    p99_ns: measured.round.p99_ns as f64,
                    cpu_ns_per_op: measured.cpu_ns_per_op,
                })
            }
            Bench::Far { far, server, .. } => {
                let mut random = Random(0x5eed);
                let mut next = || Some(random.below(DISK_BYTES / BLOCK_BYTES as u64));
                turn(far.as_mut(), kind, depth, times_ms[0], &mut next)?;
                let before = server.cpu()?;
                let start = now_ns();
                let latencies = turn(far.as_mut(), kind, depth, times_ms[1], &mut next)?;
                let elapsed_ns = now_ns() - start;
                let used_ns = CpuTime::since(server.cpu()?, before).used_ns;
                let requests = latencies.count().max(1) as f64;
                Ok(Seen {
                    iops: requests * 1e9 / elapsed_ns as f64,
                    p50_ns: latencies.quantile(0.5) as f64,
                    p99_ns: latencies.quantile(0.99) as f64,
                    cpu_ns_per_op: used_ns as f64 / requests,
                })
            }
        }
    }
}

/// Every block is written once.
fn fill(far: &mut dyn Far) -> Result<()> {
    let mut blocks = 0..DISK_BYTES / BLOCK_BYTES as u64;
    let latencies = turn(far, Kind::Write, 32, u64::MAX / 2_000_000, &mut || blocks.next())?;
    ensure!(latencies.count() == DISK_BYTES / BLOCK_BYTES as u64, "not all was written");
    Ok(())
}

/// So many requests at a time, for as long as that, or until there are no more; all have ended then.
fn turn(
    far: &mut dyn Far,
    kind: Kind,
    depth: u16,
    time_ms: u64,
    next: &mut dyn FnMut() -> Option<u64>,
) -> Result<Histogram> {
    let mut latencies = Histogram::default();
    let mut asked_at = [0; DEPTH_MAX as usize];
    let mut free: Vec<u16> = (0..depth).collect();
    let start = now_ns();
    let (mut is_over, mut moved_at) = (false, start);
    while !is_over || free.len() < depth.into() {
        let now = now_ns();
        is_over |= now - start >= time_ms * 1_000_000;
        while !is_over && let Some(tag) = free.pop() {
            match next() {
                Some(block) => far.ask(kind, block, tag)?,
                None => {
                    free.push(tag);
                    is_over = true;
                    continue;
                }
            }
            asked_at[usize::from(tag)] = now;
        }
        far.send()?;
        far.take(&mut |tag| {
            moved_at = now_ns();
            latencies.record(moved_at - asked_at[usize::from(tag)]);
            free.push(tag);
        })?;
        ensure!(now.saturating_sub(moved_at) < PATIENCE_NS, "nothing ends any more");
    }
    Ok(latencies)
}
