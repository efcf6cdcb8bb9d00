//! Rows E32 to E35 and E39 and promise P22 of the project's list: front-ends that come and go at every
//! moment, keep what they were given, use up descriptors, or find odd things where a socket should be.
//! Attacks 3, 7 and 12 of `docs/decisions/0004-known-attacks.md`.
//!
//! What a front-end does by itself is in `tests::misdeeds::coming`; here is what takes counting over many
//! turns, a limit that is set, or an operator.

#![expect(clippy::disallowed_macros, reason = "what was measured is for the record")]

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tests::daemon::{Daemon, await_that, pause};
use tests::hostile_bed::is_long;
use tests::misdeeds::MEMORY;
use tests::misdeeds::coming::{come_and_go, send, whole_session};
use tests::neighbour::Neighbour;
use tests::raw_front_end::Raw;

tests::misdeeds!(coming tests);

/// P22 and S5: at each of 20 stages, thousands of times, everything is given back.
#[test]
fn p22_comes_and_goes_at_each_of_20_stages() -> Result<()> {
    let mut bed = Neighbour::start("p22", MEMORY)?;
    let turns: u32 = if is_long() { 100_000 } else { 2_000 };
    let session = whole_session()?;
    ensure!(session.len() == 20);
    // Once at each stage, so that what is kept for good is there before it is measured.
    for count in 1..=session.len() {
        come_and_go(&bed.door(), &session[..count], 20)?;
    }
    bed.is_unharmed()?;
    let before = bed.daemon.own_bytes()?;
    for count in 1..=session.len() {
        come_and_go(&bed.door(), &session[..count], turns)?;
    }
    // Descriptors and mappings are as before, by `is_unharmed`.
    bed.is_unharmed()?;
    let after = bed.daemon.own_bytes()?;
    println!("p22: {turns} times at 20 stages; {before} bytes resident before, {after} after");
    ensure!(after <= before + (1 << 20), "{before} bytes resident before, {after} after");
    bed.finish()
}

#[test]
fn e35_no_descriptor_is_left() -> Result<()> {
    let mut bed = Neighbour::start("e35", MEMORY)?;
    let pid = Pid::from_raw(bed.daemon.pid() as i32);
    bed.is_unharmed()?;
    let open = bed.daemon.descriptors()? as u64;
    let before = descriptor_limit(bed.daemon.pid())?;
    for spare in [0, 1, 2, 5] {
        let limit = Rlimit { current: Some(open + spare), maximum: before.maximum };
        prlimit(pid, Resource::Nofile, limit)?;
        let mut held = Vec::new();
        for _ in 0..12 {
            let Ok(raw) = Raw::connect(&bed.door().socket()) else { continue };
            for step in &whole_session()? {
                if send(&raw, step, step.0.len()).is_err() {
                    break;
                }
            }
            held.push(raw);
        }
        pause(Duration::from_millis(30));
        prlimit(pid, Resource::Nofile, before)?;
        drop(held);
        // Those who could not be accepted are refused or come in now; the neighbour goes on.
        await_that(Duration::from_secs(5), "a front-end to be accepted again", || {
            Ok(bed.door().raw().is_ok())
        })
        .with_context(|| format!("{spare} descriptors to spare"))?;
        bed.is_unharmed()?;
    }
    bed.finish()
}

/// The limit as it is; `prlimit` of another process only sets it here.
fn descriptor_limit(pid: u32) -> Result<Rlimit> {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let numbers: Vec<u64> = line
        .context("no limit of descriptors")?
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [current, maximum] = numbers[..] else { anyhow::bail!("odd limits: {limits}") };
    Ok(Rlimit { current: Some(current), maximum: Some(maximum) })
}

#[test]
fn e39_odd_things_where_the_socket_should_be() -> Result<()> {
    let bed = Neighbour::start("e39", MEMORY)?;
    let dir = bed.daemon.dir().to_owned();
    std::fs::write(dir.join("a-file"), "precious")?;
    std::fs::create_dir(dir.join("a-folder"))?;
    std::os::unix::fs::symlink(dir.join("a-file"), dir.join("a-link"))?;
    std::os::unix::fs::symlink(dir.join("nowhere"), dir.join("a-dangling-link"))?;
    let long = format!("{}/{}", dir.display(), "x".repeat(120));
    let add = "disk add odd --backend memory --size 4M --socket";
    for name in ["a-file", "a-folder", "a-link"] {
        let path = dir.join(name);
        let (what, shown) = tried(&bed.daemon, &format!("{add} {}", path.display()))?;
        ensure!(what == Tried::Refused || shown.contains("problem"), "{name}: {shown}");
        ensure!(std::fs::read_to_string(dir.join("a-file"))? == "precious", "{name}");
        ensure!(dir.join("a-folder").is_dir() && dir.join("a-link").is_symlink(), "{name}");
        if what == Tried::Added {
            bed.daemon.ask("disk rm odd --force")?;
        }
    }
    let said = bed.daemon.refuses(&format!("{add} {long}"))?;
    ensure!(said.contains("107") || said.contains("long"), "{said}");
    let (what, _) = tried(&bed.daemon, &format!("{add} /proc/odd.sock"))?;
    if what == Tried::Added {
        let shown = bed.daemon.ask("show odd")?;
        ensure!(shown["problem"].is_string(), "a socket in /proc: {shown}");
        bed.daemon.ask("disk rm odd --force")?;
    }
    let (what, _) =
        tried(&bed.daemon, &format!("{add} {}", dir.join("a-dangling-link").display()))?;
    ensure!(!dir.join("nowhere").exists(), "a link was followed");
    if what == Tried::Added {
        bed.daemon.ask("disk rm odd --force")?;
    }
    bed.finish()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    Added,
    Refused,
}

/// Whether a command is done, and what the disk is like or what was said.
fn tried(daemon: &Daemon, line: &str) -> Result<(Tried, String)> {
    match daemon.ask(line) {
        Ok(_) => Ok((Tried::Added, daemon.ask("show odd")?.to_string())),
        Err(error) => Ok((Tried::Refused, format!("{error:#}"))),
    }
}
