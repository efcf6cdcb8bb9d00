//! A daemon that is asked to go by which vCPUs run: where it may not see which do, it says so once, and all else is as
//! it was; where it may, it leaves queues of guests that sleep alone, and nobody misses a request
//! (docs/decisions/0016-runstate.md). What it decides is tested in `sidecore`, `schedule` and `runstate`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testing::daemon::sidecore_binary;
use testing::daemon::{Daemon, await_that, pause};
use testing::frontend::{Frontend, FrontendSpec};
use testing::lacking::left_out;
use testing::net_frontend::{Nic, NicSpec};
use tests::crowd::nic;
use tests::sight::sees_vcpus;
use tests::single::Single;
use tests::traffic::{self, LONGEST};

const FRAMES: u64 = 200;
/// What loads programs for tracepoints.
const RIGHTS: &str = "-bpf,-perfmon,-sys_admin";
const SAID: &str = "which vCPUs run cannot be seen, so neither `redirect` nor `skip_sleeping` does anything: no right to load an eBPF program: run as \
                    root, or with AmbientCapabilities=CAP_BPF CAP_PERFMON";

/// Two NICs that want it, of the two pairs that it takes.
fn config() -> String {
    let nics = [("one", 1), ("two", 2)]
        .map(|(id, number)| nic(id, number) + "queues = 2\nredirect = \"always\"\n");
    format!("[[switch]]\nid = \"lan\"\n{}", nics.concat())
}

fn frames_go(daemon: &Daemon) -> Result<()> {
    let connect = |id: &str, number| -> Result<(Nic, u16)> {
        let nic = daemon.nic(id, NicSpec::sending(LONGEST))?;
        Ok((nic, number))
    };
    let guests = traffic::start([connect("one", 1)?, connect("two", 2)?])?;
    let gone = guests.iter().try_for_each(|guest| guest.await_frames(FRAMES));
    traffic::finish(guests)?;
    gone
}

/// What `sidecore doctor` says of it, run through that.
fn doctor(through: &[&str]) -> Result<serde_json::Value> {
    let program = sidecore_binary()?;
    let program = program.to_str().context("an odd path")?;
    let words: Vec<&str> = through.iter().copied().chain([program, "doctor", "--json"]).collect();
    let (first, rest) = words.split_first().context("no words")?;
    let output = Command::new(first).args(rest).output()?;
    let doctor: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let mut checks = doctor["checks"].as_array().into_iter().flatten();
    checks.find(|check| check["name"] == "ebpf").cloned().context("no check")
}

#[test]
fn without_the_right_to_see_it_everything_else_works() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        left_out("starting a daemon with fewer rights needs root");
        return Ok(());
    }
    let here = doctor(&[])?;
    if here["state"] != "ok" {
        left_out(format_args!("more than rights is lacking here: {here}"));
        return Ok(());
    }
    let without = ["setpriv", "--bounding-set", RIGHTS];
    let check = doctor(&without)?;
    let todo = check["todo"].as_str().unwrap_or_default();
    ensure!(check["state"] == "warn" && !todo.is_empty() && SAID.ends_with(todo), "{check}");
    let mut daemon = Daemon::with("run-state", &config()).through(&without).start()?;
    frames_go(&daemon)?;
    // And in a process that takes over.
    daemon.upgrade()?;
    frames_go(&daemon)?;
    for id in ["one", "two"] {
        let state = daemon.ask(&format!("nic show {id}"))?["run_state"].clone();
        ensure!(state["redirect"] == "always" && state["redirected"] == 0, "{id}: {state}");
        let problem = state["problem"].as_str().with_context(|| format!("{id}: {state}"))?;
        ensure!(SAID.ends_with(problem), "{id} says {problem:?}");
    }
    let log = std::fs::read_to_string(daemon.dir().join("log"))?;
    let times = log.lines().filter(|line| line.contains(SAID)).count();
    ensure!(
        times == 2,
        "each of two processes says it once, and it was said {times} times:\n{log}"
    );
    daemon.is_alive()
}

/// Disks of one guest.
const DISKS: usize = 4;
/// Requests to each of them, each after a sleep.
const TURNS: u64 = 100;

/// A daemon that polls all disks for ever, but those of guests that sleep.
fn skips(name: &str) -> Result<Daemon> {
    let disks: String = (0..DISKS)
        .map(|number| {
            format!("[[disk]]\nid = \"d{number}\"\nbackend = \"memory\"\nsize = \"16M\"\n")
        })
        .collect();
    Daemon::with(name, &disks).sidecores("policy = \"poll\"\nskip_sleeping = true\n").start()
}

fn guest(daemon: &Daemon) -> Result<Vec<(Frontend, Single)>> {
    let spec = FrontendSpec::linux();
    let connect = |number: usize| {
        let mut disk = daemon.frontend(&format!("d{number}"), &spec)?;
        let single = Single::new(&mut disk)?;
        Ok((disk, single))
    };
    (0..DISKS).map(connect).collect()
}

/// The test's own thread is the guest's only vCPU, by its name.
#[test]
fn queues_of_a_guest_that_sleeps_are_left_alone_and_each_request_is_answered() -> Result<()> {
    if !sees_vcpus()? {
        return Ok(());
    }
    whose_vcpus_are_not_known_is_polled_and_it_is_said_why()?;
    let mut daemon = skips("sleeping")?;
    let vcpu = std::thread::Builder::new().name("CPU 0/TCG".to_string());
    let sidecore =
        |daemon: &Daemon| Ok::<_, anyhow::Error>(daemon.ask("sidecores")?["sidecores"][0].clone());
    std::thread::scope(|scope| {
        let daemon = &daemon;
        let guest = vcpu.spawn_scoped(scope, move || -> Result<()> {
            let mut disks = guest(daemon)?;
            await_that("its disks to be dormant", || {
                // One is looked at: it is polled alone.
                Ok(sidecore(daemon)?["dormant"]
                    .as_u64()
                    .is_some_and(|count| count + 1 >= DISKS as u64))
            })?;
            for block in 0..TURNS {
                for (disk, single) in &mut disks {
                    pause(Duration::from_millis(1));
                    single.exercise(disk.queue(0), block)?;
                }
            }
            let shown = daemon.ask("show d0")?;
            let vcpu = &shown["vcpus"][0];
            ensure!(vcpu["index"] == 0 && vcpu["state"] != "unknown", "{shown}");
            Ok(())
        })?;
        guest.join().map_err(|_| anyhow::anyhow!("the guest panicked"))?
    })?;
    let seen = sidecore(&daemon)?;
    ensure!(seen["looks_spared"].as_u64() > Some(0), "{seen}");
    // And in a process that takes over.
    daemon.upgrade()?;
    let vcpu = std::thread::Builder::new().name("CPU 0/TCG".to_string());
    std::thread::scope(|scope| {
        let daemon = &daemon;
        let guest = vcpu.spawn_scoped(scope, move || -> Result<()> {
            let _disks = guest(daemon)?;
            await_that("its disks to be dormant", || {
                Ok(sidecore(daemon)?["dormant"]
                    .as_u64()
                    .is_some_and(|count| count + 1 >= DISKS as u64))
            })
        })?;
        guest.join().map_err(|_| anyhow::anyhow!("the guest panicked"))?
    })?;
    daemon.is_alive()
}

/// Not a test of its own: in the same process another one has a thread with a vCPU's name.
fn whose_vcpus_are_not_known_is_polled_and_it_is_said_why() -> Result<()> {
    let mut daemon = skips("nameless")?;
    let mut disks = guest(&daemon)?;
    for (disk, single) in &mut disks {
        single.exercise(disk.queue(0), 1)?;
    }
    await_that("its process to be looked at", || {
        let shown = daemon.ask("show d0")?;
        Ok(shown["vcpus_unknown"].as_str().is_some_and(|why| why.contains("debug-threads=on")))
    })?;
    let seen = daemon.ask("sidecores")?["sidecores"][0].clone();
    ensure!(seen["dormant"] == 0 && seen["looks_spared"] == 0, "{seen}");
    daemon.is_alive()
}
