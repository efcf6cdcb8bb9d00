//! Attacks of `docs/decisions/0004-known-attacks.md` that a guest or front-end makes on what all disks
//! on files share: the sidecore's io_uring, the kernel's workers, and its time. The neighbour is on a
//! file, too.
//!
//! 1 and 2 are in `lost_memory`, 3, 7 and 12 in `connections`, 6 in `bad_rings`, 8 in `hostile_storm`, 11
//! in `bad_memory`.

#![expect(clippy::disallowed_macros, reason = "what was measured is for the record")]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, anyhow, ensure};
use bench::clock::now_ns;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fdatasync, ftruncate,
    memfd_create,
};
use tests::daemon::pause;
use tests::fuse_disk::{Call, FuseDisk, FuseDiskSpec, How, Rule, When};
use tests::hostile_bed::{BAD, Bed, Waits, pump};
use tests::hostile_guest::{D, DATA, End, Guest, HEADER, Layout, NEXT, STATUS, USER, WRITE};
use tests::ledger::Order;
use tests::raw_front_end::{request, table};

const FILE: &str = "path = \"victim.img\"\nsize = \"16M\"";
/// A little less than a window.
const FOR_NS: u64 = 12_000_000;
const IN: u32 = 0;
const FLUSH: u32 = 4;
const DISCARD: u32 = 11;

/// Lays out `count` requests of three descriptors; gives their heads.
fn prepare(guest: &mut Guest, count: u16, kinds: &[(u32, u32, u16)]) -> Vec<u16> {
    let ring = guest.places()[0];
    // One range of 1 MiB, for those that are discards.
    let mut range = 0u64.to_le_bytes().to_vec();
    range.extend(2048u32.to_le_bytes());
    range.extend([0; 4]);
    guest.put(DATA + 0x1000, &range);
    for slot in 0..count {
        let (kind, len, flags) = kinds[usize::from(slot) % kinds.len()];
        guest.header_at(slot, kind, 0);
        let (header, head) = (HEADER + u64::from(slot) * 64, slot * 3);
        let data = if kind == DISCARD { DATA + 0x1000 } else { DATA + 0x2000 };
        guest.entry(ring, head, D(header, 16, NEXT, head + 1));
        guest.entry(ring, head + 1, D(data, len, NEXT | flags, head + 2));
        guest.entry(ring, head + 2, D(header + 32, 1, WRITE, 0));
    }
    (0..count).map(|slot| slot * 3).collect()
}

fn wide() -> Layout {
    Layout { size: 128, queues: 2, ..Layout::default() }
}

fn both_queues(guest: &mut Guest, kinds: &[(u32, u32, u16)]) -> Result<()> {
    for at in [0, 1] {
        guest.at = at;
        let heads = prepare(guest, 42, kinds);
        // Asleep between, as the programs are that it is compared with.
        pump(guest, &heads, FOR_NS / 2, Waits::Asleep)?;
    }
    guest.at = 0;
    Ok(())
}

/// What flushes and discards cost the neighbour is first of all the file system's and the device's
/// affair. So what this guest is compared with are programs of the host that do the same to another
/// file beside the daemon, as many at once as it lets one disk have, and as often as they can.
fn outside(bed: &Bed, discards: bool, ended: &AtomicU64) -> Result<()> {
    let path = bed.daemon.dir().join("outside.img");
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

/// Commands of this kind that the daemon lets one disk have in the kernel at once.
const AT_ONCE: usize = 4;

#[test]
fn attack_04_flush_storm_beside_a_file() -> Result<()> {
    beside_a_file("attack-04", &[(FLUSH, 0, 0)], false)
}

#[test]
fn attack_10_discards_and_flushes_beside_a_file() -> Result<()> {
    beside_a_file("attack-10", &[(DISCARD, 16, 0), (FLUSH, 0, 0)], true)
}

fn beside_a_file(name: &str, kinds: &[(u32, u32, u16)], discards: bool) -> Result<()> {
    let bed =
        Bed::start_beside_apart(name, FILE, "path = \"bad.img\"\nsize = \"64M\"\nqueues = 2")?;
    let guest = std::cell::RefCell::new(bed.guest(wide())?);
    let ended = AtomicU64::new(0);
    if !discards {
        // The neighbour's guest has started and keeps its rank. What is asked is what the sidecore and
        // the kernel do for the hostile guest, not what its own vCPU takes from the neighbour's. Discards
        // are the kernel's work and little of a vCPU's: programs of low rank would do too few of them to
        // be compared with.
        rustix::process::setpriority_process(None, 19)?;
    }
    let shown = bed.compare(
        || outside(&bed, discards, &ended),
        || both_queues(&mut guest.borrow_mut(), kinds),
    );
    let syncs = bed.daemon.shown(BAD, "faults")?["syncs"].clone();
    let counted = bed.daemon.shown(BAD, "counters")?;
    println!(
        "{name}: {} syncs and discards by programs beside the daemon; {syncs} syncs by the daemon for \
         {} flushes, and {} discards",
        ended.into_inner(),
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
    let bed = Bed::start_beside("attack-05", FILE, &bad)?;
    let mut guest = bed.guest(wide())?;
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
    // One after the other, so that much of a difference is the machine's. A neighbour that has to wait
    // for the disk that hangs has nothing.
    ensure!(kept >= 0.5, "beside a disk that hangs the neighbour has {kept:.2} of its rate");
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

/// Attack 9: measured, not repelled: pages that nobody has touched before are made by the sidecore.
#[test]
fn attack_09_pages_touched_for_the_first_time() -> Result<()> {
    let bed = Bed::start("attack-09", "backend = \"memory\"\nsize = \"4M\"")?;
    let mut guest = bed.guest(Layout::default())?;
    let (fresh, bytes) = (1u64 << 36, 256u64 << 20);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("raw-fresh", flags)?;
    ftruncate(&file, bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    let own = guest.file().try_clone()?;
    let regions = [[1 << 32, 4 << 20, (1 << 32) + USER, 0], [fresh, bytes, fresh + USER, 0]];
    let fds = [own.as_fd(), file.as_fd()];
    ensure!(guest.raw.tell(request::SET_MEM_TABLE, &table(&regions), &fds)?.is_ack());
    let mut took = [0u64; 2];
    for (pass, took) in took.iter_mut().enumerate() {
        let start = now_ns();
        for at in 0..64u64 {
            guest.header(IN, 0);
            let place = fresh + at * (1 << 20);
            guest.offer(&[
                D(HEADER, 16, NEXT, 1),
                D(place, 1 << 20, NEXT | WRITE, 2),
                D(STATUS, 1, WRITE, 0),
            ])?;
            ensure!(matches!(guest.end()?, End::Used(..)), "pass {pass}");
        }
        *took = (now_ns() - start) / 64;
    }
    let [first, again] = took;
    println!("attack 9: 1 MiB into pages never touched takes {first} ns, again {again} ns");
    drop(guest);
    bed.finish()
}
