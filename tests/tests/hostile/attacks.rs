//! Attacks of `docs/decisions/0004-known-attacks.md` that a guest or front-end makes on what all disks
//! on files share: the sidecore's io_uring, the kernel's workers, and its time. The neighbour is on a
//! file, too.
//!
//! 1 and 2 are in `lost_memory`, 3, 7 and 12 in `connections`, 6 in `bad_rings`, 8 in `hostile_storm`, 9
//! and 11 in `bad_memory`.

#![expect(clippy::disallowed_macros, reason = "what was measured is for the record")]

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use testing::daemon::pause;
use testing::timing;
use tests::fuse_disk::{Call, FuseDisk, FuseDiskSpec, How, Rule, When};
use tests::hostile_bed::{BAD, Bed};
use tests::hostile_guest::{End, WRITE};
use tests::ledger::Order;
use tests::misdeeds::FILE;
use tests::misdeeds::storms::{beside_programs, prepare, wide_pair};

const VICTIM: &str = "path = \"victim.img\"\nsize = \"16M\"";
const IN: u32 = 0;

#[test]
fn attack_04_flush_storm_beside_a_file() -> Result<()> {
    beside_a_file("attack-04", false)
}

#[test]
fn attack_10_discards_and_flushes_beside_a_file() -> Result<()> {
    beside_a_file("attack-10", true)
}

fn beside_a_file(name: &str, discards: bool) -> Result<()> {
    let bed = Bed::start_beside_apart(name, VICTIM, FILE)?;
    let ended = Arc::new(AtomicU64::new(0));
    let mut storm = beside_programs(bed.daemon.dir(), discards, &ended);
    let guest = RefCell::new(bed.guest(storm.layout)?);
    if !discards {
        // The neighbour's guest has started and keeps its rank. What is asked is what the sidecore and
        // the kernel do for the hostile guest, not what its own vCPU takes from the neighbour's. Discards
        // are the kernel's work and little of a vCPU's: programs of low rank would do too few of them to
        // be compared with.
        rustix::process::setpriority_process(None, 19)?;
    }
    let shown = bed
        .compare(|| (storm.good)(&mut guest.borrow_mut()), || (storm.bad)(&mut guest.borrow_mut()));
    let syncs = bed.daemon.shown(BAD, "faults")?["syncs"].clone();
    let counted = bed.daemon.shown(BAD, "counters")?;
    println!(
        "{name}: {} syncs and discards by programs beside the daemon; {syncs} syncs by the daemon for \
         {} flushes, and {} discards",
        ended.load(Ordering::Relaxed),
        counted["flushes"],
        counted["discards"]
    );
    println!("{name}: {}", shown?);
    drop(guest);
    bed.finish()
}

/// A disk that answers nothing any more keeps its own requests, and nobody else's place.
#[test]
fn attack_05_disk_that_hangs_beside_a_file() -> Result<()> {
    let spec =
        FuseDiskSpec { size_bytes: 4 << 20, writeback_cache: false, order: Order::default() };
    let disk = FuseDisk::mount("attack-05-disk", &spec)?;
    let bad = format!("path = \"{}\"\ncache = \"direct\"\nqueues = 2", disk.path().display());
    let bed = Bed::start_beside("attack-05", VICTIM, &bad)?;
    let mut guest = bed.guest(wide_pair())?;
    guest.honest(IN, 0, 4096)?;
    // Idle before, and hanging from then on: what hangs is told apart by time only.
    let rest = || {
        pause(std::time::Duration::from_millis(5));
        Ok(())
    };
    let mut rates = Vec::new();
    for hangs in [false, true] {
        if hangs {
            disk.obey(Rule { call: Call::Read, when: When::Always, how: How::Hang });
            for at in [0, 1] {
                guest.at = at;
                let heads = prepare(&mut guest, 42, &[(IN, 4096, WRITE)]);
                guest.offer_heads(&heads);
                guest.kick()?;
            }
            pause(std::time::Duration::from_millis(20));
        }
        let shown = bed.compare(rest, rest)?;
        rates.push(shown.beside_good());
    }
    let kept = rates[1] / rates[0];
    println!("attack-05: 84 requests hang; the neighbour has {:.0}% of its rate", kept * 100.0);
    // One after the other, so that much of a difference is the machine's. A neighbour that has to wait for the disk that
    // hangs gets on in no window, which `compare` does not bear.
    timing::judge(kept >= 0.5, || {
        format!("beside a disk that hangs the neighbour has {kept:.2} of its rate")
    })?;
    disk.heal();
    for at in [0, 1] {
        guest.at = at;
        for _ in 0..42 {
            ensure!(matches!(guest.end()?, End::Used(..)), "what hung ends");
        }
    }
    drop(guest);
    bed.finish()
}
