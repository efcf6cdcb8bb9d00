//! One queue and all it needs to be served. Made by control, moved to a sidecore, moved back.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use backend::{Backend, Io};
use device::blk::Blk;
use device::net::Net;
use guest_memory::{GuestMap, Health, Loss};
use schedule::{Gate, Nanos, Policy, Schedule};
use switch::PortId;
use virtqueue::{Queue, Violation};

use crate::answered::Answered;
use crate::counters::QueueCounters;
use crate::large::Large;
use crate::moderation::Moderation;
use crate::net::BridgeId;
use crate::net::parcel::Lender;
use crate::net::roads::InFlight;
use crate::slots::Slots;
use crate::stalls::Stalls;

/// The name of a queue between control and its sidecores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueKey {
    /// Device, as control numbers them.
    pub device: u32,
    /// Queue of that device.
    pub queue: u16,
}

/// What a queue is made of.
#[derive(Debug)]
pub struct ServedSpec {
    /// Its name.
    pub key: QueueKey,
    /// Its ring.
    pub queue: Queue,
    /// The guest's memory, kept mapped while the queue lives.
    pub memory: Arc<GuestMap>,
    /// What its chains are.
    pub role: RoleSpec,
    /// Readable when the guest kicks; `None` when it never does (then the queue is only polled).
    pub kick: Option<OwnedFd>,
    /// Written to call the guest. Control set `O_NONBLOCK`, which a front-end can undo.
    pub call: Option<OwnedFd>,
    /// Weight among the queues of a sidecore; 100 is usual.
    pub share: u32,
    /// When to poll and when to wait for a kick.
    pub policy: Policy,
    /// How long a request is to wait in the ring at most, nanoseconds; `None` for no target. Of no
    /// meaning for a receive queue, which is not visited.
    pub target_ns: Option<u64>,
    /// How long the call for a completion, or for frames that were sent, may wait for others, nanoseconds; 0: no
    /// call waits.
    pub moderate_ns: u32,
    /// What it holds of its limits; `None` without any.
    pub gate: Option<Box<Gate>>,
    /// Where its work is counted.
    pub counters: Arc<QueueCounters>,
}

/// What of a queue can be changed while it is served.
#[derive(Debug)]
pub struct Service {
    /// Weight among the queues of a sidecore; 100 is usual.
    pub share: u32,
    /// When to poll and when to wait for a kick.
    pub policy: Policy,
    /// How long a request is to wait in the ring at most, nanoseconds; `None` for no target.
    pub target_ns: Option<u64>,
    /// How long the call for a completion, or for frames that were sent, may wait for others, nanoseconds; 0: no
    /// call waits.
    pub moderate_ns: u32,
    /// A new gate, or `None` for no limit. If it counts on the meters that the queue is counted on
    /// already, the queue keeps what it holds.
    pub gate: Option<Box<Gate>>,
}

/// What the chains of a queue are, and who answers them.
#[derive(Debug)]
pub enum RoleSpec {
    /// Requests of a disk.
    Disk {
        /// The device as its driver negotiated it.
        blk: Blk,
        /// Where requests go.
        backend: Backend,
    },
    /// Frames that a guest sends.
    Transmit(NicQueue),
    /// Buffers for frames to a guest.
    Receive(NicQueue),
}

/// One queue of a NIC.
#[derive(Clone, Copy, Debug)]
pub struct NicQueue {
    /// The NIC as its driver negotiated it.
    pub net: Net,
    /// The bridge it is at.
    pub bridge: BridgeId,
    /// Its port there, which must be at home on the sidecore that serves the queue.
    pub port: PortId,
    /// Which pair of the NIC, below [`PAIRS_MAX`](crate::PAIRS_MAX).
    pub pair: u16,
}

/// A queue that can be attached.
#[derive(Debug)]
pub struct Served {
    pub(crate) ring: Ring,
    pub(crate) role: Role,
}

/// What every queue is, whatever its chains mean.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) key: QueueKey,
    pub(crate) queue: Queue,
    pub(crate) memory: Arc<GuestMap>,
    /// That of `memory`, one pointer nearer.
    pub(crate) health: Health,
    pub(crate) kick: Option<OwnedFd>,
    pub(crate) call: Option<OwnedFd>,
    pub(crate) share: u32,
    pub(crate) policy: Policy,
    pub(crate) target_ns: Option<u64>,
    pub(crate) moderation: Moderation,
    pub(crate) gate: Option<Box<Gate>>,
    pub(crate) counters: Arc<QueueCounters>,
    /// Completions were written and not shown.
    pub(crate) unshown: bool,
    /// Its kicks wake the sidecore.
    pub(crate) is_watched: bool,
    /// Detach was asked: nothing more is taken.
    pub(crate) leaving: bool,
    /// Something is on the way to its disk, which wants to know when it is looked at.
    is_staged: bool,
    /// Neither that, nor a gate.
    is_plain: bool,
}

/// What is done with its chains.
#[derive(Debug)]
pub(crate) enum Role {
    Disk(Box<DiskRole>),
    Transmit(Transmit),
    Receive(Receive),
}

/// What a transmit queue needs besides its ring.
#[derive(Debug)]
pub(crate) struct Transmit {
    pub(crate) nic: NicQueue,
    /// The port with which the flood of its next chain goes on.
    pub(crate) cursor: u16,
    /// Its next frame waits at least until then.
    pub(crate) retry_at: Nanos,
    /// Chains that wait for their parcels.
    pub(crate) in_flight: InFlight,
    /// Where it is attached, for its parcels.
    pub(crate) lender: Lender,
}

/// What a receive queue needs besides its ring.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) nic: NicQueue,
    /// Frames put in since they were last counted.
    pub(crate) fresh: u32,
    /// The first time that it had no buffers, since it last had some.
    pub(crate) full_since: Option<Nanos>,
    /// Frames that take so many bytes, with header, do not fit what is in the ring now.
    pub(crate) unfit_from: u32,
    /// Its loss or violation was seen.
    pub(crate) is_seen: bool,
    /// A frame of the host's waits for more buffers, and its driver was asked to kick for them.
    pub(crate) is_awaited: bool,
    /// So many chains did not suffice for it.
    short_of: u16,
}

impl Receive {
    fn new(nic: NicQueue) -> Receive {
        Receive {
            nic,
            fresh: 0,
            full_since: None,
            unfit_from: u32::MAX,
            is_seen: false,
            is_awaited: false,
            short_of: 0,
        }
    }

    /// A frame of the host's finds too few buffers: asks the driver to kick when there are more, unless some
    /// have come that nobody has tried yet.
    #[cold]
    pub(crate) fn await_buffers(&mut self, ring: &mut Ring) -> Awaited {
        if !ring.is_watched || ring.health.is_lost() {
            return Awaited::Never;
        }
        if self.is_awaited {
            return Awaited::Kick;
        }
        match ring.queue.arm_behind() {
            Some(chains) if chains == self.short_of => {
                self.is_awaited = true;
                Awaited::Kick
            }
            Some(chains) => {
                // Nobody has tried with as many.
                self.short_of = chains;
                ring.queue.disarm();
                Awaited::More
            }
            None => Awaited::Never,
        }
    }

    /// Whether it still waits for a kick, as far as this queue goes.
    #[inline]
    pub(crate) fn still_awaits(&self, ring: &Ring) -> bool {
        self.is_awaited && !ring.health.is_lost() && ring.queue.violation().is_none()
    }

    /// A frame was put in. A kick that was asked for still comes.
    #[inline(always)]
    pub(crate) fn has_buffers(&mut self) {
        // Looked at first: most frames find all of it as it is.
        if self.full_since.is_some() {
            self.full_since = None;
            self.short_of = 0;
        }
        if self.unfit_from != u32::MAX {
            self.unfit_from = u32::MAX;
        }
    }

    /// The driver kicked: it has been heard, and what waits has as long again to find what it needs.
    pub(crate) fn kicked(&mut self, ring: &mut Ring) {
        if std::mem::take(&mut self.is_awaited) {
            self.full_since = None;
            if !ring.health.is_lost() {
                ring.queue.disarm();
            }
        }
    }
}

/// What a frame of the host's may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The driver's kick.
    Kick,
    /// Nothing: more buffers have come.
    More,
    /// Nothing that would tell.
    Never,
}

/// What a queue of a disk needs besides its ring.
#[derive(Debug)]
pub(crate) struct DiskRole {
    pub(crate) blk: Blk,
    pub(crate) backend: Backend,
    pub(crate) slots: Slots,
    /// A request that takes several visits.
    pub(crate) large: Large,
    /// Requests that wait for space, or for a medium that fails.
    pub(crate) stalls: Stalls,
    /// Bytes that refused requests asked for.
    pub(crate) refused_bytes: u64,
    /// Requests that ended in the pass that took them.
    pub(crate) answered: Answered,
    /// Where it is attached; in every tag.
    pub(crate) place: u16,
}

/// Where requests of a queue are kept that have not ended. Made beforehand: serving takes no memory.
#[derive(Debug)]
pub struct Room {
    slots: Slots,
    large: Large,
    stalls: Stalls,
}

impl Room {
    /// That of a queue of `size` entries with such a back-end.
    pub fn new(backend: &Backend, size: u16) -> Room {
        let slots = Slots::new(size, backend.answers_at_once());
        let (large, stalls) = (Large::new(slots.len()), Stalls::new(slots.len()));
        Room { slots, large, stalls }
    }
}

impl Served {
    /// Takes the memory that serving will need.
    pub fn new(spec: ServedSpec) -> Box<Served> {
        let ServedSpec { key, queue, memory, role, kick, call, counters, .. } = spec;
        let ServedSpec { share, policy, target_ns, moderate_ns, gate, .. } = spec;
        let role = match role {
            RoleSpec::Disk { blk, backend } => {
                let Room { slots, large, stalls } = Room::new(&backend, queue.size());
                Role::Disk(Box::new(DiskRole {
                    blk,
                    backend,
                    slots,
                    large,
                    stalls,
                    refused_bytes: 0,
                    answered: Answered::default(),
                    place: 0,
                }))
            }
            RoleSpec::Transmit(nic) => {
                let (in_flight, lender) = (InFlight::new(), Lender::default());
                Role::Transmit(Transmit { nic, cursor: 0, retry_at: Nanos(0), in_flight, lender })
            }
            RoleSpec::Receive(nic) => Role::Receive(Receive::new(nic)),
        };
        let health = memory.health().clone();
        let (unshown, leaving) = (false, false);
        let is_staged = is_staged(&role);
        let is_plain = gate.is_none() && !is_staged;
        let ring = Ring {
            key,
            queue,
            memory,
            health,
            kick,
            call,
            share,
            policy,
            target_ns,
            moderation: Moderation::new(moderate_ns),
            gate,
            counters,
            unshown,
            is_watched: false,
            leaving,
            is_staged,
            is_plain,
        };
        Box::new(Served { ring, role })
    }

    /// It is at a place of a sidecore now, whose `io` this back-end of the same disk has joined. Nothing of it is with a
    /// back-end; and nothing of it is kept at all, if it comes with another `room`.
    pub(crate) fn come_to(
        &mut self,
        io: &mut Io,
        (place, epoch): (u16, u32),
        backend: Backend,
        room: Option<Room>,
    ) {
        if let Role::Disk(disk) = &mut self.role {
            disk.come_to(io, (place, epoch), backend, room);
        }
        self.ring.is_staged = is_staged(&self.role);
        self.ring.know_way();
    }

    /// Its name.
    pub fn key(&self) -> QueueKey {
        self.ring.key
    }

    /// What it holds of its limits from now on.
    pub fn set_gate(&mut self, gate: Option<Box<Gate>>) {
        self.ring.gate = gate;
        self.ring.know_way();
    }

    /// The ring, for its base and its violation.
    pub fn queue(&self) -> &Queue {
        &self.ring.queue
    }

    /// The parts again, after detach.
    pub fn into_spec(self: Box<Self>) -> ServedSpec {
        let Served { ring, role } = *self;
        let role = match role {
            Role::Disk(disk) => {
                let DiskRole { blk, backend, mut slots, mut large, .. } = *disk;
                // Nothing is in flight after a detach; a queue that never got that far gives up.
                slots.drain().for_each(|owed| owed.ticket.forfeit());
                large.forfeit();
                RoleSpec::Disk { blk, backend }
            }
            Role::Transmit(mut transmit) => {
                transmit.in_flight.forfeit();
                RoleSpec::Transmit(transmit.nic)
            }
            Role::Receive(receive) => RoleSpec::Receive(receive.nic),
        };
        let Ring { key, queue, memory, kick, call, counters, .. } = ring;
        let Ring { share, policy, target_ns, moderation, gate, .. } = ring;
        let moderate_ns = moderation.wait_ns();
        ServedSpec {
            key,
            queue,
            memory,
            role,
            kick,
            call,
            share,
            policy,
            target_ns,
            moderate_ns,
            gate,
            counters,
        }
    }

    /// Whether a frame of it has reached some of those whom it is for, and others not yet.
    pub(crate) fn is_amid_flood(&self) -> bool {
        let ring = &self.ring;
        let is_well = ring.queue.violation().is_none() && !ring.health.is_lost();
        matches!(&self.role, Role::Transmit(transmit) if transmit.cursor != 0) && is_well
    }

    /// Whether its guest's memory is lost, and its back-end has none of that: what is in flight may end without it.
    pub(crate) fn is_given_up(&self) -> bool {
        let Role::Disk(disk) = &self.role else { return false };
        disk.backend.holds_no_memory() && self.ring.health.is_lost()
    }

    /// Its ring and its disk, when it is a disk's.
    #[inline]
    pub(crate) fn disk(&mut self) -> Option<(&mut Ring, &mut DiskRole)> {
        match &mut self.role {
            Role::Disk(disk) => Some((&mut self.ring, disk)),
            Role::Transmit(_) | Role::Receive(_) => None,
        }
    }

    /// What it has besides its ring, when it is a disk's.
    pub(crate) fn disk_role(&self) -> Option<&DiskRole> {
        match &self.role {
            Role::Disk(disk) => Some(disk),
            Role::Transmit(_) | Role::Receive(_) => None,
        }
    }

    /// Its ring and the rest, when it is a transmit queue.
    pub(crate) fn transmit(&mut self) -> Option<(&mut Ring, &mut Transmit)> {
        match &mut self.role {
            Role::Transmit(transmit) => Some((&mut self.ring, transmit)),
            Role::Disk(_) | Role::Receive(_) => None,
        }
    }

    /// Its ring and the rest, when it is a receive queue.
    #[inline]
    pub(crate) fn receive(&mut self) -> Option<(&mut Ring, &mut Receive)> {
        match &mut self.role {
            Role::Receive(receive) => Some((&mut self.ring, receive)),
            Role::Disk(_) | Role::Transmit(_) => None,
        }
    }
}

impl Role {
    /// Takes what serving needs besides memory, as attachment `epoch` of `place`.
    pub(crate) fn begin(&mut self, io: &mut Io, place: u16, epoch: u32) -> std::io::Result<()> {
        match self {
            Role::Disk(disk) => {
                disk.backend.join(io)?;
                disk.slots.begin(epoch);
                disk.place = place;
                disk.come_stalled(io);
            }
            Role::Transmit(transmit) => {
                (transmit.cursor, transmit.retry_at) = (0, Nanos(0));
                transmit.lender = Lender { place, epoch, chain: 0 };
            }
            Role::Receive(receive) => *receive = Receive::new(receive.nic),
        }
        Ok(())
    }

    /// Gives it back.
    pub(crate) fn end(&mut self, io: &mut Io) {
        match self {
            Role::Disk(disk) => {
                disk.backend.leave(io);
                disk.stalls.leave(io, disk.place);
            }
            Role::Transmit(_) | Role::Receive(_) => {}
        }
    }

    /// The port of a queue of a NIC.
    pub(crate) fn port(&self) -> Option<(BridgeId, PortId)> {
        match self {
            Role::Disk(_) => None,
            Role::Transmit(Transmit { nic, .. }) | Role::Receive(Receive { nic, .. }) => {
                Some((nic.bridge, nic.port))
            }
        }
    }

    /// Whether nothing of its memory is lent to another sidecore.
    pub(crate) fn has_all_back(&self) -> bool {
        match self {
            Role::Transmit(transmit) => transmit.in_flight.lent == 0,
            Role::Disk(_) | Role::Receive(_) => true,
        }
    }

    /// Whether a request that takes several visits is under way.
    pub(crate) fn is_slicing(&self) -> bool {
        match self {
            Role::Disk(disk) => disk.large.is_under_way(),
            Role::Transmit(_) | Role::Receive(_) => false,
        }
    }
}

/// Whether something is on the way to its disk.
fn is_staged(role: &Role) -> bool {
    matches!(role, Role::Disk(disk) if disk.backend.is_staged())
}

impl DiskRole {
    fn come_to(
        &mut self,
        io: &mut Io,
        (place, epoch): (u16, u32),
        backend: Backend,
        room: Option<Room>,
    ) {
        if let Some(Room { slots, large, stalls }) = room {
            let before = std::mem::replace(&mut self.stalls, stalls);
            self.stalls.go_on_from(&before);
            (self.slots, self.large) = (slots, large);
        }
        let before = std::mem::replace(&mut self.backend, backend);
        self.backend.come_from(before);
        self.place = place;
        self.slots.begin(epoch);
        self.come_stalled(io);
    }

    /// Whether nothing of it is with a back-end, but for `held` answers. A large request under way is not, nor is one that
    /// waits: these go on wherever the queue is, unless it goes `with_all` that it has taken.
    pub(crate) fn is_drained_but_for(&self, ring: &Ring, with_all: bool, held: u16) -> bool {
        let stays = match with_all {
            true => 0,
            false => u16::from(self.large.is_all_here()) + self.stalls.in_slots(),
        };
        ring.queue.in_flight() == stays + held
    }
}

impl Ring {
    /// What its visits need is another.
    fn know_way(&mut self) {
        self.is_plain = self.gate.is_none() && !self.is_staged;
    }

    /// What waiting is measured against, nanoseconds. Where something wants to know of it, there always is a target.
    pub(crate) fn target_here(&self) -> Option<u64> {
        self.target_ns.or(self.is_staged.then_some(u64::MAX))
    }

    /// Whether something is on the way to its disk.
    pub(crate) fn is_staged(&self) -> bool {
        self.is_staged
    }

    /// Whether its visits need nothing but to take requests.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// It was visited no more for a while, and is again, at the place where it was.
    pub(crate) fn line_up_again(&self, schedule: &mut Schedule, place: u16, now: Nanos) {
        schedule.come_back(place, self.share, self.policy_here(), now);
    }

    /// Chains that an earlier process left and that are still to be taken. A ring that broke a rule takes
    /// nothing.
    pub(crate) fn left(&self) -> u16 {
        let takes = self.queue.violation().is_none() && !self.health.is_lost();
        if takes { self.queue.left() } else { 0 }
    }

    /// When it is polled. Without kicks to wait for, only polling finds anything.
    fn policy_here(&self) -> Policy {
        if self.is_watched { self.policy } else { Policy::Poll }
    }

    /// It is visited at this place from now on.
    pub(crate) fn line_up(&self, schedule: &mut Schedule, place: u16, now: Nanos) {
        schedule.add(place, self.share, self.policy_here(), now);
        schedule.set_owner(place, Some(self.key.device));
        schedule.set_target(place, self.target_here());
    }

    /// What the loss of this queue's health means for it. The queue takes nothing more, and nothing
    /// of it is stored into memory that others can see.
    #[cold]
    pub(crate) fn violation_by_loss(&self) -> Option<Violation> {
        self.health.loss().map(|loss| match loss {
            Loss::Memory => Violation::MemoryLost,
            Loss::Call => Violation::CallBlocked,
        })
    }
}
