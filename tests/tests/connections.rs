//! Rows E32 to E35 and E39 and promise P22 of the project's list: front-ends that come and go at every
//! moment, keep what they were given, use up descriptors, or find odd things where a socket should be.
//! Attacks 3, 7 and 12 of `docs/decisions/0004-known-attacks.md`.

#![expect(clippy::disallowed_macros, reason = "what was measured is for the record")]

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bench::clock::now_ns;
use bench::frontend::FrontendSpec;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tests::daemon::{Daemon, await_that, pause};
use tests::hostile_bed::is_long;
use tests::load::Load;
use tests::neighbour::{BAD, Neighbour};
use tests::raw_front_end::{
    Raw, VERSION, message, request, ring_addresses, ring_state, sealed_memory, signal, table, words,
};

const MEMORY: u64 = 1 << 20;
const BASE: u64 = 1 << 32;

/// One message of a whole session, and the descriptor that goes with it.
type Step = (Vec<u8>, Option<OwnedFd>);

/// A session as QEMU has it, from the first question to a ring that is stopped again: 20 messages.
fn whole_session() -> Result<Vec<Step>> {
    let step =
        |number, payload: &[u8], fd| (message(number, VERSION, payload.len() as u32, payload), fd);
    let mut record = words(&[0, 0]);
    record.extend(2u16.to_ne_bytes());
    record.extend(64u16.to_ne_bytes());
    let region = table(&[[BASE, MEMORY, BASE, 0]]);
    let memory = sealed_memory(MEMORY)?;
    let rings = |queue: u32| {
        let at = BASE + u64::from(queue) * 0x1_0000;
        ring_addresses(queue, [at, at + 0x2000, at + 0x1000])
    };
    let (_, channel) = UnixStream::pair()?;
    Ok(vec![
        step(request::GET_FEATURES, &[], None),
        step(request::GET_PROTOCOL_FEATURES, &[], None),
        step(request::SET_PROTOCOL_FEATURES, &words(&[0xb22b]), None),
        step(request::SET_OWNER, &[], None),
        step(request::SET_BACKEND_REQ_FD, &[], Some(channel.into())),
        step(request::SET_FEATURES, &words(&[1 << 30 | 1 << 32]), None),
        step(request::GET_INFLIGHT_FD, &record, None),
        step(request::SET_MEM_TABLE, &region, Some(memory)),
        step(request::SET_LOG_BASE, &words(&[MEMORY, 0]), Some(sealed_memory(MEMORY)?)),
        step(request::SET_VRING_NUM, &ring_state(0, 64), None),
        step(request::SET_VRING_BASE, &ring_state(0, 0), None),
        step(request::SET_VRING_ADDR, &rings(0), None),
        step(request::SET_VRING_CALL, &words(&[0]), Some(signal()?)),
        step(request::SET_VRING_ERR, &words(&[0]), Some(signal()?)),
        step(request::SET_VRING_KICK, &words(&[0]), Some(signal()?)),
        step(request::SET_VRING_ENABLE, &ring_state(0, 1), None),
        step(request::SET_VRING_NUM, &ring_state(1, 64), None),
        step(request::SET_VRING_ADDR, &rings(1), None),
        step(request::SET_VRING_KICK, &words(&[1]), Some(signal()?)),
        step(request::GET_VRING_BASE, &ring_state(0, 0), None),
    ])
}

fn send(raw: &Raw, (bytes, fd): &Step, len: usize) -> Result<()> {
    let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
    raw.send_bytes(&bytes[..len], &fds)
}

#[test]
fn e32_goes_after_every_byte_of_a_whole_session() -> Result<()> {
    let mut bed = Neighbour::start("e32-bytes")?;
    let session = whole_session()?;
    let mut went = 0u32;
    for (number, last) in session.iter().enumerate() {
        for len in 1..=last.0.len() {
            let raw = Raw::connect(&bed.daemon.socket(BAD))?;
            for step in &session[..number] {
                send(&raw, step, step.0.len())?;
            }
            send(&raw, last, len)?;
            went += 1;
        }
    }
    println!("e32: went at {went} places");
    bed.is_unharmed()?;
    bed.finish()
}

/// P22 and S5: at each of 20 stages, thousands of times, everything is given back.
#[test]
fn p22_comes_and_goes_at_each_of_20_stages() -> Result<()> {
    let mut bed = Neighbour::start("p22")?;
    let turns: u32 = if is_long() { 100_000 } else { 2_000 };
    let session = whole_session()?;
    ensure!(session.len() == 20);
    // Once at each stage, so that what is kept for good is there before it is measured.
    for count in 1..=session.len() {
        come_and_go(&bed, &session[..count], 20)?;
    }
    bed.is_unharmed()?;
    let before = resident_bytes(&bed)?;
    for count in 1..=session.len() {
        come_and_go(&bed, &session[..count], turns)?;
    }
    // Descriptors and mappings are as before, by `is_unharmed`.
    bed.is_unharmed()?;
    let after = resident_bytes(&bed)?;
    println!("p22: {turns} times at 20 stages; {before} bytes resident before, {after} after");
    ensure!(after <= before + (1 << 20), "{before} bytes resident before, {after} after");
    bed.finish()
}

fn come_and_go(bed: &Neighbour, steps: &[Step], turns: u32) -> Result<()> {
    for turn in 0..turns {
        let raw = Raw::connect(&bed.daemon.socket(BAD))?;
        for step in steps {
            // It may hang up on a session that comes too soon after another.
            if send(&raw, step, step.0.len()).is_err() {
                break;
            }
        }
        if turn % 64 == 63 {
            // Not faster than they are closed, or the kernel's queue is what is tested.
            bed.daemon.ask("ls").map(drop)?;
        }
    }
    Ok(())
}

fn resident_bytes(bed: &Neighbour) -> Result<u64> {
    let pid = daemon_pid(bed)?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))?;
    // The neighbour's memory is shared and touched anyway; what grows is the daemon's own.
    let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: u64 = own.context("no RssAnon")?.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

fn daemon_pid(bed: &Neighbour) -> Result<Pid> {
    let stream = UnixStream::connect(bed.daemon.socket(BAD))?;
    Ok(rustix::net::sockopt::socket_peercred(&stream)?.pid)
}

/// Attack 12: replies with descriptors that are never read hold those descriptors.
#[test]
fn e33_replies_with_descriptors_that_are_not_read() -> Result<()> {
    let bed = Neighbour::start("e33-fds")?;
    let before = bed.daemon.descriptors()?;
    let raw = bed.raw()?;
    let mut record = words(&[0, 0]);
    record.extend(2u16.to_ne_bytes());
    record.extend(64u16.to_ne_bytes());
    let ask = message(request::GET_INFLIGHT_FD, VERSION, record.len() as u32, &record);
    let mut ended = false;
    for _ in 0..2_000 {
        ended |= raw.send_bytes(&ask, &[]).is_err();
        if ended {
            break;
        }
    }
    bed.daemon.ask("ls")?;
    let during = bed.daemon.descriptors()?;
    println!("e33: {during} descriptors while replies are not read, {before} before");
    ensure!(during <= before + 16, "{during} descriptors, {before} before");
    drop(raw);
    bed.finish()
}

/// Attack 12: links that spoke once and stay must not keep the VMM out.
#[test]
fn e34_links_that_spoke_once_and_stay() -> Result<()> {
    let mut bed = Neighbour::start("e34-spoke")?;
    let mut links = Vec::new();
    for _ in 0..8 {
        // They bring no memory and say nothing more.
        if let Ok(mut raw) = Raw::connect(&bed.daemon.socket(BAD))
            && raw.ask(request::GET_FEATURES).is_ok()
        {
            links.push(raw);
        }
    }
    let spec = FrontendSpec { queues: 2, ..FrontendSpec::default() };
    let mut good = None;
    await_that(Duration::from_secs(15), "the VMM to get in", || {
        good = bed.daemon.frontend(BAD, &spec).ok();
        Ok(good.is_some())
    })?;
    let mut good = good.context("no front-end")?;
    let (load, _) = Load::start(&mut good)?;
    load.await_requests(50)?;
    load.finish()?;
    drop((good, links));
    bed.is_unharmed()?;
    bed.finish()
}

/// Attack 12: start and stop without end costs its own tenant, and nobody's answers.
#[test]
fn e34_starts_and_stops_without_end() -> Result<()> {
    let bed = Neighbour::start("e34-starts")?;
    let mut raw = bed.raw()?;
    let file = sealed_memory(MEMORY)?;
    let region = table(&[[BASE, MEMORY, BASE, 0]]);
    ensure!(raw.tell(request::SET_MEM_TABLE, &region, &[file.as_fd()])?.is_ack());
    let kick = signal()?;
    let rings = ring_addresses(0, [BASE, BASE + 0x2000, BASE + 0x1000]);
    let (start, mut turns, mut slowest) = (now_ns(), 0, 0);
    while now_ns() - start < 500_000_000 {
        raw.send(request::SET_VRING_NUM, VERSION, &ring_state(0, 64), &[])?;
        raw.send(request::SET_VRING_ADDR, VERSION, &rings, &[])?;
        raw.send(request::SET_VRING_KICK, VERSION, &words(&[0]), &[kick.as_fd()])?;
        raw.send(request::SET_VRING_ENABLE, VERSION, &ring_state(0, 1), &[])?;
        raw.send(request::GET_VRING_BASE, VERSION, &ring_state(0, 0), &[])?;
        raw.answer()?;
        turns += 1;
        if turns % 200 == 0 {
            let asked = now_ns();
            bed.daemon.ask("ls")?;
            slowest = slowest.max(now_ns() - asked);
        }
    }
    println!("e34: {turns} starts; the slowest `ls` beside them took {slowest} ns");
    ensure!(slowest < 2_000_000_000, "control answers nobody else");
    drop(raw);
    bed.finish()
}

#[test]
fn e35_no_descriptor_is_left() -> Result<()> {
    let mut bed = Neighbour::start("e35")?;
    let pid = daemon_pid(&bed)?;
    bed.is_unharmed()?;
    let open = bed.daemon.descriptors()? as u64;
    let before = descriptor_limit(pid)?;
    for spare in [0, 1, 2, 5] {
        let limit = Rlimit { current: Some(open + spare), maximum: before.maximum };
        prlimit(Some(pid), Resource::Nofile, limit)?;
        let mut held = Vec::new();
        for _ in 0..12 {
            let Ok(raw) = Raw::connect(&bed.daemon.socket(BAD)) else { continue };
            for step in &whole_session()? {
                if send(&raw, step, step.0.len()).is_err() {
                    break;
                }
            }
            held.push(raw);
        }
        pause(Duration::from_millis(30));
        prlimit(Some(pid), Resource::Nofile, before)?;
        drop(held);
        // Those who could not be accepted are refused or come in now; the neighbour goes on.
        await_that(Duration::from_secs(5), "a front-end to be accepted again", || {
            Ok(bed.raw().is_ok())
        })
        .with_context(|| format!("{spare} descriptors to spare"))?;
        bed.is_unharmed()?;
    }
    bed.finish()
}

/// The limit as it is; `prlimit` of another process only sets it here.
fn descriptor_limit(pid: Pid) -> Result<Rlimit> {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", pid.as_raw_nonzero()))?;
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
    let bed = Neighbour::start("e39")?;
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
            bed.daemon.ask("disk rm odd")?;
        }
    }
    let said = bed.daemon.refuses(&format!("{add} {long}"))?;
    ensure!(said.contains("107") || said.contains("long"), "{said}");
    let (what, _) = tried(&bed.daemon, &format!("{add} /proc/odd.sock"))?;
    if what == Tried::Added {
        let shown = bed.daemon.ask("show odd")?;
        ensure!(shown["problem"].is_string(), "a socket in /proc: {shown}");
        bed.daemon.ask("disk rm odd")?;
    }
    let (what, _) =
        tried(&bed.daemon, &format!("{add} {}", dir.join("a-dangling-link").display()))?;
    ensure!(!dir.join("nowhere").exists(), "a link was followed");
    if what == Tried::Added {
        bed.daemon.ask("disk rm odd")?;
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

/// Attack 3: a descriptor whose last close takes long: a socket that lingers over what was not read.
#[test]
fn attack_03_descriptor_whose_close_waits() -> Result<()> {
    let bed = Neighbour::start("attack-03")?;
    let mut raw = bed.raw()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut slowest = 0;
    for _ in 0..5 {
        let socket = TcpStream::connect(listener.local_addr()?)?;
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(20)))?;
        socket.set_nonblocking(true)?;
        // The other side reads nothing, so that this does not leave.
        while rustix::io::write(&socket, &[0; 65536]).is_ok() {}
        socket.set_nonblocking(false)?;
        let (peer, _) = listener.accept()?;
        // With half of a message, so that ours is closed before the daemon may close its own, which is
        // the last one then.
        let kick = message(request::SET_VRING_KICK, VERSION | 8, 8, &words(&[0]));
        raw.send_bytes(&kick[..12], &[socket.as_fd()])?;
        drop(socket);
        let asked = now_ns();
        raw.send_bytes(&kick[12..], &[])?;
        let answer = raw.answer()?;
        ensure!(answer.is_nak(), "{answer:?}");
        bed.daemon.ask("ls")?;
        slowest = slowest.max(now_ns() - asked);
        drop(peer);
    }
    println!("attack 3: control answers after {slowest} ns at most");
    ensure!(slowest < 2_000_000_000, "control waited {slowest} ns for a descriptor's close");
    drop(raw);
    bed.finish()
}

/// Attack 7: refused messages do not fill the log.
#[test]
fn attack_07_flood_of_refused_messages() -> Result<()> {
    let bed = Neighbour::start("attack-07")?;
    let lines = || {
        let log = std::fs::read_to_string(bed.daemon.dir().join("log"))?;
        anyhow::Ok(log.lines().count())
    };
    let (before, start) = (lines()?, now_ns());
    let mut raw = bed.raw()?;
    let flood = 20_000;
    for _ in 0..flood {
        ensure!(raw.tell(999, &[], &[])?.is_nak());
    }
    drop(raw);
    let seconds = (now_ns() - start) / 1_000_000_000 + 1;
    let logged = lines()? - before;
    println!("attack 7: {flood} refusals in {seconds} s, {logged} lines in the log");
    ensure!(logged as u64 <= 12 * seconds + 10, "{logged} lines in {seconds} s");
    bed.finish()
}
