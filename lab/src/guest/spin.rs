//! A load that computes, and does nothing else: what time in guest this machine can reach at most.
//!
//! Called by `guest`.

use std::hint::black_box;

use anyhow::{Result, ensure};

use super::measure::{Amount, measure};
use crate::orders::Answer;

/// Steps of an operation, each some nanoseconds.
const STEPS: u64 = 1000;
/// Operations at a time: a minute of an emulated machine. More is what `for_ms` is for.
const OPERATIONS_MAX: u64 = 1_000_000;

/// Computes; the clock is looked at before and after, not between.
///
/// # Errors
/// It is too much.
pub(super) fn spin(operations: u64, for_ms: Option<u32>) -> Result<Answer> {
    let most = OPERATIONS_MAX;
    ensure!(operations <= most, "operations: {operations} to spin, not 1 to {most}");
    measure(Amount::new(operations, for_ms)?, |count, _| {
        let mixed = (0..count * STEPS).fold(count, |mixed, step| {
            black_box((mixed ^ mixed >> 31).wrapping_mul(0x94d0_49bb_1331_11eb) ^ step)
        });
        black_box(mixed);
        Ok(count)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_time_as_ordered_and_is_bounded() -> Result<()> {
        let answer = spin(100, Some(20))?;
        let Answer::Done { operations, elapsed_ns, p50_ns: 0, p99_ns: 0 } = answer else {
            anyhow::bail!("{answer:?}");
        };
        assert!(operations >= 100 && operations % 100 == 0);
        assert!(elapsed_ns >= 20_000_000);
        // A step is some cycles: nothing was left out as useless.
        assert!(elapsed_ns >= operations * STEPS / 10, "{operations} in {elapsed_ns} ns");
        for (operations, why) in [
            (1_000_001, "operations: 1000001 to spin, not 1 to 1000000"),
            (0, "operations: 0, not 1 to 1000000000"),
        ] {
            let said = spin(operations, None).map_err(|error| error.to_string());
            assert_eq!(said.err().as_deref(), Some(why));
        }
        Ok(())
    }
}
