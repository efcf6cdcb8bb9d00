//! What queues cost, told from samples: against what was really done.

use schedule::Policy;

use super::bed::*;
use crate::ServedSpec;

/// The clock goes on so far at each reading, so a visit that is timed takes as long.
const TICK_NS: u64 = 1_000;
const PASSES: u64 = 16_000;

fn is_about(found_ns: u64, wanted_ns: u64) -> bool {
    found_ns.abs_diff(wanted_ns) < wanted_ns / 8
}

#[test]
fn each_queue_is_told_what_its_visits_with_work_took() {
    let mut guests = [ring(16), ring(16), ring(16)].map(Guest::new);
    let mut core = Core::new(3);
    core.tick_ns = TICK_NS;
    // A look at the clock for an interruption would count as work here.
    core.sidecore.schedule.watch(false);
    let counters: Vec<_> = (1..)
        .zip(&guests)
        .map(|(device, guest)| {
            let spec = ServedSpec { policy: Policy::Poll, ..guest.spec(device, &memory()) };
            core.attach(guest, spec)
        })
        .collect();
    // One asks in each pass, one in each fourth, and one never.
    for pass in 0..PASSES {
        guests[0].ask(1, READ);
        if pass % 4 == 0 {
            guests[1].ask(1, READ);
        }
        core.pass();
        assert_eq!(guests[0].take_ok(), 1);
        assert_eq!(guests[1].take_ok(), usize::from(pass % 4 == 0));
    }
    let [often, seldom, never] = [0, 1, 2].map(|at: usize| counters[at].work_ns());
    let all = core.sidecore.counters().snapshot();
    assert!(is_about(often, PASSES * TICK_NS), "{often} ns");
    assert!(is_about(seldom, PASSES / 4 * TICK_NS), "{seldom} ns");
    assert_eq!(never, 0);
    assert_eq!(all.work_ns, often + seldom);
    // The third in each pass, the second in three of four.
    assert!(is_about(all.looks_ns, PASSES * 7 / 4 * TICK_NS), "{} ns", all.looks_ns);
    assert!(counters[1].snapshot().visits == PASSES / 4);
    // A pass without work is no busy one, whatever was looked at.
    let before = all.looks_ns;
    core.passes(1000);
    assert_eq!(core.sidecore.counters().snapshot().looks_ns, before);
}
