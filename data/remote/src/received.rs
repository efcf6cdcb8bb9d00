//! Which frames came: the replay window, and what of it has yet to be acknowledged. One per session.
//!
//! A frame is *seen* when it was opened, and never again; it is *taken* when all its records were. Called by `session`.

use crate::wire::ACK_BLOCKS_MAX;

/// Blocks of 64 frames. 16,384 frames: more than a network reorders by, and 4 KiB of memory.
const BLOCKS: usize = 256;

/// The window: places are used anew as it moves, always by whole blocks.
#[derive(Debug)]
pub(crate) struct Received {
    seen: [u64; BLOCKS],
    taken: [u64; BLOCKS],
    /// Places with frames that were taken since they were last acknowledged.
    owed: [u64; BLOCKS / 64],
    /// The newest block.
    newest: u64,
    /// One more than the highest counter seen.
    next: u64,
}

impl Received {
    pub(crate) fn new() -> Received {
        Received {
            seen: [0; BLOCKS],
            taken: [0; BLOCKS],
            owed: [0; BLOCKS / 64],
            newest: 0,
            next: 0,
        }
    }

    /// Whether this counter was not seen, and is not too old to tell.
    pub(crate) fn is_fresh(&self, counter: u64) -> bool {
        let block = counter / 64;
        if block > self.newest {
            return true;
        }
        self.newest - block < BLOCKS as u64 && self.seen[place(block)] >> (counter % 64) & 1 == 0
    }

    /// Notes a fresh frame that was opened. Only then: a forged counter must not move the window.
    pub(crate) fn see(&mut self, counter: u64) {
        let block = counter / 64;
        if block > self.newest {
            let cleared = (block - self.newest).min(BLOCKS as u64);
            for one in block - (cleared - 1)..=block {
                let at = place(one);
                (self.seen[at], self.taken[at]) = (0, 0);
                self.owed[at / 64] &= !(1 << (at % 64));
            }
            self.newest = block;
        }
        self.seen[place(block)] |= 1 << (counter % 64);
        self.next = self.next.max(counter.saturating_add(1));
    }

    /// Notes that all records of a frame were taken; `asks` when that is to be told.
    pub(crate) fn take(&mut self, counter: u64, asks: bool) {
        let at = place(counter / 64);
        self.taken[at] |= 1 << (counter % 64);
        if asks {
            self.owed[at / 64] |= 1 << (at % 64);
        }
    }

    /// One more than the highest counter seen.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn owes(&self) -> bool {
        self.owed != [0; BLOCKS / 64]
    }

    /// What to acknowledge, in at most `room` blocks: how many, the newest first. What was told of the newest block
    /// is told again with its next frame, so that one lost acknowledgement costs little.
    pub(crate) fn owed(&self, room: usize, blocks: &mut [(u64, u64); ACK_BLOCKS_MAX]) -> usize {
        let room = room.min(ACK_BLOCKS_MAX);
        let mut count = 0;
        let newest = place(self.newest);
        let mut put = |at: usize| {
            let back = (newest + BLOCKS - at) % BLOCKS;
            if count < room && back as u64 <= self.newest {
                blocks[count] = (self.newest - back as u64, self.taken[at]);
                count += 1;
            }
        };
        if self.owed[newest / 64] >> (newest % 64) & 1 != 0 {
            put(newest);
        }
        for (number, word) in self.owed.iter().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                let at = number * 64 + rest.trailing_zeros() as usize;
                rest &= rest - 1;
                if at != newest {
                    put(at);
                }
            }
        }
        count
    }

    /// These were put into a frame.
    pub(crate) fn told(&mut self, blocks: &[(u64, u64)]) {
        for (block, _) in blocks {
            let at = place(*block);
            self.owed[at / 64] &= !(1 << (at % 64));
        }
    }
}

fn place(block: u64) -> usize {
    (block % BLOCKS as u64) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use random::Random;

    use super::*;

    /// N2: no counter is fresh twice, whatever the order, the gaps and the wrap of places.
    #[test]
    fn n2_no_counter_is_fresh_twice() {
        for seed in 0..50 {
            let mut random = Random::new(seed, 0);
            let mut received = Received::new();
            let mut seen = BTreeSet::new();
            let mut base = 0;
            for _ in 0..2_000 {
                base += if random.one_in(50) { random.below(40_000) } else { random.below(4) };
                let counter = base.saturating_sub(random.below(12_000));
                if received.is_fresh(counter) {
                    assert!(seen.insert(counter), "{counter} twice");
                    received.see(counter);
                } else {
                    let newest = seen.last().copied().unwrap_or(0);
                    let is_old = newest / 64 - counter / 64 >= BLOCKS as u64;
                    assert!(is_old || seen.contains(&counter), "{counter} refused");
                }
            }
        }
        let mut received = Received::new();
        received.see(u64::MAX);
        assert!(!received.is_fresh(u64::MAX) && !received.is_fresh(0));
    }

    #[test]
    fn what_is_owed_is_told_once_and_far_behind_too() {
        let mut received = Received::new();
        for counter in [5, 6, 10_000, 9_000, 130] {
            assert!(received.is_fresh(counter));
            received.see(counter);
            received.take(counter, counter != 6);
        }
        let mut blocks = [(0, 0); ACK_BLOCKS_MAX];
        assert_eq!(received.owed(2, &mut blocks), 2);
        assert_eq!(
            blocks[..2],
            [(156, 1 << 16), (0, 3 << 5)],
            "those that did not ask are named beside"
        );
        received.told(&blocks[..2]);
        assert_eq!(received.owed(8, &mut blocks), 2);
        assert_eq!(blocks[..2], [(2, 1 << 2), (140, 1 << 40)]);
        received.told(&blocks[..2]);
        assert!(!received.owes() && received.owed(8, &mut blocks) == 0);
        assert_eq!(received.next(), 10_001);
    }
}
