//! NICs by links: ports of a bridge whose other end is another machine.
//!
//! Both ends are host ports (`uplinks`), opened with the link's end of them: at a client the end of a NIC's wire, at an
//! IOhost a port of a switch. Here the link's end comes to its link, with the device that it is on the wire. When the
//! device is over the link's end is dropped; the port is gone then, and is opened anew, as one whose interface went. Not
//! here: frames (`backend::link`), what a port may (`switch`).

use std::sync::Arc;
use std::time::Instant;

use backend::link::{LinkKey, LinkNic, NicCounters};
use backend::net::{HostOpenError, Why};
use config::api::LinkNicView;
use config::plan::HostPlan;
use remote::client::{AttachSpec, Event, Over, Refusal};
use remote::handshake::PublicKey;
use remote::iohost::{ExportSpec, HostEvent};
use remote::wire::News;
use sidecore::{AttachmentMemory, ToClient, ToHost};
use tracing::{info, warn};

use super::error::{LinkFull, LinkPortError};
use super::seats::Had;
use super::serving::Export;
use super::using::Asked;
use super::waits::Waits;
use super::{Manager, OneLink, Stage, device_of};
use crate::defects::{found, late};
use crate::network::nic::NicParts;

/// Requests of a NIC's attachment: none is made, and these are the least.
const SLOTS: u16 = 1;
const SLOT_BYTES: u32 = 512;

/// A port whose frames go by a link.
pub(crate) struct LinkedNic {
    key: LinkKey,
    counters: Arc<NicCounters>,
    /// At a client: what it is asked for by.
    asking: Option<Asking>,
}

/// A client's port, which has its number on the link for as long as it is there.
#[derive(Clone, Copy, Debug)]
struct Asking {
    number: u16,
    device: u64,
    hold: Hold,
    waits: Waits,
}

/// Whether a NIC is this machine's: it is while its guest runs on it here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// No guest is at its rings. Its frames are dropped.
    Free,
    /// It is asked for, or had.
    Wanted,
    /// It is given back: its IOhost has not let go yet.
    Leaving,
}

/// What a NIC is called among devices: no disk has such a name.
fn on_the_wire(name: &str) -> String {
    format!("nic:{name}")
}

impl Manager {
    /// The link of a port, and its number there if this is the IOhost's end.
    fn link_of_port(&mut self, host: &HostPlan) -> Result<(LinkKey, Option<u16>), LinkPortError> {
        let (key, export) = match host {
            HostPlan::Remote { link, .. } => {
                let key = self.rooms.remote.key_of(link);
                (key.ok_or_else(|| LinkPortError::NotMade(link.clone()))?, None)
            }
            HostPlan::Lent { name } => {
                let wire = on_the_wire(name);
                // A reload opens ports before links hear of them.
                let has = |client: &config::plan::LinkClientPlan| client.nics.contains(name);
                let lends = |link: &&config::plan::LinkPlan| link.clients().iter().any(has);
                let id = self.rooms.plan.links.iter().find(lends).map(|link| link.id.clone());
                let key = id.and_then(|id| self.rooms.remote.key_of(&id));
                let found = key.and_then(|key| Some((key, self.rooms.remote.link(key)?)));
                let Some((key, link)) = found else {
                    return Err(LinkPortError::NotLent);
                };
                let exports = link.serving().map(|serving| &serving.exports);
                let is_it = |one: &Export| one.disk == wire && !one.is_removed;
                let at = exports.and_then(|all| all.iter().position(is_it));
                (key, at.map(|at| at as u16))
            }
            _ => return Err(LinkPortError::OtherKind),
        };
        match self.rooms.remote.link(key).map(|link| (&link.stage, &link.plan.id)) {
            Some((Stage::Shut { problem, .. }, id)) => {
                Err(LinkPortError::Shut { id: id.clone(), problem: problem.clone() })
            }
            Some((Stage::Open, _)) | None => Ok((key, export)),
        }
    }

    /// Whether a port that goes by a link can be opened; all others can, as far as that goes.
    pub(crate) fn link_is_there(&mut self, host: &HostPlan) -> Result<(), HostOpenError> {
        let (HostPlan::Remote { name, .. } | HostPlan::Lent { name }) = host else { return Ok(()) };
        let found = self.link_of_port(host).map(drop);
        let (kind, interface) = ("remote nic", name.clone());
        found.map_err(|why| HostOpenError { kind, interface, why: Why::Link(why.to_string()) })
    }

    /// A port was opened: its link has the other end from now on. Where that cannot be, the port is gone, and is tried
    /// again.
    pub(crate) fn plug_into_link(&mut self, number: u32, nic: Box<LinkNic>) {
        let uplink = self.rooms.network.uplinks.get(&number);
        let host =
            found!(self.rooms.turn.defects, uplink, "port that was opened").plan.host.clone();
        let counters = nic.counters();
        let (key, export) = match self.link_of_port(&host) {
            Ok(found) => found,
            Err(why) => return warn!(port = number, "has no link: {why}"),
        };
        let is_gone = |number: &u32| !self.rooms.network.uplinks.contains_key(number);
        let gone: Vec<u32> = self.rooms.remote.nics.keys().copied().filter(is_gone).collect();
        gone.into_iter().for_each(|number| self.forget_former(number));
        self.forget_former(number);
        let asking = match &host {
            HostPlan::Remote { name, .. } => {
                let asking = self.asking(key, number, device_of(&on_the_wire(name)));
                match found!(self.rooms.turn.defects, asking, "client's end of that link") {
                    Ok(asking) => Some(asking),
                    Err(why) => {
                        return self.log_of_link(key, |link| {
                            warn!(link = link.plan.id, port = number, "{why}");
                        });
                    }
                }
            }
            _ => None,
        };
        self.rooms.remote.nics.insert(number, LinkedNic { key, counters, asking });
        match (asking, export) {
            (Some(asking), _) => {
                self.tell_client(key, ToClient::PlugIn { disk: asking.number, nic });
                self.follow_port(number);
            }
            (_, Some(export)) => {
                let one = found!(
                    self.rooms.turn.defects,
                    self.export(key, export),
                    "export of that number"
                );
                // Where the client is that has it; the next one may be elsewhere, and has it brought there.
                let seat = one.had.as_ref().map_or(0, |had| had.seat);
                one.plug = Some((seat, false));
                self.tell_seat(key, seat, ToHost::PlugIn { export, nic });
            }
            // Its link has not heard of it yet.
            _ => {}
        }
    }

    /// A number for a NIC that is to be asked for when its guest runs.
    fn asking(&mut self, key: LinkKey, port: u32, device: u64) -> Option<Result<Asking, LinkFull>> {
        let using = self.rooms.remote.using(key)?;
        let waits = Waits { silent_since: using.silent_since, asked_at: None };
        let number = using.number(Asked::Nic(port));
        Some(number.map(|number| Asking { number, device, hold: Hold::Free, waits }))
    }

    /// The number that a port had before it was opened anew is nobody's.
    fn forget_former(&mut self, port: u32) {
        let Some(LinkedNic { key, asking: Some(Asking { number, hold, .. }), .. }) =
            self.rooms.remote.nics.remove(&port)
        else {
            return;
        };
        match hold {
            Hold::Free => self.is_free(key, number),
            Hold::Wanted => self.tell_client(key, ToClient::Release(number)),
            // The link says when.
            Hold::Leaving => {}
        }
    }

    /// Asks for a NIC when its guest's first ring is to start, and gives it back when the last one has stopped.
    pub(crate) fn follow_nic(&mut self, number: u32) {
        let nic = self.rooms.devices.get(number).and_then(|device| device.kind.nic());
        let port = nic.and_then(NicParts::plug).and_then(|plug| plug.uplink);
        port.into_iter().for_each(|port| self.follow_port(port));
    }

    fn follow_port(&mut self, port: u32) {
        // A port that goes by no link; or is an IOhost's, which asks for nothing.
        let Some(linked) = self.rooms.remote.nics.get_mut(&port) else { return };
        let (key, Some(asking)) = (linked.key, &mut linked.asking) else { return };
        let uplink = self.rooms.network.uplinks.get(&port);
        let nic = uplink.and_then(|uplink| uplink.nic.as_ref()).map(|(_, number)| *number);
        let device = nic.and_then(|number| self.rooms.devices.get_mut(number));
        let Some(device) = device else { return late("NIC of a port") };
        let is_idle = device.attached().is_empty() && !device.is_started(None);
        let Asking { number: disk, device: wanted, .. } = *asking;
        match asking.hold {
            Hold::Free if !is_idle => {
                asking.hold = Hold::Wanted;
                asking.waits.asked_at =
                    asking.waits.silent_since.is_none().then_some(self.rooms.turn.now());
                let spec = AttachSpec {
                    device: wanted,
                    slots: SLOTS,
                    slot_bytes: SLOT_BYTES,
                    keep_bytes: 0,
                };
                self.tell_client(key, ToClient::Attach { disk, spec, standing: None });
            }
            Hold::Wanted if is_idle => {
                (asking.hold, asking.waits.asked_at) = (Hold::Leaving, None);
                // What its IOhost said of it is over.
                device.problem = None;
                self.tell_client(key, ToClient::Release(disk));
            }
            _ => {}
        }
    }

    /// Nothing is left of what a NIC was asked for by. False: the number is no port's any more.
    pub(super) fn nic_is_given_back(&mut self, port: u32, disk: u16) -> bool {
        let is_there = self.rooms.network.uplinks.contains_key(&port);
        let nic = self.rooms.remote.nics.get_mut(&port).filter(|_| is_there);
        let asking = nic.and_then(|nic| nic.asking.as_mut());
        let Some(asking) = asking.filter(|asking| asking.number == disk) else { return false };
        asking.hold = Hold::Free;
        self.follow_port(port);
        true
    }

    /// Tells a link that has just come of all NICs that its clients may have. Ports are plugged in when they are there.
    pub(super) fn export_nics(&mut self, key: LinkKey) {
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        let clients = link.plan.clients().to_vec();
        let mut names: Vec<&String> = clients.iter().flat_map(|client| &client.nics).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let its = clients.iter().filter(|client| client.nics.contains(name));
            let keys: Vec<PublicKey> = its.filter_map(|client| client.key).collect();
            let wire = on_the_wire(name);
            let device = device_of(&wire);
            let serving = self.rooms.remote.serving(key);
            let serving = found!(self.rooms.turn.defects, serving, "IOhost's end of that link");
            if serving.exports.iter().any(|one| one.disk == wire && !one.is_removed) {
                continue;
            }
            serving.exports.push(Export::of_nic(wire));
            // Nothing is kept of who had it: there is nothing that a second owner could harm.
            let news = News { revision: 1, size: 0, features: 0, is_removed: false };
            let spec = ExportSpec { device, clients: keys, news, generation: 0 };
            self.tell_seats(key, None, || ToHost::Export(spec.clone()));
        }
    }

    /// What a link says of a NIC that clients may have. False: it is no NIC. One that is not lent is where it was `before`.
    pub(super) fn hear_of_lent(
        &mut self,
        key: LinkKey,
        seat: usize,
        event: HostEvent,
        before: &mut Option<Had>,
    ) -> bool {
        let (HostEvent::Open { export, .. } | HostEvent::LetGo { export, .. }) = event else {
            return false;
        };
        let one =
            found!(self.rooms.turn.defects, self.export(key, export), "export of that number");
        let Some(name) = one.disk.strip_prefix("nic:").map(str::to_string) else { return false };
        let is_had = match event {
            HostEvent::Open { slots, slot_bytes, generation, .. } => {
                let is_had = self.lend(key, seat, (export, generation), (slots, slot_bytes));
                if !is_had && let Some(one) = self.export(key, export) {
                    one.had = before.take();
                }
                is_had
            }
            _ => {
                // Nothing of a NIC is remembered.
                if let Some(had) = self.export(key, export).and_then(|one| one.had.as_mut()) {
                    had.is_released = true;
                }
                self.is_nowhere(key, export, true);
                false
            }
        };
        self.log_of_link(key, |link| info!(link = link.plan.id, nic = name, is_had, "a nic"));
        true
    }

    /// A client at that seat is to have a NIC. False: it asks for it as for something else.
    fn lend(
        &mut self,
        key: LinkKey,
        seat: usize,
        (export, generation): (u16, u64),
        (slots, slot_bytes): (u16, u32),
    ) -> bool {
        let is_least = (slots, slot_bytes) == (SLOTS, SLOT_BYTES);
        let memory = is_least.then(|| AttachmentMemory::new(slots, slot_bytes).ok()).flatten();
        let Some(memory) = memory else {
            self.tell_seat(key, seat, ToHost::Opened { export, generation, opened: None });
            return false;
        };
        self.tell_seat(key, seat, ToHost::NicOpened { export, memory });
        self.is_at(key, seat, (export, generation));
        let plug = self.export(key, export).and_then(|one| one.plug.as_mut());
        // What is on its way already comes to whoever has it then.
        if let Some((from, is_pulled @ false)) = plug
            && *from != seat
        {
            *is_pulled = true;
            let from = *from;
            self.tell_seat(key, from, ToHost::PullOut { export });
        }
        true
    }

    /// The link's end of a NIC's port is to go where its client is.
    pub(super) fn is_pulled_out(&mut self, key: LinkKey, export: u16, nic: Box<LinkNic>) {
        let one =
            found!(self.rooms.turn.defects, self.export(key, export), "export of that number");
        // Its port has a newer one already.
        let Some((from, true)) = one.plug else { return late("port of a NIC") };
        let seat = one.had.as_ref().map_or(from, |had| had.seat);
        one.plug = Some((seat, false));
        self.tell_seat(key, seat, ToHost::PlugIn { export, nic });
    }

    /// What an IOhost says of a NIC. False: it is none.
    pub(super) fn hear_of_nic(&mut self, key: LinkKey, event: &Event) -> bool {
        let (Event::Bound { attachment, .. }
        | Event::Refused { attachment, .. }
        | Event::News { attachment, .. }
        | Event::Looked { attachment, .. }
        | Event::Over { attachment, .. }) = event
        else {
            return false;
        };
        let using = found!(
            self.rooms.turn.defects,
            self.rooms.remote.using(key),
            "client's end of that link"
        );
        let Some(Asked::Nic(port)) = using.numbers.get(attachment).cloned() else { return false };
        let asking = self.rooms.remote.nics.get(&port).and_then(|nic| nic.asking);
        let is_it = |asking: Asking| asking.number == *attachment && asking.hold == Hold::Wanted;
        if !asking.is_some_and(is_it) {
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
                self.tell_client(key, ToClient::Unplug { disk: *attachment });
                self.tell_client(key, ToClient::Release(*attachment));
            }
            _ => {}
        }
        true
    }

    /// There is a session of that link, or none any more.
    pub(super) fn note_session_of_nics(&mut self, key: LinkKey, is_there: bool, now: Instant) {
        let its = self.rooms.remote.nics.values_mut().filter(|nic| nic.key == key);
        for asking in its.filter_map(|nic| nic.asking.as_mut()) {
            asking.waits.note_session(is_there, asking.hold == Hold::Wanted, now);
        }
    }

    pub(super) fn note_silence_of_nics(&mut self, key: LinkKey, now: Instant) {
        let its = self.rooms.remote.nics.values_mut().filter(|nic| nic.key == key);
        for asking in its.filter_map(|nic| nic.asking.as_mut()) {
            asking.waits.silent_since.get_or_insert(now);
        }
    }

    pub(super) fn note_heard_of_nics(&mut self, key: LinkKey) {
        let its = self.rooms.remote.nics.values_mut().filter(|nic| nic.key == key);
        for asking in its.filter_map(|nic| nic.asking.as_mut()) {
            asking.waits.silent_since = None;
        }
    }

    /// What the NIC at that port waits for, if that is another machine.
    pub(crate) fn nic_waits_for(&self, port: u32) -> Option<String> {
        let asking = self.rooms.remote.nics.get(&port)?.asking?;
        asking.waits.text(self.rooms.turn.now(), "its guest's frames are lost")
    }

    /// What its IOhost said of it: that is the answer.
    fn note_nic(&mut self, port: u32, problem: Option<&str>) {
        let asking = self.rooms.remote.nics.get_mut(&port).and_then(|nic| nic.asking.as_mut());
        let asking = found!(self.rooms.turn.defects, asking, "port that a NIC was asked for at");
        asking.waits.asked_at = None;
        let uplink = self.rooms.network.uplinks.get(&port);
        let nic = uplink.and_then(|uplink| uplink.nic.as_ref()).map(|(_, number)| *number);
        let device = nic.and_then(|number| self.rooms.devices.get_mut(number));
        let Some(device) = device else { return late("NIC of a port") };
        if device.problem.as_deref() == problem {
            return;
        }
        match problem {
            Some(problem) if device.log.allows(self.rooms.turn.now()) => {
                warn!(nic = device.facts.id, "{problem}")
            }
            Some(_) => {}
            None => info!(nic = device.facts.id, "its IOhost serves it"),
        }
        device.problem = problem.map(str::to_string);
    }

    /// The NICs of a link, for operators.
    pub(super) fn link_nics(&self, link: &OneLink) -> Vec<LinkNicView> {
        let key = self.rooms.remote.key_of(&link.plan.id);
        let its = self.rooms.remote.nics.iter().filter(|(_, nic)| Some(nic.key) == key);
        let view = |(number, nic): (&u32, &LinkedNic)| {
            let uplink = self.rooms.network.uplinks.get(number)?;
            let id = uplink.nic.as_ref().map_or(uplink.plan.name(), |(id, _)| id);
            let seen = nic.counters.snapshot();
            Some(LinkNicView {
                id: id.to_string(),
                in_use: seen.is_up,
                frames_out: seen.sent,
                frames_in: seen.came,
                frames_dropped: seen.dropped,
            })
        };
        its.filter_map(view).collect()
    }
}
