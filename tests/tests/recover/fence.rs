//! An io_uring write outlives `kill -9` of its process. It must not land on top of what a successor
//! has written since (reliability F1, K4).
//!
//! Write A waits at a throttled device; the daemon is killed. The successor, which nothing slows
//! down, gets A again from the guest's in-flight record, then the guest overwrites it with B and
//! flushes. When the first A has landed, B must be there. Without a fence the successor is done long
//! before the first A lands, and B is lost. (B has a buffer of its own: a late write takes what its
//! buffer holds by then.)
//!
//! `FENCE_ROUNDS` says how often (10 unless told; 200 with `--all`).
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testing::clock::now_ns;
use testing::daemon::{Config, Daemon, await_that, pause};
use testing::lacking::left_out;
use testing::load::Random;
use testing::scratch::Scratch;
use testing::timing::often;
use tests::ledger::{Found, SECTOR_SIZE, look};
use tests::mixed::{Kind, MixSpec};
use tests::tenant::{Tenant, TenantSpec};
use tests::throttle::Throttle;
use virtqueue::Format;
use virtqueue::driver::RingSpec;

const ROUNDS: [u64; 2] = [10, 200];
const ID: &str = "disk";
const DISK_BYTES: u64 = 1 << 20;
const WRITE_BYTES: u32 = 64 << 10;
const BYTES_PER_SECOND: u64 = 128 << 10;
/// How long A stays with the device, nanoseconds.
const HELD_NS: u64 = WRITE_BYTES as u64 * 1_000_000_000 / BYTES_PER_SECOND;
/// After which it has landed, whatever a timer is late by.
const LANDED_NS: u64 = HELD_NS + 400_000_000;
/// Between taking a request from the ring and having told the kernel of it.
const SUBMIT: Duration = Duration::from_millis(20);
const SECTORS: u64 = WRITE_BYTES as u64 / SECTOR_SIZE as u64;

#[test]
fn what_a_dead_daemon_has_in_flight_lands_before_its_successor_begins() -> Result<()> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let throttle = match Throttle::new(folder, BYTES_PER_SECOND)? {
        Ok(throttle) => throttle,
        Err(reason) => {
            left_out(reason);
            return Ok(());
        }
    };
    let rounds = often("FENCE_ROUNDS", ROUNDS)?;
    let mut waits_ns = Vec::new();
    let mut shown_nothing = 0;
    while (waits_ns.len() as u64) < rounds {
        let number = waits_ns.len() as u64;
        let waited = round(folder, &throttle, number + shown_nothing);
        match waited.with_context(|| {
            format!("fence: {number} rounds of {rounds} were right, this one was not")
        })? {
            Some(waited_ns) => waits_ns.push(waited_ns),
            None => shown_nothing += 1,
        }
        ensure!(shown_nothing < 10 * rounds, "the device is not slow: writes land at once");
    }
    waits_ns.sort_unstable();
    let median_ms = waits_ns.get(waits_ns.len() / 2).copied().unwrap_or(0) / 1_000_000;
    println!(
        "fence: {rounds} rounds, each with a write still in flight when its daemon was dead; \
         exec to first served request: median {median_ms} ms; lost 0, late 0"
    );
    Ok(())
}

/// Gives the time from the successor's start until it served, nanoseconds. `None` shows nothing: this test had no
/// processor for so long that the write landed before its daemon was dead.
fn round(folder: &Path, throttle: &Throttle, number: u64) -> Result<Option<u64>> {
    let random = &mut Random(number + 1);
    let files = Scratch::new(folder, "fence-image")?;
    let image = files.path().join("disk.raw");
    // Written, not sparse: an overwrite needs nothing of the file system.
    std::fs::write(&image, vec![0; DISK_BYTES as usize])?;
    std::fs::File::open(&image)?.sync_all()?;
    let path = image.display();
    let config = Daemon::with("fence", &format!("[[disk]]\nid = \"{ID}\"\npath = \"{path}\"\n"));
    let inside = throttle.dir().join("cgroup.procs").display().to_string();
    let enter = ["sh", "-c", "echo 0 >\"$0\" && exec \"$@\"", &inside];
    let mut daemon = config.through(&enter).quick().start()?;
    let mut tenant = Tenant::over(daemon.connect(ID)?, spec(), Tenant::blank(DISK_BYTES))?;
    tenant.send_one(random, 0, Kind::Write, [0, SECTORS])?;
    let sent_ns = now_ns();
    await_that("the write to be taken", || Ok(tenant.frontend().recorded()? == 1))?;
    pause(SUBMIT);
    let has_ended = tenant.take()? != 0;
    daemon.kill()?;
    if has_ended || has_landed(&image)? {
        return Ok(None);
    }

    daemon.start_again_as(Config::directly)?;
    tenant.reconnect(daemon.connect(ID)?).with_context(|| daemon.last_words())?;
    tenant.drain().with_context(|| daemon.last_words())?;
    let waited_ns = now_ns() - daemon.born_ns();
    tenant.send_one(random, 0, Kind::Write, [0, SECTORS])?;
    tenant.drain()?;
    tenant.send_one(random, 0, Kind::Flush, [0, 0])?;
    tenant.drain()?;
    tenant.send_one(random, 0, Kind::Read, [0, SECTORS])?;
    tenant.drain().context("before the old write can have landed")?;
    pause(Duration::from_nanos((sent_ns + LANDED_NS).saturating_sub(now_ns())));
    let when = format!("the successor served {} ms after its start", waited_ns / 1_000_000);
    tenant.compare_all(random).context(when)?;
    daemon.kill()?;
    Ok(Some(waited_ns))
}

fn spec() -> TenantSpec {
    let ring = RingSpec { size: 64, format: Format::Split, event_index: true, indirect_entries: 0 };
    let mix = MixSpec { depth_max: 16, request_bytes_max: WRITE_BYTES, cuts: false };
    TenantSpec { ring, queues: 1, mix, calls: true }
}

/// Whether anything was written to the first sector.
fn has_landed(image: &Path) -> Result<bool> {
    let mut sector = [0; SECTOR_SIZE];
    std::os::unix::fs::FileExt::read_exact_at(&std::fs::File::open(image)?, &mut sector, 0)?;
    Ok(look(0, &sector) != Found::Zeroes)
}
