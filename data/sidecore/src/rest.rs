//! Waiting without losing anything: kicks, completions, and the inbox in one epoll set.
//!
//! Kicks are edge-triggered and never read: a kick is an edge, its count means nothing. A queue's
//! entry names its place and the attachment it belongs to, because an entry can outlive the
//! descriptor it was made with when the front-end holds a copy.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fs::Timespec;
use rustix::io::Errno;
use schedule::LOOK_EVENTS_MAX;

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
}

impl Rest {
    pub(crate) fn new(inbox: &OwnedFd) -> io::Result<Rest> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&set, inbox, EventData::new_u64(INBOX), EventFlags::IN)?;
        let nothing = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        Ok(Rest { set, events: [nothing; LOOK_EVENTS_MAX], found: 0 })
    }

    /// Watches the back-ends' completions; level-triggered, reset by whoever reaps.
    pub(crate) fn watch_completions(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.set, fd, EventData::new_u64(COMPLETIONS), EventFlags::IN)?)
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

    /// Looks for events; waits until there is one, unless `wait` is false, and for at most so long
    /// (rounded up to whole milliseconds: a limit's burst is longer). At most [`LOOK_EVENTS_MAX`] are taken;
    /// the others are found by the next look. [`Self::next`] hands them out. True when a signal ended
    /// it.
    pub(crate) fn look(&mut self, wait: bool, at_most_ns: Option<u64>) -> bool {
        let wait_ns = if wait { at_most_ns } else { Some(0) };
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

/// An eventfd of ours.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
