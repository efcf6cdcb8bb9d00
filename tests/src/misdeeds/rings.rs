//! Rows E11, E12, E22, E23, E29, E30 and E36 to E38 of `docs/security.md`: front-ends
//! that change what runs, ask for it without end, or speak of what this device is not.
//!
//! What they send before anything runs is in `front_end`.

use std::os::fd::AsFd;

use super::{RingRow, ring};
use crate::door::Door;
use crate::hostile_bed::Expect;
use crate::hostile_guest::{D, DATA, End, Guest, HEADER, Layout, NEXT, STATUS, USER, WRITE};
use crate::raw_front_end::{
    Raw, VERSION, request, ring_addresses, ring_state, sealed_memory, signal, table, words,
};
use anyhow::{Context, Result, ensure};

const RESET_OWNER: u32 = 4;
const RESET_DEVICE: u32 = 34;

/// Offers reads without waiting for them.
fn busy(guest: &mut Guest) -> Result<()> {
    guest.header(0, 0);
    for _ in 0..4 {
        guest.offer(&[
            D(HEADER, 16, NEXT, 1),
            D(DATA, 4096, NEXT | WRITE, 2),
            D(STATUS, 1, WRITE, 0),
        ])?;
    }
    Ok(())
}

pub fn e11_changes_of_a_ring_that_runs() -> RingRow {
    ring(Layout::default(), 10, move |guest, variant| {
        busy(guest)?;
        let [descriptors, driver, device] = guest.places().map(|gpa| gpa + USER);
        let elsewhere = descriptors + 0x1_0000;
        let packed = 1u64 << 34 | 1 << 30 | 1 << 32;
        let (message, payload) = match variant {
            0 => (request::SET_VRING_NUM, ring_state(0, 8)),
            1 => (request::SET_VRING_NUM, ring_state(0, 32768)),
            2 => (request::SET_VRING_NUM, ring_state(0, 1)),
            3 => (request::SET_VRING_BASE, ring_state(0, 0xffff)),
            4 => (request::SET_VRING_BASE, ring_state(0, 7)),
            5 => (request::SET_VRING_ADDR, ring_addresses(0, [elsewhere, device, driver])),
            6 => (request::SET_VRING_ADDR, ring_addresses(0, [descriptors, driver, driver])),
            7 => (request::SET_VRING_ADDR, ring_addresses(0, [0, 0, 0])),
            8 => (request::SET_FEATURES, words(&[packed])),
            _ => (request::SET_VRING_ENABLE, ring_state(0, 0)),
        };
        // Refused, or stopped and applied: never a ring that changes while it is served.
        let answer = guest.raw.tell(message, &payload, &[])?;
        ensure!(answer.is_ack() || answer.is_nak(), "{answer:?}");
        guest.kick()?;
        if variant == 8 {
            let features = 1u64 << 30 | 1 << 32 | Layout::default().features;
            ensure!(guest.raw.tell(request::SET_FEATURES, &words(&[features]), &[])?.is_ack());
        }
        Ok(Expect::Spoiled)
    })
}

pub fn e12_the_same_message_again_and_again(door: &Door<'_>) -> Result<()> {
    let turns = if door.is_long { 1_000_000 } else { 20_000 };
    let mut raw = door.raw()?;
    let (memory, log) = (sealed_memory(1 << 20)?, sealed_memory(1 << 20)?);
    let (_ours, channel) = std::os::unix::net::UnixStream::pair()?;
    let region = table(&[[1 << 32, 1 << 20, 1 << 32, 0]]);
    let mut record = vec![0; 16];
    record.extend(2u16.to_ne_bytes());
    record.extend(64u16.to_ne_bytes());
    let kick = signal()?;
    raw.ask(request::GET_FEATURES)?;
    ensure!(raw.tell(request::SET_MEM_TABLE, &region, &[memory.as_fd()])?.is_ack());
    let before = door.daemon.descriptors()?;
    for turn in 0..turns {
        let answer = match turn % 6 {
            0 => raw.tell(request::SET_VRING_NUM, &ring_state(0, 64), &[])?,
            1 => raw.tell(request::GET_INFLIGHT_FD, &record, &[])?,
            2 => raw.tell(request::SET_LOG_BASE, &words(&[1 << 20, 0]), &[log.as_fd()])?,
            3 => raw.tell(request::SET_MEM_TABLE, &region, &[memory.as_fd()])?,
            4 => raw.tell(request::SET_BACKEND_REQ_FD, &[], &[channel.as_fd()])?,
            _ => raw.tell(request::SET_VRING_KICK, &words(&[0]), &[kick.as_fd()])?,
        };
        ensure!(!answer.is_refusal(), "turn {turn}: {answer:?}");
    }
    // What it holds besides memory and log, which are mapped: channel and kick.
    door.daemon.await_descriptors(before + 3)?;
    let after = door.daemon.descriptors()?;
    let mapped = door.daemon.mappings()?.lines().filter(|line| line.contains("raw-guest")).count();
    ensure!(mapped <= 2, "{mapped} mappings of what was sent again and again");
    door.note(&format!("{turns} messages; {before} descriptors before, {after} after"));
    drop(raw);
    door.is_unharmed()
}

pub fn e22_log_address_of_a_ring_beyond_the_log() -> RingRow {
    ring(Layout::default(), 2, move |guest, variant| {
        let log = sealed_memory(1 << 20)?;
        guest.raw.send(request::SET_LOG_BASE, VERSION, &words(&[1 << 20, 0]), &[log.as_fd()])?;
        guest.raw.answer()?;
        let features = 1u64 << 26 | 1 << 30 | 1 << 32;
        guest.raw.tell(request::SET_FEATURES, &words(&[features]), &[])?;
        let [descriptors, driver, device] = guest.places().map(|gpa| gpa + USER);
        // Flag 0 of the ring's addresses asks for the used ring to be logged at the last one.
        let mut payload = ring_state(0, 1);
        let beyond = [u64::MAX, 1 << 50][variant];
        payload.extend(words(&[descriptors, device, driver, beyond]));
        let answer = guest.raw.tell(request::SET_VRING_ADDR, &payload, &[])?;
        ensure!(answer.is_ack() || answer.is_nak(), "{answer:?}");
        // Refused, or left aside: what is written is logged by where the guest sees it.
        busy(guest)?;
        guest.stop()?;
        guest.raw.tell(request::SET_FEATURES, &words(&[1 << 30 | 1 << 32]), &[])?;
        guest.set_up()?;
        guest.settle()?;
        guest.honest(0, 0, 512)?;
        Ok(Expect::Spoiled)
    })
}

pub fn e23_logging_without_a_log_and_with_one_that_is_too_short() -> RingRow {
    ring(Layout::default(), 2, move |guest, variant| {
        if variant == 1 {
            // One byte: eight pages, and memory begins a million pages further up.
            let short = sealed_memory(4096)?;
            guest.raw.send(
                request::SET_LOG_BASE,
                VERSION | 8,
                &words(&[1, 0]),
                &[short.as_fd()],
            )?;
            let answer = guest.raw.answer()?;
            ensure!(answer.is_refusal(), "{answer:?}");
        }
        let features = 1u64 << 26 | 1 << 30 | 1 << 32;
        ensure!(guest.raw.tell(request::SET_FEATURES, &words(&[features]), &[])?.is_ack());
        // Lengths that lie, while it would be logging.
        guest.set_up()?;
        guest.settle()?;
        guest.header(0, 0);
        guest.offer(&[
            D(HEADER, 16, NEXT, 1),
            D(DATA, u32::MAX, NEXT | WRITE, 2),
            D(STATUS, 1, WRITE, 0),
        ])?;
        ensure!(guest.end()? == End::Broken, "a length that lies");
        Ok(Expect::Spoiled)
    })
}

pub fn e29_without_bit_30_rings_are_enabled_at_once(door: &Door<'_>) -> Result<()> {
    let mut raw = Raw::connect(&door.socket())?;
    let base = 1u64 << 32;
    let memory = sealed_memory(1 << 20)?;
    let (kick, number) = (signal()?, words(&[0]));
    raw.send(request::SET_OWNER, VERSION, &[], &[])?;
    raw.send(request::SET_FEATURES, VERSION, &words(&[1 << 32]), &[])?;
    let region = table(&[[base, 1 << 20, base, 0]]);
    raw.send(request::SET_MEM_TABLE, VERSION, &region, &[memory.as_fd()])?;
    raw.send(request::SET_VRING_NUM, VERSION, &ring_state(0, 16), &[])?;
    let addresses = ring_addresses(0, [base, base + 0x2000, base + 0x1000]);
    raw.send(request::SET_VRING_ADDR, VERSION, &addresses, &[])?;
    raw.send(request::SET_VRING_KICK, VERSION, &number, &[kick.as_fd()])?;
    raw.ask(request::GET_FEATURES)?;
    ensure!(door.served()? == 1, "no SET_VRING_ENABLE is sent by such a front-end");
    drop(raw);
    Ok(())
}

pub fn e30_owner_and_resets_in_the_middle_of_requests() -> RingRow {
    ring(Layout::default(), 4, move |guest, variant| {
        busy(guest)?;
        let message = [RESET_OWNER, request::SET_OWNER, RESET_DEVICE, RESET_DEVICE][variant];
        let answer = guest.raw.tell(message, &[], &[])?;
        ensure!(answer.is_ack() || answer.is_nak(), "{answer:?}");
        if message == RESET_DEVICE && answer.is_ack() {
            // After the reply nothing of it moves any more.
            let before = guest.get(guest.places()[2], 256);
            guest.kick()?;
            testing::daemon::pause(std::time::Duration::from_micros(500));
            ensure!(guest.get(guest.places()[2], 256) == before, "a stale completion");
        }
        Ok(Expect::Spoiled)
    })
}

pub fn e36_messages_of_other_devices(door: &Door<'_>) -> Result<()> {
    // Number, payload, descriptors: VRING_ENDIAN, RARP, MTU, crypto, GPU, status, postcopy.
    let messages: [(u32, usize, usize); 12] = [
        (23, 8, 0),
        (19, 8, 0),
        (20, 8, 0),
        (26, 64, 0),
        (27, 8, 0),
        (33, 0, 1),
        (39, 8, 0),
        (40, 0, 0),
        (28, 0, 0),
        (29, 0, 0),
        (30, 0, 0),
        (41, 0, 0),
    ];
    let mut raw = door.raw()?;
    let fd = sealed_memory(4096)?;
    for fill in [0u8, 0xff] {
        for (number, len, fds) in messages {
            let answer = raw.tell(number, &vec![fill; len], &[fd.as_fd()][..fds])?;
            ensure!(answer.is_nak(), "message {number}: {answer:?}");
        }
    }
    // It goes on.
    ensure!(raw.tell(request::SET_OWNER, &[], &[])?.is_ack());
    drop(raw);
    door.is_unharmed()
}

pub fn e37_device_state_is_not_there(door: &Door<'_>) -> Result<()> {
    let mut raw = door.raw()?;
    let (reader, writer) = rustix::pipe::pipe()?;
    for (direction, phase) in [(0u32, 0u32), (1, 0), (2, 7), (u32::MAX, u32::MAX)] {
        for fd in [&reader, &writer] {
            let answer = raw.tell(42, &ring_state(direction, phase), &[fd.as_fd()])?;
            ensure!(answer.is_refusal(), "{answer:?}");
        }
        ensure!(raw.tell(43, &[], &[])?.is_refusal());
    }
    drop((raw, writer));
    // Our end is the last one: the daemon has closed what it was given.
    let mut byte = [0];
    ensure!(rustix::io::read(&reader, &mut byte)? == 0, "a descriptor was kept");
    door.is_unharmed()
}

pub fn e38_iotlb_messages(door: &Door<'_>) -> Result<()> {
    let mut raw = door.raw()?;
    // iova, size, user address, permission and type.
    for (iova, size, user, kind) in [
        (0, 4096, 0, 0x0203u64),
        (u64::MAX, u64::MAX, u64::MAX, 0x0203),
        (1 << 32, 1 << 20, 1 << 32, 0x0200),
        (0, 0, 0, 0x0300),
        (0, 4096, 0, 0xffff),
    ] {
        let answer = raw.tell(22, &words(&[iova, size, user, kind]), &[])?;
        ensure!(answer.is_nak(), "{answer:?}");
    }
    drop(raw);
    door.is_unharmed()
}

/// Attacks 6 of `docs/decisions/0004-known-attacks.md`: measured, not repelled.
pub fn attack_06_call_descriptor_watched_by_very_many(door: &Door<'_>) -> Result<()> {
    use rustix::event::epoll;
    let mut guest = door.guest(Layout::default())?;
    let call = guest.signals()[1];
    let mut sets = Vec::new();
    for number in 0..2_000 {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(number);
        epoll::add(&set, call, data, epoll::EventFlags::IN).context("watching")?;
        sets.push(set);
    }
    let start = testing::clock::now_ns();
    for _ in 0..200 {
        guest.honest(0, 0, 512)?;
    }
    let each = (testing::clock::now_ns() - start) / 200;
    door.note(&format!(
        "with {} sets that watch its call descriptor, a request of that guest takes {each} ns; each \
         call wakes them all in the sidecore",
        sets.len()
    ));
    drop((guest, sets));
    Ok(())
}
