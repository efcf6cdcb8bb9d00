//! A wire that loses, doubles, delays, reorders, flips bits, and goes away for a while, in one direction or both.

use std::collections::BTreeMap;

use random::Random;

use super::{MS, SECOND};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Host(usize),
    Client(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct Faults {
    /// Of 100 frames.
    pub(crate) loss: u64,
    pub(crate) doubles: u64,
    pub(crate) flips: u64,
    /// Of 1000 frames: those that come after up to `late_ns`.
    pub(crate) late: u64,
    pub(crate) late_ns: u64,
    pub(crate) delay_ns: u64,
    pub(crate) jitter_ns: u64,
    /// Once in so many steps on average; 0: never.
    pub(crate) partitions: u64,
    pub(crate) partition_ns: u64,
    /// No more faults after this.
    pub(crate) heals_at: u64,
}

pub(crate) struct Wire {
    faults: Faults,
    frames: BTreeMap<(u64, u64), (End, usize, Vec<u8>)>,
    number: u64,
    /// Until when nothing goes to the host, and to clients.
    cut: [u64; 2],
    pub(crate) sent: u64,
    /// Everything that ever was on the wire, for those that replay it.
    pub(crate) recorded: Option<Vec<(End, usize, Vec<u8>)>>,
}

impl Wire {
    pub(crate) fn new(faults: Faults) -> Wire {
        Wire { faults, frames: BTreeMap::new(), number: 0, cut: [0; 2], sent: 0, recorded: None }
    }

    pub(crate) fn is_healed(&self, now: u64) -> bool {
        now >= self.faults.heals_at
    }

    pub(crate) fn send(
        &mut self,
        now: u64,
        to: End,
        from: usize,
        frame: &[u8],
        random: &mut Random,
    ) {
        self.sent += 1;
        if let Some(recorded) = &mut self.recorded {
            recorded.push((to, from, frame.to_vec()));
        }
        let faults = self.faults.clone();
        if self.is_healed(now) {
            return self.put(now + faults.delay_ns, to, from, frame.to_vec());
        }
        let is_cut = now < self.cut[usize::from(matches!(to, End::Client(_)))];
        if is_cut || random.below(100) < faults.loss {
            return;
        }
        let copies = 1 + u64::from(random.below(100) < faults.doubles) * (1 + random.below(2));
        for _ in 0..copies {
            let mut delay = faults.delay_ns + random.below(faults.jitter_ns + 1);
            if random.below(1000) < faults.late {
                delay += random.below(faults.late_ns + 1);
            }
            let mut frame = frame.to_vec();
            if random.below(100) < faults.flips {
                let bit = random.below(frame.len() as u64 * 8) as usize;
                frame[bit / 8] ^= 1 << (bit % 8);
            }
            self.put(now + delay, to, from, frame);
        }
    }

    pub(crate) fn put(&mut self, at: u64, to: End, from: usize, frame: Vec<u8>) {
        self.number += 1;
        self.frames.insert((at, self.number), (to, from, frame));
    }

    pub(crate) fn misfortunes(&mut self, now: u64, random: &mut Random) {
        if !self.is_healed(now) && random.one_in(self.faults.partitions) {
            let until = now + random.below(self.faults.partition_ns);
            match random.below(3) {
                0 => self.cut = [until; 2],
                way => self.cut[way as usize - 1] = until,
            }
        }
    }

    pub(crate) fn due(&self) -> Option<u64> {
        self.frames.keys().next().map(|(at, _)| *at)
    }

    pub(crate) fn arrived(&mut self, now: u64) -> Option<(End, usize, Vec<u8>)> {
        let first = self.frames.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }
}

/// Faults of a seed: each of them is there in some worlds, and not in others.
pub(crate) fn faults(random: &mut Random) -> Faults {
    let some = |random: &mut Random, most: u64| match random.below(3) {
        0 => 0,
        _ => random.below(most + 1),
    };
    Faults {
        loss: some(random, 50),
        doubles: some(random, 30),
        flips: some(random, 5),
        late: some(random, 30),
        late_ns: random.of(&[5 * MS, 300 * MS, 5 * SECOND, 60 * SECOND]),
        delay_ns: random.of(&[20_000, 100_000, MS, 30 * MS]),
        jitter_ns: random.of(&[0, 10_000, 500_000, 20 * MS]),
        partitions: random.of(&[0, 0, 50, 400]),
        partition_ns: random.of(&[100 * MS, 2 * SECOND, 30 * SECOND]),
        heals_at: random.of(&[200 * MS, SECOND, 2 * SECOND, 6 * SECOND]),
    }
}
