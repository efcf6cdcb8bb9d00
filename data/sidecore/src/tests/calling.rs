//! Calls through descriptors that their front-end made to block.

use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use virtqueue::Violation;

use super::bed::*;
use crate::Event;

/// What a pass may take in which a call waited. A tick is 10 ms; a call that nothing ends never returns, so where
/// times are not judged (`JUDGE_TIMES`) a slow machine is no failure.
fn pass_max() -> Duration {
    let judged = std::env::var_os("JUDGE_TIMES").is_some_and(|value| !value.is_empty());
    if judged { Duration::from_millis(50) } else { Duration::from_secs(60) }
}

/// Fills the call's counter and makes it block, as its front-end can at any time.
fn block_calls(guest: &Guest) {
    rustix::fs::fcntl_setfl(&guest.call, OFlags::RDWR).unwrap();
    guest.calls_nothing();
    rustix::io::write(&guest.call, &(u64::MAX - 1).to_ne_bytes()).unwrap();
}

impl Guest {
    /// Empties the call's counter without waiting.
    fn calls_nothing(&self) {
        let flags = rustix::fs::fcntl_getfl(&self.call).unwrap();
        rustix::fs::fcntl_setfl(&self.call, flags | OFlags::NONBLOCK).unwrap();
        self.calls();
        rustix::fs::fcntl_setfl(&self.call, flags).unwrap();
    }
}

#[expect(clippy::disallowed_methods, reason = "what is tested is how long it takes")]
fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = act();
    (result, start.elapsed())
}

#[test]
fn a_call_that_would_wait_ends_soon_latches_its_queue_and_no_other() {
    let (mut bad, mut good) = (Guest::new(ring(16)), Guest::new(ring(16)));
    let mut core = Core::new(2);
    core.attach(&bad, bad.spec(1, &null()));
    core.attach(&good, good.spec(2, &null()));
    block_calls(&bad);
    for guest in [&mut bad, &mut good] {
        guest.ask(1, READ);
    }
    let (progress, took) = timed(|| core.pass());
    assert_eq!(progress.requests, 2);
    assert!(took < pass_max(), "{took:?}");
    assert_eq!((good.take_ok(), good.calls()), (1, 1));
    assert!(
        matches!(
            core.events()[..],
            [Event::Failed { key: failed, violation: Violation::CallBlocked }] if failed == key(1)
        ),
        "the front-end of queue 1 blocked its calls"
    );
    // It is not called again, and nothing of it is taken.
    bad.take_ok();
    bad.add(0, READ, 0, 1);
    bad.driver.publish();
    for _ in 0..20 {
        good.ask(1, READ);
        let (progress, took) = timed(|| core.pass());
        assert_eq!(progress.requests, 1);
        assert!(took < pass_max(), "{took:?}");
        assert_eq!(good.take_ok(), 1);
    }
    assert!(core.events().is_empty(), "it is reported once");
    core.detach(1);
}

#[test]
fn all_queues_of_one_front_end_wait_for_one_tick_and_no_more() {
    // Eight queues of one device share its memory, and so its health.
    let mut guest = Guest::new(ring(16));
    let mut core = Core::new(8);
    let disk = null();
    block_calls(&guest);
    let queues: Vec<_> = (0..8)
        .map(|device| {
            let spec = guest.spec(device, &disk);
            crate::Served::new(spec)
        })
        .collect();
    let ((), took) = timed(|| {
        for served in queues {
            core.send(crate::Command::Attach(served));
        }
        core.passes(4);
    });
    // Each attach calls the guest.
    assert!(took < pass_max(), "{took:?}");
    assert_eq!(core.events().len(), 8, "each is latched");
    guest.ask(1, READ);
    assert_eq!(core.passes(4), 0);
}

#[test]
fn a_full_call_that_does_not_block_is_a_call_on_its_way() {
    let mut guest = Guest::new(ring(16));
    let mut core = Core::new(1);
    core.attach(&guest, guest.spec(1, &null()));
    rustix::io::write(&guest.call, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    for _ in 0..20 {
        guest.ask(1, READ);
        core.pass();
        assert_eq!(guest.take_ok(), 1);
    }
    assert!(core.events().is_empty());
}

#[test]
fn a_descriptor_that_blocks_is_found_when_it_is_set_too() {
    let guest = Guest::new(ring(16));
    let mut core = Core::new(1);
    core.attach(&guest, guest.spec(1, &null()));
    block_calls(&guest);
    let call = guest.call.try_clone().unwrap();
    core.send(crate::Command::SetCall(key(1), Some(call)));
    let (_, took) = timed(|| core.pass());
    assert!(took < pass_max(), "{took:?}");
    assert!(matches!(core.events()[..], [Event::Failed { violation: Violation::CallBlocked, .. }]));
}

#[test]
fn the_tick_after_a_call_finds_an_idle_sidecore_asleep_and_does_not_come_again() {
    let mut guest = Guest::new(ring(16));
    let mut core = Core::new(1);
    core.attach(&guest, guest.spec(1, &null()));
    assert!(core.sidecore.alarm.is_running(), "attach called");
    core.idle();
    // Nothing but the tick ends this sleep.
    let (slept, took) = timed(|| core.rest());
    assert!(slept && took < pass_max(), "{took:?}");
    assert!(!core.sidecore.alarm.is_running());
    assert!(core.pass().is_idle());
    guest.ask(1, READ);
    assert!(core.rest());
    core.pass();
    assert_eq!(guest.take_ok(), 1);
    assert!(core.sidecore.alarm.is_running(), "it called again");
}
