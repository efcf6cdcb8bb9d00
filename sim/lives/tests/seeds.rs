//! That a seed is one life, and that nothing is found in the first of them.

use lives::run;

#[test]
fn a_seed_gives_the_same_life_twice_and_nothing_is_found_in_many() {
    for seed in [3, 16, 39] {
        let (one, other) = (run(seed, false, false), run(seed, false, false));
        assert_eq!(one.finding, None, "seed {seed}");
        assert_eq!((one.hash, one.events), (other.hash, other.events), "seed {seed}");
    }
}
