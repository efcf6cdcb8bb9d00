//! `kill -9` of the daemon at random instants under a front-end that stays: every request is
//! completed exactly once, and every sector holds what it must (reliability P30, K1).
//!
//! `RECOVER_KILLS` says how often (200 unless told; 10,000 with `--all`), `RECOVER_SEED` repeats a run's choices. What a
//! world's guest asks for depends on the seed and on how far it came, so a run is repeated in kind
//! and not to the instruction.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use testing::clock::now_ns;
use testing::daemon::Daemon;
use testing::load::Random;
use testing::scratch::Scratch;
use testing::timing;
use testing::timing::{often, told};
use tests::ledger::Wrong;
use tests::mixed::{Failure, MixSpec};
use tests::rows;
use tests::tenant::{PATIENCE_NS, Tenant, TenantSpec};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

const KILLS: [u64; 2] = [200, 10_000];
/// Kills that a guest, its memory and its disk live through.
const KILLS_OF_A_WORLD: u64 = 25;
const DISK_BYTES: u64 = 8 << 20;
const ID: &str = "disk";
const DEPTHS: [u16; 7] = [1, 2, 4, 8, 16, 32, 64];
const REQUEST_BYTES_MAX: u32 = 256 << 10;
/// Longest life after the first request, nanoseconds.
const LIFE_NS: u64 = 20_000_000;
/// Longest life of a daemon that dies before it serves; the handshake is in the midst of it.
const EARLY_NS: u64 = 25_000_000;
/// Median time from exec to the first served request must be less, nanoseconds.
const SERVED_NS: u64 = 50_000_000;

/// Where the image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Medium {
    /// On the disk of the build folder, past the page cache where that works.
    Direct,
    /// The same through the page cache.
    Page,
    /// In memory.
    Memory,
}

/// What of a world does not change.
#[derive(Clone, Copy, Debug)]
struct World {
    medium: Medium,
    tenant: TenantSpec,
}

impl World {
    /// The media, the formats and the numbers of queues in turn; the rest by chance.
    fn choose(number: u64, random: &mut Random) -> World {
        let medium = [Medium::Direct, Medium::Page, Medium::Memory][(number % 3) as usize];
        let packed = number / 3 % 2 == 1;
        let queues = 1 + (number / 6 % 4) as u16;
        // A packed ring need not be a power of two.
        let size = if packed { 193 + random.below(64) as u16 } else { 256 };
        let format = if packed { Format::Packed } else { Format::Split };
        let event_index = random.below(2) == 0;
        let indirect_entries = if random.below(2) == 0 { 8 } else { 0 };
        let ring = RingSpec { size, format, event_index, indirect_entries };
        let mix = MixSpec { depth_max: 64, request_bytes_max: REQUEST_BYTES_MAX, cuts: true };
        let calls = random.below(2) == 0;
        World { medium, tenant: TenantSpec { ring, queues, mix, calls } }
    }
}

/// What a run has seen.
#[derive(Debug, Default)]
struct Tally {
    kills: u64,
    early: u64,
    requests: u64,
    in_flight: u64,
    resubmitted: u64,
    served_ns: Vec<u64>,
    lost: u64,
    corrupt: u64,
    late: u64,
    doubled: u64,
    hung: u64,
    errors: u64,
}

impl Tally {
    fn blame(&mut self, error: &anyhow::Error) {
        let place = match error.downcast_ref::<Failure>() {
            Some(Failure::Wrong(Wrong::Lost { .. })) => &mut self.lost,
            Some(Failure::Wrong(Wrong::Late { .. })) => &mut self.late,
            Some(Failure::Wrong(Wrong::Corrupt { .. })) => &mut self.corrupt,
            Some(Failure::Doubled(_)) => &mut self.doubled,
            Some(Failure::Hung(_)) => &mut self.hung,
            Some(Failure::Error(_)) | None => &mut self.errors,
        };
        *place += 1;
    }

    /// Of the times to the first served request, nanoseconds.
    fn quantile(&mut self, part: f64) -> u64 {
        self.served_ns.sort_unstable();
        let last = self.served_ns.len().saturating_sub(1);
        self.served_ns.get((last as f64 * part) as usize).copied().unwrap_or(0)
    }

    /// For `./x bench recover`.
    fn report(&mut self) -> Result<()> {
        let ms = |ns: u64| ns as f64 / 1e6;
        rows::add("restart.p50_ms", "ms", &[ms(self.quantile(0.5))])?;
        rows::add("restart.max_ms", "ms", &[ms(self.quantile(1.0))])?;
        rows::add("restart.kills", "1", &[self.kills as f64])?;
        rows::add("lost", "1", &[(self.lost + self.late + self.doubled + self.hung) as f64])?;
        rows::add("corrupt", "1", &[self.corrupt as f64])
    }

    fn line(&mut self, seed: u64) -> String {
        let ms = |ns: u64| ns as f64 / 1e6;
        let (median, p99) = (ms(self.quantile(0.5)), ms(self.quantile(0.99)));
        let Tally { kills, early, requests, in_flight, resubmitted, .. } = self;
        let Tally { lost, corrupt, late, doubled, hung, errors, served_ns, .. } = self;
        format!(
            "recover: seed {seed:#x}: {kills} kills ({early} before or in the handshake), \
             {requests} requests, in flight at kills {in_flight}, resubmitted {resubmitted}; exec to \
             first served request: median {median:.1} ms, p99 {p99:.1} ms of {}; lost {lost}, \
             corrupt {corrupt}, late {late}, doubled {doubled}, hung {hung}, errors {errors}",
            served_ns.len()
        )
    }
}

#[test]
fn kill_at_random_instants() -> Result<()> {
    let kills = often("RECOVER_KILLS", KILLS)?;
    let seed = told("RECOVER_SEED", now_ns())?.max(1);
    let mut tally = Tally::default();
    let mut number = 0u64;
    while tally.kills < kills {
        let mut random = Random(seed ^ (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let world = World::choose(number, &mut random);
        let most = KILLS_OF_A_WORLD.min(kills - tally.kills);
        if let Err(error) = live(world, most, &mut random, &mut tally) {
            tally.blame(&error);
            println!("{}", tally.line(seed));
            return Err(error.context(format!("world {number} of seed {seed:#x}: {world:?}")));
        }
        number += 1;
    }
    println!("{}", tally.line(seed));
    tally.report()?;
    let median = tally.quantile(0.5);
    timing::judge(median < SERVED_NS, || {
        format!("exec to first served request: median {median} ns")
    })?;
    Ok(())
}

/// One guest and its disk, through `kills` daemons and a last one that stays.
fn live(world: World, kills: u64, random: &mut Random, tally: &mut Tally) -> Result<()> {
    let parent = match world.medium {
        Medium::Direct | Medium::Page => PathBuf::from(env!("CARGO_TARGET_TMPDIR")),
        Medium::Memory => PathBuf::from("/dev/shm"),
    };
    let files = Scratch::new(&parent, "recover-image")?;
    let image = files.path().join("disk.raw");
    std::fs::File::create(&image)?.set_len(DISK_BYTES)?;
    let mut daemon = Daemon::with("recover", &disk(&image, world)).quick().start()?;
    let tenant = Tenant::over(daemon.connect(ID)?, world.tenant, Tenant::blank(DISK_BYTES));
    let mut tenant = tenant.with_context(|| daemon.last_words())?;
    daemon.kill()?;
    let begun = tally.kills;
    while tally.kills < begun + kills {
        let dies_early = random.below(8) == 0;
        if dies_early {
            die_early(&mut daemon, &mut tenant, random)?;
            tally.early += 1;
        } else {
            die_serving(&mut daemon, &mut tenant, random, tally)?;
        }
        tally.kills += 1;
        tally.in_flight += u64::from(tenant.in_flight());
        tally.resubmitted += tenant.frontend().recorded()?;
    }
    daemon.start_again()?;
    connect(&daemon, &mut tenant)?.context("killed by somebody else")?;
    tenant.drain().with_context(|| daemon.last_words())?;
    tenant.compare_all(random)?;
    let shown = daemon.ask(&format!("show {ID}"))?;
    ensure!(shown["counters"]["errors"] == 0, "errors were counted: {}", shown["counters"]);
    let queues = shown["queues"].as_array().context("no queues are shown")?;
    let violated = queues.iter().find(|queue| !queue["violation"].is_null());
    ensure!(violated.is_none(), "a violation was found: {violated:?}");
    tally.requests += tenant.done;
    daemon.kill()
}

fn disk(image: &Path, world: World) -> String {
    let cache = if world.medium == Medium::Page { "page" } else { "auto" };
    let (path, queues) = (image.display(), world.tenant.queues);
    format!("[[disk]]\nid = \"{ID}\"\npath = \"{path}\"\nqueues = {queues}\ncache = \"{cache}\"\n")
}

/// `None`: it was killed meanwhile.
fn connect(daemon: &Daemon, tenant: &mut Tenant) -> Result<Option<()>> {
    let Some(stream) = daemon.connect_unless_killed(ID)? else { return Ok(None) };
    match tenant.reconnect(stream) {
        Ok(()) => Ok(Some(())),
        Err(_) if daemon.is_killed() => Ok(None),
        // It may have been killed a moment ago, and not be said so yet.
        Err(error) => {
            if daemon.await_kill() {
                Ok(None)
            } else {
                Err(error.context(daemon.last_words()))
            }
        }
    }
}

/// A daemon that is killed as it starts, listens, or is told of the queues.
fn die_early(daemon: &mut Daemon, tenant: &mut Tenant, random: &mut Random) -> Result<()> {
    daemon.start_again()?;
    daemon.kill_in(random.below(EARLY_NS))?;
    if connect(daemon, tenant)?.is_some() {
        // It was quicker than its end.
        while !daemon.is_killed() {
            tenant.take()?;
            tenant.rest()?;
        }
    }
    daemon.reap()?;
    tenant.take()?;
    Ok(())
}

/// A daemon that is killed as it serves.
fn die_serving(
    daemon: &mut Daemon,
    tenant: &mut Tenant,
    random: &mut Random,
    tally: &mut Tally,
) -> Result<()> {
    let depth = DEPTHS[random.below(DEPTHS.len() as u64) as usize];
    let life_ns = random.below(LIFE_NS);
    let drains = random.below(8) == 0;
    daemon.start_again()?;
    connect(daemon, tenant)?.context("killed by somebody else")?;
    tenant.send(depth, random)?;
    let start = now_ns();
    while tenant.take().with_context(|| daemon.last_words())? == 0 {
        tenant.rest()?;
        if now_ns() - start > PATIENCE_NS {
            let left = tenant.in_flight();
            let words = daemon.last_words();
            return Err(Failure::Hung(format!("none of {left} requests ended:\n{words}")).into());
        }
    }
    tally.served_ns.push(now_ns() - daemon.born_ns());
    if drains {
        tenant.drain().with_context(|| daemon.last_words())?;
    }
    daemon.kill_in(life_ns)?;
    while !daemon.is_killed() {
        tenant.send(depth, random)?;
        if tenant.take()? == 0 {
            tenant.rest()?;
        }
    }
    daemon.reap()?;
    // What it showed before it died. The rest is its successor's.
    tenant.take()?;
    Ok(())
}
