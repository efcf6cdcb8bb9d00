//! `bench blk`: IOPS, round trip and CPU per request of one queue, beside qemu-storage-daemon.
//!
//! Both servers run as processes on core 0, our driver polls on core 1. Rounds alternate between
//! them; the one that is not measured is stopped by a signal.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bench::clock::now_ns;
use bench::content;
use bench::frontend::{Frontend, FrontendSpec};
use bench::load::{BATCH, Load, Random, Round};
use bench::report::{ROUNDS_MIN, Row};
use bench::scratch::Scratch;
use bench::server::{CpuTime, DiskSetup, Medium, Server, Who, sidecore_binary};
use bench::slots::{Kind, Slots};
use guest_memory::{Area, GuestMap};
use rustix::thread::{CpuSet, sched_setaffinity};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

const SERVER_CORE: u16 = 0;
const DRIVER_CORE: u16 = 1;
const DEPTHS: [u16; 3] = [1, 32, 128];
const BLOCK_BYTES: u32 = 4096;
const RAM_DISK_BYTES: u64 = 1 << 30;
/// Smaller, so that the write-back of dirty pages has an end.
const PLAIN_FILE_BYTES: u64 = 256 << 20;
const DISK_ID: &str = "bench";
/// Part of a round that others may take without a word.
const DISTURBED_MAX: f64 = 0.02;
/// Blocks compared before a server is measured.
const VERIFIED_BLOCKS: u64 = 2000;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Shorter rounds: all of it in under two minutes.
    #[arg(long)]
    quick: bool,
    /// What the disks are made of. `file` is a raw file on a tmpfs, `plainfile` one on the file
    /// system of the temporary folder; both through the page cache.
    #[arg(long, value_enum, value_delimiter = ',',
        default_values_t = [Backend::Null, Backend::Memory, Backend::File, Backend::Plainfile])]
    backend: Vec<Backend>,
    /// Whom to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Peer::Sidecore, Peer::Qemu])]
    who: Vec<Peer>,
    /// Requests in flight.
    #[arg(long, value_delimiter = ',', default_values_t = DEPTHS)]
    depth: Vec<u16>,
    /// The ring: `indirect` is what Linux's driver makes of a split ring.
    #[arg(long, value_enum, default_value_t = Ring::Indirect)]
    ring: Ring,
    /// Completions that the driver side takes before it publishes what follows them.
    #[arg(long, default_value_t = BATCH)]
    batch: usize,
    /// Rounds; a reported number stands on at least five.
    #[arg(long, default_value_t = ROUNDS_MIN, value_parser = rounds)]
    rounds: usize,
    /// The sidecore program. Default: beside this one, or SIDECORE_BIN.
    #[arg(long, value_name = "PATH")]
    sidecore: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Backend {
    Null,
    Memory,
    File,
    Plainfile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    Sidecore,
    Qemu,
}

/// A ring format and a way to describe requests in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Ring {
    /// Split, 512 entries, three to a request.
    Split,
    /// Split, 128 entries, an indirect table to a request.
    Indirect,
    /// Packed, 512 entries, three to a request.
    Packed,
    /// Packed, 128 entries, an indirect table to a request. QEMU 7.2's server has no packed rings.
    PackedIndirect,
}

impl Ring {
    fn spec(self) -> RingSpec {
        let (format, size, indirect_entries) = match self {
            Ring::Split => (Format::Split, 512, 0),
            Ring::Indirect => (Format::Split, 128, 3),
            Ring::Packed => (Format::Packed, 512, 0),
            Ring::PackedIndirect => (Format::Packed, 128, 3),
        };
        RingSpec { size, format, event_index: true, indirect_entries }
    }
}

impl Backend {
    fn word(self) -> &'static str {
        match self {
            Backend::Null => "null",
            Backend::Memory => "memory",
            Backend::File => "file",
            Backend::Plainfile => "plainfile",
        }
    }

    fn size_bytes(self) -> u64 {
        match self {
            Backend::Plainfile => PLAIN_FILE_BYTES,
            _ => RAM_DISK_BYTES,
        }
    }
}

/// A server with its front-end.
struct Bed {
    frontend: Frontend,
    slots: Slots,
    capacity_sectors: u64,
    batch: usize,
    /// Declared last: the front-end goes first.
    server: Server,
    _dir: Scratch,
    _files: Scratch,
}

/// One round of one server.
struct Measured {
    round: Round,
    /// CPU time of the server for each request, nanoseconds.
    cpu_ns_per_op: f64,
    /// Part of the time in which another process had a core that was needed here.
    disturbed: f64,
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>> {
    pin(DRIVER_CORE)?;
    let mut rows = Vec::new();
    if options.backend.contains(&Backend::Memory) {
        rows.push(memcpy_row(options)?);
    }
    for backend in &options.backend {
        let mut beds = Vec::new();
        for who in &options.who {
            eprintln!("bench: starting {who:?} with {}", backend.word());
            beds.push(Bed::new(*backend, *who, options)?);
        }
        for kind in [Kind::Read, Kind::Write] {
            for depth in &options.depth {
                rows.extend(measure(options, *backend, kind, *depth, &mut beds)?);
            }
        }
    }
    Ok(rows)
}

/// One cell of the comparison: all servers in turn, round by round.
fn measure(
    options: &Options,
    backend: Backend,
    kind: Kind,
    depth: u16,
    beds: &mut [Bed],
) -> Result<Vec<Row>> {
    let word = if kind == Kind::Read { "randread" } else { "randwrite" };
    let name = format!("blk.{}.{word}.qd{depth}", backend.word());
    let mut rounds: Vec<Vec<Measured>> = beds.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.rounds {
        for (bed, rounds) in beds.iter_mut().zip(&mut rounds) {
            let who = bed.server.who().word();
            let times = if options.quick { [20, 180] } else { [100, 900] };
            let round = bed.round(kind, depth, times.map(|ms| ms * 1_000_000));
            rounds.push(round.with_context(|| format!("{name} of {who}"))?);
        }
    }
    let mut rows = Vec::new();
    for (bed, rounds) in beds.iter().zip(&rounds) {
        let who = bed.server.who();
        let mut row = |what, unit, value: &dyn Fn(&Measured) -> f64| {
            let values: Vec<f64> = rounds.iter().map(value).collect();
            rows.push(Row::new(format!("{name}.{what}"), who, unit, &values));
        };
        row("iops", "1/s", &|m| m.round.iops());
        row("p50_ns", "ns", &|m| m.round.p50_ns as f64);
        row("p99_ns", "ns", &|m| m.round.p99_ns as f64);
        row("cpu_ns_per_op", "ns", &|m| m.cpu_ns_per_op);
    }
    let iops: Vec<String> = rows
        .iter()
        .filter(|row| row.unit == "1/s")
        .map(|row| format!("{} {:.0}", row.who, row.value))
        .collect();
    eprintln!("bench: {name}: {} IOPS", iops.join(", "));
    let disturbed = rounds.iter().flatten().map(|m| m.disturbed).fold(0.0, f64::max);
    if disturbed > DISTURBED_MAX {
        let percent = disturbed * 100.0;
        eprintln!(
            "bench: {name}: other processes took up to {percent:.0}% of a core: run it alone"
        );
    }
    Ok(rows)
}

impl Bed {
    fn new(backend: Backend, who: Peer, options: &Options) -> Result<Bed> {
        let temporary = std::env::temp_dir();
        let name = format!("{}-{who:?}", backend.word()).to_lowercase();
        let dir = Scratch::new(&temporary, &name)?;
        let parent = if backend == Backend::Plainfile { &temporary } else { Path::new("/dev/shm") };
        let files = Scratch::new(parent, &format!("{name}-files"))?;
        let image = files.path().join("disk.raw");
        if backend != Backend::Null {
            std::fs::File::create(&image)?.set_len(backend.size_bytes())?;
        }
        let medium = match backend {
            Backend::Null => Medium::Null,
            Backend::Memory => Medium::Memory(image.clone()),
            Backend::File | Backend::Plainfile => Medium::File(image.clone()),
        };
        let size_bytes = backend.size_bytes();
        let id = DISK_ID.to_string();
        let disk = DiskSetup { id, medium, size_bytes, queues: 1, unsealed_memory: false };
        let mut server = match who {
            Peer::Qemu => Server::qemu_storage_daemon(dir.path(), SERVER_CORE, &disk)?,
            Peer::Sidecore => {
                let binary = match &options.sidecore {
                    Some(path) => path.clone(),
                    None => sidecore_binary()?,
                };
                Server::sidecore(&binary, dir.path(), SERVER_CORE, &[disk])?
            }
        };
        let depth = options.depth.iter().copied().max().unwrap_or(1);
        let memory = u64::from(depth) * u64::from(BLOCK_BYTES) + content::MEMORY_BYTES;
        let spec = FrontendSpec {
            memory_bytes: (memory + (1 << 20)).next_multiple_of(2 << 20),
            ring: options.ring.spec(),
            ..FrontendSpec::default()
        };
        let mut frontend = server.frontend(DISK_ID, &spec)?;
        let capacity_sectors = frontend.capacity_sectors()?;
        if backend != Backend::Null {
            content::fill(&mut frontend, capacity_sectors)?;
            content::verify(&mut frontend, capacity_sectors, VERIFIED_BLOCKS)
                .with_context(|| format!("{} with {}", server.who().word(), backend.word()))?;
        }
        if backend == Backend::Plainfile {
            std::fs::File::open(&image)?.sync_all()?;
        }
        let slots = Slots::new(frontend.memory(), depth, BLOCK_BYTES)?;
        server.pause()?;
        let batch = options.batch;
        Ok(Bed { frontend, slots, capacity_sectors, batch, server, _dir: dir, _files: files })
    }

    /// One round, and what the two sides had of their cores.
    fn round(&mut self, kind: Kind, depth: u16, times_ns: [u64; 2]) -> Result<Measured> {
        self.server.resume()?;
        let queue = self.frontend.queue(0);
        let mut load =
            Load::new(&mut queue.driver, &self.slots, kind, depth, self.capacity_sectors)?
                .with_batch(self.batch);
        let mut times = [[CpuTime::default(); 2]; 2];
        let [before, after] = &mut times;
        let server = &self.server;
        let both = || [server.cpu().unwrap_or_default(), CpuTime::own()];
        let round =
            load.run(queue, &self.slots, times_ns, || *before = both(), || *after = both())?;
        load.end(&mut queue.driver);
        self.server.pause()?;
        let [[server_before, own_before], [server_after, own_after]] = times;
        let (server, own) = (server_after.since(server_before), own_after.since(own_before));
        let cpu_ns_per_op = server.used_ns as f64 / round.requests.max(1) as f64;
        let waited_ns = server.waited_ns.max(own.waited_ns);
        let disturbed = waited_ns as f64 / round.elapsed_ns.max(1) as f64;
        Ok(Measured { round, cpu_ns_per_op, disturbed })
    }
}

/// The machine's own rate of copying 4 KiB from anywhere in a disk's worth of memory to a few
/// buffers: what a RAM disk can at most do on one core.
fn memcpy_row(options: &Options) -> Result<Row> {
    const BUFFERS: u64 = 32;
    let disk = Area::anonymous(RAM_DISK_BYTES)?;
    let guest = GuestMap::anonymous(BUFFERS * u64::from(BLOCK_BYTES))?;
    let mut block = vec![0; BLOCK_BYTES as usize];
    for number in 0..RAM_DISK_BYTES / u64::from(BLOCK_BYTES) {
        content::block_content(number, &mut block);
        disk.write((number * u64::from(BLOCK_BYTES)) as usize, &block);
    }
    let spans: Vec<_> = (0..BUFFERS)
        .filter_map(|buffer| guest.span(buffer * u64::from(BLOCK_BYTES), BLOCK_BYTES))
        .collect();
    let mut random = Random(0x5eed);
    let round_ns = if options.quick { 200_000_000 } else { 1_000_000_000 };
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        let (start, mut copies) = (now_ns(), 0u64);
        while now_ns() - start < round_ns {
            for span in &spans {
                let from = random.below(RAM_DISK_BYTES / u64::from(BLOCK_BYTES));
                disk.copy_to_guest((from * u64::from(BLOCK_BYTES)) as usize, &guest, *span);
            }
            copies += BUFFERS;
        }
        rounds.push(copies as f64 * 1e9 / (now_ns() - start) as f64);
    }
    Ok(Row::new("blk.memcpy.4k".to_string(), Who::Machine, "1/s", &rounds))
}

/// Keeps this thread on one core.
pub(crate) fn pin(core: u16) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core.into());
    sched_setaffinity(None, &set)
        .with_context(|| format!("running on core {core}: the benches need two cores"))
}

/// A number of rounds, as an option.
pub(crate) fn rounds(text: &str) -> Result<usize, String> {
    let rounds: usize = text.parse().map_err(|error| format!("{error}"))?;
    if rounds < ROUNDS_MIN {
        return Err(format!("at least {ROUNDS_MIN}"));
    }
    Ok(rounds)
}
