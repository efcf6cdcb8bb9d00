//! How front-ends come to a device: it listens, or calls one.
//!
//! Not here: what is due when, and where that leads (`control::device`).

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use config::spec::Mode;
use control::device::Door;
pub(crate) use control::device::Due;
use sidecore::{instant_of, nanos_of};

use super::Device;
use crate::poll::{Poll, Token};
use crate::rights::{Accounts, Rights};
use crate::sockets;
use crate::turn::Turn;

/// Between two attempts to connect to a front-end, or to make a socket.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl Device {
    /// A link serves it to other machines: it has no socket here.
    pub(crate) fn export(&mut self) {
        self.door = Door::exported();
    }

    /// Whether a link serves it to other machines.
    pub(crate) fn is_exported(&self) -> bool {
        self.door.is_exported()
    }

    /// What it listens at.
    pub(crate) fn listener(&self) -> Option<&OwnedFd> {
        self.door.listener()
    }

    /// It listens there from now on. What it has no use for stays as it is.
    pub(crate) fn listen_at(&mut self, listener: OwnedFd) {
        drop(self.door.open(listener));
    }

    /// It listens there no more, and another one does.
    pub(crate) fn take_listener(&mut self) -> Option<OwnedFd> {
        self.door.close()
    }

    /// Listens again at once, after [`Self::pause`] or [`Self::turn_off`]; or tries that later.
    pub(crate) fn listen_again(&mut self, poll: &Poll, turn: &mut Turn) {
        if let Some(listener) = self.door.resume() {
            return poll.want(listener, Token::Listener(self.number), true, false);
        }
        if let Err(error) = self.listen(poll, &mut turn.accounts) {
            self.problem = Some(format!("its socket {}: {error}", self.facts.socket));
            self.door.retry(Due::Listen, nanos_of(turn.now() + RETRY_INTERVAL));
        }
    }

    /// Whether it listens at a socket whose file was removed. Looks at the file system.
    pub(crate) fn has_lost_its_socket(&self) -> bool {
        self.listener().is_some() && sockets::is_gone(Path::new(&self.facts.socket))
    }

    /// Makes that socket again; or tries that later. Whoever is connected stays.
    pub(crate) fn make_socket_again(&mut self, poll: &Poll, turn: &mut Turn) {
        if let Some(listener) = self.door.close() {
            poll.remove(&listener);
            self.closer.close(listener);
        }
        self.listen_again(poll, turn);
    }

    /// Listens at its socket, which it had not yet or not any more.
    ///
    /// # Errors
    /// Why not.
    fn listen(&mut self, poll: &Poll, accounts: &mut Accounts) -> std::io::Result<()> {
        let rights = Rights::of(&self.facts.rights, accounts)?;
        let listener = sockets::open_listener(Path::new(&self.facts.socket), &rights)?;
        poll.add(&listener, Token::Listener(self.number))?;
        self.listen_at(listener);
        Ok(())
    }

    /// Accepts nobody until then; whoever connects waits.
    pub(crate) fn pause(&mut self, poll: &Poll, until: Instant) {
        if let Some(listener) = self.door.pause(nanos_of(until)) {
            poll.want(listener, Token::Listener(self.number), false, false);
        }
    }

    /// Has a front-end called (mode `connect`), if nobody is there any more.
    pub(crate) fn plan_connect(&mut self, now: Instant) {
        let is_alone = self.connections.is_empty() && !self.is_going() && !self.kind.is_off();
        if self.facts.mode == Mode::Connect && is_alone {
            self.door.connect(nanos_of(now));
        }
    }

    /// Calls its front-end. Nothing: nobody answers yet, and it is tried again.
    pub(crate) fn call(&mut self, now: Instant) -> Option<OwnedFd> {
        let again = nanos_of(now + RETRY_INTERVAL);
        match sockets::open_connection(Path::new(&self.facts.socket)) {
            Ok(socket) => {
                self.door.called(again);
                Some(socket)
            }
            Err(error) => {
                self.door.retry(Due::Connect, again);
                let socket = &self.facts.socket;
                self.unanswered = Some(format!("nobody answers at {socket} yet: {error}"));
                None
            }
        }
    }

    /// Takes no front-end until then.
    pub(crate) fn shut_out(&mut self, until: Instant) {
        self.door.shut_out(nanos_of(until));
    }

    /// Until when it takes no front-end, if that is so.
    pub(crate) fn shut_until(&self, now: Instant) -> Option<Instant> {
        self.door.shut_until(nanos_of(now)).map(instant_of)
    }

    /// What is to be done about its socket now; once.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Due> {
        self.door.take_due(nanos_of(now))
    }

    /// Removes the socket that it listens on.
    pub(crate) fn close_socket(&mut self, poll: &Poll) {
        let listener = self.door.close();
        self.remove_socket(listener, poll);
    }

    /// The same, since its cable is out.
    pub(crate) fn turn_off(&mut self, poll: &Poll) {
        let listener = self.door.turn_off();
        self.remove_socket(listener, poll);
    }

    fn remove_socket(&self, listener: Option<OwnedFd>, poll: &Poll) {
        if let Some(listener) = listener {
            // Its last close may wait behind what lingers, and whoever waits there would be heard of all the while.
            poll.remove(&listener);
            // Whoever waits to be accepted may have sent anything already.
            self.closer.close(listener);
            sockets::remove(Path::new(&self.facts.socket));
        }
    }
}

#[cfg(test)]
mod tests;
