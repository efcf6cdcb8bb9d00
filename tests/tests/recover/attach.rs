//! A guest of 16 GiB that connects: how long until its first request is answered.

use std::time::Duration;

use anyhow::{Result, ensure};
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that, pause};
use testing::frontend::FrontendSpec;
use testing::slots::{Kind, STATUS_OK};
use testing::timing::told;
use tests::rows;
use tests::single::Single;

const DISK: &str = "[[disk]]\nid = \"memory0\"\nbackend = \"memory\"\nsize = \"4M\"\n";

/// Memory of the guest, bytes; a hole but for its rings and one request.
const MEMORY_BYTES: u64 = 16 << 30;

/// Long enough for control to sleep again.
const SETTLED: Duration = Duration::from_millis(20);

#[test]
fn a_guest_of_16_gib_attaches_without_its_memory_being_touched() -> Result<()> {
    let attaches = told("ATTACHES", 3)?;
    let mut daemon = Daemon::start("attach", DISK)?;
    let spec = FrontendSpec { memory_bytes: MEMORY_BYTES, ..FrontendSpec::linux() };
    let mut took_ms = Vec::new();
    for _ in 0..attaches {
        // Nothing of the one before is under way any more.
        await_that("the disk to wait", || Ok(daemon.shown("memory0", "state")? == "waiting"))?;
        pause(SETTLED);
        let begun = now_ns();
        let mut frontend = daemon.frontend("memory0", &spec)?;
        let single = Single::new(&mut frontend)?;
        let ended = single.send(frontend.queue(0), Kind::Read, 0)?;
        ensure!(ended.status == STATUS_OK, "answered with status {}", ended.status);
        took_ms.push((now_ns() - begun) as f64 / 1e6);
        let resident = frontend.resident_bytes()?;
        ensure!(resident < 1 << 20, "{resident} bytes of the guest are there");
    }
    rows::add("attach.16_gib_ms", "ms", &took_ms)?;
    daemon.stop()
}
