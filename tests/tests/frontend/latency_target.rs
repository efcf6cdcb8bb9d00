//! Latency targets of a built daemon: beside streams, what missed it is counted, and a queue that has one is
//! served early, but not where urgency is switched off; and it changes under load.
//!
//! Not by how much it helps: that is a matter of the machine's time (`schedule`'s tests, in made-up time).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, ensure};
use testing::bed::tests_all;
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that};
use testing::frontend::{FrontQueue, Frontend, FrontendSpec};
use testing::slots::{Kind, STATUS_OK, Slots};

const STREAMS: u16 = 8;
/// Requests of each stream, of 64 KiB: milliseconds of work together, so that it does not matter for how long
/// the guests' thread is away.
const DEPTH: u16 = 30;
/// Less than a round of the streams' turns, of 25 us each.
const TARGET_US: u32 = 100;
/// Requests that are asked at once: more than those of a queue that is served early anyway.
const BURST: u16 = 16;
/// The guest works so long on the answers, and so asks for less than its share.
const THINK_NS: u64 = 400_000;

fn disks(urgency: &str, target: &str) -> String {
    let mut text = format!("urgency = \"{urgency}\"\n");
    for stream in 0..STREAMS {
        text += &format!("[[disk]]\nid = \"s{stream}\"\nbackend = \"memory\"\nsize = \"4M\"\n");
    }
    text + &format!("[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"4M\"\n{target}")
}

/// So many of something, of which a fifth shows the same: all of them with `--all`.
fn of(all: u64) -> u64 {
    if tests_all() { all } else { all / 5 }
}

/// Guests on one thread.
struct Guests {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl Guests {
    fn start(mut round: impl FnMut() -> Result<()> + Send + 'static) -> Guests {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                round()?;
                counted.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        Guests { stop, rounds, thread }
    }

    fn await_rounds(&self, more: u64) -> Result<()> {
        let until = self.rounds.load(Ordering::Relaxed) + more;
        await_that("the guests to go on", || {
            ensure!(!self.thread.is_finished(), "they have ended");
            Ok(self.rounds.load(Ordering::Relaxed) >= until)
        })
    }

    fn finish(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("a guest panicked"))?
    }
}

/// One ring and its requests.
struct Guest {
    queue: FrontQueue,
    slots: Slots,
}

impl Guest {
    fn new(frontend: &mut Frontend, depth: u16, bytes: u32) -> Result<Guest> {
        let slots = Slots::new(frontend.memory(), depth, bytes)?;
        (0..depth).for_each(|slot| slots.write_header(slot, Kind::Read, u64::from(slot) * 8));
        let queue = frontend.take_queues().into_iter().next().context("no queue")?;
        Ok(Guest { queue, slots })
    }

    fn ask(&mut self, slots: impl Iterator<Item = u16>) -> Result<()> {
        for slot in slots {
            let (buffers, count) = self.slots.buffers(slot, Kind::Read);
            self.queue.driver.add(&buffers[..count], slot.into())?;
        }
        if self.queue.driver.publish() {
            self.queue.kick()?;
        }
        Ok(())
    }

    fn answered(&mut self) -> Result<Vec<u16>> {
        let mut all = Vec::new();
        while let Some(used) = self.queue.driver.take_used() {
            let slot = used.token as u16;
            ensure!(self.slots.status(slot) == STATUS_OK, "slot {slot} failed");
            all.push(slot);
        }
        Ok(all)
    }
}

/// Takes what was answered, and asks for as much again.
fn refill(streams: &mut [Guest]) -> Result<()> {
    streams.iter_mut().try_for_each(|stream| {
        let slots = stream.answered()?;
        stream.ask(slots.into_iter())
    })
}

/// All guests on one thread: streams with full rings, and one that asks for some at once and waits.
fn guests(mut streams: Vec<Guest>, mut burst: Guest) -> Result<Guests> {
    streams.iter_mut().try_for_each(|stream| stream.ask(0..DEPTH))?;
    Ok(Guests::start(move || {
        refill(&mut streams)?;
        burst.ask(0..BURST)?;
        let (mut left, begun_ns) = (usize::from(BURST), now_ns());
        while left > 0 {
            left -= burst.answered()?.len();
            ensure!(now_ns() - begun_ns < 90_000_000_000, "{left} requests are lost");
            std::thread::yield_now();
        }
        let until_ns = now_ns() + THINK_NS;
        while now_ns() < until_ns {
            refill(&mut streams)?;
            std::thread::yield_now();
        }
        Ok(())
    }))
}

fn counters(daemon: &Daemon) -> Result<(u64, u64)> {
    let counters = daemon.shown("a", "counters")?;
    let of = |name: &str| counters[name].as_u64().with_context(|| format!("no {name}"));
    Ok((of("missed")?, of("requests")?))
}

/// How often a queue was served in the middle of another's visit.
fn interruptions(daemon: &Daemon) -> Result<u64> {
    let cores = daemon.ask("sidecores")?;
    let cores = cores["sidecores"].as_array().context("no list of sidecores")?;
    let of = |core: &serde_json::Value| core["interruptions"].as_u64().context("no interruptions");
    cores.iter().map(of).sum()
}

fn run(name: &str, urgency: &str, more: impl FnOnce(&Daemon, &Guests) -> Result<()>) -> Result<()> {
    let spec = || FrontendSpec::linux();
    let target = format!("latency_target_us = {TARGET_US}\n");
    let mut daemon = Daemon::start(name, &disks(urgency, &target))?;
    let mut frontends = Vec::new();
    for stream in 0..STREAMS {
        frontends.push(daemon.frontend(&format!("s{stream}"), &spec())?);
    }
    let mut frontend = daemon.frontend("a", &spec())?;
    let streams = frontends.iter_mut().map(|frontend| Guest::new(frontend, DEPTH, 64 << 10));
    let streams = streams.collect::<Result<Vec<_>>>()?;
    let bursts = guests(streams, Guest::new(&mut frontend, BURST, 4096)?)?;
    bursts.await_rounds(of(100))?;
    more(&daemon, &bursts)?;
    bursts.finish()?;
    daemon.is_alive()
}

#[test]
fn a_queue_with_a_target_is_served_early() -> Result<()> {
    run("target-off", "off", |daemon, bursts| {
        // As many as make it late where that matters.
        await_that("requests that miss the target", || {
            Ok(counters(daemon)?.0 > of(64) * u64::from(BURST))
        })?;
        bursts.await_rounds(of(100))?;
        ensure!(interruptions(daemon)? == 0, "urgency is off");
        Ok(())
    })?;
    run("target-on", "watch", |daemon, bursts| {
        await_that("it to be served early", || Ok(interruptions(daemon)? > of(100)))?;
        ensure!(counters(daemon)?.0 > 0, "it was late by nothing");
        the_target_changes(daemon, bursts)
    })
}

/// Through the file, under load: nothing is lost, and nothing is counted without a target.
fn the_target_changes(daemon: &Daemon, bursts: &Guests) -> Result<()> {
    ensure!(daemon.shown("a", "latency_target_us")? == TARGET_US);
    let file = daemon.dir().join("sidecore.toml");
    let text = std::fs::read_to_string(&file)?;
    for target in ["", "latency_target_us = 1000000\n", "latency_target_us = 10\n", ""] {
        let old = format!("latency_target_us = {TARGET_US}\n");
        std::fs::write(&file, text.replace(&old, target))?;
        let changed = daemon.ask("reload")?["changes"].to_string();
        ensure!(changed.contains("set disk a: latency_target_us "), "{changed}");
        bursts.await_rounds(of(100))?;
        ensure!(daemon.shown("a", "queues_attached")? == 1);
    }
    let (before, _) = counters(daemon)?;
    let early = interruptions(daemon)?;
    bursts.await_rounds(of(200))?;
    ensure!(interruptions(daemon)? == early, "without a target it is not light");
    let (after, requests) = counters(daemon)?;
    ensure!(before == after && after < requests, "{after} of {requests} missed, was {before}");
    Ok(())
}
