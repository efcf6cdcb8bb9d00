//! One front-end: its connection, its session, what it has lent, and how far it is.
//!
//! Not here: messages, and what becomes of them (`front_ends`).

use std::time::Instant;

use control::connection::{Cause, Life, Overdue};
use schedule::Nanos;
use sidecore::{instant_of, nanos_of};
use vhost_user::{Message, Refused, Reject, Reply, Session, bits};

use crate::bounds::Claim;
use crate::devices::beginning::{Beginning, Counted, Seen, Stage};
use crate::devices::frame_socket::FrameSocket;
use crate::devices::front_end::{FrontEnd, FrontEndError};
use crate::devices::lent::Lent;
use crate::devices::start;
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

    /// The ring of which it asks where it stands.
    pub(crate) fn asks_where(&self) -> Option<u16> {
        match &self.message {
            Message::GetVringBase(state) => u16::try_from(state.queue).ok(),
            _ => None,
        }
    }

    /// Whether rings have stopped, or nothing is left of them, when it is answered.
    fn ends(&self) -> bool {
        let is_reset = matches!(self.message, Message::ResetDevice | Message::ResetOwner);
        is_reset || self.stops().is_some()
    }

    /// Whether all that is written to its guest's memory is in the log that it names, when it is answered.
    fn logs(&self) -> bool {
        match self.message {
            Message::SetLogBase(_) => true,
            Message::SetFeatures(features) => features & bits::LOG_ALL != 0,
            _ => false,
        }
    }

    /// Whether memory that its guest had is another's when it is answered, or nobody's.
    fn takes_memory_away(&self) -> bool {
        matches!(self.message, Message::SetMemTable(_) | Message::RemMemReg(_))
    }

    /// Whether its answer says something of all writes to its guest's memory: those of queues that an earlier front-end
    /// has left, too.
    pub(crate) fn concerns_left(&self) -> bool {
        self.ends() || self.logs() || self.takes_memory_away()
    }
}

/// What came of a message.
pub(crate) struct Applied {
    /// The ring that has another call descriptor.
    pub(crate) call: Option<u16>,
    /// An address that its guest has brought here.
    pub(crate) announced: Option<[u8; 6]>,
    pub(crate) reply: Result<Option<Reply<Lent>>, Reject<Refused<FrontEndError>>>,
}

/// One front-end.
pub(crate) struct Connection {
    pub(crate) frames: FrameSocket,
    pub(crate) session: Session<Lent>,
    pub(crate) front_end: FrontEnd,
    life: Life<Held>,
    /// What it has of the daemon beside its device's promise: it is not the first.
    extra: Option<Claim>,
    /// The same for a message with many descriptors.
    extra_of_message: Option<Claim>,
    /// How far it is before its first request.
    beginning: Beginning,
}

impl Connection {
    /// One that has just connected, when its device had counted so much.
    pub(super) fn begin(
        (frames, session, front_end): (FrameSocket, Session<Lent>, FrontEnd),
        before: Counted,
        now: Instant,
    ) -> Connection {
        let (life, beginning) = (Life::begin(nanos_of(now)), Beginning::new(before));
        let (extra, extra_of_message) = (None, None);
        Connection { frames, session, front_end, life, extra, extra_of_message, beginning }
    }

    /// It was served before, by another process, and what it had said there was said again: it knows how.
    pub(crate) fn go_on(&mut self) {
        self.beginning = Beginning::over();
        self.life.applied(self.session.has_owner());
    }

    /// Whether it has not come to its first request.
    pub(super) fn is_beginning(&self) -> bool {
        !self.beginning.is_over()
    }

    /// At which stage it stays before that, since that was told.
    pub(super) fn beginning(&self) -> Option<Stage> {
        self.beginning.told()
    }

    /// What is to be told of it now: see [`Beginning::look`].
    pub(super) fn look(&mut self, seen: Seen, now: Instant) -> Option<Stage> {
        self.beginning.look(seen, now)
    }

    /// Whether it has the place that its device was promised for one.
    pub(crate) fn has_promised_place(&self) -> bool {
        self.extra.is_none()
    }

    /// It has that of the daemon beside its device's promise, or that promise.
    pub(crate) fn take_place(&mut self, extra: Option<Claim>) {
        self.extra = extra;
    }

    /// What it has beside that promise is another's.
    pub(crate) fn give_place(&mut self) -> Option<Claim> {
        self.extra.take()
    }

    /// What its next message takes beside that.
    pub(crate) fn claim_for_message(&mut self, extra: Option<Claim>) {
        self.extra_of_message = extra;
    }

    /// Whether more of it is read.
    pub(crate) fn is_read(&self) -> bool {
        self.life.is_read()
    }

    /// A message of it has come. False: another one is not done yet.
    #[must_use]
    pub(crate) fn hear(&mut self, message: Held, now: Instant) -> bool {
        self.life.hear(message, nanos_of(now))
    }

    /// Its message that is not done yet.
    pub(crate) fn held(&self) -> Option<&Held> {
        self.life.held()
    }

    /// Since when that waits, and for what.
    pub(crate) fn waits(&self) -> Option<(Instant, Cause)> {
        self.life.waits().map(|(since, cause)| (instant_of(since), cause))
    }

    pub(crate) fn wait(&mut self, cause: Cause) {
        self.life.wait(cause);
    }

    /// Applies the message that waits. `may_run`: it may bring memory. `None`: there is none.
    pub(crate) fn apply(&mut self, may_run: bool) -> Option<Applied> {
        let Held { message, fds, need_reply } = self.life.take()?;
        self.front_end.may_run = may_run;
        let call = match &message {
            Message::SetVringCall(ring) => u16::try_from(ring.queue).ok(),
            _ => None,
        };
        let reply = self.session.apply(message, fds, need_reply, &mut self.front_end);
        self.life.applied(self.session.has_owner());
        Some(Applied { call, announced: self.front_end.announced.take(), reply })
    }

    /// What was read ends within a message, or does not.
    pub(crate) fn note_rest(&mut self, now: Instant) {
        self.life.note_rest(self.frames.is_within(), nanos_of(now));
    }

    /// When it connected or spoke last.
    pub(crate) fn heard_at(&self) -> Nanos {
        self.life.heard_at()
    }

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

#[cfg(test)]
mod tests;
