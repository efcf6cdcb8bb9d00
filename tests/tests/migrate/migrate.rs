//! A guest that moves between two daemons that have the same image, as in a live migration: exactly one
//! of them writes, nothing is lost or done twice, and a fresh in-flight record adopts where the ring
//! stands (reliability M3, M4, P34, P36; spdk#3766).
//!
//! `MIGRATE_ROUNDS` says how often it moves (100 unless told; 5,000 with `--all`), `MIGRATE_STOPS` how often it is only
//! stopped (100; 1,000). Real guests: `./x test migrate`.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::{FlockOperation, flock};
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that, pause};
use testing::frontend::{Frontend, FrontendSpec, PROTOCOL_BACKEND_REQ};
use testing::load::Random;
use testing::scratch::Scratch;
use testing::timing;
use testing::timing::{often, told};
use tests::fuse_disk::{Call, How, Rule, When};
use tests::mixed::MixSpec;
use tests::single::Single;
use tests::tenant::{Tenant, TenantSpec};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

const ROUNDS: [u64; 2] = [100, 5000];
const STOPS: [u64; 2] = [100, 1000];
/// Moves that a guest and its disk live through.
const ROUNDS_OF_A_WORLD: u64 = 50;
const DISK_BYTES: u64 = 8 << 20;
const REQUEST_BYTES_MAX: u32 = 256 << 10;
const DEPTH_MAX: u16 = 64;
/// Moves after a kill, of each format.
const AFTER_KILLS: usize = 16;
/// Longest time between two moves, nanoseconds.
const STAY_NS: u64 = 5_000_000;
const WITHIN: Duration = Duration::from_secs(90);

/// Two daemons that have the same image.
struct Pair {
    daemons: [Daemon; 2],
    image: PathBuf,
    _folder: Scratch,
}

impl Pair {
    /// `fields` are lines of the disk besides its path.
    fn start(name: &str, parent: &Path, fields: &str) -> Result<Pair> {
        let folder = Scratch::new(parent, &format!("{name}-image"))?;
        let image = folder.path().join("disk.raw");
        std::fs::File::create(&image)?.set_len(DISK_BYTES)?;
        let disk = disk_of(&image, fields);
        let side = |side| Daemon::start(&format!("{name}-{side}"), &disk);
        let daemons = [side("from")?, side("to")?];
        Ok(Pair { daemons, image, _folder: folder })
    }

    fn stream(&self, at: usize) -> Result<UnixStream> {
        self.daemons[at].connect("disk")
    }

    fn locked(&self, at: usize) -> Result<bool> {
        Ok(self.daemons[at].shown("disk", "locked")? == true)
    }

    fn said(&self) -> String {
        self.daemons.iter().map(Daemon::last_words).collect::<Vec<_>>().join("\n--\n")
    }
}

fn disk_of(image: &Path, fields: &str) -> String {
    let path = image.display();
    format!("[[disk]]\nid = \"disk\"\npath = \"{path}\"\nmigratable = true\n{fields}\n")
}

fn on_disk() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn spec(queues: u16) -> FrontendSpec {
    FrontendSpec {
        queues,
        inflight: true,
        protocol_features: PROTOCOL_BACKEND_REQ,
        ..FrontendSpec::linux()
    }
}

/// The media, the formats and the numbers of queues in turn.
fn world(number: u64, random: &mut Random) -> (PathBuf, String, TenantSpec) {
    let (parent, cache) = match number % 3 {
        0 => (on_disk().to_path_buf(), "auto"),
        1 => (on_disk().to_path_buf(), "page"),
        _ => (PathBuf::from("/dev/shm"), "auto"),
    };
    let packed = number / 3 % 2 == 1;
    let queues = 1 + (number % 4) as u16;
    // A packed ring need not be a power of two.
    let size = if packed { 193 + random.below(64) as u16 } else { 256 };
    let format = if packed { Format::Packed } else { Format::Split };
    let event_index = random.below(2) == 0;
    let indirect_entries = if random.below(2) == 0 { 8 } else { 0 };
    let ring = RingSpec { size, format, event_index, indirect_entries };
    let mix = MixSpec { depth_max: DEPTH_MAX, request_bytes_max: REQUEST_BYTES_MAX, cuts: true };
    let tenant = TenantSpec { ring, queues, mix, calls: random.below(2) == 0 };
    (parent, format!("queues = {queues}\ncache = \"{cache}\""), tenant)
}

/// Under load for some milliseconds.
fn work(tenant: &mut Tenant, random: &mut Random) -> Result<()> {
    let until = now_ns() + random.below(STAY_NS);
    loop {
        tenant.send(DEPTH_MAX, random)?;
        if tenant.take()? == 0 {
            tenant.rest()?;
        }
        if now_ns() > until {
            // So that something is in flight.
            return tenant.send(DEPTH_MAX, random);
        }
    }
}

/// M4, P36: back and forth with requests in flight; sometimes the guest stays after all.
#[test]
fn a_guest_that_moves_under_load_loses_nothing() -> Result<()> {
    let (rounds, seed) = (often("MIGRATE_ROUNDS", ROUNDS)?, told("MIGRATE_SEED", now_ns())?.max(1));
    let mut run = Run::default();
    let mut number = 0u64;
    while run.moved < rounds {
        let random = &mut Random(seed ^ (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (parent, fields, spec) = world(number, random);
        let pair = Pair::start("load", &parent, &fields)?;
        let most = run.moved + ROUNDS_OF_A_WORLD.min(rounds - run.moved);
        let lived = run.live(&pair, spec, most, random);
        lived.with_context(|| {
            format!("world {number} of seed {seed:#x}: {spec:?} {fields}\n{}", pair.said())
        })?;
        number += 1;
    }
    let Run { moved, stayed, requests, in_flight } = run;
    println!(
        "migrate: seed {seed:#x}: moved {moved} times and stayed {stayed} times, {requests} requests, \
         {in_flight} in flight when stopped; lost 0, doubled 0"
    );
    Ok(())
}

/// What a run has seen.
#[derive(Default)]
struct Run {
    moved: u64,
    stayed: u64,
    requests: u64,
    in_flight: u64,
}

impl Run {
    /// One guest and its disk, until `most` moves were seen.
    fn live(
        &mut self,
        pair: &Pair,
        spec: TenantSpec,
        most: u64,
        random: &mut Random,
    ) -> Result<()> {
        let mut tenant = Tenant::over(pair.stream(0)?, spec, Tenant::blank(DISK_BYTES))?;
        let mut at = 0;
        while self.moved < most {
            work(&mut tenant, random)?;
            self.in_flight += u64::from(tenant.in_flight());
            if random.below(5) == 0 {
                tenant.frontend().stop_and_go_on()?;
                self.stayed += 1;
                continue;
            }
            let old = tenant.migrate(pair.stream(1 - at)?)?;
            at = 1 - at;
            self.moved += 1;
            // The old VMM lives on for a while, or not.
            if random.below(2) == 0 {
                work(&mut tenant, random)?;
            }
            drop(old);
        }
        tenant.drain()?;
        tenant.compare_all(random)?;
        self.requests += tenant.done;
        for daemon in &pair.daemons {
            let shown = daemon.ask("show disk")?;
            ensure!(shown["counters"]["errors"] == 0, "errors were counted: {}", shown["counters"]);
            ensure!(shown["problem"].is_null(), "{}", shown["problem"]);
        }
        ensure!(pair.locked(at)? && !pair.locked(1 - at)?, "who has the locks");
        Ok(())
    }
}

/// Who has the locks is who serves; the other one's guest waits, and an operator sees for whom.
#[test]
fn one_of_two_daemons_serves() -> Result<()> {
    let mut pair = Pair::start("locks", on_disk(), "queues = 2")?;
    ensure!(!pair.locked(0)? && !pair.locked(1)?, "locked without a guest");
    let mut first = pair.daemons[0].frontend("disk", &spec(2))?;
    let one = Single::new(&mut first)?;
    one.exercise(first.queue(0), 1)?;
    ensure!(pair.locked(0)?);
    // QEMU at the destination asks, and may do so.
    let mut second = pair.daemons[1].frontend("disk", &spec(2))?;
    ensure!(second.capacity_sectors()? == DISK_BYTES / 512);
    let two = Single::new(&mut second)?;
    await_waiting(&pair.daemons[1], &format!("process {}", pair.daemons[0].pid()))?;
    first.stop_queue(0)?;
    one.exercise(first.queue(1), 2).context("its other queue")?;
    pause(Duration::from_millis(100));
    await_waiting(&pair.daemons[1], "in use")?;
    first.stop_queue(1)?;
    two.exercise(second.queue(1), 3).context("the locks were let go")?;
    ensure!(pair.locked(1)? && !pair.locked(0)?);
    ensure!(pair.daemons[1].shown("disk", "problem")?.is_null());
    // The migration is called off: the source's rings start again, and wait for the destination's.
    let ring = spec(2).ring;
    first.restart_queue(0, ring)?;
    await_waiting(&pair.daemons[0], &format!("process {}", pair.daemons[1].pid()))?;
    drop(second);
    one.exercise(first.queue(0), 4).context("the destination's front-end is gone")?;
    ensure!(pair.locked(0)? && !pair.locked(1)?);
    // The source dies.
    let mut second = pair.daemons[1].frontend("disk", &spec(2))?;
    let two = Single::new(&mut second)?;
    await_waiting(&pair.daemons[1], "in use")?;
    pair.daemons[0].kill()?;
    two.exercise(second.queue(0), 5).context("the source is dead")?;
    // And comes again, to nothing: its front-end is served where the guest is.
    pair.daemons[0].start_again()?;
    let _first = pair.daemons[0].frontend("disk", &spec(2))?;
    await_waiting(&pair.daemons[0], "in use")?;
    two.exercise(second.queue(0), 6)?;
    pair.daemons[1].is_alive()
}

fn await_waiting(daemon: &Daemon, why: &str) -> Result<()> {
    let mut shown = serde_json::Value::Null;
    let waited = await_that("the guest to wait for the image", || {
        shown = daemon.ask("show disk")?;
        let problem = shown["problem"].as_str().unwrap_or_default();
        Ok(shown["state"] == "waiting" && shown["locked"] == false && problem.contains(why))
    });
    waited.with_context(|| format!("{why:?} is not in {}", shown["problem"]))
}

/// Who waits for another one's image has nothing in flight, whatever it has of records: it may go.
#[test]
fn a_guest_that_waits_for_its_image_stops_at_once() -> Result<()> {
    let pair = Pair::start("waits", Path::new("/dev/shm"), "queues = 2")?;
    let mut first = pair.daemons[0].frontend("disk", &spec(2))?;
    Single::new(&mut first)?.exercise(first.queue(0), 1)?;
    for inflight in [true, false] {
        let mut second = pair.daemons[1].frontend("disk", &FrontendSpec { inflight, ..spec(2) })?;
        await_waiting(&pair.daemons[1], "in use")?;
        let began_ns = now_ns();
        second.stop_all()?;
        let took_ms = (now_ns() - began_ns) / 1_000_000;
        timing::judge(took_ms < 2_000, || {
            format!("it took {took_ms} ms, with a record: {inflight}")
        })?;
    }
    Ok(())
}

/// A daemon has died and was started again, the image's locks are not free yet (its last writes hold them),
/// and the guest moves on. What was in flight only the record tells: the rings start and are drained
/// before the VMM hears where they stand.
#[test]
fn a_guest_that_moves_on_after_a_kill_loses_nothing() -> Result<()> {
    let mut random = Random(0x535);
    let mut recorded = 0;
    for format in [Format::Split, Format::Packed] {
        // Past the page cache a busy host may hold completions back (decision 7).
        let mut pair = Pair::start("moved-on", on_disk(), "queues = 2\ncache = \"page\"")?;
        let ring = RingSpec { size: 256, format, event_index: true, indirect_entries: 0 };
        let mix = MixSpec { depth_max: 64, request_bytes_max: 64 << 10, cuts: true };
        let tenant_spec = TenantSpec { ring, queues: 2, mix, calls: false };
        let mut tenant = Tenant::over(pair.stream(0)?, tenant_spec, Tenant::blank(DISK_BYTES))?;
        for round in 0..AFTER_KILLS {
            let at = round % 2;
            work(&mut tenant, &mut random)
                .with_context(|| format!("{format:?}, round {round}\n{}", pair.said()))?;
            pair.daemons[at].kill()?;
            let image = std::fs::File::open(&pair.image)?;
            flock(&image, FlockOperation::LockExclusive)?;
            pair.daemons[at].start_again()?;
            tenant.reconnect(pair.stream(at)?)?;
            // All of it may have been done before the kill: then there is nothing to wait for.
            let left = tenant.frontend().recorded()?;
            recorded += left;
            let (tell, is_let_go) = std::sync::mpsc::channel();
            let freed = std::thread::spawn(move || {
                pause(Duration::from_millis(50));
                let _ = tell.send(());
                drop(image);
            });
            let old = tenant.migrate(pair.stream(1 - at)?)?;
            let has_waited = left == 0 || is_let_go.try_recv().is_ok();
            ensure!(has_waited, "{format:?}, {round}: a base before the ring had started");
            ensure!(freed.join().is_ok(), "the lock's thread");
            drop(old);
        }
        tenant.drain().with_context(|| format!("{format:?}\n{}", pair.said()))?;
        tenant.compare_all(&mut random)?;
    }
    ensure!(recorded > 0, "nothing was ever in flight");
    println!("migrate: moved on after kills, {recorded} requests were in flight");
    Ok(())
}

/// The daemon that a guest has moved to dies while it waits for the image: its record is as fresh as it
/// came, and where the rings stand is what the VMM has said.
#[test]
fn a_guest_whose_next_daemon_dies_unserved_loses_nothing() -> Result<()> {
    let mut random = Random(0x536);
    for format in [Format::Split, Format::Packed] {
        let mut pair = Pair::start("unserved", on_disk(), "queues = 2")?;
        let ring = RingSpec { size: 256, format, event_index: true, indirect_entries: 0 };
        let mix = MixSpec { depth_max: 64, request_bytes_max: 64 << 10, cuts: true };
        let tenant_spec = TenantSpec { ring, queues: 2, mix, calls: false };
        let mut tenant = Tenant::over(pair.stream(0)?, tenant_spec, Tenant::blank(DISK_BYTES))?;
        while tenant.done < 1000 {
            work(&mut tenant, &mut random)?;
        }
        tenant.frontend().stop_all()?;
        let image = std::fs::File::open(&pair.image)?;
        flock(&image, FlockOperation::LockExclusive)?;
        drop(tenant.migrate(pair.stream(1)?)?);
        await_waiting(&pair.daemons[1], "in use")?;
        tenant.send(DEPTH_MAX, &mut random)?;
        pair.daemons[1].kill()?;
        pair.daemons[1].start_again()?;
        tenant.reconnect(pair.stream(1)?)?;
        ensure!(tenant.frontend().recorded()? == 0, "{format:?}: it was served");
        drop(image);
        tenant.drain().with_context(|| format!("{format:?}\n{}", pair.said()))?;
        tenant.compare_all(&mut random)?;
    }
    Ok(())
}

/// What was written is stable before whoever stopped the last ring is told so.
#[test]
fn the_image_is_synced_before_the_last_ring_has_stopped() -> Result<()> {
    let disk = tests::faulty::disk("migrate-sync", false)?;
    let fields = "queues = 2\ncache = \"direct\"";
    let file = |id: usize| Daemon::start(&format!("sync{id}"), &disk_of(&disk.path(), fields));
    let (mut from, to) = (file(0)?, file(1)?);
    let mut frontend = from.frontend("disk", &spec(2))?;
    let single = Single::new(&mut frontend)?;
    single.exercise(frontend.queue(0), 1)?;
    frontend.stop_queue(0)?;
    let before = disk.counts().syncs.calls;
    frontend.stop_queue(1)?;
    ensure!(disk.counts().syncs.calls == before + 1, "no sync before the answer");
    ensure!(from.shown("disk", "locked")? == false, "locked when the answer was there");
    // What cannot be made stable keeps the disk where it is: nowhere else would its loss be known.
    let ring = spec(2).ring;
    frontend.restart_queue(0, ring)?;
    single.exercise(frontend.queue(0), 2)?;
    disk.obey(Rule { call: Call::Sync, when: When::Next(1), how: How::Error(5) });
    frontend.stop_queue(0)?;
    ensure!(from.shown("disk", "locked")? == true, "it was given away with data lost");
    let faults = from.shown("disk", "faults")?;
    ensure!(faults["eio"] == 1, "the failure is not counted: {faults}");
    let mut second = to.frontend("disk", &spec(2))?;
    await_waiting(&to, "in use")?;
    let problem = from.shown("disk", "problem")?.to_string();
    ensure!(problem.contains("could not make data stable"), "{problem}");
    let refused = from.refuses("disk clear nobody")?;
    ensure!(refused.contains("no disk"), "{refused}");
    from.ask("disk clear disk")?;
    drop(frontend);
    let single = Single::new(&mut second)?;
    single
        .exercise(second.queue(0), 3)
        .context("an operator knows of it, and its guest is gone")?;
    from.stop()
}

/// A disk that does not answer the sync holds up its own guest, and no other.
#[test]
fn a_sync_that_takes_long_holds_up_nobody_else() -> Result<()> {
    let disk = tests::faulty::disk("migrate-slow", false)?;
    let other = "cache = \"direct\"\n[[disk]]\nid = \"other\"\nbackend = \"memory\"\nsize = \"1M\"";
    let daemon = Daemon::start("slow", &disk_of(&disk.path(), other))?;
    let mut frontend = daemon.frontend("disk", &spec(1))?;
    let single = Single::new(&mut frontend)?;
    single.exercise(frontend.queue(0), 1)?;
    disk.obey(Rule { call: Call::Sync, when: When::Next(1), how: How::Hang });
    std::thread::scope(|scope| {
        let stopped = scope.spawn(|| frontend.stop_queue(0));
        await_that("the sync", || Ok(disk.counts().syncs.calls > 0))?;
        pause(Duration::from_millis(50));
        let too_early = stopped.is_finished();
        // Control and the other disk go on.
        let beside = work_on(&daemon, "other");
        // Before anything fails, or the disk's file system would never end.
        disk.heal();
        ensure!(!too_early, "stopped before the sync has ended");
        beside?;
        stopped.join().map_err(|_| anyhow::anyhow!("a panic"))??;
        ensure!(daemon.shown("disk", "locked")? == false);
        Ok(())
    })
}

fn work_on(daemon: &Daemon, id: &str) -> Result<()> {
    let mut frontend = daemon.frontend(id, &FrontendSpec::default())?;
    Single::new(&mut frontend)?.exercise(frontend.queue(0), 1)
}

/// The source's operator makes the disk larger; the destination finds it so, and says it.
#[test]
fn a_disk_that_was_resized_elsewhere_has_its_new_size() -> Result<()> {
    let pair = Pair::start("resized", on_disk(), "")?;
    let from = &pair.daemons[1];
    let image = pair.image.display();
    from.ask("ls").context("it runs")?;
    let file = std::fs::OpenOptions::new().write(true).open(&pair.image)?;
    let mut first = pair.daemons[0].frontend("disk", &spec(1))?;
    // Whose rings start first has the locks.
    Single::new(&mut first)?.exercise(first.queue(0), 1)?;
    let mut second = pair.daemons[1].frontend("disk", &spec(1))?;
    let mut channel = second.open_channel()?;
    channel.set_read_timeout(Some(WITHIN))?;
    await_waiting(&pair.daemons[1], "in use")?;
    file.set_len(2 * DISK_BYTES)?;
    ensure!(second.capacity_sectors()? == DISK_BYTES / 512, "nobody has looked at {image} yet");
    first.stop_queue(0)?;
    let mut notice = [0; 12];
    std::io::Read::read_exact(&mut channel, &mut notice)?;
    ensure!(second.capacity_sectors()? == 2 * DISK_BYTES / 512);
    let single = Single::new(&mut second)?;
    single.exercise(second.queue(0), 2 * DISK_BYTES / 4096 - 1)
}

/// One daemon has an image once, whether it is locked at the moment or not; and what cannot move is
/// refused where it is asked for.
#[test]
fn what_cannot_be_is_refused() -> Result<()> {
    let pair = Pair::start("refused", on_disk(), "")?;
    let image = pair.image.display();
    let link = pair.image.with_extension("link");
    std::fs::hard_link(&pair.image, &link)?;
    let daemon = &pair.daemons[0];
    let twice = daemon.refuses(&format!("disk add again --path {image}"))?;
    ensure!(twice.contains("already that of disk"), "{twice}");
    for more in ["", " --migratable"] {
        let twice = daemon.refuses(&format!("disk add again --path {}{more}", link.display()))?;
        ensure!(twice.contains("it is disk \"disk\""), "{twice}");
    }
    let memory = daemon.refuses("disk add ram --backend memory --size 1M --migratable")?;
    ensure!(memory.contains("its guest cannot move"), "{memory}");
    // Not locked, not there: it is not made anew under a guest that has used it.
    let mut frontend = daemon.frontend("disk", &spec(1))?;
    frontend.stop_queue(0)?;
    std::fs::rename(&pair.image, pair.image.with_extension("away"))?;
    let ring = spec(1).ring;
    frontend.restart_queue(0, ring)?;
    await_waiting(daemon, "is missing")?;
    std::fs::rename(pair.image.with_extension("away"), &pair.image)?;
    let single = Single::new(&mut frontend)?;
    single.exercise(frontend.queue(0), 1)?;
    // Its size can be changed when it is locked here or nowhere, not under another's guest.
    let other = &pair.daemons[1];
    ensure!(other.refuses("disk resize disk 16M")?.contains("declared in"));
    Ok(())
}

/// P34: what has stopped writes nothing and calls nobody.
#[test]
fn a_stopped_ring_writes_nothing_and_calls_nobody() -> Result<()> {
    let stops = often("MIGRATE_STOPS", STOPS)?;
    let mut random = Random(0x534);
    let fields = "queues = 2\ncache = \"direct\"";
    let pair = Pair::start("stops", on_disk(), fields)?;
    let mut in_flight = 0;
    for format in [Format::Split, Format::Packed] {
        let ring = RingSpec { size: 256, format, event_index: true, indirect_entries: 0 };
        let mix = MixSpec { depth_max: 64, request_bytes_max: 64 << 10, cuts: true };
        let tenant_spec = TenantSpec { ring, queues: 2, mix, calls: false };
        std::fs::write(&pair.image, vec![0; DISK_BYTES as usize])?;
        let mut tenant = Tenant::over(pair.stream(0)?, tenant_spec, Tenant::blank(DISK_BYTES))?;
        for stop in 0..stops / 2 {
            tenant.send(64, &mut random)?;
            in_flight += u64::from(tenant.in_flight());
            let frontend = tenant.frontend();
            let bases = frontend.stop_all()?;
            let called = calls(frontend)?;
            let then = contents(frontend);
            pause(if stop % 100 == 0 { Duration::from_secs(1) } else { Duration::from_millis(1) });
            ensure!(contents(frontend) == then, "{format:?}, stop {stop}: memory was written");
            ensure!(
                calls(frontend)? == [false; 2],
                "{format:?}, stop {stop}: a call (of {called:?})"
            );
            frontend.go_on(&bases)?;
            tenant.take()?;
        }
        tenant.drain()?;
        tenant.compare_all(&mut random)?;
    }
    println!(
        "migrate: {stops} stops with {in_flight} requests in flight: no write, no call after them"
    );
    Ok(())
}

fn contents(frontend: &Frontend) -> Vec<u8> {
    let memory =
        guest_memory::Area::whole(std::sync::Arc::clone(&frontend.map().regions()[0].mapping));
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

/// Whether each queue was called; takes the calls.
fn calls(frontend: &mut Frontend) -> Result<Vec<bool>> {
    frontend.queues().iter_mut().map(|queue| queue.wait_for_call(0)).collect()
}
