//! Drives a back-end without any ring: submit, enter, reap, completed.
#![expect(unreachable_pub, reason = "of a program of tests nothing is reached")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::{Backend, Cache, Disk, Io, OpenError, Outcome, Progress, Source, Started, Waits};
use guest_memory::{GuestMap, Span};
use request::{Op, Request, Status, Tag};

/// Bytes of guest memory.
pub const MEMORY_BYTES: u64 = 32 << 20;

/// A request that owns its segments.
#[derive(Clone, Debug)]
pub struct Asked {
    pub op: Op,
    pub offset: u64,
    pub len: u64,
    pub segments: Vec<Span>,
}

impl Asked {
    pub fn new(op: Op, offset: u64, len: u64, segments: &[Span]) -> Asked {
        Asked { op, offset, len, segments: segments.to_vec() }
    }

    pub fn request(&self) -> Request<'_> {
        let Asked { op, offset, len, ref segments } = *self;
        Request { op, offset, len, segments }
    }
}

/// One queue of one disk.
pub struct Bed {
    pub disk: Arc<Disk>,
    pub backend: Backend,
    pub io: Io,
    pub memory: GuestMap,
}

impl Bed {
    pub fn new(source: &Source) -> Bed {
        let deadline = now() + Duration::from_secs(90);
        loop {
            match Disk::open(source) {
                Ok(disk) => return Bed::on(disk),
                // A process that another test is just starting has a copy of every descriptor.
                Err(OpenError::Held { .. }) if now() < deadline => {}
                Err(error) => panic!("{source:?}: {error}"),
            }
        }
    }

    pub fn on(disk: Arc<Disk>) -> Bed {
        let backend = disk.backend();
        let io = Io::new(64).expect("an Io");
        let memory = GuestMap::anonymous(MEMORY_BYTES).expect("memory");
        Bed { disk, backend, io, memory }
    }

    pub fn span(&self, gpa: u64, len: u32) -> Span {
        self.memory.span(gpa, len).expect("within the guest's memory")
    }

    /// Runs one request to its end.
    pub fn run(&mut self, op: Op, offset: u64, len: u64, segments: &[Span]) -> Status {
        self.run_all(&[Asked::new(op, offset, len, segments)])[0]
    }

    /// Writes `bytes` through guest memory at 0.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Status {
        let span = self.span(0, bytes.len() as u32);
        assert!(self.memory.write(span, 0, bytes));
        self.run(Op::Write { sync: false }, offset, bytes.len() as u64, &[span])
    }

    /// Reads through guest memory at 0, which holds something else before.
    pub fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, Status> {
        let span = self.span(0, len as u32);
        assert!(self.memory.write(span, 0, &vec![0xee; len]));
        match self.run(Op::Read, offset, len as u64, &[span]) {
            Status::Ok => {
                let mut bytes = vec![0; len];
                assert!(self.memory.read(span, 0, &mut bytes));
                Ok(bytes)
            }
            status => Err(status),
        }
    }

    /// Runs one request, and others one after the other until it has ended. All must end well.
    pub fn run_beside(&mut self, long: &Asked, mut other: impl FnMut() -> Asked) {
        let tag = |slot| Tag { queue: 7, slot, generation: 99 };
        let mut progress = [Progress::default(); 2];
        let mut asked = [long.clone(), other()];
        let mut ended = [true; 2];
        let deadline = now() + Duration::from_secs(60);
        let begin = |bed: &mut Bed, one: &Asked, slot: u16| {
            let submitted = bed.backend.submit(&mut bed.io, &one.request(), &bed.memory, tag(slot));
            assert_eq!(submitted, Started::Pending);
        };
        begin(self, &asked[0], 0);
        ended[0] = false;
        while !(ended[0] && ended[1]) {
            assert!(now() < deadline, "stuck: {asked:?} {ended:?}");
            if ended[1] && !ended[0] {
                begin(self, &asked[1], 1);
                (ended[1], progress[1]) = (false, Progress::default());
            }
            self.io.enter().expect("enter");
            while let Some((of, result)) = self.io.reap_one() {
                let slot = usize::from(of.slot);
                let (request, progress) = (asked[slot].request(), &mut progress[slot]);
                let (io, memory) = (&mut self.io, &self.memory);
                let outcome = self.backend.completed(io, &request, memory, of, result, progress);
                let backend = &mut self.backend;
                match take_turns(backend, io, &request, memory, of, progress, outcome) {
                    Outcome::Pending | Outcome::Turn => {}
                    other @ (Outcome::Stalled(_) | Outcome::Passed(_)) => {
                        panic!("{other:?}: {:?}", asked[slot])
                    }
                    Outcome::Done(status) => {
                        assert_eq!(status, Status::Ok, "{:?}", asked[slot]);
                        ended[slot] = true;
                    }
                }
            }
            if ended[1] && !ended[0] {
                asked[1] = other();
            }
        }
    }

    /// Runs them all at once, as far as there is room.
    pub fn run_all(&mut self, asked: &[Asked]) -> Vec<Status> {
        let mut ended: Vec<Option<Status>> = vec![None; asked.len()];
        let mut progress = vec![Progress::default(); asked.len()];
        let mut next = 0;
        let deadline = now() + Duration::from_secs(60);
        while ended.iter().any(Option::is_none) {
            assert!(now() < deadline, "stuck: {asked:?} {ended:?}");
            while next < asked.len() && (self.backend.answers_at_once() || self.io.room() > 0) {
                let tag = Tag { queue: 7, slot: next as u16, generation: 99 };
                let request = asked[next].request();
                let started = self.backend.submit(&mut self.io, &request, &self.memory, tag);
                if let Started::Done(status) = started {
                    ended[next] = Some(status);
                }
                next += 1;
            }
            self.io.enter().expect("enter");
            while let Some((tag, result)) = self.io.reap_one() {
                assert_eq!((tag.queue, tag.generation), (7, 99));
                let slot = usize::from(tag.slot);
                assert_eq!(ended[slot], None, "a request ended twice");
                let request = asked[slot].request();
                let outcome = self.backend.completed(
                    &mut self.io,
                    &request,
                    &self.memory,
                    tag,
                    result,
                    &mut progress[slot],
                );
                let (backend, io, progress) =
                    (&mut self.backend, &mut self.io, &mut progress[slot]);
                let memory = &self.memory;
                let outcome = take_turns(backend, io, &request, memory, tag, progress, outcome);
                if let Outcome::Done(status) = outcome {
                    ended[slot] = Some(status);
                }
            }
        }
        assert_eq!(self.io.in_flight(), 0);
        ended.into_iter().map(|status| status.expect("ended")).collect()
    }
}

/// Goes on with a request for as long as it waits for a turn.
pub fn take_turns(
    backend: &mut Backend,
    io: &mut Io,
    request: &Request<'_>,
    memory: &GuestMap,
    tag: Tag,
    progress: &mut Progress,
    mut outcome: Outcome,
) -> Outcome {
    while outcome == Outcome::Turn {
        outcome = backend.go_on(io, request, memory, tag, progress, 0).outcome;
    }
    outcome
}

/// The clock, for deadlines of tests.
pub fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a test that is stuck must end")]
    Instant::now()
}

pub fn file(path: &Path, size_bytes: Option<u64>, cache: Cache) -> Source {
    Source::File { path: path.into(), size_bytes, readonly: false, cache, waits: Waits::default() }
}

/// A directory on the file system of the build: a real one, as a rule.
pub fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// A directory in memory.
pub fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm")
}

/// Every kind of disk that keeps data, of one size, each with a name. The directories must live as
/// long as the disks.
pub fn kinds(size_bytes: u64) -> (Vec<tempfile::TempDir>, Vec<(&'static str, Source)>) {
    let (disk, memory) = (on_disk(), in_memory());
    let at = |dir: &tempfile::TempDir, name: &str| -> PathBuf { dir.path().join(name) };
    let sources = vec![
        ("memory", Source::Memory { size_bytes }),
        ("tmpfs", file(&at(&memory, "auto"), Some(size_bytes), Cache::Auto)),
        ("file past the page cache", file(&at(&disk, "auto"), Some(size_bytes), Cache::Auto)),
        ("file through the page cache", file(&at(&disk, "page"), Some(size_bytes), Cache::Page)),
    ];
    (vec![disk, memory], sources)
}

/// Numbers that look random, from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}
