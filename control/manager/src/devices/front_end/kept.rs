//! The descriptors behind what a front-end has lent, for a process that takes over: each with the
//! message that brought it.
//!
//! Mappings need none of them once they are made. Not here: the mappings (`front_end`). Retold by
//! `upgrade::bequest`.

use rustix::fs::SealFlags;
use vhost_user::message::TABLE_REGIONS_MAX;
use vhost_user::{InflightArea, LogArea, MemoryRegion, Message, Told};

use crate::devices::lent::Lent;

#[derive(Default)]
pub(crate) struct Kept {
    regions: Vec<(MemoryRegion, Lent)>,
    log: Option<(LogArea, Lent)>,
    inflight: Option<(InflightArea, Lent)>,
}

impl Kept {
    pub(super) fn set_regions(&mut self, regions: &[MemoryRegion], fds: Vec<Lent>) {
        self.regions = regions.iter().copied().zip(fds).collect();
    }

    pub(super) fn add_region(&mut self, region: MemoryRegion, fd: Lent) {
        self.regions.push((region, fd));
    }

    pub(super) fn remove_region(&mut self, region: &MemoryRegion) {
        self.regions.retain(|(kept, _)| (kept.gpa, kept.user) != (region.gpa, region.user));
    }

    pub(super) fn set_log(&mut self, area: LogArea, fd: Lent) {
        self.log = Some((area, fd));
    }

    pub(super) fn set_inflight(&mut self, area: InflightArea, fd: Lent) {
        self.inflight = Some((area, fd));
    }

    /// How many of memory there are.
    pub(crate) fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Whether each file is still as long as when it was mapped, and can be mapped to be written: if not, its
    /// pages are gone, or it was sealed since, and nobody else could map it.
    pub(crate) fn is_whole(&self) -> bool {
        let regions = self.regions.iter().map(|(area, fd)| (area.offset, area.size, fd));
        let log = self.log.iter().map(|(area, fd)| (area.offset, area.size, fd));
        let record = self.inflight.iter().map(|(area, fd)| (area.offset, area.size, fd));
        regions.chain(log).chain(record).all(|(offset, len, fd)| {
            let has = rustix::fs::fstat(fd).map_or(0, |stat| stat.st_size);
            let seals = rustix::fs::fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
            if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
                return false;
            }
            offset.checked_add(len).is_some_and(|end| end <= u64::try_from(has).unwrap_or(0))
        })
    }

    /// The messages that bring all of it again: to be said after features and before rings.
    pub(crate) fn retell(&self) -> Vec<Told<'_, Lent>> {
        let (first, more) = self.regions.split_at(self.regions.len().min(TABLE_REGIONS_MAX));
        let mut told = Vec::new();
        if !first.is_empty() {
            let regions = first.iter().map(|(region, _)| *region).collect();
            told.push((Message::SetMemTable(regions), first.iter().map(|(_, fd)| fd).collect()));
        }
        told.extend(more.iter().map(|(region, fd)| (Message::AddMemReg(*region), vec![fd])));
        told.extend(self.log.iter().map(|(area, fd)| (Message::SetLogBase(*area), vec![fd])));
        let record = self.inflight.iter();
        told.extend(record.map(|(area, fd)| (Message::SetInflightFd(*area), vec![fd])));
        told
    }
}
