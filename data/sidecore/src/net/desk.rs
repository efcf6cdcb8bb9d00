//! Where frames are worked on: scratch space of a sidecore, and the account of the present visit.
//!
//! Apart from the bridges, so that a frame can be delivered while its bridge is looked at.

use frame::{FRAME_MAX, tag};
use schedule::{Budget, Nanos, Visited};
use virtqueue::Chain;

use crate::net::gather::Gather;
use crate::net::roads::Roads;

/// What walking one descriptor costs in bytes of a visit's budget (as for disks, `fetch`).
pub(crate) const WALK_BYTES: u64 = 256;

/// How long nobody looks for room again where there was none. Each look takes the line of the ring's
/// index away from the driver that is about to write it, and finds a buffer or two; after this time
/// there are twenty (of 64 bytes, `net.rx.64`: half as many frames again).
pub(crate) const RETRY_NS: u64 = 2_000;

#[derive(Debug)]
pub(crate) struct Desk {
    /// A receiver's.
    pub(crate) chain: Chain,
    pub(crate) gather: Gather,
    /// A whole frame that is finished; absent while one is.
    pub(crate) whole: Option<Box<[u8]>>,
    /// What the visit may cost, and costs.
    pub(crate) budget: Budget,
    pub(crate) cost: Cost,
    /// Since when the last port that was full has been so; `None` when nobody is there.
    pub(crate) full_since: Option<Nanos>,
    /// The way to ports that are at home elsewhere.
    pub(crate) roads: Roads,
    /// Places of receive queues with frames to show.
    pub(crate) touched: Vec<u16>,
    /// Places of receive queues that are broken or lost.
    pub(crate) examined: Vec<u16>,
    /// Places of host ports with frames to flush.
    pub(crate) unflushed: Vec<u16>,
}

/// What a visit did, in the schedule's currencies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) requests: u32,
    pub(crate) bytes: u64,
}

impl Desk {
    pub(crate) fn new(places: usize) -> Desk {
        let whole = vec![0; FRAME_MAX as usize + tag::SIZE].into_boxed_slice();
        let list = || Vec::with_capacity(places);
        Desk {
            chain: Chain::default(),
            gather: Gather::default(),
            whole: Some(whole),
            budget: Budget { requests: 0, bytes: 0, nanos: 0 },
            cost: Cost::default(),
            full_since: None,
            roads: Roads::default(),
            touched: list(),
            examined: list(),
            unflushed: list(),
        }
    }

    /// A visit begins.
    #[inline]
    pub(crate) fn begin(&mut self, budget: Budget) {
        self.budget = budget;
        self.cost = Cost::default();
    }

    /// Whether another frame, or another copy of one, may be begun.
    #[inline]
    pub(crate) fn may_go_on(&self) -> bool {
        self.cost.requests < self.budget.requests && self.cost.bytes < self.budget.bytes
    }

    /// The frame begun with `before` is over: one that was dropped counts too.
    #[inline]
    pub(crate) fn charge_frame(&mut self, before: u32) {
        self.cost.requests = self.cost.requests.max(before + 1);
    }

    /// The account, for the schedule.
    #[inline]
    pub(crate) fn visited(&self, ended: Ended) -> Visited {
        let Cost { requests, bytes } = self.cost;
        let (more, held, later) = match ended {
            Ended::Empty => (false, false, false),
            Ended::Budget => (true, false, false),
            Ended::Later => (true, false, true),
            Ended::Held => (true, true, false),
        };
        Visited { requests, bytes, nanos: 0, more, held, later }
    }
}

/// Why a visit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Nothing more is there.
    Empty,
    /// It did what it may.
    Budget,
    /// What is there waits for its receiver.
    Later,
    /// What is there waits for its receiver's kick.
    Held,
}
