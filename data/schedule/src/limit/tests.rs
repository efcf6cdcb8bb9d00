//! Takers of one limit, simulated from a seed: never above what is promised, and not below the rate.

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const WHOLE: Budget = Budget { requests: 32, bytes: 1 << 20, nanos: u64::MAX };

/// One queue with a guest that always, or sometimes, has requests of one size.
struct Taker {
    gate: Gate,
    bytes: u64,
    /// Requests in flight at most.
    depth: u32,
    /// How long one takes.
    answer_ns: u64,
    /// When each of those in flight is answered.
    in_flight: Vec<Nanos>,
    wakes: Nanos,
    /// When it was told to wait.
    told: Option<Nanos>,
    /// When it took how much.
    log: Vec<(Nanos, u64)>,
}

impl Taker {
    fn new(limited: Limited, bytes: u64, depth: u32, answer_ns: u64) -> Taker {
        let gate = Gate::new(limited).unwrap();
        let (in_flight, wakes, log) = (Vec::new(), Nanos(0), Vec::new());
        Taker { gate, bytes, depth, answer_ns, in_flight, wakes, told: None, log }
    }

    /// One visit, as a sidecore makes it.
    fn visit(&mut self, now: Nanos) {
        self.in_flight.retain(|answered| *answered > now);
        let waiting = self.depth - self.in_flight.len() as u32;
        if self.wakes > now || waiting == 0 {
            return;
        }
        let waited = self.gate.end_wait(now).map(|waited| waited.ns);
        assert_eq!(waited, self.told.take().map(|since| now.since(since)));
        let budget = match self.gate.admit(WHOLE, now) {
            Admission::Wait(until) => {
                assert!(until > now);
                self.told = Some(now);
                self.wakes = until;
                return;
            }
            Admission::Go(budget) => budget,
        };
        assert!(budget.requests > 0 && budget.bytes > 0);
        let (mut requests, mut bytes) = (0, 0);
        while requests < budget.requests.min(waiting) && bytes < budget.bytes {
            (requests, bytes) = (requests + 1, bytes + self.bytes);
            self.in_flight.push(now.after(self.answer_ns));
            self.log.push((now, self.bytes));
        }
        self.gate.charge(requests, bytes, requests < waiting, now);
    }
}

/// Random numbers that are the same each time (xorshift, Marsaglia 2003).
struct Seed(u64);

impl Seed {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Visits in random order with random pauses below `pause_ns_max`, for so many seconds.
fn run(takers: &mut [Taker], seconds: u64, pause_ns_max: u64, seed: &mut Seed) {
    let mut now = Nanos(0);
    while now.0 < seconds * SECOND {
        now = now.after(1 + seed.below(pause_ns_max));
        // Not in turn: a sidecore may be late.
        let first = seed.below(takers.len() as u64) as usize;
        takers[first..].iter_mut().for_each(|taker| taker.visit(now));
        takers[..first].iter_mut().for_each(|taker| taker.visit(now));
    }
}

/// The most, and after `warm` the least, that all took in any window of one second that begins with
/// one of them.
fn windows(takers: &[Taker], units: fn(u64) -> u64, seconds: u64) -> (u64, u64) {
    let mut all: Vec<(Nanos, u64)> = takers.iter().flat_map(|taker| taker.log.clone()).collect();
    all.sort_unstable();
    let (mut most, mut least, mut sum, mut first) = (0, u64::MAX, 0, 0);
    for (at, size) in &all {
        sum += units(*size);
        while all[first].0.after(SECOND) <= *at {
            if all[first].0 >= Nanos(SECOND) && at.0 < seconds * SECOND {
                least = least.min(sum - units(*size));
            }
            sum -= units(all[first].1);
            first += 1;
        }
        most = most.max(sum);
    }
    (most, least)
}

fn requests(per_s: u64, burst_ms: u64) -> Option<Arc<Meters>> {
    Meters::new(Some(Rate { per_s, burst_ns: burst_ms * MS }), None)
}

fn bytes(per_s: u64, burst_ms: u64) -> Option<Arc<Meters>> {
    Meters::new(None, Some(Rate { per_s, burst_ns: burst_ms * MS }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn requests_keep_to_the_rate_in_every_second(
        per_s in 200..40_000u64, burst_ms in 4..200u64, count in 1..9u32, depth in 1..64u32,
        pause_ns in 1000..400_000u64, seed in 1..u64::MAX,
    ) {
        let device = requests(per_s, burst_ms);
        let limited = Limited { device, group: None };
        // Enough in flight, or enough takers, for the rate: otherwise it is not the limit that counts.
        let mut takers: Vec<Taker> =
            (0..count).map(|_| Taker::new(limited.clone(), 4096, depth.max(8), 0)).collect();
        run(&mut takers, 4, pause_ns, &mut Seed(seed));
        let (most, least) = windows(&takers, |_| 1, 4);
        let (burst, chunk) = (per_s * burst_ms / 1000, per_s.div_ceil(1000));
        let promised = per_s + burst.max(chunk) + u64::from(count) * chunk + 1;
        prop_assert!(most <= promised, "{most} in a second, promised at most {promised}");
        // Over whole seconds; a window that begins at a visit may leave out what one visit takes.
        let slack = per_s / 100 + u64::from(count) * chunk + 1;
        prop_assert!(least + slack >= per_s, "{least} in a second of {per_s}");
        let total: u64 = takers.iter().map(|taker| taker.log.len() as u64).sum();
        prop_assert!(total + slack >= 4 * per_s, "{total} in 4 s of {per_s}");
    }

    #[test]
    fn bytes_keep_to_the_rate_whatever_the_requests_are(
        mib_per_s in 8..2000u64, burst_ms in 4..200u64,
        sizes in prop::collection::vec(512..2_000_000u64, 1..6),
        pause_ns in 1000..100_000u64, seed in 1..u64::MAX,
    ) {
        let per_s = mib_per_s << 20;
        let limited = Limited { device: bytes(per_s, burst_ms), group: None };
        let mut takers: Vec<Taker> =
            sizes.iter().map(|size| Taker::new(limited.clone(), *size, 256, 0)).collect();
        run(&mut takers, 3, pause_ns, &mut Seed(seed));
        let (most, least) = windows(&takers, |size| size, 3);
        let chunks = sizes.len() as u64 * (per_s / 1000 + 1) + sizes.iter().sum::<u64>();
        let promised = per_s + per_s * burst_ms / 1000 + chunks;
        prop_assert!(most <= promised, "{most} in a second, promised at most {promised}");
        let small = sizes.iter().all(|size| *size >= 4096 || mib_per_s < 64);
        if small {
            prop_assert!(least + per_s / 100 + chunks >= per_s, "{least} in a second of {per_s}");
        }
    }

    #[test]
    fn disks_and_nics_of_a_group_share_its_bytes_and_each_its_own_count(
        mib_per_s in 4..200u64, iops in 500..5000u64, packets in 500..20_000u64,
        disks in 1..4u32, nics in 1..4u32, pause_ns in 1000..100_000u64, seed in 1..u64::MAX,
    ) {
        let rate = |per_s: u64| Rate { per_s, burst_ns: 20 * MS };
        let shared = Arc::new(Meter::new(rate(mib_per_s << 20)));
        let meters = |per_s| Meters::with_bytes(Some(rate(per_s)), Some(Arc::clone(&shared)));
        let (of_disks, of_nics) = (meters(iops), meters(packets));
        let taker = |group: &Option<Arc<Meters>>, bytes| {
            Taker::new(Limited { device: None, group: group.clone() }, bytes, 256, 0)
        };
        let mut takers: Vec<Taker> = (0..disks).map(|_| taker(&of_disks, 4096)).collect();
        takers.extend((0..nics).map(|_| taker(&of_nics, 1500)));
        run(&mut takers, 3, pause_ns, &mut Seed(seed));
        let (disks, nics) = takers.split_at(disks as usize);
        let count = |takers: &[Taker], per_s: u64| {
            let promised = per_s + per_s / 50 + (per_s / 1000 + 1) * (takers.len() as u64 + 1) + 1;
            let (most, _) = windows(takers, |_| 1, 3);
            prop_assert!(most <= promised, "{most} in a second, promised at most {promised}");
            Ok(())
        };
        count(disks, iops)?;
        count(nics, packets)?;
        let per_s = mib_per_s << 20;
        let (most, least) = windows(&takers, |size| size, 3);
        let chunks = takers.len() as u64 * (per_s / 1000 + 4096 + 1);
        let promised = per_s + per_s / 50 + chunks;
        prop_assert!(most <= promised, "{most} in a second, promised at most {promised}");
        // Where bytes are what there is least of, all of them are had.
        if iops * 4096 > 2 * per_s && packets * 1500 > 2 * per_s {
            prop_assert!(least + per_s / 100 + chunks >= per_s, "{least} in a second of {per_s}");
        }
    }

    #[test]
    fn what_is_dropped_beyond_a_limit_leaves_the_rate_and_no_more(
        per_s in 500..20_000u64, excess in 2..20u64, burst_ms in 4..200u64, seed in 1..u64::MAX,
    ) {
        // Frames come by themselves, `excess` times as many as are allowed; nobody waits for a moment.
        let mut taker = Taker::new(Limited { device: requests(per_s, burst_ms), group: None }, 64, 1, 0);
        let (mut now, mut seed) = (Nanos(0), Seed(seed));
        while now.0 < 4 * SECOND {
            now = now.after(1 + seed.below(2 * SECOND / (per_s * excess)));
            if taker.gate.is_open(now) || matches!(taker.gate.admit(WHOLE, now), Admission::Go(_)) {
                taker.gate.charge(1, 64, true, now);
                taker.log.push((now, 64));
            }
        }
        let takers = [taker];
        let (most, least) = windows(&takers, |_| 1, 4);
        let chunk = per_s.div_ceil(1000);
        let promised = per_s + (per_s * burst_ms / 1000).max(chunk) + chunk + 1;
        prop_assert!(most <= promised, "{most} in a second, promised at most {promised}");
        let slack = per_s / 100 + 2 * chunk + 1;
        prop_assert!(least + slack >= per_s, "{least} in a second of {per_s}");
    }

    #[test]
    fn takers_that_always_want_more_get_the_same(
        per_s in 1000..20_000u64, count in 2..9u32, pause_ns in 1000..200_000u64,
        seed in 1..u64::MAX,
    ) {
        let limited = Limited { device: None, group: requests(per_s, 20) };
        let mut takers: Vec<Taker> =
            (0..count).map(|n| Taker::new(limited.clone(), 4096, 40 + 8 * n, 0)).collect();
        run(&mut takers, 4, pause_ns, &mut Seed(seed));
        let counts: Vec<usize> = takers.iter().map(|taker| taker.log.len()).collect();
        let fair = 4.0 * per_s as f64 / f64::from(count);
        // Who comes first has the burst.
        let slack = 0.05 * fair + per_s as f64 * 0.02 + 2.0;
        for got in &counts {
            prop_assert!((*got as f64 - fair).abs() <= slack, "{counts:?}, {fair} would be fair");
        }
    }
}

#[test]
fn queues_that_ask_seldom_do_not_keep_each_other_waiting() {
    // 10 at depth 1 with an answer in 100 us: 100,000 a second in sum, and 200,000 are allowed.
    let limited = Limited { device: None, group: requests(200_000, 4) };
    let mut takers: Vec<Taker> =
        (0..10).map(|_| Taker::new(limited.clone(), 4096, 1, 100_000)).collect();
    run(&mut takers, 1, 2000, &mut Seed(7));
    let total: usize = takers.iter().map(|taker| taker.log.len()).sum();
    assert!(total > 95_000, "{total} of about 100,000");
}

#[test]
fn a_group_is_shared_and_a_device_keeps_to_its_own() {
    let group = requests(10_000, 4);
    let slow = Limited { device: requests(1000, 4), group: group.clone() };
    let free = Limited { device: None, group };
    let mut takers = [Taker::new(slow, 4096, 16, 0), Taker::new(free, 4096, 16, 0)];
    run(&mut takers, 4, 50_000, &mut Seed(3));
    let [slow, free] = &takers;
    assert!((3960..=4060).contains(&slow.log.len()), "{}", slow.log.len());
    assert!((35_600..=36_500).contains(&free.log.len()), "{}", free.log.len());
}

#[test]
fn a_late_waking_loses_nothing() {
    let limited = Limited { device: requests(2000, 4), group: None };
    let mut takers = [Taker::new(limited, 4096, 16, 0)];
    // Looked at every 1.5 ms on average, and 3 ms at most.
    run(&mut takers, 10, 3 * MS, &mut Seed(5));
    let total = takers[0].log.len();
    assert!((19_800..=20_200).contains(&total), "{total}");
}

#[test]
fn no_rate_and_no_burst_is_too_much_for_the_arithmetic() {
    for per_s in [0, 1, 1 << 32, u64::MAX] {
        for burst_ns in [0, 1, u64::MAX] {
            let meter = Meter::new(Rate { per_s, burst_ns });
            for units in [0, 1, u64::MAX] {
                for now in [0, 1, u64::MAX] {
                    meter.take(units, Nanos(now));
                }
            }
            assert!(meter.take(1, Nanos(u64::MAX)) <= Nanos(u64::MAX));
            let rate = Rate { per_s, burst_ns };
            let device = Meters::new(Some(rate), Some(rate));
            let mut gate = Gate::new(Limited { device, group: None }).unwrap();
            for now in [0, u64::MAX / 2, u64::MAX] {
                gate.admit(WHOLE, Nanos(now));
                gate.charge(u32::MAX, u64::MAX, true, Nanos(now));
            }
        }
    }
}

#[test]
fn a_slow_limit_lets_one_through_at_once_and_the_next_in_its_time() {
    let meter = Meter::new(Rate { per_s: 1, burst_ns: 4 * MS });
    assert_eq!(meter.take(1, Nanos(5 * SECOND)), Nanos(5 * SECOND));
    assert_eq!(meter.take(1, Nanos(5 * SECOND)), Nanos(6 * SECOND));
    assert_eq!(meter.take(1, Nanos(5 * SECOND)), Nanos(7 * SECOND));
}

/// Several threads on one word, and what they got is what it counted.
#[test]
fn takers_on_many_threads_lose_no_count() {
    let meter = Meter::new(Rate { per_s: 1_000_000, burst_ns: 0 });
    let taken = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (0..10_000).map(|_| meter.take(1, Nanos(0)).0).collect()))
            .collect();
        let mut all: Vec<u64> = Vec::new();
        for thread in threads {
            let part: Vec<u64> = thread.join().unwrap();
            // Each sees its own moments in order.
            assert!(part.is_sorted());
            all.extend(part);
        }
        all
    });
    let mut moments = taken;
    moments.sort_unstable();
    moments.dedup();
    // A burst of one chunk, 1 ms, is had at once: those moments are all 0.
    assert_eq!(moments.len(), 40_000 - 1000 + 1);
    assert_eq!(moments.last(), Some(&((40_000 - 1000) * 1000)));
}

/// A member with many queues keeps a rest of a chunk on each, then begins one largest request on each: what
/// these are too large by is paid a chunk at a time, between what others take.
#[test]
fn one_with_many_queues_does_not_lock_its_group_for_long() {
    const LARGEST: u64 = 126 * (128 << 10);
    const QUEUES: usize = 64;
    let rate = Rate { per_s: 100_000_000, burst_ns: 100 * MS };
    let group = Meters::new(None, Some(rate)).unwrap();
    let limited = || Limited { device: None, group: Some(Arc::clone(&group)) };
    let mut gates: Vec<Gate> = (0..QUEUES).map(|_| Gate::new(limited()).unwrap()).collect();
    let now = Nanos(SECOND);
    for bytes in [512, 512, LARGEST] {
        for gate in &mut gates {
            assert!(matches!(gate.admit(WHOLE, now), Admission::Go(_)));
            gate.charge(1, bytes, true, now);
        }
    }
    // All of them come again, and then somebody else.
    let all_wait =
        gates.iter_mut().all(|gate| matches!(gate.admit(WHOLE, now), Admission::Wait(_)));
    assert!(all_wait);
    let mut other = Gate::new(limited()).unwrap();
    let waited_ns = match other.admit(WHOLE, now) {
        Admission::Wait(until) => until.since(now),
        Admission::Go(_) => 0,
    };
    assert!(waited_ns <= (QUEUES as u64 + 1) * MS, "{} ms", waited_ns / MS);
    // And what was taken too much is paid before they go on: 1 GiB of 100 MB a second. (The first has paid some
    // of it from the burst.)
    let mut at = now;
    for ms in 1..4_000 {
        at = now.after(ms * MS);
        let goes = gates.iter_mut().any(|gate| matches!(gate.admit(WHOLE, at), Admission::Go(_)));
        assert!(!goes, "after {ms} ms");
    }
    assert!((0..8_000).any(|ms| {
        let at = at.after(ms * MS);
        gates.iter_mut().any(|gate| matches!(gate.admit(WHOLE, at), Admission::Go(_)))
    }));
}
