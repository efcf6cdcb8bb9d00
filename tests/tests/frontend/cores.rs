//! Sidecores come into use when there is load, and are parked when there is none.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testing::content::{MEMORY_BYTES as FILL_MEMORY_BYTES, fill};
use testing::daemon::{Daemon, await_that, await_within};
use testing::frontend::{Frontend, FrontendSpec};
use testing::lacking::left_out;
use testing::net_frontend::{NicSpec, frames};
use testing::timing::{self, PATIENCE};
use tests::single::Single;
use tests::streams::{MEMORY_BYTES, Streams};
use tests::traffic::{self, LONGEST};

const DISKS: u64 = 6;
const DISK_BYTES: u64 = 8 << 20;

fn disks() -> String {
    let disk = |number: u64| {
        format!("[[disk]]\nid = \"d{number}\"\nbackend = \"memory\"\nsize = \"{DISK_BYTES}\"\n")
    };
    (0..DISKS).map(disk).collect()
}

/// A field of each sidecore.
fn each<'a>(list: &'a Value, name: &str) -> Vec<&'a Value> {
    list["sidecores"].as_array().into_iter().flatten().map(|core| &core[name]).collect()
}

fn sum(list: &Value, name: &str) -> u64 {
    each(list, name).into_iter().filter_map(Value::as_u64).sum()
}

fn await_states(daemon: &Daemon, wanted: [&str; 2], what: &str) -> Result<Value> {
    let mut list = Value::Null;
    // Loads are looked at each second, and what stays is asked again ten seconds later.
    let reached = await_within(4 * PATIENCE, what, || {
        list = daemon.ask("sidecores")?;
        Ok(each(&list, "state") == wanted)
    });
    reached.with_context(|| format!("{list:#}\n{}", daemon.last_words()))?;
    Ok(list)
}

fn check_disks(daemon: &Daemon) -> Result<()> {
    for number in 0..DISKS {
        let counters = daemon.shown(&format!("d{number}"), "counters")?;
        ensure!(counters["errors"] == 0 && counters["in_flight"] == 0, "d{number}: {counters}");
    }
    Ok(())
}

fn has_two_processors() -> Result<bool> {
    let count = rustix::thread::sched_getaffinity(None)?.count();
    if count < 2 {
        left_out("there is one processor only");
    }
    Ok(count >= 2)
}

#[test]
fn a_second_sidecore_comes_into_use_under_load_and_is_parked_without() -> Result<()> {
    if !has_two_processors()? {
        return Ok(());
    }
    let lines = "cpus = \"0-1\"\nmin = 1\nmax = 2";
    let mut daemon = Daemon::with("cores", &disks()).sidecores(lines).start()?;
    let memory_bytes = (MEMORY_BYTES + FILL_MEMORY_BYTES).next_multiple_of(1 << 20) + (1 << 20);
    let spec = FrontendSpec { memory_bytes, ..FrontendSpec::linux() };
    let mut frontends: Vec<Frontend> = (0..DISKS)
        .map(|number| daemon.frontend(&format!("d{number}"), &spec))
        .collect::<Result<_>>()?;
    for frontend in &mut frontends {
        let sectors = frontend.capacity_sectors()?;
        fill(frontend, sectors)?;
    }
    let list = await_states(&daemon, ["in_use", "parked"], "one sidecore in use")?;
    ensure!(each(&list, "queues") == [DISKS, 0], "all are to be on the one in use: {list:#}");

    let moved = sum(&list, "moves_in");
    let streams = Streams::start(&mut frontends)?;
    let list = await_states(&daemon, ["in_use", "in_use"], "another to come into use")
        .or_else(|error| streams.done().map_or_else(Err, |_| Err(error)))?;
    let mut grown = list;
    await_that("both to work for queues of theirs", || {
        streams.done()?;
        grown = daemon.ask("sidecores")?;
        let have = |name| each(&grown, name).iter().all(|value| value.as_u64() > Some(0));
        // One that is on its way between them at that moment is counted by neither.
        let all = sum(&grown, "queues") == DISKS && sum(&grown, "moves_in") > moved;
        Ok(have("queues") && have("busy_percent") && all)
    })
    .with_context(|| format!("{grown:#}"))?;
    let before = streams.done()?;
    await_that("the streams to go on", || Ok(streams.done()? > before + 300))?;
    let grown = daemon.ask("sidecores")?;
    println!(
        "under load: busy {:?} %, queues {:?}, moves {:?}",
        each(&grown, "busy_percent"),
        each(&grown, "queues"),
        sum(&grown, "moves_in") - moved
    );

    let queues = streams.finish()?;
    // Which of the two stays is not promised.
    let mut list = Value::Null;
    await_that("one to be parked", || {
        list = daemon.ask("sidecores")?;
        Ok(each(&list, "state").iter().filter(|state| **state == "parked").count() == 1)
    })
    .with_context(|| format!("{list:#}\n{}", daemon.last_words()))?;
    let parked = |core: &&Value| core["state"] == "parked";
    let parked = list["sidecores"].as_array().into_iter().flatten().find(parked);
    ensure!(parked.is_some_and(|core| core["queues"] == 0), "{list:#}");
    ensure!(sum(&list, "queues") == DISKS && sum(&list, "io_errors") == 0, "{list:#}");
    println!(
        "afterwards: queues {:?}, came {:?}, went {:?}, stayed {:?}, pause p99 {:?} ns",
        each(&list, "queues"),
        each(&list, "moves_in"),
        each(&list, "moves_out"),
        each(&list, "moves_stayed"),
        each(&list, "move_pause_p99_ns")
    );
    check_disks(&daemon)?;
    daemon.await_sleep()?;
    drop((queues, frontends));
    daemon.stop()
}

#[test]
fn a_parked_sidecore_is_in_use_while_an_operator_has_a_queue_there() -> Result<()> {
    if !has_two_processors()? {
        return Ok(());
    }
    let mut daemon = Daemon::with("cores-hand", &disks()).sidecores("cpus = \"0-1\"").start()?;
    let spec = FrontendSpec::linux();
    let mut held = daemon.frontend("d0", &spec)?;
    let single = Single::new(&mut held)?;
    single.exercise(held.queue(0), 1)?;
    await_states(&daemon, ["in_use", "parked"], "one in use")?;
    daemon.ask("disk move d0 --to 1")?;
    single.exercise(held.queue(0), 2)?;
    // The first has nothing, and goes: what an operator brought to the other stays there.
    let list = await_states(&daemon, ["parked", "in_use"], "the other to be in use alone")?;
    ensure!(each(&list, "queues") == [0, 1], "{list:#}");
    // New ones go where the others are; moved to the parked one, this one wakes it.
    let mut other = daemon.frontend("d1", &spec)?;
    let second = Single::new(&mut other)?;
    second.exercise(other.queue(0), 1)?;
    ensure!(daemon.shown("d1", "queues")?[0]["sidecore"] == 1, "{:#}", daemon.ask("sidecores")?);
    let view = daemon.ask("disk move d1 --to 0")?;
    ensure!(view["queues"][0]["sidecore"] == 0, "{view}");
    await_states(&daemon, ["in_use", "in_use"], "both to be in use")?;
    second.exercise(other.queue(0), 2)?;
    single.exercise(held.queue(0), 3)?;
    // Let go, it is moved by the loads; it has a sidecore to itself no longer.
    daemon.ask("disk move d1 --to auto")?;
    let list = await_states(&daemon, ["parked", "in_use"], "the first to be parked")?;
    ensure!(each(&list, "queues") == [0, 2], "{list:#}");
    daemon.ask("disk move d1 --to 0")?;
    second.exercise(other.queue(0), 3)?;
    // With its front-end the wish is gone.
    held.disconnect()?;
    await_states(&daemon, ["in_use", "parked"], "the second to be parked")?;
    second.exercise(other.queue(0), 4)?;
    daemon.is_alive()?;
    daemon.stop()
}

const LAN: [&str; 2] = ["one", "two"];

/// Where its port is.
fn home(daemon: &Daemon, name: &str) -> Result<u64> {
    let view = daemon.ask(&format!("nic show {name}"))?;
    view["sidecore"].as_u64().with_context(|| format!("it is nowhere: {view}"))
}

fn check_frames(daemon: &Daemon, done: [traffic::Done; 2]) -> Result<()> {
    for (name, done) in LAN.into_iter().zip(done) {
        let counters = daemon.nic_view(name)?["counters"].clone();
        ensure!(counters["dropped_frames"] == 0, "{name}: {counters}");
        ensure!(counters["taken_frames"] == done.sent, "{name}: {counters}");
        ensure!(counters["delivered_frames"] == done.taken, "{name}: {counters}");
    }
    Ok(())
}

#[test]
fn a_sidecore_is_parked_though_a_nic_is_there_and_no_frame_is_lost() -> Result<()> {
    if !has_two_processors()? {
        return Ok(());
    }
    let mac = |number| frames::mac(number).map(|byte| format!("{byte:02x}")).join(":");
    let (one, two) = (mac(1), mac(2));
    let lan = format!(
        "[[switch]]\nid = \"lan\"\n[[nic]]\nid = \"one\"\nswitch = \"lan\"\nmac = \"{one}\"\n\
         mtu = 9000\n{}",
        disks()
    );
    let mut daemon =
        Daemon::with("cores-nics", &lan).sidecores("cpus = \"0-1\"\nmin = 1\nmax = 2").start()?;
    await_states(&daemon, ["in_use", "parked"], "one in use")?;
    ensure!(home(&daemon, "one")? == 0, "{:#}", daemon.ask("sidecores")?);
    // Operators' wishes have both in use: so the other NIC is placed on that which has less.
    daemon.ask("nic move one --to 0")?;
    let mut held = daemon.frontend("d0", &FrontendSpec::linux())?;
    Single::new(&mut held)?.exercise(held.queue(0), 1)?;
    daemon.ask("disk move d0 --to 1")?;
    await_states(&daemon, ["in_use", "in_use"], "both in use")?;
    daemon.ask(&format!("nic add two --switch lan --mac {two} --mtu 9000"))?;
    ensure!(home(&daemon, "two")? == 1, "{:#}", daemon.ask("sidecores")?);
    let guests = traffic::start([
        (daemon.nic("one", NicSpec::sending(LONGEST))?, 1),
        (daemon.nic("two", NicSpec::sending(LONGEST))?, 2),
    ])?;
    guests.iter().try_for_each(|guest| guest.await_frames(1_000))?;
    let busy = daemon.ask("sidecores")?;
    println!("busy {:?} %", each(&busy, "busy_percent"));
    await_that("a queue of a NIC to be seen busy", || {
        let queues = daemon.ask("nic show one")?["queues"].clone();
        let mut queues = queues.as_array().into_iter().flatten();
        Ok(queues.any(|queue| queue["busy_percent"].as_u64() > Some(0)))
    })?;

    // The wish for the disk goes with its front-end, the load nearly, and the NIC with the frames.
    held.disconnect()?;
    guests.iter().for_each(traffic::Traffic::ease);
    let list = await_states(&daemon, ["in_use", "parked"], "the second to be parked")?;
    ensure!(each(&list, "queues")[1] == 0 && home(&daemon, "two")? == 0, "{list:#}");
    ensure!(each(&list, "moves_out")[1].as_u64() > Some(1), "two queues went: {list:#}");
    guests.iter().try_for_each(|guest| guest.await_frames(100))?;
    let done = traffic::finish(guests)?;
    check_frames(&daemon, done)?;

    for name in LAN {
        await_that("the guests to be gone", || {
            Ok(daemon.ask(&format!("nic show {name}"))?["queues_attached"] == 0)
        })?;
    }
    // Nobody is there any more, nor the wish for the first: it follows to where an operator has the other.
    // A sidecore that sleeps may not be awake within a millisecond.
    await_that("the second to move", || Ok(daemon.ask("nic move two --to 1").is_ok()))?;
    let list = await_states(&daemon, ["parked", "in_use"], "the first to be parked")?;
    ensure!([home(&daemon, "one")?, home(&daemon, "two")?] == [1, 1], "{list:#}");
    println!(
        "{} frames; came {:?}, stayed {:?}, the longest pause of a guest {} ns",
        done[0].sent + done[1].sent,
        each(&list, "moves_in"),
        each(&list, "moves_stayed"),
        done[0].pause_ns.max(done[1].pause_ns)
    );
    daemon.await_sleep()?;
    daemon.stop()
}

#[test]
fn a_sidecore_that_polls_says_that_it_takes_its_cpu_for_nothing() -> Result<()> {
    let mut daemon = Daemon::start("cores-poll", "")?;
    daemon.ask("disk add d0 --backend memory --size 4M --policy poll")?;
    let spec = FrontendSpec::linux();
    let frontend = daemon.frontend("d0", &spec)?;
    let await_poll = |what: &str, is_so: fn(u64, u64) -> bool| {
        let mut list = Value::Null;
        let reached = await_that(what, || {
            list = daemon.ask("sidecores")?;
            Ok(is_so(sum(&list, "poll_percent"), sum(&list, "busy_percent")))
        });
        println!("{what}: poll {} %", sum(&list, "poll_percent"));
        reached.with_context(|| format!("{list:#}"))
    };
    // How much of its cpu it has is the machine's other work; that it has it for nothing is not.
    await_poll("its cpu to be taken for nothing", |poll, busy| match timing::are_judged() {
        true => poll > 90 && busy < 10,
        false => poll > busy,
    })?;
    daemon.ask("disk set d0 --policy notify")?;
    await_poll("it to sleep", |poll, busy| poll < 10 && busy < 10)?;
    drop(frontend);
    daemon.is_alive()
}
