//! One pass along the whole path, and what a sidecore owns.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use backend::Io;
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::thread::CpuSet;
use schedule::{Clock, LOOK_INTERVAL_NS, Limits, Nanos, Schedule};
use virtqueue::Chain;

use crate::alarm::Alarm;
use crate::bell::Bell;
use crate::counters::SidecoreCounters;
use crate::inbox::{Command, Event, Handle, reset};
use crate::knock::{Knock, price};
use crate::link::HostLinks;
use crate::moves::Moves;
use crate::net::{Inbound, Net};
use crate::places::{Place, Tenant, disk_at, road_at, served_at};
use crate::rest::{Rest, Woke, eventfd};
use crate::sample::Sampling;
use crate::served::Role;

/// Commands that wait at most.
pub(crate) const INBOX_SIZE: usize = 1024;
/// Completions reaped in one pass.
const REAPED_PER_PASS: usize = 256;
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
    pub(crate) io_watched: bool,
    pub(crate) rest: Rest,
    pub(crate) alarm: Alarm,
    pub(crate) looked: Nanos,
    pub(crate) commands: Consumer<Command>,
    pub(crate) events: Producer<Event>,
    /// Events that did not fit; sent before any other.
    pub(crate) unsent: VecDeque<Event>,
    pub(crate) command_fd: Arc<OwnedFd>,
    pub(crate) event_fd: Arc<OwnedFd>,
    /// Places whose queue leaves when nothing is in flight.
    pub(crate) leaving: Vec<u16>,
    /// Places of host ports that leave when a frame of theirs has found room, or then.
    pub(crate) parting: Vec<(u16, Nanos)>,
    /// Places of queues that will be asked to leave when nothing is left in their records.
    pub(crate) finishing: Vec<u16>,
    /// Fences that were not answered yet.
    pub(crate) fences: u32,
    /// Places with completions to show after reaping.
    pub(crate) unshown: Vec<u16>,
    /// Places with a call that was put off.
    pub(crate) put_off: Vec<u16>,
    /// Requests that were answered in their visit: their latency is known at the next pass.
    pub(crate) unclocked: Vec<u16>,
    /// Of the watched queues, the one that is looked at first.
    pub(crate) first_watched: usize,
    /// Until when the queue that was served last may take nothing.
    pub(crate) limited_until: Option<Nanos>,
    pub(crate) stopping: bool,
    pub(crate) net: Net,
    pub(crate) moves: Moves,
    pub(crate) links: HostLinks,
    /// Places of roads from other sidecores.
    pub(crate) roads: Vec<u16>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) knock: Arc<Knock>,
    pub(crate) kick_ns: u64,
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
        let (commands_in, commands) = RingBuffer::new(INBOX_SIZE);
        // A queue can fail and be detached, and both may wait.
        let (events, events_out) = RingBuffer::new(2 * usize::from(spec.queues_max) + INBOX_SIZE);
        let (command_fd, event_fd) = (Arc::new(eventfd()?), Arc::new(eventfd()?));
        let rest = Rest::new(&command_fd)?;
        let mut io = Io::new(IO_ENTRIES).map_err(io::Error::other)?;
        if let Some(cpus) = spec.workers {
            io.keep_workers_on(cpus);
        }
        let counters = Arc::new(SidecoreCounters::default());
        let bell = Bell::new(&command_fd);
        let knock = Arc::new(Knock::default());
        let limits = Limits::default();
        let handle = Handle {
            bell: Arc::clone(&bell),
            knock: Arc::clone(&knock),
            commands: commands_in,
            events: events_out,
            command_fd: Arc::clone(&command_fd),
            event_fd: Arc::clone(&event_fd),
            counters: Arc::clone(&counters),
            thread: None,
        };
        let queues_max = usize::from(spec.queues_max);
        io.expect_places(queues_max);
        let mut schedule = Schedule::new(limits, spec.queues_max);
        schedule.watch(spec.watches);
        let sidecore = Sidecore {
            places: (0..queues_max).map(|_| Place::default()).collect(),
            schedule,
            chain: Chain::default(),
            io,
            io_watched: false,
            rest,
            alarm: Alarm::new()?,
            looked: Nanos(0),
            commands,
            events,
            unsent: VecDeque::with_capacity(queues_max),
            command_fd,
            event_fd,
            leaving: Vec::with_capacity(queues_max),
            parting: Vec::with_capacity(queues_max),
            finishing: Vec::with_capacity(queues_max),
            fences: 0,
            unshown: Vec::with_capacity(queues_max),
            put_off: Vec::with_capacity(queues_max),
            unclocked: Vec::with_capacity(queues_max),
            first_watched: 0,
            limited_until: None,
            stopping: false,
            net: Net::new(spec.index, queues_max),
            moves: Moves::default(),
            links: HostLinks::default(),
            roads: Vec::new(),
            bell,
            knock,
            kick_ns: limits.kick_ns.into(),
            sampling: Sampling::new(spec.index),
            counters,
        };
        Ok((sidecore, handle))
    }

    /// One trip along the whole path, begun at `now`. Bounded: each queue is visited at most once, within
    /// its budget. Never blocks; allocates only for a queue that is attached. The clock is read for long
    /// visits, about once in 5 us.
    pub fn pass(&mut self, now: Nanos, clock: &impl Clock) -> Progress {
        let mut now = now;
        self.clock_answered(now);
        if !self.put_off.is_empty() {
            self.call_put_off(now);
        }
        if self.io.stalled() > 0 {
            self.look_at_stalled(now);
        }
        let came = self.take_arrivals(now);
        let mut progress =
            Progress { commands: came + self.take_commands(now, clock), ..Progress::default() };
        self.hand_over(now);
        if now.since(self.looked) >= LOOK_INTERVAL_NS {
            progress.kicks = self.look(false, now);
        }
        self.hear_roads(now);
        self.go_on_relocating(now);
        progress.linked = self.receive_links(now);
        self.schedule.begin(now);
        let is_sample = self.sampling.begin();
        while let Some(visit) = self.schedule.next() {
            self.look_ahead();
            let begun = if is_sample { self.begin_timing(clock) } else { now };
            let (requests, then) = self.visit(visit, begun, clock);
            now = then;
            if is_sample {
                now = self.end_timing(visit.queue, begun, requests, clock);
            }
            progress.requests += requests;
        }
        self.enter();
        progress.reaped = self.reap(now);
        self.arm_idle();
        self.hand_over(now);
        self.let_go(now);
        progress.linked += self.send_links(now);
        self.counters.requests.add(progress.requests.into());
        if is_sample {
            self.end_sample(!progress.is_idle());
        }
        progress
    }

    /// After an idle pass: sleeps when nothing is polled, but what only a completion lets go on, and
    /// nothing waits. True when it slept;
    /// `now` is then stale.
    ///
    /// Sleeping is safe only in this order: kicks were asked for, then the rings were looked at
    /// again, then the inbox; what comes later is an event of the set.
    pub fn rest(&mut self, now: Nanos) -> bool {
        let slept = self.falls_asleep(now);
        if slept {
            self.look(true, now);
        }
        self.bell.awake();
        slept
    }

    /// All of [`Self::rest`] but the sleep. True when it is to sleep; the bell is told of the end in
    /// either case.
    pub(crate) fn falls_asleep(&mut self, now: Nanos) -> bool {
        let waits = !self.commands.is_empty()
            || !self.unsent.is_empty()
            || !self.put_off.is_empty()
            || self.fences > 0
            || !self.parting.is_empty()
            || !self.leaving.is_empty() && self.io.in_flight() == 0
            || self.leaving.iter().any(|queue| self.is_slicing(*queue))
            || self.moves.keep_awake()
            || self.has_ended();
        let is_due = self.next_due().is_some_and(|due| due <= now) || self.links.have_some();
        if !self.schedule.may_rest() || is_due || waits || !self.watches_completions() {
            return false;
        }
        // Asked last: requests that wait for those of another sidecore are woken only from now on.
        if !self.io.may_rest() {
            return false;
        }
        // And so for parcels: who sends one from now on rings.
        self.bell.sleep();
        let slept = !self.has_parcels() && !self.moves.has_some();
        if slept {
            self.moves.slept();
            self.counters.sleeps.add(1);
        }
        slept
    }

    /// After a sleep that ended at `now`: what a kick costs is learned, when control woke it for that.
    pub fn woke(&mut self, now: Nanos) {
        let Some(took) = self.knock.took(now) else { return };
        self.kick_ns = price(self.kick_ns, took);
        self.schedule.set_kick_cost(u32::try_from(self.kick_ns).unwrap_or(u32::MAX));
        self.counters.kick_ns.set(self.kick_ns);
    }

    /// Queues that have been idle long enough are polled no longer: kicks are asked for, then the
    /// ring is looked at again. Beside busy queues too, so that idle ones cost nothing.
    fn arm_idle(&mut self) {
        while let Some(queue) = self.schedule.to_arm() {
            let Some(served) = served_at(&mut self.places, queue) else {
                // A host port's descriptor wakes for what came before, too; a road's sender rings when
                // this sidecore sleeps.
                match road_at(&self.places, queue).is_some_and(Inbound::has_some) {
                    true => self.schedule.found(queue),
                    false => self.schedule.armed(queue),
                }
                continue;
            };
            let ring = &mut served.ring;
            if !ring.health.is_lost() && ring.queue.arm() {
                ring.queue.disarm();
                self.schedule.found(queue);
            } else {
                if matches!(served.role, Role::Transmit(_)) {
                    ring.publish_owed(&mut self.alarm);
                }
                self.schedule.armed(queue);
                self.examine(queue);
            }
        }
    }

    /// Whether [`Command::Stop`] came and every queue is given back.
    pub fn has_ended(&self) -> bool {
        self.stopping
            && self.unsent.is_empty()
            && !self.moves.awaits()
            && self.places.iter().all(Place::is_given_back)
    }

    /// The counters that [`Handle::counters`] shows.
    pub fn counters(&self) -> &SidecoreCounters {
        &self.counters
    }

    /// What was answered at once in the last pass took until now, at most.
    #[inline]
    fn clock_answered(&mut self, now: Nanos) {
        for queue in self.unclocked.drain(..) {
            if let Some((ring, disk)) = disk_at(&mut self.places, queue) {
                let took = now.since(disk.unclocked_since);
                ring.counters.latency.add(took, std::mem::take(&mut disk.unclocked));
            }
        }
    }

    /// What was queued for disks goes to the kernel now. No system call when that is nothing.
    pub(crate) fn hand_over_io(&mut self) {
        if self.io.hand_over().is_err() {
            self.counters.io_errors.add(1);
        }
    }

    fn enter(&mut self) {
        if self.io.enter().is_err() {
            // What was queued stays queued and is submitted by a later pass.
            self.counters.io_errors.add(1);
        }
    }

    fn reap(&mut self, now: Nanos) -> u32 {
        if self.io.in_flight() == 0 {
            return 0;
        }
        let mut reaped = 0;
        // One at a time, because what is reaped may submit again to the same ring.
        for _ in 0..REAPED_PER_PASS {
            let Some((tag, result)) = self.io.reap_one() else { break };
            let Some((ring, disk)) = disk_at(&mut self.places, tag.queue) else { continue };
            let (was_shown, was_clocked) = (!ring.unshown, disk.unclocked == 0);
            reaped += u32::from(disk.reap(ring, &mut self.io, tag, result, now));
            if was_clocked && disk.unclocked > 0 {
                disk.unclocked_since = now;
                self.unclocked.push(tag.queue);
            }
            if was_shown && ring.unshown {
                self.unshown.push(tag.queue);
            }
            let has_begun = disk.large.is_under_way();
            self.schedule.completed(tag.queue);
            if has_begun {
                self.poll_begun(tag.queue, now);
            }
        }
        // What was resumed goes to the kernel now: the next pass may be after a sleep.
        self.hand_over_io();
        while let Some(queue) = self.unshown.pop() {
            if let Some(served) = served_at(&mut self.places, queue)
                && served.ring.publish_reaped(&mut self.alarm, now)
            {
                self.put_off.push(queue);
            }
            self.examine(queue);
        }
        reaped
    }

    /// The next part of a request waits for a turn of this queue, or one that stalled does.
    #[cold]
    pub(crate) fn poll_begun(&mut self, queue: u16, now: Nanos) {
        if self.schedule.has_begun(queue, now)
            && let Some((ring, _)) = disk_at(&mut self.places, queue)
            && !ring.health.is_lost()
        {
            ring.queue.disarm();
        }
        if self.schedule.watches_others(queue) {
            self.rest_from_copies(queue, now);
        }
    }

    /// A queue whose next copy is not due is visited when it is. Those that ask little do not wait for looks at it.
    #[cold]
    pub(crate) fn rest_from_copies(&mut self, queue: u16, now: Nanos) {
        let Some((_, disk)) = disk_at(&mut self.places, queue) else { return };
        if let Some(until) = disk.large.next_look(now) {
            self.schedule.wait_until(queue, until);
        }
    }

    /// Looks for kicks, completions and commands; waits for one of them if asked to.
    pub(crate) fn look(&mut self, wait: bool, now: Nanos) -> u32 {
        let at_most_ns = self.next_due().map(|due| due.since(now));
        if self.rest.look(wait, at_most_ns) && wait {
            // Nobody is called while it sleeps.
            self.alarm.stop();
        }
        self.looked = now;
        let mut kicks = 0;
        while let Some(woke) = self.rest.next() {
            match woke {
                Woke::Inbox => reset(&self.command_fd),
                Woke::Completions => self.io.acknowledge(),
                // The next pass takes them.
                Woke::Link => {}
                Woke::Kick { queue, epoch } => kicks += self.kicked(queue, epoch, now),
            }
        }
        self.counters.kicks.add(kicks.into());
        kicks
    }

    pub(crate) fn kicked(&mut self, queue: u16, epoch: u32, now: Nanos) -> u32 {
        let Some(place) = self.places.get_mut(usize::from(queue)) else { return 0 };
        if place.epoch != epoch {
            return 0;
        }
        match &mut place.tenant {
            Tenant::Queue(served) => {
                let ring = &mut served.ring;
                ring.counters.kicks.add(1);
                if ring.leaving {
                    return 0;
                }
                if let Role::Receive(receive) = &mut served.role {
                    // The pass that follows looks at whoever waited for it.
                    receive.kicked(ring);
                    return 1;
                }
                if self.schedule.kicked(queue, now) && !ring.health.is_lost() {
                    ring.queue.disarm();
                }
            }
            Tenant::Host(host) if host.is_muted => {
                // Not a frame, then, but an error, of which only a receive tells more. What waited is lost
                // with it.
                self.net.lose_kept(host);
            }
            Tenant::Host(_) => {
                // While it is polled, its descriptor says so at each look.
                if !self.schedule.kicked(queue, now) {
                    return 0;
                }
            }
            Tenant::Road(_) | Tenant::Empty => return 0,
        }
        1
    }

    fn watches_completions(&mut self) -> bool {
        if !self.io_watched
            && let Some(fd) = self.io.poll_fd()
        {
            self.io_watched = self.rest.watch_completions(fd).is_ok();
        }
        // What is in flight without a ring is a link's.
        self.io_watched || self.io.poll_fd().is_none() || self.io.in_flight() == 0
    }
}
