//! What one front-end has lent us: its memory, its dirty log, its in-flight record, its channel.
//!
//! The system calls that a session asks for ([`vhost_user::Owner`]). Each fails without changing
//! anything. Dropping it gives everything back, but for what an attached queue still holds.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use device::blk::{self, Live, Shape};
use guest_memory::{Area, DirtyLog, GuestMap, Health, Mapping, Region, Seal};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use vhost_user::{InflightArea, LogArea, MemoryRegion, Owner, Reply};

use crate::connection::Connection;

/// Bytes of guest memory that one front-end may map, 16 TiB: beyond it lies no machine, only an
/// attempt to use up the address space.
const MEMORY_BYTES_MAX: u64 = 16 << 40;
/// Bytes of an in-flight record: 64 packed queues of 32768 take 64 MiB.
const INFLIGHT_BYTES_MAX: u64 = 128 << 20;

/// The mapped in-flight record and how it is divided.
pub(crate) struct InflightRecord {
    pub(crate) area: Area,
    pub(crate) queues: u16,
    pub(crate) queue_size: u16,
}

pub(crate) struct FrontEnd {
    shape: Shape,
    live: Arc<Live>,
    /// For guest memory, and for the log and the in-flight record too: we touch those as often, and a
    /// file cut off under us ends the daemon. QEMU and Cloud Hypervisor seal them.
    seal: Seal,
    /// Of everything that this connection lends us.
    health: Health,
    /// Whether this connection may bring memory: another one may be running the device.
    pub(crate) may_run: bool,
    regions: Vec<Region>,
    map: Option<Arc<GuestMap>>,
    log: Option<Arc<DirtyLog>>,
    pub(crate) inflight: Option<InflightRecord>,
    /// Where we send requests of our own.
    pub(crate) channel: Option<Connection>,
}

impl FrontEnd {
    pub(crate) fn new(shape: Shape, live: Arc<Live>, seal: Seal) -> FrontEnd {
        FrontEnd {
            shape,
            live,
            seal,
            health: Health::default(),
            may_run: true,
            regions: Vec::new(),
            map: None,
            log: None,
            inflight: None,
            channel: None,
        }
    }

    /// The guest's memory, with writes logged or not.
    ///
    /// # Errors
    /// No memory yet, or a log too short for it.
    pub(crate) fn memory(&self, logging: bool) -> Result<Arc<GuestMap>, String> {
        let map = self.map.as_ref().ok_or("no memory was announced")?;
        match &self.log {
            Some(log) if logging => {
                let logged = map.with_log(Some(Arc::clone(log))).map_err(|e| e.to_string())?;
                Ok(Arc::new(logged))
            }
            _ => Ok(Arc::clone(map)),
        }
    }

    /// Tells the front-end that the config space changed. What does not fit is told later.
    pub(crate) fn tell(&mut self, bytes: Vec<u8>) -> std::io::Result<()> {
        match &mut self.channel {
            Some(channel) => channel.send(Reply { bytes, fd: None }),
            None => Ok(()),
        }
    }

    fn map_region(&self, region: &MemoryRegion, fd: &OwnedFd) -> Result<Region, String> {
        let mapped: u64 = self.regions.iter().map(|r| r.mapping.len() as u64).sum();
        if mapped.saturating_add(region.size) > MEMORY_BYTES_MAX {
            return Err(format!("more than {} TiB of memory", MEMORY_BYTES_MAX >> 40));
        }
        let mapping = Mapping::shared(fd, region.offset, region.size, self.seal, &self.health)
            .map_err(|e| format!("the region at {:#x}: {e}", region.gpa))?;
        Ok(Region { gpa: region.gpa, user: region.user, mapping })
    }

    fn replace(&mut self, regions: Vec<Region>) -> Result<(), String> {
        let map = GuestMap::new(regions.clone()).map_err(|e| e.to_string())?;
        if let Some(log) = &self.log {
            map.with_log(Some(Arc::clone(log))).map_err(|e| e.to_string())?;
        }
        self.map = Some(Arc::new(map));
        self.regions = regions;
        Ok(())
    }

    fn check_may_run(&self) -> Result<(), String> {
        match self.may_run {
            true => Ok(()),
            false => Err("another front-end runs this disk; one at a time".to_string()),
        }
    }
}

impl Owner<OwnedFd> for FrontEnd {
    fn read_config(&self, offset: u32, into: &mut [u8]) -> bool {
        blk::read_config(&self.shape, &self.live, offset, into)
    }

    fn write_config(&mut self, negotiated: u64, offset: u32, bytes: &[u8]) -> bool {
        // The config space belongs to the driver that runs: a front-end that only asks must not turn
        // its write-back cache on or off.
        self.may_run && blk::write_config(&self.live, negotiated, offset, bytes)
    }

    fn set_memory(&mut self, regions: &[MemoryRegion], fds: Vec<OwnedFd>) -> Result<(), String> {
        self.check_may_run()?;
        let (before, mut mapped) = (std::mem::take(&mut self.regions), Vec::new());
        for (region, fd) in regions.iter().zip(&fds) {
            match self.map_region(region, fd) {
                Ok(region) => mapped.push(region),
                Err(error) => {
                    self.regions = before;
                    return Err(error);
                }
            }
        }
        self.replace(mapped).inspect_err(|_| self.regions = before)
    }

    fn add_region(&mut self, region: &MemoryRegion, fd: OwnedFd) -> Result<(), String> {
        self.check_may_run()?;
        let added = self.map_region(region, &fd)?;
        self.replace(self.regions.iter().cloned().chain([added]).collect())
    }

    fn remove_region(&mut self, region: &MemoryRegion) -> Result<(), String> {
        let stays = |r: &&Region| (r.gpa, r.user) != (region.gpa, region.user);
        self.replace(self.regions.iter().filter(stays).cloned().collect())
    }

    fn set_log(&mut self, area: LogArea, fd: OwnedFd) -> Result<(), String> {
        let log = DirtyLog::map(&fd, area.offset, area.size, self.seal, &self.health)
            .map_err(|e| e.to_string())?;
        if let Some(map) = &self.map {
            map.with_log(Some(Arc::clone(&log))).map_err(|e| e.to_string())?;
        }
        self.log = Some(log);
        Ok(())
    }

    fn make_inflight(&mut self, len: u64) -> Result<OwnedFd, String> {
        if len > INFLIGHT_BYTES_MAX {
            return Err(format!("an in-flight record of {len} bytes is too large"));
        }
        let make = || -> rustix::io::Result<OwnedFd> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = rustix::fs::memfd_create("sidecore-inflight", flags)?;
            rustix::fs::ftruncate(&fd, len)?;
            let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(&fd, seals)?;
            Ok(fd)
        };
        make().map_err(|e| format!("cannot make an in-flight record: {e}"))
    }

    fn set_inflight(&mut self, area: &InflightArea, fd: OwnedFd) -> Result<(), String> {
        if area.size > INFLIGHT_BYTES_MAX {
            return Err(format!("an in-flight record of {} bytes is too large", area.size));
        }
        let mapping = Mapping::shared(&fd, area.offset, area.size, self.seal, &self.health)
            .map_err(|e| e.to_string())?;
        let (queues, queue_size) = (area.queues, area.queue_size);
        self.inflight = Some(InflightRecord { area: Area::whole(mapping), queues, queue_size });
        Ok(())
    }

    fn check_signal(&self, fd: &OwnedFd) -> Result<(), String> {
        let refused = |why: String| format!("not an eventfd that can be used: {why}");
        let link = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(fd));
        let target = std::fs::read_link(link).map_err(|e| refused(e.to_string()))?;
        if target.to_str() != Some("anon_inode:[eventfd]") {
            return Err(refused(target.display().to_string()));
        }
        // A write to it must never wait: a sidecore serves others too.
        let flags = rustix::fs::fcntl_getfl(fd).map_err(|e| refused(e.to_string()))?;
        rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK).map_err(|e| refused(e.to_string()))
    }

    fn set_channel(&mut self, fd: OwnedFd) -> Result<(), String> {
        let kind = rustix::net::sockopt::socket_type(fd.as_fd())
            .map_err(|e| format!("the channel is not a socket: {e}"))?;
        if kind != rustix::net::SocketType::STREAM {
            return Err("the channel is not a stream socket".to_string());
        }
        self.channel = Some(Connection::new(fd));
        Ok(())
    }

    fn reset(&mut self) {
        if self.may_run {
            self.live.set_writeback(true);
        }
    }
}

#[cfg(test)]
mod tests;
