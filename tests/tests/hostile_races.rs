//! Promises P21 and P23 of the project's list: what a guest changes while it is read does nothing that
//! was not checked, and no byte of one tenant comes into memory or onto the disk of another.

#![expect(clippy::disallowed_macros, reason = "what was measured is for the record")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow, ensure};
use bench::clock::now_ns;
use bench::load::Random;
use guest_memory::Area;
use tests::daemon::Daemon;
use tests::hostile_bed::{Bed, is_long};
use tests::hostile_guest::{
    AVAIL, BASE, D, DATA, END, End, F_INDIRECT, Guest, HEADER, INDIRECT, Layout, NEXT, STATUS,
    TABLE, USED, WRITE,
};

/// What the flipper may write in a field of 16 bits.
const WORDS: [u16; 10] = [
    0,
    1,
    2,
    NEXT | WRITE,
    INDIRECT,
    NEXT | INDIRECT,
    0xffff,
    0x8000,
    AVAIL | NEXT,
    USED | AVAIL | WRITE,
];

/// Rewrites 16-bit words of descriptors, indirect table, header, indices, until told to stop. Gives
/// how many.
fn flip(memory: &Area, places: &[(usize, usize)], stop: &AtomicBool) -> u64 {
    let mut random = Random(0xf11b_5eed);
    let mut flips = 0;
    while !stop.load(Ordering::Relaxed) {
        let (start, len) = places[random.below(places.len() as u64) as usize];
        let at = start + 2 * random.below(len as u64 / 2) as usize;
        let word = match random.below(3) {
            0 => random.below(1 << 16) as u16,
            _ => WORDS[random.below(WORDS.len() as u64) as usize],
        };
        let was = memory.load_u16(at);
        memory.store_release_u16(at, word);
        // Mostly put back, so that there is something to serve.
        if random.below(8) != 0 {
            memory.store_release_u16(at, was);
        }
        flips += 1;
    }
    flips
}

/// P23: a thread changes what is being read.
fn flipped(name: &str, layout: Layout) -> Result<()> {
    let mut bed = Bed::start(name, "backend = \"memory\"\nsize = \"4M\"")?;
    let mut guest = bed.guest(layout)?;
    // Nothing of a request may come to lie here, whatever is flipped: it is no descriptor's.
    let canary = vec![0xca; 4096];
    let untouched = END - 4096;
    guest.put(untouched, &canary);
    let for_ns = if is_long() { 30_000_000_000 } else { 2_000_000_000 };
    let [descriptors, driver, device] = guest.places();
    let size = usize::from(layout.size);
    let at = |gpa: u64, len: usize| (guest.offset(gpa), len);
    let places = vec![
        at(descriptors, size * 16),
        at(driver, 4 + 2 * size),
        at(device, 4),
        at(HEADER, 16),
        at(TABLE, 48),
    ];
    let stop = Arc::new(AtomicBool::new(false));
    let (memory, told) = (guest.memory(), Arc::clone(&stop));
    let flipper = std::thread::spawn(move || flip(&memory, &places, &told));
    let served = serve_while_flipped(&mut guest, layout, for_ns);
    stop.store(true, Ordering::Relaxed);
    let flips = flipper.join().map_err(|_| anyhow!("the flipper panicked"))?;
    let (served, broken) = served?;
    println!("{name}: {flips} words flipped, {served} requests ended, {broken} queues broken");
    ensure!(served > 0 && broken > 0, "the race was not run");
    ensure!(guest.get(untouched, 4096) == canary, "bytes that no descriptor named were written");
    drop(guest);
    bed.is_unharmed()?;
    bed.finish()
}

fn serve_while_flipped(guest: &mut Guest, layout: Layout, for_ns: u64) -> Result<(u64, u64)> {
    let start = now_ns();
    let (mut served, mut broken, mut turn) = (0, 0, 0u32);
    while now_ns() - start < for_ns {
        turn += 1;
        guest.header(turn % 2, u64::from(turn % 64) * 8);
        let writes = if turn % 2 == 0 { WRITE } else { 0 };
        let pieces =
            [D(HEADER, 16, NEXT, 1), D(DATA, 512, NEXT | writes, 2), D(STATUS, 1, WRITE, 0)];
        if layout.features & F_INDIRECT != 0 && turn % 3 == 0 {
            guest.table(&pieces);
            guest.offer(&[D(TABLE, 48, INDIRECT, 0)])?;
        } else {
            guest.offer(&pieces)?;
        }
        // A flipped word may hide a request for good; then the queue is set up anew, too.
        let asked = now_ns();
        let end = loop {
            if let Some((id, len)) = guest.take_used() {
                break Some(End::Used(id, len));
            }
            if guest.was_broken()? {
                break Some(End::Broken);
            }
            if now_ns() - asked > 300_000 {
                break None;
            }
        };
        match end {
            Some(End::Used(..)) => served += 1,
            Some(End::Broken) => {
                broken += 1;
                guest.revive()?;
            }
            None => guest.revive()?,
        }
    }
    Ok((served, broken))
}

#[test]
fn p23_split_ring_that_changes_while_it_is_read() -> Result<()> {
    flipped("p23-split", Layout::indirect())
}

#[test]
fn p23_packed_ring_that_changes_while_it_is_read() -> Result<()> {
    flipped("p23-packed", Layout::packed())
}

const TENANTS: u8 = 4;
const DISK_BYTES: u64 = 1 << 20;
/// What memory and disk of a tenant are full of.
const MEMORY_MARK: u8 = 0xa0;
const DISK_MARK: u8 = 0xb0;

/// P21: four tenants, each with a disk, all hostile at once; then every byte is looked at.
#[test]
fn p21_no_foreign_bytes() -> Result<()> {
    let disks: String = (0..TENANTS)
        .map(|n| match n % 2 {
            0 => format!("[[disk]]\nid = \"t{n}\"\nbackend = \"memory\"\nsize = \"1M\"\n"),
            _ => format!("[[disk]]\nid = \"t{n}\"\npath = \"t{n}.img\"\nsize = \"1M\"\n"),
        })
        .collect();
    let mut daemon = Daemon::start("p21", &disks)?;
    let mut guests: Vec<Guest> = (0..TENANTS)
        .map(|n| Guest::start(&daemon.socket(&format!("t{n}")), Layout::indirect()))
        .collect::<Result<_>>()?;
    for (mark, guest) in (0..).zip(&mut guests) {
        guest.put(DATA, &vec![DISK_MARK + mark; 4096]);
        for block in 0..DISK_BYTES / 4096 {
            guest.honest(1, block * 8, 4096)?;
        }
        guest.put(DATA, &vec![MEMORY_MARK + mark; (END - DATA) as usize]);
    }
    let turns = if is_long() { 20_000 } else { 1_000 };
    let workers: Vec<_> = (0..TENANTS)
        .zip(guests)
        .map(|(mark, mut guest)| {
            std::thread::spawn(move || misbehave(&mut guest, mark, turns).map(|()| guest))
        })
        .collect();
    let mut guests = Vec::new();
    for worker in workers {
        guests.push(worker.join().map_err(|_| anyhow!("a tenant panicked"))??);
    }
    daemon.is_alive()?;
    for (mark, guest) in (0..).zip(&mut guests) {
        let own = |byte: u8| byte == MEMORY_MARK + mark || byte == DISK_MARK + mark || byte == 0;
        let memory = guest.get(DATA, (END - DATA) as usize);
        let foreign = memory.iter().position(|byte| !own(*byte));
        ensure!(
            foreign.is_none(),
            "memory of tenant {mark}: {:#x?} at {foreign:?}",
            memory.first()
        );
        guest.revive()?;
        for block in 0..DISK_BYTES / 4096 {
            guest.honest(0, block * 8, 4096)?;
            let found = guest.get(DATA, 4096);
            ensure!(found.iter().all(|byte| own(*byte)), "block {block} of tenant {mark}");
        }
    }
    println!("p21: {TENANTS} tenants, {turns} misdeeds each, no foreign byte");
    Ok(())
}

/// Requests with addresses, lengths and sectors of every kind, in own memory and out of it.
fn misbehave(guest: &mut Guest, mark: u8, turns: u32) -> Result<()> {
    let mut random = Random(0x5eed + u64::from(mark));
    for _ in 0..turns {
        let kind = [0, 1, 1, 0, 8, 4][random.below(6) as usize];
        let sector = match random.below(4) {
            0 => random.below(u64::MAX),
            _ => random.below(DISK_BYTES / 512 + 8),
        };
        let gpa = match random.below(6) {
            0 => random.below(u64::MAX),
            1 => END - random.below(8192),
            2 => BASE.wrapping_sub(random.below(8192)),
            _ => DATA + random.below(END - DATA),
        };
        let len = [512, 4096, 513, 65536, 1 << 20, u32::MAX][random.below(6) as usize];
        // A serial number is no mark of anybody; it is read elsewhere.
        let gpa = if kind == 8 { TABLE } else { gpa };
        let writes = if kind == 1 { 0 } else { WRITE };
        guest.header(kind, sector);
        guest.offer(&[
            D(HEADER, 16, NEXT, 1),
            D(gpa, len, NEXT | writes, 2),
            D(STATUS, 1, WRITE, 0),
        ])?;
        if guest.end()? == End::Broken {
            guest.revive()?;
        }
    }
    Ok(())
}
