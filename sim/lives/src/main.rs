//! `lives`: so many seeds, how far they are, and one line that says what became of them.
//!
//! Not what a seed is (`lives::run`), and not how it is told (`screen`). Run by `./x sim --seeds N`.

mod screen;

use std::cell::RefCell;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;

use clap::Parser;
use lives::{Outcome, is_linked, run};

use screen::Screen;

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
    /// Only seeds whose hosts are linked.
    #[arg(long)]
    linked: bool,
    /// Goes on after a finding.
    #[arg(long)]
    keep_going: bool,
}

/// What all threads add to, and where that is told.
struct Sum {
    screen: Screen,
    next: AtomicU64,
    seeds: AtomicU64,
    requests: AtomicU64,
    findings: AtomicU64,
}

thread_local! {
    /// Where this thread has panicked last.
    static PANICKED: RefCell<String> = const { RefCell::new(String::new()) };
}

fn main() -> ExitCode {
    // A panic is a finding, and told as one.
    std::panic::set_hook(Box::new(|info| {
        PANICKED.set(info.location().map(ToString::to_string).unwrap_or_default());
    }));
    let cli = Cli::parse();
    let sum = Sum::new();
    if let Some(seed) = cli.seed {
        if cli.log {
            let log =
                tracing_subscriber::fmt().without_time().with_max_level(tracing::Level::TRACE);
            log.with_writer(std::io::stdout).init();
        }
        judge(seed, &run(seed, cli.trace, true), &sum, true);
    } else {
        let cases = CASES.lines().filter_map(|line| line.parse().ok());
        let asked = cli.from..cli.from.saturating_add(cli.seeds);
        let asked = asked.filter(|seed| !cli.linked || is_linked(*seed));
        let seeds: Vec<u64> = cases.chain(asked).collect();
        live(&cli, &seeds, &sum);
    }
    sum.screen.say(&format!("lives: {} seeds, {}", sum.seeds(), sum.words()));
    if sum.findings() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Lives them all, and tells how far that is.
fn live(cli: &Cli, seeds: &[u64], sum: &Sum) {
    let threads = cli.threads.unwrap_or(1);
    let (working, work) = channel();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let working = working.clone();
            scope.spawn(move || {
                // Descriptors are the process's.
                work_off(seeds, cli.keep_going, threads == 1, sum);
                drop(working);
            });
        }
        drop(working);
        let words = || format!("{} of {} seeds, {}", sum.seeds(), seeds.len(), sum.words());
        sum.screen.follow(&work, words);
    });
}

fn work_off(seeds: &[u64], keep_going: bool, counts: bool, sum: &Sum) {
    loop {
        let index = sum.next.fetch_add(1, Ordering::SeqCst) as usize;
        let Some(seed) = seeds.get(index).filter(|_| sum.findings() == 0 || keep_going) else {
            return;
        };
        judge(*seed, &run(*seed, false, counts), sum, false);
    }
}

impl Sum {
    fn new() -> Sum {
        let [next, seeds, requests, findings] = Default::default();
        Sum { screen: Screen::new(), next, seeds, requests, findings }
    }

    fn seeds(&self) -> u64 {
        self.seeds.load(Ordering::SeqCst)
    }

    fn findings(&self) -> u64 {
        self.findings.load(Ordering::SeqCst)
    }

    fn words(&self) -> String {
        let requests = self.requests.load(Ordering::SeqCst);
        format!("{requests} requests, {} findings", self.findings())
    }
}

fn judge(seed: u64, outcome: &Outcome, sum: &Sum, is_told: bool) {
    sum.seeds.fetch_add(1, Ordering::SeqCst);
    sum.requests.fetch_add(outcome.requests, Ordering::SeqCst);
    let Some(finding) = &outcome.finding else {
        if is_told {
            outcome.last.iter().for_each(|line| sum.screen.say(line));
            sum.screen.say(&format!(
                "seed {seed}: {} events, trace {:016x}",
                outcome.events, outcome.hash
            ));
        }
        return;
    };
    let before = sum.findings.fetch_add(1, Ordering::SeqCst);
    let mut text = String::new();
    let at = PANICKED.take();
    let at = if at.is_empty() { at } else { format!(", at {at}") };
    if before < TOLD {
        outcome.last.iter().for_each(|line| text.push_str(&format!("{line}\n")));
    }
    text.push_str(&format!("seed {seed}: {finding}{at}\n  again: ./x sim --seed {seed} --trace"));
    sum.screen.say(&text);
}
