//! Random requests, several at a time, against an array of bytes that should hold the same.

use crate::harness::{self, Asked, Bed, MEMORY_BYTES, Random, kinds};
use backend::Source;
use guest_memory::Span;
use random::often;
use request::{Op, Status};

/// A part of a sector over, so that the last page of the file is not whole.
const DISK_BYTES: u64 = (768 << 10) + 512;
const SECTOR: u64 = 512;

/// The disk as it should be, and requests that touch no byte of each other.
struct Model {
    bytes: Vec<u8>,
    random: Random,
    /// First byte of guest memory not used by this batch.
    gpa: u64,
}

impl Model {
    /// Ranges of whole sectors, apart but often within one page.
    fn ranges(&mut self) -> Vec<(u64, u64)> {
        let mut sector = self.random.below(64);
        let mut ranges = Vec::new();
        while ranges.len() < 24 {
            let most = if self.random.below(4) == 0 { 300 } else { 12 };
            let sectors = 1 + self.random.below(most);
            if (sector + sectors) * SECTOR > DISK_BYTES {
                break;
            }
            // Half of them as a file system would ask: pages.
            if self.random.below(2) == 0 && sector % 8 + sectors > 8 {
                ranges.push((sector.next_multiple_of(8) * SECTOR, 8 * SECTOR));
                sector = sector.next_multiple_of(8) + 8;
                continue;
            }
            ranges.push((sector * SECTOR, sectors * SECTOR));
            sector += sectors + self.random.below(40);
        }
        ranges.retain(|(offset, len)| offset + len <= DISK_BYTES);
        ranges
    }

    /// Guest memory of `len` bytes in 1 to 40 segments, at even or odd places.
    fn segments(&mut self, bed: &Bed, len: u64) -> Vec<Span> {
        let (pieces, odd) = match self.random.below(4) {
            0 => (1 + self.random.below(40), true),
            1 => (1 + self.random.below(4), true),
            _ => (1, false),
        };
        let mut segments = Vec::new();
        let mut left = len;
        for piece in (0..pieces).rev() {
            let part = if piece == 0 { left } else { self.random.below(left.min(9000) + 1) };
            self.gpa =
                self.gpa.next_multiple_of(4096) + if odd { self.random.below(4096) } else { 0 };
            segments.push(bed.span(self.gpa, part as u32));
            self.gpa += part;
            left -= part;
        }
        assert!(self.gpa < MEMORY_BYTES);
        segments
    }

    fn ask(&mut self, bed: &Bed, (offset, len): (u64, u64)) -> Asked {
        let op = match self.random.below(10) {
            0..=3 => Op::Read,
            4..=6 => Op::Write { sync: self.random.below(8) == 0 },
            7 => Op::Discard,
            8 => Op::WriteZeroes { unmap: self.random.below(2) == 0, sync: false },
            _ => Op::Flush,
        };
        match op {
            Op::Read | Op::Write { .. } => {
                Asked { op, offset, len, segments: self.segments(bed, len) }
            }
            Op::Flush => Asked { op, offset: 0, len: 0, segments: Vec::new() },
            _ => Asked { op, offset, len, segments: Vec::new() },
        }
    }

    /// Fills the buffers of writes, and the model, before anything is submitted.
    fn prepare(&mut self, bed: &Bed, asked: &[Asked]) {
        for one in asked {
            let range = one.offset as usize..(one.offset + one.len) as usize;
            match one.op {
                Op::Write { .. } => {
                    let fill = self.random.below(256) as u8;
                    for (at, byte) in self.bytes[range.clone()].iter_mut().enumerate() {
                        *byte = fill.wrapping_add((at / 3) as u8);
                    }
                    let mut at = range.start;
                    for segment in &one.segments {
                        let end = at + segment.len() as usize;
                        assert!(bed.memory.write(*segment, 0, &self.bytes[at..end]));
                        at = end;
                    }
                }
                Op::WriteZeroes { .. } => self.bytes[range].fill(0),
                _ => {}
            }
        }
    }

    fn check(&mut self, bed: &mut Bed, name: &str, asked: &[Asked]) {
        for one in asked {
            let mut at = one.offset as usize;
            match one.op {
                Op::Read => {
                    for segment in &one.segments {
                        let mut got = vec![0; segment.len() as usize];
                        assert!(bed.memory.read(*segment, 0, &mut got));
                        let expected = &self.bytes[at..at + got.len()];
                        assert!(got == expected, "{name}: {one:?} read something else");
                        at += got.len();
                    }
                }
                // What a discard leaves is not said; from then on it must not change.
                Op::Discard => {
                    let got = bed.read(one.offset, one.len as usize).expect("a read");
                    self.bytes[at..at + got.len()].copy_from_slice(&got);
                }
                _ => {}
            }
        }
    }
}

fn follow(name: &str, source: &Source, seed: u64, batches: u32) {
    let mut bed = Bed::new(source);
    let mut model =
        Model { bytes: vec![0; DISK_BYTES as usize], random: Random(seed), gpa: 1 << 20 };
    for _ in 0..batches {
        model.gpa = 2 << 20;
        let ranges = model.ranges();
        let asked: Vec<Asked> = ranges.into_iter().map(|range| model.ask(&bed, range)).collect();
        model.prepare(&bed, &asked);
        for (status, one) in bed.run_all(&asked).into_iter().zip(&asked) {
            assert_eq!(status, Status::Ok, "{name}, seed {seed}: {one:?}");
        }
        model.check(&mut bed, name, &asked);
    }
    let all = bed.read(0, DISK_BYTES as usize).expect("a read of everything");
    assert!(all == model.bytes, "{name}, seed {seed}: the disk ended differently");
    let faults = bed.disk.faults();
    assert_eq!((faults.eio, faults.enospc, faults.other), (0, 0, 0), "{name}");
    // What a new owner finds is the same.
    if let Source::File { .. } = source {
        drop(bed);
        let all = Bed::new(source).read(0, DISK_BYTES as usize).expect("a read of everything");
        assert!(all == model.bytes, "{name}, seed {seed}: opened anew, the disk differs");
    }
}

#[test]
fn every_disk_does_what_an_array_would() {
    for seed in 0..often(2, 4).into() {
        let (_dirs, sources) = kinds(DISK_BYTES);
        for (name, source) in &sources {
            follow(name, source, seed, 60);
        }
    }
}

/// Gives `test` the path of a loop device of that many bytes and that block size.
fn on_loop_device(size_bytes: u64, block: &str, test: impl Fn(&str) + std::panic::RefUnwindSafe) {
    use std::process::Command;
    let dir = harness::on_disk();
    let image = dir.path().join("image");
    std::fs::File::create(&image).and_then(|file| file.set_len(size_bytes)).expect("an image");
    let output = Command::new("losetup")
        .args(["--find", "--show", "--sector-size", block])
        .arg(&image)
        .output()
        .expect("losetup runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let result = std::panic::catch_unwind(|| test(&device));
    let detached = Command::new("losetup").args(["--detach", &device]).status();
    assert!(detached.is_ok_and(|status| status.success()));
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

/// A device of 4 KiB blocks: half of what is asked of it cannot be direct, and its ranges are no
/// whole blocks.
#[test]
#[ignore = "needs root and a loop device: cargo test -p backend --test outside -- --ignored block"]
fn a_block_device_does_what_an_array_would() {
    let size_bytes = DISK_BYTES.next_multiple_of(4096);
    for block in ["512", "4096"] {
        on_loop_device(size_bytes, block, |device| {
            for (seed, cache) in [(1, backend::Cache::Direct), (2, backend::Cache::Page)] {
                let source = harness::file(device.as_ref(), None, cache);
                let mut bed = Bed::new(&source);
                assert!(bed.disk.limits().discard_sectors_max > 0);
                let all = Op::WriteZeroes { unmap: true, sync: true };
                assert_eq!(bed.run(all, 0, size_bytes, &[]), Status::Ok);
                drop(bed);
                follow(device, &source, seed, 60);
            }
        });
    }
}

/// The page cache must not keep what was there before a direct write that was under way.
#[test]
#[ignore = "needs root and a loop device: cargo test -p backend --test outside -- --ignored block"]
fn reads_beside_a_direct_write_of_the_same_blocks_leave_nothing_old() {
    const WRITTEN: u32 = 4 << 20;
    const BLOCKS: u64 = WRITTEN as u64 / 4096;
    on_loop_device(u64::from(WRITTEN), "4096", |device| {
        let mut bed = Bed::new(&harness::file(device.as_ref(), None, backend::Cache::Direct));
        let mut random = Random(11);
        let (whole, sector) = (bed.span(0, WRITTEN), bed.span(u64::from(WRITTEN), 512));
        let write = Asked::new(Op::Write { sync: false }, 0, WRITTEN.into(), &[whole]);
        // The second sector of a block cannot be read past the page cache.
        let read = |block: u64| Asked::new(Op::Read, block * 4096 + 512, 512, &[sector]);
        for round in 1..=60_u32 {
            assert!(bed.memory.write(whole, 0, &round.to_le_bytes().repeat(WRITTEN as usize / 4)));
            // The first write to a place takes longest.
            let zeroes = Op::WriteZeroes { unmap: true, sync: true };
            assert_eq!(bed.run(zeroes, 0, WRITTEN.into(), &[]), Status::Ok);
            let mut beside = Vec::new();
            bed.run_beside(&write, || {
                beside.push(random.below(BLOCKS));
                read(beside[beside.len() - 1])
            });
            // All have ended, so now there is only what was written.
            for block in beside {
                let Asked { op, offset, len, segments } = read(block);
                assert_eq!(bed.run(op, offset, len, &segments), Status::Ok);
                let mut found = [0; 4];
                assert!(bed.memory.read(sector, 0, &mut found));
                assert_eq!(u32::from_le_bytes(found), round, "block {block}");
            }
        }
    });
}

#[test]
fn a_request_of_more_pieces_than_a_command_holds() {
    let (_dirs, sources) = kinds(1 << 20);
    for (name, source) in &sources {
        let mut bed = Bed::new(source);
        // 600 pieces of 512 bytes, each in a page of its own.
        let segments: Vec<Span> = (0..600).map(|page| bed.span(page * 8192, 512)).collect();
        let bytes: Vec<u8> = (0..600 * 512).map(|at| (at / 512 + at) as u8).collect();
        for (segment, part) in segments.iter().zip(bytes.chunks(512)) {
            assert!(bed.memory.write(*segment, 0, part));
        }
        let op = Op::Write { sync: true };
        assert_eq!(bed.run(op, 4096, bytes.len() as u64, &segments), Status::Ok, "{name}");
        assert!(bed.read(4096, bytes.len()).expect("a read") == bytes, "{name}");
        let faults = bed.disk.faults();
        // Each of its three commands is stable; a RAM disk asks the kernel for nothing.
        let syncs = if *name == "memory" { 0 } else { faults.syncs };
        assert!(*name == "memory" || syncs > 0, "{name}");
        assert_eq!(faults, backend::FaultSnapshot { syncs, ..Default::default() }, "{name}");
    }
}

#[test]
fn a_write_beside_a_direct_write_of_the_same_page_survives() {
    let dir = harness::on_disk();
    let source = harness::file(&dir.path().join("disk"), Some(1 << 20), backend::Cache::Auto);
    let mut bed = Bed::new(&source);
    let mut random = Random(5);
    for round in 0..200_u8 {
        // One half of each page is written from an odd address (through the cache), the other
        // from an even one (direct), at the same time, in either order.
        let mut asked = Vec::new();
        for page in 0..8_u64 {
            let mut halves = [(0, 1), (2048, 0)];
            if random.below(2) == 0 {
                halves.reverse();
            }
            for (half, odd) in halves {
                let gpa = (1 << 20) + page * 16_384 + half * 2 + odd;
                let span = bed.span(gpa, 2048);
                assert!(bed.memory.write(span, 0, &[round ^ half as u8 ^ page as u8; 2048]));
                asked.push(Asked::new(
                    Op::Write { sync: false },
                    page * 4096 + half,
                    2048,
                    &[span],
                ));
            }
        }
        assert!(bed.run_all(&asked).iter().all(|status| *status == Status::Ok));
        for one in &asked {
            let mut expected = [0; 2048];
            assert!(bed.memory.read(one.segments[0], 0, &mut expected));
            let got = bed.read(one.offset, 2048).expect("a read");
            assert!(got == expected, "round {round}: {one:?} was lost");
        }
    }
}
