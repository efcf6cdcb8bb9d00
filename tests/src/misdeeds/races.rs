//! Promise P23 of the project's list: what a guest changes while it is read does nothing that was not
//! checked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow, ensure};
use guest_memory::Area;
use testing::clock::now_ns;
use testing::load::Random;
use testing::timing::PATIENCE;

use crate::door::Door;
use crate::hostile_guest::{
    AVAIL, D, DATA, END, End, F_INDIRECT, Guest, HEADER, INDIRECT, Layout, NEXT, STATUS, TABLE,
    USED, WRITE,
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
fn flipped(door: &Door<'_>, layout: Layout) -> Result<()> {
    let mut guest = door.guest(layout)?;
    // Nothing of a request may come to lie here, whatever is flipped: it is no descriptor's.
    let canary = vec![0xca; 4096];
    let untouched = END - 4096;
    guest.put(untouched, &canary);
    let for_ns = if door.is_long { 30_000_000_000 } else { 2_000_000_000 };
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
    door.note(&format!("{flips} words flipped, {served} requests ended, {broken} queues broken"));
    ensure!(served > 0 && broken > 0, "the race was not run");
    ensure!(guest.get(untouched, 4096) == canary, "bytes that no descriptor named were written");
    drop(guest);
    door.is_unharmed()
}

fn serve_while_flipped(guest: &mut Guest, layout: Layout, for_ns: u64) -> Result<(u64, u64)> {
    let start = now_ns();
    let (mut served, mut broken, mut turn) = (0, 0, 0u32);
    let is_over = |served: u64, broken: u64| match now_ns() - start {
        ns if ns < for_ns => false,
        ns => served > 0 && broken > 0 || u128::from(ns) > PATIENCE.as_nanos(),
    };
    while !is_over(served, broken) {
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

pub fn p23_split_ring_that_changes_while_it_is_read(door: &Door<'_>) -> Result<()> {
    flipped(door, Layout::indirect())
}

pub fn p23_packed_ring_that_changes_while_it_is_read(door: &Door<'_>) -> Result<()> {
    flipped(door, Layout::packed())
}
