//! Rows A29 to A32, C10 and C13 of the project's list of failures, and what else a guest can do
//! without end: the neighbour on the same sidecore must have nine tenths of what it has beside a
//! guest that is as busy with what is right.
//!
//! As busy: one that keeps as many bytes in flight, since a share of a core is measured in requests
//! and bytes. What that good guest does is said at each row.

#![expect(clippy::disallowed_macros, reason = "what was measured is for the record")]

use std::cell::RefCell;
use std::time::Duration;

use anyhow::Result;
use tests::daemon::pause;
use tests::hostile_bed::{Bed, Waits, pump, storm};
use tests::hostile_guest::{D, DATA, Guest, HEADER, INDIRECT, Layout, NEXT, TABLE, WRITE};

const MEMORY_DISK: &str = "backend = \"memory\"\nsize = \"1G\"\nqueues = 2";
/// A little less than a window.
const FOR_NS: u64 = 12_000_000;
const IN: u32 = 0;
const FLUSH: u32 = 4;
const WRITE_ZEROES: u32 = 13;

/// Lays out `count` requests of three descriptors, the data all in one place; gives their heads.
fn prepare(guest: &mut Guest, count: u16, kind: u32, (len, flags): (u32, u16)) -> Vec<u16> {
    let table = guest.places()[0];
    let head = |slot: u16| slot * 3;
    for slot in 0..count {
        guest.header_at(slot, kind, 0);
        let header = HEADER + u64::from(slot) * 64;
        guest.entry(table, head(slot), D(header, 16, NEXT, head(slot) + 1));
        guest.entry(table, head(slot) + 1, D(DATA, len, NEXT | flags, head(slot) + 2));
        guest.entry(table, head(slot) + 2, D(header + 32, 1, WRITE, 0));
    }
    (0..count).map(head).collect()
}

/// As [`prepare`], each in an indirect table: header, `pieces` of data, status.
fn prepare_indirect(guest: &mut Guest, count: u16, kind: u32, pieces: &[(u64, u32)]) -> Vec<u16> {
    let ring = guest.places()[0];
    let entries = pieces.len() as u16 + 2;
    for slot in 0..count {
        // All use the same header and the same pieces; only the tables' heads differ.
        guest.entry(ring, slot, D(TABLE, u32::from(entries) * 16, INDIRECT, 0));
    }
    guest.header(kind, 0);
    let mut table = vec![D(HEADER, 16, NEXT, 1)];
    for (at, (gpa, len)) in (2..).zip(pieces) {
        table.push(D(*gpa, *len, NEXT | WRITE, at));
    }
    table.push(D(HEADER + 32, 1, WRITE, 0));
    guest.table(&table);
    (0..count).collect()
}

fn wide(features: u64) -> Layout {
    Layout { size: 128, features: features | Layout::default().features, ..Layout::default() }
}

#[test]
fn a29_kick_storm() -> Result<()> {
    // Beside a guest that has one request after another, each with its kick.
    let shown = storm(
        "a29",
        MEMORY_DISK,
        wide(0),
        |guest| {
            let heads = prepare(guest, 1, IN, (512, WRITE));
            pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
        },
        |guest| {
            for _ in 0..1000 {
                guest.kick()?;
            }
            Ok(())
        },
    )?;
    println!("a29, a thousand kicks: {shown}");
    Ok(())
}

#[test]
fn a29_kick_counter_that_is_full() -> Result<()> {
    let shown = storm(
        "a29-full",
        MEMORY_DISK,
        wide(0),
        |guest| {
            let heads = prepare(guest, 1, IN, (512, WRITE));
            pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
        },
        |guest| {
            guest.kick_by(u64::MAX - 1)?;
            let heads = prepare(guest, 1, IN, (512, WRITE));
            pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
        },
    )?;
    println!("a29, a full counter: {shown}");
    Ok(())
}

#[test]
fn a30_ring_that_never_empties() -> Result<()> {
    // Beside a guest at depth 32, which is what one visit takes.
    let page = [(DATA, 4096)];
    let layout = wide(1 << 28);
    let shown = storm(
        "a30",
        MEMORY_DISK,
        layout,
        |guest| {
            let heads = prepare_indirect(guest, 32, IN, &page);
            pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
        },
        |guest| {
            let heads = prepare_indirect(guest, 128, IN, &page);
            pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
        },
    )?;
    println!("a30: {shown}");
    Ok(())
}

/// However full the ring, and though the guest fills it faster than it is served: between two visits
/// of it the neighbour has one. Beside an idle guest, so that what is kept is little; without visits that
/// end it would be nothing.
#[test]
fn a30_ring_that_is_filled_faster_than_it_is_served() -> Result<()> {
    const KEPT_MIN: f64 = 0.04;
    let bed = Bed::start("a30-faster", MEMORY_DISK)?;
    let guest = RefCell::new(bed.guest(wide(1 << 28))?);
    let shown = bed.compare_keeping(
        KEPT_MIN,
        || {
            pause(Duration::from_millis(5));
            Ok(())
        },
        || {
            let guest = &mut guest.borrow_mut();
            // The largest that are not cut into slices, which end a visit by themselves.
            let heads = prepare_indirect(guest, 128, IN, &[(DATA, 32 << 10)]);
            pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
        },
    )?;
    println!("a30-faster: {shown}");
    drop(guest);
    bed.finish()
}

#[test]
fn a31_descriptors_of_one_byte() -> Result<()> {
    // Beside a guest whose requests have 32 bytes for each of these descriptors.
    let bytes = vec![(DATA, 1); 1022];
    let fair = [(DATA, 32 << 10)];
    let shown = storm(
        "a31",
        MEMORY_DISK,
        wide(1 << 28),
        |guest| {
            let heads = prepare_indirect(guest, 64, IN, &fair);
            pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
        },
        |guest| {
            let heads = prepare_indirect(guest, 64, IN, &bytes);
            pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
        },
    )?;
    println!("a31: {shown}");
    Ok(())
}

/// Beside a guest that has as many bytes in flight, 126 MiB, so that it does not run dry while it does not
/// get the processor; each of its requests is what a visit takes.
fn huge(name: &str, pieces: &[(u64, u32)]) -> Result<()> {
    let shown = storm(
        name,
        MEMORY_DISK,
        wide(1 << 28),
        |guest| {
            let heads = prepare_visits(guest, 126);
            pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
        },
        |guest| {
            let heads = prepare_indirect(guest, 8, IN, pieces);
            pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
        },
    )?;
    println!("{name}: {shown}");
    Ok(())
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
#[test]
fn a32_largest_requests_there_may_be() -> Result<()> {
    huge("a32", &[(DATA, 128 << 10); 126])
}

#[test]
fn a32_requests_larger_than_there_may_be() -> Result<()> {
    huge("a32-larger", &vec![(DATA, 1 << 20); 1022])
}

/// Zeroes of so many sectors, again and again.
fn zeroes(guest: &mut Guest, sectors: u32) -> Result<()> {
    let mut range = 0u64.to_le_bytes().to_vec();
    range.extend(sectors.to_le_bytes());
    range.extend([0; 4]);
    guest.put(DATA, &range);
    let heads = prepare(guest, 8, WRITE_ZEROES, (16, 0));
    pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
}

#[test]
fn c10_zeroing_as_much_as_there_may_be() -> Result<()> {
    // 64 MiB a request is what is offered; beside a guest that zeroes 1 MiB at a time.
    let shown = storm(
        "c10",
        MEMORY_DISK,
        wide(0),
        |guest| zeroes(guest, 2048),
        |guest| zeroes(guest, 64 << 11),
    )?;
    println!("c10: {shown}");
    Ok(())
}

#[test]
fn c10_zeroing_a_whole_disk_at_once() -> Result<()> {
    // More than is offered is an error; beside a guest that has as many reads of one sector.
    let shown = storm(
        "c10-whole",
        MEMORY_DISK,
        wide(0),
        |guest| {
            let heads = prepare(guest, 8, IN, (512, WRITE));
            pump(guest, &heads, FOR_NS, Waits::Spinning).map(drop)
        },
        |guest| zeroes(guest, 1 << 21),
    )?;
    println!("c10, more than there may be: {shown}");
    Ok(())
}

/// Attack 4 of `docs/decisions/0004-known-attacks.md`: on a file, both queues full of flushes.
#[test]
fn c13_flush_storm() -> Result<()> {
    // Beside a guest that reads as deep.
    let disk = "backend = \"file\"\npath = \"bad.img\"\nsize = \"64M\"\nqueues = 2";
    let both = |guest: &mut Guest, kind: u32, flags: u16| {
        for at in [0, 1] {
            guest.at = at;
            let heads = prepare(guest, 42, kind, (4096, flags));
            pump(guest, &heads, FOR_NS / 2, Waits::Spinning)?;
        }
        guest.at = 0;
        Ok(())
    };
    let layout = Layout { queues: 2, ..wide(0) };
    let shown =
        storm("c13", disk, layout, |guest| both(guest, IN, WRITE), |guest| both(guest, FLUSH, 0))?;
    println!("c13: {shown}");
    Ok(())
}
