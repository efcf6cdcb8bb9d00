//! A and B in turns, and which is better. Time and chance are arguments: who measures brings the one, a seed the other.

use serde::Serialize;

use crate::change::{Outcome, apply, undo};
use crate::check::Change;
use crate::guest::Guest;
use crate::journal::{Journal, Refusal};
use crate::system::System;

/// Rounds at least: with fewer, chance alone separates two equal things too often.
pub const ROUNDS_MIN: usize = 4;
/// Rounds at most.
pub const ROUNDS_MAX: usize = 1000;

/// What was judged of B beside A; more is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Each turn of B was better than each of A.
    Better,
    /// Each turn of B was worse.
    Worse,
    /// They overlap.
    Alike,
    /// Too few samples, or some that are no numbers above zero.
    Unusable,
}

/// Judges samples: B is better only beyond the spread of both.
///
/// With five rounds, two equal things are separated so once in 252 tries.
pub fn judge(a: &[f64], b: &[f64]) -> Verdict {
    let is_usable = |all: &[f64]| {
        all.len() >= ROUNDS_MIN && all.iter().all(|sample| sample.is_finite() && *sample > 0.0)
    };
    if !is_usable(a) || !is_usable(b) {
        return Verdict::Unusable;
    }
    let least = |all: &[f64]| all.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
    if least(b) > most(a) {
        Verdict::Better
    } else if most(b) < least(a) {
        Verdict::Worse
    } else {
        Verdict::Alike
    }
}

/// The middle one of samples; of an even number, the mean of both.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

/// Whether B is first, for each round: by a seed, so that nothing that comes at intervals always hits the same one.
pub fn order(seed: u64, rounds: usize) -> Vec<bool> {
    let mut state = seed;
    let mut next = || {
        // SplitMix64 (Steele, Lea, Flood 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) & 1 == 1
    };
    (0..rounds).map(|_| next()).collect()
}

/// What came of a trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// The rule.
    pub rule: String,
    /// Samples as it was, in the order of rounds.
    pub a: Vec<f64>,
    /// Samples with the changes.
    pub b: Vec<f64>,
    /// Which is better.
    pub verdict: Verdict,
    /// Whether the changes were kept.
    pub kept: bool,
    /// What could not be changed, or not put back.
    pub outcomes: Vec<Outcome>,
}

/// Why a trial ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] Refusal),
    /// Nothing was measured.
    #[error("{0}; all is as it was")]
    Measure(String),
}

/// Tries the changes of one rule: keeps them where they are better, and else takes them back.
///
/// # Errors
/// The journal cannot be written, or nothing can be measured: then what was changed is taken back.
pub fn run(
    system: &mut dyn System,
    journal: &mut Journal,
    guest: &Guest,
    changes: &[Change],
    (rounds, seed): (usize, u64),
    measure: &mut dyn FnMut(&mut dyn System) -> Result<f64, String>,
) -> Result<Trial, Stop> {
    let rule = changes.first().map_or(String::new(), |change| change.rule.to_owned());
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let end = |a, b, verdict, kept, outcomes| {
        Ok(Trial { rule: rule.clone(), a, b, verdict, kept, outcomes })
    };
    for is_b_first in order(seed, rounds.min(ROUNDS_MAX)) {
        for is_b in [is_b_first, !is_b_first] {
            let from = journal.next();
            if is_b {
                let mut outcomes = apply(system, journal, guest, changes)?;
                if outcomes.iter().any(|outcome| !outcome.end.is_good()) {
                    outcomes.extend(undo(system, journal, guest, from, false)?);
                    return end(a, b, Verdict::Unusable, false, outcomes);
                }
            }
            let sample = measure(system);
            if is_b {
                let outcomes = undo(system, journal, guest, from, false)?;
                // Somebody else sets it too: whose load was that?
                if outcomes.iter().any(|outcome| !outcome.end.is_good()) {
                    return end(a, b, Verdict::Unusable, false, outcomes);
                }
            }
            let of = if is_b { &mut b } else { &mut a };
            of.push(sample.map_err(Stop::Measure)?);
        }
    }
    let verdict = judge(&a, &b);
    let outcomes = match verdict {
        Verdict::Better => apply(system, journal, guest, changes)?,
        _ => Vec::new(),
    };
    let kept = !outcomes.is_empty() && outcomes.iter().all(|outcome| outcome.end.is_good());
    end(a, b, verdict, kept, outcomes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_is_beyond_the_spread() {
        let a = [100.0, 104.0, 99.0, 101.0];
        assert_eq!(judge(&a, &[105.0, 106.0, 120.0, 104.5]), Verdict::Better);
        assert_eq!(judge(&a, &[105.0, 106.0, 120.0, 103.5]), Verdict::Alike);
        assert_eq!(judge(&a, &[90.0, 98.0, 97.0, 98.9]), Verdict::Worse);
        assert_eq!(judge(&a, &a), Verdict::Alike);
        // Equal is not beyond.
        assert_eq!(judge(&a, &[104.0, 110.0, 110.0, 110.0]), Verdict::Alike);
    }

    #[test]
    fn what_is_no_measurement_is_not_judged() {
        let a = [1.0; 4];
        for b in [&[2.0; 3][..], &[2.0, 2.0, 2.0, f64::NAN], &[2.0, 2.0, 2.0, f64::INFINITY]] {
            assert_eq!(judge(&a, b), Verdict::Unusable);
            assert_eq!(judge(b, &a), Verdict::Unusable);
        }
        assert_eq!(judge(&[0.0; 4], &a), Verdict::Unusable);
        assert_eq!(judge(&[], &[]), Verdict::Unusable);
    }

    #[test]
    fn a_seed_gives_one_order_in_which_both_come_first() {
        assert_eq!(order(7, 64), order(7, 64));
        assert_ne!(order(7, 64), order(8, 64));
        let first = order(7, 64).iter().filter(|is_b| **is_b).count();
        assert!((16..=48).contains(&first), "{first}");
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median(&[]).abs() < 1e-9);
    }
}
