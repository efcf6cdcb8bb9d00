//! Many guests of which most sleep: what the others have of a sidecore that leaves those alone.
//!
//! Each guest is a process with one thread, which is named as QEMU names a vCPU: who sleeps does one request now and
//! then, who is awake one after the other. Rounds with `skip_sleeping` and without take turns, each a daemon of its
//! own. Not here: that no request waits for it, which is a test's to say. Called by `runstate`; a guest's process is
//! `bench sleeper`.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::thread::set_name;
use testing::clock::now_ns;
use testing::frontend::{Frontend, FrontendSpec, LINUX_FEATURES};
use testing::load::{Load, Random};
use testing::report::Row;
use testing::server::Who;
use testing::slots::{Kind, Slots};
use virtqueue::driver::RingSpec;

use crate::bed::{DRIVER_CORE, SERVER_CORE, sidecore};
use crate::blk::pin;
use crate::schedule::counters::{self, Counters};

const GUESTS: usize = 64;
const AWAKE: usize = 4;
/// Requests of an awake guest until it lets the other awake ones have the processor that they share.
const BURST: u32 = 64;
/// One that sleeps does so for so long on average, nanoseconds.
const SLEEP_NS: u64 = 100_000_000;
/// A request that is not answered by then is lost.
const PATIENCE_NS: u64 = 90_000_000_000;
const POLICIES: [&str; 2] = ["poll", "adaptive"];

/// A guest: a process of `bench runstate`, told by its standard input what to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Sleeper {
    /// Its disk.
    socket: PathBuf,
    /// One request after the other, instead of one now and then.
    #[arg(long)]
    awake: bool,
}

/// What a guest saw from `m` to `e`.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    requests: f64,
    kicks: f64,
    p50_ns: f64,
    p99_ns: f64,
}

/// A guest's process, and the two ends of its pipes.
struct Guest {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    is_awake: bool,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Guest {
    fn start(socket: PathBuf, is_awake: bool) -> Result<Guest> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(std::env::current_exe()?).arg("sleeper");
        command.arg(socket).args(is_awake.then_some("--awake"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let to = child.stdin.take().context("no pipe")?;
        let from = BufReader::new(child.stdout.take().context("no pipe")?);
        let mut guest = Guest { child, to, from, is_awake };
        ensure!(guest.line()? == "ready", "a guest did not start");
        Ok(guest)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        Ok(line.trim().to_string())
    }

    fn end(&mut self) -> Result<Seen> {
        self.to.write_all(b"e")?;
        let line = self.line()?;
        let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [requests, kicks, p50_ns, p99_ns] = numbers[..] else {
            return Err(anyhow::anyhow!("a guest says {line:?}"));
        };
        Ok(Seen { requests, kicks, p50_ns, p99_ns })
    }
}

/// What a round came to, by the names of its rows.
type Round = [(&'static str, &'static str, f64); 6];

pub(super) fn measure(is_quick: bool) -> Result<Vec<Row>> {
    let (rounds, time) = if is_quick { (1, 1) } else { (5, 3) };
    let mut rows = Vec::new();
    for policy in POLICIES {
        let mut seen: [Vec<Round>; 2] = Default::default();
        for number in 1..=rounds {
            for (skips, seen) in [false, true].into_iter().zip(&mut seen) {
                seen.push(round(policy, skips, Duration::from_secs(time))?);
            }
            eprintln!("bench: runstate.sleeping.{policy}: round {number} of {rounds}");
        }
        for (who, seen) in [Who::SidecoreWithout, Who::Sidecore].into_iter().zip(&seen) {
            for (at, (name, unit, _)) in seen.iter().next().into_iter().flatten().enumerate() {
                let values: Vec<f64> = seen.iter().map(|round| round[at].2).collect();
                rows.push(Row::new(
                    format!("runstate.sleeping.{policy}.{name}"),
                    who,
                    unit,
                    &values,
                ));
            }
        }
    }
    Ok(rows)
}

fn round(policy: &str, skips: bool, time: Duration) -> Result<Round> {
    let disks: String = (0..GUESTS)
        .map(|number| format!("[[disk]]\nid = \"d{number}\"\nbackend = \"null\"\nsize = \"1G\"\n"))
        .collect();
    let sidecores =
        format!("cpus = \"{SERVER_CORE}\"\npolicy = \"{policy}\"\nskip_sleeping = {skips}\n");
    let daemon = sidecore("sleeping", &disks, None).sidecores(&sidecores).start()?;
    let guest = |number| Guest::start(daemon.socket(&format!("d{number}")), number < AWAKE);
    let mut guests = (0..GUESTS).map(guest).collect::<Result<Vec<Guest>>>()?;
    let api = daemon.socket("api");
    let look = || -> Result<(u64, Counters)> {
        let all = counters::ask(&api)?;
        Ok((now_ns(), *all.first().context("no sidecore")?))
    };
    // Control has found their vCPUs by then.
    wait(Duration::from_millis(1500));
    ensure!(look()?.1.queues == GUESTS as u16, "not all disks are served");
    guests.iter_mut().try_for_each(|guest| guest.to.write_all(b"m"))?;
    let (began, before) = look()?;
    wait(time);
    let (ended, after) = look()?;
    let seen = guests.iter_mut().map(|guest| Ok((guest.is_awake, guest.end()?)));
    let seen = seen.collect::<Result<Vec<(bool, Seen)>>>()?;
    let spared = after.looks_spared - before.looks_spared;
    // By `adaptive` who sleeps waits for kicks already.
    let has_to = skips && policy == "poll";
    let is_right = spared > 0 || !has_to;
    ensure!(
        is_right && (skips || spared == 0),
        "{spared} looks were spared, skip_sleeping = {skips}"
    );
    let median = |is_awake, of: fn(&Seen) -> f64| {
        let mut values: Vec<f64> =
            seen.iter().filter(|(awake, _)| *awake == is_awake).map(|(_, seen)| of(seen)).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0) / 1000.0
    };
    let sum = |of: fn(&Seen) -> f64| -> f64 {
        seen.iter().filter(|(awake, _)| !awake).map(|(_, seen)| of(seen)).sum()
    };
    ensure!(sum(|seen| seen.requests) > 0.0, "who sleeps never woke");
    let passes = (after.passes - before.passes) as f64 * 1e9 / (ended - began) as f64;
    Ok([
        ("passes", "1/s", passes),
        ("awake.p50_us", "us", median(true, |seen| seen.p50_ns)),
        ("awake.p99_us", "us", median(true, |seen| seen.p99_ns)),
        ("woken.p50_us", "us", median(false, |seen| seen.p50_ns)),
        ("woken.p99_us", "us", median(false, |seen| seen.p99_ns)),
        ("woken.kicks", "1/request", sum(|seen| seen.kicks) / sum(|seen| seen.requests)),
    ])
}

#[expect(clippy::disallowed_methods, reason = "what is measured happens elsewhere")]
fn wait(time: Duration) {
    std::thread::sleep(time);
}

/// A guest's life.
pub(crate) fn be(sleeper: &Sleeper) -> Result<Vec<Row>> {
    // Before control looks for it.
    set_name(c"CPU 0/TCG")?;
    pin(DRIVER_CORE)?;
    let spec = FrontendSpec {
        memory_bytes: 2 << 20,
        ring: RingSpec { size: 16, ..FrontendSpec::default().ring },
        features: LINUX_FEATURES,
        ..FrontendSpec::default()
    };
    let mut frontend = Frontend::connect(&sleeper.socket, spec)?;
    let capacity = frontend.capacity_sectors()?;
    let slots = Slots::new(frontend.memory(), 1, 4096)?;
    let driver = &mut frontend.queue(0).driver;
    driver.disarm_calls();
    let mut load = Load::new(driver, &slots, Kind::Read, 1, capacity)?;
    let mut random = Random(u64::from(std::process::id()) | 1);
    let mut kicks = frontend.queue(0).kicks();
    println!("ready");
    loop {
        let pause_ns = match sleeper.awake {
            true => 0,
            false => SLEEP_NS / 2 + random.below(SLEEP_NS),
        };
        match word(pause_ns)? {
            Some(b'm') => {
                load.forget_latencies();
                kicks = frontend.queue(0).kicks();
            }
            Some(b'e') => {
                let seen = load.latencies();
                let asked = frontend.queue(0).kicks() - kicks;
                let [p50, p99] = [0.5, 0.99].map(|part| seen.quantile(part));
                println!("{} {asked} {p50} {p99}", seen.count());
            }
            Some(_) => return Ok(Vec::new()),
            None => {}
        }
        for _ in 0..if sleeper.awake { BURST } else { 1 } {
            one(&mut frontend, &mut load, &slots)?;
        }
        rustix::thread::sched_yield();
    }
}

/// One request, and its answer.
fn one(frontend: &mut Frontend, load: &mut Load, slots: &Slots) -> Result<()> {
    let queue = frontend.queue(0);
    load.start(&mut queue.driver, slots);
    if queue.driver.publish() {
        queue.kick()?;
    }
    let since = now_ns();
    while !load.take(&mut queue.driver, slots) {
        std::hint::spin_loop();
        ensure!(now_ns() < since + PATIENCE_NS, "a request was not answered");
    }
    load.check(&queue.driver)
}

/// What it is told within that time. The end of its input is a word, too.
fn word(pause_ns: u64) -> Result<Option<u8>> {
    let stdin = std::io::stdin();
    let time = Timespec { tv_sec: 0, tv_nsec: pause_ns as _ };
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    if poll(&mut fds, Some(&time))? == 0 {
        return Ok(None);
    }
    let mut byte = [0];
    let count = stdin.lock().read(&mut byte)?;
    Ok(Some(if count == 0 { 0 } else { byte[0] }))
}
