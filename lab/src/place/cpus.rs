//! Which CPU of the place does what: vCPUs, what serves them, and the other end of their network.

use anyhow::{Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity};

/// From here on the other end of network loads has a CPU of its own, as it has in the papers.
const CPUS_FOR_A_PEER: usize = 4;

/// The CPUs, shared out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cpus {
    vcpus: Vec<usize>,
    /// The last one.
    pub(crate) server: usize,
    /// Of `lab peer`; with few CPUs that of the server.
    pub(crate) peer: usize,
}

impl Cpus {
    /// Those that this program may use.
    ///
    /// # Errors
    /// There are fewer than two.
    pub(crate) fn of_place() -> Result<Cpus> {
        let allowed = sched_getaffinity(None)?;
        Cpus::shared_out((0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect())
    }

    fn shared_out(mut all: Vec<usize>) -> Result<Cpus> {
        let count = all.len();
        ensure!(count > 1, "the lab needs two CPUs, one for guests and one for what serves them");
        let server = all.pop().unwrap_or_default();
        let peer = if count >= CPUS_FOR_A_PEER { all.pop().unwrap_or(server) } else { server };
        Ok(Cpus { vcpus: all, server, peer })
    }

    /// The CPU of a guest's vCPU; more guests than CPUs share them in turn.
    pub(crate) fn of_guest(&self, guest: usize) -> usize {
        self.vcpus.get(guest % self.vcpus.len().max(1)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_serves_and_the_others_run_guests_in_turn() {
        let shared = |all: &[usize]| Cpus::shared_out(all.to_vec()).ok();
        assert_eq!(shared(&[0]), None);
        assert_eq!(shared(&[0, 1]), Some(Cpus { vcpus: vec![0], server: 1, peer: 1 }));
        let four = Cpus { vcpus: vec![2, 4], server: 8, peer: 6 };
        assert_eq!([0, 1, 2].map(|guest| four.of_guest(guest)), [2, 4, 2]);
        assert_eq!(shared(&[2, 4, 6, 8]), Some(four));
    }
}
