//! Shards of one link: numbers say which shard has made them, and a device that another shard has is waited for.

use super::*;
use crate::iohost::{SHARDS_MAX, shard_of};

/// What a shard wants to have opened, if that is what it says next.
fn asks(pair: &mut Pair) -> Option<u64> {
    match pair.host.next_event() {
        Some(HostEvent::Open { generation, .. }) => Some(generation),
        Some(HostEvent::SessionBegan { .. }) => asks(pair),
        other => {
            assert_eq!(other, None);
            None
        }
    }
}

/// Says it, and nobody does yet what the shard wants.
fn say(rogue: &mut Rogue, pair: &mut Pair, bind: Bind) {
    let mut frame = rogue.frame(pair.now, &[Record::Bind(bind)]);
    assert!(pair.host.receive(pair.now, &mut frame, &mut |_, _| {}));
}

#[test]
fn numbers_of_sessions_say_whose_shard_made_them() {
    for shard in 0..SHARDS_MAX {
        for instance in [0, 0xffff, 0xabcd_ef01_2345_0fff] {
            let spec = HostSpec { shard: shard as u8, instance, ..HOST };
            let mut host: Host<Shared> = Host::new(spec);
            let mut before = None;
            for _ in 0..5_000 {
                let number = host.reserve(0, &[7; 32]).expect("a number");
                assert_eq!(shard_of(number), shard);
                assert_ne!(Some(number), before, "another one each time");
                before = Some(number);
                host.cancel(number);
            }
        }
    }
}

#[test]
fn a_device_that_another_shard_has_is_waited_for() {
    let mut pair = Pair::new(10_000);
    pair.host.elsewhere(0, 7);
    let mut rogue = Rogue::new(&mut pair);
    assert!(rogue.say(&mut pair, &[Record::Bind(bind(1))]));
    assert!(rogue.say(&mut pair, &[Record::Ping]));
    assert_eq!((&rogue.heard[..], pair.memory.len()), (&[][..], 0), "nothing yet");
    // A second one is told to come again, as when a client has it here.
    let mut second = Rogue::new(&mut pair);
    second.say(&mut pair, &[Record::Bind(Bind { instance: 5, ..bind(1) })]);
    assert!(second.heard[0].contains("Busy"), "{:?}", second.heard);
    pair.host.comes_free(0);
    pair.host.comes_free(0);
    pair.work();
    rogue.say(&mut pair, &[Record::Ping]);
    let heard = &rogue.heard[0];
    assert!(heard.contains("Fresh") && heard.contains("generation: 8"), "{heard}");
    // News that come late change nothing for who has it.
    pair.host.elsewhere(0, 8);
    pair.host.comes_free(0);
    assert!(rogue.say(&mut pair, &[Record::Part(part(1, 4, 0, b"abcd", b"abcd"))]));
    assert_eq!(pair.writes(), [b'a']);
}

/// Both shards have asked: each has one answer, and who has to wait waits on.
#[test]
fn a_question_has_one_answer_whatever_news_come_meanwhile() {
    let mut pair = Pair::new(10_000);
    let mut rogue = Rogue::new(&mut pair);
    say(&mut rogue, &mut pair, bind(1));
    assert_eq!(asks(&mut pair), Some(1));
    pair.host.elsewhere(0, 1);
    pair.host.comes_free(0);
    assert_eq!((asks(&mut pair), pair.host.memory_used()), (None, 64 << 10));
    pair.host.refer(0, 1);
    assert_eq!((asks(&mut pair), pair.host.memory_used()), (None, 0));
    pair.host.opened(0, Err(()));
    pair.host.comes_free(0);
    assert_eq!((asks(&mut pair), pair.host.memory_used()), (Some(2), 64 << 10));
    // There is no memory at the other shards' cost.
    pair.host.busy(0);
    assert_eq!((asks(&mut pair), pair.host.memory_used()), (None, 0));
    rogue.hear(&mut pair);
    assert!(rogue.heard[0].contains("Busy"), "{:?}", rogue.heard);
    pair.host.busy(0);
    assert_eq!(rogue.heard.len(), 1);
}

#[test]
fn who_had_it_before_another_shard_is_refused_for_good() {
    let mut pair = Pair::new(10_000);
    let mut rogue = Rogue::bound(&mut pair);
    rogue.say(&mut pair, &[Record::Release { handle: HANDLE }]);
    pair.host.elsewhere(0, 2);
    pair.host.comes_free(0);
    let again = |binding, generation| Bind { intent: Intent::Again, generation, ..bind(binding) };
    rogue.heard.clear();
    rogue.say(&mut pair, &[Record::Bind(again(2, 1))]);
    assert!(rogue.heard[0].contains("Stale"), "{:?}", rogue.heard);
    // Who had it there is known by its generation alone.
    let mut other = Rogue::new(&mut pair);
    other.say(&mut pair, &[Record::Bind(Bind { instance: 5, ..again(1, 2) })]);
    other.say(&mut pair, &[Record::Ping]);
    let heard = &other.heard[0];
    assert!(heard.contains("Fresh") && heard.contains("generation: 2"), "{heard}");
}
