//! Front-ends that vanish under load, and a daemon that dies under many of them (reliability K5, K7).
//!
//! `VANISH_ROUNDS` (200 unless told) and `TENANTS_ROUNDS` (5) say how often, `TENANTS` (16) how many there
//! are, `RECOVER_SEED` repeats the choices.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that};
use testing::load::Random;
use testing::scratch::Scratch;
use testing::timing;
use testing::timing::{often, told};
use tests::mixed::MixSpec;
use tests::tenant::{Tenant, TenantSpec};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

const DISK_BYTES: u64 = 2 << 20;
const DEPTH: u16 = 16;
/// Longest life of a front-end that vanishes, nanoseconds.
const LIFE_NS: u64 = 5_000_000;
/// What a front-end has lent is given back within this time, and that of a disk that may take longer
/// for what is in flight (a flush of a busy file system takes seconds).
const GIVEN_BACK_NS: [u64; 2] = [10_000_000_000, 1_000_000_000];
/// Descriptors that a sidecore makes when it first needs them and keeps: to be woken by another one.
const MADE_ONCE: usize = 1;
/// Tenants, unless `TENANTS` says otherwise.
const TENANTS: [u64; 2] = [16, 64];
/// From exec until each of the tenants was served, nanoseconds.
const ALL_BACK_NS: u64 = 2_000_000_000;
/// How long tenants work before the daemon is killed, nanoseconds.
const WORK_NS: u64 = 30_000_000;

fn spec(random: &mut Random) -> TenantSpec {
    let format = if random.below(2) == 0 { Format::Split } else { Format::Packed };
    let (event_index, calls) = (random.below(2) == 0, random.below(2) == 0);
    let indirect_entries = if random.below(2) == 0 { 8 } else { 0 };
    let ring = RingSpec { size: 128, format, event_index, indirect_entries };
    let mix = MixSpec { depth_max: DEPTH, request_bytes_max: 64 << 10, cuts: true };
    TenantSpec { ring, queues: 1 + random.below(2) as u16, mix, calls }
}

/// Declares a disk over a new image in `folder`.
fn disk(folder: &Path, id: &str) -> Result<String> {
    let image = folder.join(format!("{id}.raw"));
    std::fs::File::create(&image)?.set_len(DISK_BYTES)?;
    Ok(format!("[[disk]]\nid = \"{id}\"\npath = \"{}\"\nqueues = 2\n", image.display()))
}

fn folders(name: &str) -> Result<[Scratch; 2]> {
    let on_disk = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    Ok([Scratch::new(&on_disk, name)?, Scratch::new(Path::new("/dev/shm"), name)?])
}

/// Connects as a front-end that has never been there.
fn arrive(
    daemon: &Daemon,
    id: &str,
    random: &mut Random,
    ledger: tests::ledger::Ledger,
) -> Result<Tenant> {
    let tenant = Tenant::over(daemon.connect(id)?, spec(random), ledger);
    tenant.with_context(|| daemon.last_words())
}

#[test]
fn a_front_end_that_vanishes_leaves_nothing_behind() -> Result<()> {
    let rounds = often("VANISH_ROUNDS", [200, 500])?;
    let seed = told("RECOVER_SEED", now_ns())?.max(1);
    let random = &mut Random(seed);
    let folders = folders("vanish")?;
    let ids = ["direct", "memory"];
    let mut disks = String::new();
    for (folder, id) in folders.iter().zip(ids) {
        disks += &disk(folder.path(), id)?;
    }
    let mut daemon = Daemon::with("vanish", &disks).quick().start()?;
    let mut ledgers = Vec::new();
    for id in ids {
        // The first front-end makes the daemon allocate what it keeps.
        let ledger = Tenant::blank(DISK_BYTES);
        let mut tenant = arrive(&daemon, id, random, ledger)?;
        tenant.compare_all(random)?;
        ledgers.push(Some(tenant.vanish()));
    }
    await_that("the first to be gone", || Ok(daemon.holds()?.1 == 0))?;
    let (descriptors, mappings) = settled(&daemon)?;
    let before = (descriptors + MADE_ONCE, mappings);
    let open = daemon.open();
    let (mut done, mut in_flight, mut slowest_ns) = (0, 0, 0);
    for round in 0..rounds {
        let at = random.below(ids.len() as u64) as usize;
        let ledger = ledgers[at].take().context("a disk without its ledger")?;
        let mut tenant = arrive(&daemon, ids[at], random, ledger)?;
        let until = now_ns() + random.below(LIFE_NS);
        while now_ns() < until {
            tenant.send(DEPTH, random)?;
            tenant.take().with_context(|| format!("round {round} of seed {seed}"))?;
        }
        if round % 16 == 15 {
            tenant.drain()?;
            tenant.compare_all(random)?;
            tenant.send(DEPTH, random)?;
        }
        done += tenant.done;
        in_flight += u64::from(tenant.in_flight());
        ledgers[at] = Some(tenant.vanish());
        let gone_ns = now_ns();
        let holds = await_that("its descriptors and memory to be given back", || {
            let (descriptors, mappings) = daemon.holds()?;
            Ok(descriptors <= before.0 && mappings <= before.1)
        });
        holds.with_context(|| {
            let holds = daemon.holds();
            format!(
                "round {round} of seed {seed}: {holds:?}, not {before:?}: {:?}, not {open:?}",
                daemon.open()
            )
        })?;
        let took_ns = now_ns() - gone_ns;
        timing::judge(took_ns < GIVEN_BACK_NS[at], || format!("given back after {took_ns} ns"))?;
        slowest_ns = slowest_ns.max(took_ns);
    }
    println!(
        "vanish: seed {seed}: {rounds} front-ends vanished with {in_flight} requests in flight, \
         after {done}; at most {} descriptors and {} mappings after each, given back within \
         {:.1} ms; lost 0, corrupt 0, late 0, doubled 0",
        before.0,
        before.1,
        slowest_ns as f64 / 1e6
    );
    daemon.kill()
}

/// What the daemon holds when nothing changes any more.
fn settled(daemon: &Daemon) -> Result<(usize, usize)> {
    let mut last = daemon.holds()?;
    let mut same = 0;
    await_that("the daemon to come to rest", || {
        let now = daemon.holds()?;
        same = if now == last { same + 1 } else { 0 };
        last = now;
        Ok(same > 50)
    })?;
    Ok(last)
}

#[test]
fn all_tenants_are_back_in_time() -> Result<()> {
    let rounds = often("TENANTS_ROUNDS", [5, 100])?;
    let tenants_wanted = often("TENANTS", TENANTS)?;
    let seed = told("RECOVER_SEED", now_ns())?.max(1);
    let random = &mut Random(seed);
    let folders = folders("tenants")?;
    let ids: Vec<String> = (0..tenants_wanted).map(|number| format!("tenant-{number}")).collect();
    let mut disks = String::new();
    for (number, id) in ids.iter().enumerate() {
        disks += &disk(folders[number % 2].path(), id)?;
    }
    let mut daemon = Daemon::with("tenants", &disks).quick().start()?;
    let mut tenants = Vec::new();
    for id in &ids {
        tenants.push(arrive(&daemon, id, random, Tenant::blank(DISK_BYTES))?);
    }
    let (mut in_flight, mut backs_ns) = (0, Vec::new());
    for round in 0..rounds {
        let until = now_ns() + WORK_NS;
        while now_ns() < until {
            for tenant in &mut tenants {
                tenant.send(DEPTH, random)?;
                tenant.take()?;
            }
        }
        daemon.kill()?;
        for tenant in &mut tenants {
            tenant.take()?;
            in_flight += u64::from(tenant.in_flight());
        }
        daemon.start_again()?;
        let back_ns = all_back(&daemon, &ids, &mut tenants, random)
            .with_context(|| format!("round {round} of seed {seed}: {}", daemon.last_words()))?;
        timing::judge(back_ns < ALL_BACK_NS, || {
            format!("it took {back_ns} ns until all were served")
        })?;
        backs_ns.push(back_ns);
    }
    for tenant in &mut tenants {
        tenant.drain()?;
        tenant.compare_all(random)?;
    }
    backs_ns.sort_unstable();
    let ms = |at: usize| backs_ns.get(at).copied().unwrap_or(0) as f64 / 1e6;
    println!(
        "tenants: seed {seed}: {tenants_wanted} tenants through {rounds} kills with {in_flight} requests \
         in flight; exec to all of them served: median {:.1} ms, most {:.1} ms; lost 0, corrupt 0, \
         late 0, doubled 0, hung 0",
        ms(backs_ns.len() / 2),
        ms(backs_ns.len().saturating_sub(1))
    );
    daemon.kill()
}

/// Every tenant connects again and gets something done; the time since the daemon's start.
fn all_back(
    daemon: &Daemon,
    ids: &[String],
    tenants: &mut [Tenant],
    random: &mut Random,
) -> Result<u64> {
    for (id, tenant) in ids.iter().zip(tenants.iter_mut()) {
        tenant.reconnect(daemon.connect(id)?)?;
        tenant.send(DEPTH, random)?;
    }
    let mut waiting: Vec<&mut Tenant> = tenants.iter_mut().collect();
    while !waiting.is_empty() {
        let waited_ns = now_ns() - daemon.born_ns();
        ensure!(
            u128::from(waited_ns) < timing::PATIENCE.as_nanos(),
            "{} are not back yet",
            waiting.len()
        );
        let mut left = Vec::new();
        for tenant in waiting {
            if tenant.take()? == 0 {
                left.push(tenant);
            }
        }
        waiting = left;
    }
    Ok(now_ns() - daemon.born_ns())
}
