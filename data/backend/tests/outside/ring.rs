//! The io_uring below: room, tags, waking, moving between sidecores.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::harness::{self, Bed, file, on_disk};
use backend::{Cache, Io, Outcome, Progress, Source, Started};
use request::{Op, Request, Status, Tag};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const READ: Op = Op::Read;

fn tag(bits: u64) -> Tag {
    Tag::unpack(bits)
}

#[test]
fn room_ends_and_comes_back_and_every_tag_comes_out_once() {
    let dir = on_disk();
    let mut bed = Bed::new(&file(&dir.path().join("disk"), Some(1 << 20), Cache::Auto));
    let span = bed.span(0, 4096);
    let request = Request { op: READ, offset: 0, len: 4096, segments: &[span] };
    let mut submitted = HashSet::new();
    let mut reaped = HashSet::new();
    for batch in 0..40_u64 {
        let mut in_batch = 0;
        while bed.io.room() > 0 {
            // Any number is a tag: what it means is the sidecore's affair, also when it is stale.
            let bits = batch << 40 | in_batch << 16 | 0x00ff_0000_0000_0000 | (in_batch % 200);
            let started = bed.backend.submit(&mut bed.io, &request, &bed.memory, tag(bits));
            assert_eq!(started, Started::Pending);
            submitted.insert(bits);
            in_batch += 1;
            assert!(in_batch <= 256, "room without end");
        }
        assert_eq!(bed.io.in_flight(), submitted.len() - reaped.len());
        bed.io.enter().expect("enter");
        // Some stay in the ring; it must not run over.
        let most = if batch % 2 == 0 { 10 } else { usize::MAX };
        bed.io.reap(most, |tag, result| {
            assert_eq!(result, 4096);
            assert!(reaped.insert(tag.pack()), "twice");
        });
    }
    while bed.io.in_flight() > 0 {
        bed.io.enter().expect("enter");
        bed.io.reap(usize::MAX, |tag, _| assert!(reaped.insert(tag.pack()), "twice"));
    }
    assert_eq!(submitted, reaped);
}

#[test]
fn a_full_ring_takes_a_resumed_request_all_the_same() {
    let dir = on_disk();
    let mut bed = Bed::new(&file(&dir.path().join("disk"), Some(1 << 20), Cache::Auto));
    let span = bed.span(0, 8192);
    let request = Request { op: READ, offset: 0, len: 8192, segments: &[span] };
    let _ = bed.backend.submit(&mut bed.io, &request, &bed.memory, tag(2));
    while bed.io.room() > 0 {
        let _ = bed.backend.submit(&mut bed.io, &request, &bed.memory, tag(1));
    }
    // As if the kernel had transferred half of the first.
    let outcome = bed.backend.completed(
        &mut bed.io,
        &request,
        &bed.memory,
        tag(2),
        4096,
        &mut Progress::default(),
    );
    assert_eq!(outcome, Outcome::Pending);
    let mut found = false;
    while bed.io.in_flight() > 0 {
        bed.io.enter().expect("enter");
        bed.io.reap(usize::MAX, |tag, result| found |= tag.slot == 2 && result == 4096);
    }
    assert!(found, "the second half was never read");
    assert_eq!(bed.disk.faults().short, 1);
}

#[test]
fn a_completion_wakes_who_waits_for_it() {
    let dir = on_disk();
    for cache in [Cache::Auto, Cache::Page] {
        let mut bed = Bed::new(&file(&dir.path().join("disk"), Some(1 << 20), cache));
        assert!(bed.io.poll_fd().is_none(), "no ring before it is needed");
        bed.backend.join(&mut bed.io).expect("a ring");
        let set = epoll::create(CreateFlags::CLOEXEC).expect("an epoll set");
        let fd = bed.io.poll_fd().expect("a ring");
        epoll::add(&set, fd, EventData::new_u64(1), EventFlags::IN).expect("watched");
        for round in 0..100 {
            for op in [Op::Flush, Op::Read, Op::Write { sync: true }] {
                wait_for(&mut bed, op, &set, round);
            }
        }
    }
}

/// One request, of which only an event in `set`, or being interrupted there, tells.
fn wait_for(bed: &mut Bed, op: Op, set: &OwnedFd, round: u64) {
    let long = Timespec { tv_sec: 120, tv_nsec: 0 };
    let span = bed.span(0, 4096);
    let len = if op == Op::Flush { 0 } else { 4096 };
    let offset = if op == Op::Flush { 0 } else { round * 4096 };
    let request = Request { op, offset, len, segments: &[span][..usize::from(len > 0)] };
    let started = bed.backend.submit(&mut bed.io, &request, &bed.memory, tag(0));
    assert_eq!(started, Started::Pending);
    bed.io.enter().expect("enter");
    let began = harness::now();
    let mut progress = Progress::default();
    let outcome = loop {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
        let woken = epoll::wait(set, &mut events[..], Some(&long));
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(90), "{op:?}, round {round}: {woken:?}, {waited:?}");
        bed.io.enter().expect("enter");
        let Some((tag, result)) = bed.io.reap_one() else { continue };
        let (backend, io, memory) = (&mut bed.backend, &mut bed.io, &bed.memory);
        match backend.completed(io, &request, memory, tag, result, &mut progress) {
            // Through the page cache a stable write is two commands.
            Outcome::Pending => bed.io.hand_over().expect("handed over"),
            done => break done,
        }
    };
    assert_eq!(outcome, Outcome::Done(Status::Ok));
    let fd = bed.io.poll_fd().expect("a ring");
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(poll(&mut fds, Some(&now)), Ok(0), "readable with nothing to reap");
}

#[test]
fn a_queue_moves_between_sidecores_and_takes_its_file_along() {
    let dir = on_disk();
    let paths = [dir.path().join("one"), dir.path().join("two")];
    let mut beds: Vec<Bed> =
        paths.iter().map(|path| Bed::new(&file(path, Some(1 << 20), Cache::Auto))).collect();
    let mut other = Io::new(64).expect("an Io");
    for (number, bed) in beds.iter_mut().enumerate() {
        assert_eq!(bed.write(0, &[number as u8 + 1; 4096]), Status::Ok);
    }
    for round in 0..3 {
        for (number, bed) in beds.iter_mut().enumerate() {
            // Once without saying goodbye: the file must still be its own.
            if round != 1 {
                bed.backend.leave(&mut bed.io);
            }
            std::mem::swap(&mut bed.io, &mut other);
            assert_eq!(bed.read(0, 4096), Ok(vec![number as u8 + 1; 4096]), "round {round}");
        }
    }
}

#[test]
fn a_file_is_let_go_when_its_last_queue_leaves() {
    let dir = on_disk();
    let path = dir.path().join("disk");
    let mut bed = Bed::new(&file(&path, Some(1 << 20), Cache::Auto));
    let mut second = bed.disk.backend();
    second.join(&mut bed.io).expect("join");
    bed.backend.join(&mut bed.io).expect("join");
    bed.backend.leave(&mut bed.io);
    let span = bed.span(0, 4096);
    let request = Request { op: READ, offset: 0, len: 4096, segments: &[span] };
    assert_eq!(second.submit(&mut bed.io, &request, &bed.memory, tag(0)), Started::Pending);
    bed.io.enter().expect("enter");
    while bed.io.in_flight() > 0 {
        bed.io.enter().expect("enter");
        bed.io.reap(1, |_, result| assert_eq!(result, 4096));
    }
    second.leave(&mut bed.io);
    let Bed { disk, backend, io, .. } = bed;
    drop((disk, backend, second));
    // A lock is refused as long as anyone, also a ring's table, holds another open descriptor of it
    // that is locked; here it only shows whether the path's descriptors are gone.
    let open = std::fs::read_dir("/proc/self/fd")
        .expect("descriptors")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| *target == path)
        .count();
    assert_eq!(open, 0);
    drop(io);
}

#[test]
fn what_needs_no_ring_makes_none() {
    for source in [Source::Null { size_bytes: 1 << 20 }, Source::Memory { size_bytes: 1 << 20 }] {
        let mut bed = Bed::new(&source);
        assert!(bed.backend.answers_at_once());
        bed.backend.join(&mut bed.io).expect("join");
        assert_eq!(bed.write(0, &[1; 512]), Status::Ok);
        assert_eq!(bed.run(Op::Flush, 0, 0, &[]), Status::Ok);
        assert!(bed.io.poll_fd().is_none());
    }
}
