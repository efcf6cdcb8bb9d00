//! What cannot be provoked from outside: file systems that lack things, and failed syncs.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use guest_memory::GuestMap;
use request::{Op, Request, Status, Tag};
use rustix::io::Errno;

use super::open::Lack;
use super::{File, Opened, Progress};
use crate::{Cache, Io, OpenError, Outcome, Started};

const SIZE: u64 = 8 << 20;
const TAG: Tag = Tag { queue: 0, slot: 3, generation: 0 };

struct Bed {
    file: File,
    io: Io,
    memory: GuestMap,
}

impl Bed {
    fn new(path: &Path, cache: Cache) -> Bed {
        #[expect(clippy::disallowed_methods, reason = "a test that is stuck must end")]
        let begun = Instant::now();
        let (opened, size_bytes) = loop {
            match Opened::open(&crate::KernelNames, path, Some(SIZE), false, cache, crate::Vet::Raw)
            {
                Ok(opened) => break opened,
                // A process that another test is just starting has a copy of every descriptor.
                Err(OpenError::Held { .. }) if begun.elapsed().as_secs() < 90 => {}
                Err(error) => panic!("{error}"),
            }
        };
        let io = Io::new(32).expect("an Io");
        let memory = GuestMap::anonymous(SIZE).expect("memory");
        Bed { file: File::new(opened.into(), size_bytes), io, memory }
    }

    fn run(&mut self, op: Op, offset: u64, len: u64) -> Status {
        let span = self.memory.span(0, len as u32).expect("a span");
        let segments = [span];
        let segments = match op {
            Op::Read | Op::Write { .. } => &segments[..],
            _ => &[],
        };
        let request = Request { op, offset, len, segments };
        let mut progress = Progress::default();
        let started = self.file.submit(&mut self.io, &request, &self.memory, TAG);
        let mut outcome = Outcome::from(started);
        loop {
            match outcome {
                Outcome::Done(status) => return status,
                Outcome::Turn => {
                    let (io, memory) = (&mut self.io, &self.memory);
                    outcome = self.file.go_on(io, &request, memory, TAG, &mut progress).outcome;
                    continue;
                }
                Outcome::Pending => {}
                other => panic!("{other:?}"),
            }
            self.io.enter().expect("enter");
            if let Some((tag, result)) = self.io.reap_one() {
                assert_eq!(tag, TAG);
                let file = &mut self.file;
                outcome = file.completed(
                    &mut self.io,
                    &request,
                    &self.memory,
                    tag,
                    result,
                    &mut progress,
                );
            }
        }
    }

    fn fill(&mut self, byte: u8, offset: u64, len: u64) {
        let span = self.memory.span(0, len as u32).expect("a span");
        assert!(self.memory.write(span, 0, &vec![byte; len as usize]));
        assert_eq!(self.run(Op::Write { sync: false }, offset, len), Status::Ok);
    }
}

fn folders() -> [tempfile::TempDir; 2] {
    // The build's folder is on a file system with a device below, as a rule.
    let build = std::env::current_exe().expect("this program");
    let build = build.parent().expect("a folder");
    [
        tempfile::tempdir_in(build).expect("a directory"),
        tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm"),
    ]
}

#[test]
fn zeroes_are_made_whatever_the_file_system_lacks() {
    let lacking: [&[Lack]; 4] = [
        &[],
        &[Lack::ZeroRange],
        &[Lack::PunchHole],
        &[Lack::PunchHole, Lack::ZeroRange, Lack::StableWrite],
    ];
    for folder in folders() {
        for cache in [Cache::Auto, Cache::Page] {
            for (number, lacks) in lacking.iter().enumerate() {
                let path = folder.path().join(format!("{cache:?}{number}"));
                let mut bed = Bed::new(&path, cache);
                lacks.iter().for_each(|lack| bed.file.opened.note_lack(*lack));
                bed.fill(7, 0, SIZE);
                for (unmap, sync) in [(false, false), (true, false), (false, true), (true, true)] {
                    bed.fill(7, 0, SIZE);
                    // More than one command of zeroes, from the middle of a page to another's.
                    let (offset, len) = (512, (5 << 20) + 1024);
                    let op = Op::WriteZeroes { unmap, sync };
                    assert_eq!(bed.run(op, offset, len), Status::Ok, "{lacks:?} {op:?}");
                    let bytes = std::fs::read(&path).expect("the file");
                    let (from, to) = (offset as usize, (offset + len) as usize);
                    let mut expected = vec![7; bytes.len()];
                    expected[from..to].fill(0);
                    let is_wrong = |(found, expected)| found != expected;
                    // The comparison of a whole slice first: byte by byte it takes seconds.
                    let wrong = if bytes == expected {
                        None
                    } else {
                        bytes.iter().zip(&expected).position(is_wrong)
                    };
                    assert_eq!(wrong, None, "{lacks:?} {op:?} {cache:?}");
                    if !unmap {
                        let blocks = std::fs::metadata(&path).expect("facts").blocks();
                        assert!(blocks * 512 >= SIZE, "{lacks:?} {op:?}: space was given away");
                    }
                }
                assert_eq!(bed.run(Op::Write { sync: true }, 0, 4096), Status::Ok);
                let discarded = bed.run(Op::Discard, 0, 4096);
                let can = !bed.file.opened.lacks(Lack::PunchHole);
                assert_eq!(discarded, if can { Status::Ok } else { Status::Unsupported });
            }
        }
    }
}

#[test]
fn a_failed_sync_is_remembered_by_every_queue_of_the_disk() {
    for sync in [Op::Flush, Op::Write { sync: true }] {
        let [folder, _] = folders();
        let mut bed = Bed::new(&folder.path().join("disk"), Cache::Auto);
        let mut other = File::new(bed.file.opened.clone(), SIZE);
        assert_eq!(bed.run(Op::Flush, 0, 0), Status::Ok);
        // The kernel says that a page was lost.
        let span = [bed.memory.span(0, 4096).expect("a span")];
        let (len, segments) = if sync == Op::Flush { (0, &span[..0]) } else { (4096, &span[..]) };
        let request = Request { op: sync, offset: 0, len, segments };
        let submitted = bed.file.submit(&mut bed.io, &request, &bed.memory, TAG);
        assert_eq!(submitted, Started::Pending);
        let result = -Errno::IO.raw_os_error();
        let mut progress = Progress::default();
        let ended =
            bed.file.completed(&mut bed.io, &request, &bed.memory, TAG, result, &mut progress);
        assert_eq!(ended, Outcome::Done(Status::IoError));
        assert_eq!(bed.file.opened.faults().eio, 1);
        while bed.io.in_flight() > 0 {
            bed.io.enter().expect("enter");
            while bed.io.reap_one().is_some() {}
        }
        std::mem::swap(&mut bed.file, &mut other);
        for _ in 0..3 {
            assert_eq!(bed.run(Op::Flush, 0, 0), Status::IoError);
            assert_eq!(bed.run(Op::Write { sync: true }, 0, 4096), Status::IoError);
            let zeroes = Op::WriteZeroes { unmap: true, sync: true };
            assert_eq!(bed.run(zeroes, 0, 4096), Status::IoError);
        }
        // What makes no promise still works.
        assert_eq!(bed.run(Op::Write { sync: false }, 0, 4096), Status::Ok);
        assert_eq!(bed.run(Op::Read, 0, 4096), Status::Ok);
    }
}

#[test]
fn a_flush_that_ends_after_another_failed_has_failed() {
    let [folder, _] = folders();
    let mut bed = Bed::new(&folder.path().join("disk"), Cache::Page);
    let request = Request { op: Op::Flush, offset: 0, len: 0, segments: &[] };
    let second = Tag { slot: 4, ..TAG };
    for tag in [TAG, second] {
        let submitted = bed.file.submit(&mut bed.io, &request, &bed.memory, tag);
        assert_eq!(submitted, Started::Pending);
    }
    let end = |bed: &mut Bed, tag, result| {
        let mut progress = Progress::default();
        let (io, memory) = (&mut bed.io, &bed.memory);
        bed.file.completed(io, &request, memory, tag, result, &mut progress)
    };
    // Only one is with the kernel; the other waits, for as long as that one takes.
    let waited = -Errno::TIME.raw_os_error();
    assert_eq!(end(&mut bed, second, waited), Outcome::Pending);
    let failed = end(&mut bed, TAG, -Errno::IO.raw_os_error());
    assert_eq!(failed, Outcome::Done(Status::IoError));
    assert_eq!(end(&mut bed, second, waited), Outcome::Done(Status::IoError));
}

/// One request of which the kernel says `results`, one after the other.
fn told(bed: &mut Bed, op: Op, results: &[i32]) -> Outcome {
    let span = [bed.memory.span(0, 4096).expect("a span")];
    let request = Request { op, offset: 0, len: 4096, segments: &span };
    let mut outcome = Outcome::from(bed.file.submit(&mut bed.io, &request, &bed.memory, TAG));
    let mut progress = Progress::default();
    for result in results {
        assert_eq!(outcome, Outcome::Pending);
        let (file, io, memory) = (&mut bed.file, &mut bed.io, &bed.memory);
        outcome = file.completed(io, &request, memory, TAG, *result, &mut progress);
    }
    outcome
}

#[test]
fn only_a_failed_sync_is_a_failed_sync() {
    let [folder, _] = folders();
    let eio = -Errno::IO.raw_os_error();
    let failed = Outcome::Done(Status::IoError);
    for cache in [Cache::Auto, Cache::Page] {
        for error in [Errno::IO, Errno::NODEV, Errno::NOTCONN, Errno::NOSPC] {
            let mut bed = Bed::new(&folder.path().join("disk"), cache);
            let op = Op::Write { sync: false };
            assert_eq!(told(&mut bed, op, &[-error.raw_os_error()]), failed);
            assert_eq!(told(&mut bed, Op::Read, &[-error.raw_os_error()]), failed);
            assert!(!bed.file.opened.sync_failed(), "{cache:?} {error}");
            assert_eq!(bed.file.opened.faults().syncs, 0);
        }
    }
    // Through the page cache a stable write is a write and a sync.
    let mut bed = Bed::new(&folder.path().join("disk"), Cache::Page);
    let stable = Op::Write { sync: true };
    assert_eq!(told(&mut bed, stable, &[eio]), failed);
    assert!(!bed.file.opened.sync_failed(), "nothing was synced");
    assert_eq!(told(&mut bed, stable, &[4096, 0]), Outcome::Done(Status::Ok));
    assert_eq!(bed.file.opened.faults().syncs, 1);
    assert_eq!(told(&mut bed, stable, &[4096, eio]), failed);
    assert!(bed.file.opened.sync_failed());
    assert_eq!(told(&mut bed, stable, &[]), failed);
}

#[test]
fn stable_writes_that_the_file_system_refuses_are_no_failed_syncs() {
    let [folder, _] = folders();
    let mut bed = Bed::new(&folder.path().join("disk"), Cache::Auto);
    let span = [bed.memory.span(0, 4096).expect("a span")];
    let op = Op::Write { sync: true };
    let request =
        |slot: u16| Request { op, offset: u64::from(slot) << 12, len: 4096, segments: &span };
    let slots = [3, 4];
    for slot in slots {
        let (tag, request) = (Tag { slot, ..TAG }, request(slot));
        let submitted = bed.file.submit(&mut bed.io, &request, &bed.memory, tag);
        assert_eq!(submitted, Started::Pending);
    }
    // Both were on their way as stable ones when the first was refused.
    let refused = -Errno::OPNOTSUPP.raw_os_error();
    for slot in slots {
        let (io, memory, progress) = (&mut bed.io, &bed.memory, &mut Progress::default());
        let tag = Tag { slot, ..TAG };
        let told = bed.file.completed(io, &request(slot), memory, tag, refused, progress);
        assert_eq!(told, Outcome::Pending, "written otherwise, then synced");
        assert!(progress.unstable);
    }
    assert!(bed.file.opened.lacks(Lack::StableWrite) && !bed.file.opened.sync_failed());
}

#[test]
fn at_most_four_slow_commands_of_a_disk_are_with_the_kernel() {
    let [folder, _] = folders();
    let mut bed = Bed::new(&folder.path().join("disk"), Cache::Auto);
    let tag = |slot| Tag { slot, ..TAG };
    let request = |slot: u16| {
        let op = if slot.is_multiple_of(3) { Op::Flush } else { Op::Discard };
        let len = if op == Op::Flush { 0 } else { 4096 };
        Request { op, offset: u64::from(slot) * 4096, len, segments: &[] }
    };
    bed.file.join(&mut bed.io).expect("a ring");
    let place = bed.file.place.expect("a place");
    let mut begun = 0;
    for slot in 0..20 {
        begun += usize::from(bed.io.has_room_for_slow(place));
        let submitted = bed.file.submit(&mut bed.io, &request(slot), &bed.memory, tag(slot));
        assert_eq!(submitted, Started::Pending);
    }
    // Of two flushes one waits for the other, and not for a place.
    assert_eq!(begun, 5);
    assert!(!bed.io.has_room_for_slow(place) && bed.io.in_flight() == 20);
    let mut ended = 0;
    while ended < 20 {
        bed.io.enter().expect("enter");
        while let Some((tag, result)) = bed.io.reap_one() {
            let (file, io, memory) = (&mut bed.file, &mut bed.io, &bed.memory);
            let request = request(tag.slot);
            match file.completed(io, &request, memory, tag, result, &mut Progress::default()) {
                Outcome::Done(status) => {
                    assert_eq!(status, Status::Ok);
                    ended += 1;
                }
                Outcome::Passed(_) => panic!("a file has no stages"),
                Outcome::Pending | Outcome::Turn | Outcome::Stalled(_) => {}
            }
        }
    }
    assert!(bed.io.in_flight() == 0 && bed.io.has_room_for_slow(place));
}

#[test]
fn being_told_to_come_again_ends_at_last() {
    let [folder, _] = folders();
    for error in [Errno::AGAIN, Errno::INTR, Errno::CANCELED] {
        let mut bed = Bed::new(&folder.path().join("disk"), Cache::Auto);
        let span = [bed.memory.span(0, 4096).expect("a span")];
        let request = Request { op: Op::Read, offset: 0, len: 4096, segments: &span };
        assert_eq!(bed.file.submit(&mut bed.io, &request, &bed.memory, TAG), Started::Pending);
        let (mut progress, mut rounds) = (Progress::default(), 0);
        let again = -error.raw_os_error();
        while bed.file.completed(&mut bed.io, &request, &bed.memory, TAG, again, &mut progress)
            == Outcome::Pending
        {
            rounds += 1;
            assert!(rounds < 100);
        }
        let faults = bed.file.opened.faults();
        assert_eq!((rounds, faults.other, faults.other_code), (8, 1, error.raw_os_error()));
    }
}
