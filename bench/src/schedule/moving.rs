//! Queues that move between two sidecores, at random, while their guests write, read back and compare.
//!
//! | row | what |
//! |---|---|
//! | `moving.*` | the sidecores share their cores with the guests, as the scheduler sees fit |
//! | `moving.ahead.*` | the guests run only while a sidecore has nothing to do, as if its core were its own |
//!
//! On a machine of two cores the first are mostly about how soon a thread gets a core back, the second about
//! what a move takes. A request that failed, was lost or differs ends the bench with an error.

use anyhow::{Context, Result, bail, ensure};
use testing::frontend::{Frontend, FrontendSpec};
use testing::load::Random;
use testing::mover::{Mover, Wish};
use testing::report::Row;
use testing::verified::Load;

use super::counters::Counters;
use super::daemon::{Daemon, Disk};
use super::{Options, USUAL_RING, row};

const DISKS: u16 = 4;
const DISK_BYTES: u64 = 4 << 20;
/// Between two looks whether all guests are served.
const LOOK_MOVES: u64 = 100;

pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    let wanted = if options.quick { 500 } else { 10_000 };
    let mut rows = Vec::new();
    for (ahead, name) in [(false, "moving"), (true, "moving.ahead")] {
        eprintln!("bench: schedule.{name}: {wanted} moves");
        let seen = run(options, ahead, wanted)?;
        let of_all = |value: &dyn Fn(&Counters) -> u64| seen.iter().map(value).max().unwrap_or(0);
        let sum = |value: &dyn Fn(&Counters) -> u64| seen.iter().map(value).sum::<u64>();
        let told =
            |what: &str, unit, value: u64| row(format!("{name}.{what}"), unit, &[value as f64]);
        let of_one = [
            told("moves", "1", sum(&|c| c.moves_in)),
            told("stayed", "1", sum(&|c| c.moves_stayed)),
            told("pause_p50_ns", "ns", of_all(&|c| c.move_pause_p50_ns.unwrap_or(0))),
            told("pause_p99_ns", "ns", of_all(&|c| c.move_pause_p99_ns.unwrap_or(0))),
            told("pause_max_ns", "ns", of_all(&|c| c.move_pause_max_ns.unwrap_or(0))),
        ];
        for row in &of_one {
            eprintln!("bench: {}: {:.0}", row.name, row.value);
        }
        rows.extend(of_one);
    }
    Ok(rows)
}

/// So many moves; what the sidecores counted.
fn run(options: &Options, ahead: bool, wanted: u64) -> Result<Vec<Counters>> {
    let name = if ahead { "moving-ahead" } else { "moving" };
    let disk = |number: u16| Disk {
        backend: "memory",
        size_bytes: DISK_BYTES,
        ..Disk::null(format!("disk{number}"), 1)
    };
    let disks: Vec<Disk> = (0..DISKS).map(disk).collect();
    let daemon = Daemon::start_on_all(options, name, ahead, &disks)?;
    let spec = FrontendSpec { ring: USUAL_RING, ..FrontendSpec::linux() };
    let (mut frontends, mut loads): (Vec<Frontend>, Vec<Load>) = Default::default();
    for disk in &disks {
        let mut frontend = daemon.frontend(&disk.id, &spec)?;
        let (load, _) = Load::start(&mut frontend)?;
        load.await_requests(10)?;
        frontends.push(frontend);
        loads.push(load);
    }
    let (mover, mut random) = (Mover::new(daemon.place()), Random(0x5eed));
    // Where each is.
    let mut to = vec![0; disks.len()];
    for disk in &disks {
        // Not counted; refused or not, the rows say what happened.
        while mover.move_disk(&disk.id, 0)? == Wish::NotNow {}
    }
    let (mut moved, mut stayed) = (0, 0);
    while moved < wanted {
        ensure!(stayed < 4 * wanted, "{stayed} of {} moves did not happen", stayed + moved);
        let at = random.below(disks.len() as u64) as usize;
        let (disk, to) = disks.get(at).zip(to.get_mut(at)).context("no disk")?;
        match mover.move_disk(&disk.id, 1 - *to)? {
            Wish::Done => (moved, *to) = (moved + 1, 1 - *to),
            Wish::NotNow => stayed += 1,
            Wish::Never => bail!("{} cannot be moved", disk.id),
        }
        if (moved + stayed) % LOOK_MOVES == 0 {
            loads.iter().try_for_each(|load| load.await_requests(1))?;
        }
    }
    for (load, disk) in loads.into_iter().zip(&disks) {
        load.await_requests(100)?;
        load.finish().with_context(|| format!("disk {}", disk.id))?;
    }
    daemon.counters_of_all()
}
