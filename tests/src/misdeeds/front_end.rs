//! Front-ends that break the protocol's form or send what no ring, memory or feature can be: each
//! is refused, and its neighbour on the same sidecore notices nothing.
//!
//! The numbers are those of `docs/security.md`, section "Front-ends". Not here: what a
//! connection does over time (`connection`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use crate::door::Door;
use crate::raw_front_end::{
    Answer, NEED_REPLY, Raw, VERSION, message, request, ring_addresses, ring_state, sealed_memory,
    signal, table, words,
};
use anyhow::{Context, Result, ensure};
use testing::frontend::FrontendSpec;
use testing::slots::{Kind, Slots};

/// `VIRTIO_F_RING_RESET` (VIRTIO 1.3, 6).
const VIRTIO_F_RING_RESET: u32 = 40;
const SET_CONFIG: u32 = 25;
const MEMORY: u64 = 1 << 20;
const BASE: u64 = 1 << 32;

/// Messages with a payload of one fixed length, and how many descriptors they bring.
const FIXED: [(u32, usize, usize); 18] = [
    (request::GET_FEATURES, 0, 0),
    (request::SET_FEATURES, 8, 0),
    (request::SET_OWNER, 0, 0),
    (request::SET_LOG_BASE, 16, 1),
    (request::SET_VRING_NUM, 8, 0),
    (request::SET_VRING_ADDR, 40, 0),
    (request::SET_VRING_BASE, 8, 0),
    (request::GET_VRING_BASE, 8, 0),
    (request::SET_VRING_KICK, 8, 1),
    (request::SET_VRING_CALL, 8, 1),
    (request::SET_PROTOCOL_FEATURES, 8, 0),
    (request::SET_VRING_ENABLE, 8, 0),
    (request::SEND_RARP, 8, 0),
    (request::NET_SET_MTU, 8, 0),
    (request::SET_BACKEND_REQ_FD, 0, 1),
    (request::GET_INFLIGHT_FD, 20, 0),
    (request::ADD_MEM_REG, 40, 1),
    (request::REM_MEM_REG, 40, 0),
];

/// One message to a fresh connection, which must be refused.
fn refused(door: &Door<'_>, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut raw = door.raw()?;
    let answer = raw.tell(request, payload, fds)?;
    ensure!(answer.is_refusal(), "message {request} with {payload:x?}: {answer:x?}");
    Ok(())
}

/// Refused, and the connection goes on.
fn nak(raw: &mut Raw, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let answer = raw.tell(request, payload, fds)?;
    ensure!(answer.is_nak(), "message {request} with {payload:x?}: {answer:x?}");
    Ok(())
}

/// Bytes after which the connection must be closed.
fn closes(door: &Door<'_>, bytes: &[u8]) -> Result<()> {
    let mut raw = door.raw()?;
    raw.send_bytes(bytes, &[])?;
    let answer = raw.answer()?;
    ensure!(answer == Answer::Closed, "{bytes:x?}: {answer:x?}");
    Ok(())
}

pub fn e3_payloads_of_a_wrong_size(door: &Door<'_>) -> Result<()> {
    let fd = sealed_memory(MEMORY)?;
    for (request, right, fds) in FIXED {
        for size in [0, 1, right.saturating_sub(1), right + 1, 4096] {
            if size != right {
                refused(door, request, &vec![0; size], &[fd.as_fd()][..fds])
                    .with_context(|| format!("{size} bytes"))?;
            }
        }
    }
    // Sizes that are only claimed: nothing is waited for and nothing allocated.
    for size in [4097, 1 << 20, 1 << 31, u32::MAX] {
        closes(door, &message(request::SET_FEATURES, VERSION, size, &[]))?;
    }
    door.is_unharmed()
}

pub fn e4_flags_that_no_request_has(door: &Door<'_>) -> Result<()> {
    for flags in [0, 2, 3, VERSION | 4, VERSION | 4 | NEED_REPLY, VERSION | 16, 0xffff_fff1] {
        closes(door, &message(request::GET_FEATURES, flags, 0, &[]))?;
    }
    Ok(())
}

pub fn e5_messages_that_are_not_known(door: &Door<'_>) -> Result<()> {
    let mut raw = door.raw()?;
    for unknown in [0, 22, 23, 26, 27, 28, 30, 33, 35, 39, 40, 41, 45, 100, u32::MAX] {
        nak(&mut raw, unknown, &[], &[])?;
        nak(&mut raw, unknown, &[0xff; 64], &[])?;
        closes(door, &message(unknown, VERSION, 0, &[]))?;
    }
    // Messages for network cards, which a disk does not offer, are as foreign to it.
    for (foreign, value) in
        [(request::SEND_RARP, 0x0102_0304_0502_u64), (request::NET_SET_MTU, 1500)]
    {
        nak(&mut raw, foreign, &value.to_le_bytes(), &[])?;
        closes(door, &message(foreign, VERSION, 8, &value.to_le_bytes()))?;
    }
    drop(raw);
    Ok(())
}

pub fn e6_too_many_and_too_few_descriptors(door: &Door<'_>) -> Result<()> {
    let fd = sealed_memory(MEMORY)?;
    let many: Vec<BorrowedFd<'_>> = vec![fd.as_fd(); 64];
    for (request, size, right) in FIXED {
        // 33 and more are above what any message has.
        for count in [0, 1, 2, 8, 28, 32, 33, 64] {
            // A descriptor with REM_MEM_REG is closed unused, as older front-ends send one.
            let may = request == request::REM_MEM_REG && count == 1;
            if count != right && !may {
                refused(door, request, &vec![0; size], &many[..count])
                    .with_context(|| format!("{count} descriptors"))?;
            }
        }
    }
    let two = table(&[[0, 4096, 0, 0], [4096, 4096, 4096, 4096]]);
    for count in [0, 1, 3, 33] {
        refused(door, request::SET_MEM_TABLE, &two, &many[..count])?;
    }
    door.is_unharmed()
}

/// Descriptors that are neither an eventfd nor memory.
fn odd_descriptors(door: &Door<'_>) -> Result<Vec<(&'static str, OwnedFd)>> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let dir = door.daemon.dir();
    let open = |path: &std::path::Path, flags| openat(CWD, path, flags, Mode::empty());
    let (reader, writer) = rustix::pipe::pipe()?;
    // Of the last time.
    let listener = dir.join("odd.sock");
    drop(std::fs::remove_file(&listener));
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)?;
    Ok(vec![
        ("directory", open(dir, OFlags::RDONLY | OFlags::DIRECTORY)?),
        ("O_PATH", open(&dir.join("sidecore.toml"), OFlags::PATH)?),
        ("file", open(&dir.join("sidecore.toml"), OFlags::RDONLY)?),
        ("/dev/zero", open("/dev/zero".as_ref(), OFlags::RDWR)?),
        ("/dev/null", open("/dev/null".as_ref(), OFlags::RDWR)?),
        ("pipe to read", reader),
        ("pipe to write", writer),
        ("epoll", epoll),
        ("socket", UnixStream::pair()?.0.into()),
        ("listener", UnixListener::bind(listener)?.into()),
        ("vhost socket", UnixStream::connect(door.socket())?.into()),
    ])
}

pub fn e7_descriptors_of_another_kind(door: &Door<'_>) -> Result<()> {
    let mut odd = odd_descriptors(door)?;
    odd.push(("memory", sealed_memory(MEMORY)?));
    let raw = door.raw()?;
    // Itself: a connection that would keep itself open.
    odd.push(("itself", raw.stream().as_fd().try_clone_to_owned()?));
    let mut raw = raw;
    for (name, fd) in &odd {
        let name = || name.to_string();
        for signal in [request::SET_VRING_KICK, request::SET_VRING_CALL, request::SET_VRING_ERR] {
            nak(&mut raw, signal, &words(&[0]), &[fd.as_fd()]).with_context(name)?;
        }
    }
    let is_memory = odd.iter().position(|(name, _)| *name == "memory");
    drop(is_memory.map(|at| odd.swap_remove(at)));
    odd.push(("eventfd", signal()?));
    let region = [BASE, MEMORY, BASE, 0];
    let mut padded = words(&[0]);
    padded.extend(words(&region));
    let mut record = words(&[MEMORY, 0]);
    record.extend(ring_state(1 | 64 << 16, 0)[..4].to_vec());
    for (name, fd) in &odd {
        let name = || name.to_string();
        for (request, payload) in [
            (request::SET_MEM_TABLE, &table(&[region])),
            (request::ADD_MEM_REG, &padded),
            (request::SET_LOG_BASE, &words(&[MEMORY, 0])),
            (request::SET_INFLIGHT_FD, &record),
        ] {
            nak(&mut raw, request, payload, &[fd.as_fd()]).with_context(name)?;
        }
    }
    drop((raw, odd));
    door.is_unharmed()
}

pub fn e9_queues_that_do_not_exist(door: &Door<'_>) -> Result<()> {
    let mut raw = door.raw()?;
    let fd = signal()?;
    for queue in [2, 64, 255, 256, 0x10000, 0x8000_0000, u32::MAX] {
        for request in [
            request::SET_VRING_NUM,
            request::SET_VRING_BASE,
            request::GET_VRING_BASE,
            request::SET_VRING_ENABLE,
        ] {
            nak(&mut raw, request, &ring_state(queue, 1), &[])?;
        }
        nak(&mut raw, request::SET_VRING_ADDR, &ring_addresses(queue, [0; 3]), &[])?;
    }
    for queue in [2, 64, 255, 1 << 9, 1 << 16, 1 << 32, 1 << 63 | 1] {
        for request in [request::SET_VRING_KICK, request::SET_VRING_CALL, request::SET_VRING_ERR] {
            nak(&mut raw, request, &words(&[queue]), &[fd.as_fd()])?;
        }
    }
    drop(raw);
    Ok(())
}

pub fn e10_ring_sizes_that_no_ring_has(door: &Door<'_>) -> Result<()> {
    let mut raw = door.raw()?;
    for size in [0, 3, 0x7fff, 0x8001, 65535, 0x10000, 0x10001, 1 << 31, u32::MAX] {
        nak(&mut raw, request::SET_VRING_NUM, &ring_state(0, size), &[])?;
    }
    let packed = 1 << 34;
    let mut packed = Raw::negotiated(&door.socket(), packed)?;
    for size in [0, 0x8001, 65535, 0x10000, u32::MAX] {
        nak(&mut packed, request::SET_VRING_NUM, &ring_state(0, size), &[])?;
    }
    drop((raw, packed));
    Ok(())
}

pub fn e16_memory_that_cannot_be(door: &Door<'_>) -> Result<()> {
    let file = sealed_memory(MEMORY)?;
    let good = [BASE, MEMORY / 2, BASE, 0];
    let alone = [
        ("no size", [BASE, 0, BASE, 0]),
        ("guest address wraps", [u64::MAX - 4095, 8192, BASE, 0]),
        ("user address wraps", [BASE, 8192, u64::MAX - 4095, 0]),
        ("offset wraps", [BASE, 8192, BASE, u64::MAX - 4095]),
        ("beyond the file", [BASE, MEMORY + 1, BASE, 0]),
        ("beyond the file by its offset", [BASE, MEMORY, BASE, 4096]),
        ("an offset beyond the file", [BASE, 4096, BASE, MEMORY]),
        ("2^47 bytes", [0, 1 << 47, 0, 0]),
        ("2^64 - 1 bytes", [0, u64::MAX, 0, 0]),
    ];
    let beside = [
        ("the same guest address", [BASE, MEMORY / 2, BASE * 2, 0]),
        ("the same user address", [BASE * 2, MEMORY / 2, BASE, 0]),
        ("one page of both", [BASE + MEMORY / 2 - 4096, 8192, BASE + MEMORY / 2 - 4096, 0]),
    ];
    let mut raw = door.raw()?;
    let fd = file.as_fd();
    nak(&mut raw, request::SET_MEM_TABLE, &table(&[]), &[]).context("no region")?;
    let many: Vec<[u64; 4]> = (0..33).map(|n| [n * 4096, 4096, n * 4096, 0]).collect();
    refused(door, request::SET_MEM_TABLE, &table(&many), &[fd; 33]).context("33 regions")?;
    for (what, region) in alone {
        nak(&mut raw, request::SET_MEM_TABLE, &table(&[region]), &[fd]).context(what)?;
        nak(&mut raw, request::ADD_MEM_REG, &[words(&[0]), words(&region)].concat(), &[fd])
            .context(what)?;
    }
    for (what, region) in beside {
        nak(&mut raw, request::SET_MEM_TABLE, &table(&[good, region]), &[fd, fd]).context(what)?;
    }
    ensure!(raw.tell(request::SET_MEM_TABLE, &table(&[good]), &[fd])?.is_ack());
    for (what, region) in beside {
        nak(&mut raw, request::ADD_MEM_REG, &[words(&[0]), words(&region)].concat(), &[fd])
            .context(what)?;
    }
    drop(raw);
    door.is_unharmed()
}

/// The payload of the two in-flight messages.
fn inflight(size: u64, offset: u64, queues: u16, queue_size: u16) -> Vec<u8> {
    let mut payload = words(&[size, offset]);
    payload.extend(queues.to_ne_bytes());
    payload.extend(queue_size.to_ne_bytes());
    payload
}

pub fn e24_in_flight_records_that_cannot_be(door: &Door<'_>) -> Result<()> {
    let file = sealed_memory(MEMORY)?;
    let fd = file.as_fd();
    let mut raw = door.raw()?;
    for (size, offset, queues, queue_size) in [
        (MEMORY, 0, 65535, 64),
        (MEMORY, 0, 3, 64),
        (MEMORY, 0, 0, 64),
        (MEMORY, 0, 2, 0),
        (MEMORY, 0, 2, 65535),
        (0, 0, 2, 64),
        (64, 0, 2, 64),
        (MEMORY, 0, 2, 32768),
        (MEMORY + 1, 0, 2, 64),
        (MEMORY, 4096, 2, 64),
        (MEMORY, u64::MAX - 4095, 2, 64),
        (u64::MAX, 0, 2, 64),
        (u64::MAX, 1, 2, 64),
    ] {
        let payload = inflight(size, offset, queues, queue_size);
        nak(&mut raw, request::SET_INFLIGHT_FD, &payload, &[fd])?;
    }
    drop(raw);
    door.is_unharmed()
}

pub fn e25_in_flight_records_that_would_take_all_memory(door: &Door<'_>) -> Result<()> {
    for (queues, queue_size) in
        [(65535, 65535), (65535, 32768), (3, 64), (0, 64), (2, 0), (2, 65535)]
    {
        let mut raw = door.raw()?;
        let answer =
            raw.tell(request::GET_INFLIGHT_FD, &inflight(0, 0, queues, queue_size), &[])?;
        let is_empty = matches!(&answer, Answer::Reply(_, payload)
            if payload.len() >= 8 && payload[..8] == [0; 8]);
        ensure!(is_empty || answer.is_refusal(), "{queues} queues of {queue_size}: {answer:x?}");
    }
    door.is_unharmed()
}

pub fn e28_features_that_were_not_offered(door: &Door<'_>) -> Result<()> {
    let mut raw = door.raw()?;
    let offered = raw.ask(request::GET_FEATURES)?;
    let protocol = raw.ask(request::GET_PROTOCOL_FEATURES)?;
    for bit in 0..64 {
        for (request, offered) in
            [(request::SET_FEATURES, offered), (request::SET_PROTOCOL_FEATURES, protocol)]
        {
            // A guest of an earlier version may have taken it, and keeps its device (docs/decisions/0023).
            let is_tolerated = (request, bit) == (request::SET_FEATURES, VIRTIO_F_RING_RESET);
            if offered >> bit & 1 == 0 && !is_tolerated {
                nak(&mut raw, request, &words(&[offered | 1 << bit]), &[])?;
            }
        }
    }
    // It negotiates what there is, after all that.
    ensure!(raw.tell(request::SET_FEATURES, &words(&[1 << 30 | 1 << 32]), &[])?.is_ack());
    drop(raw);
    Ok(())
}

pub fn e21_dirty_logs_that_cannot_be(door: &Door<'_>) -> Result<()> {
    let file = sealed_memory(MEMORY)?;
    let mut raw = door.raw()?;
    for (what, size, offset) in [
        ("no size", 0, 0),
        ("size and offset wrap", u64::MAX, 1),
        ("the offset wraps", 4096, u64::MAX - 4095),
        ("beyond the file", MEMORY + 1, 0),
        ("beyond the file by its offset", MEMORY, 4096),
        ("2^63 bytes", 1 << 63, 0),
    ] {
        nak(&mut raw, request::SET_LOG_BASE, &words(&[size, offset]), &[file.as_fd()])
            .context(what)?;
    }
    // Shorter than memory needs: a bit for each page up to its end.
    let memory = sealed_memory(MEMORY)?;
    let region = table(&[[BASE, MEMORY, BASE, 0]]);
    ensure!(raw.tell(request::SET_MEM_TABLE, &region, &[memory.as_fd()])?.is_ack());
    let needed = (BASE + MEMORY) / 4096 / 8;
    nak(&mut raw, request::SET_LOG_BASE, &words(&[needed - 1, 0]), &[file.as_fd()])
        .context("one byte too short")?;
    raw.send(request::SET_LOG_BASE, VERSION, &words(&[needed, 0]), &[file.as_fd()])?;
    let answer = raw.answer()?;
    ensure!(matches!(answer, Answer::Reply(request::SET_LOG_BASE, _)), "{answer:?}");
    drop(raw);
    door.is_unharmed()
}

/// Offset, size, flags, and as many bytes.
fn config_span(offset: u32, size: u32, flags: u32, bytes: usize) -> Vec<u8> {
    let mut payload: Vec<u8> =
        [offset, size, flags].iter().flat_map(|word| word.to_ne_bytes()).collect();
    payload.resize(payload.len() + bytes, 0x5c);
    payload
}

pub fn e26_parts_of_the_config_space_that_are_not_there(door: &Door<'_>) -> Result<()> {
    for (offset, size, bytes) in [
        (0, 0, 0),
        (0, 257, 257),
        (0, 8, 7),
        (0, 8, 9),
        (0, u32::MAX, 8),
        (u32::MAX, 8, 8),
        (250, 8, 8),
        (256, 1, 1),
    ] {
        let mut raw = door.raw()?;
        raw.send(request::GET_CONFIG, VERSION, &config_span(offset, size, 0, bytes), &[])?;
        let answer = raw.answer()?;
        // An answer without bytes says that there is no such part.
        let empty = answer == Answer::Reply(request::GET_CONFIG, Vec::new());
        ensure!(empty || answer.is_refusal(), "{offset}+{size} of {bytes}: {answer:?}");
    }
    let mut raw = door.raw()?;
    raw.send(request::GET_CONFIG, VERSION, &config_span(0, 60, 0, 60), &[])?;
    let answer = raw.answer()?;
    ensure!(matches!(&answer, Answer::Reply(_, bytes) if bytes.len() == 72), "{answer:?}");
    drop(raw);
    Ok(())
}

pub fn e27_config_space_that_may_only_be_read(door: &Door<'_>) -> Result<()> {
    let mut raw = Raw::negotiated(&door.socket(), 1 << 11)?;
    // Capacity, limits, block size, queues; by a driver, by a migration, and with flags unknown.
    for flags in [0, 1, 2, u32::MAX] {
        for (offset, size) in [(0, 8), (8, 4), (20, 4), (34, 2), (33, 1), (0, 60)] {
            let payload = config_span(offset, size, flags, size as usize);
            nak(&mut raw, SET_CONFIG, &payload, &[])?;
        }
    }
    raw.send(request::GET_CONFIG, VERSION, &config_span(0, 8, 0, 8), &[])?;
    let Answer::Reply(_, bytes) = raw.answer()? else { anyhow::bail!("no capacity") };
    ensure!(bytes[12..] == 8192u64.to_le_bytes(), "the capacity changed: {bytes:?}");
    drop(raw);
    Ok(())
}

/// Row H15: descriptors whose other end is gone in the middle of a call.
pub fn h15_descriptors_whose_front_end_is_gone(door: &Door<'_>) -> Result<()> {
    for turn in 0..100 {
        let spec = FrontendSpec { queues: 2, ..FrontendSpec::default() };
        let mut frontend = door.frontend(&spec)?;
        let slots = Slots::new(frontend.memory(), 1, 4096)?;
        for queue in frontend.queues() {
            slots.write_header(0, Kind::Read, turn % 8 * 8);
            let (buffers, count) = slots.buffers(0, Kind::Read);
            queue.driver.add(&buffers[..count], 0)?;
            queue.driver.publish();
            queue.kick()?;
        }
        // Its eventfds and memory go while it is served and called.
        drop(frontend);
    }
    door.is_unharmed()
}
