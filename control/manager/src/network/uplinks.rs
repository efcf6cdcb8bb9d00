//! Ports that lead to the host: opened here, served by a sidecore, opened again when they fail.
//!
//! An uplink is a port of a switch or one end of a NIC's wire. While its interface cannot be opened
//! frames for it are dropped, and it is tried again each second; whoever has the other ports goes on.
//! Not here: how frames come and go (`backend::net`), numbers of ports
//! (`network`), opening (`host_ports`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::net::HostOpenError;
use config::plan::{HostPlan, SwitchPlan, UplinkPlan, VlanPlan};
use config::spec::Spoof;
use sidecore::{
    BridgeId, Command, HostKey, HostServed, HostSpec, PortCounters, PortSpec, QueueCounters,
};
use switch::Rules;
use tracing::{info, warn};

use crate::defects::{found, late};
use crate::manager::Manager;
use crate::network::Place;
use crate::network::host_ports::{Guest, HostPorts};
use crate::rooms::Rooms;
use crate::start::policy_of;
use crate::upgrade::estate::UplinkEstate;

/// Between two attempts to open one.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The same in the first second after another process was taken over from.
const HASTY_INTERVAL: Duration = Duration::from_millis(10);
/// Nothing is too long for a host port by our word: it says itself what it cannot carry.
const MTU: u32 = u16::MAX as u32;

/// A port that leads to the host.
pub(crate) struct Uplink {
    pub(crate) plan: UplinkPlan,
    pub(crate) place: Place,
    /// The NIC whose wire it is an end of: its name and number.
    pub(crate) nic: Option<(String, u32)>,
    guest: Option<Guest>,
    pub(crate) counters: Arc<PortCounters>,
    work: Arc<QueueCounters>,
    pub(crate) state: State,
    /// It goes when its descriptor is back; otherwise it is opened again then.
    removing: bool,
    /// Its switch was made anew: it is plugged in there when its descriptor is back.
    moving_to: Option<BridgeId>,
}

/// Whether an uplink is open.
pub(crate) enum State {
    /// It is not: why, and when it is tried again.
    Shut { problem: String, retry_at: Instant },
    /// Its sidecore has it.
    Open(Lent),
    /// It is here until it is known who is to have it: another process, or the sidecore again.
    Kept(HostPorts),
}

/// The descriptors of an uplink that its sidecore has, and those that came back already.
pub(crate) struct Lent {
    pub(crate) served_as: &'static str,
    asked_back: bool,
    queues: u16,
    back: HostPorts,
    /// Why the first of them came back, if it was not asked for.
    problem: Option<String>,
}

impl Uplink {
    /// Why no frames pass, if none do.
    pub(crate) fn problem(&self) -> Option<&str> {
        match &self.state {
            State::Shut { problem, .. } => Some(problem),
            State::Open(_) | State::Kept(_) => None,
        }
    }

    /// When it is tried again.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        match self.state {
            State::Shut { retry_at, .. } => Some(retry_at),
            State::Open(_) | State::Kept(_) => None,
        }
    }

    /// What it has counted, by the name that it has in any process that serves the same.
    pub(crate) fn counted(&self) -> (String, UplinkEstate) {
        let counts = [self.counters.snapshot().named(), self.work.snapshot().named()];
        (self.lasting_name(), counts)
    }

    fn lasting_name(&self) -> String {
        let nic = self.nic.as_ref().map_or("", |(nic, _)| nic.as_str());
        format!("{nic} {:?}", self.plan.host)
    }

    /// Goes on from what another process has counted.
    fn count_on(&self, [frames, work]: &UplinkEstate) {
        self.counters.go_on_from(frames);
        self.work.go_on_from(work);
    }

    pub(crate) fn is_attached(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Whether its sidecore was asked for it, and has some of it still.
    pub(crate) fn is_asked_back(&self) -> bool {
        matches!(&self.state, State::Open(lent) if lent.asked_back)
    }

    /// The switch's that it is at, or comes to when its descriptors are back.
    pub(crate) fn bridge(&self) -> BridgeId {
        self.moving_to.unwrap_or(self.place.bridge)
    }

    /// Whether it goes for good.
    pub(crate) fn is_leaving(&self) -> bool {
        self.removing
    }

    fn key(&self, queue: u16) -> HostKey {
        HostKey { bridge: self.place.bridge, port: self.place.port, queue }
    }

    fn port_spec(&self) -> PortSpec {
        PortSpec {
            rules: Rules {
                vlan: crate::network::vlan_of(&self.plan.vlan),
                macs_max: self.plan.macs_max,
                mac: self.plan.mac.map(|mac| mac.0),
                spoof: match self.plan.spoof {
                    Spoof::Allow => switch::Spoof::Allow,
                    Spoof::Deny => switch::Spoof::Deny,
                },
                is_up: true,
            },
            home: self.place.home as u16,
            mtu: MTU,
            counters: Arc::clone(&self.counters),
            lanes: None,
        }
    }

    /// For the log.
    fn name(&self) -> String {
        match (&self.nic, self.plan.host.interface()) {
            (_, Some(interface)) => interface.to_string(),
            (None, None) if self.plan.host.lent().is_some() => self.plan.name().to_string(),
            (Some((nic, _)), None) => nic.clone(),
            (None, None) => String::new(),
        }
    }
}

impl Manager {
    /// Opens the uplinks of a switch that is about to be made: all, or none.
    ///
    /// # Errors
    /// The first that cannot be opened.
    pub(crate) fn open_uplinks(&self, plan: &SwitchPlan) -> Result<Vec<HostPorts>, HostOpenError> {
        let mut opened = Vec::new();
        for uplink in &plan.uplinks {
            match HostPorts::open(&uplink.host, None, &self.rooms.taps) {
                Ok(ports) => opened.push(ports),
                Err(error) => {
                    opened.into_iter().zip(&plan.uplinks).for_each(|(ports, uplink)| {
                        ports.take_away(&uplink.host, &self.rooms.taps);
                    });
                    return Err(error);
                }
            }
        }
        Ok(opened)
    }

    /// The host's end of a NIC's wire.
    pub(crate) fn wire_up(&mut self, nic: u32, id: &str, host: HostPlan, place: Place) -> u32 {
        let parts = self.rooms.devices.nic_mut(nic);
        let (opened, share, policy, guest) = match parts {
            Some(parts) => {
                let plan = &parts.plan;
                (
                    parts.opened.take(),
                    plan.service.share,
                    plan.service.policy,
                    Some(Guest::from(plan)),
                )
            }
            None => {
                self.rooms.turn.defects.note("NIC to wire up");
                (None, config::spec::SHARE_DEFAULT, config::plan::PolicyPlan::default(), None)
            }
        };
        let (vlan, macs_max, mac, spoof) = (VlanPlan::None, 1, None, Spoof::Allow);
        let plan = UplinkPlan { host, vlan, macs_max, mac, spoof, share, policy };
        let number = self.name_uplink();
        self.add_uplink(number, plan, place, Some((id.to_string(), nic)), guest, opened);
        number
    }

    /// One more uplink of a switch.
    pub(crate) fn uplink_of_switch(
        &mut self,
        bridge: BridgeId,
        plan: UplinkPlan,
        opened: Option<HostPorts>,
    ) {
        let number = self.name_uplink();
        // A plan has no more ports than a switch has numbers; those that still go may take some.
        let Some(place) = self.place_of_uplink(bridge, number) else {
            return warn!(uplink = plan.name(), "its switch has no port left");
        };
        self.rooms.cores.take_load(place.home, 1);
        self.add_uplink(number, plan, place, None, None, opened);
    }

    fn name_uplink(&mut self) -> u32 {
        let number = self.rooms.network.next_uplink;
        self.rooms.network.next_uplink = number.wrapping_add(1);
        number
    }

    fn add_uplink(
        &mut self,
        number: u32,
        plan: UplinkPlan,
        place: Place,
        nic: Option<(String, u32)>,
        guest: Option<Guest>,
        opened: Option<HostPorts>,
    ) {
        let problem = String::new();
        let uplink = Uplink {
            plan,
            place,
            nic,
            guest,
            counters: Arc::default(),
            work: Arc::default(),
            state: State::Shut { problem, retry_at: self.rooms.turn.now() },
            removing: false,
            moving_to: None,
        };
        let spec = uplink.port_spec();
        self.rooms.network.uplinks.insert(number, uplink);
        self.set_port(place, Some(spec));
        match opened {
            Some(ports) => self.attach_uplink(number, ports),
            // Its predecessor still has it, or would find a second queue of its tap.
            None if self.rooms.estate.is_some() => {}
            None => self.open_uplink(number),
        }
    }

    /// Opens what is here.
    fn open_ports(&mut self, number: u32) -> Option<Result<HostPorts, HostOpenError>> {
        let uplink = self.rooms.network.uplinks.get(&number)?;
        let (host, guest) = (uplink.plan.host.clone(), uplink.guest);
        let is_there = self.rooms.remote.link_is_there(&host, &self.rooms.plan);
        Some(is_there.and_then(|()| HostPorts::open(&host, guest, &self.rooms.taps)))
    }

    /// Takes what uplinks have counted, and the queues of taps that another process hands over, before that one lets go: their carrier
    /// stays, and what cannot be taken refuses the upgrade.
    ///
    /// # Errors
    /// Which tap, and why.
    pub(crate) fn inherit_uplinks(&mut self) -> Result<(), HostOpenError> {
        let Rooms { network, estate: Some(estate), .. } = &mut self.rooms else {
            return Ok(());
        };
        for uplink in network.uplinks.values_mut() {
            if let Some(counted) = estate.uplinks.get(&uplink.lasting_name()) {
                uplink.count_on(counted);
            }
            let HostPlan::Tap { name } = &uplink.plan.host else { continue };
            let queues = estate.take_tap(name);
            if queues.is_empty() {
                continue;
            }
            uplink.state = State::Kept(HostPorts::inherit(name, queues.into_iter())?);
        }
        Ok(())
    }

    /// Changes an uplink in place: its VLANs, limits, share.
    pub(crate) fn change_uplink(&mut self, number: u32, plan: UplinkPlan) {
        let uplink = self.rooms.network.uplinks.get_mut(&number);
        let uplink = found!(self.rooms.turn.defects, uplink, "uplink to change");
        let is_served_otherwise =
            (uplink.plan.share, uplink.plan.policy) != (plan.share, plan.policy);
        uplink.plan = plan;
        let (place, spec) = (uplink.place, uplink.port_spec());
        self.set_port(place, Some(spec));
        if is_served_otherwise {
            // It comes back, and goes again with its new share.
            self.ask_back(number);
        }
    }

    fn open_uplink(&mut self, number: u32) {
        if !self.plug_uplink_in_anew(number) {
            return self.wait_for_a_port(number);
        }
        let opened = found!(self.rooms.turn.defects, self.open_ports(number), "uplink to open");
        let pause = self.uplink_pause();
        let uplink = self.rooms.network.uplinks.get_mut(&number);
        let uplink = found!(self.rooms.turn.defects, uplink, "uplink that was opened");
        match opened {
            Ok(ports) => {
                info!(uplink = uplink.name(), "open");
                self.attach_uplink(number, ports);
            }
            Err(error) => {
                let new = error.to_string();
                if uplink.problem() != Some(new.as_str()) {
                    warn!(uplink = uplink.name(), "cannot be opened: {new}");
                }
                uplink.state =
                    State::Shut { problem: new, retry_at: self.rooms.turn.now() + pause };
            }
        }
    }

    /// After the next failure. What a predecessor had comes free a moment after it has ended.
    fn uplink_pause(&self) -> Duration {
        match self.rooms.took_over_at {
            Some(at) if self.rooms.turn.now() < at + RETRY_INTERVAL => HASTY_INTERVAL,
            _ => RETRY_INTERVAL,
        }
    }

    /// Gives the sidecores back what is kept here; whether there was something.
    pub(crate) fn send_uplinks_out(&mut self) -> bool {
        let kept = |uplink: &Uplink| matches!(uplink.state, State::Kept(_));
        let kept = self.rooms.network.uplinks.iter().filter(|(_, uplink)| kept(uplink));
        let kept = kept.map(|(number, _)| *number).collect::<Vec<_>>();
        let has_some = !kept.is_empty();
        for number in kept {
            let Some(uplink) = self.rooms.network.uplinks.get_mut(&number) else {
                self.rooms.turn.defects.note("uplink that was kept");
                continue;
            };
            let shut = State::Shut { problem: String::new(), retry_at: self.rooms.turn.now() };
            if let State::Kept(ports) = std::mem::replace(&mut uplink.state, shut) {
                // One of which the other process was to have another is opened anew.
                if ports.count() > 0 {
                    self.attach_uplink(number, ports);
                }
            }
        }
        has_some
    }

    fn attach_uplink(&mut self, number: u32, mut ports: HostPorts) {
        if let Some(end) = ports.take_end() {
            self.links(|remote, around| remote.plug_into_link(number, end, around));
        }
        let uplink = self.rooms.network.uplinks.get_mut(&number);
        let uplink = found!(self.rooms.turn.defects, uplink, "uplink to serve");
        let (served_as, queues) = (ports.describe(), ports.count());
        let (back, problem) = (HostPorts::default(), None);
        uplink.state = State::Open(Lent { served_as, asked_back: false, queues, back, problem });
        for (queue, port) in ports.numbered() {
            let spec = HostSpec {
                key: uplink.key(queue),
                port,
                share: uplink.plan.share,
                policy: policy_of(uplink.plan.policy),
                counters: Arc::clone(&uplink.work),
            };
            self.rooms.cores.send(uplink.place.home, Command::AttachHost(HostServed::new(spec)));
        }
    }

    /// Opens what is due.
    pub(crate) fn retry_uplinks(&mut self, now: Instant) {
        let due = |uplink: &Uplink| uplink.due_at().is_some_and(|at| at <= now);
        let uplinks = self.rooms.network.uplinks.iter().filter(|(_, uplink)| due(uplink));
        for number in uplinks.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.open_uplink(number);
        }
    }

    /// Those that are not open are tried again at once.
    pub(crate) fn retry_uplinks_now(&mut self) {
        for uplink in self.rooms.network.uplinks.values_mut() {
            if let State::Shut { retry_at, .. } = &mut uplink.state {
                *retry_at = self.rooms.turn.now();
            }
        }
    }

    /// Has an uplink's descriptors come back, once.
    fn ask_back(&mut self, number: u32) {
        let uplink = self.rooms.network.uplinks.get_mut(&number);
        let uplink = found!(self.rooms.turn.defects, uplink, "uplink to ask for");
        let State::Open(lent) = &mut uplink.state else { return };
        if std::mem::replace(&mut lent.asked_back, true) {
            return;
        }
        for queue in 0..lent.queues {
            // One that is back already is not known there any more.
            self.rooms.cores.send(uplink.place.home, Command::DetachHost(uplink.key(queue)));
        }
    }

    /// Removes an uplink: now, or when its descriptor is back.
    pub(crate) fn remove_uplink(&mut self, number: u32) {
        // That of a wire goes before its NIC, which asks once more.
        let Some(uplink) = self.rooms.network.uplinks.get_mut(&number) else {
            return late("uplink");
        };
        uplink.removing = true;
        match uplink.is_attached() {
            true => self.ask_back(number),
            false => self.uplink_is_gone(number),
        }
    }

    /// Moves an uplink to another bridge: now, or when its descriptor is back.
    pub(crate) fn move_uplink(&mut self, number: u32, to: BridgeId) {
        let uplink = self.rooms.network.uplinks.get_mut(&number);
        let uplink = found!(self.rooms.turn.defects, uplink, "uplink to move");
        uplink.moving_to = Some(to);
        match uplink.is_attached() {
            true => self.ask_back(number),
            false if self.plug_uplink_in_anew(number) => {}
            false => self.wait_for_a_port(number),
        }
    }

    /// Brings an uplink that is to move to its new bridge. False: that has no port left, and it is to move still.
    fn plug_uplink_in_anew(&mut self, number: u32) -> bool {
        let uplink = self.rooms.network.uplinks.get_mut(&number);
        let uplink = found!(self.rooms.turn.defects, uplink, "uplink that may move");
        let to = uplink.moving_to.take().filter(|_| !uplink.removing);
        let (Some(to), from) = (to, uplink.place) else { return true };
        self.rooms.cores.give_load(from.home, 1);
        let place = self.place_of_uplink(to, number);
        self.rooms.cores.take_load(place.unwrap_or(from).home, 1);
        let Some(place) = place else {
            let uplink = self.rooms.network.uplinks.get_mut(&number);
            found!(self.rooms.turn.defects, uplink, "uplink that is to move").moving_to = Some(to);
            return false;
        };
        self.set_port(from, None);
        self.leave_switch(from);
        let uplink = self.rooms.network.uplinks.get_mut(&number);
        let uplink = found!(self.rooms.turn.defects, uplink, "uplink that moves");
        uplink.place = place;
        let spec = uplink.port_spec();
        self.set_port(place, Some(spec));
        true
    }

    /// It is closed, and looks for a port now and then.
    fn wait_for_a_port(&mut self, number: u32) {
        let retry_at = self.rooms.turn.now() + RETRY_INTERVAL;
        let uplink = self.rooms.network.uplinks.get_mut(&number);
        let uplink = found!(self.rooms.turn.defects, uplink, "uplink that waits for a port");
        let problem = "its switch has no port left".to_string();
        if uplink.problem() != Some(problem.as_str()) {
            warn!(uplink = uplink.name(), "is closed: {problem}");
        }
        uplink.state = State::Shut { problem, retry_at };
    }

    /// Its interface is gone: the descriptor is of no use any more.
    pub(crate) fn uplink_failed(&mut self, key: HostKey) {
        let Some(number) = self.uplink_of(key) else { return late("uplink") };
        self.ask_back(number);
    }

    /// Its sidecore gave a descriptor back, for `problem` if there was one. With the last one that was
    /// asked back the uplink goes on: elsewhere, anew, or not at all.
    pub(crate) fn uplink_is_back(&mut self, spec: HostSpec, problem: Option<String>) {
        let HostSpec { key, port, .. } = spec;
        let number = found!(self.rooms.turn.defects, self.uplink_of(key), "uplink that came back");
        let uplink = self.rooms.network.uplinks.get_mut(&number);
        let uplink = found!(self.rooms.turn.defects, uplink, "uplink that came back");
        let State::Open(lent) = &mut uplink.state else {
            return self.rooms.turn.defects.note("sidecore that had the uplink which came back");
        };
        let gone = match uplink.plan.host {
            HostPlan::Remote { .. } | HostPlan::Lent { .. } => "its link has let it go",
            _ => "its interface is gone",
        };
        let problem = problem.or_else(|| port.is_gone().then(|| gone.into()));
        lent.problem = lent.problem.take().or(problem);
        lent.back.put(key.queue, port);
        if lent.back.count() < lent.queues {
            return self.ask_back(number);
        }
        let (ports, problem) = (std::mem::take(&mut lent.back), lent.problem.take());
        self.uplink_is_whole(number, ports, problem);
    }

    fn uplink_is_whole(&mut self, number: u32, ports: HostPorts, problem: Option<String>) {
        if !self.plug_uplink_in_anew(number) {
            drop(ports);
            return self.wait_for_a_port(number);
        }
        let mode = self.mode();
        let uplink = self.rooms.network.uplinks.get_mut(&number);
        let uplink = found!(self.rooms.turn.defects, uplink, "uplink that is back");
        let removing = uplink.removing;
        let host = uplink.plan.host.clone();
        if let Some(problem) = &problem {
            warn!(uplink = uplink.name(), "is not served: {problem}");
        }
        if problem.is_none() && !removing && !mode.is_stopping() {
            if mode.is_frozen() {
                uplink.state = State::Kept(ports);
                return;
            }
            return self.attach_uplink(number, ports);
        }
        let retry_at = self.rooms.turn.now() + RETRY_INTERVAL;
        uplink.state = State::Shut { problem: problem.unwrap_or_default(), retry_at };
        // At a stop everything stays as it is, so that what others made of it does.
        match removing && !mode.is_stopping() {
            true => ports.take_away(&host, &self.rooms.taps),
            false => drop(ports),
        }
        if removing {
            self.uplink_is_gone(number);
        }
    }

    fn uplink_is_gone(&mut self, number: u32) {
        let uplink = self.rooms.network.uplinks.remove(&number);
        let uplink = found!(self.rooms.turn.defects, uplink, "uplink that is gone");
        self.set_port(uplink.place, None);
        // Whoever waited for its interface may have it.
        for other in self.rooms.network.uplinks.values_mut() {
            if let State::Shut { retry_at, .. } = &mut other.state {
                *retry_at = self.rooms.turn.now();
            }
        }
        match uplink.nic {
            // It waits for this.
            Some((_, nic)) => drop(self.rooms.turn.touch(nic)),
            None => {
                self.rooms.cores.give_load(uplink.place.home, 1);
                self.leave_switch(uplink.place);
            }
        }
    }

    fn uplink_of(&self, key: HostKey) -> Option<u32> {
        let named = |uplink: &Uplink| uplink.key(key.queue) == key;
        self.rooms
            .network
            .uplinks
            .iter()
            .find(|(_, uplink)| named(uplink))
            .map(|(number, _)| *number)
    }

    /// Before the sidecores end: every descriptor comes back, none is removed.
    pub(crate) fn give_up_uplinks(&mut self) {
        for number in self.rooms.network.uplinks.keys().copied().collect::<Vec<_>>() {
            self.ask_back(number);
        }
    }
}
