//! A front-end's life: whether it has said that it is one, and the message of it that waits.
//!
//! One message at a time; nothing more is read while it waits. Not here: what a message means (`vhost_user`), and
//! what becomes of the queues of one that has gone ([`crate::queue`], whose owner it stays).
//!
//! | | hear | wait | take | applied | due |
//! |---|---|---|---|---|---|
//! | silent | holding | - | - | - | after [`SILENCE_NS_MAX`] |
//! | speaking | holding | - | - | - | - |
//! | holding | - | holding, for that cause | applying | - | if it is silent |
//! | applying | - | - | - | silent or speaking | if it is silent |
//!
//! In each of them a message that has begun is due to end within [`MESSAGE_NS_MAX`].

use schedule::Nanos;

/// How long a front-end may be silent before it has said that it is one (`SET_OWNER`), and before it
/// gives way to another when it has brought no memory. A QEMU whose guest stands in its firmware's
/// menu is silent for as long, so it is not ended for that alone.
pub const SILENCE_NS_MAX: u64 = 10_000_000_000;
/// From the first byte of a message to its last.
pub const MESSAGE_NS_MAX: u64 = 5_000_000_000;

/// What a message waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Queues that sidecores were asked for.
    Queues,
    /// The ring that it stops: it has to start before it is known where it stands.
    Start,
    /// The disk is let go before its last ring is said to have stopped.
    Parting,
    /// The image that a process served which died: what that had in flight may still land.
    Image,
}

/// Why a front-end is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// It fell silent in the middle of a message.
    Stalled,
    /// It said nothing of a front-end.
    Silent,
}

/// What a front-end is, and its message that is not done yet.
#[derive(Debug)]
pub struct Life<M> {
    state: State<M>,
    /// It has said that it is a front-end.
    speaks: bool,
    heard_at: Nanos,
    /// When a message that has begun must have ended.
    stalls_at: Option<Nanos>,
}

#[derive(Debug)]
enum State<M> {
    /// Its next message is read.
    Listened,
    Holding {
        message: M,
        since: Nanos,
        /// Nothing before the first look.
        cause: Option<Cause>,
    },
    /// The message is out.
    Applying,
}

impl<M> Life<M> {
    /// It has just connected.
    pub fn begin(now: Nanos) -> Life<M> {
        Life { state: State::Listened, speaks: false, heard_at: now, stalls_at: None }
    }

    /// A message has come. False, and it is dropped: another one is not done yet.
    #[must_use]
    pub fn hear(&mut self, message: M, now: Nanos) -> bool {
        let is_next = self.is_read();
        if is_next {
            self.heard_at = now;
            self.state = State::Holding { message, since: now, cause: None };
        }
        is_next
    }

    /// Whether more of it is read.
    pub fn is_read(&self) -> bool {
        matches!(self.state, State::Listened)
    }

    /// The message that waits.
    pub fn held(&self) -> Option<&M> {
        match &self.state {
            State::Holding { message, .. } => Some(message),
            _ => None,
        }
    }

    /// Since when it waits, and for what.
    pub fn waits(&self) -> Option<(Nanos, Cause)> {
        match &self.state {
            State::Holding { since, cause, .. } => Some((*since, (*cause)?)),
            _ => None,
        }
    }

    /// What was held was looked at, and waits for that.
    pub fn wait(&mut self, for_what: Cause) {
        if let State::Holding { cause, .. } = &mut self.state {
            *cause = Some(for_what);
        }
    }

    /// The message that waited is to be applied; [`Self::applied`] follows.
    pub fn take(&mut self) -> Option<M> {
        match std::mem::replace(&mut self.state, State::Applying) {
            State::Holding { message, .. } => Some(message),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// The message was applied or refused. `speaks`: it has said by now that it is a front-end.
    pub fn applied(&mut self, speaks: bool) {
        if let State::Applying = self.state {
            self.state = State::Listened;
        }
        self.speaks |= speaks;
    }

    /// What was read ends within a message, or does not.
    pub fn note_rest(&mut self, is_within: bool, now: Nanos) {
        let stalls_at = self.stalls_at.unwrap_or(now.after(MESSAGE_NS_MAX));
        self.stalls_at = is_within.then_some(stalls_at);
    }

    /// When it is ended if nothing happens.
    pub fn due(&self) -> Option<Nanos> {
        let silent = (!self.speaks).then_some(self.heard_at.after(SILENCE_NS_MAX));
        self.stalls_at.into_iter().chain(silent).min()
    }

    /// Why it is ended now.
    pub fn overdue(&self, now: Nanos) -> Option<Overdue> {
        self.due().filter(|at| *at <= now)?;
        Some(match self.stalls_at {
            Some(at) if at <= now => Overdue::Stalled,
            _ => Overdue::Silent,
        })
    }

    /// Whether it is silent for so long, or for ever, that another may have its place.
    pub fn is_silent(&self, now: Nanos) -> bool {
        !self.speaks || self.heard_at.after(SILENCE_NS_MAX) <= now
    }

    /// When it connected or spoke last.
    pub fn heard_at(&self) -> Nanos {
        self.heard_at
    }
}

#[cfg(test)]
mod tests;
