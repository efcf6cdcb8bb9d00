//! Guest memory that comes, goes and moves while the guest works.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use guest_memory::{Area, Health, Mapping, Seal};
use testing::content::block_content;
use testing::daemon::Daemon;
use testing::frontend::{
    FrontQueue, Frontend, FrontendSpec, MEMORY_BASE, MemoryMessage, MemoryRegion,
};
use testing::slots::{Kind, STATUS_OK, STATUS_UNWRITTEN};
use testing::verified::Load;
use tests::raw_front_end::sealed_memory;
use tests::single::{Single, complete};
use virtqueue::Format;
use virtqueue::driver::{Buffer, RingSpec};

const DISKS: &str = "[[disk]]\nid = \"memory\"\nbackend = \"memory\"\nsize = \"4M\"\nqueues = 2\n\
    [[disk]]\nid = \"file\"\npath = \"disk.raw\"\nsize = \"4M\"\nqueues = 2\n";
const HOTPLUG_BYTES: u64 = 1 << 20;

/// One request whose pieces all lie in memory that was added later.
struct Hotplugged {
    region: MemoryRegion,
    fd: OwnedFd,
    area: Area,
}

impl Hotplugged {
    fn new(number: u64) -> Result<Hotplugged> {
        let fd = sealed_memory(HOTPLUG_BYTES)?;
        let area = Area::whole(Mapping::shared(
            &fd,
            0,
            HOTPLUG_BYTES,
            Seal::Required,
            &Health::default(),
        )?);
        let gpa = (64 << 30) + number * (1 << 30);
        let region = MemoryRegion { gpa, size: HOTPLUG_BYTES, user: gpa + (1 << 40), offset: 0 };
        Ok(Hotplugged { region, fd, area })
    }

    /// Reads block `block` there and compares.
    fn read(&self, queue: &mut FrontQueue, block: u64) -> Result<()> {
        self.area.store_u64(0, Kind::Read as u64);
        self.area.store_u64(8, block * 8);
        self.area.store_u8(16, STATUS_UNWRITTEN);
        let piece =
            |at: u64, len, device_writes| Buffer { gpa: self.region.gpa + at, len, device_writes };
        let pieces = [piece(0, 16, false), piece(4096, 4096, true), piece(16, 1, true)];
        complete(queue, &pieces)?;
        let status = self.area.load_u8(16);
        ensure!(status == STATUS_OK, "status {status}");
        let (mut found, mut expected) = (vec![0; 4096], vec![0; 4096]);
        self.area.read(4096, &mut found);
        block_content(block, &mut expected);
        ensure!(found == expected, "block {block} is not what was written there");
        Ok(())
    }
}

fn spec(format: Format, memory_message: MemoryMessage) -> FrontendSpec {
    let size = if format == Format::Split { 64 } else { 61 };
    FrontendSpec {
        queues: 2,
        ring: RingSpec { size, format, event_index: true, indirect_entries: 0 },
        memory_message,
        ..FrontendSpec::default()
    }
}

/// A load on queue 0, and queue 1 to try things.
fn start(frontend: &mut Frontend) -> Result<(Load, FrontQueue)> {
    let (load, others) = Load::start(frontend)?;
    load.await_requests(50)?;
    Ok((load, others.into_iter().next().context("two queues")?))
}

#[test]
fn memory_is_added_and_removed_under_load() -> Result<()> {
    let daemon = Daemon::start("memory-slots", DISKS)?;
    for (disk, format) in [("memory", Format::Split), ("file", Format::Packed)] {
        let mut frontend = daemon.frontend(disk, &spec(format, MemoryMessage::Slots))?;
        let single = Single::new(&mut frontend)?;
        let (load, mut queue) = start(&mut frontend)?;
        single.exercise(&mut queue, 500)?;
        let mut added = Vec::new();
        for number in 0..20 {
            let more = Hotplugged::new(number)?;
            frontend.add_region(more.region, more.fd.as_fd())?;
            more.read(&mut queue, 500).with_context(|| format!("{disk}, region {number}"))?;
            added.push(more);
            load.await_requests(20)?;
        }
        for more in added.iter().step_by(2) {
            frontend.remove_region(more.region)?;
            load.await_requests(20)?;
        }
        for more in added.iter().skip(1).step_by(2) {
            more.read(&mut queue, 500)?;
        }
        let gone = frontend.remove_region(added[0].region);
        ensure!(gone.is_err(), "a region was removed twice");
        load.await_requests(100)?;
        load.finish()?;
    }
    Ok(())
}

#[test]
fn a_request_in_memory_that_was_removed_fails_alone() -> Result<()> {
    let daemon = Daemon::start("memory-gone", DISKS)?;
    let mut frontend = daemon.frontend("memory", &spec(Format::Split, MemoryMessage::Slots))?;
    let (load, mut queue) = start(&mut frontend)?;
    let more = Hotplugged::new(0)?;
    frontend.add_region(more.region, more.fd.as_fd())?;
    frontend.remove_region(more.region)?;
    // A descriptor outside of memory breaks the ring's rules: that queue stops, and says why.
    let gpa = more.region.gpa;
    queue.driver.add(&[Buffer { gpa, len: 16, device_writes: false }], 1)?;
    queue.driver.publish();
    queue.kick()?;
    testing::daemon::await_that("the broken queue to be shown", || {
        Ok(daemon.shown("memory", "problem")?.as_str().is_some_and(|p| p.contains("queue 1")))
    })?;
    load.await_requests(200)?;
    load.finish()?;
    Ok(())
}

#[test]
fn the_same_memory_is_announced_again_elsewhere_under_load() -> Result<()> {
    let daemon = Daemon::start("memory-moved", DISKS)?;
    for (disk, format) in [("memory", Format::Packed), ("file", Format::Split)] {
        let mut frontend = daemon.frontend(disk, &spec(format, MemoryMessage::Table))?;
        let single = Single::new(&mut frontend)?;
        let places: Vec<_> = frontend.queues().iter().map(|queue| queue.places()).collect();
        let (load, mut queue) = start(&mut frontend)?;
        for turn in 1..=30u64 {
            // Every third time at the address where it is.
            let user_base = MEMORY_BASE + (turn - turn % 3) * (1 << 34);
            frontend.move_memory(user_base, &places)?;
            load.await_requests(30).with_context(|| format!("{disk}, move {turn}"))?;
            single.exercise(&mut queue, 500 + turn)?;
        }
        load.finish()?;
        let problem = daemon.shown(disk, "problem")?;
        ensure!(problem.is_null(), "everything went well, and shown is {problem}");
    }
    Ok(())
}

#[test]
fn the_same_table_again_under_load_needs_no_addresses() -> Result<()> {
    let daemon = Daemon::start("memory-same", DISKS)?;
    let mut frontend = daemon.frontend("file", &spec(Format::Split, MemoryMessage::Table))?;
    let (load, _queue) = start(&mut frontend)?;
    for _ in 0..100 {
        frontend.move_memory(MEMORY_BASE, &[])?;
        load.await_requests(10)?;
    }
    load.finish()?;
    Ok(())
}

#[test]
fn memory_that_could_shrink_is_refused_unless_allowed() -> Result<()> {
    let allowed = "[[disk]]\nid = \"lax\"\nbackend = \"memory\"\nsize = \"4M\"\n\
        allow_unsealed_memory = true\n";
    let daemon = Daemon::start("memory-unsealed", &format!("{DISKS}{allowed}"))?;
    for memory_message in [MemoryMessage::Table, MemoryMessage::Slots] {
        let spec = FrontendSpec { sealed: false, memory_message, ..FrontendSpec::default() };
        let before = daemon.descriptors()?;
        let refused = daemon.frontend("memory", &spec).err().context("it was taken")?;
        ensure!(format!("{refused:#}").contains("refused message"), "{refused:#}");
        let problem = daemon.shown("memory", "problem")?.to_string();
        ensure!(
            problem.contains("seal") && problem.contains("allow_unsealed_memory"),
            "shown is {problem}"
        );
        daemon.await_descriptors(before)?;
        let mut frontend = daemon.frontend("lax", &spec)?;
        Single::new(&mut frontend)?.exercise(frontend.queue(0), 3)?;
        // A front-end that does better is served, and the problem is gone.
        let sealed = FrontendSpec { sealed: true, ..spec };
        let mut frontend = daemon.frontend("memory", &sealed)?;
        Single::new(&mut frontend)?.exercise(frontend.queue(0), 3)?;
        ensure!(daemon.shown("memory", "problem")?.is_null());
    }
    Ok(())
}
