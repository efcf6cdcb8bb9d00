//! One pass along the whole path, and what a sidecore owns.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use backend::Io;
use rtrb::{Consumer, Producer, RingBuffer};
use schedule::{Nanos, Policy, Schedule, Visit};
use virtqueue::Chain;

use crate::alarm::Alarm;
use crate::counters::SidecoreCounters;
use crate::fetch::Tally;
use crate::inbox::{Command, Event, Handle, Refusal, reset, wake};
use crate::rest::{Rest, Woke, eventfd};
use crate::served::{QueueKey, Served};

/// Commands taken in one pass: an inbox cannot stall the path.
pub(crate) const COMMANDS_PER_PASS: usize = 4;
/// Commands that wait at most.
pub(crate) const INBOX_SIZE: usize = 1024;
/// Completions reaped in one pass.
const REAPED_PER_PASS: usize = 256;
/// Submission entries of the io_uring.
const IO_ENTRIES: u32 = 1024;
/// Between two looks for kicks while something is polled, nanoseconds.
const LOOK_INTERVAL_NS: u64 = 50_000;

/// What a sidecore is made of.
#[derive(Clone, Copy, Debug)]
pub struct SidecoreSpec {
    /// Its number, for its name.
    pub index: u16,
    /// The processor it is pinned to; `None` to run anywhere.
    pub cpu: Option<u32>,
    /// Queues it can hold.
    pub queues_max: u16,
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Commands taken.
    pub commands: u32,
    /// Requests taken from rings.
    pub requests: u32,
    /// Requests ended by a completion.
    pub reaped: u32,
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

/// A place in the table of queues.
#[derive(Debug, Default)]
struct Place {
    served: Option<Box<Served>>,
    /// Counts the queues that were here; names their kicks and seeds their tags.
    epoch: u32,
}

/// The owner of some queues and of the thread that serves them.
///
/// - The walk: [`Self::pass`], then, when it was idle, [`Self::rest`].
/// - The end: [`Self::has_ended`].
pub struct Sidecore {
    places: Box<[Place]>,
    schedule: Schedule,
    chain: Chain,
    io: Io,
    io_watched: bool,
    rest: Rest,
    pub(crate) alarm: Alarm,
    looked: Nanos,
    commands: Consumer<Command>,
    events: Producer<Event>,
    /// Events that did not fit; sent before any other.
    unsent: VecDeque<Event>,
    command_fd: Arc<OwnedFd>,
    event_fd: Arc<OwnedFd>,
    /// Places whose queue leaves when nothing is in flight.
    leaving: Vec<u16>,
    /// Places with completions to show after reaping.
    unshown: Vec<u16>,
    /// Requests that were answered in their visit: their latency is known at the next pass.
    unclocked: Vec<u16>,
    unclocked_since: Nanos,
    stopping: bool,
    counters: Arc<SidecoreCounters>,
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
        let io = Io::new(IO_ENTRIES).map_err(io::Error::other)?;
        let counters = Arc::new(SidecoreCounters::default());
        let handle = Handle {
            commands: commands_in,
            events: events_out,
            command_fd: Arc::clone(&command_fd),
            event_fd: Arc::clone(&event_fd),
            counters: Arc::clone(&counters),
            thread: None,
        };
        let queues_max = usize::from(spec.queues_max);
        let sidecore = Sidecore {
            places: (0..queues_max).map(|_| Place::default()).collect(),
            schedule: Schedule::new(schedule::Limits::default(), spec.queues_max),
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
            unshown: Vec::with_capacity(queues_max),
            unclocked: Vec::with_capacity(queues_max),
            unclocked_since: Nanos(0),
            stopping: false,
            counters,
        };
        Ok((sidecore, handle))
    }

    /// One trip along the whole path. Bounded: each queue is visited at most once, within its
    /// budget. Never blocks; allocates only for a queue that is attached.
    pub fn pass(&mut self, now: Nanos) -> Progress {
        self.clock_answered(now);
        let mut progress = Progress { commands: self.take_commands(now), ..Progress::default() };
        if now.since(self.looked) >= LOOK_INTERVAL_NS {
            progress.kicks = self.look(false, now);
        }
        self.schedule.begin(now);
        while let Some(visit) = self.schedule.next() {
            progress.requests += self.visit(visit, now);
        }
        self.enter();
        progress.reaped = self.reap(now);
        self.arm_idle();
        self.let_go();
        progress
    }

    /// After an idle pass: sleeps when nothing is polled, but what only a completion lets go on, and
    /// nothing waits. True when it slept;
    /// `now` is then stale.
    ///
    /// Sleeping is safe only in this order: kicks were asked for, then the rings were looked at
    /// again, then the inbox; what comes later is an event of the set.
    pub fn rest(&mut self, now: Nanos) -> bool {
        let waits = !self.commands.is_empty()
            || !self.unsent.is_empty()
            || !self.leaving.is_empty() && self.io.in_flight() == 0
            || self.leaving.iter().any(|queue| self.is_slicing(*queue))
            || self.has_ended();
        if !self.schedule.may_rest() || waits || !self.watches_completions() {
            return false;
        }
        // Asked last: requests that wait for those of another sidecore are woken only from now on.
        if !self.io.may_rest() {
            return false;
        }
        self.counters.sleeps.add(1);
        self.look(true, now);
        true
    }

    /// Queues that have been idle long enough are polled no longer: kicks are asked for, then the
    /// ring is looked at again. Beside busy queues too, so that idle ones cost nothing.
    fn arm_idle(&mut self) {
        while let Some(queue) = self.schedule.to_arm() {
            let Some(served) = served_at(&mut self.places, queue) else { continue };
            if !served.health.is_lost() && served.spec.queue.arm() {
                served.spec.queue.disarm();
                self.schedule.found(queue);
            } else {
                self.schedule.armed(queue);
                self.examine(queue);
            }
        }
    }

    /// Whether [`Command::Stop`] came and every queue is given back.
    pub fn has_ended(&self) -> bool {
        self.stopping && self.unsent.is_empty() && self.places.iter().all(|p| p.served.is_none())
    }

    /// The counters that [`Handle::counters`] shows.
    pub fn counters(&self) -> &SidecoreCounters {
        &self.counters
    }

    #[inline]
    fn visit(&mut self, visit: Visit, now: Nanos) -> u32 {
        let Visit { queue, budget } = visit;
        let Some(served) = served_at(&mut self.places, queue) else { return 0 };
        let (visited, tally) = served.fetch(&mut self.io, &mut self.chain, queue, budget, now);
        served.publish(&mut self.alarm);
        if tally.ended > 0 {
            served.unclocked = tally.ended;
            self.unclocked.push(queue);
            self.unclocked_since = now;
        }
        if visited.requests > 0 {
            served.spec.counters.visits.add(1);
        }
        if served.spec.queue.violation().is_some() || served.health.is_lost() {
            self.examine(queue);
        }
        let requests = visited.requests;
        self.schedule.visited(queue, visited);
        requests
    }

    /// What was answered at once in the last pass took until now, at most.
    #[inline]
    fn clock_answered(&mut self, now: Nanos) {
        let took = now.since(self.unclocked_since);
        for queue in self.unclocked.drain(..) {
            if let Some(served) = served_at(&mut self.places, queue) {
                served.spec.counters.latency.add(took, std::mem::take(&mut served.unclocked));
            }
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
            let Some(served) = served_at(&mut self.places, tag.queue) else { continue };
            let (was_shown, was_clocked) = (!served.unshown, served.unclocked == 0);
            reaped += u32::from(served.reap(&mut self.io, tag, result, now));
            if was_clocked && served.unclocked > 0 {
                self.unclocked.push(tag.queue);
                self.unclocked_since = now;
            }
            if was_shown && served.unshown {
                self.unshown.push(tag.queue);
            }
            self.schedule.completed(tag.queue);
        }
        // What was resumed goes to the kernel now: the next pass may be after a sleep.
        if self.io.hand_over().is_err() {
            self.counters.io_errors.add(1);
        }
        while let Some(queue) = self.unshown.pop() {
            if let Some(served) = served_at(&mut self.places, queue) {
                served.publish(&mut self.alarm);
            }
            self.examine(queue);
        }
        reaped
    }

    /// Looks for kicks, completions and commands; waits for one of them if asked to.
    fn look(&mut self, wait: bool, now: Nanos) -> u32 {
        if self.rest.look(wait) && wait {
            // Nobody is called while it sleeps.
            self.alarm.stop();
        }
        self.looked = now;
        let mut kicks = 0;
        while let Some(woke) = self.rest.next() {
            match woke {
                Woke::Inbox => reset(&self.command_fd),
                Woke::Completions => self.io.acknowledge(),
                Woke::Kick { queue, epoch } => kicks += self.kicked(queue, epoch, now),
            }
        }
        self.counters.kicks.add(kicks.into());
        kicks
    }

    pub(crate) fn kicked(&mut self, queue: u16, epoch: u32, now: Nanos) -> u32 {
        let Some(place) = self.places.get_mut(usize::from(queue)) else { return 0 };
        let Some(served) = place.served.as_mut().filter(|_| place.epoch == epoch) else { return 0 };
        served.spec.counters.kicks.add(1);
        if served.leaving {
            return 0;
        }
        if self.schedule.kicked(queue, now) && !served.health.is_lost() {
            served.spec.queue.disarm();
        }
        1
    }

    fn watches_completions(&mut self) -> bool {
        if !self.io_watched
            && let Some(fd) = self.io.poll_fd()
        {
            self.io_watched = self.rest.watch_completions(fd).is_ok();
        }
        self.io_watched || self.io.in_flight() == 0
    }

    fn take_commands(&mut self, now: Nanos) -> u32 {
        let mut taken = 0;
        for _ in 0..COMMANDS_PER_PASS {
            let Ok(command) = self.commands.pop() else { break };
            taken += 1;
            match command {
                Command::Attach(served) => self.attach(served, now),
                Command::Detach(key) => self.detach(key),
                Command::SetCall(key, call) => self.set_call(key, call),
                Command::Stop => self.stop(),
            }
        }
        taken
    }

    fn attach(&mut self, mut served: Box<Served>, now: Nanos) {
        // What serving needs of the kernel is taken now, so that the first request does not.
        if let Err(error) = served.spec.backend.join(&mut self.io) {
            return self.send(Event::Refused(served, Refusal::Kernel(error)));
        }
        let free = self.places.iter().position(|place| place.served.is_none());
        let Some((queue, place)) = free.and_then(|q| Some((q as u16, self.places.get_mut(q)?)))
        else {
            served.spec.backend.leave(&mut self.io);
            return self.send(Event::Refused(served, Refusal::NoPlace));
        };
        place.epoch = place.epoch.wrapping_add(1);
        let watched = match &served.spec.kick {
            Some(kick) => self.rest.watch(kick, queue, place.epoch).is_ok(),
            None => false,
        };
        // Without kicks to wait for, only polling finds anything.
        let policy = if watched { served.spec.policy } else { Policy::Poll };
        self.schedule.add(queue, served.spec.share, policy, now);
        served.leaving = false;
        served.slots.begin(place.epoch);
        if !served.health.is_lost() {
            served.spec.queue.disarm();
        }
        // A call may have been lost between two owners of this ring; one too many is harmless.
        served.call(&mut self.alarm);
        place.served = Some(served);
        self.count_queues();
        self.examine(queue);
    }

    fn detach(&mut self, key: QueueKey) {
        let Some(queue) = self.find(key) else { return };
        let Some(served) = served_at(&mut self.places, queue) else { return };
        if std::mem::replace(&mut served.leaving, true) {
            return;
        }
        if let Some(kick) = &served.spec.kick {
            self.rest.forget(kick);
        }
        self.schedule.remove(queue);
        self.leaving.push(queue);
    }

    fn set_call(&mut self, key: QueueKey, call: Option<OwnedFd>) {
        let Some(queue) = self.find(key) else { return };
        if let Some(served) = served_at(&mut self.places, queue) {
            served.spec.call = call;
            served.call(&mut self.alarm);
        }
        self.examine(queue);
    }

    fn stop(&mut self) {
        self.stopping = true;
        let keys: Vec<QueueKey> =
            self.places.iter().filter_map(|p| Some(p.served.as_ref()?.key())).collect();
        for key in keys {
            self.detach(key);
        }
    }

    /// Gives back what leaves and has nothing in flight; sends what could not be sent before.
    fn let_go(&mut self) {
        while let Some(event) = self.unsent.pop_front() {
            if let Err(rtrb::PushError::Full(event)) = self.events.push(event) {
                self.unsent.push_front(event);
                break;
            }
            wake(&self.event_fd);
        }
        let (mut at, mut sliced) = (0, false);
        while let Some(&queue) = self.leaving.get(at) {
            // It is visited no more, so what it has begun goes on here: one slice a pass, since all
            // queues of a guest may leave together.
            if !sliced
                && let Some(served) = served_at(&mut self.places, queue)
                && served.large.is_under_way()
            {
                sliced = true;
                let mut tally = Tally::default();
                served.slice(&mut self.io, &mut tally);
                tally.add_to(served);
            }
            let place = self.places.get_mut(usize::from(queue));
            let gone = place.and_then(|p| p.served.take_if(|s| s.spec.queue.in_flight() == 0));
            let Some(mut served) = gone else {
                at += 1;
                continue;
            };
            self.leaving.swap_remove(at);
            served.publish(&mut self.alarm);
            served.spec.backend.leave(&mut self.io);
            self.send(Event::Detached(served));
            self.count_queues();
        }
    }

    /// Latches a queue whose health is lost, and reports what latched it, once. A lost page may make
    /// a ring look wrong; then the loss is what is told.
    fn examine(&mut self, queue: u16) {
        let Some(served) = served_at(&mut self.places, queue) else { return };
        let lost = served.violation_by_loss();
        if let Some(violation) = lost {
            served.spec.queue.latch(violation);
        }
        if let Some(violation) = served.spec.queue.take_report() {
            let (key, violation) = (served.key(), lost.unwrap_or(violation));
            self.send(Event::Failed { key, violation });
        }
    }

    fn send(&mut self, event: Event) {
        match self.events.push(event) {
            Ok(()) => wake(&self.event_fd),
            Err(rtrb::PushError::Full(event)) => self.unsent.push_back(event),
        }
    }

    fn find(&self, key: QueueKey) -> Option<u16> {
        let at = |place: &Place| place.served.as_ref().is_some_and(|served| served.key() == key);
        self.places.iter().position(at).map(|queue| queue as u16)
    }

    /// Whether the queue at this place has a large request under way.
    fn is_slicing(&self, queue: u16) -> bool {
        let served = self.places.get(usize::from(queue)).and_then(|place| place.served.as_ref());
        served.is_some_and(|served| served.large.is_under_way())
    }

    fn count_queues(&self) {
        self.counters.queues.set(self.schedule.queues() as u64);
    }
}

#[inline]
fn served_at(places: &mut [Place], queue: u16) -> Option<&mut Served> {
    places.get_mut(usize::from(queue))?.served.as_deref_mut()
}
