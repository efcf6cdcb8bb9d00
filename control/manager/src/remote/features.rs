//! What clients are told of a disk besides its size: what it can do, as bits.
//!
//! Not who is told (`lends`); what clients make of it is in `parts`. Whether it still holds what it said it holds is in
//! `ledger`.

use backend::Disk;

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
    /// Those of a disk in its guests' blocks.
    pub(super) fn of(disk: &Disk, block_size: u32, readonly: bool) -> Features {
        let limits = disk.limits();
        Features {
            readonly,
            block_size,
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

#[cfg(test)]
mod tests {
    use super::*;

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
