//! Limits, and settings that change under load, of a built daemon: nothing is lost, and so much is
//! done as was allowed.

#![expect(clippy::disallowed_macros, reason = "what was measured is for the record")]

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testing::bed::tests_all;
use testing::clock::now_ns;
use testing::daemon::{Daemon, pause};
use testing::frontend::FrontendSpec;
use testing::timing;
use testing::verified::Load;

/// How long a count runs.
const COUNTED: Duration = Duration::from_secs(2);
/// How many of them a limit may need to be met.
const WINDOWS: u32 = 5;
/// What a limit allows at once after a rest.
const BURST: Duration = Duration::from_millis(100);

fn spec() -> FrontendSpec {
    FrontendSpec::linux()
}

/// Requests a second of all `loads` together, from what the daemon answered.
fn rate(loads: &[&Load]) -> Result<f64> {
    let count = || loads.iter().map(|load| load.done()).sum::<u64>();
    let (began_ns, before) = (now_ns(), count());
    pause(COUNTED);
    let (done, took) = (count() - before, Duration::from_nanos(now_ns() - began_ns));
    timing::judge(took < 2 * COUNTED, || format!("the machine was away for {took:?}"))?;
    Ok(done as f64 / took.as_secs_f64())
}

/// In one of a few windows all `loads` together are served as many requests as are `wanted`, and in none of
/// them more than that and a burst: fewer are served while the machine is away, and then a burst more.
fn ensure_within(loads: &[&Load], wanted: f64) -> Result<()> {
    let mut rates = Vec::new();
    for _ in 0..WINDOWS {
        let rate = rate(loads)?;
        println!("{rate:.1} requests a second, {wanted} are allowed");
        rates.push(rate);
        let most = wanted * (1.02 + BURST.as_secs_f64() / COUNTED.as_secs_f64());
        timing::judge(rate <= most, || format!("{rate:.1} a second instead of {wanted}"))?;
        if (rate / wanted - 1.0).abs() <= 0.02 || !timing::are_judged() {
            return Ok(());
        }
    }
    anyhow::bail!("{rates:.1?} a second instead of {wanted}")
}

#[test]
fn a_disk_and_a_group_keep_to_their_limits() -> Result<()> {
    let disks = "[[group]]\nid = \"tenant\"\nlimit_iops = 3000\n\
                 [[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"4M\"\nlimit_iops = 2000\n\
                 [[disk]]\nid = \"b\"\nbackend = \"memory\"\nsize = \"4M\"\ngroup = \"tenant\"\n\
                 [[disk]]\nid = \"c\"\npath = \"c.raw\"\nsize = \"4M\"\ngroup = \"tenant\"\n";
    let mut daemon = Daemon::start("limits", disks)?;
    ensure!(daemon.shown("a", "limit_iops")? == 2000 && daemon.shown("b", "group")? == "tenant");
    let mut frontends = ["a", "b", "c"].map(|id| daemon.frontend(id, &spec()));
    let [a, b, c] = &mut frontends;
    let (a, _) = Load::start(a.as_mut().ok().context("no front-end")?)?;
    let (b, _) = Load::start(b.as_mut().ok().context("no front-end")?)?;
    let (c, _) = Load::start(c.as_mut().ok().context("no front-end")?)?;
    // Until the bursts are used up, 100 ms of each limit.
    for load in [&a, &b, &c] {
        load.await_requests(500)?;
    }
    ensure_within(&[&a], 2000.0)?;
    ensure_within(&[&b, &c], 3000.0)?;
    // A group's limit is changed in the file, and holds at once for those in it.
    let file = daemon.dir().join("sidecore.toml");
    std::fs::write(&file, std::fs::read_to_string(&file)?.replace("3000", "1000"))?;
    daemon.ask("reload")?;
    b.await_requests(200)?;
    ensure_within(&[&b, &c], 1000.0)?;
    daemon.is_alive()?;
    for load in [a, b, c] {
        load.finish()?;
    }
    Ok(())
}

/// What a disk waited for limits: how often and how long, then the same for its group's limit.
fn held(daemon: &Daemon, id: &str) -> Result<[u64; 4]> {
    let counters = daemon.shown(id, "counters")?;
    let count = |field: &str| counters[field].as_u64().with_context(|| format!("{counters}"));
    Ok([count("held")?, count("held_ns")?, count("group_held")?, count("group_held_ns")?])
}

#[test]
fn how_long_a_limit_holds_a_guest_is_shown_and_who_set_it() -> Result<()> {
    let disks = "[[group]]\nid = \"tenant\"\nlimit_iops = 1000\n\
                 [[disk]]\nid = \"own\"\nbackend = \"memory\"\nsize = \"4M\"\nlimit_iops = 1000\n\
                 [[disk]]\nid = \"in\"\npath = \"in.raw\"\nsize = \"4M\"\ngroup = \"tenant\"\n\
                 limit_iops = 100000\n\
                 [[disk]]\nid = \"free\"\nbackend = \"memory\"\nsize = \"4M\"\n";
    let mut daemon = Daemon::start("limits-held", disks)?;
    let ids = ["own", "in", "free"];
    let mut frontends = ids.map(|id| daemon.frontend(id, &spec()));
    let mut loads = Vec::new();
    for frontend in &mut frontends {
        loads.push(Load::start(frontend.as_mut().ok().context("no front-end")?)?.0);
    }
    for load in &loads {
        load.await_requests(500)?;
    }
    let look = || -> Result<(u64, [u64; 4], [u64; 4])> {
        Ok((now_ns(), held(&daemon, "own")?, held(&daemon, "in")?))
    };
    for tried in 1.. {
        let (began_ns, own_before, in_before) = look()?;
        pause(COUNTED);
        let (ended_ns, own, of_group) = look()?;
        let took_ns = ended_ns - began_ns;
        let share = |after: u64, before: u64| (after - before) as f64 / took_ns as f64;
        let shares = [share(own[1], own_before[1]), share(of_group[3], in_before[3])];
        println!("held {shares:?} of the time, {} and {} times", own[0], of_group[2]);
        // A wait that began before counts when it ends.
        timing::judge(shares.iter().all(|share| *share < 1.02), || format!("{shares:?}"))?;
        if shares.iter().all(|share| *share > 0.9) || !timing::are_judged() {
            break;
        }
        // They may be low by as much as the machine was away.
        ensure!(tried < 5, "held only {shares:?} of the time");
    }
    let [times, ns, of_group @ ..] = held(&daemon, "own")?;
    ensure!(times > 0 && ns > 0 && of_group == [0, 0], "{times} {ns} {of_group:?}");
    let [times, ns, group_times, group_ns] = held(&daemon, "in")?;
    ensure!(group_times > 0 && times <= group_times + 10, "{times}, {group_times} of the group");
    ensure!(ns >= group_ns);
    ensure!(held(&daemon, "free")? == [0; 4] && daemon.shown("free", "counters")?["visits"] != 0);
    let used = daemon.ask("group show tenant")?["used"].clone();
    ensure!(used["held_ns"].as_u64() >= Some(group_ns), "{used}");
    ensure!(used["held"].as_u64() >= Some(group_times), "{used}");
    daemon.is_alive()?;
    loads.into_iter().try_for_each(|load| load.finish().map(drop))
}

#[test]
fn settings_change_under_load_and_nothing_is_lost() -> Result<()> {
    let group = "[[group]]\nid = \"tenant\"\nlimit_iops = 20000\n";
    let mut daemon = Daemon::start("limits-change", group)?;
    daemon.ask("disk add a --path a.raw --size 4M")?;
    daemon.ask("disk add b --backend memory --size 4M")?;
    let mut frontends = [daemon.frontend("a", &spec())?, daemon.frontend("b", &spec())?];
    let [a, b] = &mut frontends;
    let loads = [Load::start(a)?.0, Load::start(b)?.0];
    let mut seed = 0x5eed_u64;
    let mut below = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    let changes = if tests_all() { 200 } else { 80 };
    for change in 0..changes {
        let id = if below(2) == 0 { "a" } else { "b" };
        let setting = match below(6) {
            0 => format!("--share {}", 1 + below(1000)),
            1 => format!("--policy {}", ["poll", "notify", "adaptive"][below(3) as usize]),
            2 => format!("--limit-iops {}", [0, 500, 5000, 100_000][below(4) as usize]),
            3 => format!("--limit-bytes {}", ["0", "2M", "40M", "4G"][below(4) as usize]),
            4 => "--group tenant".to_string(),
            _ => "--group=".to_string(),
        };
        daemon.ask(&format!("disk set {id} {setting}"))?;
        // No queue is detached for it, so that none is seen without one.
        ensure!(daemon.shown(id, "queues_attached")? == 1, "change {change}: {setting}");
        if change % 8 == 0 {
            for load in &loads {
                load.await_requests(8)?;
            }
        }
    }
    // Back to no limit at all, both go on.
    for (id, load) in ["a", "b"].iter().zip(&loads) {
        daemon.ask(&format!("disk set {id} --limit-iops 0 --limit-bytes 0 --group="))?;
        load.await_requests(1000)?;
        ensure!(daemon.shown(id, "counters")?["errors"] == 0);
    }
    daemon.is_alive()?;
    for load in loads {
        let done = load.finish()?;
        println!("{} requests, the longest took {} ns", done.requests, done.max_ns);
    }
    Ok(())
}

#[test]
fn numbers_of_policies_change_under_load_and_nothing_is_lost() -> Result<()> {
    let devices = "policy = \"es2\"\n\
                   [[disk]]\nid = \"a\"\npath = \"a.raw\"\nsize = \"4M\"\n\
                   [[disk]]\nid = \"b\"\nbackend = \"memory\"\nsize = \"4M\"\npolicy = \"elvis\"\n\
                   [[nic]]\nid = \"n\"\nnull = \"generate\"\nrate = 1000\n";
    let mut daemon = Daemon::start("policies", devices)?;
    let mut frontends = [daemon.frontend("a", &spec())?, daemon.frontend("b", &spec())?];
    let [a, b] = &mut frontends;
    let loads = [Load::start(a)?.0, Load::start(b)?.0];
    let file = daemon.dir().join("sidecore.toml");
    let text = std::fs::read_to_string(&file)?;
    let with =
        |numbers: &str| text.replacen("[sidecores]\n", &format!("[sidecores]\n{numbers}"), 1);
    let rounds = if tests_all() { 20 } else { 8 };
    for round in 0..rounds {
        let (disk, nic, rate) = (1 + round % 32, 32 - round, 1000 * (1 + round));
        let numbers = format!(
            "es2 = {{ quota_disk = {disk}, quota_nic = {nic} }}\n\
             elvis = {{ rate_in = {rate}, rate_out = {rate} }}\n"
        );
        std::fs::write(&file, with(&numbers))?;
        let changes = daemon.ask("reload")?["changes"].to_string();
        let wanted = [
            format!("becomes es2 (quota {disk})"),
            format!("becomes es2 (quota {nic})"),
            format!("becomes elvis (in at {rate}/s, out below {rate}/s)"),
        ];
        ensure!(wanted.iter().all(|wanted| changes.contains(wanted)), "{changes}");
        for (id, load) in ["a", "b"].iter().zip(&loads) {
            load.await_requests(16)?;
            ensure!(daemon.shown(id, "queues_attached")? == 1, "{id} in round {round}");
        }
    }
    for (number, wrong) in [
        ("es2.quota_disk = 33\n", "33 is out of bounds"),
        ("elvis.rate_out = 20000\n", "rate_out is 20000, but rate_in is 10000"),
    ] {
        std::fs::write(&file, with(number))?;
        let refused = daemon.refuses("reload")?;
        ensure!(refused.contains(wrong), "{refused}");
    }
    daemon.is_alive()?;
    loads.into_iter().try_for_each(|load| load.finish().map(drop))
}
