//! A device's life: whether it stays, and how front-ends come to it.
//!
//! Not here: its front-ends themselves ([`crate::connection`]), its queues ([`crate::queue`]), and sockets: what
//! listens passes through.

use schedule::Nanos;

/// Whether a device is there, and whether its queues may start.
///
/// | | restart | go | back |
/// |---|---|---|---|
/// | open | restarting | going | open |
/// | restarting | restarting | going | open |
/// | going | going | going | gone |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existence {
    /// It is there.
    #[default]
    Open,
    /// Its queues are wanted back so that they start anew with other settings.
    Restarting,
    /// It goes when its queues are back.
    Going,
}

impl Existence {
    /// Its queues are to start anew.
    pub fn restart(&mut self) {
        if *self == Existence::Open {
            *self = Existence::Restarting;
        }
    }

    /// It is removed.
    pub fn go(&mut self) {
        *self = Existence::Going;
    }

    /// All of its queues are back. Whether it is gone by that.
    pub fn back(&mut self) -> bool {
        if *self == Existence::Restarting {
            *self = Existence::Open;
        }
        *self == Existence::Going
    }
}

/// How front-ends come to a device: to its socket, or it goes to theirs.
///
/// | | open | pause | resume | retry | connect | close | turn off | due |
/// |---|---|---|---|---|---|---|---|---|
/// | none | listening | - | - | retry | connecting | none | off | - |
/// | listening | - | paused | listening | - | - | none | off | - |
/// | paused | - | paused | listening | - | - | none | off | listening: `Accept` |
/// | retry | listening | - | - | retry | connecting | none | off | none: `Listen` |
/// | connecting | - | - | - | retry | connecting | none | off | none: `Connect` |
/// | off | listening | - | - | retry | connecting | none | off | - |
/// | exported | - | - | - | - | - | exported | exported | - |
///
/// In each of them nobody may be taken for a while, since one has made a sidecore wait.
#[derive(Debug)]
pub struct Door<L> {
    state: State<L>,
    /// No front-end is taken before.
    shut_until: Option<Nanos>,
    /// None is called before: one that hangs up is not called in a loop.
    called_after: Option<Nanos>,
}

#[derive(Debug)]
enum State<L> {
    /// It has no socket yet, or any more; or its front-end was called.
    None,
    Listening(L),
    /// Whoever connects waits until then.
    Paused(L, Nanos),
    /// No socket could be made; it is tried again then.
    Retry(Nanos),
    /// A front-end is called then.
    Connecting(Nanos),
    /// A link serves it to other machines: it has no socket here.
    Exported,
    /// Nobody may be connected, since its cable is out.
    Off,
}

/// What is to be done about a door whose time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Whoever has waited is accepted.
    Accept,
    /// A socket is made.
    Listen,
    /// A front-end is called.
    Connect,
}

impl<L> Default for Door<L> {
    fn default() -> Door<L> {
        Door { state: State::None, shut_until: None, called_after: None }
    }
}

impl<L> Door<L> {
    /// Of a device that a link serves.
    pub fn exported() -> Door<L> {
        Door { state: State::Exported, ..Door::default() }
    }

    /// Whether a link serves it.
    pub fn is_exported(&self) -> bool {
        matches!(self.state, State::Exported)
    }

    /// What it listens at.
    pub fn listener(&self) -> Option<&L> {
        match &self.state {
            State::Listening(listener) | State::Paused(listener, _) => Some(listener),
            _ => None,
        }
    }

    /// Whether nothing is there to listen at, nor is to be made by itself.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::None | State::Off)
    }

    /// It listens from now on. What it is not to listen at is given back.
    pub fn open(&mut self, listener: L) -> Option<L> {
        match self.state {
            State::None | State::Retry(_) | State::Off => {
                self.state = State::Listening(listener);
                None
            }
            _ => Some(listener),
        }
    }

    /// Nobody is accepted until then. Gives what is not to be looked at.
    pub fn pause(&mut self, until: Nanos) -> Option<&L> {
        self.state = match std::mem::replace(&mut self.state, State::None) {
            State::Listening(listener) | State::Paused(listener, _) => {
                State::Paused(listener, until)
            }
            other => other,
        };
        self.listener()
    }

    /// Whoever connects is accepted again. Gives what is to be looked at; `None`: it has no socket.
    pub fn resume(&mut self) -> Option<&L> {
        self.state = match std::mem::replace(&mut self.state, State::None) {
            State::Paused(listener, _) => State::Listening(listener),
            other => other,
        };
        self.listener()
    }

    /// Its socket could not be made, or nobody answers at the one that it connects to.
    pub fn retry(&mut self, due: Due, at: Nanos) {
        if self.listener().is_some() || self.is_exported() {
            return;
        }
        self.state = match due {
            Due::Connect => State::Connecting(at),
            Due::Accept | Due::Listen => State::Retry(at),
        };
    }

    /// A front-end is to be called as soon as one may be.
    pub fn connect(&mut self, now: Nanos) {
        let after = self.called_after.max(self.shut_until);
        self.retry(Due::Connect, after.map_or(now, |after| after.max(now)));
    }

    /// A front-end was called; the next is not before then.
    pub fn called(&mut self, next_after: Nanos) {
        self.called_after = Some(next_after);
    }

    /// None is to be called: one is there.
    pub fn stay(&mut self) {
        if let State::Connecting(_) = self.state {
            self.state = State::None;
        }
    }

    /// It has no socket any more. Gives the one that it had.
    pub fn close(&mut self) -> Option<L> {
        self.become_closed(State::None)
    }

    /// The same, since its cable is out.
    pub fn turn_off(&mut self) -> Option<L> {
        self.become_closed(State::Off)
    }

    fn become_closed(&mut self, state: State<L>) -> Option<L> {
        if self.is_exported() {
            return None;
        }
        match std::mem::replace(&mut self.state, state) {
            State::Listening(listener) | State::Paused(listener, _) => Some(listener),
            _ => None,
        }
    }

    /// A front-end made a sidecore wait: none is taken before then.
    pub fn shut_out(&mut self, until: Nanos) {
        (self.shut_until, self.called_after) = (Some(until), Some(until));
    }

    /// Until when none is taken, if that is so.
    pub fn shut_until(&self, now: Nanos) -> Option<Nanos> {
        self.shut_until.filter(|until| now < *until)
    }

    /// When something is to be done about it.
    pub fn due(&self) -> Option<Nanos> {
        match &self.state {
            State::Paused(_, at) | State::Retry(at) | State::Connecting(at) => Some(*at),
            _ => None,
        }
    }

    /// What is to be done now. Once: what does not come about is to be said again.
    pub fn take_due(&mut self, now: Nanos) -> Option<Due> {
        self.due().filter(|at| *at <= now)?;
        let (state, due) = match std::mem::replace(&mut self.state, State::None) {
            State::Paused(listener, _) => (State::Listening(listener), Some(Due::Accept)),
            State::Retry(_) => (State::None, Some(Due::Listen)),
            State::Connecting(_) => (State::None, Some(Due::Connect)),
            other => (other, None),
        };
        self.state = state;
        due
    }
}

#[cfg(test)]
mod tests;
