//! The regions that a front-end announced, checked against one another.

use crate::message::MemoryRegion;
use crate::refusal::Reason;

/// Regions at most, as many as QEMU has slots.
pub const MEMORY_SLOTS_MAX: usize = 509;

/// Refuses a table that no memory can look like.
pub(crate) fn check(regions: &[MemoryRegion], most: usize) -> Result<(), Reason> {
    if regions.is_empty() || regions.len() > most {
        return Err(Reason::Regions(regions.len()));
    }
    for (index, region) in regions.iter().enumerate() {
        check_alone(region)?;
        let (before, _) = regions.split_at(index);
        check_beside(region, before)?;
    }
    Ok(())
}

/// Refuses a region that cannot join `others`.
pub(crate) fn check_added(region: &MemoryRegion, others: &[MemoryRegion]) -> Result<(), Reason> {
    if others.len() >= MEMORY_SLOTS_MAX {
        return Err(Reason::Regions(others.len() + 1));
    }
    check_alone(region)?;
    check_beside(region, others)
}

/// The place of a region that a front-end wants removed: its file offset does not matter.
pub(crate) fn find(region: &MemoryRegion, regions: &[MemoryRegion]) -> Result<usize, Reason> {
    let same = |other: &MemoryRegion| {
        (other.gpa, other.user, other.size) == (region.gpa, region.user, region.size)
    };
    regions.iter().position(same).ok_or(Reason::NoRegion { gpa: region.gpa })
}

fn check_alone(region: &MemoryRegion) -> Result<(), Reason> {
    let ends = [region.gpa, region.user, region.offset].map(|start| start.checked_add(region.size));
    if region.size == 0 || ends.contains(&None) {
        return Err(Reason::RegionSize { gpa: region.gpa, size: region.size });
    }
    Ok(())
}

fn check_beside(region: &MemoryRegion, others: &[MemoryRegion]) -> Result<(), Reason> {
    let apart = |a: u64, b: u64, other: &MemoryRegion| {
        a.saturating_add(region.size) <= b || b.saturating_add(other.size) <= a
    };
    let clash = others.iter().any(|other| {
        !apart(region.gpa, other.gpa, other) || !apart(region.user, other.user, other)
    });
    if clash { Err(Reason::RegionOverlap { gpa: region.gpa }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(gpa: u64, size: u64, user: u64) -> MemoryRegion {
        MemoryRegion { gpa, size, user, offset: 0 }
    }

    #[test]
    fn tables_that_no_memory_looks_like_are_refused() {
        let fine = region(0, 0x1000, 0x10_0000);
        let cases = [
            (vec![], Reason::Regions(0)),
            (vec![fine; 9], Reason::Regions(9)),
            (vec![region(1, 0, 0)], Reason::RegionSize { gpa: 1, size: 0 }),
            (vec![region(u64::MAX, 2, 0)], Reason::RegionSize { gpa: u64::MAX, size: 2 }),
            (vec![region(0, 2, u64::MAX)], Reason::RegionSize { gpa: 0, size: 2 }),
            (
                vec![MemoryRegion { offset: u64::MAX, ..fine }],
                Reason::RegionSize { gpa: 0, size: 0x1000 },
            ),
            (vec![fine, region(0xfff, 1, 0)], Reason::RegionOverlap { gpa: 0xfff }),
            (vec![fine, region(0x1000, 1, 0x10_0fff)], Reason::RegionOverlap { gpa: 0x1000 }),
        ];
        for (regions, expected) in cases {
            assert_eq!(check(&regions, 8), Err(expected));
        }
        assert_eq!(check(&[fine, region(0x1000, 0x1000, 0)], 8), Ok(()));
    }

    #[test]
    fn a_region_joins_and_leaves_by_its_addresses() {
        let table = [region(0, 0x1000, 0x5000), region(0x1000, 0x1000, 0x9000)];
        assert_eq!(check_added(&region(0x2000, 1, 0), &table), Ok(()));
        assert_eq!(check_added(&table[0], &table), Err(Reason::RegionOverlap { gpa: 0 }));
        let elsewhere = MemoryRegion { offset: 7, ..table[1] };
        assert_eq!(find(&elsewhere, &table), Ok(1));
        let unknown = region(0x1000, 0x1000, 0x9001);
        assert_eq!(find(&unknown, &table), Err(Reason::NoRegion { gpa: 0x1000 }));
        let many: Vec<_> = (0..509).map(|i| region(i << 12, 0x1000, i << 12)).collect();
        assert_eq!(check(&many, MEMORY_SLOTS_MAX), Ok(()));
        assert_eq!(check_added(&region(1 << 40, 1, 1 << 40), &many), Err(Reason::Regions(510)));
    }
}
