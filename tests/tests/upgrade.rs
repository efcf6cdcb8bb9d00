//! Another process takes over from the daemon, again and again, while its guests write, read back and
//! compare, and send frames to each other (reliability P39, U1).
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::time::Duration;

use anyhow::{Result, ensure};
use bench::frontend::{Frontend, FrontendSpec, LINUX_FEATURES};
use bench::net_frontend::{Nic, NicSpec, frames};
use tests::daemon::{Daemon, await_that};
use tests::hostile_bed::is_long;
use tests::load::Load;
use tests::rows;
use tests::traffic::{self, LONGEST};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

const NAMES: [&str; 4] = ["memory0", "memory1", "file0", "file1"];
const DISKS: &str = "\
[[disk]]\nid = \"memory0\"\nbackend = \"memory\"\nsize = \"4M\"\n\
[[disk]]\nid = \"memory1\"\nbackend = \"memory\"\nsize = \"4M\"\n\
[[disk]]\nid = \"file0\"\npath = \"file0.raw\"\nsize = \"4M\"\n\
[[disk]]\nid = \"file1\"\npath = \"file1.raw\"\nsize = \"4M\"\ncache = \"page\"\n";

/// Every second disk has a packed ring.
fn spec(number: usize) -> FrontendSpec {
    let packed = number % 2 == 1;
    let ring = RingSpec {
        size: if packed { 100 } else { 128 },
        format: if packed { Format::Packed } else { Format::Split },
        event_index: true,
        indirect_entries: 0,
    };
    FrontendSpec { ring, features: LINUX_FEATURES, inflight: true, ..FrontendSpec::default() }
}

fn quantile(sorted: &[u64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * part) as usize).map_or(0.0, |ns| *ns as f64 / 1e6)
}

#[test]
fn disks_under_load_are_taken_over_without_a_request_lost() -> Result<()> {
    let often = std::env::var("UPGRADES").ok().and_then(|text| text.parse().ok());
    let wanted: u32 = often.unwrap_or(if is_long() { 500 } else { 40 });
    let mut daemon = Daemon::start_on("upgrade", "0", DISKS)?;
    let (mut loads, mut frontends): (Vec<Load>, Vec<Frontend>) = (Vec::new(), Vec::new());
    for (number, name) in NAMES.iter().enumerate() {
        let mut frontend = daemon.frontend(name, &spec(number))?;
        let (load, _) = Load::start(&mut frontend)?;
        load.await_requests(10)?;
        loads.push(load);
        frontends.push(frontend);
    }
    let (mut worst, mut usual) = (Vec::new(), Vec::new());
    for _ in 0..wanted {
        for load in &loads {
            load.take_worst_ns();
        }
        loads.iter().try_for_each(|load| load.await_requests(200))?;
        usual.extend(loads.iter().map(Load::take_worst_ns));
        daemon.upgrade()?;
        loads.iter().try_for_each(|load| load.await_requests(20))?;
        worst.extend(loads.iter().map(Load::take_worst_ns));
    }
    let mut requests = 0;
    for (load, name) in loads.into_iter().zip(NAMES) {
        let done = load.finish()?;
        requests += done.requests;
        let counters = daemon.shown(name, "counters")?;
        ensure!(counters["errors"] == 0 && counters["in_flight"] == 0, "{name}: {counters}");
        ensure!(
            counters["requests"] == done.requests,
            "{name}: {} asked {counters}",
            done.requests
        );
    }
    worst.sort_unstable();
    usual.sort_unstable();
    println!(
        "{{\"upgrades\":{wanted},\"requests\":{requests},\"errors\":0,\"longest_request_p50_ms\":{:.3},\
         \"p99_ms\":{:.3},\"max_ms\":{:.3},\"between_upgrades_p50_ms\":{:.3},\"between_p99_ms\":{:.3}}}",
        quantile(&worst, 0.5),
        quantile(&worst, 0.99),
        quantile(&worst, 1.0),
        quantile(&usual, 0.5),
        quantile(&usual, 0.99),
    );
    for (name, part) in [("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0)] {
        rows::add(&format!("upgrade.{name}"), "ms", &[quantile(&worst, part)])?;
        rows::add(&format!("no_upgrade.{name}"), "ms", &[quantile(&usual, part)])?;
    }
    rows::add("upgrade.upgrades", "1", &[wanted as f64])?;
    rows::add("upgrade.errors", "1", &[0.0])?;
    drop(frontends);
    daemon.stop()
}

#[test]
fn frames_go_on_and_none_is_lost_doubled_or_overtaken() -> Result<()> {
    let wanted = if is_long() { 200 } else { 20 };
    let mac = |number| frames::mac(number).map(|byte| format!("{byte:02x}")).join(":");
    let mut config = String::from("[[switch]]\nid = \"lan\"\n");
    for (number, name) in [(1, "one"), (2, "two")] {
        let mac = mac(number);
        config +=
            &format!("[[nic]]\nid = \"{name}\"\nswitch = \"lan\"\nmac = \"{mac}\"\nmtu = 9000\n");
    }
    let mut daemon = Daemon::start_on("upgrade-nics", "0-1", &config)?;
    let connect = |name: &str| -> Result<Nic> {
        let spec = NicSpec { send_bytes: LONGEST, ..NicSpec::default() };
        let nic = Nic::connect(&daemon.socket(name), spec)?;
        await_that(Duration::from_secs(20), "both queues to be attached", || {
            Ok(daemon.ask(&format!("nic show {name}"))?["queues_attached"] == 2)
        })?;
        Ok(nic)
    };
    let guests = traffic::start([(connect("one")?, 1), (connect("two")?, 2)])?;
    for _ in 0..wanted {
        if guests.iter().any(|guest| guest.await_frames(100).is_err()) {
            break;
        }
        daemon.upgrade()?;
    }
    // A guest that has ended says why.
    let done = traffic::finish(guests)?;
    for (at, name) in ["one", "two"].iter().enumerate() {
        let counters = daemon.ask(&format!("nic show {name}"))?["counters"].clone();
        ensure!(counters["dropped_frames"] == 0, "{name}: {counters}");
        ensure!(counters["taken_frames"] == done[at].sent, "{name}: {counters}");
        ensure!(counters["delivered_frames"] == done[at].taken, "{name}: {counters}");
    }
    println!("{{\"upgrades\":{wanted},\"frames\":{},\"lost\":0}}", done[0].sent + done[1].sent);
    daemon.stop()
}
