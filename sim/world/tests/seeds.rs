//! That a seed is one life, and that lives are full of what they are to be full of.

use world::{Outcome, run};

/// Enough that everything happens in one of them.
const SEEDS: u64 = 40;

fn lives() -> Vec<Outcome> {
    (1..=SEEDS).map(|seed| run(seed, true)).collect()
}

#[test]
fn a_seed_gives_the_same_life_twice() {
    for seed in [3, 16, 39, 42] {
        let (one, other) = (run(seed, false), run(seed, false));
        assert_eq!(one.finding, None);
        assert_eq!((one.hash, one.events), (other.hash, other.events), "seed {seed}");
        assert_ne!(one.hash, run(seed + 1000, false).hash);
    }
}

#[test]
fn everything_that_may_happen_happens_and_nothing_is_found() {
    let lives = lives();
    for (seed, life) in (1..).zip(&lives) {
        assert_eq!(life.finding, None, "seed {seed}");
    }
    let all = [
        "ask",
        "kick",
        "done",
        "read",
        "write",
        "sync",
        "zeroes",
        "hole",
        "frame",
        "send",
        "crash",
        "killed in a pass",
        "power cut",
        "held",
        "reset",
        "hangs up",
        "caught",
        "moved",
        "nic moved",
        "upgraded",
        "migrates",
        "copied",
        "migrated",
        "migration called off",
        "resized",
        "quiet",
    ];
    for what in all {
        let word = format!(" us  {what} ");
        let count: usize =
            lives.iter().flat_map(|life| &life.last).filter(|line| line.contains(&word)).count();
        assert!(count > 0, "never in {SEEDS} lives: {what}");
    }
    let requests: u64 = lives.iter().map(|life| life.requests).sum();
    assert!(requests > 200 * SEEDS, "{requests} requests");
}
