//! `bench pass`: the walk alone, of requests and of frames, without a second core, a socket or a clock.
//!
//! Driver side and sidecore take turns on one thread, 32 requests a turn. Counted are allocations
//! (there must be none) and, under valgrind, instructions of the sidecore's passes. Instructions are
//! the same on every run, so `baseline.json` is compared with: more than 2% above it fails. A program of its own, since
//! each run of the tests builds it as it builds what ships, and nothing else so.
#![expect(clippy::disallowed_macros, reason = "a program prints")]

mod link;
mod many;
mod nic;

use std::alloc::System;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use backend::{Disk, Source};
use device::blk::{Blk, Live, Shape};
use device::features;
use guest_memory::GuestMap;
use schedule::{Nanos, Policy};
use sidecore::{Command as Order, Handle, QueueKey, RoleSpec, Served, ServedSpec};
use sidecore::{Sidecore, SidecoreSpec};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use testing::clock::now_ns;
use testing::load::Load;
use testing::report::{ROUNDS_MIN, Row, write};
use testing::scratch::Scratch;
use testing::server::Who;
use testing::slots::{Kind, SECTOR_SIZE, Slots};
use virtqueue::driver::{Arena, Driver, RingSpec, first_base};
use virtqueue::{Format, Queue};

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline.json");
/// Growth that fails, as a part of the baseline.
const GROWTH_MAX: f64 = 0.02;
const DEPTH: u16 = 32;
const BLOCK_BYTES: u32 = 4096;
const DISK_BYTES: u64 = 64 << 20;
const MEMORY_BYTES: u64 = 8 << 20;
/// What the sidecore is told that a turn takes, so that its looks for kicks are counted too.
const TURN_NS: u64 = 5_000;
/// Turns before anything is counted: attach, first use of every slot.
const WARM_TURNS: u64 = 64;
/// Requests of one run whose allocations are counted.
const REQUESTS: u64 = 200_000;
/// Of one run under valgrind, for about a second, and of a quick one.
const REQUESTS_VALGRIND: u64 = 50_000;

const HELP: &str = "\
The walk alone: allocations and instructions of a request.

Usage: pass [OPTIONS]

  --instructions  count instructions under valgrind, and compare with the checked-in baseline
  --update        with --instructions: write what was counted as the new baseline
  --quick         one round of a few requests: enough to count by, not to time
  --json          one JSON object a line instead of a table
";

/// What to measure.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    is_help: bool,
    instructions: bool,
    update: bool,
    quick: bool,
    json: bool,
    /// One case and nothing else: what runs under valgrind.
    case: Option<String>,
}

/// A ring, a back-end, and what is asked of them.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    is_memory: bool,
    kind: Kind,
    format: Format,
    indirect_entries: u16,
}

const CASES: [Case; 8] = [
    case("null.randread.split", false, Kind::Read, Format::Split, 0),
    case("null.randread.indirect", false, Kind::Read, Format::Split, 3),
    case("null.randread.packed", false, Kind::Read, Format::Packed, 0),
    case("null.randread.packed_indirect", false, Kind::Read, Format::Packed, 3),
    case("null.randwrite.indirect", false, Kind::Write, Format::Split, 3),
    case("memory.randread.split", true, Kind::Read, Format::Split, 0),
    case("memory.randread.indirect", true, Kind::Read, Format::Split, 3),
    case("memory.randwrite.indirect", true, Kind::Write, Format::Split, 3),
];

const fn case(
    name: &'static str,
    is_memory: bool,
    kind: Kind,
    format: Format,
    indirect_entries: u16,
) -> Case {
    Case { name, is_memory, kind, format, indirect_entries }
}

fn main() -> ExitCode {
    match options(std::env::args().skip(1)).and_then(|options| told(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn told(options: &Options) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if options.is_help {
        return Ok(out.write_all(HELP.as_bytes())?);
    }
    write(&run(options)?, options.json, &mut out)
}

/// Reads the command line, without the program's name.
fn options(words: impl IntoIterator<Item = String>) -> Result<Options> {
    let mut words = words.into_iter();
    let mut options = Options::default();
    while let Some(word) = words.next() {
        match &*word {
            "--help" | "-h" => options.is_help = true,
            "--instructions" => options.instructions = true,
            "--update" => options.update = true,
            "--quick" => options.quick = true,
            "--json" => options.json = true,
            "--case" => options.case = Some(words.next().context("--case: which?")?),
            word => bail!("pass does not know {word}: pass --help"),
        }
    }
    ensure!(options.instructions || !options.update, "--update: only with --instructions");
    Ok(options)
}

fn run(options: &Options) -> Result<Vec<Row>> {
    if let Some(name) = &options.case {
        run_case(name)?;
        return Ok(Vec::new());
    }
    let mut rows = Vec::new();
    for case in CASES {
        let mut bed = Bed::new(case)?;
        if case.is_memory {
            bed.fill()?;
        }
        rows.extend(counted(case.name, options.quick, |requests| bed.run(requests))?);
    }
    for case in nic::CASES {
        let mut bed = nic::Bed::new(case)?;
        rows.extend(counted(case.name, options.quick, |frames| bed.run(frames))?);
    }
    for case in link::CASES {
        let mut bed = link::Bed::new(case)?;
        rows.extend(counted(case.name, options.quick, |requests| bed.run(requests))?);
    }
    for case in many::CASES {
        let mut bed = many::Bed::new(case)?;
        rows.extend(counted(case.name, options.quick, |requests| bed.run(requests))?);
    }
    let allocating = rows.iter().find(|row| row.unit == "allocations" && row.value > 0.0);
    if let Some(row) = allocating {
        bail!("{} is {}: a request must not allocate", row.name, row.value);
    }
    if options.instructions {
        rows.extend(instructions(options.update)?);
    }
    Ok(rows)
}

/// One run of one case, for valgrind.
fn run_case(name: &str) -> Result<()> {
    if let Some(case) = CASES.iter().find(|case| case.name == name) {
        return Bed::new(*case)?.run(REQUESTS_VALGRIND).map(drop);
    }
    if let Some(case) = link::CASES.iter().find(|case| case.name == name) {
        return link::Bed::new(*case)?.run(requests_of(name)).map(drop);
    }
    if let Some(case) = many::CASES.iter().find(|case| case.name == name) {
        return many::Bed::new(*case)?.run(requests_of(name)).map(drop);
    }
    let case = nic::CASES.iter().find(|case| case.name == name).context("no such case")?;
    nic::Bed::new(*case)?.run(REQUESTS_VALGRIND).map(drop)
}

/// Allocations and time of one case.
fn counted(name: &str, quick: bool, mut run: impl FnMut(u64) -> Result<u64>) -> Result<Vec<Row>> {
    eprintln!("bench: pass.{name}");
    let (rounds, requests) =
        if quick { (1, requests_of(name)) } else { (ROUNDS_MIN, 10 * REQUESTS) };
    let (mut allocations, mut times) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (before, start) = (allocated(), now_ns());
        let done = run(requests)? as f64;
        let (took, made) = (now_ns() - start, allocated() - before);
        allocations.push(made as f64 / done);
        times.push(took as f64 / done);
    }
    let row = |what, unit, values: &[f64]| {
        Row::new(format!("pass.{name}.{what}"), Who::Sidecore, unit, values)
    };
    Ok(vec![
        row("allocations_per_op", "allocations", &allocations),
        // Both sides and the load's own work.
        row("both_sides_ns_per_op", "ns", &times),
    ])
}

/// Instructions of every case, compared with the baseline.
fn instructions(update: bool) -> Result<Vec<Row>> {
    let mut found = BTreeMap::new();
    let disks = CASES.iter().map(|case| case.name);
    let disks = disks.chain(many::CASES.iter().map(|case| case.name));
    let disks = disks.chain(link::CASES.iter().map(|case| case.name));
    for case in disks.chain(nic::CASES.iter().map(|case| case.name)) {
        eprintln!("bench: pass.{case} under valgrind");
        found.insert(format!("pass.{case}.instructions_per_op"), instructions_of(case)?);
    }
    let rows = found
        .iter()
        .map(|(name, value)| Row::new(name.clone(), Who::Sidecore, "instructions", &[*value]))
        .collect();
    if update {
        let text = serde_json::to_string_pretty(&found)? + "\n";
        std::fs::write(BASELINE, text).context("writing the baseline")?;
        eprintln!("bench: wrote {} numbers to bench/pass/baseline.json", found.len());
        return Ok(rows);
    }
    let text = std::fs::read_to_string(BASELINE)
        .context("no bench/pass/baseline.json: make one with bench pass --instructions --update")?;
    let baseline: BTreeMap<String, f64> =
        serde_json::from_str(&text).context("bench/pass/baseline.json")?;
    compare(&baseline, &found)?;
    Ok(rows)
}

/// Fails when a number grew by more than 2%, or has nothing to be compared with.
fn compare(baseline: &BTreeMap<String, f64>, found: &BTreeMap<String, f64>) -> Result<()> {
    let mut grown = Vec::new();
    for (name, value) in found {
        let Some(before) = baseline.get(name) else {
            grown.push(format!("{name}: {value:.1}, not in the baseline"));
            continue;
        };
        let growth = value / before - 1.0;
        eprintln!("bench: {name}: {value:.1}, baseline {before:.1}, {:+.1}%", growth * 100.0);
        if growth > GROWTH_MAX {
            grown.push(format!("{name}: {value:.1}, was {before:.1} ({:+.1}%)", growth * 100.0));
        }
    }
    ensure!(
        grown.is_empty(),
        "more instructions for a request than bench/pass/baseline.json allows:\n  {}\nIf that is the \
         price of something worth it: bench pass --instructions --update, and say why in the commit",
        grown.join("\n  ")
    );
    Ok(())
}

/// Instructions of one request, spent in the sidecore's passes.
fn instructions_of(case: &str) -> Result<f64> {
    let dir = Scratch::new(&std::env::temp_dir(), "callgrind")?;
    let out = dir.path().join("callgrind.out");
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--quiet"])
        .arg("--toggle-collect=*counted_pass*")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(own_program()?)
        .args(["--case", case])
        .output()
        .context("starting valgrind (Debian: apt-get install valgrind)")?;
    ensure!(
        status.status.success(),
        "valgrind ended with {}:\n{}",
        status.status,
        String::from_utf8_lossy(&status.stderr)
    );
    let total = total_of(&out)?;
    ensure!(total > 0, "valgrind counted nothing: was `counted_pass` inlined?");
    Ok((total as f64 / requests_of(case) as f64 * 10.0).round() / 10.0)
}

/// Requests of one counted run. Of a link fewer, since its client is on the same thread; of many queues more, each of
/// which has some.
fn requests_of(case: &str) -> u64 {
    let all = REQUESTS_VALGRIND;
    if many::CASES.iter().any(|many| many.name == case) {
        return all * 4;
    }
    if link::CASES.iter().any(|link| link.name == case) { all / 10 } else { all }
}

fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("finding this program")
}

/// The sum of a callgrind output file.
fn total_of(out: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(out).context("reading what valgrind counted")?;
    let line = text.lines().find_map(|line| line.strip_prefix("totals:"));
    let total = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    total.context("valgrind's output has no totals")
}

/// A sidecore with one queue, and the driver of that queue.
struct Bed {
    sidecore: Sidecore,
    _handle: Handle,
    driver: Driver,
    slots: Slots,
    load: Load,
    now: Nanos,
}

impl Bed {
    fn new(case: Case) -> Result<Bed> {
        let map = Arc::new(GuestMap::anonymous(MEMORY_BYTES)?);
        let area = map.area_at_user(0, MEMORY_BYTES).context("guest memory")?;
        let mut arena = Arena::new(area, 0);
        let ring = RingSpec {
            // Two loads of 32 requests, three entries each, are prepared at once.
            size: 256,
            format: case.format,
            event_index: true,
            indirect_entries: case.indirect_entries,
        };
        let (mut driver, places) = arena.driver(ring)?;
        let spec = ring.queue_spec(&map, places, first_base(ring.format));
        let queue = Queue::new(spec.context("the ring is not in memory")?)?;
        let key = QueueKey { device: 0, queue: 0 };
        let served = served(case.is_memory, key, queue, Arc::clone(&map))?;
        let spec =
            SidecoreSpec { index: 0, cpu: None, workers: None, watches: true, queues_max: 16 };
        let (sidecore, mut handle) = Sidecore::new(spec)?;
        let sent = handle.send(Order::Attach(served));
        ensure!(sent.is_ok(), "the sidecore takes no queue");
        let slots = Slots::new(&mut arena, DEPTH, BLOCK_BYTES)?;
        let capacity = DISK_BYTES / SECTOR_SIZE;
        let load = Load::new(&mut driver, &slots, case.kind, DEPTH, capacity)?;
        let mut bed = Bed { sidecore, _handle: handle, driver, slots, load, now: Nanos(1) };
        bed.warm()?;
        Ok(bed)
    }

    /// Turns that are not counted: the attach and the first requests.
    fn warm(&mut self) -> Result<()> {
        self.driver.disarm_calls();
        self.sidecore.pass(self.now, &self.now);
        self.load.start(&mut self.driver, &self.slots);
        for _ in 0..WARM_TURNS {
            self.driver.publish();
            self.advance();
            self.sidecore.pass(self.now, &self.now);
            while self.load.turn(&mut self.driver, &self.slots) > 0 {
                self.driver.publish();
            }
        }
        self.load.check(&self.driver)
    }

    /// Gives nearly every block of a RAM disk a page of its own, which a read would not.
    fn fill(&mut self) -> Result<()> {
        let capacity = DISK_BYTES / SECTOR_SIZE;
        let writes = Load::new(&mut self.driver, &self.slots, Kind::Write, DEPTH, capacity)?;
        self.drain()?;
        let reads = std::mem::replace(&mut self.load, writes);
        self.load.start(&mut self.driver, &self.slots);
        self.driver.publish();
        self.run(4 * DISK_BYTES / u64::from(BLOCK_BYTES))?;
        self.drain()?;
        std::mem::replace(&mut self.load, reads).end(&mut self.driver);
        self.load.reset(&self.slots);
        self.load.start(&mut self.driver, &self.slots);
        self.driver.publish();
        Ok(())
    }

    /// Lets what is in flight end.
    fn drain(&mut self) -> Result<()> {
        for _ in 0..1000 {
            if self.driver.in_flight() == 0 {
                return Ok(());
            }
            self.advance();
            self.sidecore.pass(self.now, &self.now);
            while self.driver.take_used().is_some() {}
        }
        bail!("the sidecore did not finish its requests")
    }

    /// At least `requests` requests; gives how many there were.
    fn run(&mut self, requests: u64) -> Result<u64> {
        let (mut done, mut idle) = (0, 0);
        while done < requests {
            self.advance();
            counted_pass(&mut self.sidecore, self.now);
            let before = done;
            loop {
                let taken = self.load.turn(&mut self.driver, &self.slots);
                if taken == 0 {
                    break;
                }
                done += taken as u64;
            }
            self.driver.publish();
            idle = if done == before { idle + 1 } else { 0 };
            ensure!(idle < 1000, "the sidecore does nothing any more");
        }
        self.load.check(&self.driver)?;
        Ok(done)
    }

    fn advance(&mut self) {
        self.now = Nanos(self.now.0 + TURN_NS);
    }
}

fn served(
    is_memory: bool,
    key: QueueKey,
    queue: Queue,
    memory: Arc<GuestMap>,
) -> Result<Box<Served>> {
    let source = if is_memory {
        Source::Memory { size_bytes: DISK_BYTES }
    } else {
        Source::Null { size_bytes: DISK_BYTES }
    };
    let disk = Disk::open(&source)?;
    let shape = Shape {
        block_size: disk.block_size(),
        physical_block_exp: 0,
        topology: Default::default(),
        readonly: false,
        queues: 1,
        serial: [0; 20],
        limits: device::blk::Limits::default(),
        in_order: false,
    };
    let negotiated = features::VERSION_1 | features::BLK_FLUSH;
    let blk = Blk::new(&shape, Live::new(DISK_BYTES), negotiated);
    Ok(Served::new(ServedSpec {
        key,
        queue,
        memory,
        role: RoleSpec::Disk { blk, backend: disk.backend() },
        kick: None,
        call: None,
        share: 100,
        policy: Policy::Poll,
        target_ns: None,
        moderate_ns: 0,
        gate: None,
        counters: Arc::default(),
    }))
}

/// The system's allocator, counted.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Allocations and reallocations since the process began.
fn allocated() -> usize {
    let stats = ALLOCATOR.stats();
    stats.allocations + stats.reallocations
}

/// What valgrind counts: the name is in its command line.
#[inline(never)]
fn counted_pass(sidecore: &mut Sidecore, now: Nanos) {
    std::hint::black_box(sidecore.pass(now, &now));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_baseline_is_only_written_by_who_counts() {
        let asked = |line: &str| options(line.split_whitespace().map(str::to_owned));
        let wanted = Options { instructions: true, update: true, json: true, ..Options::default() };
        assert_eq!(asked("--update --json --instructions").unwrap(), wanted);
        for (line, says) in [
            ("--update", "--update: only with --instructions"),
            ("--case", "--case: which?"),
            ("--slow", "pass does not know --slow: pass --help"),
        ] {
            assert_eq!(asked(line).unwrap_err().to_string(), says);
        }
    }
}
