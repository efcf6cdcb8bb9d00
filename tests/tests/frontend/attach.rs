//! How soon a guest that starts is served.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use anyhow::Result;
use testing::clock::now_ns;
use testing::daemon::Daemon;
use testing::frontend::FrontendSpec;
use testing::slots::Kind;
use testing::timing;
use tests::single::Single;

const ROUNDS: usize = 5;
const ATTACH_NS_MAX: u64 = 50_000_000;
const DISKS: &str = "[[disk]]\nid = \"memory\"\nbackend = \"memory\"\nsize = \"4M\"\n\
    [[disk]]\nid = \"file\"\npath = \"disk.raw\"\nsize = \"4M\"\n";

/// The whole of it is measured, from the connection to the first answer: an upper bound of what
/// lies between SET_MEM_TABLE and that answer.
#[test]
fn a_guest_of_16_gib_is_served_within_50_ms() -> Result<()> {
    let daemon = Daemon::start("attach", DISKS)?;
    for disk in ["memory", "file"] {
        let spec = FrontendSpec { memory_bytes: 16 << 30, ..FrontendSpec::linux() };
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let start = now_ns();
            let mut frontend = daemon.frontend(disk, &spec)?;
            let single = Single::new(&mut frontend)?;
            single.send(frontend.queue(0), Kind::Read, 0)?;
            times.push(now_ns() - start);
            single.exercise(frontend.queue(0), 1)?;
            frontend.disconnect()?;
        }
        times.sort_unstable();
        let median = times[ROUNDS / 2];
        println!("{disk}: {median} ns, the median of {times:?}");
        timing::judge(median < ATTACH_NS_MAX, || format!("{disk}: {median} ns"))?;
    }
    Ok(())
}
