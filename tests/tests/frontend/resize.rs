//! A disk that gets another size while its guest works.

use std::io::Read;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testing::daemon::Daemon;
use testing::frontend::{Frontend, FrontendSpec, PROTOCOL_BACKEND_REQ};
use testing::slots::{Kind, STATUS_OK};
use testing::verified::Load;
use tests::single::{BLOCK_SIZE, Single};

const MIB: u64 = 1 << 20;
const STATUS_IOERR: u8 = 1;
/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`, version 1, no payload.
const CONFIG_CHANGE: [u8; 12] = [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// A daemon without disks in its file; those are made through the API, so that it may resize them.
fn start(name: &str, made_of: &str) -> Result<(Daemon, Frontend)> {
    let daemon = Daemon::start(name, "")?;
    daemon.ask(&format!("disk add vm {made_of} --size 16M --queues 2"))?;
    let spec = FrontendSpec {
        queues: 2,
        protocol_features: PROTOCOL_BACKEND_REQ,
        ..FrontendSpec::linux()
    };
    let frontend = daemon.frontend("vm", &spec)?;
    Ok((daemon, frontend))
}

fn last_block(bytes: u64) -> u64 {
    bytes / BLOCK_SIZE as u64 - 1
}

fn grows_under_load(name: &str, made_of: &str) -> Result<()> {
    let (daemon, mut frontend) = start(name, made_of)?;
    let mut channel = frontend.open_channel()?;
    channel.set_read_timeout(Some(Duration::from_secs(90)))?;
    let single = Single::new(&mut frontend)?;
    let (load, mut others) = Load::start(&mut frontend)?;
    let queue = others.first_mut().context("two queues")?;
    for mib in [17, 32, 33, 64] {
        let beyond = last_block(mib * MIB);
        let ended = single.send(queue, Kind::Read, beyond)?;
        ensure!(ended.status == STATUS_IOERR, "block {beyond} before: {ended:?}");
        load.await_requests(200)?;
        let shown = daemon.ask(&format!("disk resize vm {mib}M"))?;
        ensure!(shown["size_bytes"] == mib * MIB, "answered {shown}");
        let mut notice = [0; 12];
        channel.read_exact(&mut notice).with_context(|| format!("told of {mib}M"))?;
        ensure!(notice == CONFIG_CHANGE, "told {notice:?}");
        let sectors = frontend.capacity_sectors()?;
        ensure!(sectors == mib * MIB / 512, "the config space says {sectors} sectors");
        single.exercise(queue, beyond)?;
        load.await_requests(200)?;
    }
    let done = load.finish()?;
    ensure!(done.requests > 1600, "{} requests", done.requests);
    ensure!(daemon.shown("vm", "problem")?.is_null());
    Ok(())
}

#[test]
fn a_memory_disk_grows_under_load() -> Result<()> {
    grows_under_load("resize-memory", "--backend memory")
}

#[test]
fn a_file_grows_under_load() -> Result<()> {
    grows_under_load("resize-file", "--path disk.raw")
}

#[test]
fn a_null_disk_grows() -> Result<()> {
    let (daemon, mut frontend) = start("resize-null", "--backend null")?;
    daemon.ask("disk resize vm 1T")?;
    ensure!(frontend.capacity_sectors()? == (1 << 40) / 512);
    Ok(())
}

/// Either the daemon says no, or what is beyond the new end fails.
#[test]
fn nothing_is_read_or_written_beyond_the_end_of_a_disk_that_shrank() -> Result<()> {
    for made_of in ["--backend memory", "--path disk.raw"] {
        let name = if made_of.contains("memory") { "shrink-memory" } else { "shrink-file" };
        let (daemon, mut frontend) = start(name, made_of)?;
        let single = Single::new(&mut frontend)?;
        let (load, mut others) = Load::start(&mut frontend)?;
        let queue = others.first_mut().context("two queues")?;
        single.exercise(queue, last_block(16 * MIB))?;
        load.await_requests(100)?;
        match daemon.ask("disk resize vm 8M --force") {
            Ok(shown) => {
                ensure!(shown["size_bytes"] == 8 * MIB, "answered {shown}");
                ensure!(frontend.capacity_sectors()? == 8 * MIB / 512);
                for kind in [Kind::Read, Kind::Write] {
                    let ended = single.send(queue, kind, last_block(8 * MIB) + 1)?;
                    ensure!(ended.status == STATUS_IOERR, "{made_of}: {kind:?} beyond: {ended:?}");
                }
                single.exercise(queue, last_block(8 * MIB))?;
            }
            Err(_) => {
                ensure!(frontend.capacity_sectors()? == 16 * MIB / 512, "refused, and changed");
                let ended = single.send(queue, Kind::Read, last_block(16 * MIB))?;
                ensure!(ended.status == STATUS_OK, "{made_of}: {ended:?}");
                single.compare(last_block(16 * MIB))?;
            }
        }
        load.await_requests(100)?;
        load.finish()?;
    }
    Ok(())
}

#[test]
fn sizes_that_are_none_are_refused_and_change_nothing() -> Result<()> {
    let (daemon, mut frontend) = start("resize-odd", "--backend memory")?;
    for size in ["0", "1000", "513", "17E"] {
        daemon.refuses(&format!("disk resize vm {size}"))?;
        ensure!(frontend.capacity_sectors()? == 16 * MIB / 512, "after {size}");
    }
    ensure!(daemon.refuses("disk resize nobody 1M")?.contains("no disk"));
    Ok(())
}
