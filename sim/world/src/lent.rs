//! What one front-end has lent a simulated daemon: the session's owner, from the blocks that the manager's is
//! made of.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use device::{blk, net};
use guest_memory::{Area, DirtyLog, GuestMap, Health, Mapping, Seal};
use vhost_user::{InflightArea, LogArea, MemoryRegion, Owner};

use crate::layout::{mapped, sealed};

#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) area: Area,
    pub(crate) queues: u16,
    pub(crate) queue_size: u16,
}

/// What a front-end sees of its device.
#[derive(Clone, Debug)]
pub(crate) enum Personality {
    Disk(blk::Shape, Arc<blk::Live>),
    Nic(net::Shape, Arc<net::Live>),
}

#[derive(Debug)]
pub(crate) struct Lent {
    personality: Personality,
    health: Health,
    map: Option<GuestMap>,
    log: Option<Arc<DirtyLog>>,
    pub(crate) record: Option<Record>,
}

impl Lent {
    pub(crate) fn new(personality: Personality) -> Lent {
        Lent { personality, health: Health::default(), map: None, log: None, record: None }
    }

    /// The guest's memory, with writes logged or not.
    pub(crate) fn memory(&self, logging: bool) -> Result<Arc<GuestMap>, String> {
        let map = self.map.as_ref().ok_or("no memory was announced")?;
        let log = self.log.clone().filter(|_| logging);
        Ok(Arc::new(map.with_log(log).map_err(|e| e.to_string())?))
    }
}

impl Owner<OwnedFd> for Lent {
    type Error = String;

    fn read_config(&self, offset: u32, into: &mut [u8]) -> bool {
        match &self.personality {
            Personality::Disk(shape, live) => blk::read_config(shape, live, offset, into),
            Personality::Nic(shape, live) => net::read_config(shape, live, offset, into),
        }
    }

    fn write_config(&mut self, negotiated: u64, offset: u32, bytes: &[u8]) -> bool {
        match &self.personality {
            Personality::Disk(_, live) => blk::write_config(live, negotiated, offset, bytes),
            Personality::Nic(_, live) => net::write_config(live, negotiated, offset, bytes),
        }
    }

    fn set_memory(&mut self, regions: &[MemoryRegion], fds: Vec<OwnedFd>) -> Result<(), String> {
        self.map = Some(mapped(regions, &fds, &self.health)?);
        Ok(())
    }

    fn add_region(&mut self, _region: &MemoryRegion, _fd: OwnedFd) -> Result<(), String> {
        Err("memory comes as a table here".into())
    }

    fn remove_region(&mut self, _region: &MemoryRegion) -> Result<(), String> {
        Err("memory comes as a table here".into())
    }

    fn set_log(&mut self, area: LogArea, fd: OwnedFd) -> Result<(), String> {
        let log = DirtyLog::map(fd.as_fd(), area.offset, area.size, Seal::Required, &self.health);
        self.log = Some(log.map_err(|e| e.to_string())?);
        Ok(())
    }

    fn make_inflight(&mut self, len: u64) -> Result<OwnedFd, String> {
        sealed("record", len)
    }

    fn set_inflight(&mut self, area: &InflightArea, fd: OwnedFd) -> Result<(), String> {
        let mapping = Mapping::shared(&fd, area.offset, area.size, Seal::Required, &self.health);
        let area_of = Area::whole(mapping.map_err(|e| e.to_string())?);
        let (queues, queue_size) = (area.queues, area.queue_size);
        self.record = Some(Record { area: area_of, queues, queue_size });
        Ok(())
    }

    fn check_signal(&self, _fd: &OwnedFd) -> Result<(), String> {
        Ok(())
    }

    fn set_channel(&mut self, _fd: OwnedFd) -> Result<(), String> {
        Ok(())
    }

    fn reset(&mut self) {
        if let Personality::Disk(_, live) = &self.personality {
            live.set_writeback(true);
        }
    }

    fn announce(&mut self, _mac: [u8; 6]) -> Result<(), String> {
        Err("nobody is announced here".into())
    }

    fn set_mtu(&mut self, _mtu: u16) -> Result<(), String> {
        Err("the MTU stays here".into())
    }
}
