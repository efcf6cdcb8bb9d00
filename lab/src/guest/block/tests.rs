//! Loads on a file that stands for a disk, on the file system that the tests were built on.

use std::io::Write;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use tempfile::NamedTempFile;

use super::*;

const BLOCKS: u64 = 64;

/// A file of zeroes, and a piece of a block that no request may reach.
pub(super) fn disk() -> Result<NamedTempFile> {
    let program = std::env::current_exe()?;
    let folder = program.parent().context("a program lies in a folder")?;
    let disk = NamedTempFile::new_in(folder)?;
    disk.as_file().set_len(BLOCKS * BLOCK_SIZE as u64 + 100)?;
    Ok(disk)
}

pub(super) fn name(disk: &NamedTempFile) -> Result<&str> {
    disk.path().to_str().context("a path in UTF-8")
}

/// A load past the page cache, or with it where the file system has no `O_DIRECT`.
fn done(disk: &NamedTempFile, way: Way, depth: u16, operations: u64) -> Result<Answer> {
    let name = name(disk)?;
    match open(name, way, OFlags::DIRECT) {
        Err(error) if error.downcast_ref() == Some(&Errno::INVAL) => {
            writeln!(io::stderr(), "{name}: no O_DIRECT here; tested through the page cache")?;
            on(open(name, way, OFlags::empty())?, way, depth, Amount::once(operations))
        }
        opened => {
            opened?;
            load(name, way, depth, Amount::once(operations))
        }
    }
}

fn said(answer: Result<Answer>) -> String {
    match answer {
        Ok(answer) => format!("{answer:?}"),
        Err(error) => format!("{error:#}"),
    }
}

#[test]
fn reads_and_writes_at_each_depth_are_as_many_as_ordered() -> Result<()> {
    for way in [Way::Read, Way::Write] {
        for depth in [1, 2, 32, 128] {
            let disk = disk()?;
            // Fewer than are in flight, and more.
            for operations in [1, 40, 700] {
                let Answer::Done { operations: told, elapsed_ns, p50_ns, p99_ns } =
                    done(&disk, way, depth, operations)?
                else {
                    anyhow::bail!("{way:?} {depth} failed");
                };
                assert_eq!(told, operations);
                assert!(0 < p50_ns && p50_ns <= p99_ns, "{p50_ns} {p99_ns}");
                assert!(p99_ns <= elapsed_ns, "{p99_ns} {elapsed_ns}");
            }
        }
    }
    Ok(())
}

#[test]
fn writes_go_everywhere_and_reads_nowhere() -> Result<()> {
    for (way, depth) in [(Way::Write, 1), (Way::Write, 16), (Way::Read, 1), (Way::Read, 16)] {
        let disk = disk()?;
        done(&disk, way, depth, 1000)?;
        let mut block = vec![0; BLOCK_SIZE];
        let mut written = 0;
        for index in 0..BLOCKS {
            disk.as_file().read_exact_at(&mut block, index * BLOCK_SIZE as u64)?;
            written += u64::from(block.iter().any(|byte| *byte != 0));
        }
        assert_eq!(written, if way == Way::Write { BLOCKS } else { 0 }, "{way:?} {depth}");
        let mut end = [1; 100];
        disk.as_file().read_exact_at(&mut end, BLOCKS * BLOCK_SIZE as u64)?;
        assert_eq!(end, [0; 100]);
    }
    Ok(())
}

#[test]
fn the_same_seed_gives_the_same_places_evenly() {
    let draw = || {
        let mut places = Places { state: SEED, blocks: 10 };
        (0..10_000).map(|_| places.next()).collect::<Vec<u64>>()
    };
    assert_eq!(draw(), draw());
    for block in 0..10 {
        let hits = draw().iter().filter(|offset| **offset == block * BLOCK_SIZE as u64).count();
        assert!((800..1200).contains(&hits), "{block}: {hits}");
    }
}

#[test]
fn what_is_wrong_is_said() -> Result<()> {
    let disk = disk()?;
    let name = name(&disk)?;
    assert_eq!(said(load(name, Way::Read, 0, Amount::once(1))), "depth: 0, not 1 to 128");
    assert_eq!(said(load(name, Way::Read, 129, Amount::once(1))), "depth: 129, not 1 to 128");
    assert_eq!(
        said(load("/dev/nothing", Way::Read, 1, Amount::once(1))),
        "device /dev/nothing: No such file or directory (os error 2)"
    );
    assert_eq!(
        said(load("/dev/null", Way::Write, 1, Amount::once(1))),
        "device /dev/null: neither a block device nor a file"
    );
    disk.as_file().set_len(4095)?;
    assert_eq!(
        said(done(&disk, Way::Read, 1, 1)),
        format!("device {name}: smaller than a block of 4096 bytes")
    );
    Ok(())
}

#[test]
fn a_request_that_fails_ends_its_load_when_all_are_back() -> Result<()> {
    let disk = disk()?;
    for depth in [1, 32] {
        // Descriptors of the other way only: each request is an error.
        let for_reads = File::open(disk.path())?;
        let for_writes = File::options().write(true).open(disk.path())?;
        let bad = "Bad file descriptor (os error 9)";
        assert_eq!(
            said(on(for_reads, Way::Write, depth, Amount::once(100))),
            format!("writing: {bad}")
        );
        assert_eq!(
            said(on(for_writes, Way::Read, depth, Amount::once(100))),
            format!("reading: {bad}")
        );
    }
    Ok(())
}

#[test]
fn a_disk_that_ends_sooner_than_it_said_is_an_error() -> Result<()> {
    for depth in [1, 8u16] {
        let disk = disk()?;
        let file = open(name(&disk)?, Way::Read, OFlags::empty())?;
        let memory = vec![Block([0; BLOCK_SIZE]); usize::from(depth)];
        disk.as_file().set_len(0)?;
        let places = Places { state: SEED, blocks: BLOCKS };
        let mut latency = Histogram::default();
        let done = if depth == 1 {
            let block = Box::new(memory[0].clone());
            One { file, way: Way::Read, block, places }.run(10, &mut latency)
        } else {
            let flight = Flight::new(file, Way::Read, memory.into())?;
            let since_ns = vec![0; usize::from(depth)];
            Many { flight, since_ns, places }.run(10, &mut latency)
        };
        let Err(error) = done else { anyhow::bail!("a load on nothing was done") };
        assert_eq!(format!("{error:#}"), "reading: 0 bytes of 4096");
    }
    Ok(())
}

#[test]
fn a_slot_has_one_request() -> Result<()> {
    let disk = disk()?;
    let file = open(name(&disk)?, Way::Read, OFlags::empty())?;
    let mut flight = Flight::new(file, Way::Read, vec![Block([0; BLOCK_SIZE]); 2].into())?;
    flight.start(1, 0)?;
    assert!(flight.start(1, 0).is_err());
    assert!(flight.start(2, 0).is_err());
    flight.wait()?;
    let (slot, moved) = flight.finished().context("one has finished")?;
    assert_eq!((slot, moved?), (1, BLOCK_SIZE));
    assert!(flight.finished().is_none());
    flight.start(1, 0)?;
    Ok(())
}
