//! Promises P21 and P23 of the project's list: what a guest changes while it is read does nothing that
//! was not checked (`tests::misdeeds::races`), and no byte of one tenant comes into memory or onto the
//! disk of another.

#![expect(clippy::disallowed_macros, reason = "what was measured is for the record")]

use anyhow::{Result, anyhow, ensure};
use testing::bed::tests_all;
use testing::daemon::Daemon;
use testing::load::Random;
use tests::hostile_guest::{
    BASE, D, DATA, END, End, Guest, HEADER, Layout, NEXT, STATUS, TABLE, WRITE,
};

tests::misdeeds!(races tests);

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
    let turns = if tests_all() { 20_000 } else { 1_000 };
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
