//! Stages of a disk: a trace that comes and goes under load, tells of each request once, and that fio takes; faults that
//! hit what was chosen, and nothing else.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testing::daemon::{Daemon, await_that};
use testing::frontend::{Frontend, FrontendSpec};
use testing::lacking::left_out;
use testing::slots::{Kind, STATUS_OK};
use testing::verified::{BLOCK_SIZE, Load};
use tests::single::Single;

const DISK: &str = "[[disk]]\nid = \"db\"\npath = \"db.raw\"\nsize = \"4M\"\n";
/// Requests of which each is looked for.
const REQUESTS: u64 = 300;

fn frontend(daemon: &Daemon) -> Result<Frontend> {
    daemon.frontend("db", &FrontendSpec::linux())
}

/// What a trace has recorded, and the last line.
fn traced(daemon: &Daemon, options: &str) -> Result<(Vec<Value>, Value)> {
    let text = daemon.says(&format!("disk trace db --past --for 200ms --json{options}"))?;
    let lines: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
    let mut lines = lines.with_context(|| format!("no lines of JSON: {text}"))?;
    let last = lines.pop().context("no last line")?;
    Ok((lines, last))
}

/// What the stage says that it has recorded.
fn recorded(daemon: &Daemon) -> Result<u64> {
    daemon.shown("db", "stages")?[0]["recorded"].as_u64().context("no number")
}

#[test]
fn a_trace_has_each_request_of_a_guest_once_and_in_its_order() -> Result<()> {
    let mut daemon = Daemon::start("stages", DISK)?;
    let mut frontend = frontend(&daemon)?;
    let single = Single::new(&mut frontend)?;
    let ask = |frontend: &mut Frontend, n: u64| -> Result<()> {
        let kind = if n.is_multiple_of(3) { Kind::Write } else { Kind::Read };
        let ended = single.send(frontend.queue(0), kind, n % 1024)?;
        ensure!(ended.status == STATUS_OK, "request {n}: {ended:?}");
        Ok(())
    };
    (0..10).try_for_each(|n| ask(&mut frontend, n))?;
    let why = daemon.refuses("disk trace db")?;
    ensure!(
        why.contains("disk \"db\" has no stage \"trace\"") && why.contains("stage add db"),
        "{why}"
    );
    let list = daemon.ask("disk stage add db trace")?;
    ensure!(list["stages"][0]["kind"] == "trace" && list["late"].is_null(), "{list}");
    (0..REQUESTS).try_for_each(|n| ask(&mut frontend, n))?;
    let (lines, last) = traced(&daemon, "")?;
    ensure!(last == serde_json::json!({"shown": REQUESTS, "left_out": 0, "lost": 0}), "{last}");
    for (n, line) in (0..).zip(&lines) {
        let op = if n % 3 == 0 { "write" } else { "read" };
        let offset = n % 1024 * BLOCK_SIZE as u64;
        let is_it = line["op"] == op && line["offset"] == offset && line["bytes"] == BLOCK_SIZE;
        ensure!(is_it && line["queue"] == 0 && line["end"] == "ok", "request {n}: {line}");
    }
    let order: Vec<u64> = lines.iter().filter_map(|line| line["at_ns"].as_u64()).collect();
    ensure!(order.is_sorted() && order.len() as u64 == REQUESTS, "{order:?}");
    let (writes, last) = traced(&daemon, " --op write --one-in 2")?;
    ensure!(writes.len() as u64 == REQUESTS / 6, "{last}");
    ensure!(
        writes[1]["offset"] == 6 * BLOCK_SIZE as u64 && last["left_out"] == REQUESTS * 5 / 6,
        "{last}"
    );
    // Killed, it has it again; and the file goes before what a command has added.
    drop(frontend);
    daemon.kill()?;
    daemon.start_again()?;
    let stages = daemon.shown("db", "stages")?;
    ensure!(stages[0]["declared"] == "command" && stages[0]["recorded"] == 0, "{stages}");
    daemon.configure(&format!("{DISK}[[disk.stage]]\nkind = \"trace\"\nentries = 1024\n"))?;
    let changes = daemon.ask("reload")?["changes"].clone();
    let becomes = "set disk db: stage trace of 4096 entries by a command becomes of 1024 entries";
    ensure!(changes == serde_json::json!([becomes]), "{changes}");
    let why = daemon.refuses("disk stage rm db trace")?;
    ensure!(why.contains("is declared in"), "{why}");
    daemon.stop()
}

#[test]
fn a_trace_comes_and_goes_under_load_and_fio_replays_what_it_wrote() -> Result<()> {
    let mut daemon = Daemon::start("stages-load", DISK)?;
    let mut frontend = frontend(&daemon)?;
    let (load, _) = Load::start(&mut frontend)?;
    let mut late = 0;
    for _ in 0..20 {
        load.await_requests(50)?;
        let list = daemon.ask("disk stage add db trace --entries 65536")?;
        late += list["late"].as_array().map_or(0, Vec::len);
        load.await_requests(50)?;
        ensure!(recorded(&daemon)? > 0, "nothing was recorded");
        daemon.ask("disk stage rm db trace")?;
    }
    ensure!(late == 0, "{late} queues had not what was answered");
    daemon.ask("disk stage add db trace")?;
    let before = recorded(&daemon)?;
    let said = daemon.ask("disk trace db -w db.iolog --for 500ms")?;
    let written = said["written"].as_u64().context("no number")?;
    ensure!(written > 0 && recorded(&daemon)? >= before + written, "{said}");
    let why = daemon.refuses("disk trace db -w db.iolog --for 1ms")?;
    ensure!(why.contains("db.iolog is there already"), "{why}");
    let done = load.finish()?;
    let counters = daemon.shown("db", "counters")?;
    ensure!(counters["requests"] == done.requests && counters["errors"] == 0, "{counters}");
    let text = std::fs::read_to_string(daemon.dir().join("db.iolog"))?;
    let requests = text.lines().filter(|line| line.split(' ').count() == 5).count();
    ensure!(text.starts_with("fio version 3 iolog\n0 db add\n0 db open\n"), "{text}");
    ensure!(requests as u64 == written && text.ends_with(" db close\n"), "{requests} of {said}");
    replay(&daemon, written)?;
    drop(frontend);
    daemon.stop()
}

/// Has fio do so many requests again, on another file.
fn replay(daemon: &Daemon, requests: u64) -> Result<()> {
    std::fs::write(daemon.dir().join("copy.raw"), vec![0; 4 << 20])?;
    let line = "--name=again --ioengine=psync --read_iolog=db.iolog --replay_redirect=copy.raw \
                --replay_no_stall=1 --output-format=json";
    let fio = Command::new("fio").args(line.split_whitespace()).current_dir(daemon.dir()).output();
    let Ok(fio) = fio else {
        left_out("no fio is installed");
        return Ok(());
    };
    let (out, err) = (String::from_utf8_lossy(&fio.stdout), String::from_utf8_lossy(&fio.stderr));
    ensure!(fio.status.success(), "fio gave {}: {err}{out}", fio.status);
    let json = out.find('{').and_then(|at| out.get(at..)).unwrap_or_default();
    let said: Value = serde_json::from_str(json).with_context(|| format!("fio said {out}"))?;
    let job = &said["jobs"][0];
    let done: u64 =
        ["read", "write", "trim"].iter().filter_map(|it| job[*it]["total_ios"].as_u64()).sum();
    let syncs = job["sync"]["total_ios"].as_u64().unwrap_or(0);
    ensure!(done + syncs >= requests, "fio did {done} and {syncs} of {requests}: {job}");
    Ok(())
}

#[test]
fn what_was_recorded_is_in_its_file_when_the_stage_goes_meanwhile() -> Result<()> {
    const COUNT: u64 = 50;
    let mut daemon = Daemon::start("stages-gone", DISK)?;
    let mut frontend = frontend(&daemon)?;
    let single = Single::new(&mut frontend)?;
    daemon.ask("disk stage add db trace")?;
    for n in 0..COUNT {
        single.send(frontend.queue(0), Kind::Read, n)?;
    }
    let file = daemon.dir().join("gone.iolog");
    let (asking, is_there) = (&daemon, || Ok(file.exists()));
    let why = std::thread::scope(|scope| {
        let asked = scope.spawn(|| asking.refuses("disk trace db --past -w gone.iolog"));
        // It has the first answer by then.
        let begun = await_that("the file", is_there);
        let removed = begun.and_then(|()| daemon.ask("disk stage rm db trace"));
        let why = asked.join().map_err(|_| anyhow::anyhow!("it panicked"));
        removed.and(why?)
    })?;
    ensure!(why.contains("disk \"db\" has no stage \"trace\""), "{why}");
    let text = std::fs::read_to_string(&file)?;
    let requests = text.lines().filter(|line| line.split(' ').count() == 5).count();
    ensure!(requests as u64 == COUNT && text.ends_with(" db close\n"), "{requests}: {text}");
    drop(frontend);
    daemon.stop()
}

/// Status of a request that failed (5.2.6.2).
const IOERR: u8 = 1;
/// Blocks of the range in which faults are made: 1 MiB to 2 MiB.
const CHOSEN: std::ops::Range<u64> = 256..512;

#[test]
fn faults_hit_what_was_chosen_and_nothing_else_also_after_an_upgrade_and_a_kill() -> Result<()> {
    let mut daemon = Daemon::start("stages-faults", DISK)?;
    let mut frontend = frontend(&daemon)?;
    let single = Single::new(&mut frontend)?;
    let add = "disk stage add db fault --errors-per-million 1000000 --ops write --range 1M..2M";
    daemon.ask(add)?;
    let hits = |frontend: &mut Frontend| -> Result<()> {
        for block in
            [0, CHOSEN.start - 1, CHOSEN.start, CHOSEN.start + 5, CHOSEN.end - 1, CHOSEN.end]
        {
            let written = single.send(frontend.queue(0), Kind::Write, block)?;
            let wanted = if CHOSEN.contains(&block) { IOERR } else { STATUS_OK };
            ensure!(written.status == wanted, "a write of block {block}: {written:?}");
            let read = single.send(frontend.queue(0), Kind::Read, block)?;
            ensure!(read.status == STATUS_OK, "a read of block {block}: {read:?}");
        }
        Ok(())
    };
    hits(&mut frontend)?;
    daemon.upgrade()?;
    hits(&mut frontend)?;
    let faults = daemon.shown("db", "stages")?;
    ensure!(faults[0]["failed"].as_u64() == Some(3), "three since the upgrade: {faults}");
    daemon.ask("disk stage set db fault --ops flush --delay-us 30000")?;
    // What is held is held so long at least, however slow the machine is; a read is not meant now.
    let written = single.send(frontend.queue(0), Kind::Write, CHOSEN.start)?;
    ensure!(written.status == STATUS_OK, "writes are not meant any more: {written:?}");
    daemon.ask("disk stage set db fault --ops read --errors-per-million 0")?;
    let read = single.send(frontend.queue(0), Kind::Read, CHOSEN.start)?;
    ensure!(read.status == STATUS_OK && read.took_ns >= 30_000_000, "not held: {read:?}");
    daemon.ask("disk stage set db fault --errors-per-million 1000000 --ops write --delay-us 0")?;
    drop(frontend);
    daemon.kill()?;
    daemon.start_again()?;
    let mut frontend = self::frontend(&daemon)?;
    let single = Single::new(&mut frontend)?;
    let failed = single.send(frontend.queue(0), Kind::Write, CHOSEN.end - 1)?;
    ensure!(failed.status == IOERR, "the fault was forgotten: {failed:?}");
    daemon.ask("disk stage rm db fault")?;
    let written = single.send(frontend.queue(0), Kind::Write, CHOSEN.end - 1)?;
    ensure!(written.status == STATUS_OK, "the fault stays: {written:?}");
    drop(frontend);
    daemon.stop()?;
    let image = std::fs::read(daemon.dir().join("db.raw"))?;
    let block = |number: u64| &image[number as usize * BLOCK_SIZE..][..BLOCK_SIZE];
    let is_empty = |number: u64| block(number).iter().all(|byte| *byte == 0);
    ensure!(!is_empty(CHOSEN.start) && !is_empty(CHOSEN.end - 1), "what was done is not there");
    ensure!(!is_empty(0) && !is_empty(CHOSEN.end), "what was not meant is not there");
    let untouched = (CHOSEN.start + 1..CHOSEN.end - 1).all(is_empty);
    ensure!(untouched, "something that was never asked for was written");
    Ok(())
}
