//! The client's end of a link, for one event: what its sidecore and its IOhost say, and whether that is heard.
//!
//! Not here: disks (`disks`) and NICs (`nics`) of other machines. Called by `remote`.

use remote::client::Event;
use remote::handshake::Established;
use sidecore::{FromClient, ToClient};
use tracing::{info, warn};

use super::around::Around;
use super::availability::Availability;
use super::greeter::{Greeter, Task};
use super::ledger::Ledger;
use super::link::Line;
use super::ports::Ports;
use super::using::{Asked, Using};
use backend::link::Address;

/// A client's link, with what it reaches.
pub(super) struct Client<'a, 'b> {
    pub(super) line: &'a mut Line,
    pub(super) using: &'a mut Using,
    pub(super) ports: &'a mut Ports,
    pub(super) ledger: &'a mut Ledger,
    pub(super) greeter: &'a Greeter,
    pub(super) around: &'a mut Around<'b>,
}

impl Client<'_, '_> {
    /// Says something to it, if it is open.
    pub(super) fn tell(&mut self, told: ToClient) {
        self.line.tell_client(told, self.around.turn, self.around.cores);
    }

    /// What it says.
    pub(super) fn hear(&mut self, said: FromClient) {
        match said {
            FromClient::Greet { frame, from } => {
                self.greeter.ask(Task::Heard(self.line.key(), from, frame));
            }
            FromClient::WantsSession(_) => {
                self.note_silence();
                let number = self.using.next_session();
                self.greeter.ask(Task::Begin(self.line.key(), number));
            }
            FromClient::Iohost(event) => self.hear_iohost(event),
            FromClient::Freed(number) => self.is_free(number),
            FromClient::Unattached(number) => {
                self.using.free(number);
                let expected = "free place on its link for a disk that is asked for";
                self.around.turn.defects.note(expected);
            }
        }
    }

    /// A handshake with an IOhost has ended.
    pub(super) fn establish(&mut self, peer: Address, made: Box<Established>) {
        self.using.established(peer);
        self.tell(ToClient::Establish { made, peer });
    }

    /// What an IOhost says. Of a disk no more is said until this was heard.
    fn hear_iohost(&mut self, event: Event) {
        let heard = match event {
            Event::Stands { attachment, .. }
            | Event::Bound { attachment, .. }
            | Event::News { attachment, .. }
            | Event::Refused { attachment, .. } => Some(attachment),
            _ => None,
        };
        if !self.hear_of_nic(&event) {
            self.hear_of_disk(event);
        }
        if let Some(number) = heard {
            self.tell(ToClient::Heard(number));
        }
    }

    fn hear_of_disk(&mut self, event: Event) {
        match event {
            Event::Stands { attachment, standing } => self.stands(attachment, standing),
            Event::Looked { attachment, news } => self.looked(attachment, news),
            Event::Bound { attachment, news, .. } => {
                self.is_known(attachment, news, true);
                if let Some(parts) = self.asked_for(attachment) {
                    parts.bond.forget_refusal();
                }
            }
            Event::News { attachment, news } => self.is_known(attachment, news, false),
            Event::Refused { attachment, why } => self.is_refused(attachment, why),
            Event::Over { attachment, why } => self.is_over(attachment, why),
            Event::SessionBegan => self.note_session(true),
            Event::SessionEnded => self.note_session(false),
        }
    }

    /// A number is nobody's any more.
    fn is_free(&mut self, number: u16) {
        if let Some(Asked::Nic(port)) = self.using.asked(number).cloned()
            && self.nic_is_given_back(port, number)
        {
            return;
        }
        // A NIC whose port was made anew is told of twice.
        self.using.free(number);
    }

    /// There is a session, or none any more.
    fn note_session(&mut self, is_there: bool) {
        let now = self.around.turn.now();
        self.each_disk(|its| its.note_session(is_there, now));
        self.ports.note_session(is_there, now);
        self.using.note_session(is_there, now);
        let (link, peer) = (self.line.id(), self.using.peer());
        match is_there {
            true => info!(link, peer, "its IOhost answers"),
            false => info!(link, peer, "the session with its IOhost has ended"),
        }
    }

    /// It wants a new session.
    fn note_silence(&mut self) {
        // Of the one before.
        self.note_heard();
        let now = self.around.turn.now();
        self.each_disk(|its| its.note_silence(now));
        self.ports.note_silence(now);
        self.using.note_silence(now);
    }

    /// Says in the log that its IOhost has been silent for longer than one takes to answer, once of each silence.
    pub(super) fn tell_of_silence(&mut self) {
        let now = self.around.turn.now();
        if !self.using.is_to_tell(now) {
            return;
        }
        // What was heard meanwhile has no event.
        self.note_heard();
        if self.using.is_to_tell(now) {
            self.using.has_told();
            let (link, peer) = (self.line.id(), self.using.peer());
            warn!(
                link,
                peer, "its IOhost is silent; `sidecore ls` says what its disks' requests do"
            );
        }
    }

    /// A session that was silent for a while, and goes on without a new one, has no event that says so. To be asked
    /// before anybody is told who is silent.
    pub(super) fn note_heard(&mut self) {
        if self.using.note_heard() {
            self.each_disk(Availability::note_heard);
            self.ports.note_heard();
        }
    }

    /// Each disk of it.
    fn each_disk(&mut self, act: impl Fn(&mut Availability)) {
        for device in self.around.devices.values_mut() {
            let parts = device.disk_mut().and_then(|disk| disk.remote.as_mut());
            let its = parts.filter(|parts| parts.link() == self.line.key());
            its.into_iter().for_each(|parts| act(parts.availability_mut()));
        }
    }

    /// What is asked for by a number.
    pub(super) fn asked(&mut self, number: u16) -> Option<Asked> {
        let asked = self.using.asked(number).cloned();
        let expected = "disk or NIC that its link has by that number";
        if asked.is_none() {
            self.around.turn.defects.note(expected);
        }
        asked
    }
}
