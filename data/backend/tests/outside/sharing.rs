//! Requests of one disk that wait for each other, on one sidecore and on two, and a disk's share of a
//! sidecore.

use std::time::Duration;

use crate::harness::{self, Asked, Bed, file, on_disk};
use backend::{Backend, Cache, Disk, Io, Outcome, Progress, Started};
use request::{Op, Request, Status, Tag};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const FLUSH: Request<'static> = Request { op: Op::Flush, offset: 0, len: 0, segments: &[] };

fn tag(slot: u16) -> Tag {
    Tag { queue: 0, slot, generation: 0 }
}

fn is_readable(io: &Io, wait: Duration) -> bool {
    let Some(fd) = io.poll_fd() else { return false };
    let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    // Being interrupted is as good: it says to look.
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait)) != Ok(0)
}

/// Runs `request` of slot 0 to its end, sleeping wherever that is allowed.
fn finish(bed: &mut Bed, request: &Request<'_>) -> Status {
    let mut progress = Progress::default();
    let begun = harness::now();
    loop {
        bed.io.enter().expect("enter");
        while let Some((tag, result)) = bed.io.reap_one() {
            let (backend, io) = (&mut bed.backend, &mut bed.io);
            let memory = &bed.memory;
            let done = backend.completed(io, request, memory, tag, result, &mut progress);
            let done = harness::take_turns(backend, io, request, memory, tag, &mut progress, done);
            if let Outcome::Done(status) = done {
                return status;
            }
        }
        bed.io.hand_over().expect("handed over");
        assert!(begun.elapsed() < Duration::from_secs(90), "it was never woken");
        if bed.io.may_rest() {
            is_readable(&bed.io, Duration::from_secs(90));
        }
    }
}

#[test]
fn a_flush_that_waits_for_another_sidecores_is_woken_by_it() {
    let dir = on_disk();
    let disk = Disk::open(&file(&dir.path().join("disk"), Some(1 << 20), Cache::Auto)).expect("it");
    let (mut one, mut other) = (Bed::on(disk.clone()), Bed::on(disk));
    for round in 0..200 {
        let submitted = one.backend.submit(&mut one.io, &FLUSH, &one.memory, tag(0));
        assert_eq!(submitted, Started::Pending);
        let submitted = other.backend.submit(&mut other.io, &FLUSH, &other.memory, tag(0));
        assert_eq!(submitted, Started::Pending);
        other.io.enter().expect("enter");
        assert_eq!(other.io.reap_one(), None, "the first has not even begun");
        assert!(other.io.may_rest(), "round {round}");
        assert!(!is_readable(&other.io, Duration::from_millis(1)), "round {round}");
        assert_eq!(finish(&mut one, &FLUSH), Status::Ok);
        assert!(is_readable(&other.io, Duration::from_secs(90)), "round {round}: not woken");
        assert_eq!(finish(&mut other, &FLUSH), Status::Ok);
    }
    assert_eq!(one.disk.faults().syncs, 400);
}

#[test]
fn flushes_and_writes_of_sidecores_that_sleep_all_end() {
    let dir = on_disk();
    let disk = Disk::open(&file(&dir.path().join("disk"), Some(1 << 20), Cache::Auto)).expect("it");
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let disk = disk.clone();
            scope.spawn(move || {
                let mut bed = Bed::on(disk);
                for round in 0..300 {
                    // Direct ones, ones that are not aligned, and flushes.
                    let (offset, len) = match (round + thread) % 3 {
                        0 => (thread * 65_536, 4096),
                        1 => (thread * 65_536 + 8192 + 512, 512),
                        _ => (0, 0),
                    };
                    let op = if len == 0 { Op::Flush } else { Op::Write { sync: round % 2 == 0 } };
                    let span = [bed.span(0, 4096).first(len)];
                    let segments = &span[..usize::from(len > 0)];
                    let request = Request { op, offset, len: len.into(), segments };
                    let (io, memory) = (&mut bed.io, &bed.memory);
                    let status = match bed.backend.submit(io, &request, memory, tag(0)) {
                        Started::Pending => finish(&mut bed, &request),
                        Started::Done(status) => status,
                        other => panic!("{other:?}"),
                    };
                    assert_eq!(status, Status::Ok, "thread {thread}, round {round}");
                }
            });
        }
    });
    assert_eq!(disk.faults().eio, 0);
}

#[test]
fn a_sidecore_that_is_woken_when_nothing_of_it_waits_any_more_sleeps_again() {
    let dir = on_disk();
    let disk = Disk::open(&file(&dir.path().join("disk"), Some(1 << 20), Cache::Auto)).expect("it");
    let (mut one, mut other) = (Bed::on(disk.clone()), Bed::on(disk));
    let discard = Request { op: Op::Discard, offset: 0, len: 4096, segments: &[] };
    for slot in 0..5 {
        let submitted = one.backend.submit(&mut one.io, &discard, &one.memory, tag(slot));
        assert_eq!(submitted, Started::Pending);
    }
    // Four are with the kernel. The fifth waits, and what ends its waiting is one of them.
    assert!(one.io.may_rest());
    let mut progress = [Progress::default(); 5];
    while one.io.in_flight() > 0 {
        one.io.enter().expect("enter");
        while let Some((tag, result)) = one.io.reap_one() {
            let (io, progress) = (&mut one.io, &mut progress[usize::from(tag.slot)]);
            one.backend.completed(io, &discard, &one.memory, tag, result, progress);
        }
    }
    // It is still among the disk's sleepers.
    let submitted = other.backend.submit(&mut other.io, &FLUSH, &other.memory, tag(0));
    assert_eq!(submitted, Started::Pending);
    assert_eq!(finish(&mut other, &FLUSH), Status::Ok);
    assert!(is_readable(&one.io, Duration::from_secs(90)));
    one.io.acknowledge();
    assert!(one.io.may_rest());
    assert!(!is_readable(&one.io, Duration::from_millis(10)), "it would never sleep again");
}

#[test]
fn flushes_that_wait_share_the_next_one() {
    let dir = on_disk();
    let mut bed = Bed::new(&file(&dir.path().join("disk"), Some(1 << 20), Cache::Auto));
    let asked = vec![Asked::new(Op::Flush, 0, 0, &[]); 60];
    let statuses = bed.run_all(&asked);
    assert!(statuses.iter().all(|status| *status == Status::Ok));
    assert_eq!(bed.disk.faults().syncs, 2);
}

#[test]
fn a_disk_has_its_share_of_a_sidecore_and_no_more() {
    let dir = on_disk();
    let open = |name: &str| {
        Disk::open(&file(&dir.path().join(name), Some(1 << 20), Cache::Auto)).expect("a disk")
    };
    // 128 entries, 512 completions.
    let (mut io, bed) = (Io::new(128).expect("an Io"), Bed::on(open("none")));
    let span = [bed.span(0, 4096)];
    let request = Request { op: Op::Read, offset: 0, len: 4096, segments: &span };
    let fill = |io: &mut Io, backend: &mut Backend| {
        backend.join(io).expect("a ring");
        let mut pushed = 0_u16;
        while backend.has_room(io) && pushed < 1000 {
            if io.room() == 0 {
                io.enter().expect("enter");
            }
            let submitted = backend.submit(io, &request, &bed.memory, tag(pushed));
            assert_eq!(submitted, Started::Pending);
            pushed += 1;
        }
        pushed
    };
    let mut disks = ["one", "two", "three", "four"].map(|name| open(name).backend());
    // Nothing is reaped: as if none of them ever answered.
    let shares: Vec<u16> = disks.iter_mut().map(|disk| fill(&mut io, disk)).collect();
    assert_eq!(shares, [256, 32, 32, 32]);
    let mut more = (0..30).map(|number| open(&format!("more {number}")).backend());
    let last: Vec<u16> = more.by_ref().map(|mut disk| fill(&mut io, &mut disk)).collect();
    assert_eq!((last[0], last[29]), (32, 4));
    assert!(io.room() > 0 || io.enter().is_ok() && io.room() > 0, "none is left for the next");
    // What is answered makes room again.
    let first = &mut disks[0];
    assert!(!first.has_room(&io));
    let mut ended = 0;
    while io.in_flight() > 0 {
        io.enter().expect("enter");
        while let Some((tag, result)) = io.reap_one() {
            if ended < 256 {
                let (memory, progress) = (&bed.memory, &mut Progress::default());
                let done = first.completed(&mut io, &request, memory, tag, result, progress);
                assert_eq!(done, Outcome::Done(Status::Ok));
            }
            ended += 1;
        }
    }
    assert!(first.has_room(&io));
}
