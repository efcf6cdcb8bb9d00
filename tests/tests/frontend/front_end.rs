//! Our own front-end against `sidecore` over a real socket: what foreign clients do not reach,
//! packed rings above all. qemu-storage-daemon passes what it has (it has no packed rings and no
//! in-flight record of 7.2's front-ends).

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use testing::content;
use testing::daemon::Daemon;
use testing::frontend::{Frontend, FrontendSpec, MemoryMessage};
use testing::scratch::Scratch;
use testing::server::{DiskSetup, Medium, Server, Who};
use testing::slots::{Kind, STATUS_OK, Slots};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

/// So few that filling it once does not take long, and so many that each ring goes around several times.
const DISK_BYTES: u64 = 4 << 20;
const ID: &str = "own";
const CALL_MS: u32 = 60_000;

/// Long enough to fill the disk and to compare much of it.
const MEMORY_BYTES: u64 = 4 * content::MEMORY_BYTES + (4 << 20);

fn disk(medium: Medium, queues: u16) -> DiskSetup {
    let id = ID.to_string();
    DiskSetup { id, medium, size_bytes: DISK_BYTES, queues, unsealed_memory: false }
}

fn sidecore(name: &str, medium: fn(PathBuf) -> Medium, queues: u16) -> Result<Server> {
    let disk = disk(medium("images/disk.raw".into()), queues);
    Ok(Server::ours(Who::Sidecore, Daemon::start(name, &disk.declared())?))
}

fn ring(format: Format, size: u16, event_index: bool, indirect_entries: u16) -> RingSpec {
    RingSpec { size, format, event_index, indirect_entries }
}

fn spec(ring: RingSpec) -> FrontendSpec {
    FrontendSpec { memory_bytes: MEMORY_BYTES, ring, ..FrontendSpec::default() }
}

/// Writes the disk and reads it back, by polling and then by waiting for calls.
fn exercise(server: &mut Server, spec: &FrontendSpec) -> Result<()> {
    let mut frontend = server.frontend(ID, spec).with_context(|| format!("{spec:?}"))?;
    let sectors = frontend.capacity_sectors()?;
    ensure!(sectors * 512 == DISK_BYTES, "capacity {sectors} sectors");
    content::fill(&mut frontend, sectors)?;
    content::verify(&mut frontend, sectors, 500)?;
    for queue in 0..spec.queues {
        completions_call(&mut frontend, queue).with_context(|| format!("queue {queue}"))?;
    }
    frontend.disconnect()
}

/// One request at a time, sleeping until it is called for.
fn completions_call(frontend: &mut Frontend, queue: u16) -> Result<()> {
    let slots = Slots::new(frontend.memory(), 1, 4096)?;
    let queue = frontend.queue(queue);
    for turn in 0..200u64 {
        slots.write_header(0, Kind::Read, turn * 8);
        let (buffers, count) = slots.buffers(0, Kind::Read);
        ensure!(!queue.driver.arm_calls(), "something completed without being asked for");
        queue.driver.add(&buffers[..count], turn)?;
        if queue.driver.publish() {
            queue.kick()?;
        }
        let used = loop {
            if let Some(used) = queue.driver.take_used() {
                break used;
            }
            ensure!(queue.wait_for_call(CALL_MS)?, "no call for request {turn}");
        };
        ensure!(used.token == turn && slots.status(0) == STATUS_OK, "request {turn}: {used:?}");
        ensure!(used.len == 4097, "{} bytes written, not 4096 and a status", used.len);
        let (mut found, mut expected) = (vec![0; 4096], vec![0; 4096]);
        slots.read_data(0, &mut found);
        content::block_content(turn, &mut expected);
        ensure!(found == expected, "block {turn} differs");
    }
    Ok(())
}

/// Every ring that has rules of its own.
fn rings() -> Vec<RingSpec> {
    let mut rings = Vec::new();
    for event_index in [false, true] {
        for indirect_entries in [0, 3] {
            for (format, size) in [
                (Format::Split, 16),
                (Format::Split, 1024),
                (Format::Packed, 16),
                (Format::Packed, 13),
                (Format::Packed, 1000),
            ] {
                rings.push(ring(format, size, event_index, indirect_entries));
            }
        }
    }
    rings
}

#[test]
fn qemu_storage_daemon_passes_with_split_rings() -> Result<()> {
    let dir = Scratch::new(&std::env::temp_dir(), "own-qemu")?;
    let image = dir.path().join("disk.raw");
    std::fs::File::create(&image)?.set_len(DISK_BYTES)?;
    let disk = disk(Medium::File(image), 2);
    let mut server = Server::qemu_storage_daemon(dir.path(), 0, &disk)?;
    for indirect_entries in [0, 3] {
        for event_index in [false, true] {
            let ring = ring(Format::Split, 128, event_index, indirect_entries);
            exercise(&mut server, &FrontendSpec { queues: 2, ..spec(ring) })?;
        }
    }
    Ok(())
}

#[test]
fn every_ring_works_on_a_memory_disk() -> Result<()> {
    let mut server = sidecore("own-memory", Medium::Memory, 1)?;
    rings().into_iter().try_for_each(|ring| exercise(&mut server, &spec(ring)))
}

#[test]
fn every_ring_works_on_a_file() -> Result<()> {
    let mut server = sidecore("own-file", Medium::File, 1)?;
    rings().into_iter().try_for_each(|ring| exercise(&mut server, &spec(ring)))
}

#[test]
fn the_largest_ring_works() -> Result<()> {
    let mut server = sidecore("own-large", Medium::Memory, 1)?;
    for format in [Format::Split, Format::Packed] {
        exercise(&mut server, &spec(ring(format, 32768, true, 0)))?;
    }
    Ok(())
}

#[test]
fn memory_in_slots_and_an_in_flight_record() -> Result<()> {
    let mut server = sidecore("own-slots", Medium::File, 4)?;
    for format in [Format::Split, Format::Packed] {
        for inflight in [false, true] {
            let ring = ring(format, 128, true, 0);
            let memory_message = MemoryMessage::Slots;
            let spec = FrontendSpec { queues: 4, memory_message, inflight, ..spec(ring) };
            exercise(&mut server, &spec)?;
        }
    }
    Ok(())
}

#[test]
fn sixty_four_queues() -> Result<()> {
    let mut server = sidecore("own-many", Medium::Memory, 64)?;
    let spec = FrontendSpec { queues: 64, ..spec(ring(Format::Split, 64, true, 3)) };
    exercise(&mut server, &spec)
}

#[test]
fn a_queue_that_was_stopped_starts_again_with_another_ring() -> Result<()> {
    let mut server = sidecore("own-restart", Medium::Memory, 1)?;
    let mut frontend = server.frontend(ID, &spec(ring(Format::Split, 64, true, 0)))?;
    let sectors = frontend.capacity_sectors()?;
    content::fill(&mut frontend, sectors)?;
    for size in [8, 256, 64] {
        let base = frontend.stop_queue(0)?;
        ensure!(base <= 0xffff, "a split ring's base is an index, not {base:#x}");
        frontend.restart_queue(0, ring(Format::Split, size, true, 0))?;
        completions_call(&mut frontend, 0)?;
    }
    Ok(())
}

#[test]
fn more_of_the_config_space_than_there_is_reads_as_zeroes() -> Result<()> {
    let mut server = sidecore("own-config", Medium::Memory, 1)?;
    let mut frontend = server.frontend(ID, &spec(ring(Format::Split, 64, true, 0)))?;
    let config = frontend.config(0, 256)?;
    ensure!(config.len() == 256, "256 bytes were asked for, {} came", config.len());
    ensure!(config[..8] == (DISK_BYTES / 512).to_le_bytes(), "capacity {:?}", &config[..8]);
    ensure!(config[128..].iter().all(|byte| *byte == 0), "beyond the end: {config:?}");
    Ok(())
}
