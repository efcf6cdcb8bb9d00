//! Long transfers and odd buffers on every way: contents, chunks, and what one call had to do.

use std::fs::OpenOptions;
use std::io::IoSliceMut;
use std::path::Path;
use std::time::Instant;

use guest_memory::{GuestMap, Span};
use request::{Op, Request, Status, Tag};
use rustix::fs::{Advice, fadvise};
use rustix::io::{ReadWriteFlags, preadv2};

use super::{CHUNK_BYTES, SHORT_BYTES};
use crate::file::{File, Opened};
use crate::lacking::leave_out;
use crate::{Cache, Io, OpenError, Outcome, Progress, Started};

const LEN: u64 = 5 << 20;
const REQUESTS: u16 = 4;
const SIZE: u64 = LEN * REQUESTS as u64;
/// Of a look at the page cache.
const ATTEMPTS: u32 = 5;
const NO_DIRECT: &str = "this file system has no way past the page cache";

struct Bed {
    file: File,
    io: Io,
    memory: GuestMap,
}

/// What some requests came to.
#[derive(Debug, Default)]
struct Came {
    /// Turns that they waited for.
    turns: u64,
    /// The most bytes of one turn.
    turn_bytes_max: u64,
    /// Those of them that copied.
    copies: u64,
}

fn folder() -> tempfile::TempDir {
    let build = std::env::current_exe().expect("this program");
    tempfile::tempdir_in(build.parent().expect("a folder")).expect("a directory")
}

impl Bed {
    fn new(path: &Path, cache: Cache) -> Bed {
        #[expect(clippy::disallowed_methods, reason = "a test that is stuck must end")]
        let begun = Instant::now();
        let (opened, size_bytes) = loop {
            match Opened::open(
                &crate::names::KernelNames,
                path,
                Some(SIZE),
                false,
                cache,
                crate::Vet::Raw,
            ) {
                Ok(opened) => break opened,
                // A process that another test is just starting has a copy of every descriptor.
                Err(OpenError::Held { .. }) if begun.elapsed().as_secs() < 90 => {}
                Err(error) => panic!("{error}"),
            }
        };
        let io = Io::new(64).expect("an Io");
        let memory = GuestMap::anonymous(2 * SIZE).expect("memory");
        Bed { file: File::new(opened.into(), size_bytes), io, memory }
    }

    fn goes_past_the_page_cache(&self) -> bool {
        self.file.opened.direct().is_some()
    }

    /// As many requests of [`LEN`] as there are, at once: the whole file. Those with `odd` have buffers that
    /// begin there and are cut oddly.
    fn run_all(&mut self, op: Op, odd: u64) -> Came {
        let segments: Vec<Vec<Span>> = (0..REQUESTS)
            .map(|slot| segments(&self.memory, u64::from(slot) * 2 * LEN, odd))
            .collect();
        let request = |slot: u16| Request {
            op,
            offset: u64::from(slot) * LEN,
            len: LEN,
            segments: &segments[usize::from(slot)],
        };
        let tag = |slot| Tag { queue: 0, slot, generation: 0 };
        let mut progress = vec![Progress::default(); REQUESTS.into()];
        let (mut came, mut left) = (Came::default(), REQUESTS);
        let (file, io, memory) = (&mut self.file, &mut self.io, &self.memory);
        for slot in 0..REQUESTS {
            let submitted = file.submit(io, &request(slot), memory, tag(slot));
            assert_eq!(submitted, Started::Pending);
        }
        while left > 0 {
            io.enter().expect("entered");
            while let Some((tag, result)) = io.reap_one() {
                let progress = &mut progress[usize::from(tag.slot)];
                let request = request(tag.slot);
                let mut outcome = file.completed(io, &request, memory, tag, result, progress);
                while outcome == Outcome::Turn {
                    let turn = file.go_on(io, &request, memory, tag, progress);
                    came.turns += 1;
                    came.turn_bytes_max = came.turn_bytes_max.max(turn.bytes);
                    came.copies += u64::from(turn.copies);
                    outcome = turn.outcome;
                }
                if let Outcome::Done(status) = outcome {
                    assert_eq!(status, Status::Ok, "{op:?} {odd}");
                    left -= 1;
                }
            }
        }
        came
    }

    fn bytes(&self, odd: u64) -> Vec<u8> {
        let mut all = Vec::new();
        for slot in 0..REQUESTS {
            for span in segments(&self.memory, u64::from(slot) * 2 * LEN, odd) {
                let at = all.len();
                all.resize(at + span.len() as usize, 0);
                assert!(self.memory.read(span, 0, &mut all[at..]));
            }
        }
        all
    }

    fn put(&self, odd: u64, bytes: &[u8]) {
        let mut at = 0;
        for slot in 0..REQUESTS {
            for span in segments(&self.memory, u64::from(slot) * 2 * LEN, odd) {
                assert!(self.memory.write(span, 0, &bytes[at..at + span.len() as usize]));
                at += span.len() as usize;
            }
        }
    }
}

/// [`LEN`] bytes behind `at`; odd ones begin `odd` bytes later, and have pieces of odd lengths.
fn segments(memory: &GuestMap, at: u64, odd: u64) -> Vec<Span> {
    let span = |at, len: u64| memory.span(at, len as u32).expect("within");
    if odd == 0 {
        return vec![span(at, LEN)];
    }
    let (first, second) = (1000 + odd, 300_001);
    let third = LEN - first - second;
    let (at_second, at_third) = (at + odd + first + 7, at + odd + first + second + 70);
    vec![span(at + odd, first), span(at_second, second), span(at_third, third)]
}

fn content(seed: u64) -> Vec<u8> {
    let word = |at: u64| (at ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..SIZE / 8).flat_map(word).collect()
}

/// Whether a block of the file is in the page cache. `None`: this file system does not tell.
fn is_cached(path: &Path, offset: u64) -> Option<bool> {
    let file = OpenOptions::new().read(true).open(path).expect("the file");
    let mut bytes = [0; 512];
    match preadv2(&file, &mut [IoSliceMut::new(&mut bytes)], offset, ReadWriteFlags::NOWAIT) {
        Ok(_) => Some(true),
        Err(rustix::io::Errno::AGAIN) => Some(false),
        Err(_) => None,
    }
}

#[test]
fn odd_buffers_of_a_direct_disk_leave_nothing_in_the_page_cache() {
    let folder = folder();
    let path = folder.path().join("disk");
    for odd in [0, 1, 3, 511] {
        let mut bed = Bed::new(&path, Cache::Auto);
        if !bed.goes_past_the_page_cache() {
            let name = "odd_buffers_of_a_direct_disk_leave_nothing_in_the_page_cache";
            return leave_out(name, NO_DIRECT, folder.path());
        }
        let wanted = content(odd);
        let mut more = 1..ATTEMPTS;
        let (wrote, read, cached) = loop {
            bed.put(odd, &wanted);
            // What making it, or an earlier look, left there.
            let file = OpenOptions::new().read(true).open(&path).expect("the file");
            fadvise(&file, 0, None, Advice::DontNeed).expect("advised");
            let wrote = bed.run_all(Op::Write { sync: false }, odd);
            bed.put(odd, &vec![0xee; SIZE as usize]);
            let read = bed.run_all(Op::Read, odd);
            let at_all = (0..SIZE).step_by(1 << 20);
            let cached = at_all.filter(|at| is_cached(&path, *at) == Some(true));
            let cached: Vec<u64> = cached.collect();
            // Where somebody else holds a page at that moment, such as the kernel's reclaim, the file system does
            // a direct write through the cache.
            if cached.is_empty() || more.next().is_none() {
                break (wrote, read, cached);
            }
        };
        assert!(cached.is_empty(), "{odd}: in the page cache: {cached:?}");
        assert!(bed.bytes(odd) == wanted, "{odd}: other bytes than were written");
        let chunks = SIZE / if odd == 0 { CHUNK_BYTES } else { 64 << 10 };
        let first = u64::from(REQUESTS);
        // Of a bounced read, each chunk waits for the copy, and then goes on at once.
        assert_eq!(wrote.turns, chunks - first, "{odd}: {wrote:?}");
        assert_eq!(read.turns, if odd == 0 { chunks - first } else { chunks }, "{odd}: {read:?}");
        // Of a write the first chunk is copied before there was a turn.
        let copies = if odd == 0 { [0; 2] } else { [chunks - first, chunks] };
        assert_eq!([wrote.copies, read.copies], copies, "{odd}");
        assert!(std::fs::read(&path).expect("the file") == wanted, "{odd}: elsewhere on the disk");
        // And this way of looking does see something.
        assert_ne!(is_cached(&path, 0), Some(false));
    }
}

#[test]
fn no_call_does_more_than_a_chunk_and_none_is_lost() {
    let folder = folder();
    for (number, cache) in [Cache::Auto, Cache::Page].into_iter().enumerate() {
        for odd in [0, 1] {
            let mut bed = Bed::new(&folder.path().join(format!("{number}{odd}")), cache);
            let wanted = content(9 + odd);
            bed.put(odd, &wanted);
            for sync in [true, false] {
                bed.run_all(Op::Write { sync }, odd);
            }
            bed.put(odd, &vec![0xee; SIZE as usize]);
            let read = bed.run_all(Op::Read, odd);
            assert!(bed.bytes(odd) == wanted, "{cache:?} {odd}");
            assert!(read.turn_bytes_max <= CHUNK_BYTES, "{read:?}");
            assert!(read.turns >= SIZE / CHUNK_BYTES - u64::from(REQUESTS), "{read:?}");
            let most = bed.io.laden_most();
            // 256 KiB together, or one chunk of those that are only pinned.
            assert!(most <= 256 << 10, "{cache:?} {odd}: one call had {most} bytes to do");
            if !bed.goes_past_the_page_cache() {
                assert!(most <= SHORT_BYTES, "{cache:?} {odd}: {most} bytes were copied here");
            }
            assert_eq!(bed.file.opened.faults().short, 0, "a chunk is not a short transfer");
        }
    }
}

/// A bounced write of several chunks is synced once, as a long one is.
#[test]
fn a_stable_write_in_chunks_is_synced_once() {
    let folder = folder();
    let mut bed = Bed::new(&folder.path().join("disk"), Cache::Auto);
    if !bed.goes_past_the_page_cache() {
        return leave_out("a_stable_write_in_chunks_is_synced_once", NO_DIRECT, folder.path());
    }
    for (bytes, odd) in [(64 << 10, 1), (256 << 10, 1), (1 << 20, 1), (256 << 10, 0)] {
        let segments = [bed.memory.span(odd, bytes as u32).expect("within")];
        let op = Op::Write { sync: true };
        let request = Request { op, offset: 0, len: bytes, segments: &segments };
        let tag = Tag { queue: 0, slot: 0, generation: 0 };
        let before = bed.file.opened.faults().syncs;
        let (file, io, memory) = (&mut bed.file, &mut bed.io, &bed.memory);
        let mut progress = Progress::default();
        let mut outcome = Outcome::from(file.submit(io, &request, memory, tag));
        while !matches!(outcome, Outcome::Done(_)) {
            io.enter().expect("entered");
            while let Some((tag, result)) = io.reap_one() {
                outcome = file.completed(io, &request, memory, tag, result, &mut progress);
            }
            if outcome == Outcome::Turn {
                outcome = file.go_on(io, &request, memory, tag, &mut progress).outcome;
            }
        }
        assert_eq!(outcome, Outcome::Done(Status::Ok), "{bytes} {odd}");
        assert_eq!(bed.file.opened.faults().syncs - before, 1, "{bytes} {odd}");
    }
}

/// Whatever ends before its completion.
#[test]
fn a_buffer_that_the_kernel_has_is_nobody_elses() {
    let folder = folder();
    let mut bed = Bed::new(&folder.path().join("disk"), Cache::Auto);
    if !bed.goes_past_the_page_cache() {
        return leave_out("a_buffer_that_the_kernel_has_is_nobody_elses", NO_DIRECT, folder.path());
    }
    let segments = [bed.memory.span(1, 4096).expect("within")];
    let request = Request { op: Op::Read, offset: 0, len: 4096, segments: &segments };
    let tag = Tag { queue: 0, slot: 0, generation: 0 };
    let submitted = bed.file.submit(&mut bed.io, &request, &bed.memory, tag);
    assert_eq!(submitted, Started::Pending);
    let place = bed.file.place.expect("it has joined");
    bed.file.let_buffers_go(&mut bed.io, place);
    let bounce = bed.io.bounce(place).expect("a direct disk has buffers");
    assert!(bounce.take().is_some(), "the other one is free");
    assert!(bounce.take().is_none(), "what the kernel writes to was handed on");
}
