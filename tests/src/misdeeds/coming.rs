//! Rows E32 to E35 of the project's list: front-ends that come and go at every moment,
//! keep what they were given, or close what takes long.
//! Attacks 3, 7 and 12 of `docs/decisions/0004-known-attacks.md`.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::door::Door;
use crate::raw_front_end::{
    Raw, VERSION, message, request, ring_addresses, ring_state, sealed_memory, signal, table, words,
};
use anyhow::{Context, Result, ensure};
use testing::clock::now_ns;
use testing::daemon::await_that;
use testing::frontend::FrontendSpec;
use testing::verified::Load;

const MEMORY: u64 = 1 << 20;
const BASE: u64 = 1 << 32;

/// One message of a whole session, and the descriptor that goes with it.
pub type Step = (Vec<u8>, Option<OwnedFd>);

/// A session as QEMU has it, from the first question to a ring that is stopped again: 20 messages.
pub fn whole_session() -> Result<Vec<Step>> {
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

pub fn send(raw: &Raw, (bytes, fd): &Step, len: usize) -> Result<()> {
    let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
    raw.send_bytes(&bytes[..len], &fds)
}

pub fn e32_goes_after_every_byte_of_a_whole_session(door: &Door<'_>) -> Result<()> {
    let session = whole_session()?;
    let mut went = 0u32;
    for (number, last) in session.iter().enumerate() {
        for len in 1..=last.0.len() {
            let raw = Raw::connect(&door.socket())?;
            for step in &session[..number] {
                send(&raw, step, step.0.len())?;
            }
            send(&raw, last, len)?;
            went += 1;
        }
    }
    door.note(&format!("went at {went} places"));
    door.is_unharmed()
}

pub fn come_and_go(door: &Door<'_>, steps: &[Step], turns: u32) -> Result<()> {
    for turn in 0..turns {
        let raw = Raw::connect(&door.socket())?;
        for step in steps {
            // It may hang up on a session that comes too soon after another.
            if send(&raw, step, step.0.len()).is_err() {
                break;
            }
        }
        if turn % 64 == 63 {
            // Not faster than they are closed, or the kernel's queue is what is tested.
            door.daemon.ask("ls").map(drop)?;
        }
    }
    Ok(())
}

/// Attack 12: replies with descriptors that are never read hold those descriptors.
pub fn e33_replies_with_descriptors_that_are_not_read(door: &Door<'_>) -> Result<()> {
    let before = door.daemon.descriptors()?;
    let raw = door.raw()?;
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
    door.daemon.ask("ls")?;
    let during = door.daemon.descriptors()?;
    door.note(&format!("{during} descriptors while replies are not read, {before} before"));
    ensure!(during <= before + 16, "{during} descriptors, {before} before");
    drop(raw);
    Ok(())
}

/// Attack 12: links that spoke once and stay must not keep the VMM out.
pub fn e34_links_that_spoke_once_and_stay(door: &Door<'_>) -> Result<()> {
    let mut links = Vec::new();
    for _ in 0..8 {
        // They bring no memory and say nothing more.
        if let Ok(mut raw) = Raw::connect(&door.socket())
            && raw.ask(request::GET_FEATURES).is_ok()
        {
            links.push(raw);
        }
    }
    let spec = FrontendSpec { queues: 2, ..FrontendSpec::default() };
    let mut good = None;
    await_that("the VMM to get in", || {
        good = door.frontend(&spec).ok();
        Ok(good.is_some())
    })?;
    let mut good = good.context("no front-end")?;
    let (load, _) = Load::start(&mut good)?;
    load.await_requests(50)?;
    load.finish()?;
    drop((good, links));
    door.is_unharmed()
}

/// Attack 12: start and stop without end costs its own tenant, and nobody's answers.
pub fn e34_starts_and_stops_without_end(door: &Door<'_>) -> Result<()> {
    let mut raw = door.raw()?;
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
            door.daemon.ask("ls")?;
            slowest = slowest.max(now_ns() - asked);
        }
    }
    door.note(&format!("{turns} starts; the slowest `ls` beside them took {slowest} ns"));
    testing::timing::judge(slowest < 2_000_000_000, || "control answers nobody else".to_string())?;
    drop(raw);
    Ok(())
}

/// Attack 3: a descriptor whose last close takes long: a socket that lingers over what was not read.
pub fn attack_03_descriptor_whose_close_waits(door: &Door<'_>) -> Result<()> {
    let mut raw = door.raw()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut slowest = 0;
    for _ in 0..5 {
        let socket = TcpStream::connect(listener.local_addr()?)?;
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(300)))?;
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
        door.daemon.ask("ls")?;
        slowest = slowest.max(now_ns() - asked);
        drop(peer);
    }
    door.note(&format!("control answers after {slowest} ns at most"));
    testing::timing::judge(slowest < 2_000_000_000, || {
        format!("control waited {slowest} ns for a descriptor's close")
    })?;
    drop(raw);
    Ok(())
}

/// Attack 7: refused messages do not fill the log.
pub fn attack_07_flood_of_refused_messages(door: &Door<'_>) -> Result<()> {
    let lines = || {
        let log = std::fs::read_to_string(door.daemon.dir().join("log"))?;
        anyhow::Ok(log.lines().count())
    };
    let (before, start) = (lines()?, now_ns());
    let mut raw = door.raw()?;
    let flood = 20_000;
    for _ in 0..flood {
        ensure!(raw.tell(999, &[], &[])?.is_nak());
    }
    drop(raw);
    let seconds = (now_ns() - start) / 1_000_000_000 + 1;
    let logged = lines()? - before;
    door.note(&format!("{flood} refusals in {seconds} s, {logged} lines in the log"));
    ensure!(logged as u64 <= 12 * seconds + 10, "{logged} lines in {seconds} s");
    Ok(())
}
