//! Polled or armed, and when the thread may sleep. A sleep of these tests has its reason to end
//! before it begins, so that none waits.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use schedule::{Clock, Nanos, Policy};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

use super::bed::*;
use crate::Command;
use crate::thread::turn;

/// The first request of a ring with event indices asks for a kick whatever the device said: the
/// event index of a zeroed ring is passed by it.
fn serve_first(core: &mut Core, guest: &mut Guest) {
    guest.add(0, READ, 0, 1);
    guest.driver.publish();
    core.pass();
    assert_eq!(guest.take_ok(), 1);
}

#[test]
fn an_idle_queue_is_armed_beside_a_busy_one_and_a_kick_makes_it_polled() {
    let (mut busy, mut idle) = (Guest::new(ring(16)), Guest::new(ring(16)));
    let mut core = Core::new(2);
    let mut always = busy.spec(1, &null());
    always.policy = Policy::Poll;
    core.attach(&busy, always);
    let counters = core.attach(&idle, idle.spec(2, &null()));
    for _ in 0..IDLE_PASSES {
        busy.ask(1, READ);
        assert_eq!(core.pass().requests, 1);
        assert_eq!(busy.take_ok(), 1);
    }
    idle.add(0, READ, 0, 1);
    assert!(idle.driver.publish(), "an armed queue asks for kicks");
    // It is not polled: what it has is not found without the kick.
    core.passes(200);
    assert_eq!(idle.take_ok(), 0);
    idle.kick();
    core.passes(51);
    assert_eq!(idle.take_ok(), 1);
    assert_eq!(counters.snapshot().kicks, 1);
    // It had been idle for long; a few that come sooner make it polled again: no kick is asked for,
    // and none is needed.
    for _ in 0..5 {
        idle.ask(1, READ);
        core.passes(51);
        assert_eq!(idle.take_ok(), 1);
    }
    idle.add(0, READ, 0, 1);
    assert!(!idle.driver.publish(), "a polled queue asks for no kicks");
    core.pass();
    assert_eq!(idle.take_ok(), 1);
}

#[test]
fn whenever_a_request_comes_it_is_found_or_a_kick_is_wanted() {
    let mut guest = Guest::new(ring(16));
    let mut core = Core::new(1);
    core.attach(&guest, guest.spec(1, &null()));
    serve_first(&mut core, &mut guest);
    // Before, at, and after arming.
    for wait in 0..120 {
        core.passes(wait);
        guest.add(0, READ, 0, 1);
        let wanted = guest.driver.publish();
        core.passes(2);
        let mut served = guest.take_ok();
        assert_ne!(wanted, served == 1, "after {wait} passes");
        if wanted {
            guest.kick();
            core.passes(51);
            served += guest.take_ok();
        }
        assert_eq!(served, 1, "after {wait} passes");
    }
}

/// A guest that asks in the middle of a pass: when the clock is read first.
struct Meanwhile<'a> {
    at: Nanos,
    guest: RefCell<&'a mut Guest>,
    /// Whether a kick was asked for then.
    wanted: RefCell<Option<bool>>,
}

impl Clock for Meanwhile<'_> {
    fn now(&self) -> Nanos {
        self.wanted.borrow_mut().get_or_insert_with(|| {
            let mut guest = self.guest.borrow_mut();
            guest.add(1, READ, 0, 1);
            guest.driver.publish()
        });
        self.at
    }
}

/// It is looked at again once its kicks are on: what came after its visit, and before that, kicked nobody.
#[test]
fn what_comes_between_the_last_look_and_arming_is_found() {
    for format in [Format::Split, Format::Packed] {
        let spec = RingSpec { format, ..ring(16) };
        let (mut idle, mut busy) = (Guest::new(spec), Guest::new(ring(128)));
        let mut core = Core::new(2);
        core.sidecore.schedule.watch(false);
        let notified = crate::ServedSpec { policy: Policy::Notify, ..idle.spec(1, &null()) };
        core.attach(&idle, notified);
        let polled = crate::ServedSpec { policy: Policy::Poll, ..busy.spec(2, &null()) };
        core.attach(&busy, polled);
        core.passes(2);
        // It is kicked, visited first, and armed at the end. The other is visited for so long that the clock
        // is read.
        idle.ask(1, READ);
        busy.ask(32, READ);
        core.now = core.now.after(1_000_000);
        let guest = RefCell::new(&mut idle);
        let clock = Meanwhile { at: core.now, guest, wanted: RefCell::default() };
        core.sidecore.pass(core.now, &clock);
        assert_eq!(clock.wanted.into_inner(), Some(false), "{format:?}: it was not armed yet");
        assert_eq!((idle.take_ok(), busy.take_ok()), (1, 32), "{format:?}");
        core.pass();
        assert_eq!(idle.take_ok(), 1, "{format:?}");
    }
}

#[test]
fn it_sleeps_only_when_everything_is_armed_and_the_kick_that_ends_it_is_served() {
    let mut guest = Guest::new(ring(16));
    let mut core = Core::new(1);
    core.attach(&guest, guest.spec(1, &null()));
    assert!(core.pass().is_idle());
    assert!(!core.rest(), "it is still polled");
    core.passes(42);
    guest.ask(1, READ);
    assert!(core.rest());
    assert_eq!(core.pass().requests, 1);
    assert_eq!(guest.take_ok(), 1);
    assert!(!core.rest(), "it was kicked, so it is polled");
    assert_eq!(core.sidecore.counters().snapshot().sleeps, 1);
}

#[test]
fn it_does_not_sleep_on_a_command_and_a_command_ends_a_sleep() {
    let mut core = Core::new(1);
    core.send(Command::Detach(key(9)));
    assert!(!core.rest(), "a command waits");
    core.pass();
    // Its wake-up was not yet read: the sleep ends at once.
    assert!(core.rest());
    let guest = Guest::new(ring(16));
    core.attach(&guest, guest.spec(1, &null()));
    assert_eq!(core.handle.counters().queues, 1);
}

#[test]
fn a_queue_that_must_be_polled_is_never_armed() {
    let by_policy = Guest::new(ring(16));
    let mut without_kick = Guest::new(ring(16));
    without_kick.kick = None;
    for (mut guest, policy) in [(by_policy, Policy::Poll), (without_kick, Policy::Notify)] {
        let mut core = Core::new(1);
        let mut spec = guest.spec(1, &null());
        spec.policy = policy;
        core.attach(&guest, spec);
        serve_first(&mut core, &mut guest);
        core.idle();
        assert!(!core.rest());
        guest.add(0, READ, 0, 1);
        assert!(!guest.driver.publish(), "no kick is asked for");
        core.pass();
        assert_eq!(guest.take_ok(), 1);
    }
}

#[test]
fn a_queue_of_policy_notify_is_armed_as_soon_as_it_is_empty() {
    let mut guest = Guest::new(ring(16));
    let mut core = Core::new(1);
    let mut spec = guest.spec(1, &null());
    spec.policy = Policy::Notify;
    let counters = core.attach(&guest, spec);
    for _ in 0..5 {
        guest.add(0, READ, 0, 1);
        assert!(guest.driver.publish());
        guest.kick();
        assert!(core.rest());
        core.pass();
        assert_eq!(guest.take_ok(), 1);
    }
    assert_eq!(counters.snapshot().kicks, 5);
}

#[test]
fn a_waking_by_control_says_what_a_kick_costs() {
    let mut core = Core::new(1);
    let start = crate::thread::instant();
    core.handle.knock(start);
    core.sidecore.kick_cost.begin(start);
    core.handle.knock(start);
    assert!(!core.rest_would_end(), "it does not sleep, so nobody wakes it");
    core.sidecore.rest.bell().sleep();
    core.handle.knock(start + Duration::from_micros(30));
    assert!(core.rest_would_end());
    core.sidecore.woke(Nanos(40_000));
    // A quarter of the way from 40 us to five times 10 us and the guest's 2.
    assert_eq!(core.sidecore.counters().snapshot().kick_ns, 43_000);
    core.sidecore.woke(Nanos(50_000));
    assert_eq!(core.sidecore.counters().snapshot().kick_ns, 43_000, "that was another's");
}

#[test]
fn a_kick_meant_for_an_earlier_queue_is_nothing() {
    let guest = Guest::new(ring(16));
    let mut core = Core::new(1);
    core.attach(&guest, guest.spec(1, &null()));
    drop(core.detach(1));
    let counters = core.attach(&guest, guest.spec(2, &null()));
    core.idle();
    core.sidecore.kicked(0, 1, core.now);
    core.sidecore.kicked(99, 1, core.now);
    assert_eq!(counters.snapshot().kicks, 0);
    core.sidecore.kicked(0, 2, core.now);
    assert_eq!(counters.snapshot().kicks, 1);
}

/// Goes on by a microsecond whenever it is read.
struct Steady(Cell<u64>);

impl Clock for Steady {
    fn now(&self) -> Nanos {
        self.0.set(self.0.get() + 1_000);
        Nanos(self.0.get())
    }
}

/// All time of a thread is counted, as what it was spent on; and a kick's worth is polled before the sleep.
#[test]
fn each_turn_is_counted_as_busy_idle_or_asleep() {
    let guest = Guest::new(ring(16));
    let mut core = Core::new(1);
    core.attach(&guest, guest.spec(1, &null()));
    core.sidecore.schedule.set_kick_cost(40_000);
    core.pass();
    let clock = Steady(Cell::new(core.now.0));
    let (start, before) = (clock.now(), core.sidecore.counters().snapshot());
    let (mut last, mut turns) = (start, 0);
    while core.sidecore.schedule.polled() > 0 {
        // The sleep that comes at last ends at once.
        crate::inbox::wake(&core.handle.command_fd);
        last = turn(&mut core.sidecore, last, &clock);
        turns += 1;
        assert!(turns < 10_000, "it is polled for ever");
    }
    let after = core.sidecore.counters().snapshot();
    let (idle_ns, asleep_ns) = (after.idle_ns - before.idle_ns, after.asleep_ns - before.asleep_ns);
    assert_eq!(idle_ns + asleep_ns, last.since(start));
    assert_eq!(after.busy_ns, before.busy_ns);
    assert!(asleep_ns > 0 && asleep_ns <= 3_000, "only the last turn sleeps: {asleep_ns}");
    assert!(idle_ns >= 20_000, "{idle_ns}");
    assert_eq!(after.passes - before.passes, turns);
}
