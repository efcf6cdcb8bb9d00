//! A queue with a trace on the way to its disk, beside the same without.

use std::sync::Arc;

use guest_memory::{GuestMap, Span};
use request::{Op, Request, Status, Tag};

use super::*;
use crate::trace::{Asked, Cursor};
use crate::{Disk, Source};

const MIB: u64 = 1 << 20;
/// The disk's size.
const SIZE: u64 = 8 * MIB;
/// What may be copied in one go.
const SLICE: u64 = 64 << 10;

struct Bed {
    disk: Arc<Disk>,
    ring: Arc<Ring>,
    backend: Backend,
    io: Io,
    memory: GuestMap,
}

impl Bed {
    fn new() -> Bed {
        Bed::over(&Source::Memory { size_bytes: SIZE })
    }

    fn over(source: &Source) -> Bed {
        let disk = Disk::open(source).expect("disk");
        let ring = Ring::new(0);
        let stages = Stages { trace: Some(Arc::clone(&ring)), fault: None };
        let backend = disk.backend_through(stages);
        let memory = GuestMap::anonymous(16 << 20).expect("memory");
        Bed { disk, ring, backend, io: Io::new(64).expect("io"), memory }
    }

    fn tag(slot: u16) -> Tag {
        Tag { queue: 0, slot, generation: 1 }
    }

    fn span(&self, gpa: u64, len: u64) -> Span {
        self.memory.span(gpa, len as u32).expect("within")
    }

    /// Does it, as a sidecore would: how many turns that took, and how it ended.
    fn run(&mut self, op: Op, offset: u64, len: u64, segments: &[Span]) -> (u32, Status) {
        let request = Request { op, offset, len, segments };
        let (tag, mut progress) = (Bed::tag(3), Progress::default());
        let started = self.backend.submit(&mut self.io, &request, &self.memory, tag);
        let (mut turns, mut outcome) = (1, Outcome::from(started));
        while outcome == Outcome::Turn {
            let Bed { backend, io, memory, .. } = self;
            let turn = backend.go_on(io, &request, memory, tag, &mut progress, 70_000);
            assert!(turn.bytes <= SLICE.max(ZEROED_BYTES));
            outcome = turn.outcome;
            turns += 1;
        }
        match outcome {
            Outcome::Done(status) => (turns, status),
            other => panic!("{other:?}"),
        }
    }

    fn begin(&mut self, now_ns: u64) {
        let (waited_ns, held_ns) = (11, 0);
        self.backend.begin(Look { now_ns, waited_ns, held_ns, slice_bytes: SLICE });
    }

    fn traced(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        assert_eq!(self.ring.read(&mut Cursor::default(), 100, |one| entries.push(one)), 0);
        entries
    }
}

#[test]
fn a_back_end_that_was_made_before_goes_on_behind_what_was_recorded_since() {
    let mut bed = Bed::new();
    let stages = Stages { trace: Some(Arc::clone(&bed.ring)), fault: None };
    let next = bed.disk.backend_through(stages);
    for (at, offset) in [0, 512].into_iter().enumerate() {
        bed.begin(at as u64);
        let _ = bed.run(Op::Flush, offset, 0, &[]);
        bed.backend.end(at as u64);
    }
    let before = std::mem::replace(&mut bed.backend, next);
    bed.backend.come_from(before);
    bed.begin(9);
    let _ = bed.run(Op::Flush, 1024, 0, &[]);
    bed.backend.end(9);
    let offsets: Vec<u64> = bed.traced().iter().map(|entry| entry.offset).collect();
    assert_eq!(offsets, [0, 512, 1024]);
}

#[test]
fn nothing_on_the_way_is_no_stage() {
    let disk = Disk::open(&Source::Memory { size_bytes: SIZE }).expect("disk");
    assert!(!disk.backend_through(Stages::default()).is_staged());
    let stages = Stages { trace: Some(Ring::new(0)), fault: None };
    assert!(disk.backend_through(stages).is_staged());
}

#[test]
fn a_long_transfer_goes_in_parts_and_is_one_entry() {
    let mut bed = Bed::new();
    assert!(!bed.backend.answers_at_once());
    let bytes: Vec<u8> = (0..3 * MIB).map(|at| (at / 4096) as u8 ^ at as u8).collect();
    // Many buffers, none of which ends where a part does.
    let lens = [100_000, 1, 0, 1_500_000, 3 * MIB - 1_600_001 - 4_095, 4_095];
    let mut gpa = 4096;
    let spans = lens.map(|len| {
        let span = bed.span(gpa, len);
        gpa += len + 17;
        span
    });
    assert!(crate::segments::store(&bed.memory, &spans, 0, &bytes));
    bed.begin(1_000);
    let offset = 5 * 512;
    let (turns, status) = bed.run(Op::Write { sync: false }, offset, 3 * MIB, &spans);
    assert_eq!(
        (turns, status),
        (3 * 16 + 1, Status::Ok),
        "parts of 64 KiB, the first and last less"
    );
    // Read back without a stage, in one go.
    let back = bed.span(8 << 20, 3 * MIB);
    let request = Request { op: Op::Read, offset, len: 3 * MIB, segments: &[back] };
    let mut plain = bed.disk.backend();
    let started = plain.submit(&mut bed.io, &request, &bed.memory, Bed::tag(0));
    assert_eq!(started, Started::Done(Status::Ok));
    let mut read = vec![0; bytes.len()];
    assert!(crate::segments::fetch(&bed.memory, &[back], 0, &mut read));
    assert!(read == bytes, "the bytes are the same");
    let traced = bed.traced();
    let [one] = traced.as_slice() else { panic!("{traced:?}") };
    assert_eq!((one.asked, one.offset, one.len), (Asked::Write, offset, 3 * MIB));
    assert_eq!((one.taken_ns, one.waited_ns, one.medium_ns), (1_000, 11, 69_000));
}

#[test]
fn what_ends_at_once_has_its_end_from_the_visit() {
    let mut bed = Bed::new();
    bed.begin(1_000);
    let span = [bed.span(4096, 4096)];
    assert_eq!(bed.run(Op::Read, 0, 4096, &span), (1, Status::Ok));
    assert_eq!(bed.run(Op::Flush, 0, 0, &[]), (1, Status::Ok));
    bed.backend.held(5);
    assert_eq!(bed.run(Op::Read, SIZE, 4096, &span), (1, Status::IoError));
    assert_eq!(bed.traced(), [], "not before it is known when");
    bed.backend.end(1_600);
    let traced = bed.traced();
    assert_eq!(traced.iter().map(|one| one.medium_ns).collect::<Vec<_>>(), [600; 3]);
    assert_eq!(traced.iter().map(|one| one.held_ns).collect::<Vec<_>>(), [0, 0, 5]);
    let asked = [Asked::Read, Asked::Flush, Asked::Read];
    assert_eq!(traced.iter().map(|one| one.asked).collect::<Vec<_>>(), asked);
    assert_eq!(traced[2].status, Status::IoError);
}

#[test]
fn zeroes_and_discards_go_in_parts_of_whole_pages() {
    let mut bed = Bed::new();
    bed.begin(0);
    let zeroes = Op::WriteZeroes { unmap: false, sync: false };
    assert_eq!(bed.run(zeroes, 4096, 3 * MIB, &[]), (4, Status::Ok));
    assert_eq!(bed.run(Op::Discard, 0, 512, &[]), (1, Status::Ok));
    let (_, status) = bed.run(Op::Discard, SIZE - MIB, 2 * MIB, &[]);
    assert_eq!(status, Status::IoError, "beyond the end");
}

/// Its guest may ask for 2 TiB in one request.
#[test]
fn a_disk_that_keeps_nothing_discards_all_at_once() {
    let mut bed = Bed::over(&Source::Null { size_bytes: 4 << 40 });
    bed.begin(1_000);
    assert_eq!(bed.run(Op::Discard, 0, 2 << 40, &[]), (1, Status::Ok));
    bed.backend.end(2_000);
    assert_eq!(bed.traced().len(), 1);
}

#[test]
fn what_has_begun_in_parts_goes_on_where_it_was_when_turns_are_longer() {
    let mut bed = Bed::new();
    let len = 48 << 10;
    let span = [bed.span(4096, len)];
    let look = |slice_bytes| Look { now_ns: 5, waited_ns: 0, held_ns: 0, slice_bytes };
    bed.backend.begin(look(8 << 10));
    assert_eq!(
        (bed.backend.first_bytes(32 << 10), bed.backend.first_bytes(len)),
        (32 << 10, 8 << 10)
    );
    let request = Request { op: Op::Write { sync: false }, offset: 0, len, segments: &span };
    let (tag, mut progress) = (Bed::tag(3), Progress::default());
    let Bed { backend, io, memory, .. } = &mut bed;
    assert_eq!(backend.submit(io, &request, memory, tag), Started::Turn);
    backend.begin(look(256 << 10));
    let turn = backend.go_on(io, &request, memory, tag, &mut progress, 9);
    assert_eq!((turn.bytes, turn.outcome), (40 << 10, Outcome::Done(Status::Ok)));
    assert!(!turn.copies, "no rest follows");
}

#[test]
fn a_request_that_had_stalled_before_has_the_time_at_which_it_was_tried_again() {
    let mut bed = Bed::new();
    let span = [bed.span(4096, 4096)];
    let request = Request { op: Op::Read, offset: 0, len: 4096, segments: &span };
    let Bed { backend, io, memory, .. } = &mut bed;
    let (bytes, started) =
        backend.resume(io, &request, memory, Bed::tag(7), &mut Progress::default(), 123);
    assert_eq!((bytes, started), (4096, Started::Done(Status::Ok)));
    let traced = bed.traced();
    assert_eq!((traced[0].taken_ns, traced[0].medium_ns), (123, 0));
}
