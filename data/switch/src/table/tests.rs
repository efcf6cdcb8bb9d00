//! What only the table knows: buckets, seeds, and how much of it a sweep has seen.

use super::*;

const PORT: PortId = PortId(3);
const TICK: u64 = 1 << TICK_SHIFT;

fn table(macs_max: u32, ageing_ns: u64, seed: u64) -> Table {
    Table::new(&Limits { ports_max: 8, macs_max, ageing_ns }, 8, seed)
}

fn learn(table: &mut Table, address: u64, now_ns: u64) -> Learned {
    table.learn(address, 0, PORT, false, u32::MAX, now_ns)
}

#[test]
fn who_aims_at_one_bucket_needs_the_seed() {
    let (mut known, mut unknown) = (table(8192, TICK, 1), table(8192, TICK, 2));
    let aimed: Vec<u64> =
        (1..).filter(|address| known.bucket(key(*address, 0)) == 5).take(64).collect();
    for (number, address) in aimed.iter().enumerate() {
        let expected = if number < WAYS { Learned::Known } else { Learned::Full };
        assert_eq!(learn(&mut known, *address, 0), expected);
        assert_eq!(learn(&mut unknown, *address, 0), Learned::Known);
    }
    assert_eq!((known.learned(PORT), known.unlearned()), (8, 56));
    assert_eq!((unknown.learned(PORT), unknown.unlearned()), (64, 0));
    // The first eight stay where they are.
    assert!(aimed[..WAYS].iter().all(|address| known.find(*address, 0, 0) == Some(PORT)));
}

#[test]
fn a_full_bucket_gives_the_place_of_an_aged_one() {
    let mut table = table(8192, 10 * TICK, 1);
    let aimed: Vec<u64> = (1..).filter(|at| table.bucket(key(*at, 0)) == 4000).take(9).collect();
    for (number, address) in aimed[..WAYS].iter().enumerate() {
        learn(&mut table, *address, number as u64 * TICK);
    }
    // The sweep has not come to that bucket, which is among the last.
    assert_eq!(learn(&mut table, aimed[8], 10 * TICK), Learned::Full);
    assert_eq!(learn(&mut table, aimed[8], 11 * TICK), Learned::Known);
    assert_eq!(table.find(aimed[0], 0, 11 * TICK), None);
    assert_eq!(table.find(aimed[1], 0, 11 * TICK), Some(PORT));
    assert_eq!(table.learned(PORT), 8);
}

#[test]
fn addresses_in_a_row_find_places() {
    // What VMM's, vendors and floods give: low bits, high bits, and steps of powers of two.
    for (first, step) in [(0x5254_0000_0001u64, 1u64), (0x0200_0000_0000, 1 << 20), (2, 1 << 12)] {
        for seed in 0..4 {
            let mut table = table(8192, TICK, seed);
            for number in 0..8192 {
                learn(&mut table, (first + number * step) & 0xfeff_ffff_ffff, 0);
            }
            let missed = table.unlearned();
            assert!(missed <= 16, "{missed} of 8,192, from {first:#x} by {step:#x}, seed {seed}");
        }
    }
}

#[test]
fn a_sweep_comes_to_all_of_the_table_in_time() {
    let mut table = table(8192, 5 * TICK, 1);
    for address in 1..=1000 {
        learn(&mut table, address, 0);
    }
    // 4,096 buckets, 64 a tick: each tick's first call does its part, and others nothing.
    let mut now = 6 * TICK;
    let mut before = 1000;
    for _ in 0..64 {
        now += TICK;
        learn(&mut table, 1, now);
        let after = table.learned(PORT);
        assert!(after <= before && before - after < 100, "{before} to {after} in one call");
        learn(&mut table, 1, now);
        assert_eq!(table.learned(PORT), after);
        before = after;
    }
    assert_eq!(before, 1);
    assert_eq!(table.total, 1);
    // After a long silence a few calls are enough.
    for address in 1..=1000 {
        learn(&mut table, address, now);
    }
    for _ in 0..9 {
        now += 1000 * TICK;
        learn(&mut table, 1, now);
    }
    assert_eq!(table.learned(PORT), 1);
}

#[test]
fn bounds_hold_whatever_the_limits_say() {
    for (macs_max, buckets) in [(0, 64), (1, 64), (8192, 4096), (8194, 8192), (u32::MAX, 32_768)] {
        assert_eq!(table(macs_max, u64::MAX, 1).buckets.len(), buckets);
    }
    let mut table = table(0, u64::MAX, 1);
    assert_eq!(learn(&mut table, 1, u64::MAX), Learned::Known);
    assert_eq!(learn(&mut table, 2, u64::MAX), Learned::Full);
    assert_eq!(table.find(1, 0, u64::MAX), Some(PORT));
}

#[test]
fn a_pinned_address_takes_the_place_of_the_one_silent_for_longest() {
    let mut table = table(8192, u64::MAX, 1);
    let aimed: Vec<u64> = (1..).filter(|at| table.bucket(key(*at, 0)) == 7).take(18).collect();
    for (number, address) in (0..).zip(&aimed[..WAYS]) {
        learn(&mut table, *address, (100 - number) * TICK);
    }
    table.pin(aimed[8], 0, PortId(5));
    assert_eq!(table.find(aimed[8], 0, 0), Some(PortId(5)));
    assert_eq!(table.find(aimed[7], 0, 0), None, "the oldest");
    assert!(aimed[..7].iter().all(|address| table.find(*address, 0, 0) == Some(PORT)));
    assert_eq!((table.learned(PORT), table.learned(PortId(5)), table.total), (7, 1, 8));
    for address in &aimed[9..] {
        table.pin(*address, 0, PortId(5));
    }
    assert_eq!((table.learned(PORT), table.learned(PortId(5)), table.unlearned()), (0, 8, 2));
    table.forget(PortId(5));
    assert_eq!(table.total, 0);
}
