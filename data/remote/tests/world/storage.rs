//! The storage of a world, which several hosts may open, one at a time: what is stable, who has the lock, which
//! generation is kept, and boots.

use random::Random;
use remote::wire::Op;

use super::judge::Judge;
use super::{BLOCK, DEVICE_BYTES};

/// A host, and which life of it.
pub(crate) type Life = (usize, u64);

/// What comes of opening it.
pub(crate) enum Opened {
    Locked,
    /// It is open: the generation that was kept, and the boot.
    Open(u64, u64),
}

/// The device, and what of it is stable.
pub(crate) struct Storage {
    pub(crate) bytes: Vec<u8>,
    stable: Vec<u8>,
    boot: u64,
    /// Which life of which host has the lock, and which had it last.
    pub(crate) lock: Option<Life>,
    last: Option<Life>,
    /// The generation that is kept, for all hosts.
    pub(crate) generation: u64,
    /// Lives of hosts that let go of it without a sync.
    unsynced: Vec<Life>,
    /// Within one, each request is executed once.
    pub(crate) era: u64,
}

impl Storage {
    pub(crate) fn new() -> Storage {
        Storage {
            bytes: vec![0; DEVICE_BYTES],
            stable: vec![0; DEVICE_BYTES],
            boot: 1,
            lock: None,
            last: None,
            generation: 0,
            unsynced: Vec::new(),
            era: 0,
        }
    }

    /// Takes the lock, if it is free.
    pub(crate) fn open(&mut self, life: Life, generation: u64) -> Opened {
        if self.lock.is_some() {
            return Opened::Locked;
        }
        let kept = self.generation;
        self.generation = kept.max(generation);
        self.lock = Some(life);
        self.era += u64::from(self.last != Some(life));
        self.last = Some(life);
        // What could not be synced in another life may be gone; in this one the protocol says so itself.
        let others = self.unsynced.iter().filter(|one| **one != life).count() as u64;
        Opened::Open(kept, self.boot + others)
    }

    /// Gives the lock back, with or without a sync.
    pub(crate) fn let_go(
        &mut self,
        life: Life,
        is_synced: bool,
        judge: &mut Judge,
        random: &mut Random,
    ) {
        assert_eq!(self.lock.take(), Some(life));
        if is_synced {
            self.stable.copy_from_slice(&self.bytes);
            return;
        }
        self.unsynced.push(life);
        self.era += 1;
        self.lose(judge, random);
    }

    pub(crate) fn apply(&mut self, op: Op, offset: u64, data: &mut [u8], len: u32) {
        let offset = if op == Op::Flush { 0 } else { offset as usize };
        let range = offset..offset + len as usize;
        match op {
            Op::Read => data.copy_from_slice(&self.bytes[range]),
            Op::Write { sync } => {
                self.bytes[range.clone()].copy_from_slice(data);
                if sync {
                    self.stable[range].copy_from_slice(data);
                }
            }
            Op::Flush => self.stable.copy_from_slice(&self.bytes),
            Op::Discard => self.bytes[range].fill(0),
            Op::WriteZeroes { sync, .. } => {
                self.bytes[range.clone()].fill(0);
                if sync {
                    self.stable[range].fill(0);
                }
            }
        }
    }

    /// It went down: each block that was not stable may be gone.
    pub(crate) fn crash(&mut self, judge: &mut Judge, random: &mut Random) {
        self.boot += 1;
        self.era += 1;
        self.lose(judge, random);
    }

    fn lose(&mut self, judge: &mut Judge, random: &mut Random) {
        for at in (0..DEVICE_BYTES).step_by(BLOCK) {
            let range = at..at + BLOCK;
            if self.bytes[range.clone()] != self.stable[range.clone()] && random.one_in(2) {
                let id = self.bytes[range.clone()].first_chunk().map(|id| u64::from_le_bytes(*id));
                judge.lost(id.unwrap_or(0));
                let stable = self.stable[range.clone()].to_vec();
                self.bytes[range].copy_from_slice(&stable);
            }
        }
        self.stable.copy_from_slice(&self.bytes);
    }
}
