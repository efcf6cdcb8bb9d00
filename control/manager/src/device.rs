//! One disk as control sees it: what it is made of, its socket, its front-ends, its queues.
//!
//! Holds state and answers questions about it; who acts on the answers is `manager`.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::{Cache, Disk, Source};
use config::plan::DiskPlan;
use device::blk::{self, Limits, Live, Shape};
use guest_memory::Seal;
use schedule::Policy;
use sidecore::{QueueCounters, QueueKey};
use vhost_user::{DeviceFacts, Message, Scope, Session};
use virtqueue::{Format, inflight, layout};

use crate::address_space::AddressSpace;
use crate::connection::Connection;
use crate::front_end::FrontEnd;
use crate::lent::{Closer, Lent};
use crate::log_rate::LogRate;
use crate::manager::now;
use crate::shut::NotOpen;
use crate::start;

/// Front-ends of one disk at a time: one that runs it, others that only ask.
pub(crate) const LINKS_MAX: usize = 4;
/// How long a front-end may be silent before it has said that it is one (`SET_OWNER`), and before it
/// gives way to another when it has brought no memory. A QEMU whose guest stands in its firmware's
/// menu is silent for as long, so it is not ended for that alone.
pub(crate) const SILENCE_TIME_MAX: Duration = Duration::from_secs(10);

/// A message that waits until queues are back.
pub(crate) struct Held {
    pub(crate) message: Message,
    pub(crate) fds: Vec<Lent>,
    pub(crate) need_reply: bool,
}

/// One front-end.
pub(crate) struct Link {
    pub(crate) connection: Connection,
    pub(crate) session: Session<Lent>,
    pub(crate) front_end: FrontEnd,
    pub(crate) held: Option<Held>,
    /// When it connected or spoke last.
    pub(crate) heard_at: Instant,
    /// When a message that has begun must have ended.
    pub(crate) stalls_at: Option<Instant>,
}

/// A queue that a sidecore has.
#[derive(Clone, Copy)]
pub(crate) struct Attached {
    pub(crate) sidecore: usize,
    /// The link whose facts it was made of.
    pub(crate) link: u32,
    /// When detach was asked, if it was.
    pub(crate) leaving: Option<Instant>,
}

/// One queue, attached or not.
pub(crate) struct QueueState {
    pub(crate) counters: Arc<QueueCounters>,
    pub(crate) attached: Option<Attached>,
    /// A sidecore had it before, in this process.
    pub(crate) was_attached: bool,
    /// A start that failed: the link and its count of changes then. Not tried again before more
    /// was said.
    pub(crate) gave_up: Option<(u32, u64)>,
    pub(crate) size: u16,
    pub(crate) format: Format,
    pub(crate) violation: Option<String>,
    /// Why it is not served though its front-end wants it to be.
    pub(crate) problem: Option<String>,
}

impl QueueState {
    fn new() -> QueueState {
        QueueState {
            counters: Arc::new(QueueCounters::default()),
            attached: None,
            was_attached: false,
            gave_up: None,
            size: 0,
            format: Format::Split,
            violation: None,
            problem: None,
        }
    }
}

pub(crate) struct Device {
    pub(crate) number: u32,
    pub(crate) plan: DiskPlan,
    pub(crate) disk: Arc<Disk>,
    pub(crate) shape: Shape,
    pub(crate) live: Arc<Live>,
    pub(crate) listener: Option<OwnedFd>,
    pub(crate) links: BTreeMap<u32, Link>,
    /// The link that brought memory: its queues run.
    pub(crate) runner: Option<u32>,
    pub(crate) queues: Vec<QueueState>,
    pub(crate) problem: Option<String>,
    /// Why no front-end could be connected to (mode `connect`): it may not have started yet.
    pub(crate) unanswered: Option<String>,
    /// When to connect again (mode `connect`) or to accept again (mode `listen`).
    pub(crate) retry_at: Option<Instant>,
    /// Not to be connected before: a front-end that hangs up is not called in a loop.
    pub(crate) connect_after: Option<Instant>,
    /// It goes when its queues are back.
    pub(crate) removing: bool,
    /// A new size, for when its queues are back.
    pub(crate) resizing: Option<u64>,
    /// Queues are wanted back so that they start anew with other settings.
    pub(crate) restarting: bool,
    /// No front-end is taken before: one of them made a sidecore wait.
    pub(crate) closed_until: Option<Instant>,
    pub(crate) log: LogRate,
    pub(crate) closer: Closer,
}

impl Link {
    /// When it is ended if nothing happens: in the middle of a message, or before it said anything.
    fn due_at(&self) -> Option<Instant> {
        let silent = (!self.session.has_owner()).then(|| self.heard_at + SILENCE_TIME_MAX);
        self.stalls_at.into_iter().chain(silent).min()
    }

    /// Why it is ended now.
    pub(crate) fn overdue(&self, now: Instant) -> Option<&'static str> {
        self.due_at().filter(|at| *at <= now)?;
        Some(match self.stalls_at {
            Some(at) if at <= now => "it fell silent in the middle of a message",
            _ => "it said nothing of a front-end for 10 s",
        })
    }

    /// Whether it may be ended for another that wants its place.
    pub(crate) fn gives_way(&self, now: Instant) -> bool {
        let is_silent = self.heard_at + SILENCE_TIME_MAX <= now || !self.session.has_owner();
        is_silent && !self.session.has_memory()
    }
}

impl Device {
    /// Opens what the disk is made of.
    ///
    /// # Errors
    /// Why it cannot be opened and what to do.
    pub(crate) fn open(number: u32, plan: DiskPlan) -> Result<Device, NotOpen> {
        let disk = Disk::open(&source_of(&plan)).map_err(|e| NotOpen::new(&e, &plan))?;
        let limits = disk.limits();
        let shape = Shape {
            block_size: disk.block_size(),
            physical_block_exp: exponent_of(disk.physical_block_size(), disk.block_size()),
            readonly: plan.readonly,
            queues: plan.queues,
            serial: plan.serial_bytes(),
            limits: Limits {
                discard_sectors_max: limits.discard_sectors_max,
                zeroes_sectors_max: limits.zeroes_sectors_max,
            },
            in_order: disk.backend().answers_at_once(),
        };
        let live = Live::new(disk.size_bytes());
        let queues = (0..plan.queues).map(|_| QueueState::new()).collect();
        Ok(Device {
            number,
            plan,
            disk,
            shape,
            live,
            listener: None,
            links: BTreeMap::new(),
            runner: None,
            queues,
            problem: None,
            unanswered: None,
            retry_at: None,
            connect_after: None,
            removing: false,
            resizing: None,
            restarting: false,
            closed_until: None,
            log: LogRate::default(),
            closer: Closer::default(),
        })
    }

    /// A front-end that has just connected.
    pub(crate) fn new_link(&self, socket: OwnedFd, addresses: &AddressSpace, now: Instant) -> Link {
        let seal = if self.plan.allow_unsealed_memory { Seal::Any } else { Seal::Required };
        let facts = DeviceFacts {
            features: blk::offered(&self.shape),
            queues_max: self.plan.queues,
            ring_size_max: layout::RING_SIZE_MAX,
            inflight_len: |size, packed| {
                let format = if packed { Format::Packed } else { Format::Split };
                inflight::queue_region_len(format, size)
            },
        };
        let (shape, live) = (self.shape.clone(), Arc::clone(&self.live));
        Link {
            connection: Connection::new(socket, &self.closer),
            session: Session::new(facts),
            front_end: FrontEnd::new(shape, live, seal, addresses, &self.closer),
            held: None,
            heard_at: now,
            stalls_at: None,
        }
    }

    /// When something is to be done without an event.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        let links = self.links.values().filter_map(Link::due_at);
        let links = links.chain(self.links.keys().filter_map(|id| self.gives_up_at(*id)));
        links.chain(self.retry_at).chain(self.log.due_at()).min()
    }

    /// When a message of link `id` has waited as long as the disk's operator allows for queues that
    /// do not come back, because their disk does not answer.
    pub(crate) fn gives_up_at(&self, id: u32) -> Option<Instant> {
        let link = self.links.get(&id)?;
        let scope = link.session.scope(&link.held.as_ref()?.message);
        let leaving = |index: &u16| self.queues.get(usize::from(*index))?.attached?.leaving;
        let since = self.attached_in(id, scope).iter().filter_map(leaving).min()?;
        Some(since + Duration::from_secs(self.plan.drain_timeout_s.into()))
    }

    /// Since when a queue has been asked for that is not back.
    pub(crate) fn leaving_since(&self) -> Option<Instant> {
        self.queues.iter().filter_map(|queue| queue.attached?.leaving).min()
    }

    /// Requests that the disk has not answered, of queues that were asked for.
    pub(crate) fn unanswered_requests(&self) -> u64 {
        let leaving = |queue: &&QueueState| queue.attached.is_some_and(|a| a.leaving.is_some());
        let in_flight = |queue: &QueueState| queue.counters.snapshot().in_flight;
        self.queues.iter().filter(leaving).map(in_flight).sum()
    }

    /// Whether a line about it may be written; if not, it is counted.
    pub(crate) fn may_log(&mut self) -> bool {
        self.log.allows(now())
    }

    /// Queues of `scope` that a sidecore still has on behalf of link `link`.
    pub(crate) fn attached_in(&self, link: u32, scope: Scope) -> Vec<u16> {
        let concerned = |index: u16| match scope {
            Scope::None => false,
            Scope::Queue(queue) => queue == index,
            Scope::All => true,
        };
        let attached = |(index, queue): (usize, &QueueState)| {
            let index = index as u16;
            let theirs = queue.attached.is_some_and(|attached| attached.link == link);
            (theirs && concerned(index)).then_some(index)
        };
        self.queues.iter().enumerate().filter_map(attached).collect()
    }

    /// Queues that some sidecore has.
    pub(crate) fn attached(&self) -> Vec<u16> {
        let has = |(index, queue): (usize, &QueueState)| queue.attached.map(|_| index as u16);
        self.queues.iter().enumerate().filter_map(has).collect()
    }

    /// Whether something must happen before queues may start.
    pub(crate) fn is_held_back(&self) -> bool {
        self.removing || self.resizing.is_some() || self.restarting
    }

    /// The name of queue `index`.
    pub(crate) fn key(&self, index: u16) -> QueueKey {
        QueueKey { device: self.number, queue: index }
    }

    /// Makes queue `index` if its front-end has told enough. `Ok(None)`: it has not.
    pub(crate) fn make_queue(
        &mut self,
        index: u16,
    ) -> Result<Option<(u32, Box<sidecore::Served>)>, String> {
        let Some(number) = self.runner else { return Ok(None) };
        let Some(link) = self.links.get(&number) else { return Ok(None) };
        let Some(queue) = self.queues.get(usize::from(index)) else { return Ok(None) };
        let parts = start::DeviceParts {
            key: QueueKey { device: self.number, queue: index },
            disk: &self.disk,
            shape: &self.shape,
            live: &self.live,
            share: self.plan.share,
            policy: policy_of(self.plan.policy),
            counters: &queue.counters,
        };
        let Some(facts) = link.session.ready(index).filter(|_| link.held.is_none()) else {
            return Ok(None);
        };
        // What an earlier front-end left in flight must not land after what this one writes.
        let others = |q: &QueueState| q.attached.is_some_and(|attached| attached.link != number);
        if self.queues.iter().any(others) {
            return Ok(None);
        }
        let changes = link.session.changes();
        let queue = self.queues.get(usize::from(index));
        if queue.is_some_and(|q| q.attached.is_some() || q.gave_up == Some((number, changes))) {
            return Ok(None);
        }
        let (features, logging) = (link.session.features(), link.session.is_logging());
        let is_lost = self.has_lost_what_it_held(link);
        let made = match is_lost {
            true => Err(lost_by(&self.plan)),
            false => start::make(&facts, features, logging, &link.front_end, &parts),
        };
        let size = facts.size;
        if let Some(queue) = self.queues.get_mut(usize::from(index)) {
            queue.size = size;
            queue.format = start::format_of(features);
            queue.violation = None;
            queue.problem = made.as_ref().err().map(|error| format!("cannot be served: {error}"));
            queue.gave_up = made.is_err().then_some((number, changes));
        }
        // Those of its rings that were set up before this one was told of.
        self.restarting |= is_lost && !self.attached().is_empty();
        made.map(|served| Some((number, served)))
    }

    /// Whether the disk was empty when it was opened (a RAM disk, an image that was missing) and some
    /// ring of the front-end, enabled or not, was served by an earlier process: its guest must not be
    /// handed zeroes, through no ring, until it starts anew.
    fn has_lost_what_it_held(&self, link: &Link) -> bool {
        let is_lost = |(index, queue): (usize, &QueueState)| {
            let facts = link.session.set_up(index as u16).filter(|_| !queue.was_attached);
            let features = link.session.features();
            facts.is_some_and(|facts| start::was_used(&facts, features, &link.front_end))
        };
        self.disk.was_empty() && self.queues.iter().enumerate().any(is_lost)
    }

    /// Removes the socket that this disk listens on.
    pub(crate) fn close_socket(&mut self) {
        if let Some(listener) = self.listener.take() {
            // Whoever waits to be accepted may have sent anything already.
            self.closer.close(listener);
            let _ = std::fs::remove_file(Path::new(&self.plan.socket));
        }
    }
}

/// What a guest is told whose disk holds nothing of what it wrote.
fn lost_by(plan: &DiskPlan) -> String {
    match plan.source.path() {
        None => "its guest used this RAM disk before the daemon was started, and what it wrote is \
                 gone: restart the guest"
            .to_string(),
        Some(path) => format!(
            "its guest used this disk before the daemon was started, and {path} was missing or empty \
             then: stop the daemon, put the image back and start it; or restart the guest with the \
             empty one"
        ),
    }
}

/// What the back-end is asked to open.
fn source_of(plan: &DiskPlan) -> Source {
    match &plan.source {
        config::Source::Null { size_bytes } => Source::Null { size_bytes: *size_bytes },
        config::Source::Memory { size_bytes } => Source::Memory { size_bytes: *size_bytes },
        config::Source::File { path, size_bytes, cache } => Source::File {
            path: path.into(),
            size_bytes: *size_bytes,
            readonly: plan.readonly,
            cache: match cache {
                config::spec::Cache::Auto => Cache::Auto,
                config::spec::Cache::Direct => Cache::Direct,
                config::spec::Cache::Page => Cache::Page,
            },
        },
    }
}

/// The power of two by which the physical block is larger than the logical one.
fn exponent_of(physical: u32, logical: u32) -> u8 {
    physical.checked_div(logical).and_then(u32::checked_ilog2).unwrap_or(0) as u8
}

fn policy_of(policy: config::spec::Policy) -> Policy {
    match policy {
        config::spec::Policy::Adaptive => Policy::Adaptive,
        config::spec::Policy::Poll => Policy::Poll,
        config::spec::Policy::Notify => Policy::Notify,
    }
}
