//! One front-end: its connection, its session, what it has lent, and how far it is.
//!
//! Not here: messages, and what becomes of them (`front_ends`).

use std::time::Instant;

use control::connection::{Life, Overdue};
use sidecore::{instant_of, nanos_of};
use vhost_user::{Message, Session};

use crate::bounds::Claim;
use crate::devices::beginning::Beginning;
use crate::devices::frame_socket::FrameSocket;
use crate::devices::front_end::FrontEnd;
use crate::devices::lent::Lent;
use crate::devices::start::{self};
use crate::sockets;

/// Front-ends of one device at a time: one that runs it, others that only ask.
pub(crate) const CONNECTIONS_MAX: usize = 4;

/// A message that is not done yet.
pub(crate) struct Held {
    pub(crate) message: Message,
    pub(crate) fds: Vec<Lent>,
    pub(crate) need_reply: bool,
}

impl Held {
    /// The ring that it stops, and where that stands is asked for, now or by the next message: QEMU and Cloud
    /// Hypervisor disable a ring before they ask.
    pub(crate) fn stops(&self) -> Option<u16> {
        match &self.message {
            Message::GetVringBase(state) => u16::try_from(state.queue).ok(),
            Message::SetVringEnable(state) if state.value == 0 => u16::try_from(state.queue).ok(),
            _ => None,
        }
    }
}

/// One front-end.
pub(crate) struct Connection {
    pub(crate) frames: FrameSocket,
    pub(crate) session: Session<Lent>,
    pub(crate) front_end: FrontEnd,
    pub(crate) life: Life<Held>,
    /// What it has of the daemon beside its device's promise: it is not the first.
    pub(crate) extra: Option<Claim>,
    /// The same for a message with many descriptors.
    pub(crate) extra_of_message: Option<Claim>,
    /// What it lacks before its first request.
    pub(crate) beginning: Beginning,
}

impl Connection {
    /// Whether some ring was served before, be it as this device.
    pub(crate) fn is_running(&self, rings: u16) -> bool {
        (0..rings).any(|index| self.was_used(index))
    }

    /// Whether that ring was.
    pub(crate) fn was_used(&self, index: u16) -> bool {
        let facts = self.session.set_up(index);
        facts.is_some_and(|facts| start::was_used(&facts, self.session.features(), &self.front_end))
    }

    /// When it is ended if nothing happens: in the middle of a message, or before it said anything.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.life.due().map(instant_of)
    }

    /// Why it is ended now.
    pub(crate) fn overdue(&self, now: Instant) -> Option<&'static str> {
        Some(match self.life.overdue(nanos_of(now))? {
            Overdue::Stalled => "it fell silent in the middle of a message",
            Overdue::Silent => "it said nothing of a front-end for 10 s",
        })
    }

    /// Whether it has said something that nobody has read, and that is read next.
    pub(crate) fn has_spoken(&self) -> bool {
        self.life.is_read() && sockets::is_readable(self.frames.socket())
    }

    /// Whether it may be ended for another that wants its place.
    pub(crate) fn gives_way(&self, now: Instant) -> bool {
        self.life.is_silent(nanos_of(now)) && !self.session.has_memory()
    }
}
