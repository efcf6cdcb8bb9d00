//! That the disk loses what a disk may lose, and nothing else.

use random::Random;

use super::{Medium, SECTOR};

const ONE: [u8; SECTOR] = [1; SECTOR];
const TWO: [u8; SECTOR] = [2; SECTOR];
const THREE: [u8; SECTOR] = [3; SECTOR];

fn write(medium: &mut Medium, sector: usize, bytes: &[u8], direct: bool) {
    let begun = medium.begin(sector * SECTOR, bytes.len(), direct);
    medium.write(sector * SECTOR, bytes, direct, &begun);
}

/// What a cut may leave in sector 0, by the first byte.
fn left(of: impl Fn() -> Medium) -> Vec<u8> {
    let mut left: Vec<u8> = (0..64)
        .map(|seed| {
            let mut medium = of();
            medium.cut(&mut Random::new(seed, 0));
            medium.sector(0)[0]
        })
        .collect();
    left.sort_unstable();
    left.dedup();
    left
}

#[test]
fn a_cut_leaves_what_is_stable_or_anything_newer() {
    let unsynced = || {
        let mut medium = Medium::new(8);
        write(&mut medium, 0, &ONE, true);
        let sync = medium.begin(0, 0, true);
        write(&mut medium, 0, &TWO, true);
        medium.sync(sync.serial);
        write(&mut medium, 0, &THREE, true);
        assert_eq!(medium.sector(0), THREE);
        medium
    };
    assert_eq!(left(unsynced), [1, 2, 3], "what was written after the sync was sent is not stable");
    let synced = || {
        let mut medium = unsynced();
        let sync = medium.begin(0, 0, true);
        medium.sync(sync.serial);
        medium
    };
    assert_eq!(left(synced), [3]);
}

#[test]
fn what_a_failed_sync_gave_up_is_not_made_stable_by_the_next() {
    let given_up = || {
        let mut medium = Medium::new(8);
        write(&mut medium, 0, &ONE, true);
        // Until it is this sector that is lost.
        for seed in 0..64 {
            medium.fail_sync(&mut Random::new(seed, 0));
        }
        let sync = medium.begin(0, 0, true);
        medium.sync(sync.serial);
        assert_eq!(medium.sector(0), ONE, "it is read all the same");
        medium
    };
    assert_eq!(left(given_up), [0, 1]);
}

#[test]
fn two_kinds_of_writes_to_one_page_undo_each_other() {
    let mut medium = Medium::new(8);
    let cached = medium.begin(0, SECTOR, false);
    write(&mut medium, 1, &ONE, true);
    medium.write(0, &TWO, false, &cached);
    assert_eq!((medium.sector(0), medium.sector(1)), (&TWO[..], &[0; SECTOR][..]));
    // One after the other they do not.
    write(&mut medium, 1, &ONE, true);
    write(&mut medium, 0, &THREE, false);
    assert_eq!((medium.sector(0), medium.sector(1)), (&THREE[..], &ONE[..]));
}
