//! `lives`: so many seeds, on every processor, and one line that says what became of them.
//!
//! Not what a seed is (`lives::run`). Run by `./x sim control`.

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use lives::{Outcome, run};

/// Seeds that once found something.
const CASES: &str = include_str!("../cases.txt");
/// Findings that are told in full.
const TOLD: u64 = 3;

/// Lives of the real control from seeds; the same seed is the same run.
#[derive(Debug, Parser)]
#[command(name = "lives")]
struct Cli {
    /// How many seeds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Only this one.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// All events of that one, not only the last.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// And what the daemon and its operators say.
    #[arg(long, requires = "seed")]
    log: bool,
    /// Threads; with one, which is the default, it is also looked whether descriptors are left.
    #[arg(long)]
    threads: Option<usize>,
    /// Goes on after a finding.
    #[arg(long)]
    keep_going: bool,
}

/// What all threads add to.
#[derive(Default)]
struct Sum {
    next: AtomicU64,
    seeds: AtomicU64,
    requests: AtomicU64,
    findings: AtomicU64,
}

fn main() -> ExitCode {
    // A panic is a finding, and told as one.
    std::panic::set_hook(Box::new(|_| {}));
    let cli = Cli::parse();
    let sum = Sum::default();
    if let Some(seed) = cli.seed {
        if cli.log {
            let log =
                tracing_subscriber::fmt().without_time().with_max_level(tracing::Level::TRACE);
            log.with_writer(std::io::stdout).init();
        }
        judge(seed, &run(seed, cli.trace, true), &sum, true);
    } else {
        let threads = cli.threads.unwrap_or(1);
        // Descriptors are the process's.
        let counts = threads == 1;
        let cases = CASES.lines().filter_map(|line| line.parse().ok());
        cases.for_each(|seed| judge(seed, &run(seed, false, counts), &sum, false));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| work(&cli, &sum, counts));
            }
        });
    }
    let of = |count: &AtomicU64| count.load(Ordering::SeqCst);
    say(&format!(
        "control: {} seeds, {} requests, {} findings",
        of(&sum.seeds),
        of(&sum.requests),
        of(&sum.findings)
    ));
    if of(&sum.findings) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn work(cli: &Cli, sum: &Sum, counts: bool) {
    loop {
        let index = sum.next.fetch_add(1, Ordering::SeqCst);
        let is_found = sum.findings.load(Ordering::SeqCst) > 0 && !cli.keep_going;
        if index >= cli.seeds || is_found {
            return;
        }
        let seed = cli.from + index;
        judge(seed, &run(seed, false, counts), sum, false);
    }
}

fn judge(seed: u64, outcome: &Outcome, sum: &Sum, is_told: bool) {
    sum.seeds.fetch_add(1, Ordering::SeqCst);
    sum.requests.fetch_add(outcome.requests, Ordering::SeqCst);
    let Some(finding) = &outcome.finding else {
        if is_told {
            outcome.last.iter().for_each(|line| say(line));
            say(&format!("seed {seed}: {} events, trace {:016x}", outcome.events, outcome.hash));
        }
        return;
    };
    let before = sum.findings.fetch_add(1, Ordering::SeqCst);
    let mut text = String::new();
    if before < TOLD {
        outcome.last.iter().for_each(|line| text.push_str(&format!("{line}\n")));
    }
    text.push_str(&format!(
        "seed {seed}: {finding}\n  again: ./x sim control --seed {seed} --trace"
    ));
    say(&text);
}

fn say(text: &str) {
    // Nobody is left to be told when this fails.
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}
