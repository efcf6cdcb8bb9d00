//! Every write and sync that reached a disk with a volatile cache, and what a power cut leaves.
//!
//! The harshest disk that is allowed: a sync covers what had been answered when it arrived and
//! nothing else; of all other writes any sectors may be lost, in any combination. A sector itself is
//! whole (reliability P5 asks that of aligned devices).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ledger::SECTOR_SIZE;

/// One write.
#[derive(Clone, Debug)]
pub struct Write {
    /// When it reached the disk; a read sees it from then on.
    pub arrived: u64,
    /// When the kernel was told that it is done.
    pub answered: Option<u64>,
    /// It is in no cache any more when it is answered.
    pub stable: bool,
    /// First byte.
    pub offset: u64,
    /// What was written.
    pub bytes: Arc<[u8]>,
}

/// One sync that was answered well.
#[derive(Clone, Copy, Debug)]
pub struct Sync {
    /// When it reached the disk.
    pub began: u64,
    /// When the kernel was told that it is done.
    pub ended: u64,
}

/// All writes and syncs of a disk that began with zeroes.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    writes: Vec<Write>,
    syncs: Vec<Sync>,
}

impl Journal {
    /// Writes, in the order in which they arrived.
    pub fn writes(&self) -> &[Write] {
        &self.writes
    }

    /// Syncs, in the order in which they ended.
    pub fn syncs(&self) -> &[Sync] {
        &self.syncs
    }

    /// Times that the disk was asked to make something stable: syncs, and stable writes.
    pub fn stabilizations(&self) -> usize {
        self.syncs.len() + self.writes.iter().filter(|write| write.stable).count()
    }

    /// The same of a disk that has not kept what it was asked to keep from `moment` on.
    pub fn without_syncs_from(&self, moment: u64) -> Journal {
        let mut other = self.clone();
        other.syncs.retain(|sync| sync.ended < moment);
        for write in other.writes.iter_mut().filter(|write| write.arrived >= moment) {
            write.stable = false;
        }
        other
    }

    /// What may be on the medium, for every moment.
    pub fn survivors(&self) -> Survivors {
        let mut syncs = self.syncs.clone();
        syncs.sort_by_key(|sync| sync.began);
        // From each one on, the earliest end.
        let mut earliest = u64::MAX;
        for sync in syncs.iter_mut().rev() {
            earliest = earliest.min(sync.ended);
            sync.ended = earliest;
        }
        let mut by_sector: BTreeMap<u64, Vec<Version>> = BTreeMap::new();
        for (index, write) in self.writes.iter().enumerate() {
            let durable = durable_at(write, &syncs);
            let first = write.offset / SECTOR_SIZE as u64;
            for piece in 0..write.bytes.len() / SECTOR_SIZE {
                let version = Version { arrived: write.arrived, durable, index, piece };
                by_sector.entry(first + piece as u64).or_default().push(version);
            }
        }
        Survivors { writes: self.writes.clone(), by_sector }
    }

    /// Gives the index for [`Journal::end_write`].
    pub(super) fn begin_write(&mut self, write: Write) -> usize {
        self.writes.push(write);
        self.writes.len() - 1
    }

    pub(super) fn end_write(&mut self, index: usize, now: u64) {
        self.writes[index].answered = Some(now);
    }

    pub(super) fn synced(&mut self, sync: Sync) {
        self.syncs.push(sync);
    }
}

/// From when on a write survives anything; `u64::MAX` is never.
fn durable_at(write: &Write, syncs: &[Sync]) -> u64 {
    let Some(answered) = write.answered else { return u64::MAX };
    if write.stable {
        return answered;
    }
    let after = syncs.partition_point(|sync| sync.began <= answered);
    syncs.get(after).map_or(u64::MAX, |sync| sync.ended)
}

/// What may be on the medium after a power cut at any moment.
#[derive(Clone, Debug)]
pub struct Survivors {
    writes: Vec<Write>,
    by_sector: BTreeMap<u64, Vec<Version>>,
}

/// One sector of one write.
#[derive(Clone, Copy, Debug)]
struct Version {
    arrived: u64,
    durable: u64,
    index: usize,
    piece: usize,
}

impl Survivors {
    /// Sectors that were ever written, ascending.
    pub fn sectors(&self) -> impl Iterator<Item = u64> {
        self.by_sector.keys().copied()
    }

    /// Everything that `sector` may hold after a cut at `cut`, oldest first: the newest that is
    /// stable, and all that came after it.
    pub fn of(&self, sector: u64, cut: u64) -> impl Iterator<Item = &[u8]> {
        const ZEROES: &[u8] = &[0; SECTOR_SIZE];
        let versions = self.by_sector.get(&sector).map_or(&[][..], Vec::as_slice);
        let there = &versions[..versions.partition_point(|version| version.arrived < cut)];
        let base = there.iter().rposition(|version| version.durable < cut);
        let initial = base.is_none().then_some(ZEROES);
        initial.into_iter().chain(there[base.unwrap_or(0)..].iter().map(|version| {
            let at = version.piece * SECTOR_SIZE;
            &self.writes[version.index].bytes[at..at + SECTOR_SIZE]
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::{Journal, SECTOR_SIZE, Sync, Write};

    fn write(arrived: u64, answered: u64, stable: bool, byte: u8) -> Write {
        let bytes = vec![byte; SECTOR_SIZE].into();
        Write { arrived, answered: Some(answered), stable, offset: 0, bytes }
    }

    /// The first byte of each possible content of sector 0.
    fn left(journal: &Journal, cut: u64) -> Vec<u8> {
        journal.survivors().of(0, cut).map(|bytes| bytes[0]).collect()
    }

    #[test]
    fn a_sync_covers_what_was_answered_before_it_came() {
        let mut journal = Journal::default();
        journal.begin_write(write(10, 20, false, 1));
        journal.begin_write(write(30, 50, false, 2));
        journal.synced(Sync { began: 40, ended: 60 });
        assert_eq!(left(&journal, 5), [0]);
        assert_eq!(left(&journal, 35), [0, 1, 2]);
        assert_eq!(left(&journal, 60), [0, 1, 2], "not before it has ended");
        assert_eq!(left(&journal, 61), [1, 2], "the second was still on its way when it came");
        journal.synced(Sync { began: 70, ended: 80 });
        assert_eq!(left(&journal, 81), [2]);
    }

    #[test]
    fn a_stable_write_needs_no_sync_and_covers_only_itself() {
        let mut journal = Journal::default();
        journal.begin_write(write(10, 20, true, 1));
        journal.begin_write(write(30, 40, false, 2));
        assert_eq!(left(&journal, 15), [0, 1]);
        assert_eq!(left(&journal, 25), [1]);
        assert_eq!(left(&journal, 45), [1, 2]);
    }

    #[test]
    fn a_disk_that_forgets_its_syncs_keeps_what_was_stable_before() {
        let mut journal = Journal::default();
        journal.begin_write(write(10, 20, true, 1));
        journal.begin_write(write(30, 40, true, 2));
        journal.begin_write(write(50, 60, false, 3));
        journal.synced(Sync { began: 70, ended: 80 });
        assert_eq!(left(&journal, 90), [3]);
        assert_eq!(left(&journal.without_syncs_from(25), 90), [1, 2, 3]);
    }

    #[test]
    fn the_earliest_end_of_the_syncs_after_a_write_counts() {
        let mut journal = Journal::default();
        journal.begin_write(write(10, 20, false, 1));
        journal.synced(Sync { began: 35, ended: 40 });
        journal.synced(Sync { began: 30, ended: 90 });
        assert_eq!(left(&journal, 41), [1]);
    }
}
