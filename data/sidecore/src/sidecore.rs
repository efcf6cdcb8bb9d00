//! The loop: one pass along the whole path, and what a sidecore owns.
//!
//! Its steps are drawn in ARCHITECTURE.md ("The walk"), and each has a file: `hear`, `visit` (with `fetch` and
//! `publish`), `reap`, `rest`. Called by `thread`.

use std::io;
use std::sync::Arc;

use backend::Io;
use rustix::thread::CpuSet;
use schedule::{Clock, Limits, Nanos, Schedule};
use virtqueue::Chain;

use crate::alarm::Alarm;
use crate::counters::SidecoreCounters;
use crate::inbox::{Handle, Inbox, Outbox, ends};
use crate::knock::KickCost;
use crate::leaving::Leaving;
use crate::link::HostLinks;
use crate::moves::Moves;
use crate::net::Net;
use crate::places::Place;
use crate::publish::Calls;
use crate::rest::Rest;
use crate::sample::Sampling;
use crate::visit::Visiting;

/// Submission entries of the io_uring.
const IO_ENTRIES: u32 = 1024;

/// What a sidecore is made of.
#[derive(Clone, Copy, Debug)]
pub struct SidecoreSpec {
    /// Its number, for its name.
    pub index: u16,
    /// The processor it is pinned to; `None` to run anywhere.
    pub cpu: Option<u32>,
    /// Where the kernel's threads that work for it may run; `None` for anywhere. Left to itself, the
    /// kernel wakes them on the processor that asked, which takes the sidecore's time: a storm of
    /// flushes took a fifth of it from its neighbours.
    pub workers: Option<CpuSet>,
    /// Queues that ask little are served in the middle of others' visits.
    pub watches: bool,
    /// Queues it can hold.
    pub queues_max: u16,
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Commands taken, and queues that came from other sidecores.
    pub commands: u32,
    /// Requests taken from rings.
    pub requests: u32,
    /// Requests ended by a completion.
    pub reaped: u32,
    /// Frames of links, and requests that came on them.
    pub linked: u32,
    /// Kicks seen.
    pub kicks: u32,
}

impl Progress {
    /// Whether anything was done.
    #[inline]
    pub fn is_idle(self) -> bool {
        self == Progress::default()
    }
}

/// The owner of some queues and of the thread that serves them.
///
/// - The walk: [`Self::pass`], then, when it was idle, [`Self::rest`].
/// - The end: [`Self::has_ended`].
pub struct Sidecore {
    pub(crate) places: Box<[Place]>,
    pub(crate) schedule: Schedule,
    pub(crate) chain: Chain,
    pub(crate) io: Io,
    pub(crate) rest: Rest,
    pub(crate) alarm: Alarm,
    pub(crate) inbox: Inbox,
    pub(crate) outbox: Outbox,
    pub(crate) leaving: Leaving,
    pub(crate) calls: Calls,
    /// Places of queues with requests whose latency is known at the next pass.
    pub(crate) unclocked: Vec<u16>,
    pub(crate) visiting: Visiting,
    pub(crate) net: Net,
    pub(crate) moves: Moves,
    pub(crate) links: HostLinks,
    /// Places of roads from other sidecores.
    pub(crate) roads: Vec<u16>,
    pub(crate) kick_cost: KickCost,
    pub(crate) sampling: Sampling,
    pub(crate) counters: Arc<SidecoreCounters>,
}

impl Sidecore {
    /// A sidecore without queues, and control's end of it. To be called on the thread that will
    /// run it: an io_uring belongs to its maker.
    ///
    /// # Errors
    /// What the kernel said to an epoll set, an eventfd, an io_uring, or a timer.
    pub fn new(spec: SidecoreSpec) -> io::Result<(Sidecore, Handle)> {
        let queues_max = usize::from(spec.queues_max);
        let counters = Arc::new(SidecoreCounters::default());
        let (inbox, outbox, handle) = ends(queues_max, &counters)?;
        let rest = Rest::new(&handle.command_fd, Arc::clone(&handle.bell))?;
        let mut io = Io::new(IO_ENTRIES).map_err(io::Error::other)?;
        if let Some(cpus) = spec.workers {
            io.keep_workers_on(cpus);
        }
        io.expect_places(queues_max);
        let limits = Limits::default();
        let mut schedule = Schedule::new(limits, spec.queues_max);
        schedule.watch(spec.watches);
        let sidecore = Sidecore {
            places: (0..queues_max).map(|_| Place::default()).collect(),
            schedule,
            chain: Chain::default(),
            io,
            rest,
            alarm: Alarm::new()?,
            inbox,
            outbox,
            leaving: Leaving::new(queues_max),
            calls: Calls::new(queues_max),
            unclocked: Vec::with_capacity(queues_max),
            visiting: Visiting::default(),
            net: Net::new(spec.index, queues_max),
            moves: Moves::default(),
            links: HostLinks::default(),
            roads: Vec::new(),
            kick_cost: KickCost::new(Arc::clone(&handle.knock), limits.kick_ns),
            sampling: Sampling::new(spec.index),
            counters,
        };
        Ok((sidecore, handle))
    }

    /// One trip along the whole path, begun at `now`. Bounded: each queue is visited at most once, within
    /// its budget. Never blocks; allocates only for a queue that is attached. The clock is read for long
    /// visits, about once in 5 us.
    pub fn pass(&mut self, now: Nanos, clock: &impl Clock) -> Progress {
        let mut progress = Progress::default();
        self.hear(now, clock, &mut progress);
        let now = self.visit_all(now, clock, &mut progress);
        progress.reaped = self.reap(now);
        self.arm_idle();
        self.tell(now, &mut progress);
        progress
    }

    /// The counters that [`Handle::counters`] shows.
    pub fn counters(&self) -> &SidecoreCounters {
        &self.counters
    }
}
