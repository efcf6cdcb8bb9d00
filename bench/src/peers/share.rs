//! How much of the two cores is free: what a loop that does nothing else gets of each.
//!
//! The hypervisor below may take time that this kernel does not see; what it shows is not in it.

use anyhow::{Context, Result, anyhow};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use testing::clock::now_ns;

use crate::bed::{DRIVER_CORE, SERVER_CORE};

/// Less than this, and others worked.
const LEAST: f64 = 0.97;
const SPIN_NS: u64 = 200_000_000;

/// Parts of the server's and of the client's core.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Share {
    pub(super) before: [f64; 2],
    pub(super) after: [f64; 2],
}

impl Share {
    /// Whether others worked.
    pub(super) fn is_disturbed(&self) -> bool {
        self.least() < LEAST
    }

    /// The least of all four.
    pub(super) fn least(&self) -> f64 {
        self.before.into_iter().chain(self.after).fold(1.0, f64::min)
    }
}

/// Of both cores at once.
pub(super) fn of_both() -> Result<[f64; 2]> {
    std::thread::scope(|scope| {
        let loops = [SERVER_CORE, DRIVER_CORE].map(|core| scope.spawn(move || of(core)));
        let mut shares = [0.0; 2];
        for (share, of_one) in shares.iter_mut().zip(loops) {
            let of_one = of_one.join().map_err(|_| anyhow!("a loop panicked"))?;
            *share = of_one.context("looking how much of a core is free")?;
        }
        Ok(shares)
    })
}

fn of(core: u16) -> Result<f64> {
    crate::blk::pin(core)?;
    let (start_ns, used_ns) = (now_ns(), own_ns());
    while now_ns() - start_ns < SPIN_NS {
        std::hint::spin_loop();
    }
    Ok((own_ns() - used_ns) as f64 / (now_ns() - start_ns) as f64)
}

/// Processor time of this thread.
fn own_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_four_decides() {
        let quiet = Share { before: [1.0, 0.99], after: [0.98, 1.0] };
        assert!(!quiet.is_disturbed());
        assert!(Share { after: [0.5, 1.0], ..quiet }.is_disturbed());
        assert_eq!(Share { after: [0.5, 1.0], ..quiet }.least(), 0.5);
    }

    #[test]
    fn a_share_is_a_part() {
        assert!((0.0..1.01).contains(&of(SERVER_CORE).unwrap()));
    }
}
