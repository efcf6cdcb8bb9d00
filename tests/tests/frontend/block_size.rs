//! Logical blocks of 512 and 4,096 bytes: what a guest is told of them, and that requests of any sectors are
//! served, on files and on devices with either.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use testing::daemon::Daemon;
use testing::frontend::{Frontend, FrontendSpec};
use testing::scratch::Scratch;
use tests::faulty::{Anywhere, Piece, sectors};
use tests::mounts::Loop;

const DISK_BYTES: u64 = 8 << 20;
const STATUS_OK: u8 = 0;

/// Fields of the config space (VIRTIO 1.2, 5.2.4), in their order there.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    block_size: u64,
    physical_block_exp: u64,
    io_min: u64,
    discard_sectors: u64,
}

fn told(guest: &mut Frontend) -> Result<Told> {
    let mut number = |offset, len| -> Result<u64> {
        let bytes = guest.config(offset, len)?;
        Ok(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    Ok(Told {
        block_size: number(20, 4)?,
        physical_block_exp: number(24, 1)?,
        io_min: number(26, 2)?,
        discard_sectors: number(44, 4)?,
    })
}

/// Writes and reads of single sectors and of whole blocks are what they were, whatever the guest was told.
fn serves_any_sectors(guest: &mut Frontend) -> Result<()> {
    let requests = Anywhere::new(guest, sectors(24))?;
    let mut model = vec![0; sectors(64)];
    for (turn, (first, count)) in
        [(0, 1), (8, 8), (7, 2), (15, 3), (1, 1), (16, 24), (63, 1), (5, 16)]
            .into_iter()
            .enumerate()
    {
        let whole = [Piece { at: 0, len: sectors(count) }];
        let bytes = vec![turn as u8 + 1; sectors(count)];
        let status = requests.write(guest.queue(0), first, &whole, &bytes)?;
        ensure!(status == STATUS_OK, "a write of {count} sectors at {first}: {status}");
        model[sectors(first)..][..bytes.len()].copy_from_slice(&bytes);
        for (first, count) in [(first, count), (0, 8), (first / 8 * 8, 8)] {
            let whole = [Piece { at: 0, len: sectors(count) }];
            let (status, found) = requests.read(guest.queue(0), first, &whole)?;
            ensure!(status == STATUS_OK, "a read of {count} sectors at {first}: {status}");
            ensure!(found == model[sectors(first)..][..found.len()], "sectors from {first} on");
        }
    }
    Ok(())
}

fn add(daemon: &Daemon, path: &Path, more: &str) -> Result<Frontend> {
    daemon.ask(format!("disk add d --path {} {more}", path.display()).trim_end())?;
    daemon.frontend("d", &FrontendSpec::default())
}

/// An image: its blocks are what its operator says, and its size is a multiple of them.
#[test]
fn an_image_has_the_blocks_that_its_operator_says() -> Result<()> {
    let scratch = Scratch::new(&std::env::temp_dir(), "block-size-disks")?;
    let daemon = Daemon::start("block-size", "")?;
    for (option, block_size, exp, io_min) in
        [("", 512, 3, 8), ("--block-size 512", 512, 3, 8), ("--block-size 4096", 4096, 0, 1)]
    {
        let path = scratch.path().join(format!("image{option}").replace(' ', ""));
        let mut guest = add(&daemon, &path, format!("--size 8M {option}").trim_end())?;
        let told = told(&mut guest)?;
        let discards = std::fs::metadata(scratch.path()).context("facts")?;
        let block = std::os::unix::fs::MetadataExt::blksize(&discards) / 512;
        let discard_sectors = block.max(block_size / 512);
        let expected = Told { block_size, physical_block_exp: exp, io_min, discard_sectors };
        ensure!(told == expected, "{option}: told {told:?}, expected {expected:?}");
        ensure!(guest.capacity_sectors()? == DISK_BYTES / 512, "the capacity is in sectors of 512");
        serves_any_sectors(&mut guest).with_context(|| option.to_string())?;
        ensure!(daemon.shown("d", "block_size_bytes")? == block_size, "what is shown");
        guest.disconnect()?;
        daemon.ask("disk rm d")?;
    }
    let odd = scratch.path().join("odd");
    std::fs::File::create(&odd)?.set_len(DISK_BYTES + 512)?;
    for (line, why) in [
        ("--size 4608 --block-size 4096", "4608 bytes are not whole blocks of 4096"),
        ("--block-size 4096", "8389120 bytes, which are not whole blocks of 4096"),
        ("--block-size 1024", "1024 is no block size"),
    ] {
        let said = daemon.refuses(&format!("disk add d --path {} {line}", odd.display()))?;
        ensure!(said.contains(why), "{line}: {said}");
    }
    let path = scratch.path().join("resized");
    let guest = add(&daemon, &path, "--size 8M --block-size 4096")?;
    let said = daemon.refuses("disk resize d 8389120")?;
    ensure!(said.contains("not whole blocks of 4096"), "{said}");
    guest.disconnect()
}

/// A device with sectors of 4,096 bytes: smaller requests are done by reading and writing whole blocks.
#[test]
fn a_device_of_4096_bytes_serves_guests_of_both() -> Result<()> {
    let scratch = Scratch::new(&std::env::temp_dir(), "block-size-4kn-disks")?;
    let backing = scratch.path().join("backing");
    let daemon = Daemon::start("block-size-4kn", "")?;
    for cache in ["auto", "direct", "page"] {
        for (block_size, exp, io_min) in [(512, 3, 8), (4096, 0, 1)] {
            std::fs::File::create(&backing)?.set_len(DISK_BYTES)?;
            let device = Loop::over(&backing, 4096)?;
            let name = device.path().file_name().context("a name")?.to_string_lossy().into_owned();
            let queue = format!("/sys/block/{name}/queue/discard_granularity");
            let granularity: u64 = std::fs::read_to_string(queue)?.trim().parse()?;
            let more = format!("--cache {cache} --block-size {block_size}");
            let mut guest = add(&daemon, device.path(), &more)?;
            let told = told(&mut guest)?;
            let discard_sectors = (granularity / 512).max(block_size / 512);
            let expected = Told { block_size, physical_block_exp: exp, io_min, discard_sectors };
            ensure!(told == expected, "{more}: told {told:?}, expected {expected:?}");
            serves_any_sectors(&mut guest).with_context(|| more.clone())?;
            let counters = daemon.shown("d", "counters")?;
            ensure!(counters["errors"] == 0, "{more}: {counters}");
            guest.disconnect()?;
            daemon.ask("disk rm d")?;
        }
    }
    Ok(())
}
