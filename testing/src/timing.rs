//! Times and rates: measured in every run, judged only where the run asks for it.
//!
//! A machine that is busy with something else makes any time long and any rate small, so the default
//! `./x test` judges contents, counts and order alone. `./x test --all` sets `JUDGE_TIMES`. Not here:
//! what a time is compared with, which is beside each test. Bounds of the product count seconds in which it ran, or refuse
//! what has changed nothing, and whoever asks for that asks again ([`crate::daemon::BUSY`]).

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::bed::tests_all;

/// How long to wait for something that must come: a slow machine is no failure.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Whether this run judges times and rates (`JUDGE_TIMES`, set by `./x test --all`).
pub fn are_judged() -> bool {
    std::env::var_os("JUDGE_TIMES").is_some_and(|value| !value.is_empty())
}

/// Fails with `what` if a time or rate does not hold and this run judges it; otherwise only says it.
///
/// # Errors
/// `what`, if times are judged.
#[expect(clippy::disallowed_macros, reason = "a test prints what it measured")]
pub fn judge(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if !holds {
        let what = what();
        ensure!(!are_judged(), "{what}");
        println!("not judged here: {what}");
    }
    Ok(())
}

/// How often, or for how long: what the environment says by this name, decimal or as 0x.., or `otherwise`.
///
/// # Errors
/// It is no number.
pub fn told(name: &str, otherwise: u64) -> Result<u64> {
    let Ok(text) = std::env::var(name) else { return Ok(otherwise) };
    let digits = text.strip_prefix("0x");
    let number = digits.map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
    number.with_context(|| format!("{name}={text} is no number"))
}

/// The same of a count that a run with `--all` has larger: `[usual, with --all]`, which is told here alone.
///
/// # Errors
/// As [`told`].
pub fn often(name: &str, [usual, all]: [u64; 2]) -> Result<u64> {
    told(name, if tests_all() { all } else { usual })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_holds_is_never_a_failure() {
        assert!(judge(true, || unreachable!("nothing is to be said")).is_ok());
    }

    #[test]
    fn a_time_that_does_not_hold_fails_where_times_are_judged() {
        let said = judge(false, || "it took 3 s".to_string());
        assert_eq!(said.is_err(), are_judged());
    }
}
