//! The memory that a driver's addresses name: one file of the kernel, each byte at its own address.
//!
//! Mapped by the daemon as one region. Pages of buffers come while the driver runs; its rings are there before.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use guest_memory::{Area, Health, Mapping, Seal};
use vhost_user::MemoryRegion;

use crate::abi::{self, IotlbEntry};
use crate::{Error, sys};

/// Runs of addresses at most: each queue's rings are up to three, and buffers one.
const ENTRIES_MAX: usize = 4096;
const PAGE: u64 = 4096;
/// Where the index is in a used ring, bytes.
const USED_INDEX: u64 = 2;

/// What is mapped.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) region: MemoryRegion,
    pub(crate) file: OwnedFd,
}

impl Memory {
    /// As the kernel says now.
    pub(crate) fn of(device: &File) -> Result<Memory, Error> {
        let (mut entries, mut file, mut first) = (Vec::new(), None, 0);
        while entries.len() < ENTRIES_MAX {
            let mut request = abi::iotlb_get_fd(first);
            // It fails when there is nothing from there on.
            let Ok(fd) = sys::call_for_fd(device, &mut request) else { break };
            let entry = request.answer();
            entries.push(entry);
            file.get_or_insert(fd);
            match entry.last.checked_add(1).filter(|next| *next > first) {
                Some(next) => first = next,
                None => break,
            }
        }
        let (Some(file), Some(region)) = (file, region_of(&entries)) else {
            return Err(Error::Daemon(format!(
                "the kernel's memory is not what this version knows: {entries:?}"
            )));
        };
        Ok(Memory { region, file })
    }

    /// The index of a split ring's used ring.
    pub(crate) fn used_index(&self, used_ring: u64) -> Result<u16, Error> {
        let page = used_ring & !(PAGE - 1);
        let mapping = Mapping::shared(&self.file, page, PAGE, Seal::Any, &Health::default());
        let mapping =
            mapping.map_err(|error| Error::Daemon(format!("the kernel's ring: {error}")))?;
        let at = (used_ring - page + USED_INDEX) as usize;
        // The index is two bytes at an even address.
        let window = Area::whole(mapping).window(at, 2).filter(|area| area.is_aligned(2));
        let window = window.ok_or(Error::Daemon("the kernel's ring is not aligned".to_string()))?;
        Ok(window.load_acquire_u16(0))
    }

    pub(crate) fn lent(&self) -> (MemoryRegion, std::os::fd::BorrowedFd<'_>) {
        (self.region, self.file.as_fd())
    }
}

/// One region from address 0 to the end of the last entry: its file has each byte at its address. `None` if that is not
/// so, or there is nothing.
fn region_of(entries: &[IotlbEntry]) -> Option<MemoryRegion> {
    let is_in_place = |entry: &IotlbEntry| entry.offset == entry.first && entry.first <= entry.last;
    if !entries.iter().all(is_in_place) {
        return None;
    }
    let last = entries.iter().map(|entry| entry.last).max()?;
    let size = last.checked_add(1)?.checked_next_multiple_of(PAGE)?;
    Some(MemoryRegion { gpa: 0, size, user: 0, offset: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_the_driver_may_name_is_one_region() {
        let entry = |first, last| IotlbEntry { offset: first, first, last };
        let region = |size| Some(MemoryRegion { gpa: 0, size, user: 0, offset: 0 });
        assert_eq!(region_of(&[entry(0x4000_0000, 0x4000_0fff)]), region(0x4000_1000));
        // A ring that ends within a page, and one that was made before it and lies above.
        assert_eq!(region_of(&[entry(0x1000, 0x1102), entry(0x8000, 0x8fff)]), region(0x9000));
        assert_eq!(region_of(&[entry(0, 0x10)]), region(0x1000));
        assert_eq!(region_of(&[]), None);
        assert_eq!(region_of(&[IotlbEntry { offset: 0, first: 0x1000, last: 0x1fff }]), None);
        assert_eq!(region_of(&[entry(0x2000, 0x1fff)]), None);
        assert_eq!(region_of(&[entry(0, u64::MAX)]), None);
    }
}
