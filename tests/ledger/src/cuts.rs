//! Power cuts while the run goes on: what each leaves behind, and what is promised from then on.
//!
//! `history` judges cuts afterwards, any number of them; here the disk goes on with what one has left.

use super::content::look;
use super::{Candidate, Found, Ledger, Sector, Wrong, wrong};

/// A write that was done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) seq: u64,
    pub(super) first: u64,
    pub(super) sectors: u64,
    pub(super) submitted: u64,
    pub(super) ended: u64,
    /// Only the disk has it: nobody would write it again.
    pub(super) has_no_copy: bool,
}

impl Ledger {
    /// Remembers what a power cut may bring back, for [`Ledger::cut`].
    #[must_use]
    pub fn with_cuts(mut self) -> Ledger {
        self.unpromised = Some(Vec::new());
        self
    }

    /// The power fails: nothing is in flight any more, and each sector holds what `bytes` gives for it.
    ///
    /// # Errors
    /// The first sector that holds something older than what was promised (a write that was done as
    /// write-through, or before a flush was sent that was done), a part of a write, or nobody's bytes.
    pub fn cut<'a>(&mut self, bytes: impl Fn(u64) -> &'a [u8]) -> Result<(), Wrong> {
        let now = self.order.next();
        self.reads.clear();
        self.unpromised.iter_mut().for_each(Vec::clear);
        (0..)
            .zip(&mut self.sectors)
            .try_for_each(|(number, sector)| sector.cut(number, bytes(number), now))
    }

    /// What was done and is not promised is promised by no flush any more: a disk has lost it, and its operator goes on.
    /// Nor is what is in flight, which the disk may have had already.
    pub fn give_up(&mut self) {
        self.unpromised.iter_mut().for_each(Vec::clear);
        self.given_up = self.seq;
    }

    /// Whoever kept copies of what is not promised is gone: when the power fails where the disk is, no flush promises it
    /// any more.
    pub fn lose_copies(&mut self) {
        self.unpromised.iter_mut().flatten().for_each(|done| done.has_no_copy = true);
    }

    /// Somebody else's power has failed, who had the disk: what was done and is not promised is there or is not. So is
    /// what is in flight, also when it is said to be done: it may have been done before. A flush that is done from now on
    /// says that it is there, unless its [copies are lost](Ledger::lose_copies).
    pub fn doubt(&mut self) {
        self.doubted = self.order.next();
        self.unpromised.iter_mut().for_each(|all| all.retain(|done| !done.has_no_copy));
        for sector in &mut self.sectors {
            sector.seen = [0; 2];
            for candidate in sector.candidates.iter_mut().filter(|candidate| !candidate.void) {
                candidate.gone = None;
            }
        }
    }

    pub(super) fn done(&mut self, done: Done, is_promised: bool) {
        match &mut self.unpromised {
            None => {}
            Some(_) if is_promised => self.keep(done),
            Some(_) if done.seq <= self.given_up => {}
            Some(unpromised) => unpromised.push(done),
        }
    }

    /// A flush that was sent at `submitted` was done.
    pub(super) fn promise(&mut self, submitted: u64) {
        let Some(unpromised) = &mut self.unpromised else { return };
        let (promised, left) = unpromised.drain(..).partition(|done| done.ended < submitted);
        *unpromised = left;
        let promised: Vec<Done> = promised;
        promised.into_iter().for_each(|done| self.keep(done));
    }

    /// No cut takes this write back: what had ended before it was sent is over.
    fn keep(&mut self, done: Done) {
        let now = self.order.next();
        for sector in self.range(done.first, done.sectors) {
            for candidate in &mut sector.candidates {
                let is_older = candidate.ended.is_some_and(|ended| ended < done.submitted);
                if is_older && candidate.seq != done.seq {
                    candidate.void = true;
                    candidate.gone.get_or_insert(now);
                }
            }
        }
    }
}

impl Sector {
    fn cut(&mut self, number: u64, bytes: &[u8], now: u64) -> Result<(), Wrong> {
        let found = look(number, bytes);
        let holds = |candidate: &Candidate| match found {
            Found::Write(seq) => candidate.seq == seq && !candidate.zeroes,
            Found::Zeroes => candidate.zeroes,
            Found::Other => false,
        };
        let possible: Vec<Candidate> =
            self.candidates.iter().filter(|c| !c.void).copied().collect();
        self.candidates = possible.iter().filter(|c| holds(c)).copied().collect();
        if self.candidates.is_empty() {
            let expected = possible.iter().map(|candidate| candidate.seq).collect();
            return Err(wrong(number, found, [0; 2], expected));
        }
        for candidate in &mut self.candidates {
            (candidate.ended, candidate.gone) = (Some(now), None);
        }
        self.seen = [0; 2];
        Ok(())
    }
}
