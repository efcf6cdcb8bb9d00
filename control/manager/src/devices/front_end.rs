//! What one front-end has lent us: its memory, its dirty log, its in-flight record, its channel.
//!
//! The system calls that a session asks for ([`vhost_user::Owner`]). Each fails without changing
//! anything. Dropping it gives everything back, but for what an attached queue still holds.

mod errors;
mod kept;

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use guest_memory::{Area, DirtyLog, GuestMap, Health, Loss, MapError, Mapping, Region, Seal};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketAddrAny, SocketAddrUnix, SocketType, getpeername,
    getsockname, recv, shutdown,
};
use vhost_user::{InflightArea, LogArea, MemoryRegion, Owner, Reply};

use crate::bounds::address_space::Claim;
use crate::bounds::{self, Bounds};
use crate::devices::frame_socket::FrameSocket;
use crate::devices::kind::Personality;
use crate::devices::lent::{Closer, Lent, is_eventfd, kind_of};

use errors::{ChannelRefused, MemoryRefused, SignalRefused};
pub(crate) use errors::{FrontEndError, MemoryMissing};
use kept::Kept;

/// Bytes of a dirty log: a bit for each page of 16 TiB takes 512 MiB.
const LOG_BYTES_MAX: u64 = 1 << 30;
/// Bytes of an in-flight record: 64 packed queues of 32768 take 64 MiB.
const INFLIGHT_BYTES_MAX: u64 = 128 << 20;

/// The mapped in-flight record and how it is divided.
pub(crate) struct InflightRecord {
    pub(crate) area: Area,
    pub(crate) queues: u16,
    pub(crate) queue_size: u16,
}

pub(crate) struct FrontEnd {
    personality: Personality,
    /// For guest memory, and for the log and the in-flight record too: we touch those as often, and a
    /// file cut off under us costs this front-end its queues. QEMU seals them.
    seal: Seal,
    /// Of everything that this connection lends us.
    health: Health,
    /// What it takes of our addresses.
    claim: Claim,
    /// What it takes for more regions of memory than each may have: always that of `regions`, but while
    /// they are changed.
    extra: bounds::Claim,
    /// Of that, for the log and for the in-flight record, bytes.
    log_bytes: u64,
    inflight_bytes: u64,
    closer: Closer,
    /// Whether this connection may bring memory: another one may be running the device.
    pub(crate) may_run: bool,
    regions: Vec<Region>,
    map: Option<Arc<GuestMap>>,
    log: Option<Arc<DirtyLog>>,
    pub(crate) inflight: Option<InflightRecord>,
    /// For whoever takes over.
    pub(crate) kept: Kept,
    /// An address that its guest has brought here and nobody was told of yet.
    pub(crate) announced: Option<[u8; 6]>,
    /// Where we send requests of our own.
    pub(crate) channel: Option<FrameSocket>,
    /// What is said was accepted by another process before.
    pub(crate) is_replayed: bool,
    /// It forbade what it had lent, by a seal.
    pub(crate) has_sealed: Cell<bool>,
}

impl FrontEnd {
    pub(crate) fn new(
        personality: Personality,
        seal: Seal,
        bounds: &Bounds,
        closer: &Closer,
    ) -> FrontEnd {
        FrontEnd {
            personality,
            seal,
            health: Health::default(),
            claim: bounds.addresses().claim(),
            extra: bounds.claim_no_regions(),
            log_bytes: 0,
            inflight_bytes: 0,
            closer: closer.clone(),
            may_run: true,
            regions: Vec::new(),
            map: None,
            log: None,
            inflight: None,
            kept: Kept::default(),
            announced: None,
            channel: None,
            is_replayed: false,
            has_sealed: Cell::new(false),
        }
    }

    /// The guest's memory, with writes logged or not.
    ///
    /// # Errors
    /// No memory yet, or a log too short for it.
    pub(crate) fn memory(&self, logging: bool) -> Result<Arc<GuestMap>, MemoryMissing> {
        let map = self.map.as_ref().ok_or(MemoryMissing::NotAnnounced)?;
        match &self.log {
            Some(log) if logging => Ok(Arc::new(map.with_log(Some(Arc::clone(log)))?)),
            _ => Ok(Arc::clone(map)),
        }
    }

    /// Nothing is written into what it lent any more, though requests of it are still with the disk:
    /// its guest may use those places for something else.
    pub(crate) fn abandon(&self) {
        self.health.lose(Loss::Memory);
    }

    /// What it took away or made to wait, if it did: it is not served any more.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.health.loss()
    }

    /// Tells the front-end that the config space changed. What does not fit is told later.
    pub(crate) fn tell(&mut self, bytes: Vec<u8>) -> std::io::Result<()> {
        match &mut self.channel {
            Some(channel) => channel.send(Reply { bytes, fd: None }),
            None => Ok(()),
        }
    }

    /// Takes addresses for so much guest memory, log and record, and mappings for so many regions, gives
    /// them to `change`, and takes them back when that fails.
    fn claiming<T>(
        &mut self,
        [memory, log, inflight]: [u64; 3],
        regions: usize,
        change: impl FnOnce(&mut FrontEnd) -> Result<T, MemoryRefused>,
    ) -> Result<T, MemoryRefused> {
        let before = self.claim.bytes();
        // Fewer only when that is so: what was given back could be another's by then.
        self.extra.set_regions(regions.max(self.regions.len()))?;
        let addresses = self.claim.set(memory.saturating_add(log).saturating_add(inflight));
        let changed = addresses.map_err(MemoryRefused::from).and_then(|()| change(self));
        match &changed {
            Ok(_) => (self.log_bytes, self.inflight_bytes) = (log, inflight),
            Err(_) => self.claim.set(before).unwrap_or(()),
        }
        // Not more than it has: never refused.
        self.extra.set_regions(self.regions.len()).unwrap_or(());
        changed
    }

    fn memory_bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.mapping.len() as u64).sum()
    }

    fn map_region(&self, region: &MemoryRegion, fd: &Lent) -> Result<Region, MemoryRefused> {
        let mapping = Mapping::shared(fd, region.offset, region.size, self.seal, &self.health)
            .inspect_err(|error| {
                let is_sealed = matches!(error, MapError::Os(Errno::PERM));
                self.has_sealed.set(self.has_sealed.get() || is_sealed);
            })
            .map_err(|source| MemoryRefused::Region { gpa: region.gpa, source })?;
        Ok(Region { gpa: region.gpa, user: region.user, mapping })
    }

    fn replace(&mut self, regions: Vec<Region>) -> Result<(), MapError> {
        let map = GuestMap::new(regions.clone())?;
        if let Some(log) = &self.log {
            map.with_log(Some(Arc::clone(log)))?;
        }
        self.map = Some(Arc::new(map));
        self.regions = regions;
        Ok(())
    }

    fn check_may_run(&self) -> Result<(), MemoryRefused> {
        match self.may_run {
            true => Ok(()),
            false => Err(MemoryRefused::RunByAnother),
        }
    }
}

impl Owner<Lent> for FrontEnd {
    type Error = FrontEndError;

    fn read_config(&self, offset: u32, into: &mut [u8]) -> bool {
        self.personality.read_config(offset, into)
    }

    fn write_config(&mut self, negotiated: u64, offset: u32, bytes: &[u8]) -> bool {
        // The config space belongs to the driver that runs: a front-end that only asks must not turn
        // its write-back cache on or off.
        self.may_run && self.personality.write_config(negotiated, offset, bytes)
    }

    fn set_memory(
        &mut self,
        regions: &[MemoryRegion],
        fds: Vec<Lent>,
    ) -> Result<(), FrontEndError> {
        self.check_may_run()?;
        let total = regions.iter().fold(0u64, |sum, region| sum.saturating_add(region.size));
        let lent = [total, self.log_bytes, self.inflight_bytes];
        let changed = self.claiming(lent, regions.len(), |this| {
            let each = regions.iter().zip(&fds);
            let mapped = each.map(|(region, fd)| this.map_region(region, fd));
            this.replace(mapped.collect::<Result<_, _>>()?)?;
            this.kept.set_regions(regions, fds);
            Ok(())
        });
        Ok(changed?)
    }

    fn add_region(&mut self, region: &MemoryRegion, fd: Lent) -> Result<(), FrontEndError> {
        self.check_may_run()?;
        let total = self.memory_bytes().saturating_add(region.size);
        let count = self.regions.len() + 1;
        let lent = [total, self.log_bytes, self.inflight_bytes];
        let changed = self.claiming(lent, count, |this| {
            let added = this.map_region(region, &fd)?;
            this.replace(this.regions.iter().cloned().chain([added]).collect())?;
            this.kept.add_region(*region, fd);
            Ok(())
        });
        Ok(changed?)
    }

    fn remove_region(&mut self, region: &MemoryRegion) -> Result<(), FrontEndError> {
        let stays = |r: &&Region| (r.gpa, r.user) != (region.gpa, region.user);
        let total = self.memory_bytes().saturating_sub(region.size);
        let count = self.regions.len();
        let lent = [total, self.log_bytes, self.inflight_bytes];
        let changed = self.claiming(lent, count, |this| {
            this.replace(this.regions.iter().filter(stays).cloned().collect())?;
            this.kept.remove_region(region);
            Ok(())
        });
        Ok(changed?)
    }

    fn set_log(&mut self, area: LogArea, fd: Lent) -> Result<(), FrontEndError> {
        if area.size > LOG_BYTES_MAX {
            return Err(MemoryRefused::LogSize(area.size).into());
        }
        let count = self.regions.len();
        let lent = [self.memory_bytes(), area.size, self.inflight_bytes];
        let changed = self.claiming(lent, count, |this| {
            let log = DirtyLog::map(&fd, area.offset, area.size, this.seal, &this.health)?;
            if let Some(map) = &this.map {
                map.with_log(Some(Arc::clone(&log)))?;
            }
            this.log = Some(log);
            this.kept.set_log(area, fd);
            Ok(())
        });
        Ok(changed?)
    }

    fn make_inflight(&mut self, len: u64) -> Result<Lent, FrontEndError> {
        if len > INFLIGHT_BYTES_MAX {
            return Err(MemoryRefused::InflightSize(len).into());
        }
        let make = || -> rustix::io::Result<OwnedFd> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = rustix::fs::memfd_create("sidecore-inflight", flags)?;
            rustix::fs::ftruncate(&fd, len)?;
            let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(&fd, seals)?;
            Ok(fd)
        };
        let made = make().map(|fd| Lent::new(fd, &self.closer));
        made.map_err(FrontEndError::MakeInflight)
    }

    fn set_inflight(&mut self, area: &InflightArea, fd: Lent) -> Result<(), FrontEndError> {
        if area.size > INFLIGHT_BYTES_MAX {
            return Err(MemoryRefused::InflightSize(area.size).into());
        }
        let count = self.regions.len();
        let lent = [self.memory_bytes(), self.log_bytes, area.size];
        let changed = self.claiming(lent, count, |this| {
            let mapping = Mapping::shared(&fd, area.offset, area.size, this.seal, &this.health)?;
            let (queues, queue_size) = (area.queues, area.queue_size);
            this.inflight = Some(InflightRecord { area: Area::whole(mapping), queues, queue_size });
            this.kept.set_inflight(*area, fd);
            Ok(())
        });
        Ok(changed?)
    }

    fn check_signal(&self, fd: &Lent) -> Result<(), FrontEndError> {
        if !is_eventfd(fd) {
            return Err(kind_of(fd)
                .map_or_else(SignalRefused::Unknown, SignalRefused::Kind)
                .into());
        }
        // A write to it must never wait: a sidecore serves others too.
        let flags = rustix::fs::fcntl_getfl(fd).map_err(SignalRefused::Flags)?;
        let set = rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK);
        Ok(set.map_err(SignalRefused::Flags)?)
    }

    fn set_channel(&mut self, fd: Lent) -> Result<(), FrontEndError> {
        let domain =
            rustix::net::sockopt::socket_domain(&fd).map_err(ChannelRefused::NotASocket)?;
        let kind = rustix::net::sockopt::socket_type(&fd).map_err(ChannelRefused::NoType)?;
        if (domain, kind) != (AddressFamily::UNIX, SocketType::STREAM) {
            return Err(ChannelRefused::NotAUnixStream.into());
        }
        if !self.is_replayed {
            // A pair may have been given a name since.
            refuse_own_connection(&fd)?;
        }
        self.channel = Some(FrameSocket::of(fd, &self.closer));
        Ok(())
    }

    fn announce(&mut self, mac: [u8; 6]) -> Result<(), FrontEndError> {
        if self.may_run {
            self.announced = Some(mac);
        }
        Ok(())
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), FrontEndError> {
        if !self.may_run {
            return Err(FrontEndError::MtuOfAnother);
        }
        Ok(self.personality.set_mtu(mtu)?)
    }

    fn reset(&mut self) {
        if self.may_run {
            self.personality.reset();
        }
    }
}

/// A link of which this process had both ends would never be seen to end. A front-end's end has a name on
/// one side, since one of the two listened, and a channel has none; nor may it hold that end, sent over it.
fn refuse_own_connection(channel: &Lent) -> Result<(), ChannelRefused> {
    let is_named = |name: Option<SocketAddrAny>| {
        let name = name.and_then(|name| SocketAddrUnix::try_from(name).ok());
        let is_written = |name: &SocketAddrUnix| {
            let path = name.path_bytes().map(|path| !path.is_empty());
            path.or(name.abstract_name().map(|name| !name.is_empty())).unwrap_or_default()
        };
        name.as_ref().is_some_and(is_written)
    };
    let [ours, theirs] = [getsockname(channel).ok(), getpeername(channel).ok().flatten()];
    if is_named(ours) || is_named(theirs) {
        return Err(ChannelRefused::Named);
    }
    // Nothing is ever read from it: whatever lies there by now is all that ever will.
    shutdown(channel, Shutdown::Read).map_err(ChannelRefused::Shutdown)?;
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match recv(channel, &mut [0u8; 1], flags) {
        Ok((_, 1..)) => Err(ChannelRefused::NotEmpty),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
