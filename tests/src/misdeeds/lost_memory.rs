//! Row C16, and E8, E17 and E18 of `docs/security.md`: memory that its front-end lends and
//! takes away, and descriptors on which a write would wait. Attacks 1 and 2 of
//! `docs/decisions/0004-known-attacks.md`.
//!
//! None of it may end the daemon or hold its sidecore; the queue or the connection ends, the next
//! front-end is served.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::door::Door;
use crate::hostile_guest::{
    BASE, D, DATA, End, F_INDIRECT, Guest, HEADER, INDIRECT, Layout, MEMORY, NEXT, STATUS, USER,
    WRITE,
};
use crate::raw_front_end::{Raw, request, ring_addresses, sealed_memory, table, words};
use anyhow::{Context, Result, ensure};
use rustix::fs::{
    FallocateFlags, MemfdFlags, OFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_getfl,
    fcntl_setfl, ftruncate, memfd_create,
};
use testing::daemon::{await_that, pause};

/// Where memory without pages is seen by the guest.
pub const LOST: u64 = 1 << 36;
pub const LOST_BYTES: u64 = 4 << 20;

/// Huge pages that are promised and not there: touching one is SIGBUS. `None` where the kernel has
/// no huge pages to promise.
pub fn huge_pages_that_are_not_there() -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let file = memfd_create("raw-huge", flags).context("the kernel has no huge pages")?;
    ftruncate(&file, LOST_BYTES)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    let free = std::fs::read_to_string("/proc/meminfo")?;
    let free = free.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    let free: u64 = free.context("no HugePages_Free")?.trim().parse()?;
    ensure!(free == 0, "{free} huge pages are free, so that these would be there");
    Ok(file)
}

/// One request with a part of it in lost memory.
pub fn request_in(part: usize, kind: u32) -> [D; 3] {
    let place = |of: usize, usual: u64| if part == of { LOST + 512 } else { usual };
    let writes = if kind == 0 { WRITE } else { 0 };
    [
        D(place(0, HEADER), 16, NEXT, 1),
        D(place(1, DATA), 4096, NEXT | writes, 2),
        D(place(2, STATUS), 1, WRITE, 0),
    ]
}

pub fn c16_requests_in_memory_without_pages(door: &Door<'_>) -> Result<()> {
    for (part, kind) in [(0, 0), (1, 0), (1, 1), (2, 0), (2, 4)] {
        let mut guest = door.guest(Layout::default())?;
        let lent = guest.lend(LOST, LOST_BYTES, huge_pages_that_are_not_there()?)?;
        ensure!(lent.is_ack(), "{lent:?}");
        guest.header(kind, 0);
        guest.offer(&request_in(part, kind))?;
        // The queue breaks, or that request ends with an error; never with success.
        let end = guest.end().with_context(|| format!("part {part} of type {kind}"))?;
        let failed = end == End::Broken || guest.status() == 1;
        ensure!(failed, "part {part} of type {kind}: {end:?}, status {}", guest.status());
        drop(guest);
        door.is_unharmed()?;
    }
    Ok(())
}

pub fn c16_requests_in_memory_without_pages_on_a_file(door: &Door<'_>) -> Result<()> {
    c16_requests_in_memory_without_pages(door)
}

pub fn e17_rings_and_tables_in_memory_without_pages(door: &Door<'_>) -> Result<()> {
    for part in 0..4 {
        let layout = Layout { features: F_INDIRECT, ..Layout::default() };
        let mut guest = door.guest(layout)?;
        ensure!(guest.lend(LOST, LOST_BYTES, huge_pages_that_are_not_there()?)?.is_ack());
        guest.header(0, 0);
        if part == 3 {
            guest.offer(&[D(LOST, 48, INDIRECT, 0)])?;
            ensure!(guest.end()? == End::Broken, "a table that is lost");
        } else {
            // The addresses are given raw, since this process may not touch them either.
            let mut places = guest.places();
            places[part] = LOST;
            guest.stop()?;
            let [descriptors, driver, device] = places.map(|gpa| gpa + USER);
            let addresses = ring_addresses(0, [descriptors, device, driver]);
            guest.raw.send(request::SET_VRING_ADDR, 1, &addresses, &[])?;
            guest.start_again()?;
            guest.kick()?;
            guest.kick()?;
            pause(Duration::from_millis(2));
        }
        drop(guest);
        door.is_unharmed().with_context(|| format!("part {part}"))?;
    }
    Ok(())
}

pub fn e17_holes_in_memory_are_zeroes(door: &Door<'_>) -> Result<()> {
    // Of ordinary memory a hole is filled again when it is touched: nothing is lost but the bytes.
    let mut guest = door.guest(Layout::default())?;
    for _ in 0..50 {
        let at = guest.offset(DATA) as u64;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(guest.file(), punch, at, 1 << 20)?;
        guest.honest(1, 0, 4096)?;
        guest.honest(0, 0, 4096)?;
        ensure!(guest.get(DATA, 4096) == [0; 4096]);
    }
    drop(guest);
    Ok(())
}

pub fn e17_memory_that_is_not_sealed_is_refused(door: &Door<'_>) -> Result<()> {
    let unsealed = memfd_create("raw-unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&unsealed, MEMORY)?;
    let short = sealed_memory(MEMORY - 4096)?;
    let grown = memfd_create("raw-grow", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&grown, MEMORY)?;
    fcntl_add_seals(&grown, SealFlags::GROW)?;
    let mut raw = Raw::negotiated(&door.socket(), 0)?;
    for (what, fd) in [("not sealed", &unsealed), ("too short", &short), ("sealed to grow", &grown)]
    {
        let region = [BASE, MEMORY, BASE, 0];
        let answer = raw.tell(request::SET_MEM_TABLE, &table(&[region]), &[fd.as_fd()])?;
        ensure!(answer.is_nak(), "{what}: {answer:?}");
        let padded = [words(&[0]), words(&region)].concat();
        let answer = raw.tell(request::ADD_MEM_REG, &padded, &[fd.as_fd()])?;
        ensure!(answer.is_nak(), "{what}: {answer:?}");
    }
    drop(raw);
    Ok(())
}

pub fn e17_memory_cut_off_where_that_is_allowed(door: &Door<'_>) -> Result<()> {
    for turn in 0..10 {
        let guest = Guest::start_unsealed(&door.socket(), Layout::default())?;
        // From here on this process may not touch it either.
        ftruncate(guest.file(), 0)?;
        for _ in 0..3 {
            guest.kick()?;
        }
        guest.breaks_unseen(60_000).with_context(|| format!("turn {turn}"))?;
        drop(guest);
        door.is_unharmed().with_context(|| format!("turn {turn}"))?;
    }
    Ok(())
}

pub fn e17_in_flight_record_and_log_without_pages(door: &Door<'_>) -> Result<()> {
    for what in ["record", "log"] {
        let mut guest = door.guest(Layout::default())?;
        let lost = huge_pages_that_are_not_there()?;
        let answer = if what == "record" {
            let mut payload = words(&[LOST_BYTES, 0]);
            payload.extend(1u16.to_ne_bytes());
            payload.extend(16u16.to_ne_bytes());
            guest.raw.tell(request::SET_INFLIGHT_FD, &payload, &[lost.as_fd()])?
        } else {
            let payload = words(&[LOST_BYTES, 0]);
            guest.raw.tell(request::SET_LOG_BASE, &payload, &[lost.as_fd()])?
        };
        let taken = !answer.is_refusal();
        if taken {
            let logging = 1u64 << 26 | 1 << 30 | 1 << 32;
            guest.raw.send(request::SET_FEATURES, 1, &logging.to_ne_bytes(), &[])?;
            guest.set_up()?;
            guest.header(0, 0);
            guest.offer(&request_in(9, 0))?;
            // Whatever becomes of it, it is of this device only.
            pause(Duration::from_millis(20));
        }
        door.note(&format!(
            "a {what} without pages is {}",
            if taken { "taken" } else { "refused" }
        ));
        drop(guest);
        door.is_unharmed().context(what)?;
    }
    Ok(())
}

pub fn e18_memory_that_may_only_be_read_or_is_no_memory_file(door: &Door<'_>) -> Result<()> {
    let memory = sealed_memory(MEMORY)?;
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory));
    let read_only = std::fs::File::open(link)?;
    let on_disk = std::fs::File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(door.daemon.dir().join("memory"))?;
    on_disk.set_len(MEMORY)?;
    let mut raw = Raw::negotiated(&door.socket(), 0)?;
    let region = table(&[[BASE, MEMORY, BASE, 0]]);
    for (what, fd) in [("read-only", read_only.as_fd()), ("a file", on_disk.as_fd())] {
        let answer = raw.tell(request::SET_MEM_TABLE, &region, &[fd])?;
        ensure!(answer.is_nak(), "{what}: {answer:?}");
    }
    drop(raw);
    Ok(())
}

/// Makes the counter as large as it can be. The daemon may add to it meanwhile: then again.
fn fill(signal: &OwnedFd) -> Result<()> {
    await_that("the counter to be full", || {
        match rustix::io::read(signal, &mut [0; 8]) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        match rustix::io::write(signal, &(u64::MAX - 1).to_ne_bytes()) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    })
}

pub fn e8_call_descriptor_that_is_full(door: &Door<'_>) -> Result<()> {
    // A full counter is a call that was not taken yet: nothing is lost, nothing waits.
    let mut guest = door.guest(Layout::default())?;
    fill(guest.signals()[1])?;
    for _ in 0..20 {
        guest.honest(0, 0, 512)?;
    }
    drop(guest);
    Ok(())
}

pub fn e8_call_descriptor_on_which_a_write_waits(door: &Door<'_>) -> Result<()> {
    let mut guest = door.guest(Layout::default())?;
    guest.honest(0, 0, 512)?;
    let call = guest.signals()[1];
    // Full first, while a write to it does not wait; then, since the description is shared, what the
    // daemon has set is taken away again.
    fill(call)?;
    fcntl_setfl(call, fcntl_getfl(call)?.difference(OFlags::NONBLOCK))?;
    guest.header(0, 0);
    guest.offer(&request_in(9, 0))?;
    let broken = guest.breaks_unseen(60_000).context("a sidecore waits for a front-end")?;
    door.note(&format!("the {} ended", if broken { "queue" } else { "connection" }));
    door.is_unharmed()?;
    drop(guest);
    Ok(())
}

pub fn e8_kick_descriptor_that_blocks_or_is_full(door: &Door<'_>) -> Result<()> {
    let mut guest = door.guest(Layout::default())?;
    let kick = guest.signals()[0];
    fcntl_setfl(kick, fcntl_getfl(kick)?.difference(OFlags::NONBLOCK))?;
    guest.kick()?;
    guest.honest(0, 0, 512)?;
    // An error descriptor on which a write would wait, of a queue that breaks.
    let err = guest.signals()[2];
    fill(err)?;
    fcntl_setfl(err, fcntl_getfl(err)?.difference(OFlags::NONBLOCK))?;
    guest.offer_heads(&[999]);
    guest.kick()?;
    pause(Duration::from_millis(50));
    // Control is not held by it.
    door.daemon.ask("ls")?;
    drop(guest);
    Ok(())
}
