//! `bench runstate`: whether run state is what the kernel's own accounting says, and what it costs.
//!
//! Three things, each of the program as the daemon loads it: threads that work, wait and sleep at random are
//! compared with `/proc/PID/schedstat` (how often each was given a processor, and for how long it had one);
//! two that wake each other in turn say what the program adds to a switch, as the kernel measures it; and a loop of
//! looks says what one takes. What a guest has of redirection is in `contended`.

mod contended;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use runstate::{Activity, State, Table};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use testing::clock::now_ns;
use testing::load::Random;
use testing::report::Row;
use testing::server::Who;
use vcpu_tracker::{Roster, Tracker};

/// Threads that are compared: more than there are processors on a small machine, so that they wait.
const THREADS: usize = 6;
/// A thread works for up to so long, nanoseconds, and then sleeps for up to so long.
const WORKS_NS: u64 = 4_000_000;
const SLEEPS_NS: u64 = 2_000_000;
/// So many times as long as all samples take where each can be compared: then something is wrong.
const TIMES_MAX: u64 = 200;
/// Between two samples.
const BETWEEN: Duration = Duration::from_micros(200);
/// The time on a processor between two samples may differ by so much of it, and by so much: the kernel reads its
/// clock at another moment of each switch, and leaves out what interrupts and a hypervisor below it take where it is built to.
const TIME_PART: f64 = 0.01;
const TIME_NS: f64 = 100_000.0;
/// The unit of slices.
const SLICE_NS: u64 = 4096;
/// So many are compared at least, if there are so many in time.
const SLICES_MIN: u64 = 20;
/// Looks of one round.
const LOOKS: u64 = 2_000_000;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A few seconds instead of half a minute; of the guest two rounds instead of five.
    #[arg(long)]
    quick: bool,
    /// Then a guest whose vCPUs share a processor, with redirection and without; `./x bench` says this.
    #[arg(long)]
    guest: bool,
    /// The guest alone.
    #[arg(long)]
    contended: bool,
    /// Busy threads of the host beside the guest's vCPUs.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    burners: usize,
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>> {
    let mut rows = if options.contended { Vec::new() } else { numbers(options)? };
    if options.guest || options.contended {
        rows.extend(contended::measure(options)?);
    }
    Ok(rows)
}

/// What needs no guest.
fn numbers(options: &Options) -> Result<Vec<Row>> {
    let [samples, turns, rounds] =
        if options.quick { [1_000, 10_000, 5] } else { [20_000, 100_000, 9] };
    let tracker =
        Tracker::start(now_ns() as u32).map_err(|error| anyhow!("no run state: {error}"))?;
    let mut roster = tracker.roster();
    eprintln!("bench: runstate: {samples} samples beside schedstat");
    let mut rows = agreement(&tracker, &mut roster, samples)?;
    let empty = Tracker::start_empty(0).map_err(|error| anyhow!("no run state: {error}"))?;
    eprintln!("bench: runstate: {rounds} rounds of {turns} wake-ups, and of looks");
    let [mut followed, mut others, mut measuring, mut looks] = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        measuring.push(switch_ns(&empty, None, turns)?);
        others.push(switch_ns(&tracker, None, turns)?);
        followed.push(switch_ns(&tracker, Some(&mut roster), turns)?);
        looks.push(look_ns(tracker.table(), &mut roster)?);
    }
    let row = |name: &str, values: &[f64]| {
        Row::new(format!("runstate.{name}"), Who::Sidecore, "ns", values)
    };
    rows.push(row("switch.followed_ns", &followed));
    rows.push(row("switch.others_ns", &others));
    rows.push(row("switch.measuring_ns", &measuring));
    rows.push(row("look_ns", &looks));
    Ok(rows)
}

/// A thread that works and sleeps, with what was known of it at the sample before.
struct Worker {
    tid: u32,
    row: runstate::Row,
    before: Option<(State, Accounted)>,
}

/// What the kernel says of a thread.
#[derive(Clone, Copy, Debug)]
struct Accounted {
    ran_ns: u64,
    times: u64,
}

/// `/proc/self/task/TID/schedstat`: nanoseconds on a processor, nanoseconds waiting for one, times.
fn accounted(tid: u32) -> Result<Accounted> {
    let path = format!("/proc/self/task/{tid}/schedstat");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [ran_ns, _, times] = numbers[..] else { return Err(anyhow!("{path} is {text:?}")) };
    Ok(Accounted { ran_ns, times })
}

/// How many samples say the same as the kernel since the sample before.
#[derive(Debug, Default)]
struct Compared {
    samples: u64,
    times_differ: u64,
    time_differs: u64,
    worst_ns: f64,
    /// Those that had a processor once since the sample before, until it was taken from them.
    slices: u64,
    slices_differ: u64,
}

impl Compared {
    /// One in which the thread had a processor, by either. The rest is only that nothing was nothing.
    fn take(&mut self, before: &(State, Accounted), state: &State, kernel: &Accounted) {
        let (was, counted) = before;
        if state.switches == was.switches && kernel.times == counted.times {
            return;
        }
        self.samples += 1;
        if state.switches == was.switches + 1 && state.activity == Activity::Waits {
            self.slices += 1;
            let ran_ns = state.on_ns - was.on_ns;
            self.slices_differ += u64::from(state.slice_ns != ran_ns / SLICE_NS * SLICE_NS);
        }
        let differ = state.switches - was.switches != kernel.times - counted.times;
        self.times_differ += u64::from(differ);
        let sums = [state.on_ns - was.on_ns, kernel.ran_ns - counted.ran_ns];
        let [ours, theirs] = sums.map(|ns| ns as f64);
        let off_ns = (ours - theirs).abs();
        self.worst_ns = self.worst_ns.max(off_ns);
        self.time_differs += u64::from(off_ns > theirs * TIME_PART + TIME_NS);
    }
}

fn agreement(tracker: &Tracker, roster: &mut Roster, samples: u64) -> Result<Vec<Row>> {
    let stop = Arc::new(AtomicBool::new(false));
    let (tell, told) = mpsc::channel();
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let (stop, tell) = (Arc::clone(&stop), tell.clone());
            std::thread::spawn(move || work_and_sleep(number, &stop, &tell))
        })
        .collect();
    let compared = compare(tracker, roster, &told, samples);
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| anyhow!("a thread panicked"))?;
    }
    let compared = compared?;
    let part = |wrong: u64| 1.0 - wrong as f64 / compared.samples as f64;
    let row = |name: &str, unit: &'static str, value: f64| {
        Row::new(format!("runstate.agreement.{name}"), Who::Sidecore, unit, &[value])
    };
    Ok(vec![
        row("switches", "1", part(compared.times_differ)),
        row("time", "1", part(compared.time_differs)),
        row("time_worst_ns", "ns", compared.worst_ns),
        row("samples", "1", compared.samples as f64),
        // Of those that were a slice: how many say the time that it took.
        row("slices", "1", 1.0 - compared.slices_differ as f64 / compared.slices.max(1) as f64),
        row("slices_seen", "1", compared.slices as f64),
    ])
}

/// Samples of threads that have told their numbers, which are followed meanwhile.
fn compare(
    tracker: &Tracker,
    roster: &mut Roster,
    told: &mpsc::Receiver<u32>,
    samples: u64,
) -> Result<Compared> {
    let mut workers = Vec::new();
    for tid in told.iter().take(THREADS) {
        let row = roster.bind(tid, now_ns()).map_err(|_| anyhow!("no room in the index"))?;
        workers.push(Worker { tid, row, before: None });
    }
    let mut compared = Compared::default();
    for at in (0..THREADS).cycle().take((samples * TIMES_MAX) as usize) {
        if compared.samples >= samples && compared.slices >= SLICES_MIN {
            break;
        }
        let worker = workers.get_mut(at).context("a thread did not start")?;
        sample(tracker.table(), worker, &mut compared)?;
        pause(BETWEEN);
    }
    workers.iter().for_each(|worker| roster.unbind(worker.tid, now_ns()));
    let got = compared.samples;
    ensure!(got >= samples, "only {got} of {samples} samples could be compared");
    Ok(compared)
}

/// Looks at a thread before and after the kernel says what it has counted. One that was switched between them is
/// looked at again some other time; so is one that has a processor, because then the kernel's sum is not up to date.
fn sample(table: &Table, worker: &mut Worker, compared: &mut Compared) -> Result<()> {
    let before = table.read(worker.row);
    let kernel = accounted(worker.tid)?;
    let (Some(state), true) = (before, before == table.read(worker.row)) else { return Ok(()) };
    if !matches!(state.activity, Activity::Waits | Activity::Sleeps) {
        return Ok(());
    }
    if let Some(before) = worker.before.replace((state, kernel)) {
        compared.take(&before, &state, &kernel);
    }
    Ok(())
}

fn work_and_sleep(number: usize, stop: &AtomicBool, tell: &mpsc::Sender<u32>) {
    let mut random = Random(0x5eed + number as u64);
    let _ = tell.send(own_tid());
    while !stop.load(Ordering::Relaxed) {
        let until = now_ns() + random.below(WORKS_NS);
        while now_ns() < until {
            std::hint::spin_loop();
        }
        pause(Duration::from_nanos(random.below(SLEEPS_NS)));
    }
}

#[expect(clippy::disallowed_methods, reason = "sleeping is what is measured")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// What the kernel says that the program took at each switch while two threads of one processor woke each other in
/// turn; with both followed, or neither. The kernel's own measuring is in it (`switch.measuring_ns`).
fn switch_ns(tracker: &Tracker, mut roster: Option<&mut Roster>, turns: u64) -> Result<f64> {
    let (mut one, mut two) = UnixStream::pair()?;
    let (tell, tids) = mpsc::channel();
    let (go, told) = mpsc::channel::<()>();
    let answers = std::thread::spawn({
        let tell = tell.clone();
        move || -> Result<()> {
            pin()?;
            tell.send(own_tid())?;
            let mut byte = [0];
            while two.read(&mut byte)? > 0 {
                two.write_all(&byte)?;
            }
            Ok(())
        }
    });
    let asks = std::thread::spawn(move || -> Result<()> {
        pin()?;
        tell.send(own_tid())?;
        told.recv()?;
        for _ in 0..turns {
            one.write_all(&[1])?;
            one.read_exact(&mut [0])?;
        }
        Ok(())
    });
    let threads: Vec<u32> = tids.iter().take(2).collect();
    ensure!(threads.len() == 2, "a thread did not start");
    if let Some(roster) = roster.as_mut() {
        for tid in &threads {
            roster.bind(*tid, now_ns()).map_err(|_| anyhow!("no room in the index"))?;
        }
    }
    let measuring = tracker.measure()?;
    let before = tracker.cost()?;
    go.send(())?;
    let done = [asks, answers]
        .map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked")).flatten());
    let after = tracker.cost()?;
    drop(measuring);
    if let Some(roster) = roster {
        threads.iter().for_each(|tid| roster.unbind(*tid, now_ns()));
    }
    done.into_iter().collect::<Result<()>>()?;
    let runs = after.runs - before.runs;
    ensure!(runs >= turns, "only {runs} switches were measured");
    Ok((after.total_ns - before.total_ns) as f64 / runs as f64)
}

fn own_tid() -> u32 {
    gettid().as_raw_nonzero().get() as u32
}

/// To the first processor of those that this process may use.
fn pin() -> Result<()> {
    let may = sched_getaffinity(None)?;
    let first = (0..CpuSet::MAX_CPU).find(|cpu| may.is_set(*cpu)).context("no processor")?;
    let mut cpus = CpuSet::new();
    cpus.set(first);
    Ok(sched_setaffinity(None, &cpus)?)
}

/// One look at what a thread does.
fn look_ns(table: &Table, roster: &mut Roster) -> Result<f64> {
    let tid = own_tid();
    let row = roster.bind(tid, now_ns()).map_err(|_| anyhow!("no room in the index"))?;
    let start = now_ns();
    let mut runs = 0_u64;
    for _ in 0..LOOKS {
        runs += u64::from(table.activity(std::hint::black_box(row)) == Activity::Runs);
    }
    let took = now_ns() - start;
    std::hint::black_box(runs);
    roster.unbind(tid, now_ns());
    Ok(took as f64 / LOOKS as f64)
}
