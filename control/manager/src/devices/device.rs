//! One device as control sees it, disk or NIC: its socket, its front-ends, its queues.
//!
//! Holds state and answers questions about it; who acts on the answers is `manager`. Its socket is in `door`, its
//! queues in `rings`, its front-ends' guest in `guest`. Not here: what only a disk has (`disk`), or only a NIC
//! (`nic`).

mod door;
mod guest;
mod rings;

use crate::bounds::{Bounds, Claim};
use crate::defects::found;
use crate::devices::beginning::Beginning;
use crate::devices::connection::Connection;
use crate::devices::device_plan::Facts;
use crate::devices::frame_socket::FrameSocket;
use crate::devices::front_end::FrontEnd;
use crate::devices::kind::Kind;
use crate::devices::lent::Closer;
use crate::devices::log_rate::LogRate;
use crate::devices::metered::Metered;
use crate::devices::queue::Queue;
use crate::disk::DiskParts;
use crate::guests::follow::Follow;
use crate::opening::openers::Openers;
use crate::sidecores::whereabouts::Whereabouts;
use crate::turn::Turn;
use config::spec::Mode;
use control::connection::Life;
pub(crate) use control::device::Due;
use control::device::{Door, Existence};
use guest_memory::Seal;
use sidecore::{instant_of, nanos_of};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use tracing::warn;
use vhost_user::Session;

pub(crate) struct Device {
    pub(crate) number: u32,
    /// What its plan says, whatever it is.
    pub(crate) facts: Facts,
    pub(crate) kind: Kind,
    /// What it is promised of the daemon; given back when it goes.
    pub(crate) promise: Option<Claim>,
    /// What its queues are counted on.
    pub(crate) metered: Metered,
    door: Door<OwnedFd>,
    existence: Existence,
    pub(crate) connections: BTreeMap<u32, Connection>,
    /// The connection that brought memory: its queues run.
    pub(crate) runner: Option<u32>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) problem: Option<String>,
    /// Why its socket is opened by others than its plan names.
    pub(crate) ungiven: Option<String>,
    /// Why no front-end could be connected to (mode `connect`): it may not have started yet.
    pub(crate) unanswered: Option<String>,
    pub(crate) log: LogRate,
    pub(crate) closer: Closer,
    /// On which node its guest's memory is.
    pub(crate) whereabouts: Whereabouts,
    /// What is known of its guest's vCPUs.
    pub(crate) follow: Box<Follow>,
}

impl Device {
    /// A device without a socket, of what was opened for it.
    pub(crate) fn new(number: u32, facts: Facts, kind: Kind) -> Device {
        let queues = (0..facts.rings).map(|_| Queue::new()).collect();
        Device {
            number,
            facts,
            kind,
            promise: None,
            metered: Metered::default(),
            door: Door::default(),
            existence: Existence::default(),
            connections: BTreeMap::new(),
            runner: None,
            queues,
            problem: None,
            ungiven: None,
            unanswered: None,
            log: LogRate::default(),
            closer: Closer::default(),
            whereabouts: Whereabouts::default(),
            follow: Box::default(),
        }
    }

    /// A front-end that has just connected.
    pub(crate) fn new_connection(
        &self,
        socket: OwnedFd,
        bounds: &Bounds,
        now: Instant,
    ) -> Connection {
        let seal = if self.facts.allow_unsealed_memory { Seal::Any } else { Seal::Required };
        let personality = self.kind.personality();
        Connection {
            frames: FrameSocket::new(socket, &self.closer),
            session: Session::new(personality.facts(self.facts.rings)),
            front_end: FrontEnd::new(personality, seal, bounds, &self.closer),
            life: Life::begin(nanos_of(now)),
            extra: None,
            extra_of_message: None,
            beginning: Beginning::new(self.counted()),
        }
    }

    /// When something is to be done without an event.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        let connections = self.connections.values().filter_map(Connection::due_at);
        let connections =
            connections.chain(self.connections.keys().filter_map(|id| self.gives_up_at(*id)));
        let announced = self.kind.nic().and_then(|nic| nic.arrival().due_at());
        let door = self.door.due().map(instant_of);
        let others = door.into_iter().chain(self.log.due_at()).chain(announced);
        connections.chain(others).chain(self.asks_at()).chain(self.follow.scans_at()).min()
    }

    /// When the locks of its disk are asked for again.
    pub(crate) fn asks_at(&self) -> Option<Instant> {
        self.kind.disk().filter(|_| !self.is_held_back()).and_then(DiskParts::asks_at)
    }

    /// Whether a line about it may be written; if not, it is counted.
    pub(crate) fn may_log(&mut self, now: Instant) -> bool {
        self.log.allows(now)
    }

    /// Whether something must happen before queues may start.
    pub(crate) fn is_held_back(&self) -> bool {
        self.existence != Existence::Open || self.kind.is_resizing()
    }

    /// Whether it has no socket though it should: its cable was put in again.
    pub(crate) fn wants_to_listen(&self) -> bool {
        self.facts.mode == Mode::Listen && self.door.is_closed()
    }

    /// The NUMA node of its guest's memory, as far as that is known.
    pub(crate) fn memory_node(&mut self, now: Instant) -> Option<u32> {
        let runner = self.runner?;
        let front_end = &self.connections.get(&runner)?.front_end;
        self.whereabouts.memory_node(runner, front_end, now)
    }

    /// Whether its queues are where a link is, and stay there.
    pub(crate) fn is_fixed(&self) -> bool {
        self.door.is_exported() || self.kind.disk().is_some_and(|disk| disk.remote.is_some())
    }

    /// Whether descriptors of it wait to be closed while none is promised to nobody.
    pub(crate) fn is_short_while_closing(&self, bounds: &Bounds) -> bool {
        self.closer.is_behind() && bounds.is_used_up()
    }

    /// Whether it goes when its queues are back.
    pub(crate) fn is_going(&self) -> bool {
        self.existence == Existence::Going
    }

    /// It is removed.
    pub(crate) fn go(&mut self) {
        self.existence.go();
    }

    /// Its queues are to start anew, with what its plan says now.
    pub(crate) fn restart(&mut self) {
        self.existence.restart();
    }

    /// All of its queues are back. Whether it is gone by that.
    pub(crate) fn are_back(&mut self) -> bool {
        self.existence.back()
    }

    /// The capacity of its disk is another now: its front-ends are told.
    pub(crate) fn tell_capacity(&mut self, turn: &mut Turn) {
        let disk = found!(turn.defects, self.kind.disk(), "disk with another capacity");
        disk.live.set_capacity(disk.disk.size_bytes());
        for connection in self.connections.values_mut() {
            let told =
                connection.session.config_changed().map(|bytes| connection.front_end.tell(bytes));
            if let Some(Err(error)) = told {
                let id = &self.facts.id;
                warn!(disk = id, %error, "its front-end could not be told of the new size");
            }
        }
    }

    /// Closes the image of a device that is gone, or was never served, which may take as long as its file system
    /// wants: whether that goes on elsewhere. A number is told of when it is over.
    pub(crate) fn close_image(mut self, openers: &mut Openers, number: Option<u32>) -> bool {
        let Some(disk) = self.kind.disk_mut() else { return false };
        let (plan, held) = (disk.plan.clone(), Arc::clone(&disk.disk));
        drop(self);
        openers.let_go(&plan, held, number)
    }

    /// Whether a VMM has it: it may be about to start its guest, too.
    pub(crate) fn is_driven(&self) -> bool {
        let is_owned = self.connections.values().any(|connection| connection.session.has_owner());
        !self.is_going() && (self.runner.is_some() || is_owned)
    }
}
