//! What each sector of a disk may hold, told by every request that was sent and ended.
//!
//! The oracle of the tests of recovery and of power cuts, and of the simulator. A write fills each of its sectors with
//! bytes that only that sector and that write have; a read is compared with all that may be there,
//! given what was in flight meanwhile. No I/O here, and no clock: order comes from [`Order`].
//!
//! A sector may hold write `V` unless another write was sent after `V` had ended and has ended
//! itself (VIRTIO 1.2, 5.2.6.2: requests that overlap in time have no order). A read that saw `V`
//! rules out every write that had ended before the read was sent: what ended does not run again,
//! whoever was killed meanwhile.

mod content;
mod cuts;
mod history;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use content::{Found, SECTOR_SIZE, fill_sector, look};
use cuts::Done;
pub use history::{Barrier, History, Record};

/// Moments in one order for all who share it: each is later than every one before.
#[derive(Clone, Debug, Default)]
pub struct Order(Arc<AtomicU64>);

impl Order {
    /// The next moment; the first is 1.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// What a write leaves in its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The bytes of [`Ledger::fill`].
    Data,
    /// Zeroes.
    Zeroes,
    /// Zeroes or what was there before (VIRTIO 1.2, 5.2.6.2).
    Discard,
}

/// A write in flight; to be given back when it has ended.
#[derive(Debug)]
#[must_use = "a write that never ends stays possible for ever"]
pub struct Writing {
    seq: u64,
    what: What,
    first: u64,
    sectors: u64,
    submitted: u64,
}

/// A read in flight.
#[derive(Debug)]
#[must_use = "a read is compared when it has ended"]
pub struct Reading {
    first: u64,
    sectors: u64,
    submitted: u64,
}

/// A flush in flight.
#[derive(Debug)]
pub struct Flushing {
    submitted: u64,
}

/// Why a sector cannot hold what was found in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// A completed write is not there, and never was seen there.
    #[error("sector {sector} lost a write: it holds {found}, expected is one of {expected:?}")]
    Lost {
        /// Which.
        sector: u64,
        /// The write found there.
        found: u64,
        /// The writes that may be there.
        expected: Vec<u64>,
    },
    /// A newer write was there before: an older one was executed after it.
    #[error(
        "sector {sector} went back: it holds {found} again although {seen} was read there, \
         expected is one of {expected:?}"
    )]
    Late {
        /// Which.
        sector: u64,
        /// The write found there.
        found: u64,
        /// A newer write that was read there before.
        seen: u64,
        /// The writes that may be there.
        expected: Vec<u64>,
    },
    /// Bytes that no write has put there.
    #[error("sector {sector} is corrupt: {found:?}, expected is one of {expected:?} {parts}")]
    Corrupt {
        /// Which.
        sector: u64,
        /// What it looks like.
        found: Found,
        /// The writes that may be there.
        expected: Vec<u64>,
        /// Whose words they are, where that was looked for.
        parts: String,
    },
}

/// One write that a sector may hold. Number 0 is what was there at first: zeroes.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    seq: u64,
    zeroes: bool,
    /// `None`: still in flight.
    ended: Option<u64>,
    /// When it became impossible; a read that was sent before may have seen it.
    gone: Option<u64>,
    /// Not even a power cut brings it back.
    void: bool,
}

#[derive(Clone, Debug)]
struct Sector {
    candidates: Vec<Candidate>,
    /// The newest write that a read found here, and the last one.
    seen: [u64; 2],
}

/// The state of one disk, from all zeroes.
#[derive(Debug)]
pub struct Ledger {
    order: Order,
    sectors: Vec<Sector>,
    seq: u64,
    /// When each read in flight was sent.
    reads: BTreeSet<u64>,
    through: bool,
    history: Option<History>,
    /// Writes that are done and not promised, when cuts are made meanwhile.
    unpromised: Option<Vec<Done>>,
    /// No flush promises a write up to this one that was not write-through.
    given_up: u64,
    /// When [`Ledger::doubt`] was called last.
    doubted: u64,
}

impl Ledger {
    /// Of a disk that holds zeroes.
    pub fn new(sectors: u64, order: Order) -> Ledger {
        let first = Candidate { seq: 0, zeroes: true, ended: Some(0), gone: None, void: false };
        let sector = Sector { candidates: vec![first], seen: [0; 2] };
        let sectors = vec![sector; sectors as usize];
        let (reads, through, history, unpromised) = (BTreeSet::new(), false, None, None);
        Ledger {
            order,
            sectors,
            seq: 0,
            reads,
            through,
            history,
            unpromised,
            given_up: 0,
            doubted: 0,
        }
    }

    /// Keeps every request from now on, for [`Ledger::history`].
    #[must_use]
    pub fn with_history(mut self) -> Ledger {
        self.history = Some(History::default());
        self
    }

    /// Everything that was sent and ended, when it is kept.
    pub fn history(&self) -> Option<&History> {
        self.history.as_ref()
    }

    /// Sectors of the disk.
    pub fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Whether a write that is sent and ends from now on is stable when it has ended (no FLUSH
    /// negotiated, or `writeback` is 0).
    pub fn set_write_through(&mut self, through: bool) {
        self.through = through;
    }

    /// A write is about to be sent. Panics beyond the end of the disk: a mistake of the test.
    pub fn write(&mut self, what: What, first: u64, sectors: u64) -> Writing {
        self.seq += 1;
        let (seq, submitted) = (self.seq, self.order.next());
        let zeroes = what != What::Data;
        let candidate = Candidate { seq, zeroes, ended: None, gone: None, void: false };
        for sector in self.range(first, sectors) {
            sector.candidates.push(candidate);
        }
        if let Some(history) = &mut self.history {
            let through = self.through;
            let completed = None;
            history.push(Record { seq, what, first, sectors, submitted, completed, through });
        }
        Writing { seq, what, first, sectors, submitted }
    }

    /// The bytes of a write, as many as it has.
    pub fn fill(&self, writing: &Writing, into: &mut [u8]) {
        for (sector, bytes) in (writing.first..).zip(into.chunks_exact_mut(SECTOR_SIZE)) {
            fill_sector(sector, writing.seq, bytes);
        }
    }

    /// The device has said that the write was done.
    pub fn wrote(&mut self, writing: Writing) {
        let (now, oldest) = (self.order.next(), self.oldest_read());
        let Writing { seq, what, first, sectors, submitted } = writing;
        let no_cuts = self.unpromised.is_none();
        let is_doubted = !self.through && submitted < self.doubted;
        for sector in self.range(first, sectors) {
            sector.ended(seq, now);
            if what != What::Discard && !is_doubted {
                sector.rule_out(now, |other| other.seq != seq, submitted, no_cuts);
            }
            sector.forget(oldest);
        }
        let through = self.through;
        if what != What::Discard {
            let has_no_copy = false;
            let done = Done { seq, first, sectors, submitted, ended: now, has_no_copy };
            self.done(done, through);
        }
        if let Some(history) = &mut self.history {
            history.wrote(seq, now, through);
        }
    }

    /// The device has said that the write was not done: all, part or nothing of it is there.
    pub fn failed(&mut self, writing: Writing) {
        let now = self.order.next();
        for sector in self.range(writing.first, writing.sectors) {
            sector.ended(writing.seq, now);
        }
    }

    /// The disk ends at that sector from now on, and keeps nothing behind it: should it grow again, there are zeroes.
    /// A write in flight may have been done before, or be done after that.
    pub fn end_at(&mut self, sector: u64) {
        let first = sector.min(self.sectors());
        let zeroes = self.write(What::Zeroes, first, self.sectors() - first);
        self.wrote(zeroes);
    }

    /// A read is about to be sent.
    pub fn read(&mut self, first: u64, sectors: u64) -> Reading {
        let submitted = self.order.next();
        self.reads.insert(submitted);
        Reading { first, sectors, submitted }
    }

    /// A read has ended without data.
    pub fn unread(&mut self, reading: Reading) {
        self.reads.remove(&reading.submitted);
    }

    /// A read has ended and brought these bytes.
    ///
    /// # Errors
    /// The first sector that cannot hold what was found.
    pub fn found(&mut self, reading: Reading, bytes: &[u8]) -> Result<(), Wrong> {
        let now = self.order.next();
        let Reading { first, sectors, submitted } = reading;
        self.reads.remove(&submitted);
        let (oldest, no_cuts) = (self.oldest_read(), self.unpromised.is_none());
        let pieces = bytes.chunks_exact(SECTOR_SIZE);
        assert_eq!(pieces.len() as u64, sectors, "a read of another length");
        let (all, seqs) = (self.sectors(), self.seq);
        for ((number, sector), found) in (first..).zip(self.range(first, sectors)).zip(pieces) {
            if let Err(mut wrong) = sector.check(number, found, submitted, (now, no_cuts)) {
                if let Wrong::Corrupt { parts, .. } = &mut wrong {
                    let sent = sector.candidates.iter().map(|c| (c.seq, c.ended, c.gone));
                    let sent: Vec<_> = sent.collect();
                    *parts = content::parts(found, all, seqs);
                    let _ = write!(parts, "; read sent at {submitted}, ended at {now}; {sent:?}");
                }
                return Err(wrong);
            }
            sector.forget(oldest);
        }
        Ok(())
    }

    /// A flush is about to be sent.
    pub fn flush(&mut self) -> Flushing {
        Flushing { submitted: self.order.next() }
    }

    /// The device has said that the flush was done.
    pub fn flushed(&mut self, flushing: Flushing) {
        let completed = self.order.next();
        self.promise(flushing.submitted);
        if let Some(history) = &mut self.history {
            history.flushed(Barrier { submitted: flushing.submitted, completed });
        }
    }

    fn oldest_read(&self) -> u64 {
        self.reads.first().copied().unwrap_or(u64::MAX)
    }

    fn range(&mut self, first: u64, sectors: u64) -> &mut [Sector] {
        &mut self.sectors[first as usize..(first + sectors) as usize]
    }
}

impl Sector {
    fn ended(&mut self, seq: u64, now: u64) {
        for candidate in &mut self.candidates {
            if candidate.seq == seq {
                candidate.ended = Some(now);
            }
        }
    }

    /// Those that had ended before `before` and are `not_it` are impossible from `now` on.
    fn rule_out(&mut self, now: u64, not_it: impl Fn(&Candidate) -> bool, before: u64, void: bool) {
        for candidate in &mut self.candidates {
            let ended = candidate.ended.is_some_and(|ended| ended < before);
            if ended && candidate.gone.is_none() && not_it(candidate) {
                candidate.gone = Some(now);
                candidate.void |= void;
            }
        }
    }

    /// Drops what no read in flight can see any more, nor a cut bring back.
    fn forget(&mut self, oldest_read: u64) {
        let is_seen = |candidate: &Candidate| candidate.gone.is_none_or(|gone| gone > oldest_read);
        self.candidates.retain(|candidate| is_seen(candidate) || !candidate.void);
    }

    fn check(
        &mut self,
        number: u64,
        bytes: &[u8],
        sent: u64,
        (now, no_cuts): (u64, bool),
    ) -> Result<(), Wrong> {
        let possible = |c: &&Candidate| c.gone.is_none_or(|gone| gone > sent);
        let found = look(number, bytes);
        let holds = |c: &Candidate| match found {
            Found::Write(seq) => c.seq == seq && !c.zeroes,
            Found::Zeroes => c.zeroes,
            Found::Other => false,
        };
        if let Some(seq) =
            self.candidates.iter().filter(possible).filter(|c| holds(c)).map(|c| c.seq).max()
        {
            self.seen = [self.seen[0].max(seq), seq];
            self.rule_out(now, |other| !holds(other), sent, no_cuts);
            return Ok(());
        }
        // A write that ran beside the read may be there in part.
        let ran_beside = |c: &Candidate| c.ended.is_none_or(|ended| ended > sent);
        let all: Vec<Candidate> = self.candidates.iter().filter(possible).copied().collect();
        if all.iter().any(ran_beside) {
            let each = all.iter().map(|c| (!c.zeroes).then_some(c.seq));
            if content::is_mixture(number, bytes, each) {
                return Ok(());
            }
        }
        let expected: Vec<u64> = all.iter().map(|c| c.seq).collect();
        Err(wrong(number, found, self.seen, expected))
    }
}

/// Names what is wrong with a sector that holds none of `expected`.
fn wrong(sector: u64, found: Found, seen: [u64; 2], expected: Vec<u64>) -> Wrong {
    let [newest, last] = seen;
    let old = match found {
        Found::Write(seq) => Some(seq),
        Found::Zeroes => Some(0),
        Found::Other => None,
    };
    match old {
        Some(found) if found < newest || (found == newest && found != last) => {
            Wrong::Late { sector, found, seen: last, expected }
        }
        Some(found) if expected.iter().any(|seq| found < *seq) => {
            Wrong::Lost { sector, found, expected }
        }
        _ => Wrong::Corrupt { sector, found, expected, parts: String::new() },
    }
}

#[cfg(test)]
mod tests;
