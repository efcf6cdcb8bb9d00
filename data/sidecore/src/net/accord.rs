//! What the sidecores of one NIC's move share: who is ready, and the word that decides it.
//!
//! By one compare-exchange the old home commits, or anybody calls the move off; so it is one or the other for
//! all, in every interleaving (tried with loom: `./x test unit/loom`). Not what is done then (`relocate`, which
//! uses it).

#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU8, AtomicU16, Ordering};

use crate::inbox::Refusal;
use crate::moves::Stay;

/// What the word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Word {
    Deciding,
    /// The queues are on their way: it cannot be called off any more.
    Committed,
    /// The new home has them.
    Done,
    /// Called off, and why.
    OffLate,
    OffLeaving,
    OffMoving,
    OffFull,
}

const WORDS: [Word; 7] = [
    Word::Deciding,
    Word::Committed,
    Word::Done,
    Word::OffLate,
    Word::OffLeaving,
    Word::OffMoving,
    Word::OffFull,
];

impl Word {
    /// Why the NIC is where it was, if it was called off.
    pub(crate) fn why(self) -> Option<Stay> {
        match self {
            Word::Deciding | Word::Committed | Word::Done => None,
            Word::OffLate => Some(Stay::Unsettled),
            Word::OffLeaving => Some(Stay::Leaving),
            Word::OffMoving => Some(Stay::Moving),
            Word::OffFull => Some(Stay::Refused(Refusal::NoPlace)),
        }
    }
}

/// What the sidecores of one move share.
#[derive(Debug)]
pub(crate) struct Accord {
    word: AtomicU8,
    /// Sidecores that are not ready.
    unready: AtomicU16,
}

impl Accord {
    /// Nothing is decided, and none of so many sidecores is ready.
    pub(crate) fn new(sidecores: u16) -> Accord {
        let word = AtomicU8::new(Word::Deciding as u8);
        Accord { word, unready: AtomicU16::new(sidecores) }
    }

    pub(crate) fn word(&self) -> Word {
        let word = self.word.load(Ordering::Acquire);
        WORDS.get(usize::from(word)).copied().unwrap_or(Word::OffLeaving)
    }

    /// Decides; false when that was done already.
    pub(crate) fn decide(&self, word: Word) -> bool {
        let (from, to) = (Word::Deciding as u8, word as u8);
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// One sidecore more: what it did before is seen by who finds all agreed. Once by each.
    pub(crate) fn ready(&self) {
        self.unready.fetch_sub(1, Ordering::AcqRel);
    }

    /// All are ready.
    pub(crate) fn is_agreed(&self) -> bool {
        self.unready.load(Ordering::Acquire) == 0
    }

    /// By the new home, of what is committed: it has the queues.
    pub(crate) fn done(&self) {
        self.word.store(Word::Done as u8, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// The old home commits when the other is ready, while a third calls it off: one of them has decided,
    /// all find the same, and who finds it committed finds what was done before too.
    #[test]
    fn loom_a_move_is_committed_or_off_for_all() {
        loom::model(|| {
            let accord = Arc::new(Accord::new(2));
            let drained = Arc::new(AtomicU8::new(0));
            let (its, its_drained) = (Arc::clone(&accord), Arc::clone(&drained));
            let other = thread::spawn(move || {
                its_drained.store(1, Ordering::Relaxed);
                its.ready();
            });
            let its = Arc::clone(&accord);
            let leaver = thread::spawn(move || its.decide(Word::OffLate));
            accord.ready();
            let committed = accord.is_agreed() && accord.decide(Word::Committed);
            if committed {
                assert_eq!(drained.load(Ordering::Relaxed), 1, "committed before all were ready");
                accord.done();
            }
            other.join().unwrap();
            let off = leaver.join().unwrap();
            assert!(!(committed && off), "decided twice");
            let end = accord.word();
            match (committed, off) {
                (true, _) => assert_eq!(end, Word::Done),
                (_, true) => assert_eq!(end, Word::OffLate),
                _ => panic!("nobody decided, and two wanted to"),
            }
        });
    }

    /// Who finds `Done` finds what the new home did before.
    #[test]
    fn loom_done_shows_what_was_done() {
        loom::model(|| {
            let accord = Arc::new(Accord::new(0));
            let placed = Arc::new(AtomicU8::new(0));
            assert!(accord.decide(Word::Committed));
            let (its, its_placed) = (Arc::clone(&accord), Arc::clone(&placed));
            let new_home = thread::spawn(move || {
                its_placed.store(1, Ordering::Relaxed);
                its.done();
            });
            if accord.word() == Word::Done {
                assert_eq!(placed.load(Ordering::Relaxed), 1);
            }
            assert!(!accord.decide(Word::OffLeaving), "it is committed");
            new_home.join().unwrap();
        });
    }
}
