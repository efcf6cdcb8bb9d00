//! Devices that do nothing cost nothing, and wake at once.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use anyhow::{Result, ensure};
use testing::clock::now_ns;
use testing::daemon::{Daemon, pause};
use testing::frontend::{Frontend, FrontendSpec};
use testing::lacking::left_out;
use testing::slots::{Kind, STATUS_OK};
use testing::timing;
use tests::single::Single;

/// How long nothing is asked.
const IDLE: std::time::Duration = std::time::Duration::from_secs(3);
const WAKE_NS_MAX: u64 = 100_000_000;
/// Of `/proc/PID/stat`, fixed by the kernel's ABI.
const TICKS_PER_SECOND: u64 = 100;

fn disks(count: u16, queues: u16) -> String {
    let disk = |number| {
        format!(
            "[[disk]]\nid = \"d{number}\"\nbackend = \"memory\"\nsize = \"1M\"\nqueues = {queues}\n"
        )
    };
    (0..count).map(disk).collect()
}

/// Attaches `count` devices, lets them be idle, and then wakes them.
fn idle_then_wake(count: u16, queues: u16) -> Result<()> {
    let daemon = Daemon::start(&format!("idle-{count}"), &disks(count, queues))?;
    let spec = FrontendSpec { memory_bytes: 4 << 20, queues, ..FrontendSpec::default() };
    let connect = |number: u16| daemon.frontend(&format!("d{number}"), &spec);
    let mut frontends: Vec<Frontend> = (0..count).map(connect).collect::<Result<_>>()?;
    let mut singles = Vec::new();
    for frontend in &mut frontends {
        let single = Single::new(frontend)?;
        // Every queue has worked once.
        for queue in frontend.queues() {
            single.exercise(queue, 1)?;
        }
        singles.push(single);
    }
    let list = daemon.ask("ls")?;
    let attached: u64 = list["disks"]
        .as_array()
        .map_or(0, |disks| disks.iter().filter_map(|d| d["queues_attached"].as_u64()).sum());
    ensure!(attached == u64::from(count) * u64::from(queues), "{attached} queues are attached");

    daemon.await_sleep()?;
    let (ticks, start) = (daemon.cpu_ticks()?, now_ns());
    pause(IDLE);
    let (used, idle_ns) = (daemon.cpu_ticks()? - ticks, now_ns() - start);
    let most = (idle_ns * TICKS_PER_SECOND / 1_000_000_000).div_ceil(100);
    println!("{attached} idle queues: {used} ticks of 10 ms in {idle_ns} ns");
    timing::judge(used <= most, || {
        format!("idle for {idle_ns} ns and {used} ticks of 10 ms; 1% would be {most}")
    })?;

    let last = usize::from(count) - 1;
    for number in [0, last / 2, last] {
        daemon.await_sleep()?;
        let (frontend, single) = (&mut frontends[number], &singles[number]);
        let ended = single.send(frontend.queue(queues - 1), Kind::Read, 1)?;
        println!("woken after {} ns", ended.took_ns);
        ensure!(ended.status == STATUS_OK, "d{number}: {ended:?}");
        timing::judge(ended.took_ns < WAKE_NS_MAX, || format!("d{number}: {ended:?}"))?;
        single.compare(1)?;
    }
    Ok(())
}

#[test]
fn a_hundred_idle_devices_cost_less_than_a_hundredth_of_a_core() -> Result<()> {
    idle_then_wake(100, 1)
}

#[test]
fn a_thousand_idle_queues_cost_less_than_a_hundredth_of_a_core() -> Result<()> {
    idle_then_wake(16, 64)
}

/// The cores given to I/O do nothing else: no thread of control's runs there, and none that the kernel
/// has made for what it cannot do at once.
#[test]
fn a_sidecore_shares_its_core_with_no_other_thread_of_the_daemon() -> Result<()> {
    if rustix::thread::sched_getaffinity(None)?.count() < 2 {
        left_out("there is one processor only, which all threads share");
        return Ok(());
    }
    let disk = "[[disk]]\nid = \"d\"\nbackend = \"file\"\npath = \"d.img\"\nsize = \"4M\"\n";
    let daemon = Daemon::start("own-core", disk)?;
    let spec = FrontendSpec::linux();
    let mut frontend = daemon.frontend("d", &spec)?;
    let single = Single::new(&mut frontend)?;
    let queue = frontend.queue(0);
    for kind in [Kind::Write, Kind::Flush] {
        ensure!(single.send(queue, kind, 0)?.status == STATUS_OK, "{kind:?} failed");
    }
    let threads = daemon.threads()?;
    let of = |name: &str| threads.iter().filter(|(is, _)| is.starts_with(name)).count();
    ensure!(of("sidecore-0") == 1 && of("iou-wrk") >= 1 && threads.len() >= 3, "{threads:?}");
    for (name, cpus) in &threads {
        let is_alone = if name == "sidecore-0" { cpus == "0" } else { !cpus.starts_with('0') };
        ensure!(is_alone, "{name} may run on {cpus}; all: {threads:?}");
    }
    Ok(())
}
