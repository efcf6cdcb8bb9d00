//! Requests that wait for space or for a medium that fails: tried again, kept in the record or ended when their
//! queue leaves, and told of.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use backend::{Asked, Cache, Disk, Kernel, Waits};
use guest_memory::{DirtyLog, Health, Seal};
use schedule::Nanos;
use virtqueue::driver::Buffer;

use super::bed::*;
use crate::{Command, Event, MoveId, QueueCounters, handover};

const ENOSPC: i32 = -28;
const EIO: i32 = -5;
const IOERR: u8 = 1;

/// A device that refuses writes for as long as it is told to, and remembers how often each place was written.
#[derive(Debug, Default)]
struct Inner {
    refuses: Option<i32>,
    asked: u64,
    written: Vec<u64>,
    rings: Vec<(Arc<OwnedFd>, Completed)>,
    /// It answers nothing for now; what it will say, and where.
    is_slow: bool,
    unsaid: Vec<(u64, u64, i32)>,
}

/// Tags, and what the kernel says of each.
type Completed = VecDeque<(u64, i32)>;

#[derive(Debug, Default)]
struct Small(Mutex<Inner>);

impl Small {
    fn refuse(&self, with: Option<i32>) {
        self.0.lock().unwrap().refuses = with;
    }

    fn asked(&self) -> u64 {
        self.0.lock().unwrap().asked
    }

    /// From now on it takes its time.
    fn dawdle(&self) {
        self.0.lock().unwrap().is_slow = true;
    }

    /// How many commands it has not answered.
    fn unsaid(&self) -> usize {
        self.0.lock().unwrap().unsaid.len()
    }

    /// It says what it was asked meanwhile, and is as fast as before.
    fn answer(&self) {
        let mut inner = self.0.lock().unwrap();
        inner.is_slow = false;
        for (ring, tag, result) in std::mem::take(&mut inner.unsaid) {
            let (done, completed) = &mut inner.rings[ring as usize];
            completed.push_back((tag, result));
            crate::inbox::wake(done);
        }
    }

    /// Offsets written well, in order.
    fn written(&self) -> Vec<u64> {
        self.0.lock().unwrap().written.clone()
    }
}

impl Kernel for Small {
    fn opened(&self, _: &Path, _: BorrowedFd<'_>, _: Option<BorrowedFd<'_>>) {}

    fn sync(&self, _: BorrowedFd<'_>) -> bool {
        true
    }

    fn holder(&self, _: BorrowedFd<'_>) -> Option<(backend::Holder, bool)> {
        None
    }

    fn ring(&self, done: Arc<OwnedFd>) -> u64 {
        let mut inner = self.0.lock().unwrap();
        inner.rings.push((done, VecDeque::new()));
        inner.rings.len() as u64 - 1
    }

    fn submit(&self, ring: u64, _: RawFd, _: OwnedFd, asked: Asked, tag: u64) {
        let mut inner = self.0.lock().unwrap();
        inner.asked += 1;
        let result = match asked {
            Asked::Transfer { write, offset, spans, .. } => {
                let bytes: u32 = spans.iter().map(|span| span.len()).sum();
                match inner.refuses {
                    Some(error) if write || error == EIO => error,
                    _ => {
                        if write {
                            inner.written.push(offset);
                        }
                        bytes as i32
                    }
                }
            }
            _ => inner.refuses.unwrap_or(0),
        };
        if inner.is_slow {
            inner.unsaid.push((ring, tag, result));
            return;
        }
        let (done, completed) = &mut inner.rings[ring as usize];
        completed.push_back((tag, result));
        crate::inbox::wake(done);
    }

    fn reap(&self, ring: u64) -> Option<(u64, i32)> {
        self.0.lock().unwrap().rings[ring as usize].1.pop_front()
    }

    fn gone(&self, _: u64) {}
}

struct Bed {
    kernel: Arc<Small>,
    disk: Arc<Disk>,
    _folder: tempfile::TempDir,
    core: Core,
    guest: Guest,
}

fn bed() -> Bed {
    bed_of(DISK)
}

fn bed_of(size_bytes: u64) -> Bed {
    let (kernel, folder) = (Arc::new(Small::default()), tempfile::tempdir().unwrap());
    let by: Arc<dyn Kernel> = Arc::clone(&kernel) as _;
    let disk =
        Disk::open_simulated(&folder.path().join("disk"), size_bytes, Cache::Auto, &by).unwrap();
    disk.set_waits(Waits { full: true, failed: false });
    let (core, guest) = (Core::new(2), Guest::new(ring(256)));
    Bed { kernel, disk, _folder: folder, core, guest }
}

impl Bed {
    fn attach(&mut self, recorded: bool) -> Arc<QueueCounters> {
        let mut spec = self.guest.spec(1, &self.disk);
        if recorded {
            spec.queue = self.guest.recorded_queue(0);
        }
        self.core.attach(&self.guest, spec)
    }

    /// Time goes on by so many milliseconds, a pass at each.
    fn wait_ms(&mut self, ms: u64) {
        for _ in 0..ms {
            self.core.now = Nanos(self.core.now.0 + 1_000_000);
            self.core.passes(2);
        }
    }

    fn stalls(&mut self) -> usize {
        let events = self.core.events();
        assert!(events.iter().all(|event| matches!(event, Event::Stalls(_))), "{events:?}");
        events.len()
    }
}

#[test]
fn a_write_without_space_waits_and_others_go_on() {
    let mut bed = bed();
    let counters = bed.attach(false);
    bed.kernel.refuse(Some(ENOSPC));
    bed.guest.ask(3, WRITE);
    bed.core.passes(10);
    assert_eq!(bed.guest.take(), []);
    let seen = counters.snapshot();
    assert_eq!((seen.waiting_full, seen.waiting_failed, seen.stalls), (3, 0, 3));
    assert_eq!((seen.in_flight, seen.errors), (3, 0));
    assert_eq!(bed.stalls(), 1, "told once");
    // A read is answered meanwhile, and so is a flush, which covers what was answered.
    bed.guest.add(7, READ, 0, 1);
    bed.guest.driver.publish();
    bed.guest.kick();
    bed.core.passes(10);
    assert_eq!(bed.guest.take(), [(7, 0)]);
    // Tried again from time to time, and no more often than that.
    let before = bed.kernel.asked();
    bed.wait_ms(10_000);
    let tries = (bed.kernel.asked() - before) / 3;
    assert!((8..=14).contains(&tries), "{tries} tries in 10 s");
    assert_eq!(bed.guest.take(), []);
    assert_eq!(bed.stalls(), 0);
    // There is room, and they go on by themselves, in order.
    bed.kernel.refuse(None);
    bed.wait_ms(1_100);
    assert_eq!(bed.guest.take(), [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(bed.kernel.written(), [0, 4096, 8192]);
    bed.wait_ms(1_100);
    let seen = counters.snapshot();
    assert_eq!((seen.waiting_full, seen.in_flight, seen.errors), (0, 0, 0));
    assert_eq!(bed.stalls(), 1, "told that it is over");
    assert_eq!(bed.core.sidecore.next_due(), None, "nothing is left to be looked at");
}

#[test]
fn a_sidecore_with_requests_that_wait_sleeps() {
    let mut bed = bed();
    bed.attach(false);
    bed.kernel.refuse(Some(ENOSPC));
    // As many as there are slots, and some that stay in the ring.
    bed.guest.ask(85, WRITE);
    bed.core.passes(2_000);
    assert!(bed.core.sidecore.next_due().is_none_or(|due| due > bed.core.now));
    assert!(bed.core.sidecore.falls_asleep(bed.core.now), "it spins for requests that wait");
    bed.core.sidecore.rest.bell().awake();
    bed.kernel.refuse(None);
    bed.wait_ms(1_100);
    assert_eq!(bed.guest.take_ok(), 85);
}

#[test]
fn what_becomes_of_a_failure_may_change_while_requests_wait() {
    let mut bed = bed();
    let counters = bed.attach(false);
    bed.kernel.refuse(Some(ENOSPC));
    bed.guest.ask(2, WRITE);
    bed.core.passes(10);
    bed.disk.set_waits(Waits::default());
    bed.wait_ms(1_100);
    assert_eq!(bed.guest.take(), [(0, IOERR), (1, IOERR)]);
    assert_eq!(bed.disk.faults().enospc, 2);
    // And of a medium that fails, reads too.
    bed.disk.set_waits(Waits { full: false, failed: true });
    bed.kernel.refuse(Some(EIO));
    bed.guest.ask(2, READ);
    bed.wait_ms(5);
    assert_eq!(bed.guest.take(), []);
    assert_eq!(counters.snapshot().waiting_failed, 2);
    // A flush never waits: what it lost does not come back.
    bed.guest.add(9, FLUSH, 0, 1);
    bed.guest.driver.publish();
    bed.guest.kick();
    bed.wait_ms(5);
    assert_eq!(bed.guest.take(), [(9, IOERR)]);
    assert!(bed.disk.sync_failed());
    bed.kernel.refuse(None);
    bed.wait_ms(1_100);
    assert_eq!(bed.guest.take(), [(0, 0), (1, 0)]);
}

#[test]
fn a_queue_that_leaves_keeps_them_in_its_record_or_ends_them() {
    for recorded in [true, false] {
        let mut bed = bed();
        bed.attach(recorded);
        bed.kernel.refuse(Some(ENOSPC));
        bed.guest.ask(3, WRITE);
        bed.core.passes(10);
        bed.stalls();
        bed.core.send(Command::Detach(key(1)));
        bed.core.passes(2);
        let served = detached(bed.core.events(), 1);
        assert_eq!(served.queue().in_flight(), 0);
        if !recorded {
            assert_eq!(bed.guest.take(), [(0, IOERR), (1, IOERR), (2, IOERR)]);
            continue;
        }
        assert_eq!(bed.guest.take(), []);
        // Whoever serves it next finds them, and they wait again.
        drop(served.into_spec());
        let counters = bed.attach(true);
        bed.core.passes(10);
        assert_eq!(counters.snapshot().waiting_full, 3);
        bed.kernel.refuse(None);
        bed.wait_ms(1_100);
        assert_eq!(bed.guest.take(), [(0, 0), (1, 0), (2, 0)]);
        assert_eq!(bed.kernel.written(), [0, 4096, 8192]);
    }
}

/// One request that hangs in the device keeps a queue here for as long as its disk is waited for.
#[test]
fn who_leaves_sees_what_has_ended_while_another_request_hangs() {
    let mut bed = bed();
    bed.attach(false);
    bed.kernel.refuse(Some(ENOSPC));
    bed.guest.ask(2, WRITE);
    bed.core.passes(10);
    bed.stalls();
    bed.kernel.dawdle();
    bed.guest.ask(1, READ);
    bed.core.passes(10);
    assert_eq!(bed.kernel.unsaid(), 1);
    bed.core.send(Command::Detach(key(1)));
    bed.core.passes(2);
    assert!(bed.core.events().is_empty(), "a read is with the device");
    assert_eq!(bed.guest.take(), [(0, IOERR), (1, IOERR)]);
    bed.kernel.answer();
    bed.core.passes(2);
    detached(bed.core.events(), 1);
    assert_eq!(bed.guest.take(), [(0, 0)]);
}

/// A migration takes no record along, so its guest is told before its ring has stopped; a pause is none.
#[test]
fn a_ring_that_stops_in_a_migration_ends_them() {
    for logged in [true, false] {
        let mut bed = bed();
        let mut spec = bed.guest.spec(1, &bed.disk);
        spec.queue = bed.guest.recorded_queue(0);
        if logged {
            let file = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, 4096).unwrap();
            let log = DirtyLog::map(&file, 0, 4096, Seal::Any, &Health::default()).unwrap();
            spec.memory = Arc::new(bed.guest.map.with_log(Some(log)).unwrap());
        }
        bed.core.attach(&bed.guest, spec);
        bed.kernel.refuse(Some(ENOSPC));
        bed.guest.ask(2, WRITE);
        bed.core.passes(10);
        bed.stalls();
        bed.core.send(Command::Finish(key(1)));
        bed.core.passes(2);
        detached(bed.core.events(), 1);
        let ended = if logged { vec![(0, IOERR), (1, IOERR)] } else { Vec::new() };
        assert_eq!(bed.guest.take(), ended);
    }
}

#[test]
fn they_go_along_when_their_queue_moves() {
    let mut bed = bed();
    let counters = bed.attach(false);
    let mut to = Core::numbered(1, 2);
    bed.kernel.refuse(Some(ENOSPC));
    bed.guest.ask(3, WRITE);
    bed.core.passes(10);
    bed.stalls();
    let (arrival, departure) = handover(MoveId(1), &to.handle, bed.disk.backend(), None);
    to.send(Command::Prepare(arrival));
    to.pass();
    to.events();
    bed.core.send(Command::Move(key(1), departure));
    bed.core.passes(3);
    to.now = bed.core.now;
    to.passes(3);
    let events = to.events();
    assert!(matches!(events[..], [Event::Moved(_)]), "{events:?}");
    assert_eq!(counters.snapshot().waiting_full, 3);
    bed.kernel.refuse(None);
    for _ in 0..1_100 {
        to.now = Nanos(to.now.0 + 1_000_000);
        to.passes(2);
    }
    assert_eq!(bed.guest.take(), [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(bed.kernel.written(), [0, 4096, 8192]);
    bed.wait_ms(10);
    assert_eq!(bed.core.sidecore.next_due(), None, "the old one has forgotten it");
}

/// A medium behind a network fails after half a minute, again and again: nothing goes on meanwhile.
#[test]
fn a_try_that_takes_long_still_waits() {
    let mut bed = bed();
    let counters = bed.attach(false);
    bed.disk.set_waits(Waits { full: true, failed: true });
    bed.kernel.refuse(Some(EIO));
    bed.guest.ask(3, WRITE);
    bed.core.passes(10);
    assert_eq!(bed.stalls(), 1, "told once");
    let wait = |bed: &mut Bed, ms| {
        bed.wait_ms(ms);
        let seen = counters.snapshot();
        assert_eq!((seen.waiting_full, seen.waiting_failed, seen.in_flight), (0, 3, 3));
        assert_eq!(seen.stalls, 3, "each is counted once");
        assert_eq!(bed.stalls(), 0, "nothing has gone on");
    };
    for _ in 0..3 {
        bed.kernel.dawdle();
        wait(&mut bed, 5_000);
        assert_eq!(bed.kernel.unsaid(), 3, "all are tried, and once");
        bed.kernel.answer();
        wait(&mut bed, 2_500);
    }
    // The last try, which takes as long, is one that ends well.
    bed.kernel.refuse(None);
    bed.kernel.dawdle();
    wait(&mut bed, 5_000);
    bed.kernel.answer();
    bed.wait_ms(1_100);
    assert_eq!(bed.guest.take(), [(0, 0), (1, 0), (2, 0)]);
    let seen = counters.snapshot();
    assert_eq!((seen.waiting_failed, seen.in_flight, seen.errors), (0, 0, 0));
    assert_eq!(bed.stalls(), 1, "told that it is over");
    assert_eq!(bed.core.sidecore.next_due(), None, "nothing is left to be looked at");
}

/// A queue that comes to another sidecore gives its slots other names: what waits is known by those.
#[test]
fn what_moved_is_waited_for_as_before() {
    let mut bed = bed();
    let counters = bed.attach(false);
    let mut to = Core::numbered(1, 2);
    bed.kernel.refuse(Some(ENOSPC));
    bed.guest.ask(2, WRITE);
    bed.core.passes(10);
    let (arrival, departure) = handover(MoveId(1), &to.handle, bed.disk.backend(), None);
    to.send(Command::Prepare(arrival));
    to.pass();
    bed.core.send(Command::Move(key(1), departure));
    bed.core.passes(3);
    bed.kernel.dawdle();
    to.now = bed.core.now;
    let wait_ms = |to: &mut Core, ms| {
        for _ in 0..ms {
            to.now = Nanos(to.now.0 + 1_000_000);
            to.passes(2);
        }
    };
    wait_ms(&mut to, 5_000);
    let seen = counters.snapshot();
    assert_eq!((seen.waiting_full, seen.stalls, bed.kernel.unsaid()), (2, 2, 2));
    let told = to.events().iter().filter(|event| matches!(event, Event::Stalls(_))).count();
    assert_eq!(told, 0, "nothing has gone on");
    bed.kernel.refuse(None);
    bed.kernel.answer();
    wait_ms(&mut to, 2_200);
    assert_eq!(bed.guest.take(), [(0, 0), (1, 0)]);
    assert_eq!(counters.snapshot().waiting_full, 0);
}

/// Of transfers of more than 16 MiB one is under way at a time; one that waits is not.
#[test]
fn a_huge_write_that_waits_holds_up_nobody() {
    let mut bed = bed_of(64 << 20);
    let counters = bed.attach(false);
    bed.kernel.refuse(Some(ENOSPC));
    let huge = |device_writes| vec![Buffer { gpa: SPARE_AT, len: 4 << 20, device_writes }; 5];
    bed.guest.add_over(0, WRITE, 0, &huge(false));
    bed.guest.add_over(1, READ, 0, &huge(true));
    bed.guest.add(2, READ, 0, 1);
    bed.guest.add_over(3, WRITE, sector(5 << 10), &huge(false));
    bed.guest.driver.publish();
    bed.guest.kick();
    bed.core.passes(400);
    let mut ended = bed.guest.take();
    ended.sort_unstable();
    assert_eq!(ended, [(1, 0), (2, 0)]);
    assert_eq!(counters.snapshot().waiting_full, 2);
    // There is room: one after the other, and before any that comes later.
    bed.kernel.refuse(None);
    bed.kernel.dawdle();
    bed.wait_ms(1_100);
    assert_eq!(bed.kernel.unsaid(), 1, "one is under way");
    bed.wait_ms(3_000);
    bed.guest.add_over(4, READ, 0, &huge(true));
    bed.guest.driver.publish();
    bed.guest.kick();
    bed.core.passes(100);
    assert_eq!((bed.kernel.unsaid(), bed.guest.take()), (1, vec![]), "the next one waits");
    bed.kernel.answer();
    bed.wait_ms(5_000);
    let ended: Vec<usize> = bed.guest.take().iter().map(|(number, _)| *number).collect();
    assert_eq!(ended, [0, 3, 4]);
    assert_eq!(counters.snapshot().waiting_full, 0);
}

#[test]
fn notes_of_what_waits_take_no_memory_in_a_pass() {
    let (kernel, folder) = (Arc::new(Small::default()), tempfile::tempdir().unwrap());
    let by: Arc<dyn Kernel> = Arc::clone(&kernel) as _;
    let mut core = Core::new(9);
    let expected = core.sidecore.io.expected_places();
    assert!(expected >= 9, "{expected}");
    kernel.refuse(Some(ENOSPC));
    let mut guests: Vec<Guest> = (0..9).map(|_| Guest::new(ring(256))).collect();
    for (number, guest) in guests.iter_mut().enumerate() {
        let path = folder.path().join(number.to_string());
        let disk = Disk::open_simulated(&path, DISK, Cache::Auto, &by).unwrap();
        disk.set_waits(Waits { full: true, failed: false });
        core.attach(guest, guest.spec(number as u32, &disk));
        guest.ask(1, WRITE);
    }
    core.passes(100);
    assert_eq!(core.sidecore.io.stalled(), 9, "all of them wait");
    assert_eq!(core.sidecore.io.expected_places(), expected);
    kernel.refuse(None);
    for _ in 0..1_100 {
        core.now = Nanos(core.now.0 + 1_000_000);
        core.passes(2);
    }
    assert_eq!(guests.iter_mut().map(Guest::take_ok).sum::<usize>(), 9);
}

/// How many writes of a round wait, in the tests of a round that takes many visits.
const MANY: usize = 64;
/// Bytes of each: as many as a visit may have.
const PART: u64 = 1 << 20;

/// A guest whose writes of [`PART`] wait, one behind the other on the disk.
fn bed_of_many() -> (Bed, Arc<QueueCounters>) {
    let mut bed = bed_of(MANY as u64 * PART);
    let counters = bed.attach(false);
    bed.kernel.refuse(Some(ENOSPC));
    for number in 0..MANY {
        let data = [Buffer { gpa: SPARE_AT, len: PART as u32, device_writes: false }];
        bed.guest.add_over(number, WRITE, number as u64 * PART / 512, &data);
    }
    bed.guest.driver.publish();
    bed.guest.kick();
    bed.core.passes(4 * MANY as u32);
    assert_eq!(counters.snapshot().waiting_full, MANY as u64);
    (bed, counters)
}

/// What is tried again is done in visits of its queue: a part in each, and its neighbours have theirs in between.
#[test]
fn what_is_tried_again_is_no_more_a_pass_than_a_visit() {
    let (mut bed, counters) = bed_of_many();
    let mut modest = Guest::new(ring(16));
    bed.core.attach(&modest, modest.spec(2, &memory()));
    bed.kernel.refuse(None);
    bed.core.now = Nanos(bed.core.sidecore.io.stalled_due());
    let (before, mut passes) = (bed.kernel.asked(), 0);
    let mut ended = Vec::new();
    while ended.len() < MANY {
        let asked = bed.kernel.asked();
        modest.ask(4, READ);
        bed.core.pass();
        assert_eq!(modest.take_ok(), 4, "in every pass");
        let tried = bed.kernel.asked() - asked;
        assert!(tried <= 1, "{tried} of a MiB each in pass {passes}");
        ended.extend(bed.guest.take());
        passes += 1;
        assert!(passes < 2 * MANY, "{} have ended", ended.len());
    }
    assert_eq!(ended, (0..MANY).map(|number| (number, 0)).collect::<Vec<_>>());
    assert_eq!(bed.kernel.asked() - before, MANY as u64, "each is tried once");
    let offsets: Vec<u64> = (0..MANY as u64).map(|number| number * PART).collect();
    assert_eq!(bed.kernel.written(), offsets);
    bed.wait_ms(1_100);
    assert_eq!((counters.snapshot().waiting_full, counters.snapshot().in_flight), (0, 0));
    assert_eq!(bed.core.sidecore.next_due(), None, "nothing is left to be looked at");
}

/// Nor do requests of the same queue that find what they need wait for a round.
#[test]
fn what_is_tried_again_holds_up_nothing_of_its_queue() {
    let (mut bed, counters) = bed_of_many();
    // There is no space still: all of it comes to nothing.
    for round in 0..3 {
        bed.core.now = Nanos(bed.core.sidecore.io.stalled_due());
        bed.core.pass();
        let mut reads = 0;
        while bed.core.sidecore.is_slicing(0) {
            bed.guest.add(MANY, READ, 0, 1);
            bed.guest.driver.publish();
            bed.guest.kick();
            bed.core.passes(2);
            assert_eq!(bed.guest.take(), [(MANY, 0)], "{reads} of round {round}");
            reads += 1;
        }
        assert!(reads >= MANY / 4, "{reads} of round {round}");
        bed.core.passes(4);
        assert_eq!(counters.snapshot().waiting_full, MANY as u64);
    }
    bed.kernel.refuse(None);
    bed.wait_ms(1_100);
    let ended: Vec<usize> = bed.guest.take().iter().map(|(number, _)| *number).collect();
    assert_eq!(ended, (0..MANY).collect::<Vec<_>>(), "in the order in which they came");
}

#[test]
fn a_queue_that_leaves_in_the_middle_of_a_round_ends_it() {
    let (mut bed, _) = bed_of_many();
    bed.stalls();
    bed.core.now = Nanos(bed.core.sidecore.io.stalled_due());
    bed.core.passes(8);
    assert!(bed.core.sidecore.is_slicing(0), "the round is under way");
    let asked = bed.kernel.asked();
    bed.core.send(Command::Detach(key(1)));
    bed.core.passes(2);
    let served = detached(bed.core.events(), 1);
    assert_eq!((served.queue().in_flight(), bed.kernel.asked()), (0, asked));
    let mut ended = bed.guest.take();
    // Those that were tried in this round stand behind the others.
    ended.sort_unstable();
    assert_eq!(ended, (0..MANY).map(|number| (number, IOERR)).collect::<Vec<_>>());
    assert_eq!(bed.core.sidecore.next_due(), None, "nothing is left to be looked at");
}
