//! A daemon that is asked to go by which vCPUs run: where it may not see which do, it says so once, and all else is as
//! it was; where it may, it follows them (docs/decisions/0016-runstate.md). What it decides is tested in `sidecore` and
//! `runstate`.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use testing::daemon::{Daemon, await_that, sidecore_binary};
use testing::lacking::left_out;
use testing::net_frontend::{Nic, NicSpec};
use tests::crowd::nic;
use tests::sight::sees_vcpus;
use tests::traffic::{self, LONGEST};

const FRAMES: u64 = 200;
/// What loads programs for tracepoints.
const RIGHTS: &str = "-bpf,-perfmon,-sys_admin";
const SAID: &str = "which vCPUs run cannot be seen, so `redirect` does nothing: no right to load an eBPF program: run as \
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

/// A guest whose threads have no names of vCPUs is told why its vCPUs are not known; one with such a thread has that
/// followed, by the daemon that takes over too.
#[test]
fn a_thread_with_a_vcpus_name_is_followed() -> Result<()> {
    if !sees_vcpus()? {
        return Ok(());
    }
    let mut daemon = Daemon::with("run-state-names", &config()).start()?;
    let nameless = daemon.nic("one", NicSpec::default())?;
    await_that("the lack of names to be said", || {
        let state = daemon.ask("nic show one")?["run_state"].clone();
        Ok(state["problem"].as_str().is_some_and(|why| why.contains("debug-threads=on")))
    })?;
    drop(nameless);
    is_followed(&daemon)?;
    daemon.upgrade()?;
    is_followed(&daemon)?;
    daemon.is_alive()
}

/// A thread of the test is the guest's only vCPU.
fn is_followed(daemon: &Daemon) -> Result<()> {
    let vcpu = std::thread::Builder::new().name("CPU 0/TCG".to_string());
    std::thread::scope(|scope| {
        let guest = vcpu.spawn_scoped(scope, move || -> Result<()> {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            let _nic = daemon.nic("two", NicSpec::default())?;
            await_that("its vCPU to be seen switched", || {
                let state = daemon.ask("nic show two")?["run_state"].clone();
                let vcpu = &state["vcpus"][0];
                let is_seen = vcpu["index"] == 0 && vcpu["thread"] == tid;
                Ok(is_seen && vcpu["state"] != "unknown" && state["problem"].is_null())
            })
        })?;
        guest.join().map_err(|_| anyhow::anyhow!("the guest panicked"))?
    })
}
