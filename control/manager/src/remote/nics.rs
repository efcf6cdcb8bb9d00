//! NICs of other machines: ports at the end of a NIC's wire whose other end is an IOhost.
//!
//! A NIC is asked for when its guest's first ring is to start, and given back when the last one has stopped. When the
//! device is over the link's end is dropped; the port is gone then, and is opened anew, as one whose interface went. Not
//! here: ports (`network`), their lives on the link (`ports`), frames (`backend::link`).

use backend::link::LinkNic;
use remote::client::{AttachSpec, Event, Over, Refusal};
use sidecore::ToClient;
use tracing::{info, warn};

use super::client::Client;
use super::ports::{Counted, Wish};
use super::using::Asked;
use crate::defects::late;

/// Requests of a NIC's attachment: none is made, and these are the least.
pub(super) const SLOTS: u16 = 1;
pub(super) const SLOT_BYTES: u32 = 512;

impl Client<'_, '_> {
    /// A port was opened for that device: the link has the other end from now on.
    pub(super) fn plug_in(&mut self, port: u32, device: u64, id: String, nic: Box<LinkNic>) {
        let number = match self.using.number(Asked::Nic(port)) {
            Ok(number) => number,
            Err(why) => {
                if self.line.may_log(self.around.turn.now()) {
                    warn!(link = self.line.id(), port, "{why}");
                }
                return;
            }
        };
        let counted = Counted { id, counters: nic.counters() };
        self.ports.plug_in(port, (number, device), counted, self.using.silent_since());
        self.tell(ToClient::PlugIn { disk: number, nic });
        self.follow_port(port);
    }

    /// A port is no more, or is opened anew: the number that it had is nobody's.
    pub(super) fn forget_port(&mut self, port: u32) {
        match self.ports.forget(port) {
            Some((number, true)) => self.tell(ToClient::Release(number)),
            Some((number, false)) => drop(self.using.free(number)),
            None => {}
        }
    }

    /// Asks for the NIC of a port when its guest's first ring is to start, and gives it back when the last one has stopped.
    pub(super) fn follow_port(&mut self, port: u32) {
        let Some(device) = self.around.nic_of(port) else { return late("NIC of a port") };
        let is_idle = device.attached().is_empty() && !device.is_started(None);
        match self.ports.follow(port, is_idle, self.around.turn.now()) {
            Some(Wish::Attach(disk, device)) => {
                let (slots, slot_bytes, keep_bytes) = (SLOTS, SLOT_BYTES, 0);
                let spec = AttachSpec { device, slots, slot_bytes, keep_bytes };
                self.tell(ToClient::Attach { disk, spec, standing: None });
            }
            Some(Wish::Release(disk)) => self.tell(ToClient::Release(disk)),
            None => {}
        }
    }

    /// Nothing is left of what a NIC was asked for by. False: the number is no port's any more.
    pub(super) fn nic_is_given_back(&mut self, port: u32, number: u16) -> bool {
        let is_its = self.around.has_port(port) && self.ports.is_given_back(port, number);
        if is_its {
            self.follow_port(port);
        }
        is_its
    }

    /// What an IOhost says of a NIC. False: it is none.
    pub(super) fn hear_of_nic(&mut self, event: &Event) -> bool {
        let (Event::Bound { attachment, .. }
        | Event::Refused { attachment, .. }
        | Event::News { attachment, .. }
        | Event::Looked { attachment, .. }
        | Event::Over { attachment, .. }) = event
        else {
            return false;
        };
        let Some(Asked::Nic(port)) = self.using.asked(*attachment).cloned() else { return false };
        if !self.ports.is_wanted(port, *attachment) {
            // It is given back, or was a former port's.
            return true;
        }
        match event {
            Event::Bound { .. } => self.note_nic(port, None),
            Event::Refused { why, .. } => {
                let why = match why {
                    Refusal::NoDevice => {
                        "its IOhost has no such nic for this machine: see `nics` of its [[link.client]]"
                    }
                    Refusal::Busy => "another machine has it; it is asked for again and again",
                    Refusal::Failed => "its IOhost cannot open it: see its log",
                    Refusal::Changed => "its IOhost has another one of that name",
                };
                self.note_nic(port, Some(why));
            }
            // The link asks for it anew by itself.
            Event::Over { why: Over::Silent, .. } => {
                self.note_nic(port, Some("its IOhost fell silent; it is asked for anew"));
            }
            // Its port is gone then, and is opened again with another number; this one is free when the link says so.
            Event::Over { attachment, .. } => {
                self.note_nic(port, Some("its IOhost has given it up; it is asked for anew"));
                self.tell(ToClient::Unplug { disk: *attachment });
                self.tell(ToClient::Release(*attachment));
            }
            _ => {}
        }
        true
    }

    /// What its IOhost said of it: that is the answer.
    fn note_nic(&mut self, port: u32, wrong: Option<&'static str>) {
        if !self.ports.hear(port, wrong) {
            return;
        }
        let now = self.around.turn.now();
        let Some(device) = self.around.nic_of(port) else { return late("NIC of a port") };
        match wrong {
            Some(wrong) if device.may_log(now) => {
                warn!(nic = device.facts().id, "{wrong}; its guest's frames are lost")
            }
            Some(_) => {}
            None => info!(nic = device.facts().id, "its IOhost serves it"),
        }
    }
}
