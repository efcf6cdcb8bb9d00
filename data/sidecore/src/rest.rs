//! Waiting without losing anything: kicks, completions, and the inbox in one epoll set.
//!
//! Not what is done with what came (`hear`). Called by `sidecore`, and by `thread` after an idle pass.
//!
//! Kicks are edge-triggered and never read: a kick is an edge, its count means nothing. A queue's
//! entry names its place and the attachment it belongs to, because an entry can outlive the
//! descriptor it was made with when the front-end holds a copy.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fs::Timespec;
use rustix::io::Errno;
use schedule::{Clock, LOOK_EVENTS_MAX, LOOK_INTERVAL_NS, Nanos};

use crate::bell::Bell;
use crate::net::Inbound;
use crate::places::{road_at, served_at};
use crate::served::Role;
use crate::sidecore::Sidecore;

/// Entries that are not queues.
const INBOX: u64 = u64::MAX;
const COMPLETIONS: u64 = u64::MAX - 1;
const LINKS: u64 = u64::MAX - 2;

/// What woke us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woke {
    /// A guest kicked the queue at this place, in this attachment of it.
    Kick { queue: u16, epoch: u32 },
    /// A command came.
    Inbox,
    /// The kernel completed something.
    Completions,
    /// Frames came on a link.
    Link,
}

pub(crate) struct Rest {
    set: OwnedFd,
    events: [Event; LOOK_EVENTS_MAX],
    found: usize,
    looked: Nanos,
    watches_completions: bool,
    bell: Arc<Bell>,
}

impl Rest {
    /// A set with the eventfd of the inbox in it, which `bell` writes, too.
    pub(crate) fn new(inbox: &OwnedFd, bell: Arc<Bell>) -> io::Result<Rest> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&set, inbox, EventData::new_u64(INBOX), EventFlags::IN)?;
        let nothing = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        Ok(Rest {
            set,
            events: [nothing; LOOK_EVENTS_MAX],
            found: 0,
            looked: Nanos(0),
            watches_completions: false,
            bell,
        })
    }

    /// Who is told when the sidecore sleeps.
    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Whether it is time to look again without a sleep.
    #[inline]
    pub(crate) fn is_to_look(&self, now: Nanos) -> bool {
        now.since(self.looked) >= LOOK_INTERVAL_NS
    }

    /// Watches the back-ends' completions; level-triggered, reset by whoever reaps. Whether they are watched.
    fn watch_completions(&mut self, fd: Option<BorrowedFd<'_>>) -> bool {
        if !self.watches_completions
            && let Some(fd) = fd
        {
            let data = EventData::new_u64(COMPLETIONS);
            self.watches_completions = epoll::add(&self.set, fd, data, EventFlags::IN).is_ok();
        }
        self.watches_completions
    }

    /// Watches a queue's kicks. An edge that came before counts as one.
    pub(crate) fn watch(&self, kick: &OwnedFd, queue: u16, epoch: u32) -> io::Result<()> {
        let data = EventData::new_u64(u64::from(epoch) << 16 | u64::from(queue));
        Ok(epoll::add(&self.set, kick, data, EventFlags::IN | EventFlags::ET)?)
    }

    /// Watches a host port; level-triggered, so that a frame is never waited for twice.
    pub(crate) fn watch_host(&self, fd: BorrowedFd<'_>, place: u16, epoch: u32) -> io::Result<()> {
        let data = EventData::new_u64(u64::from(epoch) << 16 | u64::from(place));
        Ok(epoll::add(&self.set, fd, data, EventFlags::IN)?)
    }

    /// Watches a link; level-triggered, like a host port.
    pub(crate) fn watch_link(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.set, fd, EventData::new_u64(LINKS), EventFlags::IN)?)
    }

    /// Watches all that wakes for a link, or nothing. Whether it does.
    pub(crate) fn watch_all<'a>(
        &self,
        bells: impl Iterator<Item = BorrowedFd<'a>> + Clone,
    ) -> bool {
        let is_watched = bells.clone().all(|bell| self.watch_link(bell).is_ok());
        if !is_watched {
            bells.for_each(|bell| self.forget(bell));
        }
        is_watched
    }

    /// Goes on watching a host port, or lets it be for a while.
    pub(crate) fn mute_host(&self, fd: BorrowedFd<'_>, place: u16, epoch: u32, muted: bool) {
        let data = EventData::new_u64(u64::from(epoch) << 16 | u64::from(place));
        let events = if muted { EventFlags::empty() } else { EventFlags::IN };
        // Only fails for a descriptor that is not watched.
        let _ = epoll::modify(&self.set, fd, data, events);
    }

    /// Stops watching. Must come before the descriptor is closed.
    pub(crate) fn forget(&self, kick: impl AsFd) {
        // Only fails for a descriptor that was not watched.
        let _ = epoll::delete(&self.set, kick);
    }

    /// Looks for events, at `now`. At most [`LOOK_EVENTS_MAX`] are taken; the others are found by the next look.
    /// [`Self::next`] hands them out.
    pub(crate) fn look(&mut self, now: Nanos) {
        self.sleep(Some(0), now);
    }

    /// Looks for events as [`Self::look`] does, and waits until there is one, so long at most (rounded up to whole
    /// milliseconds: a limit's burst is longer). True when a signal ended it.
    pub(crate) fn sleep(&mut self, wait_ns: Option<u64>, now: Nanos) -> bool {
        self.looked = now;
        let timeout = wait_ns.map(|wait_ns| Timespec {
            tv_sec: (wait_ns / 1_000_000_000) as i64,
            tv_nsec: (wait_ns % 1_000_000_000) as _,
        });
        let timeout = timeout.as_ref();
        // A signal is a reason to look again, no more; other errors cannot happen to a valid set.
        let found = epoll::wait(&self.set, &mut self.events[..], timeout);
        self.found = found.unwrap_or(0).min(LOOK_EVENTS_MAX);
        found == Err(Errno::INTR)
    }

    /// Whether a sleep would end at once.
    #[cfg(feature = "simulated")]
    pub(crate) fn has_some(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.set, PollFlags::IN)], Some(&no_time)) == Ok(1)
    }

    /// The next event of the last look.
    pub(crate) fn next(&mut self) -> Option<Woke> {
        self.found = self.found.checked_sub(1)?;
        let event = self.events.get(self.found)?;
        Some(match event.data.u64() {
            INBOX => Woke::Inbox,
            COMPLETIONS => Woke::Completions,
            LINKS => Woke::Link,
            data => Woke::Kick { queue: data as u16, epoch: (data >> 16) as u32 },
        })
    }
}

impl Sidecore {
    /// Queues that have been idle long enough are polled no longer: kicks are asked for, then the
    /// ring is looked at again. Beside busy queues too, so that idle ones cost nothing.
    pub(crate) fn arm_idle(&mut self) {
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

    /// After an idle pass: sleeps when nothing is polled, but what only a completion lets go on, and
    /// nothing waits. True when it slept; `now` is then stale, and what woke it is heard at the time that `clock` has then.
    ///
    /// Sleeping is safe only in this order: kicks were asked for, then the rings were looked at
    /// again, then the inbox; what comes later is an event of the set.
    pub fn rest(&mut self, now: Nanos, clock: &impl Clock) -> bool {
        let slept = self.falls_asleep(now);
        if slept {
            self.sleep(now);
            self.hear_woken(clock.now());
        }
        self.rest.bell().awake();
        slept
    }

    /// All of [`Self::rest`] but the sleep. True when it is to sleep; the bell is told of the end in
    /// either case.
    pub(crate) fn falls_asleep(&mut self, now: Nanos) -> bool {
        let waits = !self.inbox.is_empty()
            || !self.outbox.is_empty()
            || !self.calls.delayed().is_empty()
            || self.net.has_parting()
            || self.keeps_leaving()
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
        self.rest.bell().sleep();
        let slept = !self.has_parcels() && !self.moves.has_some();
        if slept {
            self.moves.slept();
            self.counters.sleeps.add(1);
        }
        slept
    }

    fn watches_completions(&mut self) -> bool {
        // What is in flight without a ring is a link's.
        let is_watched = self.rest.watch_completions(self.io.poll_fd());
        is_watched || self.io.poll_fd().is_none() || self.io.in_flight() == 0
    }

    /// After a sleep that ended at `now`: what a kick costs is learned, when control woke it for that.
    pub fn woke(&mut self, now: Nanos) {
        let Some(kick_ns) = self.kick_cost.learn(now) else { return };
        self.schedule.set_kick_cost(u32::try_from(kick_ns).unwrap_or(u32::MAX));
        self.counters.kick_ns.set(kick_ns);
    }
}

/// An eventfd of ours.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
