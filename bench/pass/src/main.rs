//! `bench pass`: the walk alone, of requests and of frames, without a second core, a socket or a clock.
//!
//! Driver side and sidecore take turns on one thread, 32 requests a turn. Counted are allocations
//! (there must be none) and, under valgrind, instructions of the sidecore's passes. Instructions are the same on every
//! run, so `baseline.json` is compared with: more than 2% above it fails, or, of a change that may cost nothing, anything
//! at all (`--exact`). A program of its own, since each run of the tests builds it as it builds what ships, and nothing
//! else so.
#![expect(clippy::disallowed_macros, reason = "a program prints")]

mod disk;
mod link;
mod many;
mod nic;

use std::alloc::System;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use schedule::Nanos;
use sidecore::Sidecore;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use testing::clock::now_ns;
use testing::report::{ROUNDS_MIN, Row, write};
use testing::scratch::Scratch;
use testing::server::Who;

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline.json");
/// Growth that fails, as a part of the baseline.
const GROWTH_MAX: f64 = 0.02;
const DEPTH: u16 = 32;
const BLOCK_BYTES: u32 = 4096;
const DISK_BYTES: u64 = 64 << 20;
/// What the sidecore is told that a turn takes, so that its looks for kicks are counted too.
const TURN_NS: u64 = 5_000;
/// Requests of one run whose allocations are counted.
const REQUESTS: u64 = 200_000;
/// Of one run under valgrind, for about a second, and of a quick one.
const REQUESTS_VALGRIND: u64 = 50_000;

const HELP: &str = "\
The walk alone: allocations and instructions of a request.

Usage: pass [OPTIONS]

  --instructions  count instructions under valgrind, and compare with the checked-in baseline
  --exact         with --instructions: no number may grow at all, and files through the page cache are counted, too
  --update        with --instructions: write what was counted as the new baseline
  --quick         one round of a few requests: enough to count by, not to time
  --json          one JSON object a line instead of a table
";

/// What to measure.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    is_help: bool,
    instructions: bool,
    exact: bool,
    update: bool,
    quick: bool,
    json: bool,
    /// One case and nothing else: what runs under valgrind.
    case: Option<String>,
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
            "--exact" => options.exact = true,
            "--update" => options.update = true,
            "--quick" => options.quick = true,
            "--json" => options.json = true,
            "--case" => options.case = Some(words.next().context("--case: which?")?),
            word => bail!("pass does not know {word}: pass --help"),
        }
    }
    ensure!(options.instructions || !options.update, "--update: only with --instructions");
    ensure!(options.instructions || !options.exact, "--exact: only with --instructions");
    Ok(options)
}

fn run(options: &Options) -> Result<Vec<Row>> {
    if let Some(name) = &options.case {
        run_case(name)?;
        return Ok(Vec::new());
    }
    let mut rows = Vec::new();
    for case in disk_cases(options) {
        let mut bed = disk::Bed::new(case)?;
        if case.needs_pages() {
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
        rows.extend(instructions(options)?);
    }
    Ok(rows)
}

/// Disks that are measured. Files that the kernel reads are for who asks for exact numbers, or writes all: they hold as
/// long as its pages are cached and its file system reads those without waiting, which no test is to depend on.
fn disk_cases(options: &Options) -> impl Iterator<Item = disk::Case> {
    let all = options.exact || options.update;
    disk::CASES.into_iter().filter(move |case| all || !case.is_handed_over())
}

/// One run of one case, for valgrind.
fn run_case(name: &str) -> Result<()> {
    if let Some(case) = disk::CASES.iter().find(|case| case.name == name) {
        return disk::Bed::new(*case)?.run(REQUESTS_VALGRIND).map(drop);
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
fn instructions(options: &Options) -> Result<Vec<Row>> {
    let mut found = BTreeMap::new();
    let disks = disk_cases(options).map(|case| case.name);
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
    if options.update {
        let text = serde_json::to_string_pretty(&found)? + "\n";
        std::fs::write(BASELINE, text).context("writing the baseline")?;
        eprintln!("bench: wrote {} numbers to bench/pass/baseline.json", found.len());
        return Ok(rows);
    }
    let text = std::fs::read_to_string(BASELINE)
        .context("no bench/pass/baseline.json: make one with bench pass --instructions --update")?;
    let baseline: BTreeMap<String, f64> =
        serde_json::from_str(&text).context("bench/pass/baseline.json")?;
    let most = if options.exact { 0.0 } else { GROWTH_MAX };
    compare(&baseline, &found, most)?;
    Ok(rows)
}

/// Fails when a number grew by more than such a part, or has nothing to be compared with.
fn compare(
    baseline: &BTreeMap<String, f64>,
    found: &BTreeMap<String, f64>,
    growth_max: f64,
) -> Result<()> {
    let mut grown = Vec::new();
    for (name, value) in found {
        let Some(before) = baseline.get(name) else {
            grown.push(format!("{name}: {value:.1}, not in the baseline"));
            continue;
        };
        let growth = value / before - 1.0;
        eprintln!("bench: {name}: {value:.1}, baseline {before:.1}, {:+.1}%", growth * 100.0);
        if growth > growth_max {
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
