//! Waiting on a line, with a processor of our own: it notes what is done with it, and time goes on when it
//! waits. What guests do meanwhile is done in the middle of it.

use std::cell::Cell;
use std::sync::Arc;

use backend::Disk;
use guest_memory::Area;
use proptest::prelude::*;
use schedule::{Clock, Nanos, Policy};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

use super::bed::*;
use super::file::file;
use crate::doze::Waits;
use crate::places::disk_at;
use crate::thread::turn;
use crate::{Command, MoveId, handover};

const US: u64 = 1_000;

/// When something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    BeforeWatching,
    Watching,
    Waiting,
}

/// What a processor was made to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Watch,
    /// How long at most.
    Wait(u64),
    /// The line had changed in it, or before.
    Woken,
    Pause,
}

struct Model<F> {
    meanwhile: F,
    line: Option<(Area, usize, u16)>,
    steps: Vec<Step>,
    clock: Option<std::rc::Rc<Cell<u64>>>,
}

impl<F: FnMut(Moment)> Model<F> {
    fn new(meanwhile: F) -> Model<F> {
        Model { meanwhile, line: None, steps: Vec::new(), clock: None }
    }

    fn is_changed(&self) -> bool {
        let (area, at, before) = self.line.as_ref().unwrap();
        area.load_acquire_u16(*at) != *before
    }
}

impl<F: FnMut(Moment)> Waits for Model<F> {
    fn watch(&mut self, area: &Area, at: usize) {
        (self.meanwhile)(Moment::BeforeWatching);
        self.line = Some((area.clone(), at, area.load_acquire_u16(at)));
        self.steps.push(Step::Watch);
        (self.meanwhile)(Moment::Watching);
    }

    fn wait(&mut self, at_most_ns: u64) {
        self.steps.push(Step::Wait(at_most_ns));
        (self.meanwhile)(Moment::Waiting);
        if self.is_changed() {
            self.steps.push(Step::Woken);
        } else if let Some(clock) = &self.clock {
            clock.set(clock.get() + at_most_ns);
        }
    }

    fn pause(&mut self) {
        self.steps.push(Step::Pause);
    }
}

/// What a processor that nobody disturbs is made to do now.
fn steps(core: &mut Core) -> Vec<Step> {
    let mut model = Model::new(|_| {});
    core.sidecore.doze(core.now, &mut model);
    model.steps
}

/// A sidecore that polls one queue, which is empty, and has just looked for kicks.
fn polling(disk: &Arc<Disk>) -> (Core, Guest) {
    let guest = Guest::new(ring(16));
    let mut core = Core::new(3);
    core.attach(&guest, guest.spec(1, disk));
    core.pass();
    core.now = core.sidecore.looked;
    assert_eq!(steps(&mut core), [Step::Watch, Step::Wait(10 * US)]);
    (core, guest)
}

fn rings() -> impl Iterator<Item = RingSpec> {
    let formats = [Format::Split, Format::Packed];
    formats.into_iter().flat_map(|format| {
        [0, 4].map(|indirect_entries| RingSpec {
            size: 8,
            format,
            event_index: indirect_entries == 0,
            indirect_entries,
        })
    })
}

/// Over several laps of the ring, so at each place of it.
#[test]
fn what_comes_at_whatever_moment_is_not_waited_on() {
    for spec in rings() {
        for moment in [Moment::BeforeWatching, Moment::Watching, Moment::Waiting] {
            let mut guest = Guest::new(spec);
            let mut core = Core::new(1);
            core.attach(&guest, guest.spec(1, &null()));
            for number in 0..40 {
                core.pass();
                let mut model = Model::new(|now| {
                    if now == moment {
                        guest.add(number % 2, READ, 0, 1);
                        guest.driver.publish();
                    }
                });
                core.now = core.sidecore.looked;
                core.sidecore.doze(core.now, &mut model);
                let expected = match moment {
                    Moment::Waiting => vec![Step::Watch, Step::Wait(10 * US), Step::Woken],
                    _ => vec![Step::Watch],
                };
                assert_eq!(model.steps, expected, "{spec:?} {moment:?} {number}");
                assert_eq!(core.pass().requests, 1);
                assert_eq!(guest.take_ok(), 1);
            }
        }
    }
}

#[test]
fn it_does_not_wait_with_anything_on_its_way() {
    type Change = fn(&mut Core);
    let changes: [(&str, Change); 10] = [
        ("command", |core| core.send(Command::Detach(key(9)))),
        ("call put off", |core| core.sidecore.put_off.push(0)),
        ("not shown", |core| core.sidecore.unshown.push(0)),
        ("not clocked", |core| core.sidecore.unclocked.push(0)),
        ("leaving", |core| core.sidecore.leaving.push(0)),
        ("stopping", |core| core.sidecore.stopping = true),
        ("road", |core| core.sidecore.roads.push(2)),
        ("not in the ring", |core| {
            disk_at(&mut core.sidecore.places, 0).unwrap().0.unshown = true;
        }),
        ("look for kicks", |core| core.now = core.sidecore.looked.after(50 * US)),
        ("due", |core| {
            let now = core.now;
            core.sidecore.schedule.add(2, 100, Policy::Poll, now);
            core.sidecore.schedule.wait_until(2, now);
        }),
    ];
    for (what, change) in changes {
        let (mut core, _guest) = polling(&null());
        change(&mut core);
        assert_eq!(steps(&mut core), [], "{what}");
    }
}

#[test]
fn it_does_not_wait_with_a_request_at_a_back_end() {
    let (mut core, mut guest) = polling(&null());
    guest.add(9, READ, 0, 1);
    guest.driver.publish();
    let (ring, _) = disk_at(&mut core.sidecore.places, 0).unwrap();
    assert!(ring.queue.peek(&guest.map, &mut core.sidecore.chain));
    let ticket = ring.queue.advance(&core.sidecore.chain);
    assert_eq!(steps(&mut core), []);
    disk_at(&mut core.sidecore.places, 0).unwrap().0.queue.complete(ticket, 1);
    assert_eq!(steps(&mut core), [Step::Watch, Step::Wait(10 * US)]);

    let (_folder, disk) = file();
    let (mut core, mut guest) = polling(&disk);
    for _ in 0..100 {
        guest.ask(1, WRITE);
        core.pass();
        core.now = core.sidecore.looked;
        if core.sidecore.io.in_flight() > 0 {
            assert_eq!(steps(&mut core), []);
        }
        while guest.take_ok() == 0 {
            core.pass();
        }
    }
}

#[test]
fn it_does_not_wait_for_a_queue_that_comes() {
    let disk = null();
    let (mut core, _guest) = polling(&disk);
    let (arrival, departure) = handover(MoveId(1), &core.handle, disk.backend());
    core.send(Command::Prepare(arrival));
    core.pass();
    core.now = core.sidecore.looked;
    assert_eq!(steps(&mut core), []);
    drop(departure);
    core.passes(2);
    core.now = core.sidecore.looked;
    assert_eq!(steps(&mut core), [Step::Watch, Step::Wait(10 * US)]);
}

#[test]
fn with_several_polled_it_only_pauses_and_with_none_it_does_nothing() {
    let (mut core, _guest) = polling(&null());
    let other = Guest::new(ring(16));
    core.attach(&other, other.spec(2, &null()));
    core.now = core.sidecore.looked;
    assert_eq!(steps(&mut core), [Step::Pause]);
    core.idle();
    core.now = core.sidecore.looked;
    assert_eq!(steps(&mut core), []);
}

#[test]
fn memory_that_went_away_is_not_waited_on() {
    let (guest, fd) = Guest::lent(ring(16));
    let mut core = Core::new(1);
    core.attach(&guest, guest.spec(1, &null()));
    core.now = core.sidecore.looked;
    assert_eq!(steps(&mut core), [Step::Watch, Step::Wait(10 * US)]);
    rustix::fs::ftruncate(&fd, 0).unwrap();
    core.pass();
    core.now = core.sidecore.looked;
    assert_eq!(steps(&mut core), []);
}

proptest! {
    /// Never longer than 10 us, than it is to the next look or moment, than a quarter of a kick's price
    /// where that counts, or than an eighth of the target.
    #[test]
    fn a_wait_has_its_bounds(
        looked_ns in 0..70_000u64,
        due_ns in prop::option::of(0..20_000u64),
        target_ns in prop::option::of(1_000..1_000_000u64),
        kick_ns in 2_000..200_000u64,
        polls in any::<bool>(),
    ) {
        let (mut core, guest) = polling(&null());
        drop(core.detach(1));
        let mut spec = guest.spec(2, &null());
        spec.policy = if polls { Policy::Poll } else { Policy::Adaptive };
        spec.target_ns = target_ns;
        core.attach(&guest, spec);
        core.sidecore.kick_ns = kick_ns;
        core.now = core.sidecore.looked.after(looked_ns);
        if let Some(due_ns) = due_ns {
            let due = core.now.after(due_ns);
            core.sidecore.schedule.add(2, 100, Policy::Poll, core.now);
            core.sidecore.schedule.wait_until(2, due);
        }
        let to_look = 50_000u64.saturating_sub(looked_ns);
        let moment = to_look.min(due_ns.unwrap_or(u64::MAX)).min(10_000);
        let expected = moment
            .min(if polls { u64::MAX } else { kick_ns / 4 })
            .min(target_ns.map_or(u64::MAX, |target_ns| target_ns / 8));
        let steps = steps(&mut core);
        if moment == 0 {
            prop_assert_eq!(steps, []);
        } else {
            prop_assert_eq!(steps, [Step::Watch, Step::Wait(expected)]);
        }
    }
}

/// Goes on by a microsecond whenever it is read, and by what is waited.
struct Shared(std::rc::Rc<Cell<u64>>);

impl Clock for Shared {
    fn now(&self) -> Nanos {
        self.0.set(self.0.get() + US);
        Nanos(self.0.get())
    }
}

/// How long a queue is polled that nobody uses, with waits or without, and what of it is idle and busy; and
/// how many passes that takes.
fn polled_for(waits: bool, kick_ns: u64) -> (u64, [u64; 2], u64) {
    let guest = Guest::new(ring(16));
    let mut core = Core::new(1);
    core.attach(&guest, guest.spec(1, &null()));
    core.sidecore.kick_ns = kick_ns;
    core.sidecore.schedule.set_kick_cost(kick_ns as u32);
    core.pass();
    let time = std::rc::Rc::new(Cell::new(core.now.0));
    let clock = Shared(std::rc::Rc::clone(&time));
    let mut model = waits.then(|| {
        let mut model = Model::new(|_| {});
        model.clock = Some(time);
        model
    });
    let start = clock.now();
    let mut last = start;
    let before = core.sidecore.counters().snapshot();
    for passes in 1..10_000 {
        // The sleep that comes at last ends at once.
        crate::inbox::wake(&core.handle.command_fd);
        last = turn(&mut core.sidecore, last, &clock, &mut model);
        if core.sidecore.schedule.polled() == 0 {
            let after = core.sidecore.counters().snapshot();
            let asleep_ns = after.asleep_ns - before.asleep_ns;
            assert!(asleep_ns <= 3 * US, "that was the last pass");
            let idle_ns = after.idle_ns - before.idle_ns + asleep_ns;
            let spent = [idle_ns, after.busy_ns - before.busy_ns];
            assert_eq!(model.is_some_and(|model| !model.steps.is_empty()), waits);
            return (last.since(start), spent, passes);
        }
    }
    panic!("it is polled for ever")
}

/// What is polled with waits is polled as long, by the clock: so `adaptive` keeps its bound, and a wait is a
/// look that costs its time.
#[test]
fn waiting_is_idle_time_and_changes_nothing_of_how_long_is_polled() {
    for kick_ns in [8 * US, 40 * US, 200 * US] {
        let (spun_ns, spent, spun) = polled_for(false, kick_ns);
        assert_eq!(spent, [spun_ns, 0]);
        let (waited_ns, spent, waited) = polled_for(true, kick_ns);
        assert_eq!(spent, [waited_ns, 0]);
        let longest = (kick_ns / 4).min(10 * US) + 3 * US;
        assert!(waited_ns.abs_diff(spun_ns) <= longest, "{kick_ns}: {waited_ns}, {spun_ns}");
        assert!(waited * 2 <= spun, "{kick_ns}: {waited} passes, {spun}");
    }
}
