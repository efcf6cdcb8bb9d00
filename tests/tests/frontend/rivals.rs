//! A guest whose vCPU uses its sidecore's processor is seen and reported: in `sidecores`, in `nic show`, and once in the log
//! (docs/decisions/0016-runstate.md). What placement makes of it is tested in `schedule`.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use testing::daemon::{Daemon, await_that};
use testing::frontend::FrontendSpec;
use testing::net_frontend::NicSpec;
use testing::timing;
use tests::sight::sees_vcpus;
use tests::single::Single;

/// Its NIC has its vCPUs followed.
const DEVICES: &str = "[[disk]]\nid = \"d\"\nbackend = \"memory\"\nsize = \"16M\"\n[[nic]]\nid = \"n\"\nnull = \"drop\"\n\
                       queues = 2\nredirect = \"auto\"\n";
const SAID: &str = "its guest runs on a sidecore's processor";

/// How often the log says it.
fn said(daemon: &Daemon) -> Result<usize> {
    let log = std::fs::read_to_string(daemon.dir().join("log"))?;
    Ok(log.lines().filter(|line| line.contains(SAID)).count())
}

/// The guest's only vCPU is a thread of the test, by its name; it is kept busy on that processor until `is_over`.
fn guest(daemon: &Daemon, cpu: usize, is_over: &AtomicBool) -> Result<()> {
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one)?;
    let spec = FrontendSpec::linux();
    let mut disk = daemon.frontend("d", &spec)?;
    let single = Single::new(&mut disk)?;
    let _nic = daemon.nic("n", NicSpec::default())?;
    single.exercise(disk.queue(0), 0)?;
    while !is_over.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
    single.exercise(disk.queue(0), 1)
}

#[test]
fn a_guest_on_a_sidecores_processor_is_reported() -> Result<()> {
    if !sees_vcpus()? {
        return Ok(());
    }
    let mut daemon = Daemon::with("rivals", DEVICES).sidecores("policy = \"poll\"\n").start()?;
    let sidecore =
        |daemon: &Daemon| Ok::<_, anyhow::Error>(daemon.ask("sidecores")?["sidecores"][0].clone());
    let before = sidecore(&daemon)?;
    let cpu = before["cpu"].as_u64().context("no processor")? as usize;
    let is_over = AtomicBool::new(false);
    let vcpu = std::thread::Builder::new().name("CPU 0/TCG".to_string());
    std::thread::scope(|scope| {
        let (daemon, is_over) = (&daemon, &is_over);
        let guest = vcpu.spawn_scoped(scope, move || guest(daemon, cpu, is_over))?;
        let seen = await_that("the vCPU to be seen there", || {
            let lost = sidecore(daemon)?["lost_percent"].as_u64();
            // How much is the machine's other work, too; the log says it of a part that is much.
            Ok(lost >= Some(if timing::are_judged() { 10 } else { 0 }) && said(daemon)? > 0)
        });
        let shown = daemon.ask("nic show n");
        is_over.store(true, Ordering::Relaxed);
        guest.join().map_err(|_| anyhow::anyhow!("the guest panicked"))??;
        seen?;
        let shown = shown?;
        ensure!(shown["run_state"]["vcpus"][0]["on_sidecore"] == 0, "{shown}");
        Ok::<_, anyhow::Error>(())
    })?;
    // Of a sidecore that serves nothing nobody knows it.
    await_that("it to be over", || Ok(sidecore(&daemon)?["lost_percent"].is_null()))?;
    ensure!(said(&daemon)? == 1, "it was said more than once:\n{}", daemon.last_words());
    daemon.is_alive()
}
