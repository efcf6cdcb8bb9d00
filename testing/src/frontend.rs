//! A minimal vhost-user front-end, for disks and NICs: what a VMM does, without a VM.
//!
//! It shares a sealed memfd as guest memory, negotiates, sets queues up, and then leaves each queue
//! to its driver side. For benches and tests, against any back-end; it trusts the back-end no
//! further than a test should (answers are checked, waits end). Not a model of how to write a VMM:
//! one memory region, no migration.

mod changes;
mod recover;
mod session;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use guest_memory::{Area, GuestMap, Health, Mapping, Region, Seal};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use virtqueue::Format;
use virtqueue::driver::{Arena, Driver, Places, RingSpec, first_base};

pub use changes::F_LOG_ALL;
pub use session::MemoryRegion;
pub use session::{
    PROTOCOL_BACKEND_REQ, PROTOCOL_CONFIG, PROTOCOL_CONFIGURE_MEM_SLOTS, PROTOCOL_INFLIGHT_SHMFD,
    PROTOCOL_LOG_SHMFD, PROTOCOL_MQ, PROTOCOL_REPLY_ACK, PROTOCOL_RESET_DEVICE,
};
use session::{Session, VringAddress};

/// Where guest memory begins, in the guest's and in the front-end's addresses. Not zero, so that a
/// back-end which mixes up offsets and addresses is noticed.
pub const MEMORY_BASE: u64 = 1 << 32;

const F_PROTOCOL_FEATURES: u64 = 1 << 30;
const F_VERSION_1: u64 = 1 << 32;
const F_INDIRECT: u64 = 1 << 28;
const F_EVENT_IDX: u64 = 1 << 29;
const F_PACKED: u64 = 1 << 34;
const F_BLK_MQ: u64 = 1 << 12;
/// `VIRTIO_NET_F_CTRL_VQ` and `VIRTIO_NET_F_MQ`, which depends on it. The control queue is the VMM's.
const F_NET_MQ: u64 = 1 << 17 | 1 << 22;

/// What Linux's virtio-blk driver accepts besides what the ring needs: SIZE_MAX, SEG_MAX, BLK_SIZE,
/// FLUSH, TOPOLOGY, CONFIG_WCE, DISCARD, WRITE_ZEROES. Without FLUSH a device must make every write
/// stable before it completes it (VIRTIO 1.2, 5.2.6.2).
pub const LINUX_FEATURES: u64 =
    1 << 1 | 1 << 2 | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 14;

/// How memory is announced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryMessage {
    /// `SET_MEM_TABLE`, as QEMU does.
    #[default]
    Table,
    /// `ADD_MEM_REG`, as libblkio does; needs CONFIGURE_MEM_SLOTS.
    Slots,
}

/// What the device is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// Every queue is like every other.
    #[default]
    Disk,
    /// Queues are pairs: queue 2p receives, 2p + 1 transmits.
    Nic,
}

/// What to ask a back-end for.
#[derive(Clone, Debug)]
pub struct FrontendSpec {
    /// What the device is.
    pub class: Class,
    /// Whether to be a legacy driver, which does not accept VERSION_1.
    pub legacy: bool,
    /// Guest memory, bytes; rings and buffers both live there.
    pub memory_bytes: u64,
    /// Queues to set up, all of one kind.
    pub queues: u16,
    /// What each queue is like.
    pub ring: RingSpec,
    /// Device features to accept where offered, besides those that `ring` implies.
    pub features: u64,
    /// How memory is announced.
    pub memory_message: MemoryMessage,
    /// Whether to share an in-flight record; refused when the back-end has none.
    pub inflight: bool,
    /// Protocol features to accept where offered, besides those that every front-end here takes.
    pub protocol_features: u64,
    /// Whether guest memory is sealed against shrinking.
    pub sealed: bool,
}

impl Default for FrontendSpec {
    fn default() -> FrontendSpec {
        let ring =
            RingSpec { size: 128, format: Format::Split, event_index: true, indirect_entries: 0 };
        FrontendSpec {
            class: Class::Disk,
            legacy: false,
            memory_bytes: 16 << 20,
            queues: 1,
            ring,
            features: 0,
            memory_message: MemoryMessage::Table,
            inflight: false,
            protocol_features: 0,
            sealed: true,
        }
    }
}

impl FrontendSpec {
    /// The default, with all that Linux's driver takes ([`LINUX_FEATURES`]).
    pub fn linux() -> FrontendSpec {
        FrontendSpec { features: LINUX_FEATURES, ..FrontendSpec::default() }
    }
}

/// One connection to one device.
#[derive(Debug)]
pub struct Frontend {
    session: Session,
    map: GuestMap,
    memory_fd: OwnedFd,
    memory: Arena,
    /// Where guest memory begins in the addresses of the front-end.
    user_base: u64,
    features: u64,
    offered: u64,
    spec: FrontendSpec,
    queues: Vec<FrontQueue>,
    /// The in-flight record, and what its back-end said of it. Outlives the back-end.
    inflight: Option<(OwnedFd, Vec<u8>)>,
    /// Where each queue was said to stand when it was started last.
    bases: Vec<u32>,
}

/// One queue that runs, with the descriptors that wake each side.
#[derive(Debug)]
pub struct FrontQueue {
    /// The ring.
    pub driver: Driver,
    kick: OwnedFd,
    call: OwnedFd,
    kicks: u64,
    places: Places,
}

impl FrontQueue {
    fn new(driver: Driver, places: Places) -> Result<FrontQueue> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (kick, call) = (eventfd(0, flags)?, eventfd(0, flags)?);
        Ok(FrontQueue { driver, kick, call, kicks: 0, places })
    }

    /// A queue without a back-end.
    pub(crate) fn alone(arena: &mut Arena, ring: RingSpec) -> Result<FrontQueue> {
        let (driver, places) = arena.driver(ring)?;
        FrontQueue::new(driver, places)
    }

    /// Wakes the back-end.
    ///
    /// # Errors
    /// The eventfd's; a full counter (2^64 - 2 unread kicks) would be one.
    pub fn kick(&mut self) -> Result<()> {
        self.kicks += 1;
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).context("kicking a queue")?;
        Ok(())
    }

    /// Kicks sent so far.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// Where the ring is, guest addresses.
    pub fn places(&self) -> Places {
        self.places
    }

    /// Waits until the back-end has called or `timeout_ms` are over, and takes the call.
    ///
    /// # Errors
    /// The system's.
    pub fn wait_for_call(&self, timeout_ms: u32) -> Result<bool> {
        let mut fds = [PollFd::new(&self.call, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: i64::from(timeout_ms / 1000),
            tv_nsec: i64::from(timeout_ms % 1000) * 1_000_000,
        };
        if poll(&mut fds, Some(&timeout))? == 0 {
            return Ok(false);
        }
        let mut count = [0; 8];
        match rustix::io::read(&self.call, &mut count) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::AGAIN) => Ok(false),
            Err(error) => Err(error).context("reading a call"),
        }
    }
}

impl Frontend {
    /// Connects to the socket at `path`, negotiates, shares memory and starts the queues.
    ///
    /// # Errors
    /// What the back-end lacks or refused, or the system's errors; every wait ends after a minute.
    pub fn connect(path: &Path, spec: FrontendSpec) -> Result<Frontend> {
        let stream = UnixStream::connect(path)
            .with_context(|| format!("connecting to {}", path.display()))?;
        Frontend::over(stream, spec)
    }

    /// As [`Frontend::connect`], over a connection that is there: for back-ends that connect.
    ///
    /// # Errors
    /// As [`Frontend::connect`].
    pub fn over(stream: UnixStream, spec: FrontendSpec) -> Result<Frontend> {
        let mut session = Session::over(stream)?;
        let (offered, features) = negotiate(&mut session, &spec)?;
        let memory_fd = guest_memory(spec.memory_bytes, spec.sealed)?;
        let mapping =
            Mapping::shared(&memory_fd, 0, spec.memory_bytes, Seal::Any, &Health::default())?;
        let area = Area::whole(std::sync::Arc::clone(&mapping));
        let region = Region { gpa: MEMORY_BASE, user: MEMORY_BASE, mapping };
        let mut frontend = Frontend {
            session,
            map: GuestMap::new(vec![region])?,
            memory_fd,
            memory: Arena::new(area, MEMORY_BASE),
            user_base: MEMORY_BASE,
            features,
            offered,
            spec,
            queues: Vec::new(),
            inflight: None,
            bases: Vec::new(),
        };
        frontend.share_memory()?;
        if frontend.spec.inflight {
            frontend.share_inflight()?;
        }
        for index in 0..frontend.spec.queues {
            let queue = frontend.start_queue(index, frontend.spec.ring)?;
            frontend.queues.push(queue);
        }
        frontend.session.settle()?;
        Ok(frontend)
    }

    /// The running queues, by index.
    pub fn queues(&mut self) -> &mut [FrontQueue] {
        &mut self.queues
    }

    /// One queue. Panics when there is no such queue: a mistake of the bench or test.
    pub fn queue(&mut self, index: u16) -> &mut FrontQueue {
        &mut self.queues[usize::from(index)]
    }

    /// Features that were accepted.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Features that were offered.
    pub fn offered(&self) -> u64 {
        self.offered
    }

    /// Protocol features that were accepted.
    pub fn protocol_features(&self) -> u64 {
        self.session.protocol_features()
    }

    /// The guest's memory.
    pub fn map(&self) -> &GuestMap {
        &self.map
    }

    /// Bytes of guest memory that are not a hole.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn resident_bytes(&self) -> Result<u64> {
        let blocks = rustix::fs::fstat(&self.memory_fd)?.st_blocks;
        Ok(u64::try_from(blocks)? * 512)
    }

    /// What of guest memory is not given out yet.
    pub fn memory(&mut self) -> &mut Arena {
        &mut self.memory
    }

    /// `len` bytes of the device's config space from `offset`.
    ///
    /// # Errors
    /// CONFIG was not negotiated, or the back-end refused.
    pub fn config(&mut self, offset: u32, len: u32) -> Result<Vec<u8>> {
        self.session.get_config(offset, len)
    }

    /// Capacity in sectors of 512 bytes, from the config space.
    ///
    /// # Errors
    /// As [`Frontend::config`].
    pub fn capacity_sectors(&mut self) -> Result<u64> {
        let bytes = self.config(0, 8)?;
        let bytes = <[u8; 8]>::try_from(bytes).ok().context("a short config space")?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Stops a queue and gives its base, as `GET_VRING_BASE` answered.
    ///
    /// # Errors
    /// The session's.
    pub fn stop_queue(&mut self, index: u16) -> Result<u32> {
        self.session.get_vring_base(index)
    }

    /// Starts queue `index` anew with an empty ring of the given kind; the device must have stopped
    /// it. The old ring's memory is not reused.
    ///
    /// # Errors
    /// No memory left, or the session's.
    pub fn restart_queue(&mut self, index: u16, ring: RingSpec) -> Result<()> {
        let queue = self.start_queue(index, ring)?;
        self.session.settle()?;
        self.queues[usize::from(index)] = queue;
        Ok(())
    }

    /// Stops every queue, as a guest does that shuts down in order.
    ///
    /// # Errors
    /// The session's.
    pub fn disconnect(mut self) -> Result<()> {
        for index in 0..self.spec.queues {
            self.session.get_vring_base(index)?;
        }
        Ok(())
    }

    fn share_memory(&mut self) -> Result<()> {
        let region = MemoryRegion {
            gpa: MEMORY_BASE,
            size: self.spec.memory_bytes,
            user: self.user_base,
            offset: 0,
        };
        match self.spec.memory_message {
            MemoryMessage::Table => self.session.set_mem_table(region, self.memory_fd.as_fd()),
            MemoryMessage::Slots => self.session.add_mem_reg(region, self.memory_fd.as_fd()),
        }
    }

    fn share_inflight(&mut self) -> Result<()> {
        let needed = PROTOCOL_INFLIGHT_SHMFD;
        if self.protocol_features() & needed == 0 {
            bail!("the back-end keeps no in-flight record (INFLIGHT_SHMFD is not offered)");
        }
        let (queues, size) = (self.spec.queues, self.spec.ring.size);
        let (fd, said) = self.session.get_inflight(queues, size)?;
        self.session.set_inflight(&said, fd.as_fd())?;
        self.inflight = Some((fd, said));
        Ok(())
    }

    fn start_queue(&mut self, index: u16, ring: RingSpec) -> Result<FrontQueue> {
        let (driver, places) = self.memory.driver(ring).context("laying out a ring")?;
        let queue = FrontQueue::new(driver, places)?;
        self.tell_queue(index, ring.size, first_base(ring.format), &queue)?;
        Ok(queue)
    }

    fn tell_queue(&mut self, index: u16, size: u16, base: u32, queue: &FrontQueue) -> Result<()> {
        self.session.set_vring_num(index, size)?;
        self.session.set_vring_base(index, base)?;
        let at = usize::from(index);
        if self.bases.len() <= at {
            self.bases.resize(at + 1, first_base(self.spec.ring.format));
        }
        self.bases[at] = base;
        self.tell_places(index, queue.places)?;
        self.session.set_vring_call(index, queue.call.as_fd())?;
        self.session.set_vring_kick(index, queue.kick.as_fd())?;
        self.session.set_vring_enable(index, true)
    }

    /// Where a ring is, in addresses of the front-end.
    fn tell_places(&mut self, index: u16, places: Places) -> Result<()> {
        let user = |gpa: u64| gpa - MEMORY_BASE + self.user_base;
        let address = VringAddress {
            index: index.into(),
            descriptors: user(places.descriptors),
            used: user(places.device),
            available: user(places.driver),
        };
        self.session.set_vring_addr(address)
    }
}

/// Accepts what `spec` needs; gives the features offered and accepted.
fn negotiate(session: &mut Session, spec: &FrontendSpec) -> Result<(u64, u64)> {
    let offered = session.get_features()?;
    let packed = spec.ring.format == Format::Packed;
    let (per_unit, multiqueue) = match spec.class {
        Class::Disk => (1, F_BLK_MQ),
        Class::Nic => (2, F_NET_MQ),
    };
    let mut needed = F_PROTOCOL_FEATURES;
    for (wanted, feature) in [
        (!spec.legacy, F_VERSION_1),
        (packed, F_PACKED),
        (spec.ring.event_index, F_EVENT_IDX),
        (spec.ring.indirect_entries > 0, F_INDIRECT),
        (spec.queues > per_unit, multiqueue),
    ] {
        needed |= if wanted { feature } else { 0 };
    }
    let missing = needed & !offered;
    ensure!(
        missing == 0,
        "the back-end does not offer feature bits {missing:#x} (it offers {offered:#x})"
    );
    let slots = match spec.memory_message {
        MemoryMessage::Table => 0,
        MemoryMessage::Slots => PROTOCOL_CONFIGURE_MEM_SLOTS,
    };
    session.negotiate_protocol(spec.queues / per_unit, slots, spec.protocol_features)?;
    session.set_owner()?;
    let accepted = needed | (spec.features & offered);
    session.set_features(accepted)?;
    Ok((offered, accepted))
}

fn guest_memory(bytes: u64, sealed: bool) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("test-guest", flags).context("making guest memory")?;
    ftruncate(&fd, bytes).context("sizing guest memory")?;
    if sealed {
        fcntl_add_seals(&fd, SealFlags::SHRINK).context("sealing guest memory")?;
    }
    Ok(fd)
}
