//! One queue and all it needs to be served. Made by control, moved to a sidecore, moved back.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use backend::Backend;
use device::blk::Blk;
use guest_memory::{GuestMap, Health, Loss};
use schedule::Policy;
use virtqueue::{Queue, Violation};

use crate::counters::QueueCounters;
use crate::large::Large;
use crate::slots::Slots;

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
    /// The device as its driver negotiated it.
    pub blk: Blk,
    /// Where requests go.
    pub backend: Backend,
    /// Readable when the guest kicks; `None` when it never does (then the queue is only polled).
    pub kick: Option<OwnedFd>,
    /// Written to call the guest. Control set `O_NONBLOCK`, which a front-end can undo.
    pub call: Option<OwnedFd>,
    /// Weight among the queues of a sidecore; 100 is usual.
    pub share: u32,
    /// When to poll and when to wait for a kick.
    pub policy: Policy,
    /// Where its work is counted.
    pub counters: Arc<QueueCounters>,
}

/// A queue that can be attached.
#[derive(Debug)]
pub struct Served {
    pub(crate) spec: ServedSpec,
    pub(crate) slots: Slots,
    /// A request that takes several visits.
    pub(crate) large: Large,
    /// That of `spec.memory`, one pointer nearer.
    pub(crate) health: Health,
    /// Completions were written and not shown.
    pub(crate) unshown: bool,
    /// Requests that ended in the pass that took them: their latency is known at the next.
    pub(crate) unclocked: u64,
    /// Detach was asked: nothing more is taken.
    pub(crate) leaving: bool,
}

impl Served {
    /// Takes the memory that serving will need.
    pub fn new(spec: ServedSpec) -> Box<Served> {
        let at_once = spec.backend.answers_at_once();
        let (slots, large) = (Slots::new(spec.queue.size(), at_once), Large::new(!at_once));
        let health = spec.memory.health().clone();
        Box::new(Served {
            spec,
            slots,
            large,
            health,
            unshown: false,
            unclocked: 0,
            leaving: false,
        })
    }

    /// Its name.
    pub fn key(&self) -> QueueKey {
        self.spec.key
    }

    /// The ring, for its base and its violation.
    pub fn queue(&self) -> &Queue {
        &self.spec.queue
    }

    /// The parts again, after detach.
    pub fn into_spec(mut self: Box<Self>) -> ServedSpec {
        // Nothing is in flight after a detach; a queue that never got that far gives up.
        self.slots.drain().for_each(|owed| owed.ticket.forfeit());
        self.large.forfeit();
        self.spec
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
