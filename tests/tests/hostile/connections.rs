//! Rows E32 to E35 and E39 and promise P22 of the project's list: front-ends that come and go at every
//! moment, keep what they were given, use up descriptors, or find odd things where a socket should be.
//! Attacks 3, 7 and 12 of `docs/decisions/0004-known-attacks.md`.
//!
//! What a front-end does by itself is in `tests::misdeeds::coming`; here is what takes counting over many
//! turns, a limit that is set, or an operator.

#![expect(clippy::disallowed_macros, reason = "what was measured is for the record")]

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use testing::bed::tests_all;
use testing::daemon::{Daemon, await_that};
use tests::door::Door;
use tests::misdeeds::MEMORY;
use tests::misdeeds::coming::{come_and_go, send, whole_session};
use tests::neighbour::Neighbour;
use tests::raw_front_end::Raw;

tests::misdeeds!(coming tests);

/// P22 and S5: at each of 20 stages, hundreds of times (100,000 with `--all`), everything is given back.
#[test]
fn p22_comes_and_goes_at_each_of_20_stages() -> Result<()> {
    let mut bed = Neighbour::start("p22", MEMORY)?;
    let turns: u32 = if tests_all() { 100_000 } else { 500 };
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
            held.extend(come(&bed.door())?);
        }
        // However slow this machine is: until then descriptors are short for somebody.
        await_that("somebody to be refused", || {
            if spare > 0 {
                let closed = held.iter().map(is_closed).collect::<Result<Vec<bool>>>()?;
                return Ok(held.len() < 12 || closed.contains(&true));
            }
            // The log has so many lines a second for each device.
            held.truncate(12);
            held.extend(come(&bed.door())?);
            let log = std::fs::read_to_string(bed.daemon.dir().join("log"))?;
            Ok(SHORT.iter().any(|words| log.contains(words)))
        })
        .with_context(|| format!("{spare} descriptors to spare"))?;
        prlimit(pid, Resource::Nofile, before)?;
        drop(held);
        // Those who could not be accepted are refused or come in now; the neighbour goes on.
        await_that("a front-end to be accepted again", || Ok(bed.door().raw().is_ok()))
            .with_context(|| format!("{spare} descriptors to spare"))?;
        bed.is_unharmed()?;
    }
    bed.finish()
}

/// What the log says of who is refused for want of descriptors.
const SHORT: [&str; 3] = ["none left to give", "raise LimitNOFILE", "could not be accepted"];

/// A front-end that says all that one says, as far as it is heard.
fn come(door: &Door<'_>) -> Result<Option<Raw>> {
    let Ok(raw) = Raw::connect(&door.socket()) else { return Ok(None) };
    for step in &whole_session()? {
        if send(&raw, step, step.0.len()).is_err() {
            break;
        }
    }
    Ok(Some(raw))
}

/// Whether the daemon has ended it.
fn is_closed(raw: &Raw) -> Result<bool> {
    let mut stream = raw.stream();
    stream.set_nonblocking(true)?;
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return Ok(true),
            Ok(_) => {}
            Err(error) => return Ok(error.kind() != ErrorKind::WouldBlock),
        }
    }
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

/// Numbers of the daemon's descriptors at this socket: those that listen, and those of connections.
fn numbers(daemon: &Daemon, id: &str) -> Result<(Vec<u32>, Vec<u32>)> {
    let path = daemon.socket(id);
    let path = path.to_str().context("text")?;
    // Number: references, protocol, flags, type, state, inode, path. `__SO_ACCEPTCON` listens.
    let all = std::fs::read_to_string(format!("/proc/{}/net/unix", daemon.pid()))?;
    let of_path = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_path: Vec<(String, bool)> = of_path
        .filter(|words| words.get(7) == Some(&path))
        .map(|words| (format!("socket:[{}]", words[6]), words[3] == "00010000"))
        .collect();
    let (mut listen, mut connected) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(format!("/proc/{}/fd", daemon.pid()))? {
        let entry = entry?;
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let Some((_, listens)) = of_path.iter().find(|(name, _)| target.as_os_str() == &**name)
        else {
            continue;
        };
        let number = entry.file_name().to_str().context("text")?.parse()?;
        if *listens { listen.push(number) } else { connected.push(number) }
    }
    Ok((listen, connected))
}

/// Cloud Hypervisor comes again at once, and only once if it is taken in by a process that dies.
#[test]
fn a_daemon_that_is_killed_stops_to_listen_before_its_front_ends_notice() -> Result<()> {
    let disk = format!("[[disk]]\nid = \"good\"\n{MEMORY}\n");
    let mut daemon = Daemon::start("listens-first", &disk)?;
    for round in 0..2 {
        let held = (0..3).map(|_| daemon.connect("good"));
        let _held = held.collect::<Result<Vec<_>>>()?;
        await_that("three connections", || Ok(numbers(&daemon, "good")?.1.len() == 3))?;
        let (listen, connected) = numbers(&daemon, "good")?;
        // The highest are closed first.
        ensure!(
            listen.len() == 1 && connected.iter().all(|number| *number < listen[0]),
            "round {round}: {listen:?} listen, {connected:?} are connected"
        );
        daemon.upgrade()?;
    }
    for attempt in 0..if tests_all() { 300 } else { 10 } {
        let mut held = daemon.connect("good")?;
        await_that("a connection", || Ok(numbers(&daemon, "good")?.1.len() == 1))?;
        let path = daemon.socket("good");
        let again = std::thread::spawn(move || {
            // Nothing comes but the end.
            let _ = held.read(&mut [0]);
            UnixStream::connect(path).map(drop)
        });
        daemon.kill()?;
        let again = again.join().map_err(|_| anyhow::anyhow!("the front-end"))?;
        ensure!(
            again.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused),
            "attempt {attempt}: {again:?}"
        );
        daemon.start_again()?;
    }
    daemon.is_alive()
}
