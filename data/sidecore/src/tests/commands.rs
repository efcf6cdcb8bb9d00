//! Attach, detach, another call descriptor, the end; and rings that are full.

use virtqueue::driver::{RingSpec, first_base};
use virtqueue::{Chain, Format};

use super::bed::*;
use crate::commands::COMMANDS_PER_PASS;
use crate::inbox::INBOX_SIZE;
use crate::rest::eventfd;
use crate::{Command, Event, Refusal, Served};

#[test]
fn a_queue_goes_on_where_it_was_after_detach_and_attach() {
    let mut guest = Guest::new(ring(512));
    let disk = memory();
    let mut core = Core::new(1);
    let counters = core.attach(&guest, guest.spec(1, &disk));
    guest.ask(100, WRITE);
    core.pass();
    assert_eq!(guest.take_ok(), 32);
    let mut spec = core.detach(1).into_spec();
    assert_eq!(core.passes(10), 0, "nobody serves it");
    assert_eq!(guest.take_ok(), 0);
    spec.queue = guest.queue(spec.queue.base());
    core.attach(&guest, spec);
    core.passes(3);
    assert_eq!(guest.take_ok(), 68);
    assert_eq!(counters.snapshot().requests, 100);
}

/// Where a ring stands is told of it; what a dead process has left only the record tells.
#[test]
fn what_is_left_is_taken_before_a_queue_that_finishes_is_given_back() {
    for format in [Format::Split, Format::Packed] {
        let mut guest = Guest::new(RingSpec { format, ..ring(16) });
        let disk = memory();
        let base = first_base(format);
        guest.ask(3, WRITE);
        let mut dead = guest.recorded_queue(base);
        let mut chain = Chain::default();
        for _ in 0..3 {
            assert!(dead.peek(&guest.map, &mut chain));
            std::mem::forget(dead.advance(&chain));
        }
        drop(dead);
        let mut core = Core::new(1);
        let served = || {
            let mut spec = guest.spec(1, &disk);
            spec.queue = guest.recorded_queue(base);
            Served::new(spec)
        };
        // Whoever has the record needs nothing to be done, nor does one who asked for it wait for that.
        let in_vain = [vec![], vec![Command::Finish(key(1))]];
        for before in in_vain {
            core.send(Command::Attach(served()));
            before.into_iter().for_each(|command| core.send(command));
            core.send(Command::Detach(key(1)));
            core.pass();
            assert_eq!(detached(core.events(), 1).queue().left(), 3, "{format:?}");
        }
        core.send(Command::Attach(served()));
        core.send(Command::Finish(key(1)));
        core.pass();
        let back = detached(core.events(), 1);
        assert_eq!((guest.take_ok(), back.queue().left()), (3, 0), "{format:?}");
        guest.ask(2, WRITE);
        // Whoever is told that base, and no record, does the rest.
        let mut spec = guest.spec(1, &disk);
        spec.queue = guest.queue(back.queue().base());
        core.attach(&guest, spec);
        core.passes(2);
        assert_eq!(guest.take_ok(), 2, "{format:?}");
    }
}

#[test]
fn a_guest_is_called_when_its_queue_is_attached() {
    let guest = Guest::new(ring(16));
    let mut core = Core::new(1);
    core.send(Command::Attach(Served::new(guest.spec(1, &null()))));
    core.pass();
    assert_eq!(guest.calls(), 1, "a call may have been lost between two owners");
}

#[test]
fn another_call_descriptor_is_used_from_its_command_on() {
    let mut guest = Guest::new(ring(16));
    let mut core = Core::new(1);
    core.attach(&guest, guest.spec(1, &null()));
    let new = eventfd().unwrap();
    core.send(Command::SetCall(key(1), Some(new.try_clone().unwrap())));
    core.pass();
    assert_eq!((guest.calls(), count(&new)), (0, 1), "a call may have gone to the old one");
    assert!(!guest.driver.arm_calls());
    guest.ask(1, READ);
    core.pass();
    assert_eq!((guest.calls(), count(&new)), (0, 1));
    core.send(Command::SetCall(key(1), None));
    guest.take_ok();
    assert!(!guest.driver.arm_calls());
    guest.ask(1, READ);
    core.pass();
    assert_eq!((guest.take_ok(), guest.calls(), count(&new)), (1, 0, 0));
}

#[test]
fn a_queue_for_which_there_is_no_place_comes_back() {
    let (mut first, second) = (Guest::new(ring(16)), Guest::new(ring(16)));
    let mut core = Core::new(1);
    core.attach(&first, first.spec(1, &null()));
    core.attach(&second, second.spec(2, &null()));
    let events = core.events();
    assert!(
        matches!(&events[..], [Event::Refused(served, Refusal::NoPlace)] if served.key() == key(2)),
        "{events:?}"
    );
    first.ask(1, READ);
    core.pass();
    assert_eq!(first.take_ok(), 1);
    drop(core.detach(1));
    core.attach(&second, second.spec(2, &null()));
    assert_eq!(core.detach(2).key(), key(2), "the place is free again");
}

#[test]
fn a_detach_is_answered_once_and_an_unknown_one_not_at_all() {
    let guest = Guest::new(ring(16));
    let mut core = Core::new(1);
    core.attach(&guest, guest.spec(1, &null()));
    core.send(Command::Detach(key(7)));
    core.send(Command::Detach(key(1)));
    core.send(Command::Detach(key(1)));
    core.pass();
    assert_eq!(detached(core.events(), 1).key(), key(1));
    assert_eq!(core.handle.counters().queues, 0);
}

#[test]
fn stop_gives_every_queue_back_and_ends() {
    let guests: Vec<Guest> = (0..3).map(|_| Guest::new(ring(16))).collect();
    let mut core = Core::new(3);
    for (device, guest) in guests.iter().enumerate() {
        core.attach(guest, guest.spec(device as u32, &memory()));
    }
    assert!(!core.sidecore.has_ended());
    core.send(Command::Stop);
    core.pass();
    assert!(core.sidecore.has_ended());
    let mut back: Vec<u32> = core
        .events()
        .into_iter()
        .map(|event| match event {
            Event::Detached(served) => served.key().device,
            other => panic!("{other:?}"),
        })
        .collect();
    back.sort_unstable();
    assert_eq!(back, [0, 1, 2]);
}

#[test]
fn a_pass_takes_few_commands_and_a_full_inbox_gives_back() {
    let mut core = Core::new(1);
    for device in 0..INBOX_SIZE as u32 {
        core.send(Command::Detach(key(device)));
    }
    let refused = core.handle.send(Command::Detach(key(4_000)));
    assert!(matches!(refused, Err(Command::Detach(given)) if given == key(4_000)));
    assert_eq!(core.pass().commands as usize, COMMANDS_PER_PASS);
    core.send(Command::Detach(key(4_000)));
}

#[test]
fn events_that_do_not_fit_wait_and_come_in_their_order() {
    let guest = Guest::new(ring(1));
    let disk = null();
    let mut core = Core::new(0);
    let attached = INBOX_SIZE + 10;
    for device in 0..attached {
        core.send(Command::Attach(Served::new(guest.spec(device as u32, &disk))));
        core.pass();
    }
    assert!(!core.rest(), "an event waits");
    let mut came = Vec::new();
    for _ in 0..2 {
        came.extend(core.events());
        core.pass();
    }
    came.extend(core.events());
    let devices: Vec<u32> = came
        .into_iter()
        .map(|event| match event {
            Event::Refused(served, _) => served.key().device,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(devices, (0..attached as u32).collect::<Vec<u32>>());
}
