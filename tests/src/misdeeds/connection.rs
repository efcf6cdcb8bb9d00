//! Front-ends that speak in the wrong order, stop speaking, do not listen, or come by the hundred.
//!
//! What is wrong in one message is in `front_end`.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::door::Door;
use crate::raw_front_end::{
    Answer, NEED_REPLY, Raw, VERSION, message, request, ring_addresses, ring_state, sealed_memory,
    signal, table, words,
};
use anyhow::{Context, Result, ensure};
use testing::frontend::FrontendSpec;
use testing::verified::Load;

const MEMORY: u64 = 1 << 20;
const BASE: u64 = 1 << 32;
const RING: [u64; 3] = [BASE, BASE + 0x2000, BASE + 0x1000];

/// One message of a start, as it must be.
struct Step {
    request: u32,
    payload: Vec<u8>,
    fd: Option<OwnedFd>,
}

impl Step {
    fn send(&self, raw: &Raw, flags: u32) -> Result<()> {
        let fds: Vec<_> = self.fd.iter().map(AsFd::as_fd).collect();
        raw.send(self.request, flags, &self.payload, &fds)
    }

    fn tell(&self, raw: &mut Raw) -> Result<Answer> {
        self.send(raw, VERSION | NEED_REPLY)?;
        raw.answer().with_context(|| format!("message {}", self.request))
    }
}

/// What makes queue 0 run, after features were negotiated.
fn start_steps() -> Result<Vec<Step>> {
    let step = |request, payload, fd| Step { request, payload, fd };
    let region = [BASE, MEMORY, BASE, 0];
    Ok(vec![
        step(request::SET_MEM_TABLE, table(&[region]), Some(sealed_memory(MEMORY)?)),
        step(request::SET_VRING_NUM, ring_state(0, 64), None),
        step(request::SET_VRING_ADDR, ring_addresses(0, RING), None),
        step(request::SET_VRING_KICK, words(&[0]), Some(signal()?)),
        step(request::SET_VRING_ENABLE, ring_state(0, 1), None),
    ])
}

pub fn e1_a_message_that_does_not_end(door: &Door<'_>) -> Result<()> {
    let whole = message(request::SET_FEATURES, VERSION, 8, &[0; 8]);
    let connections: Vec<Raw> = [1, 11, 12, 19]
        .into_iter()
        .map(|len| {
            let raw = Raw::connect(&door.socket())?;
            raw.send_bytes(&whole[..len], &[])?;
            Ok(raw)
        })
        .collect::<Result<_>>()?;
    for mut raw in connections {
        ensure!(raw.answer()? == Answer::Closed, "within a minute");
    }
    door.is_unharmed()
}

pub fn e2_messages_in_pieces_and_in_heaps(door: &Door<'_>) -> Result<()> {
    let mut raw = Raw::connect(&door.socket())?;
    let ask = message(request::GET_FEATURES, VERSION, 0, &[]);
    for byte in &ask {
        raw.send_bytes(std::slice::from_ref(byte), &[])?;
    }
    let first = raw.answer()?;
    ensure!(matches!(first, Answer::Reply(request::GET_FEATURES, _)), "{first:?}");
    raw.send_bytes(&ask.repeat(40), &[])?;
    for _ in 0..40 {
        ensure!(raw.answer()? == first);
    }
    drop(raw);
    Ok(())
}

pub fn e13_rings_that_are_not_in_memory(door: &Door<'_>) -> Result<()> {
    let [descriptors, used, available] = RING;
    let end = BASE + MEMORY;
    for (what, ring) in [
        ("unmapped descriptors", [end, used, available]),
        ("unmapped used ring", [descriptors, 0x1000, available]),
        ("unmapped available ring", [descriptors, used, end]),
        ("descriptors beyond the end", [end - 64 * 16 + 16, used, available]),
        ("used ring beyond the end", [descriptors, end - 64 * 8, available]),
        ("available ring beyond the end", [descriptors, used, end - 64 * 2]),
        ("before the start", [BASE - 16, used, available]),
        ("wrapping", [u64::MAX - 15, used, available]),
        ("wrapping used ring", [descriptors, u64::MAX - 3, available]),
        ("unaligned descriptors", [descriptors + 8, used, available]),
        ("unaligned used ring", [descriptors, used + 2, available]),
        ("unaligned available ring", [descriptors, used, available + 1]),
    ] {
        let mut raw = door.raw()?;
        let mut refused = false;
        for mut step in start_steps()? {
            if step.request == request::SET_VRING_ADDR {
                step.payload = ring_addresses(0, ring);
            }
            refused |= step.tell(&mut raw)?.is_nak();
        }
        raw.ask(request::GET_FEATURES)?;
        let shown = door.daemon.ask(&format!("show {}", door.disk))?;
        ensure!(shown["queues_attached"] == 0, "{what}: it is served");
        ensure!(shown["problem"].is_string(), "{what}: nobody is told");
        ensure!(refused == what.starts_with("unaligned"), "{what}: refused is {refused}");
        drop(raw);
        door.is_unharmed().context(what)?;
    }
    Ok(())
}

pub fn e14_starts_in_which_something_is_missing_or_late(door: &Door<'_>) -> Result<()> {
    let count = start_steps()?.len();
    for missing in 0..count {
        let mut raw = door.raw()?;
        let mut steps = start_steps()?;
        let late = steps.remove(missing);
        // In the wrong order, too.
        steps.reverse();
        for step in &steps {
            ensure!(step.tell(&mut raw)?.is_ack(), "message {}", step.request);
        }
        raw.ask(request::GET_FEATURES)?;
        ensure!(door.served()? == 0, "served without message {}", late.request);
        ensure!(late.tell(&mut raw)?.is_ack());
        raw.ask(request::GET_FEATURES)?;
        ensure!(door.served()? == 1, "not served after message {}", late.request);
        drop((raw, steps, late));
        door.is_unharmed()?;
    }
    Ok(())
}

pub fn e32_a_front_end_that_goes_at_each_message_and_at_each_byte(door: &Door<'_>) -> Result<()> {
    let count = start_steps()?.len();
    for messages in 0..=count {
        for acknowledged in [false, true] {
            let mut raw = door.raw()?;
            for step in start_steps()?.iter().take(messages) {
                match acknowledged {
                    true => drop(step.tell(&mut raw)?),
                    false => step.send(&raw, VERSION)?,
                }
            }
        }
    }
    door.is_unharmed()?;
    for step in start_steps()? {
        let bytes = message(step.request, VERSION, step.payload.len() as u32, &step.payload);
        for len in 1..bytes.len() {
            let raw = Raw::connect(&door.socket())?;
            let fds: Vec<_> = step.fd.iter().map(AsFd::as_fd).collect();
            raw.send_bytes(&bytes[..len], &fds)?;
        }
    }
    door.is_unharmed()
}

pub fn e33_a_front_end_that_does_not_read_its_replies(door: &Door<'_>) -> Result<()> {
    let raw = door.raw()?;
    let ask = message(request::GET_FEATURES, VERSION, 0, &[]).repeat(16);
    let ended = (0..10_000).find(|_| raw.send_bytes(&ask, &[]).is_err());
    ensure!(ended.is_some(), "160000 questions, and no answer was ever read");
    drop(raw);
    Ok(())
}

pub fn e33_a_front_end_that_does_not_read_its_channel(door: &Door<'_>) -> Result<()> {
    // What the file declares is not resized by a command.
    door.daemon.ask("disk add resized --backend memory --size 4M")?;
    let mut raw = Raw::negotiated(&door.daemon.socket("resized"), 0)?;
    let (_ours, theirs) = UnixStream::pair()?;
    rustix::net::sockopt::set_socket_send_buffer_size(&theirs, 1)?;
    ensure!(raw.tell(request::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()])?.is_ack());
    for turn in 0..120 {
        // Each is a message on the channel, which nobody reads.
        door.daemon.ask(&format!("disk resize resized {}M --force", 4 + turn % 2))?;
    }
    raw.ask(request::GET_FEATURES).context("the session itself goes on")?;
    drop((raw, theirs));
    door.daemon.ask("disk rm resized --force").map(drop)
}

pub fn e34_a_second_front_end_does_not_take_the_disk_away(door: &Door<'_>) -> Result<()> {
    let spec = FrontendSpec { queues: 2, ..FrontendSpec::default() };
    let mut first = door.frontend(&spec)?;
    let (load, _others) = Load::start(&mut first)?;
    for _ in 0..20 {
        let second = door.frontend(&spec);
        ensure!(second.is_err(), "two front-ends run one disk");
        let mut raw = door.raw()?;
        let file = sealed_memory(MEMORY)?;
        let region = table(&[[BASE, MEMORY, BASE, 0]]);
        ensure!(raw.tell(request::SET_MEM_TABLE, &region, &[file.as_fd()])?.is_refusal());
        load.await_requests(20)?;
    }
    load.finish()?;
    drop(first);
    Ok(())
}

pub fn e34_hundreds_of_connections_that_say_nothing(door: &Door<'_>) -> Result<()> {
    let before = door.daemon.descriptors()?;
    let mut connections = Vec::new();
    for number in 0..500 {
        let stream = UnixStream::connect(door.socket());
        connections.push(stream.with_context(|| format!("connection {number}"))?);
    }
    door.daemon.await_descriptors(before + 8).context("too many connections are kept")?;
    // The VMM still gets in.
    let spec = FrontendSpec { queues: 2, ..FrontendSpec::default() };
    let mut frontend = door.frontend(&spec)?;
    let (load, _) = Load::start(&mut frontend)?;
    load.await_requests(50)?;
    load.finish()?;
    drop((connections, frontend));
    door.is_unharmed()
}
