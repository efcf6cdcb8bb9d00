//! Queues with something on the way to their disk: a trace tells of each request, and it comes and goes while requests
//! are under way.

use std::sync::Arc;

use backend::fault::{FaultCounts, FaultPlan, Ops};
use backend::trace::{Asked, Cursor, Entry, Ring};
use backend::{Disk, Look, Stages};
use device::blk::{Blk, Limits, Live, Shape};
use device::features;
use schedule::{Budget, Clock, Gate, Limited, Meters, Nanos, Rate, Visited};
use virtqueue::driver::Buffer;

use super::bed::*;
use super::file::{file, finish};
use crate::large::SLICE_BYTES;
use crate::places::disk_at;
use crate::{Command, Event, MoveId, RoleSpec, Room, Served, ServedSpec, Sidecore, Stay, handover};

/// A slice takes as long as a visit may.
const LONG_NS: u64 = 25_000;
/// Entries of the guest's ring.
const SIZE: u16 = 256;

fn traced(ring: &Arc<Ring>) -> Stages {
    Stages { trace: Some(Arc::clone(ring)), fault: None }
}

/// What `guest.spec` says, with stages on the way.
fn spec(guest: &Guest, disk: &Arc<Disk>, stages: Stages) -> ServedSpec {
    let mut spec = guest.spec(1, disk);
    if let RoleSpec::Disk { backend, .. } = &mut spec.role {
        *backend = disk.backend_through(stages);
    }
    spec
}

fn entries(ring: &Ring) -> Vec<Entry> {
    let mut entries = Vec::new();
    assert_eq!(ring.read(&mut Cursor::default(), 10_000, |one| entries.push(one)), 0);
    entries
}

/// Has queue 1 of `core` get another back-end where it is; what became of that.
fn exchange(core: &mut Core, id: u64, disk: &Arc<Disk>, stages: Stages) -> Option<Stay> {
    let backend = disk.backend_through(stages);
    let room = Room::new(&backend, SIZE);
    let (arrival, departure) = handover(MoveId(id), &core.handle, backend, Some(room));
    core.send(Command::Prepare(arrival));
    core.pass();
    assert!(matches!(core.events()[..], [Event::Prepared(_)]));
    core.send(Command::Move(key(1), departure));
    for _ in 0..2_000 {
        core.pass();
        core.now = core.now.after(core.tick_ns);
        match core.events().pop() {
            Some(Event::Moved(MoveId(at))) if at == id => return None,
            Some(Event::Stayed(MoveId(at), why)) if at == id => return Some(why),
            None => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("nobody says what became of it");
}

/// Kicks when it is asked to.
fn publish(guest: &mut Guest) {
    if guest.driver.publish() {
        guest.kick();
    }
}

fn buffer(len: u64, device_writes: bool) -> Buffer {
    Buffer { gpa: SPARE_AT, len: len as u32, device_writes }
}

#[test]
fn each_request_is_told_with_the_time_that_it_may_have_waited() {
    let (mut guest, disk, trace) = (Guest::new(ring(SIZE)), memory(), Ring::new(0));
    let mut core = Core::new(1);
    core.attach(&guest, spec(&guest, &disk, traced(&trace)));
    core.passes(3);
    let looked = core.now;
    guest.ask(3, WRITE);
    guest.add(3, FLUSH, 0, 1);
    guest.driver.publish();
    core.now = looked.after(50_000);
    core.tick_ns = 700;
    let taken = core.now;
    core.passes(2);
    assert_eq!(guest.take_ok(), 4);
    let told = entries(&trace);
    assert_eq!(told.len(), 4);
    for (number, one) in told.iter().enumerate() {
        let asked = if number < 3 { Asked::Write } else { Asked::Flush };
        assert_eq!(one.asked, asked);
        assert_eq!(one.taken_ns, taken.0);
        assert!((50_000..50_000 + 3 * PASS_NS).contains(&one.waited_ns), "{one:?}");
        assert!((700..10_000).contains(&one.medium_ns), "{one:?}");
    }
    let places: Vec<_> = told.iter().take(3).map(|one| (one.offset, one.len)).collect();
    let block = BLOCK as u64;
    assert_eq!(places, [(0, block), (block, block), (2 * block, block)]);
}

/// A sidecore that sleeps hears of a kick at once, however long it has slept.
#[test]
fn who_wakes_a_sidecore_has_not_waited_for_as_long_as_that_has_slept() {
    let (mut guest, disk, trace) = (Guest::new(ring(SIZE)), memory(), Ring::new(0));
    let mut core = Core::new(1);
    core.attach(&guest, spec(&guest, &disk, traced(&trace)));
    core.idle();
    guest.ask(1, WRITE);
    publish(&mut guest);
    // It falls asleep, and a second is over when it wakes.
    assert!(core.rest_for(1_000_000_000), "it does not sleep");
    core.passes(2);
    assert_eq!(guest.take_ok(), 1);
    let told = entries(&trace);
    assert!(matches!(told[..], [one] if one.waited_ns < 1_000_000), "{told:?}");
}

#[test]
fn what_a_limit_held_is_told_apart_from_what_waited() {
    let (mut guest, disk, trace) = (Guest::new(ring(SIZE)), memory(), Ring::new(0));
    let mut core = Core::new(1);
    let mut spec = spec(&guest, &disk, traced(&trace));
    // 1,000 requests a second, four at once.
    let device = Meters::new(Some(Rate { per_s: 1_000, burst_ns: 4_000_000 }), None);
    spec.gate = Gate::new(Limited { device, group: None }).map(Box::new);
    core.attach(&guest, spec);
    guest.ask(8, READ);
    for _ in 0..20_000 {
        core.pass();
    }
    assert_eq!(guest.take_ok(), 8);
    let told = entries(&trace);
    assert_eq!(told.len(), 8);
    let held: Vec<u64> = told.iter().map(|one| one.held_ns).collect();
    assert_eq!(held.first(), Some(&0), "{held:?}");
    assert!(held.last().is_some_and(|held| *held > 500_000), "{held:?}");
}

/// Time that stands still.
struct Still(Nanos);

impl Clock for Still {
    fn now(&self) -> Nanos {
        self.0
    }
}

/// A piece of a turn of queue 1 that began at `now`: what it came to, or until when that may take nothing.
fn piece(core: &mut Core, requests: u32, now: Nanos) -> Result<Visited, Nanos> {
    let Sidecore { places, io, chain, .. } = &mut core.sidecore;
    let (ring, disk) = disk_at(places, 0).expect("a disk");
    let how_far = (Budget { requests, bytes: 1 << 20, nanos: 1 << 20 }, SLICE_BYTES);
    let done = disk.fetch_specially(ring, io, chain, how_far, (now, now, 0), &Still(now))?;
    Ok(done.visited())
}

/// Who is served beside others has its visits in pieces of a few requests.
#[test]
fn what_a_limit_held_is_told_of_each_piece_of_the_visit_that_takes_it() {
    let (mut guest, disk, trace) = (Guest::new(ring(SIZE)), memory(), Ring::new(0));
    let mut core = Core::new(1);
    let mut spec = spec(&guest, &disk, traced(&trace));
    // 16 requests a millisecond, 64 at once.
    let device = Meters::new(Some(Rate { per_s: 16_000, burst_ns: 4_000_000 }), None);
    spec.gate = Gate::new(Limited { device, group: None }).map(Box::new);
    core.attach(&guest, spec);
    let mut now = core.now.after(1 << 30);
    guest.ask(80, READ);
    while entries(&trace).len() < 80 {
        match piece(&mut core, 4, now) {
            Ok(_) => {}
            Err(until) => now = until,
        }
    }
    let held: Vec<u64> = entries(&trace).iter().map(|one| one.held_ns).collect();
    let first = held.iter().position(|held| *held > 0);
    assert!(first.is_some_and(|first| (32..=64).contains(&first)), "the burst: {held:?}");
    assert!(held.iter().skip_while(|held| **held == 0).all(|held| *held > 0), "{held:?}");
    // What comes later was not held.
    assert_eq!(piece(&mut core, 4, now).map(|visited| visited.requests), Ok(0));
    for _ in 0..2 {
        guest.add(0, READ, 0, 1);
        guest.driver.publish();
        while guest.take().is_empty() {
            let _ = piece(&mut core, 4, now);
            now = now.after(1 << 30);
            if let Some((ring, _)) = disk_at(&mut core.sidecore.places, 0) {
                ring.queue.show();
            }
        }
    }
    assert_eq!(entries(&trace)[80..].iter().map(|one| one.held_ns).collect::<Vec<_>>(), [0, 0]);
}

/// A discard in parts is on its queue's account as it is done.
#[test]
fn a_discard_in_parts_is_charged_what_is_done_of_it() {
    const LEN: u64 = (3 << 20) + 512;
    let (mut guest, disk, trace) = (Guest::new(ring(SIZE)), memory(), Ring::new(0));
    let mut core = Core::new(1);
    let mut spec = spec(&guest, &disk, traced(&trace));
    let shape = Shape {
        block_size: 512,
        physical_block_exp: 0,
        topology: Default::default(),
        readonly: false,
        queues: 1,
        serial: [0; 20],
        limits: Limits { discard_sectors_max: 1 << 16, zeroes_sectors_max: 1 << 16 },
        in_order: false,
    };
    let negotiated = features::VERSION_1 | features::BLK_FLUSH | features::BLK_DISCARD;
    let blk = Blk::new(&shape, Live::new(DISK), negotiated);
    spec.role = RoleSpec::Disk { blk, backend: disk.backend_through(traced(&trace)) };
    core.attach(&guest, spec);
    let (sector, sectors) = (1u64, (LEN / 512) as u32);
    let range = [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &[0; 4]].concat();
    assert!(guest.map.area_at_user(SPARE_AT, 4096).unwrap().write(0, &range));
    guest.add_over(0, 11, 0, &[buffer(16, false)]);
    guest.driver.publish();
    let now = core.now;
    let charged = [(); 4].map(|()| piece(&mut core, 1, now).expect("no limit").bytes);
    // The first is less by where it begins, and has what the walk along its chain costs.
    let walk = charged.iter().sum::<u64>() - LEN;
    assert_eq!(charged, [(1 << 20) - 512 + walk, 1 << 20, 1 << 20, 1024]);
    assert!(walk < 4096, "{walk}");
    assert_eq!(entries(&trace).len(), 1);
}

#[test]
fn a_trace_comes_and_goes_while_requests_are_asked() {
    let (mut guest, disk, trace) = (Guest::new(ring(SIZE)), memory(), Ring::new(0));
    let mut core = Core::new(2);
    core.attach(&guest, guest.spec(1, &disk));
    (0..60).for_each(|number| guest.fill(number, number as u8 + 1));
    guest.ask(60, WRITE);
    core.pass();
    assert!(exchange(&mut core, 1, &disk, traced(&trace)).is_none());
    core.passes(2);
    assert_eq!(guest.take_ok(), 60);
    let with = entries(&trace).len();
    (0..60).for_each(|number| guest.fill(number, 0));
    guest.ask(60, READ);
    core.passes(3);
    assert_eq!(guest.take_ok(), 60);
    assert!((0..60).all(|number| guest.holds(number, number as u8 + 1)));
    assert_eq!(entries(&trace).len(), with + 60);
    assert!(exchange(&mut core, 2, &disk, Stages::default()).is_none());
    guest.ask(60, READ);
    core.passes(3);
    assert_eq!(guest.take_ok(), 60);
    assert_eq!(entries(&trace).len(), with + 60, "nothing more is told");
    assert_eq!(core.detach(1).queue().base(), 180);
}

#[test]
fn a_large_request_under_way_ends_before_its_queue_has_another_back_end() {
    let (mut guest, disk, trace) = (Guest::new(ring(SIZE)), memory(), Ring::new(0));
    let mut core = Core::new(2);
    core.tick_ns = LONG_NS;
    let counters = core.attach(&guest, guest.spec(1, &disk));
    let begin = |guest: &mut Guest, core: &mut Core, slices: u64| {
        let before = counters.snapshot().reads;
        guest.add_over(0, READ, 0, &[buffer(slices * SLICE_BYTES, true)]);
        publish(guest);
        let begun = (0..100).any(|_| {
            core.pass();
            counters.snapshot().reads > before
        });
        assert!(begun && guest.take().is_empty(), "a part of it");
    };
    begin(&mut guest, &mut core, 8);
    assert!(exchange(&mut core, 1, &disk, traced(&trace)).is_none());
    assert_eq!(guest.take(), [(0, 0)]);
    // And the other way round.
    begin(&mut guest, &mut core, 8);
    assert!(exchange(&mut core, 2, &disk, Stages::default()).is_none());
    assert_eq!(guest.take(), [(0, 0)]);
    assert_eq!(entries(&trace).iter().map(|one| one.len).collect::<Vec<_>>(), [8 * SLICE_BYTES]);
    // One that takes too long has its queue stay, and goes on.
    begin(&mut guest, &mut core, 60);
    let stayed = exchange(&mut core, 3, &disk, traced(&trace));
    assert!(matches!(stayed, Some(Stay::Busy)), "{stayed:?}");
    core.passes(80);
    assert_eq!(guest.take(), [(0, 0)]);
}

#[test]
fn a_ring_full_of_huge_requests_with_a_trace_does_one_part_between_two_visits_of_its_neighbour() {
    let (mut greedy, mut modest) = (Guest::new(ring(64)), Guest::new(ring(16)));
    let (mut core, trace) = (Core::new(2), Ring::new(0));
    core.tick_ns = LONG_NS;
    let spec = spec(&greedy, &memory(), traced(&trace));
    let counters = core.attach(&greedy, spec);
    core.attach(&modest, modest.spec(2, &memory()));
    let len = 15 << 20;
    for number in 0..20 {
        greedy.add_over(number, READ, 0, &[buffer(len, true)]);
    }
    greedy.driver.publish();
    let passes = 20 * (len / SLICE_BYTES);
    let mut pass = 0;
    while counters.snapshot().requests < 20 {
        modest.ask(4, READ);
        core.pass();
        pass += 1;
        assert_eq!(modest.take_ok(), 4, "in every pass");
        assert!(pass < 3 * passes, "they come to an end");
        let done = counters.snapshot().requests;
        assert!(done * len <= (pass + 1) * SLICE_BYTES, "{done} after {pass}");
    }
    assert_eq!(greedy.take_ok(), 20);
    assert_eq!(entries(&trace).len(), 20);
}

/// How long a queue takes that leaves is no matter of who was served beside it before.
#[test]
fn who_leaves_goes_on_by_whole_slices_whoever_was_its_neighbour() {
    let (mut guest, trace) = (Guest::new(ring(64)), Ring::new(0));
    let mut core = Core::new(1);
    core.tick_ns = LONG_NS;
    core.attach(&guest, spec(&guest, &memory(), traced(&trace)));
    guest.add_over(0, READ, 0, &[buffer(60 * SLICE_BYTES, true)]);
    guest.driver.publish();
    core.pass();
    assert_eq!(guest.take(), [], "it is under way");
    // As in the last visit, beside somebody who was waited for.
    let (_, disk) = disk_at(&mut core.sidecore.places, 0).expect("a disk");
    disk.backend.begin(Look { slice_bytes: 4 << 10, ..Look::default() });
    core.send(Command::Detach(key(1)));
    let passes = (1..4_000).find(|_| {
        core.pass();
        core.events().iter().any(|event| matches!(event, Event::Detached(_)))
    });
    assert!(passes.is_some_and(|passes| passes <= 70), "{passes:?} passes for 60 slices");
    assert_eq!(guest.take(), [(0, 0)]);
}

#[test]
fn a_file_on_a_device_tells_when_its_requests_have_ended() {
    let (_folder, disk) = file();
    let (mut guest, trace) = (Guest::new(ring(SIZE)), Ring::new(0));
    let mut core = Core::new(1);
    let counters = core.attach(&guest, spec(&guest, &disk, traced(&trace)));
    for kind in [WRITE, READ] {
        guest.ask(60, kind);
        finish(&mut core, &mut guest, &counters, 60);
    }
    // In several chunks.
    guest.add_over(0, READ, 0, &[buffer(5 << 20, true)]);
    publish(&mut guest);
    finish(&mut core, &mut guest, &counters, 1);
    core.pass();
    let told = entries(&trace);
    assert_eq!(told.len(), 121);
    let written = told.iter().filter(|one| one.asked == Asked::Write).count();
    assert_eq!((written, told.last().map(|one| one.len)), (60, Some(5 << 20)));
}

fn faulty(trace: &Arc<Ring>, delay_ns: u64, errors_per_million: u32) -> (Stages, Arc<FaultCounts>) {
    let counts = Arc::new(FaultCounts::default());
    let fault = FaultPlan {
        delay_ns,
        jitter_ns: 0,
        errors_per_million,
        ops: Ops::ALL,
        range: 0..u64::MAX,
        seed: 1,
        queue: 0,
        counts: Arc::clone(&counts),
    };
    (Stages { trace: Some(Arc::clone(trace)), fault: Some(fault) }, counts)
}

#[test]
fn answers_are_held_for_as_long_as_is_said_and_the_sidecore_sleeps_meanwhile() {
    const DELAY_NS: u64 = 5_000_000;
    let (mut guest, disk, trace) = (Guest::new(ring(SIZE)), memory(), Ring::new(0));
    let mut core = Core::new(1);
    let (stages, counts) = faulty(&trace, DELAY_NS, 0);
    core.attach(&guest, spec(&guest, &disk, stages));
    guest.fill(0, 9);
    guest.ask(8, WRITE);
    let asked = core.now;
    core.idle();
    assert!(guest.take().is_empty(), "nothing is said yet");
    core.now = asked.after(DELAY_NS - PASS_NS);
    assert_eq!(core.sidecore.next_due().map(|due| due.since(core.now) < 2 * PASS_NS), Some(true));
    core.pass();
    assert!(guest.take().is_empty());
    core.now = asked.after(DELAY_NS + 2 * PASS_NS);
    core.pass();
    assert_eq!(guest.take_ok(), 8);
    assert!(guest.calls() > 0, "and it is called");
    assert_eq!((counts.delayed(), counts.failed()), (8, 0));
    let told = entries(&trace);
    assert!(told.iter().all(|one| (DELAY_NS..DELAY_NS + 5 * PASS_NS).contains(&one.stages_ns)));
    assert_eq!(told.len(), 8);
    core.pass();
    assert!(core.sidecore.next_due().is_none_or(|due| due.since(core.now) > DELAY_NS));
}

#[test]
fn what_fails_has_not_been_done_and_what_does_not_has() {
    let (mut guest, disk, trace) = (Guest::new(ring(SIZE)), memory(), Ring::new(0));
    let mut core = Core::new(1);
    let (stages, counts) = faulty(&trace, 0, 300_000);
    core.attach(&guest, spec(&guest, &disk, stages));
    (0..60).for_each(|number| guest.fill(number, 7));
    guest.ask(60, WRITE);
    core.passes(3);
    let ended = guest.take();
    let failed: Vec<usize> =
        ended.iter().filter(|(_, status)| *status == 1).map(|it| it.0).collect();
    assert_eq!((ended.len(), failed.len() as u64), (60, counts.failed()));
    assert!((5..40).contains(&failed.len()), "{failed:?}");
    let mut other = Guest::new(ring(SIZE));
    let mut plain = Core::new(1);
    plain.attach(&other, other.spec(1, &disk));
    other.ask(60, READ);
    plain.passes(3);
    assert_eq!(other.take_ok(), 60);
    for number in 0..60 {
        assert!(other.holds(number, if failed.contains(&number) { 0 } else { 7 }), "{number}");
    }
}

#[test]
fn who_leaves_or_goes_elsewhere_is_answered_at_once() {
    let (mut guest, disk, trace) = (Guest::new(ring(SIZE)), memory(), Ring::new(0));
    let mut core = Core::new(2);
    let held = || faulty(&trace, 10_000_000_000, 0).0;
    core.attach(&guest, spec(&guest, &disk, held()));
    guest.ask(10, READ);
    core.passes(3);
    assert!(guest.take().is_empty());
    assert!(exchange(&mut core, 1, &disk, held()).is_none());
    assert_eq!(guest.take_ok(), 10);
    guest.ask(10, READ);
    core.passes(3);
    assert!(guest.take().is_empty());
    assert!(exchange(&mut core, 2, &disk, Stages::default()).is_none());
    assert_eq!(guest.take_ok(), 10);
    assert!(exchange(&mut core, 3, &disk, held()).is_none());
    guest.ask(10, READ);
    core.passes(3);
    core.detach(1);
    assert_eq!(guest.take_ok(), 10);
}

#[test]
fn a_file_on_a_device_has_its_answers_held_too() {
    let (_folder, disk) = file();
    let (mut guest, trace) = (Guest::new(ring(SIZE)), Ring::new(0));
    let mut core = Core::new(1);
    let (stages, counts) = faulty(&trace, 3_000_000, 200_000);
    let counters = core.attach(&guest, spec(&guest, &disk, stages));
    guest.ask(60, WRITE);
    let mut ended = Vec::new();
    for _ in 0..10_000_000 {
        let is_idle = core.pass().is_idle();
        // However slow the device is: a completion ends the sleep, or an answer that is due.
        if is_idle && counters.snapshot().in_flight > 0 {
            core.rest();
            core.now = core.now.after(100_000);
        }
        ended.extend(guest.take());
        if ended.len() == 60 {
            break;
        }
    }
    let failed = ended.iter().filter(|(_, status)| *status == 1).count() as u64;
    assert_eq!((ended.len(), failed, counts.delayed()), (60, counts.failed(), 60));
    assert!(entries(&trace).iter().all(|one| one.stages_ns >= 3_000_000));
}

#[test]
fn nothing_is_written_any_more_when_the_guests_memory_is_lost() {
    let (mut guest, disk, trace) = (Guest::new(ring(SIZE)), memory(), Ring::new(0));
    let mut core = Core::new(1);
    core.tick_ns = LONG_NS;
    let counters = core.attach(&guest, spec(&guest, &disk, traced(&trace)));
    let spare = guest.map.area_at_user(SPARE_AT, SPARE).unwrap();
    let fill = |byte: u8| assert!(spare.write(0, &vec![byte; 8 * SLICE_BYTES as usize]));
    fill(7);
    guest.add_over(
        0,
        WRITE,
        0,
        &[Buffer { device_writes: false, ..buffer(8 * SLICE_BYTES, true) }],
    );
    publish(&mut guest);
    core.passes(20);
    assert_eq!(guest.take(), [(0, 0)]);
    fill(9);
    guest.add_over(
        0,
        WRITE,
        0,
        &[Buffer { device_writes: false, ..buffer(8 * SLICE_BYTES, true) }],
    );
    publish(&mut guest);
    let before = counters.snapshot().writes;
    let begun = (0..100).any(|_| {
        core.pass();
        counters.snapshot().writes > before
    });
    assert!(begun);
    guest.map.health().lose(guest_memory::Loss::Memory);
    core.passes(40);
    assert_eq!(guest.status(0), 0xff, "and nothing is said");
    assert!(matches!(core.events().first(), Some(Event::Failed { .. })));
    // What is on the disk behind the first part is what was there.
    let mut other = Guest::new(ring(SIZE));
    let mut plain = Core::new(1);
    plain.attach(&other, other.spec(1, &disk));
    other.add(0, READ, 7 * SLICE_BYTES / 512, 1);
    publish(&mut other);
    plain.passes(3);
    assert_eq!(other.take_ok(), 1);
    assert!(other.holds(0, 7));
}

#[test]
fn two_queues_that_depart_together_both_go_on_with_what_they_have_begun() {
    let (mut guests, disk, trace) =
        ([Guest::new(ring(SIZE)), Guest::new(ring(SIZE))], memory(), Ring::new(0));
    let mut core = Core::new(4);
    core.tick_ns = 1_000;
    let mut departures = Vec::new();
    for (device, guest) in (1..).zip(&mut guests) {
        let mut spec = spec(guest, &disk, traced(&trace));
        spec.key = key(device);
        core.attach(guest, spec);
        guest.add_over(0, READ, 0, &[buffer(8 * SLICE_BYTES, true)]);
        publish(guest);
    }
    for device in 1..3 {
        let backend = disk.backend();
        let room = Room::new(&backend, SIZE);
        let id = MoveId(device.into());
        let (arrival, departure) = handover(id, &core.handle, backend, Some(room));
        core.send(Command::Prepare(arrival));
        departures.push((key(device), departure));
    }
    core.pass();
    core.events();
    for (key, departure) in departures {
        core.send(Command::Move(key, departure));
    }
    core.passes(60);
    let moved = core.events().iter().filter(|event| matches!(event, Event::Moved(_))).count();
    assert_eq!(moved, 2);
    assert!(guests.iter_mut().all(|guest| guest.take() == [(0, 0)]));
}

#[test]
fn the_same_requests_fail_although_their_queue_has_moved_between_them() {
    let failed = |moves: bool| {
        let (mut guest, disk, trace) = (Guest::new(ring(SIZE)), memory(), Ring::new(0));
        let mut core = Core::new(2);
        let (stages, _) = faulty(&trace, 0, 300_000);
        core.attach(&guest, spec(&guest, &disk, stages.clone()));
        let mut ended = Vec::new();
        for half in 0..2 {
            guest.ask(30, READ);
            core.passes(3);
            ended.extend(guest.take().into_iter().map(|(number, status)| (half, number, status)));
            if moves {
                assert!(exchange(&mut core, half + 1, &disk, stages.clone()).is_none());
            }
        }
        ended
    };
    assert_eq!(failed(false).len(), 60);
    assert_eq!(failed(true), failed(false));
}

/// A process was killed with more requests under way than a queue has slots, and its guest stops the ring.
#[test]
fn what_was_left_is_taken_on_without_waiting_for_answers_that_are_held() {
    const LEFT: u64 = 300;
    let (mut guest, disk, trace) = (Guest::new(ring(1024)), memory(), Ring::new(0));
    guest.ask(LEFT as usize, READ);
    let mut dead = guest.recorded_queue(0);
    let mut chain = virtqueue::Chain::default();
    for _ in 0..LEFT {
        assert!(dead.peek(&guest.map, &mut chain));
        std::mem::forget(dead.advance(&chain));
    }
    drop(dead);
    let mut core = Core::new(1);
    let mut spec = spec(&guest, &disk, faulty(&trace, 10_000_000_000, 0).0);
    spec.queue = guest.recorded_queue(0);
    core.send(Command::Attach(Served::new(spec)));
    core.passes(40);
    assert_eq!(guest.take(), [], "all slots are held");
    core.send(Command::Finish(key(1)));
    core.passes(20);
    assert_eq!(detached(core.events(), 1).queue().left(), 0);
    assert_eq!(guest.take_ok() as u64, LEFT);
}

/// Something else is under way for longer than a queue may take to go, however often that is tried.
#[test]
fn who_is_asked_to_go_and_stays_has_answered_nothing_before_its_time() {
    const DELAY_NS: u64 = 10_000_000_000;
    let (mut guest, disk, trace) = (Guest::new(ring(SIZE)), memory(), Ring::new(0));
    let mut core = Core::new(2);
    let (stages, counts) = faulty(&trace, DELAY_NS, 0);
    core.attach(&guest, spec(&guest, &disk, stages));
    let asked = core.now;
    guest.ask(10, READ);
    core.passes(3);
    core.tick_ns = LONG_NS;
    for id in 1..4 {
        guest.add_over(9 + id, READ, 0, &[buffer(60 * SLICE_BYTES, true)]);
        publish(&mut guest);
        let begun = (0..100).any(|_| {
            core.pass();
            core.sidecore.is_slicing(0)
        });
        assert!(begun, "request {id}");
        let stayed = exchange(&mut core, id as u64, &disk, Stages::default());
        assert!(matches!(stayed, Some(Stay::Busy)), "{stayed:?} of {id}");
        core.passes(100);
        assert!(!core.sidecore.is_slicing(0), "it is done");
        assert_eq!((guest.take(), counts.delayed()), (vec![], 0), "after try {id}");
    }
    // When nothing else is under way they are given, and have not been delayed as was asked.
    assert!(exchange(&mut core, 4, &disk, Stages::default()).is_none());
    assert!(core.now.since(asked) < DELAY_NS);
    assert_eq!((guest.take_ok(), counts.delayed()), (13, 0));
}

/// A sidecore looks at those whose answers it holds when one is due, whichever came first.
#[test]
fn nobody_is_looked_at_for_answers_that_are_not_due() {
    let (mut guest, disk, trace) = (Guest::new(ring(SIZE)), memory(), Ring::new(0));
    let mut core = Core::new(1);
    let (mut stages, counts) = faulty(&trace, 5_000_000, 0);
    if let Some(fault) = &mut stages.fault {
        fault.jitter_ns = 5_000_000;
    }
    core.attach(&guest, spec(&guest, &disk, stages));
    guest.ask(60, READ);
    let mut answered = 0;
    while answered < 60 {
        core.passes(3);
        answered += guest.take_ok();
        let (_, role) = disk_at(&mut core.sidecore.places, 0).expect("a disk");
        let due = role.backend.next_due();
        assert_eq!(core.sidecore.io.stalled_due(), due.unwrap_or(u64::MAX));
        if let Some(due) = due {
            core.now = Nanos(due - 1);
            core.pass();
            assert_eq!(guest.take(), []);
            core.now = Nanos(due);
            core.pass();
            let now = guest.take_ok();
            assert!(now > 0, "it is due");
            answered += now;
        }
    }
    assert_eq!(counts.delayed(), 60, "each at its time");
}
