//! Whether a vCPU is about to lose its processor: what it is given at the end of a slice it takes after all others had theirs.
//!
//! A host that shares a core among busy vCPUs takes it from each after a time that is nearly always the same, and gives it
//! to the one that has waited longest. A frame that comes later in a slice than its guest needs to take it is better put where
//! the next slice begins. Nothing is guessed of a host whose slices differ, nor where no other vCPU waits for that core.
//!
//! Not here: what follows from it (`steer`), and who has a processor (`runstate`).

use std::cell::Cell;

use runstate::{Activity, Turn};
use schedule::Nanos;

use crate::net::port::PAIRS_MAX;

/// How often the slices are looked at anew, nanoseconds: seldom, beside frames.
const LOOK_NS: u64 = 1_000_000;
/// What a guest needs to take a frame and answer it, nanoseconds, before it was measured, and at least.
const ANSWER_NS: u64 = 20_000;
/// An answer that is longer than this part of a slice is not of the kind that is looked for: its vCPU had no processor
/// meanwhile, or its guest was busy with something else.
const PART: u64 = 2;
/// A question that was not answered for so long makes place for another.
const FORGET_NS: u64 = 10_000_000;

/// What is known of the slices of a port's vCPUs, and of the answers of its guest.
#[derive(Debug)]
pub(crate) struct Slices {
    looked_at: Cell<Nanos>,
    /// 0: they differ.
    slice_ns: Cell<u64>,
    /// What 97 of 100 answers do not exceed.
    answer_ns: Cell<u64>,
    /// The flow of a frame that went to a pair, and when, until it was answered.
    asked: [Cell<Option<(u8, Nanos)>>; PAIRS_MAX],
}

impl Slices {
    pub(crate) fn new() -> Slices {
        Slices {
            looked_at: Cell::new(Nanos(0)),
            slice_ns: Cell::new(0),
            answer_ns: Cell::new(ANSWER_NS),
            asked: [const { Cell::new(None) }; PAIRS_MAX],
        }
    }

    /// Looks at the last slices of all, if that was not done a moment ago.
    #[inline]
    pub(crate) fn look(&self, turns: impl Iterator<Item = Turn>, now: Nanos) {
        if now.since(self.looked_at.get()) >= LOOK_NS {
            self.looked_at.set(now);
            self.slice_ns.set(usual(turns));
        }
    }

    /// Whether a thread is so near the end of its slice that what it is given now would wait for its next one.
    /// `waits_on`: whether another vCPU waits for that processor.
    #[inline]
    pub(crate) fn ends(&self, turn: Turn, waits_on: impl FnOnce(u32) -> bool, now: Nanos) -> bool {
        let slice_ns = self.slice_ns.get();
        if slice_ns == 0 || turn.activity != Activity::Runs {
            return false;
        }
        let ran_ns = now.since(Nanos(turn.since_ns));
        // Learned of slices that may have been longer.
        let answer_ns = self.answer_ns.get().min(slice_ns / PART);
        // One that goes on behind the end is not as the others are.
        let is_near =
            ran_ns.saturating_add(answer_ns) >= slice_ns && ran_ns <= slice_ns + slice_ns / 8;
        is_near && waits_on(turn.cpu)
    }

    /// A frame of this flow went to `pair`, whose vCPU runs. After a second one it is not known which is answered.
    #[inline]
    pub(crate) fn ask(&self, flow: usize, pair: usize, now: Nanos) {
        let Some(asked) = self.asked.get(pair) else { return };
        match asked.get() {
            Some((of, _)) if usize::from(of) == flow => asked.set(None),
            Some((_, since)) if now.since(since) < FORGET_NS => {}
            _ => asked.set(Some((flow as u8, now))),
        }
    }

    /// A frame of this flow came from `pair`.
    #[inline]
    pub(crate) fn answer(&self, flow: usize, pair: usize, now: Nanos) {
        let Some(asked) = self.asked.get(pair) else { return };
        let Some((_, since)) = asked.get().filter(|(of, _)| usize::from(*of) == flow) else {
            return;
        };
        asked.set(None);
        let (took, most) = (now.since(since), self.slice_ns.get() / PART);
        // Within one pass of the sidecore no time passes.
        if took == 0 || took > most {
            return;
        }
        let old = self.answer_ns.get();
        // One step up for 32 down; by doubling while it is far off.
        let new = match took {
            _ if took > 2 * old => 2 * old,
            _ if took > old => old + old / 8,
            _ => old - old / 256,
        };
        self.answer_ns.set(new.clamp(ANSWER_NS.min(most), most));
    }
}

/// The slice that more than half of those that were pushed aside had, within an eighth; 0: there is none.
fn usual(turns: impl Iterator<Item = Turn>) -> u64 {
    let mut slices = [0; PAIRS_MAX];
    let known = turns.map(|turn| turn.slice_ns).filter(|slice| *slice > 0);
    let count = slices.iter_mut().zip(known).map(|(to, slice)| *to = slice).count();
    let slices = slices.get_mut(..count).unwrap_or_default();
    slices.sort_unstable();
    let middle = slices.get(count / 2).copied().unwrap_or(0);
    let alike = slices.iter().filter(|slice| slice.abs_diff(middle) <= middle / 8).count();
    if count > 1 && 2 * alike > count { middle } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE_NS: u64 = 4_000_000;

    fn turn(activity: Activity, since_ns: u64, slice_ns: u64) -> Turn {
        Turn { activity, cpu: 3, slice_ns, since_ns }
    }

    fn alike() -> Slices {
        let slices = Slices::new();
        let turns = [SLICE_NS, SLICE_NS + 9, 40_000, SLICE_NS - 9];
        slices.look(turns.into_iter().map(|slice| turn(Activity::Waits, 0, slice)), Nanos(LOOK_NS));
        slices
    }

    #[test]
    fn the_usual_slice_is_that_of_most() {
        let of =
            |slices: &[u64]| usual(slices.iter().map(|slice| turn(Activity::Waits, 0, *slice)));
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[4000]), 0, "one says nothing");
        assert_eq!(of(&[4000, 0, 0]), 0, "one, and two that never lost it");
        assert_eq!(of(&[4000, 4100]), 4100);
        assert_eq!(of(&[4000, 8000]), 0);
        assert_eq!(of(&[40, 4000, 4000, 4100]), 4000, "one was disturbed");
        assert_eq!(of(&[40, 60, 4000, 4100]), 0);
        assert_eq!(of(&[4000; PAIRS_MAX]), 4000);
    }

    #[test]
    fn only_who_is_near_the_end_and_has_a_follower_is_about_to_lose_it() {
        let slices = alike();
        let at = |ran_ns: u64| {
            let now = Nanos(7_000_000 + ran_ns);
            slices.ends(turn(Activity::Runs, 7_000_000, 0), |cpu| cpu == 3, now)
        };
        assert!(!at(0) && !at(SLICE_NS - ANSWER_NS - 1));
        assert!(at(SLICE_NS - ANSWER_NS) && at(SLICE_NS) && at(SLICE_NS + SLICE_NS / 8));
        assert!(!at(SLICE_NS + SLICE_NS / 8 + 1), "it goes on");
        let end = Nanos(SLICE_NS);
        assert!(slices.ends(turn(Activity::Runs, 0, 0), |_| true, end));
        assert!(!slices.ends(turn(Activity::Runs, 0, 0), |_| false, end), "nobody waits there");
        for other in [Activity::Waits, Activity::Sleeps, Activity::Unknown] {
            assert!(!slices.ends(turn(other, 0, 0), |_| true, end));
        }
        assert!(!Slices::new().ends(turn(Activity::Runs, 0, 0), |_| true, end), "not known yet");
    }

    #[test]
    fn how_long_an_answer_takes_is_learned_from_those_that_were_not_interrupted() {
        let slices = alike();
        let mut now = 0;
        let mut round = |took: u64, flow: usize| {
            now += SLICE_NS;
            slices.ask(5, 1, Nanos(now));
            slices.answer(flow, 1, Nanos(now + took));
            slices.answer_ns.get()
        };
        let soon = (0..10).map(|_| round(300_000, 5)).last();
        assert!(soon >= Some(300_000), "{soon:?}");
        let learned = (0..4000).map(|_| round(300_000, 5)).last();
        assert!((290_000..=340_000).contains(&learned.unwrap_or(0)), "{learned:?}");
        // One that waited for its next slice, or was something else's, changes nothing.
        assert_eq!(Some(round(3 * SLICE_NS, 5)), learned);
        assert_eq!(Some(round(500, 6)), learned, "another flow");
        let least = (0..4000).map(|_| round(100, 5)).last();
        assert_eq!(least, Some(ANSWER_NS));
        slices.answer_ns.set(SLICE_NS / PART);
        // Two frames of a flow, and one answer: it says nothing.
        slices.ask(5, 3, Nanos(0));
        slices.ask(5, 3, Nanos(100_000));
        slices.answer(5, 3, Nanos(100_500));
        assert_eq!(slices.answer_ns.get(), SLICE_NS / PART);
        // Slices that are shorter now: it is half of one at most.
        let turns = || (0..4).map(|_| turn(Activity::Waits, 0, SLICE_NS / 4));
        slices.look(turns(), Nanos(u64::MAX));
        let ends = |ran_ns| slices.ends(turn(Activity::Runs, 0, 0), |_| true, Nanos(ran_ns));
        assert!(!ends(SLICE_NS / 8 - 1) && ends(SLICE_NS / 8));
        // A question that nobody answers is forgotten.
        slices.ask(9, 2, Nanos(0));
        slices.ask(4, 2, Nanos(FORGET_NS - 1));
        assert_eq!(slices.asked[2].get(), Some((9, Nanos(0))));
        slices.ask(4, 2, Nanos(FORGET_NS));
        assert_eq!(slices.asked[2].get(), Some((4, Nanos(FORGET_NS))));
    }
}
