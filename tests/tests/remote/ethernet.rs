//! A link without IP, between two interfaces of a namespace: one client, and four at two sidecores. The dissector of
//! `packaging/` is shown what was on the wire.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use testing::bed::tests_all;
use testing::daemon::await_that;
use testing::lacking::left_out;
use testing::namespace::ended_within;
use testing::own_network::in_namespace;

use super::{remote, remote_shards};
use tests::link_stations::{Stations, Via};

const WITHIN: Duration = Duration::from_secs(90);
const DISSECTOR: &str =
    concat!("lua_script:", env!("CARGO_MANIFEST_DIR"), "/../packaging/sidecore-link.lua");

#[test]
fn a_guest_has_its_disk_over_frames_of_1500() -> Result<()> {
    in_namespace(|| remote::without_ip(&Stations::new(Via::Packet, 1500, 1)?))
}

#[test]
fn a_guest_has_its_disk_over_frames_of_9000() -> Result<()> {
    in_namespace(|| remote::without_ip(&Stations::new(Via::Packet, 9000, 1)?))
}

#[test]
fn four_clients_have_two_sidecores_over_frames_of_1500() -> Result<()> {
    in_namespace(|| remote_shards::without_ip(&Stations::new(Via::Packet, 1500, 1)?))
}

#[test]
fn four_clients_have_two_sidecores_over_frames_of_9000() -> Result<()> {
    in_namespace(|| remote_shards::without_ip(&Stations::new(Via::Packet, 9000, 1)?))
}

/// Every frame is known for one, and the records of a session without keys are read.
#[test]
fn the_dissector_knows_every_frame() -> Result<()> {
    if !tests_all() {
        left_out("tshark is long to install: --all");
        return Ok(());
    }
    in_namespace(|| {
        let stations = Stations::new(Via::PlainPacket, 1500, 1)?;
        let capture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("link.pcapng");
        let _ = std::fs::remove_file(&capture);
        let mut shark = begin(&capture)?;
        remote::without_ip(&stations)?;
        kill_process(Pid::from_child(&shark), Signal::INT)?;
        ended_within(&mut shark, WITHIN)?.context("tshark does not end")?;
        let wrong = "sidecore.wrong || (eth.type == 0x88b5 && !sidecore) || _ws.lua.error";
        let wrong = dissected(&capture, &["-Y", wrong])?.lines().count();
        ensure!(wrong == 0, "{wrong} frames are not what it knows: {}", capture.display());
        let said =
            dissected(&capture, &["-Y", "sidecore", "-T", "fields", "-e", "sidecore.record"])?;
        let mut records: BTreeMap<&str, u32> = BTreeMap::new();
        for record in said.lines().flat_map(|line| line.split(',')) {
            *records.entry(record).or_default() += 1;
        }
        for record in ["ack", "part", "piece", "done", "bind", "bound"] {
            ensure!(records.contains_key(record), "it has seen no {record}: {records:?}");
        }
        println!("remote: the dissector has seen {records:?}");
        std::fs::remove_file(capture)?;
        Ok(())
    })
}

/// It captures when this returns.
fn begin(capture: &Path) -> Result<Child> {
    let mut shark = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "tshark", "-q", "-i", Stations::THERE, "-w"])
        .arg(capture)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    await_that("tshark (Debian: apt-get install tshark) to capture", || {
        ensure!(shark.try_wait()?.is_none(), "tshark has ended (Debian: apt-get install tshark)");
        Ok(std::fs::metadata(capture).is_ok_and(|file| file.len() > 0))
    })?;
    Ok(shark)
}

fn dissected(capture: &Path, words: &[&str]) -> Result<String> {
    let mut command = Command::new("tshark");
    let output = command.args(["-X", DISSECTOR, "-r"]).arg(capture).args(words).output()?;
    let wrong = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "tshark ended with {}: {wrong}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
