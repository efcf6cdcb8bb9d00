//! What clients are told of a disk besides its size: what it can do, and whether it still holds what it said it holds.
//!
//! Not who is told (`serving`); what clients make of it is in `using`.

use remote::wire::Verifier;
use tracing::warn;

use super::{Manager, Remote, device_of, random};
use crate::defects::found;
use crate::disk::DiskParts;

/// What clients are told of a disk besides its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Features {
    pub(super) readonly: bool,
    pub(super) block_size: u32,
    pub(super) physical_block_size: u32,
    /// What a discard frees is a multiple of so many bytes; 0: not known.
    pub(super) discard_bytes: u32,
    pub(super) discard_sectors_max: u32,
    pub(super) zeroes_sectors_max: u32,
}

const READONLY: u32 = 1;
const DISCARD: u32 = 1 << 1;
const ZEROES: u32 = 1 << 2;
/// Logical blocks have 4,096 bytes.
const LARGE_BLOCKS: u32 = 1 << 3;
/// Behind it, in 4 bits, the power of two of sectors that a discard frees; 0: not known, or one.
const FREED_SHIFT: u32 = 4;
const FREED_MAX: u32 = 15;
/// Behind them, powers of two of sectors, 8 bits each: a physical block, what one discard covers at most, and one that
/// writes zeroes.
const BLOCK_SHIFT: u32 = 8;
const DISCARD_SHIFT: u32 = 16;
const ZEROES_SHIFT: u32 = 24;
/// What either may cover at most, whatever an IOhost says: 1 GiB in sectors.
const RANGE_SECTORS_MAX: u32 = 1 << 21;

impl Features {
    pub(super) fn of(parts: &DiskParts) -> Features {
        let (disk, readonly) = (&parts.disk, parts.plan.readonly);
        let limits = disk.limits();
        Features {
            readonly,
            block_size: parts.shape.block_size,
            physical_block_size: disk.physical_block_size(),
            discard_bytes: disk.grain().discard,
            discard_sectors_max: limits.discard_sectors_max,
            zeroes_sectors_max: limits.zeroes_sectors_max,
        }
    }

    pub(super) fn bits(self) -> u32 {
        let flag = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
        // The next smaller one, of a limit that is none.
        let exponent = |sectors: u32| sectors.checked_ilog2().unwrap_or(0);
        flag(self.readonly, READONLY)
            | flag(self.discard_sectors_max > 0, DISCARD)
            | flag(self.zeroes_sectors_max > 0, ZEROES)
            | flag(self.block_size == 4096, LARGE_BLOCKS)
            | exponent(self.discard_bytes / 512).min(FREED_MAX) << FREED_SHIFT
            | exponent(self.physical_block_size / 512) << BLOCK_SHIFT
            | exponent(self.discard_sectors_max) << DISCARD_SHIFT
            | exponent(self.zeroes_sectors_max) << ZEROES_SHIFT
    }

    /// What the bits of an IOhost mean, whatever they are.
    pub(super) fn of_bits(bits: u32) -> Features {
        let exponent = |shift: u32| bits >> shift & 0xff;
        let range = |bit: u32, shift| match bits & bit {
            0 => 0,
            _ => RANGE_SECTORS_MAX.min(1 << exponent(shift).min(31)),
        };
        Features {
            readonly: bits & READONLY != 0,
            block_size: if bits & LARGE_BLOCKS != 0 { 4096 } else { 512 },
            discard_bytes: match bits >> FREED_SHIFT & FREED_MAX {
                0 => 0,
                exponent => 512 << exponent,
            },
            physical_block_size: 512 << exponent(BLOCK_SHIFT).min(16),
            discard_sectors_max: range(DISCARD, DISCARD_SHIFT),
            zeroes_sectors_max: range(ZEROES, ZEROES_SHIFT),
        }
    }
}

impl Manager {
    /// A disk could not be made stable: that is counted, if clients may have it.
    pub(crate) fn count_loss(&mut self, device: u32) {
        let device = found!(
            self.rooms.turn.defects,
            self.rooms.devices.get(device),
            "device that has lost data"
        );
        if !device.is_exported() {
            return;
        }
        let id = device.facts.id.clone();
        let losses = &self.rooms.remote.losses;
        let kept = losses.of(&id, None).and_then(|count| losses.keep(&id, None, count + 1));
        if let Err(error) = kept {
            warn!(disk = id, %error, "that it has lost data cannot be counted: when it is cleared, a client that was away does not hear of it");
        }
    }
}

impl Manager {
    /// A disk is about to be told to clients, whose guests are on its image from here on.
    pub(super) fn note_exported(&mut self, device: u32) {
        let parts = self.rooms.devices.get_mut(device).and_then(|device| device.kind.disk_mut());
        let parts = found!(self.rooms.turn.defects, parts, "disk that clients may have");
        let id = parts.plan.id.clone();
        if let Some(image) = parts.bond.export() {
            self.rooms.devices.keep_image(&id, &image, &mut self.rooms.bonds, &self.rooms.plan);
        }
    }
}

/// What the storage of a disk is: writes that were not yet stable are gone with this boot of the machine, and with a
/// sync that failed; what is in memory is gone with this run of the daemon. An operator who clears a failure knows of it,
/// and a client that was away does not.
pub(super) fn verifier_of(remote: &Remote, parts: &DiskParts) -> Verifier {
    let id = &parts.plan.id;
    let name = device_of(id);
    let (boot, contents) = match parts.plan.source.path() {
        Some(_) => (remote.boot, name),
        None => (remote.run, name ^ remote.run),
    };
    // Where that cannot be read a client is rather told of a loss.
    let losses = remote.losses.of(id, None).unwrap_or_else(|_| random());
    Verifier { boot: after_losses(boot, losses, parts.disk.sync_failed()), contents }
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

    #[test]
    fn clients_are_offered_no_more_than_the_disk_takes() {
        for (discard, zeroes) in [(1 << 17, 1 << 15), (0, 7), (u32::MAX, 1), (1 << 21, 0)] {
            let mut told = Features {
                readonly: false,
                block_size: 4096,
                physical_block_size: 4096,
                discard_bytes: 64 << 10,
                discard_sectors_max: discard,
                zeroes_sectors_max: zeroes,
            };
            let heard = Features::of_bits(told.bits());
            for (told, heard) in
                [(discard, heard.discard_sectors_max), (zeroes, heard.zeroes_sectors_max)]
            {
                assert!(heard <= told && heard <= RANGE_SECTORS_MAX, "{heard} of {told}");
                assert!(heard >= told.min(RANGE_SECTORS_MAX) / 2, "{heard} of {told}");
            }
            (told.discard_sectors_max, told.zeroes_sectors_max) =
                (heard.discard_sectors_max, heard.zeroes_sectors_max);
            assert_eq!(Features::of_bits(told.bits()), told);
        }
        // Whatever an IOhost says.
        for bits in [u32::MAX, 0, 7, 0xff << 24 | 7] {
            let heard = Features::of_bits(bits);
            assert!(
                heard.discard_sectors_max <= RANGE_SECTORS_MAX
                    && heard.physical_block_size <= 512 << 16
            );
        }
    }
}
