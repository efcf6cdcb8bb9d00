//! What the host does to the daemon, or does not give it (reliability H11 to H13, O13, O14): memory that is
//! short, a core that others use, a daemon that stands still, no io_uring, no memory to lock.

#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use testing::daemon::{Daemon, await_that, pause};
use testing::frontend::{Frontend, FrontendSpec};
use testing::lacking::left_out;
use testing::timing;
use testing::verified::Load;
use tests::single::Single;

const DISKS: &str = "[[disk]]\nid = \"memory\"\nbackend = \"memory\"\nsize = \"4M\"\n\
                     [[disk]]\nid = \"file\"\npath = \"images/file.raw\"\nsize = \"4M\"\n";
const NAMES: [&str; 2] = ["memory", "file"];
/// Of the sidecore.
const CPU: usize = 0;
/// Longer than a message may take (5 s); the load itself waits for 90 s.
const STANDSTILL: Duration = Duration::from_secs(7);

fn loads(daemon: &Daemon) -> Result<Vec<(Load, Frontend)>> {
    let spec = FrontendSpec { inflight: true, ..FrontendSpec::linux() };
    let start = |name: &&str| -> Result<_> {
        let mut frontend = daemon.frontend(name, &spec)?;
        let (load, _) = Load::start(&mut frontend)?;
        load.await_requests(100)?;
        Ok((load, frontend))
    };
    NAMES.iter().map(start).collect()
}

/// Everything was completed and right, and nothing was answered with an error.
fn finish(mut daemon: Daemon, loads: Vec<(Load, Frontend)>) -> Result<()> {
    for (load, _) in &loads {
        load.await_requests(100)?;
    }
    for (load, _frontend) in loads {
        load.finish()?;
    }
    for name in NAMES {
        let shown = daemon.ask(&format!("show {name}"))?;
        ensure!(shown["counters"]["errors"] == 0 && shown["problem"].is_null(), "{shown}");
    }
    daemon.is_alive()?;
    daemon.stop()
}

/// H13 and O13: guests wait, and nothing that is timed takes the pause for somebody's silence.
#[test]
fn h13_a_daemon_that_stands_still_loses_nothing() -> Result<()> {
    let daemon = Daemon::start("h13", DISKS)?;
    let loads = loads(&daemon)?;
    let pid = Pid::from_raw(daemon.pid() as i32).context("no process")?;
    for (load, _) in &loads {
        load.take_worst_ns();
    }
    kill_process(pid, Signal::STOP)?;
    pause(STANDSTILL);
    kill_process(pid, Signal::CONT)?;
    for (load, _) in &loads {
        load.await_requests(100)?;
        let worst = Duration::from_nanos(load.take_worst_ns());
        timing::judge(worst + Duration::from_secs(1) > STANDSTILL, || {
            format!("it did not stand still: {worst:?}")
        })?;
    }
    finish(daemon, loads)
}

/// The thread of the first sidecore.
fn sidecore_thread(daemon: &Daemon) -> Result<Pid> {
    for entry in std::fs::read_dir(format!("/proc/{}/task", daemon.pid()))? {
        let path = entry?.path();
        if std::fs::read_to_string(path.join("comm"))?.trim() == "sidecore-0" {
            let number = path.file_name().and_then(|name| name.to_str()).context("a thread")?;
            return Pid::from_raw(number.parse()?).context("no thread");
        }
    }
    anyhow::bail!("there is no thread sidecore-0")
}

/// H12: a busy thread on the sidecore's cpu, and the sidecore's thread put elsewhere and back again.
#[test]
fn h12_a_core_that_others_use_and_one_that_is_taken_away() -> Result<()> {
    let daemon = Daemon::start("h12", DISKS)?;
    let loads = loads(&daemon)?;
    let all = sched_getaffinity(None)?;
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let busy = std::thread::spawn(move || -> Result<u64> {
        let mut one = CpuSet::new();
        one.set(CPU);
        sched_setaffinity(None, &one)?;
        let mut turns = 0;
        while !told.load(Ordering::Relaxed) {
            turns += 1;
        }
        Ok(turns)
    });
    for (load, _) in &loads {
        load.await_requests(300)?;
    }
    let thread = sidecore_thread(&daemon)?;
    let mut elsewhere = all;
    if all.count() > 1 {
        elsewhere.unset(CPU);
    }
    for turn in 0..40 {
        let mut back = CpuSet::new();
        back.set(CPU);
        sched_setaffinity(Some(thread), if turn % 2 == 0 { &elsewhere } else { &back })?;
        for (load, _) in &loads {
            load.await_requests(20).with_context(|| format!("after turn {turn}"))?;
        }
    }
    stop.store(true, Ordering::Relaxed);
    let turns = busy.join().map_err(|_| anyhow::anyhow!("the busy thread panicked"))??;
    ensure!(turns > 0);
    finish(daemon, loads)
}

/// A cgroup (v1) that limits memory; goes with its last process.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    const ALL: &str = "/sys/fs/cgroup/memory";

    fn new() -> Result<MemoryGroup> {
        let group =
            MemoryGroup(Path::new(Self::ALL).join(format!("sidecore-test-{}", std::process::id())));
        std::fs::create_dir(&group.0).with_context(|| group.0.display().to_string())?;
        Ok(group)
    }

    fn limit(&self, bytes: u64) -> Result<()> {
        Ok(std::fs::write(self.0.join("memory.limit_in_bytes"), bytes.to_string())?)
    }

    fn get(&self, name: &str) -> Result<u64> {
        Ok(std::fs::read_to_string(self.0.join(name))?.trim().parse()?)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // An empty group that is left harms nobody.
        let gone = || Ok(std::fs::remove_dir(&self.0).is_ok());
        let _ = await_that("the cgroup to be removed", gone);
    }
}

/// H11: with a tenth more than it has, what runs goes on, and a guest more is served or refused.
#[test]
fn h11_memory_that_is_short_ends_nothing() -> Result<()> {
    if !Path::new(MemoryGroup::ALL).join("cgroup.procs").exists() {
        left_out(format_args!("there is no {} (cgroup v1 with memory)", MemoryGroup::ALL));
        return Ok(());
    }
    let group = MemoryGroup::new()?;
    let inside = group.0.join("cgroup.procs").display().to_string();
    let enter = ["sh", "-c", "echo 0 >\"$0\" && exec \"$@\"", &inside];
    let more = "[[disk]]\nid = \"more\"\nbackend = \"memory\"\nsize = \"1M\"\n";
    let mut daemon = Daemon::with("h11", &format!("{DISKS}{more}")).through(&enter).start()?;
    let loads = loads(&daemon)?;
    let has = group.get("memory.usage_in_bytes")?;
    ensure!(has > 1 << 20, "the daemon is not in the group: {has} bytes");
    let limit = has + has / 10;
    group.limit(limit)?;
    for (load, _) in &loads {
        load.await_requests(2000)?;
    }
    // The next guest brings its own memory; what the daemon needs for it is in the tenth, or it is refused.
    if let Ok(mut frontend) = daemon.frontend("more", &FrontendSpec::default()) {
        Single::new(&mut frontend)?.exercise(frontend.queue(0), 1)?;
        frontend.disconnect()?;
    }
    daemon.is_alive()?;
    let most = group.get("memory.max_usage_in_bytes")?;
    println!("h11: it had {has} bytes, might have {limit}, and had {most} at most");
    finish(daemon, loads)
}

/// What needs no io_uring is served, and the file is refused with these words.
fn only_files_are_refused(mut daemon: Daemon, words: &[&str]) -> Result<()> {
    let mut frontend = daemon.frontend("memory", &FrontendSpec::default())?;
    Single::new(&mut frontend)?.exercise(frontend.queue(0), 1)?;
    frontend.disconnect()?;
    let shown = daemon.ask("show file")?;
    ensure!(shown["state"] == "failed", "{shown}");
    let problem = shown["problem"].as_str().unwrap_or_default();
    let said = daemon.refuses("disk add other --path images/other.raw --size 1M")?;
    for word in words {
        ensure!(problem.contains(word), "{problem:?} lacks {word:?}");
        ensure!(said.contains(word), "{said:?} lacks {word:?}");
    }
    daemon.is_alive()?;
    daemon.stop()
}

/// O14: where no io_uring may be made, files are refused with what to do, and the rest is served.
#[test]
fn o14_without_io_uring_files_are_refused_and_the_rest_is_served() -> Result<()> {
    let program = [env!("CARGO_BIN_EXE_without_io_uring")];
    let daemon = Daemon::with("o14-uring", DISKS).through(&program).start()?;
    let words = ["cannot make an io_uring", "Operation not permitted", "kernel.io_uring_disabled"];
    only_files_are_refused(daemon, &words)
}

/// O14: no memory may be locked, and the user has no rights. Before Linux 5.12 and since 6.14 an io_uring
/// takes such memory; between, files are served, too.
#[test]
fn o14_without_memory_to_lock_files_are_refused_or_served_and_the_rest_is_served() -> Result<()> {
    let daemon = Daemon::with("o14-memlock", DISKS).as_nobody().limit("memlock", 0).start()?;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.pid()))?;
    let line = limits.lines().find(|line| line.starts_with("Max locked memory"));
    let line = line.with_context(|| limits.clone())?;
    ensure!(line.split_whitespace().nth(3) == Some("0"), "{line}");
    if daemon.shown("file", "state")? == "failed" {
        return only_files_are_refused(daemon, &["cannot make an io_uring", "LimitMEMLOCK"]);
    }
    let loads = loads(&daemon)?;
    finish(daemon, loads)
}
