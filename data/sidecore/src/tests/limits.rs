//! Limits and run-time changes along the whole path, in made-up time: what is taken, when it sleeps,
//! and what a queue keeps when its settings change.

use std::sync::Arc;

use schedule::{Gate, Limited, Meters, Policy, Rate, SHARE_USUAL};

use super::bed::*;
use crate::{Command, QueueCounters, Service};

const MS: u64 = 1_000_000;
/// Requests that each guest always has there.
const DEPTH: usize = 8;

fn requests(per_s: u64) -> Option<Arc<Meters>> {
    Meters::new(Some(Rate { per_s, burst_ns: 4 * MS }), None)
}

fn gate(device: Option<Arc<Meters>>, group: Option<Arc<Meters>>) -> Option<Box<Gate>> {
    Gate::new(Limited { device, group }).map(Box::new)
}

fn service(policy: Policy, device: Option<Arc<Meters>>) -> Service {
    Service {
        share: SHARE_USUAL,
        policy,
        target_ns: None,
        moderate_ns: 0,
        gate: gate(device, None),
    }
}

/// Takes what was answered and asks for the same again. How many that were.
fn again(guest: &mut Guest) -> usize {
    let taken = guest.take();
    for (number, status) in &taken {
        assert_eq!(*status, 0);
        guest.add(*number, READ, sector(*number), 1);
    }
    if !taken.is_empty() && guest.driver.publish() {
        guest.kick();
    }
    taken.len()
}

/// Passes of 1 us for so many milliseconds.
fn run(cores: &mut [&mut Core], guests: &mut [&mut Guest], ms: u32) -> Vec<usize> {
    let mut counts = vec![0; guests.len()];
    for _ in 0..ms * 1000 {
        for core in cores.iter_mut() {
            core.pass();
        }
        for (count, guest) in counts.iter_mut().zip(guests.iter_mut()) {
            *count += again(guest);
        }
    }
    counts
}

#[test]
fn a_disk_keeps_to_its_requests_and_its_bytes() {
    let rate = Rate { per_s: 4096 * 10_000, burst_ns: 4 * MS };
    let bytes = || Meters::new(None, Some(rate));
    for (limit, disk) in [(requests(10_000), null()), (bytes(), null()), (bytes(), memory())] {
        let mut guest = Guest::new(ring(64));
        let mut core = Core::new(1);
        let spec = guest.spec(1, &disk);
        core.attach(&guest, crate::ServedSpec { gate: gate(limit, None), ..spec });
        guest.ask(DEPTH, READ);
        // The burst is had in the first millisecond.
        run(&mut [&mut core], &mut [&mut guest], 10);
        let counts = run(&mut [&mut core], &mut [&mut guest], 100);
        assert!((990..=1010).contains(&counts[0]), "{counts:?} in 100 ms of 10,000 a second");
    }
}

#[test]
fn a_group_is_shared_by_disks_on_two_sidecores() {
    let group = requests(20_000);
    let (mut a, mut b) = (Guest::new(ring(64)), Guest::new(ring(64)));
    let (mut one, mut other) = (Core::new(1), Core::numbered(1, 1));
    for (core, guest) in [(&mut one, &a), (&mut other, &b)] {
        let spec = guest.spec(1, &null());
        core.attach(guest, crate::ServedSpec { gate: gate(None, group.clone()), ..spec });
    }
    a.ask(DEPTH, READ);
    b.ask(DEPTH, READ);
    run(&mut [&mut one, &mut other], &mut [&mut a, &mut b], 10);
    let counts = run(&mut [&mut one, &mut other], &mut [&mut a, &mut b], 100);
    let sum: usize = counts.iter().sum();
    assert!((1980..=2020).contains(&sum), "{counts:?}");
    assert!(counts.iter().all(|count| (950..=1050).contains(count)), "{counts:?}");
}

#[test]
fn it_sleeps_until_a_limit_is_due_and_goes_on_without_a_kick() {
    let mut guest = Guest::new(ring(64));
    let mut core = Core::new(1);
    let spec = guest.spec(1, &null());
    core.attach(&guest, crate::ServedSpec { gate: gate(requests(1000), None), ..spec });
    guest.ask(DEPTH, READ);
    // A burst of 4, and then one a millisecond.
    assert_eq!(core.passes(100), 4);
    assert!(core.rest(), "the only queue waits for its limit");
    assert_eq!(guest.take_ok(), 4);
    assert_eq!(core.pass().requests, 0, "the time is made up: nothing is due");
    core.now = core.now.after(2 * MS);
    assert!(!core.rest(), "it is due");
    assert!(core.pass().requests > 0);
}

/// How often its queue waited for a limit, and how long: for any, and for that of its group.
fn held(counters: &QueueCounters) -> [u64; 4] {
    let counts = counters.snapshot();
    [counts.held, counts.held_ns, counts.group_held, counts.group_held_ns]
}

#[test]
fn waits_for_a_limit_are_counted_for_who_set_it() {
    let mut guests = [0; 4].map(|_| Guest::new(ring(64)));
    let mut core = Core::new(4);
    let bytes = Meters::new(None, Some(Rate { per_s: 4096 * 1000, burst_ns: 4 * MS }));
    let of_group = gate(requests(100_000), requests(1000));
    let gates = [gate(requests(1000), None), gate(bytes, None), of_group, None];
    let guests_and_gates = (1..).zip(guests.iter().zip(gates));
    let counters: Vec<_> = guests_and_gates
        .map(|(number, (guest, gate))| {
            let spec = guest.spec(number, &null());
            core.attach(guest, crate::ServedSpec { gate, ..spec })
        })
        .collect();
    guests.iter_mut().for_each(|guest| guest.ask(DEPTH, READ));
    run(&mut [&mut core], &mut guests.each_mut(), 100);
    let [own, of_bytes, of_group, free] = [0, 1, 2, 3].map(|at| held(&counters[at]));
    assert_eq!(free, [0; 4]);
    assert_eq!([&own[2..], &of_bytes[2..]], [[0; 2]; 2], "they are in no group");
    assert_eq!(of_group[..2], of_group[2..], "its own limit is no hindrance");
    for [times, ns, ..] in [own, of_bytes, of_group] {
        // A request a millisecond, or two in two, and the last wait is not over.
        assert!((48..=100).contains(&times), "{times} waits");
        assert!((97 * MS..=100 * MS).contains(&ns), "{ns} ns in {times} waits");
    }
}

#[test]
fn a_wait_counts_until_it_is_over_for_whatever_reason() {
    let mut guest = Guest::new(ring(64));
    let mut core = Core::new(1);
    let spec = guest.spec(1, &null());
    let counters =
        core.attach(&guest, crate::ServedSpec { gate: gate(requests(10), None), ..spec });
    guest.ask(1, READ);
    core.passes(10);
    assert_eq!((guest.take_ok(), held(&counters)), (1, [0; 4]), "it has nothing that waits");
    guest.ask(2, READ);
    core.passes(10);
    assert_eq!(held(&counters)[0], 0, "it waits");
    core.now = core.now.after(100 * MS);
    core.passes(10);
    let [times, first_ns, ..] = held(&counters);
    assert_eq!(times, 1);
    assert!((100 * MS..=101 * MS).contains(&first_ns), "{first_ns} ns");
    // Without a limit, or a queue, nothing waits.
    guest.take();
    guest.ask(DEPTH, READ);
    core.passes(10);
    core.now = core.now.after(7 * MS);
    core.send(Command::SetService(key(1), service(Policy::Adaptive, requests(5))));
    core.passes(10);
    let [times, second_ns, ..] = held(&counters);
    assert_eq!(times, 2);
    assert!((7 * MS..8 * MS).contains(&(second_ns - first_ns)), "{second_ns} ns");
    core.now = core.now.after(9 * MS);
    core.detach(1);
    core.passes(10);
    let [times, third_ns, ..] = held(&counters);
    assert_eq!(times, 3);
    assert!((9 * MS..10 * MS).contains(&(third_ns - second_ns)), "{third_ns} ns");
}

#[test]
fn another_limit_takes_effect_at_once_and_the_same_one_changes_nothing() {
    let mut guest = Guest::new(ring(64));
    let mut core = Core::new(1);
    let limit = requests(10);
    let spec = guest.spec(1, &null());
    core.attach(&guest, crate::ServedSpec { gate: gate(limit.clone(), None), ..spec });
    guest.ask(DEPTH, READ);
    assert_eq!(core.passes(100), 1);
    for policy in [Policy::Poll, Policy::Notify, Policy::Adaptive] {
        core.send(Command::SetService(key(1), service(policy, limit.clone())));
        assert_eq!(core.passes(100), 0, "{policy:?}: no second burst");
    }
    core.send(Command::SetService(key(1), service(Policy::Adaptive, requests(1000))));
    assert_eq!(core.passes(100), 4);
    core.send(Command::SetService(key(1), service(Policy::Adaptive, None)));
    assert_eq!(core.passes(2), 3);
    assert_eq!(guest.take_ok(), 8);
    // While it waits it can leave, and nothing is left of it.
    core.send(Command::SetService(key(1), service(Policy::Adaptive, requests(10))));
    guest.ask(DEPTH, READ);
    assert_eq!(core.passes(100), 1);
    core.detach(1);
    core.now = core.now.after(1000 * MS);
    assert_eq!(core.passes(100), 0);
}

#[test]
fn an_armed_queue_that_is_to_be_polled_is_looked_at_and_disarmed() {
    let mut guest = Guest::new(ring(64));
    let mut core = Core::new(1);
    core.attach(&guest, guest.spec(1, &null()));
    guest.ask(1, READ);
    core.pass();
    assert_eq!(guest.take_ok(), 1);
    core.idle();
    // Its kicks are on, and this one gets lost.
    guest.add(0, READ, 0, 1);
    assert!(guest.driver.publish());
    assert_eq!(core.passes(2), 0);
    core.send(Command::SetService(key(1), service(Policy::Poll, None)));
    assert_eq!(core.passes(2), 1);
    assert_eq!(guest.take_ok(), 1);
    core.idle();
    guest.add(0, READ, 0, 1);
    assert!(!guest.driver.publish(), "a polled queue asks for no kicks");
    core.pass();
    assert_eq!(guest.take_ok(), 1);
    // And back again: it is armed when it has been idle for long enough.
    core.send(Command::SetService(key(1), service(Policy::Adaptive, None)));
    core.idle();
    guest.add(0, READ, 0, 1);
    assert!(guest.driver.publish());
}

#[test]
fn what_is_large_or_wrong_is_counted_too() {
    let mut guest = Guest::new(ring(64));
    let mut core = Core::new(1);
    let spec = guest.spec(1, &memory());
    core.attach(&guest, crate::ServedSpec { gate: gate(requests(1000), None), ..spec });
    // No such kind: answered with an error, and no less work than others.
    for number in 0..DEPTH {
        guest.add(number, 99, 0, 1);
    }
    guest.driver.publish();
    core.passes(100);
    assert_eq!(guest.take().len(), 4);
    // 15 MiB at once, of 15 MiB a second: the next one a second later.
    let bytes = Meters::new(None, Some(Rate { per_s: 15 << 20, burst_ns: 4 * MS }));
    core.send(Command::SetService(key(1), service(Policy::Adaptive, None)));
    core.passes(2);
    guest.take();
    core.send(Command::SetService(key(1), service(Policy::Adaptive, bytes)));
    let data = virtqueue::driver::Buffer { gpa: SPARE_AT, len: 15 << 20, device_writes: true };
    for number in 0..2 {
        guest.add_over(number, READ, 0, &[data]);
    }
    guest.driver.publish();
    core.passes(100);
    assert_eq!(guest.take_ok(), 1);
    // It is paid for a millisecond at a time, so that others of its group are not kept waiting.
    for _ in 0..980 {
        core.now = core.now.after(MS);
        core.passes(3);
    }
    assert_eq!(guest.take_ok(), 0);
    for _ in 0..20 {
        core.now = core.now.after(MS);
        core.passes(3);
    }
    core.passes(100);
    assert_eq!(guest.take_ok(), 1);
}
