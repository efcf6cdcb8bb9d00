//! `bench blk`: IOPS, round trip and CPU per request of one queue, beside qemu-storage-daemon and SPDK.
//!
//! Servers run as processes on core 0, the client polls on core 1: our driver, fio with libblkio, or
//! SPDK's bdevperf. Rounds alternate between servers; who is not measured is stopped by a signal.

mod foreign;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use guest_memory::{Area, GuestMap};
use rustix::thread::{CpuSet, sched_setaffinity};
use testing::clock::now_ns;
use testing::content;
use testing::frontend::{Frontend, FrontendSpec};
use testing::load::{BATCH, Random};
use testing::report::{ROUNDS_MIN, Row};
use testing::scratch::Scratch;
use testing::server::{DiskSetup, Medium, Server, Who};
use testing::slots::Kind;
use testing::spdk::Spdk;
use virtqueue::Format;
use virtqueue::driver::RingSpec;

pub(crate) use self::foreign::client;
use crate::bed::{Bed, DRIVER_CORE, Measured, RoundSpec, SERVER_CORE, sidecore, warn_if_disturbed};

const DEPTHS: [u16; 3] = [1, 32, 128];
const BLOCK_BYTES: u32 = 4096;
pub(crate) const RAM_DISK_BYTES: u64 = 1 << 30;
/// Smaller, so that the write-back of dirty pages has an end.
const PLAIN_FILE_BYTES: u64 = 256 << 20;
const DISK_ID: &str = "bench";
/// Blocks compared before a server is measured.
const VERIFIED_BLOCKS: u64 = 2000;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Shorter rounds: all of it in under two minutes.
    #[arg(long)]
    pub(crate) quick: bool,
    /// What the disks are made of. `file` is a raw file on a tmpfs, `plainfile` one on the file
    /// system of the temporary folder, both through the page cache; `direct` is that one past it.
    #[arg(long, value_enum, value_delimiter = ',',
        default_values_t = [Backend::Null, Backend::Memory, Backend::File, Backend::Plainfile])]
    pub(crate) backend: Vec<Backend>,
    /// Whom to measure. `spdk` is what SPDK=DIR names, and needs huge pages and root.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Peer::Sidecore, Peer::Qemu])]
    pub(crate) who: Vec<Peer>,
    /// Whose load: our driver, fio with libblkio, or the bdevperf of what SPDK=DIR names.
    #[arg(long, value_enum, default_value_t = Load::Own)]
    pub(crate) client: Load,
    /// Requests in flight.
    #[arg(long, value_delimiter = ',', default_values_t = DEPTHS)]
    pub(crate) depth: Vec<u16>,
    /// The ring of our driver: `indirect` is what Linux's driver makes of a split ring.
    #[arg(long, value_enum, default_value_t = Ring::Indirect)]
    pub(crate) ring: Ring,
    /// Our driver goes without EVENT_IDX, which SPDK has not.
    #[arg(long)]
    pub(crate) no_event_index: bool,
    /// Completions that our driver takes before it publishes what follows them.
    #[arg(long, default_value_t = BATCH)]
    pub(crate) batch: usize,
    /// Rounds; a reported number stands on at least five.
    #[arg(long, default_value_t = ROUNDS_MIN, value_parser = rounds)]
    pub(crate) rounds: usize,
    /// The sidecore program. Default: beside this one, or SIDECORE_BIN.
    #[arg(long, value_name = "PATH")]
    pub(crate) sidecore: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Backend {
    Null,
    Memory,
    File,
    Plainfile,
    Direct,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Peer {
    Sidecore,
    Qemu,
    Spdk,
}

/// Whose load it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Load {
    Own,
    Fio,
    Bdevperf,
}

/// A ring format and a way to describe requests in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Ring {
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
    pub(crate) fn spec(self) -> RingSpec {
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
            Backend::Direct => "direct",
        }
    }

    fn size_bytes(self) -> u64 {
        match self {
            Backend::Plainfile | Backend::Direct => PLAIN_FILE_BYTES,
            _ => RAM_DISK_BYTES,
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for backend in &options.backend {
        let mut servers = Servers::start(options, *backend)?;
        let mut memcpy = match backend {
            Backend::Memory => Some(Memcpy::new()?),
            _ => None,
        };
        for kind in [Kind::Read, Kind::Write] {
            for depth in &options.depth {
                rows.extend(servers.measure(kind, *depth)?);
                rows.extend(memcpy.take().map(|memcpy| memcpy.row(options)));
            }
        }
    }
    Ok(rows)
}

/// All servers that are compared with one kind of disk, stopped while nothing is measured.
pub(crate) struct Servers<'a> {
    options: &'a Options,
    backend: Backend,
    beds: Beds,
}

enum Beds {
    Own(Vec<Bed>),
    Foreign(foreign::Beds),
}

impl Servers<'_> {
    /// Each with a disk that is full and was compared; this thread is on the client's core from then
    /// on.
    pub(crate) fn start(options: &Options, backend: Backend) -> Result<Servers<'_>> {
        pin(DRIVER_CORE)?;
        let start = |who: &Peer| {
            eprintln!("bench: starting {who:?} with {}", backend.word());
            start(backend, *who, options)
        };
        // First, since filling disks takes longer.
        let client = match options.client {
            Load::Own => None,
            load => Some(client(load)?),
        };
        let started = options.who.iter().map(start);
        let beds = match client {
            None => Beds::Own(started.map(|one| one?.loaded(options)).collect::<Result<_>>()?),
            Some(client) => {
                Beds::Foreign(foreign::Beds::new(client, started.collect::<Result<_>>()?)?)
            }
        };
        Ok(Servers { options, backend, beds })
    }

    /// One cell of the comparison: all servers in turn, round by round.
    pub(crate) fn measure(&mut self, kind: Kind, depth: u16) -> Result<Vec<Row>> {
        let word = if kind == Kind::Read { "randread" } else { "randwrite" };
        let name = format!("blk.{}.{word}.qd{depth}", self.backend.word());
        match &mut self.beds {
            Beds::Own(beds) => measure(self.options, &name, kind, depth, beds),
            Beds::Foreign(beds) => beds.measure(self.options, &name, kind, depth),
        }
    }
}

fn measure(
    options: &Options,
    name: &str,
    kind: Kind,
    depth: u16,
    beds: &mut [Bed],
) -> Result<Vec<Row>> {
    let times_ms = if options.quick { [20, 180] } else { [100, 900] };
    let spec = RoundSpec { kind, depth, batch: options.batch, times_ms };
    let mut rounds: Vec<Vec<Measured>> = beds.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.rounds {
        for (bed, rounds) in beds.iter_mut().zip(&mut rounds) {
            let who = bed.server().who().word();
            rounds.push(bed.round(spec).with_context(|| format!("{name} of {who}"))?);
        }
    }
    let mut rows = Vec::new();
    for (bed, rounds) in beds.iter().zip(&rounds) {
        let of_one = bed.rows(name, rounds);
        let (who, iops) = (bed.server().who().word(), of_one[0].value);
        eprintln!("bench: {name}: {who} {iops:.0} IOPS");
        rows.extend(of_one);
    }
    warn_if_disturbed(name, rounds.iter().flatten());
    Ok(rows)
}

/// A server whose disk is full and was compared, and the front-end that did it.
struct Started {
    server: Server,
    frontend: Frontend,
    files: Scratch,
}

impl Started {
    /// To be loaded by our driver.
    fn loaded(self, options: &Options) -> Result<Bed> {
        let depth = options.depth.iter().copied().max().unwrap_or(1);
        Bed::new(self.server, self.frontend, [depth.into(), BLOCK_BYTES], Some(self.files))
    }
}

/// Starts a server with one disk that is full and was compared, and connects to it.
fn start(backend: Backend, who: Peer, options: &Options) -> Result<Started> {
    let temporary = std::env::temp_dir();
    let name = format!("{}-{who:?}", backend.word()).to_lowercase();
    let is_plain = matches!(backend, Backend::Plainfile | Backend::Direct);
    let parent = if is_plain { &temporary } else { Path::new("/dev/shm") };
    let files = Scratch::new(parent, &format!("{name}-files"))?;
    let image = files.path().join("disk.raw");
    let size_bytes = backend.size_bytes();
    if backend != Backend::Null {
        std::fs::File::create(&image)?.set_len(size_bytes)?;
    }
    let medium = match backend {
        Backend::Null => Medium::Null,
        Backend::Memory => Medium::Memory(image.clone()),
        Backend::File | Backend::Plainfile => Medium::File(image.clone()),
        Backend::Direct => Medium::Direct(image.clone()),
    };
    let id = DISK_ID.to_string();
    // Neither libblkio nor SPDK seals its memory.
    let unsealed_memory = options.client != Load::Own;
    let disk = DiskSetup { id, medium, size_bytes, queues: 1, unsealed_memory };
    let mut server = match who {
        Peer::Qemu => Server::qemu_storage_daemon(files.path(), SERVER_CORE, &disk)?,
        Peer::Spdk => Spdk::named()?.serve(files.path(), SERVER_CORE, &disk)?,
        Peer::Sidecore => {
            let config = sidecore(&name, &disk.declared(), options.sidecore.as_deref());
            Server::ours(Who::Sidecore, config.start()?)
        }
    };
    let depth = options.depth.iter().copied().max().unwrap_or(1);
    let memory = u64::from(depth) * u64::from(BLOCK_BYTES) + content::MEMORY_BYTES;
    let event_index = !options.no_event_index && options.client == Load::Own;
    let spec = FrontendSpec {
        memory_bytes: (memory + (1 << 20)).next_multiple_of(2 << 20),
        ring: RingSpec { event_index, ..options.ring.spec() },
        ..FrontendSpec::linux()
    };
    let mut frontend = server.frontend(DISK_ID, &spec)?;
    if backend != Backend::Null {
        let capacity_sectors = frontend.capacity_sectors()?;
        content::fill(&mut frontend, capacity_sectors)?;
        content::verify(&mut frontend, capacity_sectors, VERIFIED_BLOCKS)
            .with_context(|| format!("{} with {}", server.who().word(), backend.word()))?;
    }
    if is_plain {
        std::fs::File::open(&image)?.sync_all()?;
    }
    Ok(Started { server, frontend, files })
}

/// The machine's own rate of copying 4 KiB from anywhere in a disk's worth of memory to a few
/// buffers: what a RAM disk can at most do on one core.
struct Memcpy {
    disk: Area,
    guest: GuestMap,
}

impl Memcpy {
    const BUFFERS: u64 = 32;

    fn new() -> Result<Memcpy> {
        let disk = Area::anonymous(RAM_DISK_BYTES)?;
        let guest = GuestMap::anonymous(Memcpy::BUFFERS * u64::from(BLOCK_BYTES))?;
        let mut block = vec![0; BLOCK_BYTES as usize];
        for number in 0..RAM_DISK_BYTES / u64::from(BLOCK_BYTES) {
            content::block_content(number, &mut block);
            disk.write((number * u64::from(BLOCK_BYTES)) as usize, &block);
        }
        Ok(Memcpy { disk, guest })
    }

    fn row(self, options: &Options) -> Row {
        let Memcpy { disk, guest } = self;
        let spans: Vec<_> = (0..Memcpy::BUFFERS)
            .filter_map(|buffer| guest.span(buffer * u64::from(BLOCK_BYTES), BLOCK_BYTES))
            .collect();
        let mut random = Random(0x5eed);
        let round_ns = if options.quick { 180_000_000 } else { 900_000_000 };
        let mut rounds = Vec::new();
        for _ in 0..options.rounds {
            let (start, mut copies) = (now_ns(), 0u64);
            while now_ns() - start < round_ns {
                for span in &spans {
                    let from = random.below(RAM_DISK_BYTES / u64::from(BLOCK_BYTES));
                    disk.copy_to_guest((from * u64::from(BLOCK_BYTES)) as usize, &guest, *span);
                }
                copies += Memcpy::BUFFERS;
            }
            rounds.push(copies as f64 * 1e9 / (now_ns() - start) as f64);
        }
        Row::new("blk.memcpy.4k.rate".to_string(), Who::Machine, "1/s", &rounds)
    }
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
