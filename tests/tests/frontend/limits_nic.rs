//! NICs and groups with limits, of a built daemon: so much passes as was allowed, what is too much waits
//! with its sender or is dropped at its receiver, and nobody else notices.

#![expect(clippy::disallowed_macros, reason = "what was measured is for the record")]

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that};
use testing::frontend::FrontendSpec;
use testing::net_frontend::{Header, Nic, NicSpec, frames};
use testing::timing;
use testing::verified::Load;

/// How long a count runs.
const COUNTED_MS: u64 = 3_000;
/// And before it, so that a burst of 100 ms is over.
const WARM_MS: u64 = 300;
/// A count may be low by as much as the machine was away; it is made again then.
const TRIES: u32 = 5;

/// A daemon with a switch and `count` NICs of the API on it, named a, b, c, with addresses from 1 on.
fn lan(name: &str, count: u16) -> Result<(Daemon, Vec<Nic>)> {
    let daemon = Daemon::start(name, "[[switch]]\nid = \"lan\"\n")?;
    let mut nics = Vec::new();
    for (number, id) in (1..=count).zip(["a", "b", "c"]) {
        daemon.ask(&format!("nic add {id} --switch lan --mac 52:54:00:00:00:0{number}"))?;
        nics.push(daemon.nic(id, NicSpec::default())?);
    }
    Ok((daemon, nics))
}

/// Guest 1 sends as fast as it may to each of `to` in turn, for so long. Frames that were taken of it, and
/// that came to each of the others.
fn flood(nics: &mut [Nic], to: &[u16], ms: u64) -> Result<(u64, Vec<u64>)> {
    let frames: Vec<Vec<u8>> =
        to.iter().map(|to| frames::small(frames::mac(1), frames::mac(*to))).collect();
    let [sender, others @ ..] = nics else { return Ok((0, Vec::new())) };
    // What was taken is told from what is in flight: adding frames reaps, too.
    sender.pair(0).reap()?;
    let before = u64::from(sender.pair(0).unused());
    let (mut came, mut turn) = (vec![0; others.len()], 0);
    let until = now_ns() + ms * 1_000_000;
    while now_ns() < until {
        while sender.pair(0).add(&Header::default(), &frames[turn % frames.len()], &[])? {
            turn += 1;
        }
        sender.pair(0).flush()?;
        for (nic, came) in others.iter_mut().zip(&mut came) {
            *came += drain(nic)?;
        }
        std::thread::yield_now();
    }
    sender.pair(0).reap()?;
    Ok((before + turn as u64 - u64::from(sender.pair(0).unused()), came))
}

/// Takes what has come.
fn drain(nic: &mut Nic) -> Result<u64> {
    let mut came = 0;
    while nic.pair(0).receive()?.is_some() {
        came += 1;
    }
    Ok(came)
}

/// Makes a count until it is what was allowed but for a part of `low`, or the tries are used up; it is
/// never more.
fn ensure_rate(wanted: f64, low: f64, mut count: impl FnMut(u64) -> Result<u64>) -> Result<()> {
    for tried in 1.. {
        // Until the burst of a pause is used up.
        count(WARM_MS)?;
        let began_ns = now_ns();
        let counted = count(COUNTED_MS)?;
        let took_s = (now_ns() - began_ns) as f64 / 1e9;
        let rate = counted as f64 / took_s;
        println!("{rate:.1} a second, {wanted} are allowed");
        timing::judge(rate <= wanted * 1.01 + 2.0, || format!("{rate:.1} a second of {wanted}"))?;
        if rate >= wanted * (1.0 - low) - 2.0 || !timing::are_judged() {
            return Ok(());
        }
        ensure!(tried < TRIES, "{rate:.1} a second of {wanted}");
    }
    Ok(())
}

fn drops(view: &Value) -> Vec<(String, u64)> {
    let all = view["counters"]["drops"].as_array().into_iter().flatten();
    all.filter_map(|drop| Some((drop["reason"].as_str()?.to_string(), drop["frames"].as_u64()?)))
        .collect()
}

/// How often what a NIC sends waited for a limit, and how long; of its view.
fn held(view: &Value) -> Result<[u64; 2]> {
    let count = |field: &str| view[field].as_u64().with_context(|| format!("{field} of {view}"));
    Ok([count("held")?, count("held_ns")?])
}

/// A sender that always has more than it may send waits nearly all the time.
fn ensure_held(daemon: &Daemon, nics: &mut [Nic]) -> Result<()> {
    for tried in 1.. {
        let (began_ns, before) = (now_ns(), held(&daemon.ask("nic show a")?)?);
        flood(nics, &[2], 1_000)?;
        let (ended_ns, after) = (now_ns(), held(&daemon.ask("nic show a")?)?);
        let share = (after[1] - before[1]) as f64 / (ended_ns - began_ns) as f64;
        println!("held {share:.3} of the time, {} times", after[0] - before[0]);
        // A machine that is slow sends no more than it may for a while.
        if after[0] == before[0] && !timing::are_judged() && tried < TRIES {
            continue;
        }
        ensure!(after[0] > before[0], "{before:?} {after:?}");
        timing::judge(share < 1.03, || format!("{before:?} {after:?}"))?;
        if share > 0.85 || !timing::are_judged() {
            break;
        }
        ensure!(tried < TRIES, "held only {share:.3} of the time");
    }
    Ok(())
}

#[test]
fn what_a_guest_sends_waits_in_its_ring() -> Result<()> {
    let (mut daemon, mut nics) = lan("nic-limits-send", 2)?;
    // Learned first: what is flooded may find a full ring.
    flood(&mut nics, &[2], 100)?;
    for (setting, wanted) in [
        ("--limit-packets 5000", 5000.0),
        ("--limit-packets 1000", 1000.0),
        ("--limit-packets 0 --limit-bytes 192000", 3000.0),
    ] {
        let view = daemon.ask(&format!("nic set a {setting}"))?;
        ensure!(view["queues_attached"] == 2 && view["limit_burst_ms"] == 100, "{view}");
        let before = drops(&daemon.nic_view("a")?);
        ensure_rate(wanted, 0.01, |ms| Ok(flood(&mut nics, &[2], ms)?.0))?;
        ensure!(drops(&daemon.nic_view("a")?) == before, "its sender lost some");
        ensure_held(&daemon, &mut nics)?;
    }
    daemon.ask("nic set a --limit-bytes 0")?;
    let before = held(&daemon.nic_view("a")?)?;
    let (taken, _) = flood(&mut nics, &[2], 500)?;
    timing::judge(taken > 5000, || format!("{taken} frames without a limit"))?;
    let view = daemon.nic_view("a")?;
    ensure!(held(&view)? == before, "it waits without a limit: {view}");
    // Queue 1 sends.
    ensure!(held(&view["queues"][0])? == [0, 0] && held(&view["queues"][1])? == before, "{view}");
    ensure!(held(&daemon.nic_view("b")?)? == [0, 0]);
    daemon.is_alive()
}

#[test]
fn what_is_sent_to_a_guest_beyond_its_limit_is_dropped_at_its_port() -> Result<()> {
    let (mut daemon, mut nics) = lan("nic-limits-receive", 3)?;
    daemon.ask("nic set b --limit-packets 3000")?;
    // What a guest says lets the switch learn where it is.
    for (number, nic) in (1..).zip(&mut nics) {
        let hello = frames::small(frames::mac(number), frames::mac(9));
        ensure!(nic.pair(0).send(&Header::default(), &hello, &[])?);
        nic.pair(0).drain(90_000)?;
    }
    flood(&mut nics, &[2, 3], 300)?;
    let dropped = |id: &str| -> Result<u64> {
        let all = drops(&daemon.nic_view(id)?);
        let over = all.iter().find(|(reason, _)| reason == "over_limit");
        Ok(over.map_or(0, |(_, frames)| *frames))
    };
    let before = dropped("b")?;
    ensure_rate(3000.0, 0.01, |ms| {
        let (taken, came) = flood(&mut nics, &[2, 3], ms)?;
        println!("{taken} sent, {came:?} came");
        Ok(came[0])
    })?;
    // It may be slower than its sender, as any guest here; and all of them for a while, on a busy machine.
    await_that("the other to get more than the limited one", || {
        let (_, came) = flood(&mut nics, &[2, 3], 300)?;
        Ok(came[1] > came[0])
    })?;
    let lost = dropped("b")? - before;
    ensure!(lost > 0, "{lost} were counted as too many");
    ensure!(dropped("c")? == 0 && dropped("a")? == 0);
    // Nobody waits for it: neither who sends nor who receives.
    for id in ["a", "b", "c"] {
        ensure!(held(&daemon.nic_view(id)?)? == [0, 0], "{id}");
    }
    let switch = daemon.ask("switch show lan")?.to_string();
    ensure!(switch.contains("over_limit"), "{switch}");
    daemon.is_alive()
}

#[test]
fn limits_that_are_none_are_refused_and_say_what_would_be() -> Result<()> {
    let group = "[[switch]]\nid = \"lan\"\n[[group]]\nid = \"file\"\nlimit_packets = 9\n";
    let daemon = Daemon::start("nic-limits-refused", group)?;
    daemon.ask("nic add a --switch lan --group file")?;
    for (line, wrong, right) in [
        ("nic set a --limit-bytes 100", "100 bytes a second are too few", "write 4K or more"),
        ("nic set a --limit-burst-ms 9", "there is a burst, and no limit", "add `--limit-packets`"),
        ("nic set a --group fil", "there is no group \"fil\"", "did you mean \"file\"?"),
        ("nic set a --group other", "there is no group \"other\"", "`sidecore group add other`"),
        ("nic add b --switch lan --limit-packets 0", "invalid value '0'", "from 1 to 1000000000"),
        ("group set file --limit-iops 7", "group \"file\" is declared in", "sidecore reload"),
        ("group rm file", "group \"file\" is declared in", "change it there"),
        ("group add file --limit-iops 7", "is taken by group \"file\"", "a name of its own"),
        ("group add x --limit-burst-ms 9", "there is a burst, and no limit", "`--limit-iops`"),
        ("group rm fil", "there is no group \"fil\"", "`sidecore group show`"),
        ("group set x", "required arguments", "--limit-iops"),
    ] {
        let said = daemon.refuses(line)?;
        ensure!(said.contains(wrong) && said.contains(right), "{line}: {said}");
    }
    ensure!(daemon.shown("a", "group")? == "file");
    ensure!(daemon.shown("a", "limit_packets")? == Value::Null);
    // A change of the file holds at once for what is in its group.
    let file = daemon.dir().join("sidecore.toml");
    std::fs::write(&file, std::fs::read_to_string(&file)?.replace("= 9", "= 10"))?;
    let done = daemon.ask("reload")?;
    ensure!(done["changes"][0] == "set group file: limit_packets 9 becomes 10", "{done}");
    Ok(())
}

#[test]
fn a_group_of_a_disk_and_a_nic_is_made_used_kept_and_removed() -> Result<()> {
    let (mut daemon, mut nics) = lan("nic-limits-group", 2)?;
    flood(&mut nics, &[2], 100)?;
    daemon.ask("disk add d --backend memory --size 4M")?;
    let group = daemon.ask("group add tenant --limit-bytes 2M --limit-iops 100000")?;
    ensure!(group["limit_iops"] == 100_000 && group["declared"] == "api", "{group}");
    for line in ["disk set d --group tenant", "nic set a --group tenant"] {
        daemon.ask(line)?;
    }
    let said = daemon.refuses("group rm tenant")?;
    ensure!(said.contains("group \"tenant\" has members: d, a"), "{said}");
    let spec = FrontendSpec::linux();
    let mut disk = daemon.frontend("d", &spec)?;
    let (load, _) = Load::start(&mut disk)?;
    flood(&mut nics, &[2], 500)?;
    let used = |daemon: &Daemon| -> Result<[u64; 2]> {
        let view = daemon.ask("group show tenant")?;
        ensure!(view["disks"][0] == "d" && view["nics"][0] == "a", "{view}");
        let bytes = |field: &str| view["used"][field].as_u64().context("no such count");
        Ok([bytes("disk_bytes")?, bytes("sent_bytes")?])
    };
    ensure_rate((2u64 << 20) as f64, 0.01, |ms| {
        let before = used(&daemon)?;
        flood(&mut nics, &[2], ms)?;
        let after = used(&daemon)?;
        let both = [after[0] - before[0], after[1] - before[1]];
        println!("{both:?} bytes of the disk and of the nic");
        Ok(both.iter().sum())
    })?;
    let before = used(&daemon)?;
    await_that("both to have had their part", || {
        flood(&mut nics, &[2], 300)?;
        let after = used(&daemon)?;
        Ok((0..2).all(|of| after[of] > before[of]))
    })?;
    // Another limit holds at once, without any queue being detached.
    daemon.ask("group set tenant --limit-bytes 0")?;
    let before = load.done();
    flood(&mut nics, &[2], 500)?;
    timing::judge(load.done() > before + 1000, || {
        "the disk is held back by a limit that is gone".to_string()
    })?;
    load.finish()?;
    // It is there again after a restart, before what is in it.
    daemon.stop()?;
    daemon.start_again()?;
    let group = daemon.ask("group show")?["groups"][0].clone();
    ensure!(group["id"] == "tenant" && group["limit_iops"] == 100_000, "{group}");
    ensure!(group["limit_bytes"] == Value::Null, "{group}");
    ensure!(group["disks"][0] == "d" && group["nics"][0] == "a", "{group}");
    for line in ["disk set d --group=", "nic set a --group=", "group rm tenant"] {
        daemon.ask(line)?;
    }
    ensure!(daemon.ask("group show")?["groups"].as_array().is_some_and(Vec::is_empty));
    Ok(())
}

#[test]
fn a_driver_that_starts_its_queues_anew_does_not_keep_its_group_waiting() -> Result<()> {
    let (daemon, mut nics) = lan("nic-limits-reset", 2)?;
    daemon.ask("group add tenant --limit-packets 10 --limit-burst-ms 100")?;
    daemon.ask("nic set a --group tenant")?;
    daemon.ask("nic set b --group tenant")?;
    let frame = frames::small(frames::mac(1), frames::mac(2));
    let [a, b] = nics.as_mut_slice() else { return Ok(()) };
    let resets = 60u64;
    let began_ns = now_ns();
    for _ in 0..resets {
        let _ = a.pair(0).send(&Header::default(), &frame, &[])?;
        await_that("a new connection to be taken", || {
            Ok(a.reconnect(&daemon.socket("a"), None).is_ok())
        })?;
    }
    let took_ms = (now_ns() - began_ns) / 1_000_000;
    let taken = daemon.nic_view("a")?["counters"]["taken_frames"].as_u64().unwrap_or(0);
    println!("{resets} connections in {took_ms} ms, {taken} frames");
    timing::judge(taken <= 3 + took_ms / 100, || format!("{taken} frames in {took_ms} ms"))?;
    // With a place for each of the connections its turn would be seconds away.
    let frame = frames::small(frames::mac(2), frames::mac(1));
    ensure!(b.pair(0).send(&Header::default(), &frame, &[])?);
    let began_ns = now_ns();
    b.pair(0).drain(90_000)?;
    println!("its neighbour waited for {} ms", (now_ns() - began_ns) / 1_000_000);
    Ok(())
}
