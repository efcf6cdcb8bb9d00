//! Which requests a fault is meant for, and when their answers come.

use super::*;

fn plan() -> FaultPlan {
    FaultPlan {
        delay_ns: 0,
        jitter_ns: 0,
        errors_per_million: 0,
        ops: Ops::ALL,
        range: 0..u64::MAX,
        seed: 7,
        queue: 0,
        counts: Arc::default(),
    }
}

fn read(offset: u64) -> Request<'static> {
    Request { op: Op::Read, offset, len: 4096, segments: &[] }
}

#[test]
fn the_same_seed_is_the_same_faults_and_another_queue_has_others() {
    let fates = |seed, queue| {
        let plan = FaultPlan { seed, queue, errors_per_million: 100_000, jitter_ns: 999, ..plan() };
        let mut faults = Faults::new(plan, 1);
        (0..10_000).map(|_| faults.judge(&read(0))).collect::<Vec<_>>()
    };
    assert_eq!(fates(1, 0), fates(1, 0));
    assert_ne!(fates(1, 0), fates(2, 0));
    assert_ne!(fates(1, 0), fates(1, 1));
    let failed = fates(1, 0).iter().filter(|fate| fate.fails).count();
    assert!((800..1_200).contains(&failed), "one in ten: {failed}");
    let delays: Vec<u64> = fates(1, 0).iter().map(|fate| fate.delay_ns).collect();
    assert!(delays.iter().all(|delay| *delay <= 999));
    let mean = delays.iter().sum::<u64>() / 10_000;
    assert!((480..520).contains(&mean), "evenly: {mean}");
}

#[test]
fn all_and_none_are_what_they_say_and_are_counted() {
    let all = FaultPlan { errors_per_million: MILLION, delay_ns: 5, ..plan() };
    let counts = Arc::clone(&all.counts);
    let mut faults = Faults::new(all, 1);
    for _ in 0..1_000 {
        assert_eq!(faults.judge(&read(0)), Fate { fails: true, delay_ns: 5 });
    }
    assert_eq!((counts.failed(), counts.delayed()), (1_000, 0), "none is answered yet");
    let mut faults = Faults::new(plan(), 1);
    for _ in 0..1_000 {
        assert_eq!(faults.judge(&read(0)), Fate::default());
    }
}

#[test]
fn what_is_not_meant_is_left_alone() {
    let ops = Ops { read: true, ..Ops { read: false, write: false, flush: true, discard: false } };
    let some = FaultPlan { delay_ns: 1, ops, range: 8192..12_288, ..plan() };
    let mut faults = Faults::new(some, 1);
    let mut meant =
        |op, offset, len| faults.judge(&Request { op, offset, len, segments: &[] }).delay_ns == 1;
    assert!(!meant(Op::Read, 0, 8192), "ends where it begins");
    assert!(meant(Op::Read, 0, 8193) && meant(Op::Read, 12_287, 512));
    assert!(!meant(Op::Read, 12_288, 512));
    assert!(!meant(Op::Write { sync: false }, 8192, 512));
    assert!(meant(Op::Flush, 0, 0), "a flush touches all");
    assert!(!meant(Op::Discard, 8192, 512));
}

#[test]
fn answers_come_in_the_order_of_their_time() {
    let mut faults = Faults::new(plan(), 4);
    faults.hold(30, 1, Status::Ok);
    faults.hold(10, 2, Status::IoError);
    faults.hold(20, 3, Status::Unsupported);
    assert_eq!((faults.take_due(9, 9), faults.next_due()), (None, Some(10)));
    assert_eq!(faults.take_due(25, 25), Some((2, Status::IoError)));
    assert_eq!(faults.take_due(25, 25), Some((3, Status::Unsupported)));
    assert_eq!((faults.take_due(25, 25), faults.next_due()), (None, Some(30)));
    assert_eq!(faults.take_due(u64::MAX, 25), Some((1, Status::Ok)));
    assert_eq!(faults.next_due(), None);
}

#[test]
fn only_what_is_answered_at_its_time_has_been_delayed() {
    let plan = plan();
    let counts = Arc::clone(&plan.counts);
    let mut faults = Faults::new(plan, 4);
    (1..5).for_each(|slot| faults.hold(u64::from(slot) * 10, slot, Status::Ok));
    assert_eq!((faults.held(), counts.delayed()), (4, 0));
    assert!(faults.take_due(10, 10).is_some() && faults.take_due(25, 25).is_some());
    assert_eq!((faults.held(), counts.delayed()), (2, 2));
    // Its queue goes, and a third one is late as it is.
    assert!((0..2).all(|_| faults.take_due(u64::MAX, 30).is_some()));
    assert_eq!((faults.held(), counts.delayed()), (0, 3));
}
