//! Queues move between two sidecores while their guests write, read back and compare.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Result, anyhow, ensure};
use serde_json::Value;
use testing::bed::tests_all;
use testing::daemon::{Daemon, await_that};
use testing::frontend::{Frontend, FrontendSpec};
use testing::mover::{Mover, Wish};
use testing::slots::Kind;
use testing::timing;
use testing::verified::Load;
use tests::single::Single;

const NAMES: [&str; 4] = ["memory0", "memory1", "file0", "file1"];
const DISKS: &str = "\
[[disk]]\nid = \"memory0\"\nbackend = \"memory\"\nsize = \"4M\"\n\
[[disk]]\nid = \"memory1\"\nbackend = \"memory\"\nsize = \"4M\"\n\
[[disk]]\nid = \"file0\"\npath = \"file0.raw\"\nsize = \"4M\"\n\
[[disk]]\nid = \"file1\"\npath = \"file1.raw\"\nsize = \"4M\"\ncache = \"page\"\n";

fn spec(queues: u16) -> FrontendSpec {
    FrontendSpec { queues, ..FrontendSpec::linux() }
}

/// Numbers from a seed (xorshift).
struct Seed(u64);

impl Seed {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// A field of all sidecores: the sum, and the largest.
fn field(list: &Value, name: &str) -> (u64, u64) {
    let cores = list["sidecores"].as_array().into_iter().flatten();
    let values: Vec<u64> = cores.filter_map(|core| core[name].as_u64()).collect();
    (values.iter().sum(), values.iter().copied().max().unwrap_or(0))
}

fn sidecore_of(daemon: &Daemon, disk: &str) -> Result<Option<u64>> {
    Ok(daemon.shown(disk, "queues")?[0]["sidecore"].as_u64())
}

/// Where each disk is then: brought there by hand, they are moved by nobody else.
fn bring_by_hand(mover: &Mover) -> Result<Vec<u64>> {
    let mut at = Vec::new();
    for (name, to) in NAMES.into_iter().zip([0, 1, 0, 1]) {
        await_that(
            "the disk to be moved by hand",
            || Ok(mover.move_disk(name, to)? == Wish::Done),
        )?;
        at.push(u64::from(to));
    }
    Ok(at)
}

#[test]
fn random_moves_under_load_cost_no_request() -> Result<()> {
    let wanted: u64 = if tests_all() { 10_000 } else { 500 };
    let mut daemon = Daemon::with("moves", DISKS).cpus("0-1").start()?;
    let mut loads = Vec::new();
    let mut frontends: Vec<Frontend> = Vec::new();
    for name in NAMES {
        let mut frontend = daemon.frontend(name, &spec(1))?;
        let (load, _) = Load::start(&mut frontend)?;
        load.await_requests(10)?;
        loads.push(load);
        frontends.push(frontend);
    }
    let mover = Mover::new(daemon.dir());
    let mut at = bring_by_hand(&mover)?;
    let list = daemon.ask("sidecores")?;
    let before = ["moves_in", "moves_out", "moves_stayed"].map(|name| field(&list, name).0);
    let (mut seed, mut moved, mut stayed) = (Seed(0x5eed_0005), 0, 0);
    while moved < wanted {
        let so_many = if timing::are_judged() { 4 } else { 400 };
        ensure!(stayed < so_many * wanted, "{stayed} of {} moves did not happen", stayed + moved);
        let disk = seed.below(NAMES.len());
        let (Some(name), Some(at)) = (NAMES.get(disk), at.get_mut(disk)) else { continue };
        let to = 1 - *at;
        match mover.move_disk(name, to as u16)? {
            Wish::Done => (moved, *at) = (moved + 1, to),
            Wish::NotNow => stayed += 1,
            Wish::Never => return Err(anyhow!("{name} cannot be moved")),
        }
        if (moved + stayed) % 100 == 0 {
            loads.iter().try_for_each(|load| load.await_requests(1))?;
            daemon.is_alive()?;
        }
    }
    for (name, at) in NAMES.iter().zip(at) {
        ensure!(sidecore_of(&daemon, name)? == Some(at), "{name} is not at {at}");
    }
    let mut requests = 0;
    for (load, name) in loads.into_iter().zip(NAMES) {
        load.await_requests(100)?;
        let done = load.finish()?;
        requests += done.requests;
        let counters = daemon.shown(name, "counters")?;
        ensure!(counters["errors"] == 0 && counters["in_flight"] == 0, "{name}: {counters}");
        ensure!(
            counters["requests"] == done.requests,
            "{name}: {} asked {counters}",
            done.requests
        );
    }
    let list = daemon.ask("sidecores")?;
    let sum = |name| field(&list, name).0;
    let after = [sum("moves_in"), sum("moves_out"), sum("moves_stayed")];
    let wanted = [before[0] + moved, before[1] + moved, before[2] + stayed];
    ensure!(after == wanted, "{moved} moved, {stayed} stayed, {before:?} before: {list}");
    ensure!(sum("queues") == NAMES.len() as u64, "{list}");
    let of = |name| field(&list, name).1;
    println!(
        "{{\"moves\":{moved},\"stayed\":{stayed},\"requests\":{requests},\"errors\":0,\
         \"pause_p50_ns\":{},\"pause_p99_ns\":{},\"pause_max_ns\":{}}}",
        of("move_pause_p50_ns"),
        of("move_pause_p99_ns"),
        of("move_pause_max_ns")
    );
    drop(frontends);
    daemon.stop()
}

/// Moves a disk to and fro until told to stop, whatever the answers are.
fn keep_moving(mover: &Mover, disk: &str, stop: &AtomicBool, moved: &AtomicU64) -> Result<()> {
    let mut to = 1;
    while !stop.load(Ordering::Relaxed) {
        if mover.move_disk(disk, to)? == Wish::Done {
            moved.fetch_add(1, Ordering::Relaxed);
        }
        to = 1 - to;
    }
    Ok(())
}

#[test]
fn disks_are_changed_cut_off_and_removed_while_their_queues_move() -> Result<()> {
    let disks = "[[disk]]\nid = \"steady\"\npath = \"steady.raw\"\nsize = \"4M\"\n";
    let mut daemon = Daemon::with("moves-midst", disks).cpus("0-1").start()?;
    let mut frontend = daemon.frontend("steady", &spec(1))?;
    let (load, _) = Load::start(&mut frontend)?;
    load.await_requests(10)?;
    // Each sidecore has its io_uring from the first file on.
    for to in [0, 1] {
        await_that("the disk to move", || {
            Ok(Mover::new(daemon.dir()).move_disk("steady", to)? == Wish::Done)
        })?;
    }
    let descriptors = daemon.descriptors()?;
    let moved = Arc::new(AtomicU64::new(0));
    for number in 0..12u64 {
        let made_of = match number % 2 {
            0 => "--backend memory --size 4M".to_string(),
            _ => format!("--path other{number}.raw --size 4M"),
        };
        let id = format!("other{number}");
        daemon.ask(&format!("disk add {id} {made_of} --queues 4"))?;
        let mut other = daemon.frontend(&id, &spec(4))?;
        let (stop, mover) = (Arc::new(AtomicBool::new(false)), Mover::new(daemon.dir()));
        let (stopped, counted, disk) = (Arc::clone(&stop), Arc::clone(&moved), id.clone());
        let thread = std::thread::spawn(move || keep_moving(&mover, &disk, &stopped, &counted));
        let single = Single::new(&mut other)?;
        for round in 0..20 {
            single.exercise(other.queue((round % 4) as u16), round)?;
            if round % 5 == 0 {
                daemon.ask(&format!("disk set {id} --share {}", round + 1))?;
            }
        }
        daemon.ask(&format!("disk resize {id} 8M --force"))?;
        single.send(other.queue(3), Kind::Read, 1)?;
        // In order, at once, or still there when the disk is removed.
        match number % 3 {
            0 => other.disconnect()?,
            1 => drop(other),
            _ => {}
        }
        daemon.ask(&format!("disk rm {id} --force"))?;
        stop.store(true, Ordering::Relaxed);
        thread.join().map_err(|_| anyhow!("the mover panicked"))??;
        load.await_requests(20)?;
        daemon.is_alive()?;
    }
    daemon.await_descriptors(descriptors)?;
    let list = daemon.ask("sidecores")?;
    ensure!(field(&list, "queues").0 == 1, "{list}");
    ensure!(field(&list, "moves_in").0 == field(&list, "moves_out").0, "{list}");
    println!("{} times all queues of a disk moved", moved.load(Ordering::Relaxed));
    load.finish()?;
    Ok(())
}

/// Stops that come to an end by themselves, of at most so many.
const STOPS: u32 = 3;
const STOPS_MAX: u32 = 20;

#[test]
fn a_daemon_that_is_stopped_in_the_middle_of_moves_ends_in_order() -> Result<()> {
    let mut daemon = Daemon::with("moves-stop", DISKS).cpus("0-1").start()?;
    let (mut in_order, mut rounds) = (0, 0);
    while in_order < STOPS {
        rounds += 1;
        ensure!(rounds <= STOPS_MAX, "of {} stops {in_order} came to an end", rounds - 1);
        let (mut movers, mut frontends) = (Vec::new(), Vec::new());
        let stop = Arc::new(AtomicBool::new(false));
        for name in NAMES {
            frontends.push(daemon.frontend(name, &spec(1))?);
            let (mover, stopped) = (Mover::new(daemon.dir()), Arc::clone(&stop));
            movers.push(std::thread::spawn(move || {
                // The end of the API is the end of this.
                let _ = keep_moving(&mover, name, &stopped, &AtomicU64::new(0));
            }));
        }
        let single = frontends.first_mut().map(Single::new).transpose()?;
        let first = frontends.first_mut().ok_or_else(|| anyhow!("no front-end"))?;
        if let Some(single) = single {
            (0..10).try_for_each(|block| single.exercise(first.queue(0), block))?;
        }
        daemon.stop()?;
        stop.store(true, Ordering::Relaxed);
        let ended = movers.into_iter().map(|thread| thread.join()).filter(Result::is_ok).count();
        ensure!(ended == NAMES.len(), "a mover panicked in round {rounds}");
        in_order += u32::from(!daemon.gave_up());
        daemon.start_again()?;
    }
    Ok(())
}

#[test]
fn what_cannot_be_moved_is_refused_with_the_reason() -> Result<()> {
    let disks = "[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"4M\"\nqueues = 2\n\
                 [[switch]]\nid = \"s\"\n[[nic]]\nid = \"n\"\nswitch = \"s\"\n";
    let daemon = Daemon::with("moves-refused", disks).cpus("0-1").start()?;
    let said = |line: &str, words: &str| -> Result<()> {
        let error = daemon.refuses(line)?;
        ensure!(error.contains(words), "`{line}` says {error:?}, not {words:?}");
        Ok(())
    };
    said("disk move b --to 1", "there is no disk \"b\"")?;
    said("disk move a --to 2", "there is no sidecore 2: there are 2, from 0 on")?;
    said("disk move a --to 1", "no guest runs disk \"a\"; there is nothing to move")?;
    said("disk move n --to 1", "\"n\" is a nic; use `sidecore nic move`")?;
    said("nic move a --to 1", "\"a\" is a disk")?;
    let mut frontend = daemon.frontend("a", &spec(1))?;
    Single::new(&mut frontend)?.exercise(frontend.queue(0), 1)?;
    said("disk move a --to auto --queue 2", "no queue 2 of disk \"a\": it has 2, from 0 on")?;
    said("disk move n --to auto", "\"n\" is a nic; use `sidecore nic move`")?;
    said("disk move a --to 1 --queue 1", "queue 1 of disk \"a\" is not served now")?;
    let to = 1 - sidecore_of(&daemon, "a")?.unwrap_or(0);
    let view = daemon.ask(&format!("disk move a --to {to} --queue 0"))?;
    ensure!(view["queues"][0]["sidecore"] == to, "{view}");
    ensure!(view["queues"][0]["by_hand"] == true && view["queues_by_hand"] == 1, "{view}");
    ensure!(daemon.ask("ls")?["disks"][0]["queues_by_hand"] == 1);
    // There already: nothing to do, and nothing wrong.
    daemon.ask(&format!("disk move a --to {to}"))?;
    ensure!(field(&daemon.ask("sidecores")?, "moves_in").0 == 1);
    // Let go it is where it was; and so is what nobody holds.
    for _ in 0..2 {
        let view = daemon.ask("disk move a --to auto")?;
        ensure!(view["queues"][0]["by_hand"] == false && view["queues_by_hand"] == 0, "{view}");
        ensure!(view["queues"][0]["sidecore"] == to, "{view}");
    }
    Ok(())
}
