//! What is kept of links beyond the daemon's end: who had which disk last, how disks stand, what was lost.
//!
//! Not here: where each is kept (`generations`, `standings`), nor which image a guest is on (`bonds`).

use std::io;

use remote::client::Standing;
use remote::device_of;
use remote::wire::Verifier;
use tracing::warn;

use super::error::ExportError;
use super::generations::Generations;
use super::greeter::random;
use super::standings::Standings;
use crate::disk::DiskParts;

/// All of it.
pub(super) struct Ledger {
    generations: Generations,
    /// How often each disk that clients may have could not be made stable.
    losses: Generations,
    standings: Standings,
    /// This boot of the machine, and the run of the daemon that RAM disks are of.
    boot: u64,
    run: u64,
}

impl Ledger {
    pub(super) fn in_folder(state_dir: &str) -> Ledger {
        let generations = Generations::in_folder(state_dir, "generations");
        let losses = Generations::in_folder(state_dir, "losses");
        // Read now: later on there may be no such file for this process.
        let boot = boot();
        let standings = Standings::in_folder(state_dir, boot);
        Ledger { generations, losses, standings, boot, run: random() }
    }

    /// The run of the daemon that RAM disks are of.
    pub(super) fn run(&self) -> u64 {
        self.run
    }

    /// A process before this one has begun it.
    pub(super) fn go_on_with(&mut self, run: u64) {
        self.run = run;
    }

    /// How often a disk has changed hands.
    ///
    /// # Errors
    /// As [`Generations::of`].
    pub(super) fn generation(&self, parts: &DiskParts) -> io::Result<u64> {
        self.generations.of(&parts.plan.id, Generations::beside(&parts.plan))
    }

    /// Has it survive this daemon that a disk has changed hands, as it is wanted, new or not. Under its lock: of several
    /// IOhosts with one image one says the next number.
    ///
    /// # Errors
    /// Why not, and the number that is kept, if that is why.
    pub(super) fn keep_generation(
        &self,
        parts: &DiskParts,
        (generation, is_new): (u64, bool),
    ) -> Result<(), (u64, ExportError)> {
        let cannot = |error| (0, ExportError::Keep(error));
        let kept = self.generation(parts).map_err(cannot)?;
        if kept == generation && !is_new {
            return Ok(());
        }
        if kept >= generation {
            return Err((kept, ExportError::Had));
        }
        let (id, image) = (&parts.plan.id, Generations::beside(&parts.plan));
        self.generations.keep(id, image, generation).map_err(cannot)
    }

    /// A disk that clients may have could not be made stable.
    pub(super) fn count_loss(&self, id: &str) {
        let kept = self.losses.of(id, None);
        if let Err(error) = kept.and_then(|count| self.losses.keep(id, None, count + 1)) {
            warn!(disk = id, %error, "that it has lost data cannot be counted: when it is cleared, a client that was away does not hear of it");
        }
    }

    /// What the storage of a disk is: writes that were not yet stable are gone with this boot of the machine, and with a
    /// sync that failed; what is in memory is gone with this run of the daemon. An operator who clears a failure knows of
    /// it, and a client that was away does not.
    pub(super) fn verifier_of(&self, parts: &DiskParts) -> Verifier {
        let id = &parts.plan.id;
        let name = device_of(id);
        let (boot, contents) = match parts.plan.source.path() {
            Some(_) => (self.boot, name),
            None => (self.run, name ^ self.run),
        };
        // Where that cannot be read a client is rather told of a loss.
        let losses = self.losses.of(id, None).unwrap_or_else(|_| random());
        Verifier { boot: after_losses(boot, losses, parts.sync_failed()), contents }
    }

    /// How disk `id`, which is `whose`, stood last.
    pub(super) fn standing(&mut self, id: &str, whose: &str) -> Option<Standing> {
        self.standings.of(id, whose)
    }

    /// How it stands is kept before its guest can write.
    pub(super) fn keep_standing(&mut self, id: &str, whose: &str, standing: Option<Standing>) {
        if let Err(error) = self.standings.keep(id, whose, standing) {
            warn!(disk = id, %error, "how it stands at its IOhost cannot be kept: a restart of this daemon forgets it");
        }
    }
}

/// The boot of this machine. Where it is not told nothing outlives the run.
fn boot() -> u64 {
    #[cfg(any(test, feature = "simulated"))]
    if let Some(machine) = crate::simulated::machine() {
        return machine.boot();
    }
    let boot = names::kernel_text("/proc/sys/kernel/random/boot_id");
    boot.map_or_else(|_| random(), |boot| device_of(boot.trim()))
}

/// Another boot after each loss, also before that is counted.
fn after_losses(boot: u64, losses: u64, has_failed: bool) -> u64 {
    boot.wrapping_add(losses.wrapping_mul(2)) ^ u64::from(has_failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cleared_is_another_boot_to_who_was_away() {
        // Before, failed and not counted yet, counted, cleared; and once more.
        let steps =
            [(0, false), (0, true), (1, true), (1, false), (1, true), (2, true), (2, false)];
        for boot in [0, 1, u64::MAX, 77] {
            let mut all = steps.map(|(losses, failed)| after_losses(boot, losses, failed)).to_vec();
            all.sort_unstable();
            all.dedup();
            // The second failure is as the first one was when that was counted, which nobody can tell apart.
            assert_eq!(all.len(), 6);
        }
    }
}
