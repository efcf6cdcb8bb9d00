//! Rows A29 to A32, C10 and C13 of `docs/security.md`, and what else a guest can do
//! without end: a neighbour on the same sidecore must have nine tenths of what it has beside a
//! guest that is as busy with what is right.
//!
//! As busy: one that keeps as many bytes in flight, since a share of a core is measured in requests
//! and bytes. What that good guest does is said at each row.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use testing::clock::now_ns;

use super::{FILE, LARGE, Storm};
use crate::hostile_bed::{Waits, pump};
use crate::hostile_guest::{D, DATA, Guest, HEADER, INDIRECT, Layout, NEXT, TABLE, WRITE};
use testing::daemon::pause;

/// A little less than a window.
const FOR_NS: u64 = 12_000_000;
/// Where the range of a discard is.
const RANGE: u64 = DATA + 0x8_0000;
const IN: u32 = 0;
const FLUSH: u32 = 4;
const DISCARD: u32 = 11;
/// Commands of this kind that the daemon lets one disk have in the kernel at once.
const AT_ONCE: usize = 4;
const WRITE_ZEROES: u32 = 13;

/// Lays out `count` requests of three descriptors, of those kinds in turn: type, bytes of data, flags.
/// Gives their heads.
pub fn prepare(guest: &mut Guest, count: u16, kinds: &[(u32, u32, u16)]) -> Vec<u16> {
    let table = guest.places()[0];
    guest.put(RANGE, &range(2048));
    for slot in 0..count {
        let (kind, len, flags) = kinds[usize::from(slot) % kinds.len()];
        guest.header_at(slot, kind, 0);
        let (header, head) = (HEADER + u64::from(slot) * 64, slot * 3);
        let data = if kind == DISCARD { RANGE } else { DATA };
        guest.entry(table, head, D(header, 16, NEXT, head + 1));
        guest.entry(table, head + 1, D(data, len, NEXT | flags, head + 2));
        guest.entry(table, head + 2, D(header + 32, 1, WRITE, 0));
    }
    (0..count).map(|slot| slot * 3).collect()
}

/// A range of so many sectors, from the first one on.
fn range(sectors: u32) -> Vec<u8> {
    let mut range = 0u64.to_le_bytes().to_vec();
    range.extend(sectors.to_le_bytes());
    range.extend([0; 4]);
    range
}

/// Reads of a sector, one after the other.
fn one_by_one(guest: &mut Guest) -> Result<()> {
    let heads = prepare(guest, 1, &[(IN, 512, WRITE)]);
    pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
}

/// Keeps `count` reads into those pieces in flight.
fn indirect(guest: &mut Guest, count: u16, pieces: &[(u64, u32)]) -> Result<()> {
    let heads = prepare_indirect(guest, count, pieces);
    pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
}

/// As [`prepare`], each in an indirect table: header, `pieces` of data, status.
fn prepare_indirect(guest: &mut Guest, count: u16, pieces: &[(u64, u32)]) -> Vec<u16> {
    let ring = guest.places()[0];
    let entries = pieces.len() as u16 + 2;
    for slot in 0..count {
        // All use the same header and the same pieces; only the tables' heads differ.
        guest.entry(ring, slot, D(TABLE, u32::from(entries) * 16, INDIRECT, 0));
    }
    guest.header(IN, 0);
    let mut table = vec![D(HEADER, 16, NEXT, 1)];
    for (at, (gpa, len)) in (2..).zip(pieces) {
        table.push(D(*gpa, *len, NEXT | WRITE, at));
    }
    table.push(D(HEADER + 32, 1, WRITE, 0));
    guest.table(&table);
    (0..count).collect()
}

/// Two queues of 128 entries.
pub fn wide_pair() -> Layout {
    Layout { queues: 2, ..wide(0) }
}

fn wide(features: u64) -> Layout {
    Layout { size: 128, features: features | Layout::default().features, ..Layout::default() }
}

pub fn a29_kick_storm() -> Storm {
    // Beside a guest that has one request after another, each with its kick.
    Storm::new(LARGE, wide(0), one_by_one, move |guest| {
        for _ in 0..1000 {
            guest.kick()?;
        }
        Ok(())
    })
}

pub fn a29_kick_counter_that_is_full() -> Storm {
    Storm::new(LARGE, wide(0), one_by_one, full_kicks)
}

/// One request after another, whose kick leaves no room for another kick in the counter.
fn full_kicks(guest: &mut Guest) -> Result<()> {
    let heads = prepare(guest, 1, &[(IN, 512, WRITE)]);
    let start = now_ns();
    while now_ns() - start < FOR_NS {
        guest.forget_kicks()?;
        guest.offer_heads(&heads);
        guest.kick_by(u64::MAX - 1)?;
        let kicked = now_ns();
        while guest.take_used().is_none() {
            ensure!(now_ns() - kicked < 90_000_000_000, "a request does not come back");
            std::hint::spin_loop();
        }
        // The counter takes no more, and nobody is woken: nothing may come of these.
        (0..8).try_for_each(|_| guest.kick())?;
    }
    // Who comes next must be able to kick.
    guest.forget_kicks()?;
    ensure!(!guest.was_broken()?, "the queue broke");
    Ok(())
}

pub fn a30_ring_that_never_empties() -> Storm {
    // Beside a guest at depth 32, which is what one visit takes.
    let page = [(DATA, 4096)];
    let layout = wide(1 << 28);
    Storm::new(
        LARGE,
        layout,
        move |guest| indirect(guest, 32, &page),
        move |guest| indirect(guest, 128, &page),
    )
}

/// However full the ring, and though the guest fills it faster than it is served: between two visits
/// of it the neighbour has one. Beside an idle guest, so that what is kept is little; without visits that
/// end it would be nothing.
pub fn a30_ring_that_is_filled_faster_than_it_is_served() -> Storm {
    let storm = Storm::new(
        LARGE,
        wide(1 << 28),
        |_| {
            pause(Duration::from_millis(5));
            Ok(())
        },
        |guest| {
            // The largest that are not cut into slices, which end a visit by themselves.
            indirect(guest, 128, &[(DATA, 32 << 10)])
        },
    );
    Storm { kept_min: 0.04, ..storm }
}

pub fn a31_descriptors_of_one_byte() -> Storm {
    // Beside a guest whose requests have 32 bytes for each of these descriptors.
    let bytes = vec![(DATA, 1); 1022];
    let fair = [(DATA, 32 << 10)];
    Storm::new(
        LARGE,
        wide(1 << 28),
        move |guest| indirect(guest, 64, &fair),
        move |guest| indirect(guest, 64, &bytes),
    )
}

/// Beside a guest that has as many bytes in flight, 126 MiB, so that it does not run dry while it does not
/// get the processor; each of its requests is what a visit takes.
fn huge(pieces: Vec<(u64, u32)>) -> Storm {
    Storm::new(
        LARGE,
        wide(1 << 28),
        move |guest| {
            let heads = prepare_visits(guest, 126);
            pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
        },
        move |guest| indirect(guest, 8, &pieces),
    )
}

/// Reads of 4 KiB less than 1 MiB, since the walk is charged as well, from all over 16 MiB of the disk:
/// the same bytes again and again would be in the processor's cache.
fn prepare_visits(guest: &mut Guest, count: u16) -> Vec<u16> {
    let ring = guest.places()[0];
    for slot in 0..count {
        guest.header_at(slot, IN, u64::from(slot % 16) * 2048);
        let header = HEADER + u64::from(slot) * 64;
        let table = TABLE + 0x8000 + u64::from(slot) * 0x100;
        guest.entry(table, 0, D(header, 16, NEXT, 1));
        for piece in 1..=8 {
            let len = if piece == 8 { 124 << 10 } else { 128 << 10 };
            guest.entry(table, piece, D(DATA, len, NEXT | WRITE, piece + 1));
        }
        guest.entry(table, 9, D(header + 32, 1, WRITE, 0));
        guest.entry(ring, slot, D(table, 160, INDIRECT, 0));
    }
    (0..count).collect()
}

/// Attack 8 of `docs/decisions/0004-known-attacks.md`.
pub fn a32_largest_requests_there_may_be() -> Storm {
    huge(vec![(DATA, 128 << 10); 126])
}

pub fn a32_requests_larger_than_there_may_be() -> Storm {
    huge(vec![(DATA, 1 << 20); 1022])
}

/// Zeroes of so many sectors, again and again.
fn zeroes(guest: &mut Guest, sectors: u32) -> Result<()> {
    guest.put(DATA, &range(sectors));
    let heads = prepare(guest, 8, &[(WRITE_ZEROES, 16, 0)]);
    pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
}

pub fn c10_zeroing_as_much_as_there_may_be() -> Storm {
    // 64 MiB a request is what is offered; beside a guest that zeroes 1 MiB at a time.
    Storm::new(
        LARGE,
        wide(0),
        move |guest| zeroes(guest, 2048),
        move |guest| zeroes(guest, 64 << 11),
    )
}

pub fn c10_zeroing_a_whole_disk_at_once() -> Storm {
    // More than is offered is an error; beside a guest that has as many reads of one sector.
    Storm::new(
        LARGE,
        wide(0),
        move |guest| {
            let heads = prepare(guest, 8, &[(IN, 512, WRITE)]);
            pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
        },
        move |guest| zeroes(guest, 1 << 21),
    )
}

/// Attack 4 of `docs/decisions/0004-known-attacks.md`: on a file, both queues full of flushes.
pub fn c13_flush_storm() -> Storm {
    // Beside a guest that reads as deep.
    Storm::new(
        FILE,
        wide_pair(),
        |guest| both_queues(guest, &[(IN, 4096, WRITE)], Waits::Spinning),
        |guest| both_queues(guest, &[(FLUSH, 4096, 0)], Waits::Spinning),
    )
}

/// Attacks 4 and 10: flushes, or discards and flushes, in both queues of a file, beside neighbours that
/// are on files, too.
///
/// What they cost a neighbour is first of all the file system's and the device's affair. So what this
/// guest is compared with are programs of the host that do the same to another file in `dir` beside the
/// daemon, as many at once as it lets one disk have, and as often as they can; `ended` counts what they
/// did.
pub fn beside_programs(dir: &Path, discards: bool, ended: &Arc<AtomicU64>) -> Storm {
    let (path, ended) = (dir.join("outside.img"), Arc::clone(ended));
    let kinds: &[(u32, u32, u16)] = match discards {
        true => &[(DISCARD, 16, 0), (FLUSH, 0, 0)],
        false => &[(FLUSH, 0, 0)],
    };
    Storm::new(
        FILE,
        wide_pair(),
        move |_| programs(&path, discards, &ended),
        // Asleep between, as the programs are.
        |guest| both_queues(guest, kinds, Waits::Asleep),
    )
}

fn programs(path: &Path, discards: bool, ended: &AtomicU64) -> Result<()> {
    let file = std::fs::File::options().create(true).append(true).open(path)?;
    file.set_len(64 << 20)?;
    let start = now_ns();
    let work = &|discard: bool| -> rustix::io::Result<()> {
        while now_ns() - start < FOR_NS {
            match discard {
                true => {
                    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(&file, punch, 0, 1 << 20)?;
                }
                false => fdatasync(&file)?,
            }
            ended.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let spawn = |number| scope.spawn(move || work(discards && number % 2 == 0));
        let workers: Vec<_> = (0..AT_ONCE).map(spawn).collect();
        for worker in workers {
            worker.join().map_err(|_| anyhow!("a program beside the daemon panicked"))??;
        }
        Ok(())
    })
}

/// Both queues full of requests of those kinds in turn, with a range of 1 MiB in those that are discards.
///
/// # Errors
/// As [`pump`].
pub fn both_queues(guest: &mut Guest, kinds: &[(u32, u32, u16)], waits: Waits) -> Result<()> {
    for at in [0, 1] {
        guest.at = at;
        let heads = prepare(guest, 42, kinds);
        pump(guest, &heads, FOR_NS / 2, waits)?;
    }
    guest.at = 0;
    Ok(())
}
