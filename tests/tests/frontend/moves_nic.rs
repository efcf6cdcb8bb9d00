//! NICs move between two sidecores while their guests send to each other, and look at every frame.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;
use testing::bed::tests_all;
use testing::daemon::{Daemon, await_that, pause};
use testing::mover::{Mover, Wish};
use testing::net_frontend::{Header, NicSpec, frames};
use testing::timing;
use tests::traffic::{self, LONGEST, OTHERS, Traffic};

const NAMES: [&str; 2] = ["one", "two"];

fn config() -> String {
    let mac = |number| frames::mac(number).map(|byte| format!("{byte:02x}")).join(":");
    let mut config = String::from("[[switch]]\nid = \"lan\"\n");
    for (number, name) in (1..).zip(NAMES) {
        let mac = mac(number);
        config += &format!("[[nic]]\nid = \"{name}\"\nswitch = \"lan\"\nmac = \"{mac}\"\n");
        config += "mtu = 9000\n";
    }
    config
}

fn start(daemon: &Daemon) -> Result<[Traffic; 2]> {
    for name in NAMES {
        // An operator's wish: their loads move them nowhere.
        daemon.ask(&format!("nic move {name} --to {}", home(daemon, name)?))?;
    }
    let nics = [
        (daemon.nic(NAMES[0], NicSpec::sending(LONGEST))?, 1),
        (daemon.nic(NAMES[1], NicSpec::sending(LONGEST))?, 2),
    ];
    let guests = traffic::start(nics)?;
    guests.iter().try_for_each(|guest| guest.await_frames(100))?;
    Ok(guests)
}

/// Where a NIC is: its port, and each of its queues.
fn home(daemon: &Daemon, name: &str) -> Result<u64> {
    let view = daemon.ask(&format!("nic show {name}"))?;
    let home = view["sidecore"].as_u64().context("it is nowhere")?;
    let queues = view["queues"].as_array().into_iter().flatten();
    let mut attached = queues.filter_map(|queue| queue["sidecore"].as_u64());
    ensure!(attached.all(|at| at == home), "a queue is elsewhere: {view}");
    Ok(home)
}

/// A field of all sidecores: the sum, and the largest.
fn field(list: &Value, name: &str) -> (u64, u64) {
    let cores = list["sidecores"].as_array().into_iter().flatten();
    let values: Vec<u64> = cores.filter_map(|core| core[name].as_u64()).collect();
    (values.iter().sum(), values.iter().copied().max().unwrap_or(0))
}

#[test]
fn frames_go_on_while_nics_move_and_none_is_lost_doubled_or_overtaken() -> Result<()> {
    let wanted: u64 = if tests_all() { 3_000 } else { 300 };
    let mut daemon = Daemon::with("nic-moves", &config()).cpus("0-1").start()?;
    let guests = start(&daemon)?;
    let mover = Mover::new(daemon.dir());
    let mut at = [home(&daemon, NAMES[0])?, home(&daemon, NAMES[1])?];
    let (mut moved, mut stayed) = (0, 0);
    while moved < wanted {
        let so_many = if timing::are_judged() { 20 } else { 2000 };
        ensure!(stayed < so_many * wanted, "{stayed} of {} moves did not happen", stayed + moved);
        let nic = (moved * 7 / 3 + stayed) as usize % 2;
        match mover.move_nic(NAMES[nic], 1 - at[nic] as u16)? {
            Wish::Done => (moved, at[nic]) = (moved + 1, 1 - at[nic]),
            Wish::NotNow => stayed += 1,
            Wish::Never => return Err(anyhow!("{} cannot be moved", NAMES[nic])),
        }
        if (moved + stayed) % 50 == 0 {
            guests.iter().try_for_each(|guest| guest.await_frames(1))?;
            daemon.is_alive()?;
        }
    }
    for (name, at) in NAMES.iter().zip(at) {
        ensure!(home(&daemon, name)? == at, "{name} is not at {at}");
    }
    guests.iter().try_for_each(|guest| guest.await_frames(100))?;
    let done = traffic::finish(guests)?;
    for (at, name) in NAMES.iter().enumerate() {
        let counters = daemon.nic_view(name)?["counters"].clone();
        ensure!(counters["dropped_frames"] == 0, "{name}: {counters}");
        ensure!(counters["taken_frames"] == done[at].sent, "{name}: {counters}");
        ensure!(counters["delivered_frames"] == done[at].taken, "{name}: {counters}");
    }
    let list = daemon.ask("sidecores")?;
    let (came, went) = (field(&list, "moves_in").0, field(&list, "moves_out").0);
    ensure!((came, went) == (2 * moved, 2 * moved), "{moved} moved: {list}");
    // Each wish is tried several times.
    ensure!(field(&list, "moves_stayed").0 >= stayed, "{stayed} stayed: {list}");
    let of = |name| field(&list, name).1;
    println!(
        "{{\"moves\":{moved},\"stayed\":{stayed},\"frames\":{},\"lost\":0,\"pause_p50_ns\":{},\
         \"pause_p99_ns\":{},\"pause_max_ns\":{},\"guest_pause_max_ns\":{}}}",
        done[0].sent + done[1].sent,
        of("move_pause_p50_ns"),
        of("move_pause_p99_ns"),
        of("move_pause_max_ns"),
        done[0].pause_ns.max(done[1].pause_ns)
    );
    daemon.stop()
}

/// Moves a NIC to and fro until told to stop, whatever the answers are.
fn keep_moving(mover: &Mover, nic: &str, stop: &AtomicBool, moved: &AtomicU64) -> Result<()> {
    let mut to = 1;
    while !stop.load(Ordering::Relaxed) {
        if mover.move_nic(nic, to)? == Wish::Done {
            moved.fetch_add(1, Ordering::Relaxed);
        }
        to = 1 - to;
    }
    Ok(())
}

#[test]
fn nics_are_changed_cut_off_and_removed_while_they_move() -> Result<()> {
    let mut daemon = Daemon::with("nic-moves-midst", &config()).cpus("0-1").start()?;
    let guests = start(&daemon)?;
    for name in NAMES {
        for to in [0, 1] {
            await_that("the NIC to move", || {
                Ok(Mover::new(daemon.dir()).move_nic(name, to)? == Wish::Done)
            })?;
        }
    }
    let descriptors = daemon.descriptors()?;
    let moved = Arc::new(AtomicU64::new(0));
    for number in 0..12u64 {
        let id = format!("other{number}");
        daemon.ask(&format!("nic add {id} --switch lan"))?;
        let mut other = daemon.nic(&id, NicSpec::sending(LONGEST))?;
        let (stop, mover) = (Arc::new(AtomicBool::new(false)), Mover::new(daemon.dir()));
        let (stopped, counted, nic) = (Arc::clone(&stop), Arc::clone(&moved), id.clone());
        let thread = std::thread::spawn(move || keep_moving(&mover, &nic, &stopped, &counted));
        for round in 0..10 {
            let _ = other.pair(0).reap()?;
            for _ in 0..4 {
                let addresses = [[0xff; 6], [0x02, 0, 0, 0, 1, number as u8]].concat();
                let frame = [&addresses[..], &OTHERS, &[0; 60]].concat();
                let _ = other.pair(0).send(&Header::default(), &frame, &[])?;
            }
            match round % 5 {
                0 => _ = daemon.ask(&format!("nic set {id} --share {}", round + 1))?,
                2 if number % 3 == 1 => _ = daemon.ask(&format!("nic link {id} down"))?,
                3 if number % 3 == 1 => _ = daemon.ask(&format!("nic link {id} up"))?,
                _ => pause(Duration::from_millis(2)),
            }
        }
        match number % 3 {
            0 => other.disconnect()?,
            1 => drop(other),
            _ => {}
        }
        daemon.ask(&format!("nic rm {id} --force"))?;
        stop.store(true, Ordering::Relaxed);
        thread.join().map_err(|_| anyhow!("the mover panicked"))??;
        guests.iter().try_for_each(|guest| guest.await_frames(20))?;
        daemon.is_alive()?;
    }
    daemon.await_descriptors(descriptors)?;
    let list = daemon.ask("sidecores")?;
    ensure!(field(&list, "queues").0 == 2, "two transmit queues are polled: {list}");
    ensure!(field(&list, "moves_in").0 == field(&list, "moves_out").0, "{list}");
    println!("{} times a NIC moved", moved.load(Ordering::Relaxed));
    traffic::finish(guests)?;
    Ok(())
}

/// Stops that come to an end by themselves, of at most so many.
const STOPS: u32 = 3;
const STOPS_MAX: u32 = 20;

#[test]
fn a_daemon_that_is_stopped_while_nics_move_ends_in_order() -> Result<()> {
    let mut daemon = Daemon::with("nic-moves-stop", &config()).cpus("0-1").start()?;
    let (mut in_order, mut rounds) = (0, 0);
    while in_order < STOPS {
        rounds += 1;
        ensure!(rounds <= STOPS_MAX, "of {} stops {in_order} came to an end", rounds - 1);
        let (mut movers, mut nics) = (Vec::new(), Vec::new());
        let stop = Arc::new(AtomicBool::new(false));
        for name in NAMES {
            nics.push(daemon.nic(name, NicSpec::sending(LONGEST))?);
            let (mover, stopped) = (Mover::new(daemon.dir()), Arc::clone(&stop));
            movers.push(std::thread::spawn(move || {
                // The end of the API is the end of this.
                let _ = keep_moving(&mover, name, &stopped, &AtomicU64::new(0));
            }));
        }
        pause(Duration::from_millis(20));
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
    let disk = "[[disk]]\nid = \"disk\"\nbackend = \"memory\"\nsize = \"4M\"\n\
                [[nic]]\nid = \"wired\"\nnull = \"drop\"\n";
    let daemon = Daemon::with("nic-moves-refused", &(config() + disk)).cpus("0-1").start()?;
    let said = |line: &str, words: &str| -> Result<()> {
        let error = daemon.refuses(line)?;
        ensure!(error.contains(words), "`{line}` says {error:?}, not {words:?}");
        Ok(())
    };
    said("nic move three --to 1", "there is no nic \"three\"")?;
    said("nic move one --to 2", "there is no sidecore 2: there are 2, from 0 on")?;
    said("nic move wired --to 1", "a host port stays where it is")?;
    said("nic move wired --to auto", "a host port stays where it is")?;
    said("nic move disk --to 1", "\"disk\" is a disk")?;
    said("disk move one --to 1", "\"one\" is a nic; use `sidecore nic move`")?;
    // Also before a guest is there: then its queues start where it is.
    let to = 1 - home(&daemon, "one")?;
    // On a busy machine a sidecore may not wake within a millisecond.
    await_that("the nic to move", || {
        Ok(Mover::new(daemon.dir()).move_nic("one", to as u16)? == Wish::Done)
    })?;
    let view = daemon.ask(&format!("nic move one --to {to}"))?;
    ensure!(view["sidecore"] == to, "{view}");
    let _nic = daemon.nic("one", NicSpec::sending(LONGEST))?;
    ensure!(home(&daemon, "one")? == to);
    // There already: nothing to do, and nothing wrong.
    daemon.ask(&format!("nic move one --to {to}"))?;
    ensure!(field(&daemon.ask("sidecores")?, "moves_in").0 == 0, "it had no queues then");
    ensure!(daemon.ask("nic show one")?["by_hand"] == true);
    // Let go it is where it was; and so is one that nobody holds.
    for _ in 0..2 {
        let view = daemon.ask("nic move one --to auto")?;
        ensure!(view["by_hand"] == false && view["sidecore"] == to, "{view}");
    }
    Ok(())
}
