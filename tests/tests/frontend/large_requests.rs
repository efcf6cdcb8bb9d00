//! Requests of any size that a ring may hold: one descriptor of 16 to 128 MiB, as firmware sends it, which
//! never asks what is offered; chains of many large ones; and what a neighbour has of its sidecore meanwhile.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use guest_memory::Area;
use rustix::fs::{Advice, FallocateFlags};
use rustix::thread::CpuSet;
use testing::clock::now_ns;
use testing::content::{large_content, large_word};
use testing::daemon::{Daemon, pause};
use testing::frontend::{FrontQueue, Frontend, FrontendSpec};
use testing::slots::{Kind, STATUS_OK, Slots};
use testing::timing::{are_judged, judge};
use tests::single::Single;
use virtqueue::Format;
use virtqueue::driver::{Buffer, RingSpec};

const MIB: u64 = 1 << 20;
/// Of each disk.
const DISK_BYTES: u64 = 160 * MIB;
const CALL_MS: u32 = 90_000;
/// Between two looks at what nobody measures.
const LOOK: Duration = Duration::from_millis(1);

fn disks() -> String {
    let size = format!("size = {DISK_BYTES}\n");
    format!(
        "[[disk]]\nid = \"memory\"\nbackend = \"memory\"\n{size}\
         [[disk]]\nid = \"null\"\nbackend = \"null\"\n{size}\
         [[disk]]\nid = \"auto\"\npath = \"auto.raw\"\n{size}\
         [[disk]]\nid = \"page\"\npath = \"page.raw\"\ncache = \"page\"\n{size}"
    )
}

fn spec(format: Format, indirect_entries: u16) -> FrontendSpec {
    let ring = RingSpec { size: 256, format, event_index: true, indirect_entries };
    FrontendSpec { memory_bytes: 144 * MIB, ring, inflight: true, ..FrontendSpec::default() }
}

/// Memory for one large request.
struct Large {
    lines: Slots,
    data: Area,
    gpa: u64,
}

impl Large {
    /// `odd`: so many bytes behind a page's begin.
    fn new(frontend: &mut Frontend, bytes: u64, odd: u64) -> Result<Large> {
        let lines = Slots::new(frontend.memory(), 1, 512)?;
        let taken = frontend.memory().take((bytes + odd) as usize, 4096);
        let (data, gpa) = taken.context("guest memory")?;
        let data = data.window(odd as usize, bytes as usize).context("a window")?;
        Ok(Large { lines, data, gpa: gpa + odd })
    }

    /// What only this seed has, everywhere or compared everywhere.
    fn content(&self, seed: u64, mut each: impl FnMut(&Area, usize, &[u8]) -> bool) -> bool {
        let mut bytes = vec![0; 1 << 16];
        (0..self.data.len()).step_by(1 << 16).all(|at| {
            let len = (self.data.len() - at).min(1 << 16);
            large_content(seed, at, &mut bytes[..len]);
            each(&self.data, at, &bytes[..len])
        })
    }

    fn put(&self, seed: u64) -> bool {
        self.content(seed, |data, at, bytes| data.write(at, bytes))
    }

    fn has(&self, seed: u64) -> bool {
        self.content(seed, |data, at, bytes| {
            let mut found = vec![0; bytes.len()];
            data.read(at, &mut found) && found == bytes
        })
    }

    /// Whether some of it has come to the image and some has not: a word of each 64 KiB is looked at, four of which no
    /// part is smaller than.
    fn is_there_in_part(&self, image: &Path, seed: u64) -> Result<bool> {
        let image = std::fs::File::open(image)?;
        let (mut came, mut lacks) = (false, false);
        // Not the first word: in an empty image it would be that of seed 0.
        for at in (8..self.data.len()).step_by(1 << 16) {
            let mut found = [0; 8];
            image.read_exact_at(&mut found, at as u64)?;
            let is_there = u64::from_le_bytes(found) == large_word(seed, at);
            came |= is_there;
            lacks |= !is_there;
        }
        Ok(came && lacks)
    }

    /// A request of all of it, in so many descriptors.
    fn buffers(&self, kind: Kind, pieces: u64) -> Vec<Buffer> {
        let (ends, _) = self.lines.buffers(0, kind);
        let each = self.data.len() as u64 / pieces;
        let piece = |at: u64| {
            let device_writes = kind == Kind::Read;
            Buffer { gpa: self.gpa + at * each, len: each as u32, device_writes }
        };
        let data = (0..pieces).map(piece);
        std::iter::once(ends[0]).chain(data).chain(std::iter::once(ends[2])).collect()
    }

    fn begin(&self, frontend: &mut Frontend, kind: Kind, pieces: u64) -> Result<()> {
        self.lines.write_header(0, kind, 0);
        let queue = frontend.queue(0);
        ensure!(!queue.driver.arm_calls(), "something completed that was not asked for");
        queue.driver.add(&self.buffers(kind, pieces), 7)?;
        if queue.driver.publish() {
            queue.kick()?;
        }
        Ok(())
    }

    fn end(&self, frontend: &mut Frontend, kind: Kind) -> Result<()> {
        let queue = frontend.queue(0);
        let used = loop {
            if let Some(used) = queue.driver.take_used() {
                break used;
            }
            ensure!(queue.wait_for_call(CALL_MS)?, "a request was lost");
        };
        let bytes = if kind == Kind::Read { self.data.len() as u32 } else { 0 };
        let status = self.lines.status(0);
        ensure!(status == STATUS_OK, "{kind:?} of {} bytes: status {status}", self.data.len());
        ensure!(used.token == 7 && used.len == bytes + 1, "{used:?} for {bytes} bytes");
        Ok(())
    }

    fn run(&self, frontend: &mut Frontend, kind: Kind, pieces: u64) -> Result<()> {
        self.begin(frontend, kind, pieces)?;
        self.end(frontend, kind)
    }

    fn exercise(&self, frontend: &mut Frontend, seed: u64, pieces: u64, keeps: bool) -> Result<()> {
        ensure!(self.put(seed), "guest memory");
        self.run(frontend, Kind::Write, pieces)?;
        self.data.zero(0, self.data.len());
        self.run(frontend, Kind::Read, pieces)?;
        ensure!(!keeps || self.has(seed), "other bytes than were written");
        Ok(())
    }
}

/// Every disk, with the largest request that is tried of it.
fn each_disk(try_it: impl Fn(&Daemon, &str, u64) -> Result<()>) -> Result<()> {
    let mut daemon = Daemon::start("large", &disks())?;
    for (id, mib) in [("memory", 40), ("null", 128), ("auto", 128), ("page", 40)] {
        try_it(&daemon, id, mib).with_context(|| id.to_string())?;
    }
    daemon.is_alive()
}

#[test]
fn one_descriptor_may_be_of_any_size() -> Result<()> {
    each_disk(|daemon, id, largest| {
        for (format, mib) in [(Format::Split, 16), (Format::Packed, 40), (Format::Split, largest)] {
            let mut frontend = daemon.frontend(id, &spec(format, 0))?;
            let large = Large::new(&mut frontend, mib * MIB, 0)?;
            large.exercise(&mut frontend, mib, 1, id != "null")?;
            frontend.disconnect()?;
        }
        Ok(())
    })
}

#[test]
fn a_chain_may_have_many_large_descriptors() -> Result<()> {
    each_disk(|daemon, id, _| {
        for (format, indirect_entries, odd) in
            [(Format::Split, 0, 0), (Format::Packed, 200, 0), (Format::Split, 200, 3)]
        {
            let mut frontend = daemon.frontend(id, &spec(format, indirect_entries))?;
            let large = Large::new(&mut frontend, 48 * MIB, odd)?;
            large.exercise(&mut frontend, 3 + odd, 128, id != "null")?;
            frontend.disconnect()?;
        }
        Ok(())
    })
}

/// Deaths of each disk, fewer where they are not judged, and at most so many when none of those fell between two parts.
const DEATHS: u64 = 5;
const DEATHS_SHORT: u64 = 3;
const DEATHS_MAX: u64 = 15;

/// One in parts is done again, whole, by the daemon that comes after a death. How many deaths fall between two parts
/// depends on the disk's speed: with `--all` one must.
#[test]
fn a_death_in_the_middle_of_a_large_write_loses_nothing() -> Result<()> {
    let mut daemon = Daemon::with("large-killed", &disks()).quick().start()?;
    for id in ["auto", "page"] {
        let mut frontend = daemon.frontend(id, &spec(Format::Split, 0))?;
        let large = Large::new(&mut frontend, 96 * MIB, 0)?;
        let (mut round, mut between) = (0, 0);
        let (least, most) =
            if are_judged() { (DEATHS, DEATHS_MAX) } else { (DEATHS_SHORT, DEATHS) };
        while round < least || (between == 0 && round < most) {
            ensure!(large.put(round), "guest memory");
            large.begin(&mut frontend, Kind::Write, 1)?;
            pause(Duration::from_millis(2 * round));
            daemon.kill()?;
            let image = daemon.dir().join(format!("{id}.raw"));
            between += u64::from(large.is_there_in_part(&image, round)?);
            daemon.start_again()?;
            frontend.reconnect(daemon.connect(id)?)?;
            large.end(&mut frontend, Kind::Write)?;
            large.data.zero(0, large.data.len());
            large.run(&mut frontend, Kind::Read, 1)?;
            ensure!(large.has(round), "{id}, round {round}: other bytes than were written");
            round += 1;
        }
        say(&format!("{id}: {between} of {round} deaths were between two parts"));
        judge(between > 0, || format!("{id}: none of {round} deaths was between two parts"))?;
        frontend.disconnect()?;
    }
    daemon.kill()
}

/// What a neighbour on the same sidecore has.
#[derive(Clone, Copy, Debug)]
struct Service {
    /// Requests a second.
    rate: u64,
    longest_ns: u64,
}

/// Whose large requests are under way, and how far they are.
struct Reader<'a> {
    queue: &'a mut FrontQueue,
    all: &'a [Large],
    /// The next one's sector.
    next: u64,
    ended: u64,
}

impl Reader<'_> {
    /// Asks for each, once.
    fn begin(&mut self) -> Result<()> {
        self.queue.driver.disarm_calls();
        for (token, large) in self.all.iter().enumerate() {
            large.ask(self.queue, token as u64, &mut self.next, DISK_BYTES / 512)?;
        }
        Ok(())
    }

    /// Takes what has ended; with `again`, asks for more.
    fn look(&mut self, again: bool) -> Result<()> {
        while let Some(used) = self.queue.driver.take_used() {
            let large = self.all.get(used.token as usize).context("a token")?;
            ensure!(large.lines.status(0) == STATUS_OK, "status {}", large.lines.status(0));
            self.ended += 1;
            if again {
                large.ask(self.queue, used.token, &mut self.next, DISK_BYTES / 512)?;
            }
        }
        Ok(())
    }

    /// Waits for those that are under way: so many were asked for in all.
    fn finish(&mut self, asked: u64) -> Result<()> {
        let begun = now_ns();
        while self.ended < asked {
            self.look(false)?;
            pause(LOOK);
            ensure!(now_ns() - begun < u64::from(CALL_MS) * 1_000_000, "a request was lost");
        }
        Ok(())
    }
}

/// Asks for one block after the other, and for large ones whenever one has ended. One thread does both: another one would
/// have to share the processor that a small machine has beside the sidecore's.
fn served(
    neighbour: &mut Frontend,
    one: &Single,
    mut reader: Option<&mut Reader<'_>>,
    time_ns: u64,
) -> Result<Service> {
    let (begun, mut requests, mut longest_ns) = (now_ns(), 0, 0);
    while now_ns() - begun < time_ns {
        let ended = one.poll(neighbour.queue(0), requests % 256)?;
        ensure!(ended.status == STATUS_OK, "the neighbour: {ended:?}");
        (requests, longest_ns) = (requests + 1, ended.took_ns.max(longest_ns));
        if let Some(reader) = &mut reader {
            reader.look(true)?;
        }
    }
    let rate = requests * 1_000_000_000 / (now_ns() - begun).max(1);
    Ok(Service { rate, longest_ns })
}

impl Large {
    /// Asks for the next part of the disk.
    fn ask(&self, queue: &mut FrontQueue, token: u64, next: &mut u64, capacity: u64) -> Result<()> {
        let sectors = self.data.len() as u64 / 512;
        if *next + sectors > capacity {
            *next = 0;
        }
        self.lines.write_header(0, Kind::Read, *next);
        *next += sectors;
        queue.driver.add(&self.buffers(Kind::Read, 1), token)?;
        if queue.driver.publish() {
            queue.kick()?;
        }
        Ok(())
    }
}

/// Makes what the large requests read.
fn prepare(path: &Path, is_sparse: bool, is_cached: bool) -> Result<()> {
    let file = std::fs::File::options().write(true).open(path)?;
    if !is_sparse {
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, DISK_BYTES)?;
        let bytes = vec![0x3c; MIB as usize];
        (0..DISK_BYTES / MIB).try_for_each(|at| file.write_all_at(&bytes, at * MIB))?;
        file.sync_all()?;
    }
    match is_cached {
        true => drop(std::fs::read(path)?),
        false => rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?,
    }
    Ok(())
}

/// The processor of the sidecore that both share.
const SIDECORE: usize = 1;
/// Threads of the kernel that copy for one disk at a time.
const COPYING: usize = 4;

/// Has this thread run on the other processors, before all else there: what is compared is what the neighbour has of its
/// sidecore, and not of the one processor that a small machine has for guests and the kernel's threads.
fn come_first() -> Result<CpuSet> {
    let mut others = rustix::thread::sched_getaffinity(None)?;
    ensure!(others.count() > 1, "a machine of one processor");
    others.unset(SIDECORE);
    rustix::thread::sched_setaffinity(None, &others)?;
    // Of this thread alone, on Linux.
    rustix::process::setpriority_process(Some(rustix::thread::gettid()), -20)?;
    Ok(others)
}

/// Runs `alone` beside as many threads as copy for one disk in the kernel: what the machine itself costs.
fn beside_threads<T>(others: &CpuSet, alone: impl FnOnce() -> Result<T>) -> Result<T> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..COPYING {
            scope.spawn(|| {
                let _ = rustix::thread::sched_setaffinity(None, others);
                let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 0);
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let done = alone();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

/// Whose neighbour is looked at.
#[derive(Clone, Copy, Debug)]
struct Case {
    is_sparse: bool,
    is_cached: bool,
    disk: &'static str,
    odd: u64,
    mib: u64,
    depth: u64,
}

/// Files and buffers, each with every size and depth of [`SIZES`].
const FILES: [(bool, bool, &str, u64); 9] = [
    (true, true, "page", 0),
    (true, false, "page", 0),
    (true, true, "auto", 3),
    (true, false, "auto", 3),
    (false, true, "page", 0),
    (false, false, "page", 0),
    (false, true, "auto", 3),
    (false, false, "auto", 3),
    (false, false, "auto", 0),
];
const SIZES: [(u64, u64); 6] = [(4, 1), (4, 8), (8, 1), (8, 8), (15, 1), (15, 8)];
/// Of each case, by turns alone and beside the large requests: one round alone differs from the next by half.
const ROUNDS: usize = 7;
const ROUND_NS: u64 = 100_000_000;

/// What a neighbour had in the rounds of one case.
struct Rounds {
    alone: Vec<Service>,
    beside: Vec<Service>,
    ended: u64,
}

impl Rounds {
    /// The middle one of the rates.
    fn rate(all: &[Service]) -> u64 {
        let mut rates: Vec<u64> = all.iter().map(|service| service.rate).collect();
        rates.sort_unstable();
        rates.get(rates.len() / 2).copied().unwrap_or_default()
    }

    fn longest_us(all: &[Service]) -> u64 {
        all.iter().map(|service| service.longest_ns / 1000).max().unwrap_or_default()
    }

    /// Nine tenths are kept, and nobody waits 5 ms longer than the machine has one wait.
    fn are_well(&self) -> bool {
        let keeps = Rounds::rate(&self.beside) * 10 >= Rounds::rate(&self.alone) * 9;
        keeps && Rounds::longest_us(&self.beside) <= Rounds::longest_us(&self.alone) + 5_000
    }

    fn told(&self, case: Case) -> String {
        let (alone, beside) = (Rounds::rate(&self.alone), Rounds::rate(&self.beside));
        let spread = |all: &[Service]| {
            let rates = || all.iter().map(|service| service.rate / 1000);
            format!("{}..{}", rates().min().unwrap_or(0), rates().max().unwrap_or(0))
        };
        format!(
            "{case:?}: {}% kept; {} and {} thousand a second; longest {} and {} us; {} ended meanwhile",
            beside * 100 / alone.max(1),
            spread(&self.alone),
            spread(&self.beside),
            Rounds::longest_us(&self.alone),
            Rounds::longest_us(&self.beside),
            self.ended
        )
    }
}

/// With `--all`: nine tenths, and 5 ms, for every kind of file and of request. Otherwise a few, unjudged.
#[test]
fn a_neighbour_is_served_beside_large_requests() -> Result<()> {
    let long = are_judged();
    let daemon = Daemon::with("large-beside", &disks()).cpus(&SIDECORE.to_string()).start()?;
    let others = come_first()?;
    let mut neighbour = daemon.frontend("memory", &FrontendSpec::default())?;
    let one = Single::new(&mut neighbour)?;
    let mut worst = Vec::new();
    for (is_sparse, is_cached, disk, odd) in FILES {
        for (mib, depth) in SIZES {
            let is_of_few = (mib, depth) == (15, 8) && is_sparse != is_cached;
            if !long && !is_of_few {
                continue;
            }
            let case = Case { is_sparse, is_cached, disk, odd, mib, depth };
            let rounds = look_at(&daemon, &others, (&mut neighbour, &one), case)?;
            say(&rounds.told(case));
            if !rounds.are_well() {
                worst.push(rounds.told(case));
            }
        }
    }
    judge(worst.is_empty(), || worst.join("\n"))
}

/// The rounds of one case.
fn look_at(
    daemon: &Daemon,
    others: &CpuSet,
    (neighbour, one): (&mut Frontend, &Single),
    case: Case,
) -> Result<Rounds> {
    let Case { is_sparse, is_cached, disk, odd, mib, depth } = case;
    prepare(&daemon.dir().join(format!("{disk}.raw")), is_sparse, is_cached)?;
    let mut frontend = daemon.frontend(disk, &spec(Format::Split, 0))?;
    let all = (0..depth).map(|_| Large::new(&mut frontend, mib * MIB, odd));
    let all = all.collect::<Result<Vec<_>>>()?;
    let mut rounds = Rounds { alone: Vec::new(), beside: Vec::new(), ended: 0 };
    for _ in 0..if are_judged() { ROUNDS } else { 1 } {
        let mut by_itself = || served(neighbour, one, None, ROUND_NS);
        rounds.alone.push(match disk {
            "page" => beside_threads(others, by_itself)?,
            _ => by_itself()?,
        });
        let mut reader = Reader { queue: frontend.queue(0), all: &all, next: 0, ended: 0 };
        reader.begin()?;
        rounds.beside.push(served(neighbour, one, Some(&mut reader), ROUND_NS)?);
        rounds.ended += reader.ended;
        let asked = reader.ended + depth;
        reader.finish(asked)?;
    }
    frontend.disconnect()?;
    Ok(rounds)
}

#[expect(clippy::disallowed_macros, reason = "a test prints what it measured")]
fn say(what: &str) {
    println!("{what}");
}
