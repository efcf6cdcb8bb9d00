//! Every write and flush of a run, so that any moment of it can be judged afterwards: what may a
//! sector hold if the power fails then?

use std::collections::BTreeMap;

use super::content::{Found, look};
use super::{What, Wrong};

/// One write.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Its number, in the order of submission, from 1 on.
    pub seq: u64,
    /// What it leaves.
    pub what: What,
    /// First sector.
    pub first: u64,
    /// Sectors.
    pub sectors: u64,
    /// When it was sent.
    pub submitted: u64,
    /// When it was seen to have been done.
    pub completed: Option<u64>,
    /// The disk was write-through from when it was sent until it was done.
    pub through: bool,
}

/// One flush that was done.
#[derive(Clone, Copy, Debug)]
pub struct Barrier {
    /// When it was sent.
    pub submitted: u64,
    /// When it was seen to have been done.
    pub completed: u64,
}

/// All of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    writes: Vec<Record>,
    flushes: Vec<Barrier>,
    /// By sector: indices into `writes`.
    by_sector: BTreeMap<u64, Vec<usize>>,
    /// Where `writes` begins.
    first_seq: u64,
}

impl History {
    /// The writes, in the order of submission.
    pub fn writes(&self) -> &[Record] {
        &self.writes
    }

    /// The flushes that were done, in the order in which they were.
    pub fn flushes(&self) -> &[Barrier] {
        &self.flushes
    }

    /// Sectors that were ever written, ascending.
    pub fn sectors(&self) -> impl Iterator<Item = u64> {
        self.by_sector.keys().copied()
    }

    /// Whether that write must survive a power cut at `cut`: it was done as write-through, or a
    /// flush that was sent after it was done has been done itself (VIRTIO 1.2, 5.2.6.2).
    pub fn is_promised(&self, write: &Record, cut: u64) -> bool {
        let Some(done) = write.completed.filter(|done| *done < cut) else { return false };
        // Flushes are few between a write and the next one of its sector; the newest come last.
        let covers = |flush: &Barrier| flush.submitted > done && flush.completed < cut;
        write.through || self.flushes.iter().rev().any(covers)
    }

    /// Whether `sector` may hold these bytes after a power cut at `cut`.
    ///
    /// # Errors
    /// It may not: something older than what was promised, or nobody's bytes, or a torn sector.
    pub fn after_cut(&self, sector: u64, cut: u64, bytes: &[u8]) -> Result<(), Wrong> {
        let none = Vec::new();
        let indices = self.by_sector.get(&sector).unwrap_or(&none);
        let sent: Vec<&Record> =
            indices.iter().map(|i| &self.writes[*i]).filter(|w| w.submitted < cut).collect();
        let covers = |w: &Record| w.what != What::Discard && self.is_promised(w, cut);
        // When the newest promise was sent: what had been done before it is gone.
        let since = sent.iter().filter(|w| covers(w)).map(|w| w.submitted).max().unwrap_or(0);
        let may = |done: Option<u64>| done.is_none_or(|done| done >= since);
        let found = look(sector, bytes);
        let holds = |w: &Record| match found {
            Found::Write(seq) => w.seq == seq && w.what == What::Data,
            Found::Zeroes => w.what != What::Data,
            Found::Other => false,
        };
        let initial = found == Found::Zeroes && since == 0;
        if initial || sent.iter().any(|w| may(w.completed) && holds(w)) {
            return Ok(());
        }
        let expected = sent.iter().filter(|w| may(w.completed)).map(|w| w.seq).collect();
        Err(super::wrong(sector, found, [0; 2], expected))
    }

    pub(super) fn push(&mut self, record: Record) {
        if self.writes.is_empty() {
            self.first_seq = record.seq;
        }
        let index = self.writes.len();
        for sector in record.first..record.first + record.sectors {
            self.by_sector.entry(sector).or_default().push(index);
        }
        self.writes.push(record);
    }

    pub(super) fn wrote(&mut self, seq: u64, now: u64, through: bool) {
        let index = seq.checked_sub(self.first_seq);
        if let Some(record) = index.and_then(|index| self.writes.get_mut(index as usize)) {
            record.completed = Some(now);
            record.through &= through;
        }
    }

    pub(super) fn flushed(&mut self, flush: Barrier) {
        self.flushes.push(flush);
    }
}
