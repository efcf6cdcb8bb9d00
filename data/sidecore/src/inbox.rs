//! What control and a sidecore say to each other: commands in, events out.
//!
//! Two single-producer rings of fixed size, and an eventfd each to wake the other side. A full
//! ring gives back what did not fit; nothing is dropped.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use rtrb::{Consumer, Producer, RingBuffer};
use switch::PortId;
use virtqueue::Violation;

use crate::bell::Bell;
use crate::counters::{SidecoreCounters, SidecoreSnapshot};
use crate::knock::Knock;
use crate::link::{FromClient, FromHost, Link, LinkKey, ToClient, ToHost};
use crate::moves::{Arrival, Departure, MoveId, Stay};
use crate::net::parcel::road;
use crate::net::{
    BridgeId, BridgeKind, HostKey, HostServed, Inbound, MacTable, Outbound, PortSpec, Relocation,
};
use crate::rest::eventfd;
use crate::served::{QueueKey, Served, Service};

/// Commands that wait at most.
pub(crate) const INBOX_SIZE: usize = 1024;

/// What control asks of a sidecore.
#[derive(Debug)]
pub enum Command {
    /// Serve this queue. Answered only when refused.
    Attach(Box<Served>),
    /// Give this queue back when nothing of it is in flight. Answered by [`Event::Detached`], or
    /// not at all when there is no such queue.
    Detach(QueueKey),
    /// The same, when nothing is left either that an earlier process had taken, and only the in-flight record
    /// tells of: until then the queue is served as before. For whoever goes on without that record.
    /// [`Command::Detach`] after it does not wait for that.
    Finish(QueueKey),
    /// A queue of a disk is to come here. Answered by [`Event::Prepared`], or [`Event::Stayed`].
    Prepare(Box<Arrival>),
    /// Hand this queue over. Answered by [`Event::Moved`] of the new owner, or [`Event::Stayed`] of this
    /// one; in between nothing should be asked of the queue. [`Command::Detach`] and
    /// [`Command::Stop`] call it off when they come in time.
    Move(QueueKey, Box<Departure>),
    /// A NIC moves: this sidecore's part in it ([`relocation`](crate::relocation)). Said to every sidecore.
    /// Answered by [`Event::Moved`] of the new home, or [`Event::Stayed`] of the old one; in between
    /// nothing should be asked of its queues.
    Relocate(Box<Relocation>),
    /// Call through this descriptor from now on; no need to detach. The guest is called once, since
    /// a call may have gone to the old one.
    SetCall(QueueKey, Option<OwnedFd>),
    /// Serve this queue so from now on; no need to detach. It keeps its credit, its place in line and
    /// whether it waits for a kick, unless it is to be polled always. Nothing is answered.
    SetService(QueueKey, Service),
    /// There is such a bridge from now on, or, with `None`, no longer. Said to every sidecore, before
    /// its ports and after them. A bridge that is there stays as it is.
    SetBridge(BridgeId, Option<BridgeKind>),
    /// The bridge has such a port from now on, or the port has changed, or (`None`) is gone. Said to
    /// every sidecore, before its queues are attached and after they are back.
    SetPort(BridgeId, PortId, Option<Box<PortSpec>>),
    /// Serve this host port, on the home of its port. Answered only when refused.
    AttachHost(Box<HostServed>),
    /// Give it back. Answered by [`Event::HostDetached`], or not at all when there is no such one.
    DetachHost(HostKey),
    /// Show every bridge around that a station is at this port now: a RARP frame, as if it came from
    /// there. Said to the port's home.
    Announce(BridgeId, PortId, [u8; 6]),
    /// Frames for ports that are at home on another sidecore go this way. Said to both ends
    /// ([`build_road`]), once, before ports of one bridge are at home on both.
    RoadTo(Box<Outbound>),
    /// And come this way.
    RoadFrom(Box<Inbound>),
    /// Fill this table. Answered by [`Event::Macs`], with nothing in it when there is no such bridge.
    ShowMacs(Box<MacTable>),
    /// Serve this link from now on. Answered only when refused.
    AttachLink(LinkKey, Link),
    /// Give it back, when no queue of its disks is here any more. Answered by [`Event::LinkDetached`], or not at all
    /// when there is no such one.
    DetachLink(LinkKey),
    /// For this link of a client.
    ToClient(LinkKey, Box<ToClient>),
    /// For this link of an IOhost.
    ToHost(LinkKey, Box<ToHost>),
    /// Say when nothing that other sidecores sent is left to be unpacked. Answered by
    /// [`Event::Fenced`], once for each.
    Fence,
    /// Give everything back and end.
    Stop,
}

/// What a sidecore tells control.
#[derive(Debug)]
pub enum Event {
    /// The queue, no longer served; everything that was taken is completed and shown.
    Detached(Box<Served>),
    /// A place is held for the queue that is to come.
    Prepared(MoveId),
    /// The queue is here and was looked at; or all queues of the NIC, and its port.
    Moved(MoveId),
    /// The queue is where it was, or the NIC.
    Stayed(MoveId, Stay),
    /// The queue was not attached: here it is again.
    Refused(Box<Served>, Refusal),
    /// The host port, no longer served.
    HostDetached(Box<HostServed>),
    /// The host port was not attached: here it is again.
    HostRefused(Box<HostServed>, Refusal),
    /// The interface behind a host port is gone, told once. It stays attached and drops what is sent
    /// there, until control asks for it.
    HostGone(HostKey),
    /// The link, no longer served.
    LinkDetached(LinkKey, Link),
    /// The link was not attached, since there is one of that name or its socket cannot be watched: here it is again.
    LinkRefused(LinkKey, Link),
    /// What a client's link has to say.
    FromClient(LinkKey, Box<FromClient>),
    /// What a shard of an IOhost's link has to say.
    FromHost(LinkKey, Box<FromHost>),
    /// What was on the roads to this sidecore when [`Command::Fence`] came is delivered, and what was said
    /// before it is done.
    Fenced,
    /// The table that was asked for.
    Macs(Box<MacTable>),
    /// A disk's queue has requests that wait for space or for a medium that fails, or has none any more: its
    /// counters say which.
    Stalls(QueueKey),
    /// The guest broke the ring's rules, or its front-end took back what it had lent. The queue stays
    /// attached and reads as empty.
    Failed {
        /// Which.
        key: QueueKey,
        /// What it did.
        violation: Violation,
    },
}

/// Why a queue was not attached. The text is for the operator.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// As many queues as it can hold.
    #[error("its sidecore has no place for another queue: give it more cpus, or remove disks")]
    NoPlace,
    /// Its port was not made, or is at home on another sidecore.
    #[error("its port is not known to its sidecore: this is a defect of the daemon")]
    NoPort,
    /// What its back-end needs of the kernel.
    #[error(
        "its sidecore got no io_uring: {0} (is sysctl kernel.io_uring_disabled 0, LimitMEMLOCK large enough, and memory free?)"
    )]
    Kernel(io::Error),
    /// Its disk is at an IOhost, and the link to that is not here.
    #[error("its link is not with its sidecore: this is a defect of the daemon")]
    NoLink,
}

impl Refusal {
    /// Why a back-end did not get what it needs.
    pub(crate) fn of(error: io::Error) -> Refusal {
        match error.kind() {
            io::ErrorKind::NotConnected => Refusal::NoLink,
            _ => Refusal::Kernel(error),
        }
    }
}

/// Control's end.
#[derive(Debug)]
pub struct Handle {
    pub(crate) commands: Producer<Command>,
    pub(crate) events: Consumer<Event>,
    pub(crate) command_fd: Arc<OwnedFd>,
    pub(crate) event_fd: Arc<OwnedFd>,
    pub(crate) counters: Arc<SidecoreCounters>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) knock: Arc<Knock>,
    pub(crate) thread: Option<JoinHandle<()>>,
}

impl Handle {
    /// Sends a command and wakes the sidecore.
    ///
    /// # Errors
    /// The command itself, when the inbox is full: try again after the next event or a moment.
    pub fn send(&mut self, command: Command) -> Result<(), Command> {
        self.commands.push(command).map_err(|rtrb::PushError::Full(command)| command)?;
        wake(&self.command_fd);
        Ok(())
    }

    /// Wakes the sidecore, if it sleeps, to learn how long that takes. About once a second is enough.
    pub fn knock(&self, now: Instant) {
        if self.knock.stamp(now, &self.bell) {
            wake(&self.command_fd);
        }
    }

    /// The next event, if there is one.
    pub fn take_event(&mut self) -> Option<Event> {
        self.events.pop().ok()
    }

    /// Readable when an event came. Read it to reset it, then take events until there is none.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }

    /// What the sidecore did so far.
    pub fn counters(&self) -> SidecoreSnapshot {
        self.counters.snapshot()
    }

    /// Asks the sidecore to end, once; whether its inbox had room for that.
    pub fn ask_to_end(&mut self) -> bool {
        self.send(Command::Stop).is_ok()
    }

    /// Whether the sidecore has ended that was asked to. What it gives back meanwhile is dropped.
    pub fn has_ended(&mut self) -> bool {
        while self.take_event().is_some() {}
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the sidecore and returns its queues once all that was in flight is completed. Blocks
    /// for that long.
    pub fn stop(mut self) -> Vec<Box<Served>> {
        let mut queues = Vec::new();
        // The inbox empties at four commands a pass; so this ends.
        while !self.ask_to_end() {
            std::thread::yield_now();
        }
        let Some(thread) = self.thread.take() else { return queues };
        loop {
            let ended = thread.is_finished();
            while let Some(event) = self.take_event() {
                if let Event::Detached(served) | Event::Refused(served, _) = event {
                    queues.push(served);
                }
            }
            if ended {
                break;
            }
            std::thread::yield_now();
        }
        // A panic ends the process (profile), so there is nothing to report here.
        let _ = thread.join();
        queues
    }
}

/// The sidecore's end of what it is asked.
pub(crate) struct Inbox {
    commands: Consumer<Command>,
    fd: Arc<OwnedFd>,
}

impl Inbox {
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Command> {
        self.commands.pop().ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Its eventfd was readable.
    pub(crate) fn reset(&self) {
        reset(&self.fd);
    }
}

/// The sidecore's end of what it tells.
pub(crate) struct Outbox {
    events: Producer<Event>,
    /// Events that did not fit; sent before any other.
    unsent: VecDeque<Event>,
    fd: Arc<OwnedFd>,
}

impl Outbox {
    pub(crate) fn send(&mut self, event: Event) {
        match self.events.push(event) {
            Ok(()) => wake(&self.fd),
            Err(rtrb::PushError::Full(event)) => self.unsent.push_back(event),
        }
    }

    /// Sends what did not fit before, as far as it does now.
    pub(crate) fn send_unsent(&mut self) {
        while let Some(event) = self.unsent.pop_front() {
            if let Err(rtrb::PushError::Full(event)) = self.events.push(event) {
                self.unsent.push_front(event);
                break;
            }
            wake(&self.fd);
        }
    }

    /// Whether all was sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.unsent.is_empty()
    }
}

/// The two ends of a sidecore of so many queues, which counts there.
pub(crate) fn ends(
    queues_max: usize,
    counters: &Arc<SidecoreCounters>,
) -> io::Result<(Inbox, Outbox, Handle)> {
    let (commands_in, commands) = RingBuffer::new(INBOX_SIZE);
    // A queue can fail and be detached, and both may wait.
    let (events, events_out) = RingBuffer::new(2 * queues_max + INBOX_SIZE);
    let (command_fd, event_fd) = (Arc::new(eventfd()?), Arc::new(eventfd()?));
    let inbox = Inbox { commands, fd: Arc::clone(&command_fd) };
    let unsent = VecDeque::with_capacity(queues_max);
    let outbox = Outbox { events, unsent, fd: Arc::clone(&event_fd) };
    let handle = Handle {
        bell: Bell::new(&command_fd),
        knock: Arc::new(Knock::default()),
        commands: commands_in,
        events: events_out,
        command_fd,
        event_fd,
        counters: Arc::clone(counters),
        thread: None,
    };
    Ok((inbox, outbox, handle))
}

/// A road from one sidecore to another, number `index`: the first command is for the first of them, the
/// second for the other. Takes the memory of its parcels, about 0.8 MiB.
pub fn build_road(from: &Handle, to: &Handle, index: u16) -> (Command, Command) {
    let (outbound, inbound) = road(&from.bell, index, &to.bell);
    (Command::RoadTo(Box::new(outbound)), Command::RoadFrom(Box::new(inbound)))
}

/// Adds one to an eventfd. It cannot overflow in practice, and when it is full its reader is awake.
pub(crate) fn wake(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Resets an eventfd that is ours.
pub(crate) fn reset(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
}
