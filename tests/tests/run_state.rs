//! A daemon that is asked to deliver to vCPUs that run, where it may not see which do: it says so once, and all else is as
//! it was (docs/decisions/0016-runstate.md). What it does where it may see is tested in `sidecore` and `runstate`.
#![expect(clippy::disallowed_macros, reason = "a test says what it leaves out")]

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bench::net_frontend::{Nic, NicSpec};
use bench::server::sidecore_binary;
use tests::crowd::nic;
use tests::daemon::{Daemon, await_that};
use tests::traffic::{self, LONGEST};

const FRAMES: u64 = 200;
/// What loads programs for tracepoints.
const RIGHTS: &str = "-bpf,-perfmon,-sys_admin";
const SAID: &str = "which vCPUs run cannot be seen, so no frame is redirected: no right to load an eBPF program: run as \
                    root, or with AmbientCapabilities=CAP_BPF CAP_PERFMON";

/// Two NICs that want it, of the two pairs that it takes.
fn config() -> String {
    let nics = [("one", 1), ("two", 2)]
        .map(|(id, number)| nic(id, number) + "queues = 2\nredirect = \"always\"\n");
    format!("[sidecores]\ncpus = \"0\"\nmin = 1\n[[switch]]\nid = \"lan\"\n{}", nics.concat())
}

fn frames_go(daemon: &Daemon) -> Result<()> {
    let connect = |id: &str, number| -> Result<(Nic, u16)> {
        let nic = Nic::connect(
            &daemon.socket(id),
            NicSpec { send_bytes: LONGEST, ..NicSpec::default() },
        )?;
        await_that(Duration::from_secs(10), "its queues to be attached", || {
            Ok(daemon.ask(&format!("nic show {id}"))?["queues_attached"] == 2)
        })?;
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
        println!("left out, since it needs root: starting a daemon with fewer rights");
        return Ok(());
    }
    let here = doctor(&[])?;
    if here["state"] != "ok" {
        println!("left out, since it lacks more than rights here: {here}");
        return Ok(());
    }
    let without = ["setpriv", "--bounding-set", RIGHTS];
    let check = doctor(&without)?;
    let todo = check["todo"].as_str().unwrap_or_default();
    ensure!(check["state"] == "warn" && !todo.is_empty() && SAID.ends_with(todo), "{check}");
    let mut daemon = Daemon::start_through("run-state", &without, &config())?;
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
