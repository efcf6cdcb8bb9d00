//! Queues that ask little, served between the pieces of other queues' visits.

use schedule::{Gate, Limited, Meters, Policy, Rate, SHARE_USUAL};
use virtqueue::driver::Buffer;

use super::bed::*;
use crate::{Command, ServedSpec, Service};

/// The clock goes on so far at each reading: less than a visit may take.
const TICK_NS: u64 = 1_000;
/// Turns after which a queue is known to ask little.
const TURNS: u32 = 64;
const LARGE: u32 = 64 << 10;

/// A guest at queue depth 1 that is known as such, and one that is visited before it and has so many
/// requests of 64 KiB in its ring.
fn pair(requests: usize, is_watched: bool) -> (Guest, Guest, Core) {
    let (mut greedy, mut modest) = (Guest::new(ring(64)), Guest::new(ring(16)));
    let mut core = Core::new(2);
    core.sidecore.schedule.watch(is_watched);
    core.tick_ns = TICK_NS;
    for (guest, device) in [(&greedy, 1), (&modest, 2)] {
        core.attach(guest, ServedSpec { policy: Policy::Poll, ..guest.spec(device, &memory()) });
    }
    for _ in 0..TURNS {
        modest.ask(1, READ);
        // Time for interruptions is saved up meanwhile.
        core.passes(8);
        assert_eq!(modest.take_ok(), 1);
    }
    ask_large(&mut greedy, requests);
    (greedy, modest, core)
}

/// So many requests of 64 KiB.
fn ask_large(guest: &mut Guest, requests: usize) {
    for number in 0..requests {
        let gpa = SPARE_AT + number as u64 * u64::from(LARGE);
        guest.add_over(number, READ, 0, &[Buffer { gpa, len: LARGE, device_writes: true }]);
    }
    guest.driver.publish();
}

#[test]
fn one_that_asks_little_is_served_in_the_middle_of_a_long_visit() {
    let (mut greedy, mut modest, mut core) = pair(4, true);
    modest.ask(1, READ);
    core.pass();
    assert_eq!(modest.take_ok(), 1);
    assert_eq!(core.sidecore.counters().snapshot().interruptions, 1);
    core.passes(4);
    assert_eq!(greedy.take_ok(), 4, "what was interrupted goes on");
}

#[test]
fn without_watching_it_waits_for_its_turn() {
    let (_greedy, mut modest, mut core) = pair(4, false);
    modest.ask(1, READ);
    core.pass();
    assert_eq!(modest.take_ok(), 1);
    assert_eq!(core.sidecore.counters().snapshot().interruptions, 0);
}

#[test]
fn after_a_visit_of_one_long_piece_it_is_looked_at_too() {
    for (bytes, interruptions) in [(16 << 10, 1), (2 << 10, 0)] {
        let (mut greedy, mut modest, mut core) = pair(0, true);
        let data = Buffer { gpa: SPARE_AT, len: bytes, device_writes: true };
        greedy.add_over(0, READ, 0, &[data]);
        greedy.driver.publish();
        modest.ask(1, READ);
        core.pass();
        assert_eq!([greedy.take_ok(), modest.take_ok()], [1, 1]);
        let counted = core.sidecore.counters().snapshot().interruptions;
        assert_eq!(counted, interruptions, "after {bytes} bytes");
    }
}

#[test]
fn a_limit_holds_for_what_is_served_in_the_middle_of_a_visit_too() {
    const MS: u64 = 1_000_000;
    let (mut greedy, mut modest, mut core) = pair(0, true);
    // Four at once, and then one a millisecond.
    let device = Meters::new(Some(Rate { per_s: 1000, burst_ns: 4 * MS }), None);
    let gate = Gate::new(Limited { device, group: None }).map(Box::new);
    let (share, policy, target_ns, moderate_ns) = (SHARE_USUAL, Policy::Poll, None, 0);
    let service = Service { share, policy, target_ns, moderate_ns, gate };
    core.send(Command::SetService(key(2), service));
    core.pass();
    for _ in 0..4 {
        modest.ask(1, READ);
        core.pass();
        assert_eq!(modest.take_ok(), 1);
    }
    ask_large(&mut greedy, 4);
    modest.ask(1, READ);
    core.passes(4);
    assert_eq!((greedy.take_ok(), modest.take_ok()), (4, 0));
    assert_eq!(core.sidecore.counters().snapshot().interruptions, 1, "it was asked for");
    core.now = core.now.after(MS);
    core.pass();
    assert_eq!(modest.take_ok(), 1);
}

#[test]
fn one_that_misses_its_target_is_served_early_and_pays_with_its_credit() {
    let (mut greedy, mut aimed) = (Guest::new(ring(64)), Guest::new(ring(64)));
    let mut core = Core::new(2);
    core.tick_ns = TICK_NS;
    let policy = Policy::Poll;
    core.attach(&greedy, ServedSpec { policy, ..greedy.spec(1, &memory()) });
    let target_ns = Some(10_000);
    let counters =
        core.attach(&aimed, ServedSpec { policy, target_ns, ..aimed.spec(2, &memory()) });
    // Eight at once, seen 20 us after the last look: neither light nor in time.
    for _ in 0..8 {
        core.passes(1);
        aimed.ask(8, READ);
        core.now = core.now.after(20_000);
        core.pass();
        assert_eq!(aimed.take_ok(), 8);
    }
    let interruptions = |core: &Core| core.sidecore.counters().snapshot().interruptions;
    assert_eq!(counters.snapshot().missed, 64);
    assert_eq!(interruptions(&core), 0);
    ask_large(&mut greedy, 4);
    aimed.ask(8, READ);
    core.pass();
    assert_eq!(aimed.take_ok(), 8);
    assert!(interruptions(&core) >= 2, "four requests each");
    core.passes(8);
    assert_eq!(greedy.take_ok(), 4);
}
