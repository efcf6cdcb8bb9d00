//! Devices come and go while others work; what was made stays made.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use anyhow::{Result, ensure};
use testing::daemon::Daemon;
use testing::frontend::FrontendSpec;
use testing::slots::{Kind, STATUS_OK};
use testing::timing;
use testing::verified::Load;
use tests::single::Single;

const DISKS: &str = "[[disk]]\nid = \"steady\"\npath = \"steady.raw\"\nsize = \"4M\"\n";
/// Longer than any detach or attach of others may hold a neighbour up, on a machine that also does
/// other work.
const STOP_NS_MAX: u64 = 250_000_000;

fn spec(queues: u16) -> FrontendSpec {
    FrontendSpec { queues, ..FrontendSpec::linux() }
}

#[test]
fn devices_come_and_go_beside_one_that_works() -> Result<()> {
    let mut daemon = Daemon::start("run-time", DISKS)?;
    let mut frontend = daemon.frontend("steady", &spec(1))?;
    let (load, _) = Load::start(&mut frontend)?;
    load.await_requests(100)?;
    let descriptors = daemon.descriptors()?;
    for number in 0..20u64 {
        let made_of = match number % 3 {
            0 => "--backend memory --size 4M".to_string(),
            1 => format!("--path other{number}.raw --size 4M"),
            _ => "--backend null --size 1T".to_string(),
        };
        let id = format!("other{number}");
        daemon.ask(&format!("disk add {id} {made_of} --queues 4"))?;
        let mut other = daemon.frontend(&id, &spec(4))?;
        let single = Single::new(&mut other)?;
        for queue in other.queues() {
            match number % 3 {
                2 => drop(single.send(queue, Kind::Read, 1)?),
                _ => single.exercise(queue, number)?,
            }
        }
        daemon.ask(&format!("disk set {id} --share 3 --policy notify"))?;
        single.send(other.queue(3), Kind::Read, 1)?;
        // Every other one is removed while its front-end is still there.
        if number % 2 == 0 {
            other.disconnect()?;
        }
        daemon.ask(&format!("disk rm {id} --force"))?;
        load.await_requests(20)?;
        daemon.is_alive()?;
    }
    daemon.await_descriptors(descriptors)?;
    let done = load.finish()?;
    let longest = format!("of {} requests the longest took {} ns", done.requests, done.max_ns);
    println!("{longest}");
    timing::judge(done.max_ns < STOP_NS_MAX, || longest)?;
    ensure!(daemon.shown("steady", "counters")?["errors"] == 0);
    Ok(())
}

#[test]
fn disks_made_through_the_api_outlive_the_daemon() -> Result<()> {
    let mut daemon = Daemon::start("run-state", DISKS)?;
    daemon.ask("disk add kept --path kept.raw --size 4M --queues 3 --serial KEPT")?;
    daemon.ask("disk add scratch --backend memory --size 4M")?;
    daemon.ask("disk add gone --backend memory --size 4M")?;
    daemon.ask("disk resize kept 8M")?;
    daemon.ask("disk set kept --share 7")?;
    daemon.ask("disk rm gone --force")?;
    let mut frontend = daemon.frontend("kept", &spec(3))?;
    Single::new(&mut frontend)?.exercise(frontend.queue(2), 2000)?;
    frontend.disconnect()?;

    daemon.stop()?;
    ensure!(!daemon.socket("kept").exists(), "its socket is left behind");
    daemon.start_again()?;

    let list = daemon.ask("ls")?;
    let mut ids: Vec<&str> = Vec::new();
    ids.extend(list["disks"].as_array().into_iter().flatten().filter_map(|d| d["id"].as_str()));
    ids.sort_unstable();
    ensure!(ids == ["kept", "scratch", "steady"], "after the restart there are {ids:?}");
    let kept = daemon.ask("show kept")?;
    ensure!(kept["size_bytes"] == 8 << 20 && kept["share"] == 7, "{kept}");
    ensure!(kept["queues_max"] == 3 && kept["serial"] == "KEPT", "{kept}");
    let mut frontend = daemon.frontend("kept", &spec(3))?;
    let single = Single::new(&mut frontend)?;
    single.send(frontend.queue(0), Kind::Read, 2000)?;
    single.compare(2000)
}

#[test]
fn a_stop_loses_nothing_that_was_flushed() -> Result<()> {
    let mut daemon = Daemon::start("run-stop", DISKS)?;
    let mut frontend = daemon.frontend("steady", &spec(1))?;
    let single = Single::new(&mut frontend)?;
    for block in 0..64 {
        single.exercise(frontend.queue(0), block)?;
    }
    let flushed = single.send(frontend.queue(0), Kind::Flush, 0)?.status;
    ensure!(flushed == STATUS_OK, "the flush ended with {flushed}");
    daemon.stop()?;
    daemon.start_again()?;
    let mut frontend = daemon.frontend("steady", &spec(1))?;
    let single = Single::new(&mut frontend)?;
    for block in 0..64 {
        single.send(frontend.queue(0), Kind::Read, block)?;
        single.compare(block)?;
    }
    Ok(())
}
