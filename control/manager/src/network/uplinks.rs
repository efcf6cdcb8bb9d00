//! Ports that lead to the host, all of them: added, opened, served by a sidecore, moved and removed.
//!
//! One of them is an `uplink`. Those that go by a link come to it when they are open; whoever owns both has the link's
//! ends brought there ([`Network::take_ends`]). Not here: numbers of ports (`network`), and opening (`host_ports`).

use std::time::{Duration, Instant};

use backend::link::LinkNic;
use backend::net::HostOpenError;
use config::plan::{HostPlan, NicPlan, SwitchPlan, UplinkPlan};
use control::mode::Mode;
use control::uplink::Next;
use sidecore::{BridgeId, HostKey, HostSpec};
use tracing::warn;

use crate::defects::{found, late};
use crate::sidecores::Cores;

use super::host_ports::{Guest, HostPorts};
use super::place::Place;
use super::switches::Holder;
use super::uplink::{RETRY_INTERVAL, Uplink, Wired};
use super::{Around, Network, NetworkError};

/// Between two attempts to open one in the first second after another process was taken over from.
const HASTY_INTERVAL: Duration = Duration::from_millis(10);

impl Network {
    /// The uplink of that number.
    pub(crate) fn uplink(&self, number: u32) -> Option<&Uplink> {
        self.uplinks.get(&number)
    }

    pub(crate) fn uplinks(&self) -> impl Iterator<Item = &Uplink> {
        self.uplinks.values()
    }

    pub(crate) fn uplinks_mut(&mut self) -> impl Iterator<Item = &mut Uplink> {
        self.uplinks.values_mut()
    }

    /// Whether some sidecore has an uplink.
    pub(crate) fn is_attached(&self) -> bool {
        self.uplinks.values().any(Uplink::is_attached)
    }

    /// Whether a sidecore still has a host port that was asked for.
    pub(crate) fn is_asked_back(&self) -> bool {
        self.uplinks.values().any(Uplink::is_asked_back)
    }

    /// The uplinks of a switch, and those that come to it when their descriptors are back.
    pub(crate) fn uplinks_of(&self, bridge: BridgeId) -> Vec<u32> {
        let its = self.uplinks.iter().filter(|(_, uplink)| uplink.bridge() == bridge);
        its.map(|(number, _)| *number).collect()
    }

    /// The uplink of a switch that is on that interface.
    pub(crate) fn uplink_on(&self, switch: &str, name: &str) -> Option<u32> {
        let mut its = self.uplinks_of(self.switch(switch)?.bridge()).into_iter();
        its.find(|number| {
            let uplink = self.uplinks.get(number);
            uplink.is_some_and(|uplink| uplink.plan().name() == name && !uplink.is_leaving())
        })
    }

    /// Opens the uplinks of a switch that is about to be made: all, or none.
    ///
    /// # Errors
    /// The first that cannot be opened.
    pub(crate) fn open_uplinks(&self, plan: &SwitchPlan) -> Result<Vec<HostPorts>, HostOpenError> {
        let mut opened = Vec::new();
        for uplink in &plan.uplinks {
            match HostPorts::open(&uplink.host, None, &self.taps) {
                Ok(ports) => opened.push(ports),
                Err(error) => {
                    opened.into_iter().zip(&plan.uplinks).for_each(|(ports, uplink)| {
                        self.take_away(&uplink.host, ports);
                    });
                    return Err(error);
                }
            }
        }
        Ok(opened)
    }

    /// Opens what a port is to lead to, for the guest at the other end of a wire if it is one.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub(crate) fn open_host(
        &self,
        host: &HostPlan,
        guest: Option<Guest>,
    ) -> Result<HostPorts, HostOpenError> {
        HostPorts::open(host, guest, &self.taps)
    }

    /// Closes what was opened for good, and with it a tap that we made.
    pub(crate) fn take_away(&self, host: &HostPlan, ports: HostPorts) {
        ports.take_away(host, &self.taps);
    }

    /// The host's end of a NIC's wire.
    pub(super) fn wire_up(
        &mut self,
        (device, nic, host): (u32, &NicPlan, HostPlan),
        (place, home): (Place, usize),
        opened: Option<HostPorts>,
        around: &mut Around<'_>,
    ) -> u32 {
        let (wired, plan) = Wired::new(device, nic, host);
        let number = self.name_uplink();
        let uplink = Uplink::new(plan, place, home, Some(wired), around.turn.now());
        self.add_uplink(number, uplink, opened, around);
        number
    }

    /// An uplink more, for a switch that is there.
    ///
    /// # Errors
    /// It is not, or has no port left; what was opened is closed.
    pub(crate) fn add_uplink_to(
        &mut self,
        switch: &str,
        uplink: UplinkPlan,
        opened: Option<HostPorts>,
        around: &mut Around<'_>,
    ) -> Result<(), NetworkError> {
        let Some(bridge) = self.switch(switch).map(|switch| switch.bridge()) else {
            self.close_unused(&uplink, opened);
            return Err(NetworkError::NoSwitch(switch.to_string()));
        };
        self.uplink_of_switch(bridge, uplink, opened, around)
            .ok_or_else(|| NetworkError::Ports(switch.to_string()))
    }

    /// Closes what was opened for an uplink of which nothing comes.
    fn close_unused(&self, uplink: &UplinkPlan, opened: Option<HostPorts>) {
        if let Some(ports) = opened {
            self.take_away(&uplink.host, ports);
        }
    }

    /// One more uplink of a switch; none, if that has no port left.
    fn uplink_of_switch(
        &mut self,
        bridge: BridgeId,
        plan: UplinkPlan,
        opened: Option<HostPorts>,
        around: &mut Around<'_>,
    ) -> Option<()> {
        let number = self.name_uplink();
        // A plan has no more ports than a switch has numbers; those that still go may take some.
        let Some((place, home)) = self.place_of_uplink(bridge, number, around) else {
            self.close_unused(&plan, opened);
            return None;
        };
        around.cores.take_load(home, 1);
        let uplink = Uplink::new(plan, place, home, None, around.turn.now());
        self.add_uplink(number, uplink, opened, around);
        Some(())
    }

    /// Makes a switch with its uplinks, opened before or to be opened.
    ///
    /// # Errors
    /// There are as many bridges as there can be; what was opened is closed.
    pub(crate) fn serve_switch(
        &mut self,
        plan: SwitchPlan,
        opened: Vec<Option<HostPorts>>,
        around: &mut Around<'_>,
    ) -> Result<(), NetworkError> {
        let uplinks = plan.uplinks.clone();
        let opened = opened.into_iter().chain(std::iter::repeat_with(|| None));
        let uplinks = uplinks.into_iter().zip(opened);
        let bridge = match self.make_switch(plan, around.cores) {
            Ok(bridge) => bridge,
            Err(error) => {
                uplinks.for_each(|(uplink, opened)| self.close_unused(&uplink, opened));
                return Err(error);
            }
        };
        for (uplink, opened) in uplinks {
            if self.uplink_of_switch(bridge, uplink, opened, around).is_none() {
                around.turn.defects.note("port of a switch that is new");
            }
        }
        Ok(())
    }

    fn name_uplink(&mut self) -> u32 {
        let number = self.next_uplink;
        self.next_uplink = number.wrapping_add(1);
        number
    }

    /// One that was not opened is when [`Self::due`] is asked next.
    fn add_uplink(
        &mut self,
        number: u32,
        uplink: Uplink,
        opened: Option<HostPorts>,
        around: &mut Around<'_>,
    ) {
        uplink.say_port(around.cores);
        self.uplinks.insert(number, uplink);
        if let Some(ports) = opened {
            self.attach_uplink(number, ports, around);
        }
    }

    /// A place for an uplink of that switch, and its home.
    fn place_of_uplink(
        &mut self,
        bridge: BridgeId,
        uplink: u32,
        around: &mut Around<'_>,
    ) -> Option<(Place, usize)> {
        let home = around.cores.place_fixed().unwrap_or_default();
        self.connect_homes(bridge, home, around);
        let place = self.switch_at(bridge)?.take_port(Holder::Uplink(uplink))?;
        Some((place, home))
    }

    /// Those that are to be opened now, and what they lead to.
    pub(crate) fn due(&self, now: Instant) -> Vec<(u32, HostPlan)> {
        let due = self.uplinks.iter().filter(|(_, uplink)| uplink.is_due(now));
        due.map(|(number, uplink)| (*number, uplink.plan().host.clone())).collect()
    }

    /// When the next is to be opened.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        let left = self.left.values().copied();
        self.uplinks.values().filter_map(Uplink::due_at).chain(left).min()
    }

    /// Whoever made taps may have had other ports: those that none leads to are to go.
    pub(crate) fn find_left_taps(&mut self, now: Instant) {
        self.left = self.taps.all().map(|name| (name, now)).collect();
    }

    /// Takes taps away whose ports went while they were closed, if none is planned by now.
    pub(crate) fn take_left_taps_away(&mut self, now: Instant, is_planned: impl Fn(&str) -> bool) {
        for (name, _) in self.left.extract_if(.., |_, at| *at <= now).collect::<Vec<_>>() {
            let is_used = self.uplinks.values().any(|uplink| uplink.tap() == Some(&name));
            if is_used || is_planned(&name) || !self.taps.has(&name) {
                continue;
            }
            let host = HostPlan::Tap { name };
            match HostPorts::open(&host, None, &self.taps) {
                Ok(ports) => ports.take_away(&host, &self.taps),
                Err(error) => {
                    let HostPlan::Tap { name } = host else { continue };
                    warn!(tap = name, %error, "was made here, and cannot be removed yet");
                    self.left.insert(name, now + RETRY_INTERVAL);
                }
            }
        }
    }

    /// The file was read again: an operator has seen to what is shown of taps.
    pub(crate) fn are_seen_to(&mut self) {
        self.uplinks.values_mut().for_each(Uplink::is_seen_to);
    }

    /// Those that are not open are tried again at once.
    pub(crate) fn hasten(&mut self, now: Instant) {
        self.uplinks.values_mut().for_each(|uplink| uplink.hasten(now));
    }

    /// Another process was taken over from.
    pub(crate) fn take_over(&mut self, now: Instant) {
        self.took_over_at = Some(now);
        self.find_left_taps(now);
    }

    /// Opens one that is due, if what it leads to `is_there`.
    pub(crate) fn open_uplink(
        &mut self,
        number: u32,
        is_there: Result<(), HostOpenError>,
        around: &mut Around<'_>,
    ) {
        if !self.plug_uplink_in_anew(number, around) {
            return;
        }
        let retry_at = around.turn.now() + self.uplink_pause(around.turn.now());
        let uplink = found!(around.turn.defects, self.uplinks.get_mut(&number), "uplink to open");
        match is_there.and_then(|()| uplink.open(&self.taps)) {
            Ok(ports) => {
                uplink.say_open();
                self.attach_uplink(number, ports, around);
            }
            Err(error) => uplink.close("cannot be opened", &error.to_string(), retry_at),
        }
    }

    /// After the next failure. What a predecessor had comes free a moment after it has ended.
    fn uplink_pause(&self, now: Instant) -> Duration {
        match self.took_over_at {
            Some(at) if now < at + RETRY_INTERVAL => HASTY_INTERVAL,
            _ => RETRY_INTERVAL,
        }
    }

    fn attach_uplink(&mut self, number: u32, ports: HostPorts, around: &mut Around<'_>) {
        let uplink = found!(around.turn.defects, self.uplinks.get_mut(&number), "uplink to serve");
        if let Some(end) = uplink.come(ports, &mut around.turn.defects) {
            self.ends.push((number, end));
        }
        self.go_on(number, Mode::Serving, around);
    }

    /// The links' ends of ports that were opened, which are to come to their links.
    pub(crate) fn take_ends(&mut self) -> Vec<(u32, Box<LinkNic>)> {
        std::mem::take(&mut self.ends)
    }

    /// Gives the sidecores back what is kept here; whether there was something.
    pub(crate) fn send_uplinks_out(&mut self, around: &mut Around<'_>) -> bool {
        let kept = self.uplinks.iter().filter(|(_, uplink)| uplink.is_kept());
        let kept: Vec<u32> = kept.map(|(number, _)| *number).collect();
        kept.iter().for_each(|number| self.go_on(*number, Mode::Serving, around));
        !kept.is_empty()
    }

    /// Changes an uplink in place: its VLANs, limits, share.
    pub(crate) fn change_uplink(&mut self, number: u32, plan: UplinkPlan, around: &mut Around<'_>) {
        let uplink = found!(around.turn.defects, self.uplinks.get_mut(&number), "uplink to change");
        uplink.change(plan, around.cores);
    }

    /// Removes an uplink: now, or when its descriptor is back.
    pub(crate) fn remove_uplink(&mut self, number: u32, around: &mut Around<'_>) {
        // That of a wire goes before its NIC, which asks once more.
        let Some(uplink) = self.uplinks.get_mut(&number) else { return late("uplink") };
        if uplink.leave(around.cores) {
            self.uplink_is_gone(number, around);
        }
    }

    /// Moves an uplink to another bridge: now, or when its descriptor is back.
    pub(super) fn move_uplink(&mut self, number: u32, to: BridgeId, around: &mut Around<'_>) {
        let uplink = found!(around.turn.defects, self.uplinks.get_mut(&number), "uplink to move");
        if uplink.move_to(to, around.cores) {
            self.plug_uplink_in_anew(number, around);
        }
    }

    /// Brings an uplink that is to move to its new bridge. False: that has no port left, and it is closed, and looks
    /// for one now and then.
    fn plug_uplink_in_anew(&mut self, number: u32, around: &mut Around<'_>) -> bool {
        let uplink = self.uplinks.get(&number);
        let uplink = found!(around.turn.defects, uplink, "uplink that may move");
        let (from, was_at) = (uplink.place(), uplink.home());
        let Some(to) = uplink.moving_to() else { return true };
        around.cores.give_load(was_at, 1);
        let found = self.place_of_uplink(to, number, around);
        around.cores.take_load(found.map_or(was_at, |(_, home)| home), 1);
        let uplink = self.uplinks.get_mut(&number);
        let uplink = found!(around.turn.defects, uplink, "uplink that moves");
        let Some((place, home)) = found else {
            let retry_at = around.turn.now() + RETRY_INTERVAL;
            uplink.close("is closed", "its switch has no port left", retry_at);
            return false;
        };
        from.tell(was_at, None, around.cores);
        uplink.moved(place, home, around.cores);
        self.leave_switch(from, around);
        true
    }

    /// Its interface is gone: the descriptor is of no use any more.
    pub(crate) fn uplink_failed(&mut self, key: HostKey, cores: &mut Cores) {
        match self.uplinks.values_mut().find(|uplink| uplink.has(key)) {
            Some(uplink) => uplink.ask_back(cores),
            None => late("uplink"),
        }
    }

    /// Its sidecore gave a descriptor back, for `problem` if there was one. With the last one that was
    /// asked back the uplink goes on: elsewhere, anew, or not at all.
    pub(crate) fn uplink_is_back(
        &mut self,
        HostSpec { key, port, .. }: HostSpec,
        problem: Option<String>,
        mode: Mode,
        around: &mut Around<'_>,
    ) {
        let uplink = self.uplinks.iter_mut().find(|(_, uplink)| uplink.has(key));
        let (number, uplink) = found!(around.turn.defects, uplink, "uplink that came back");
        let number = *number;
        match uplink.come_back(key.queue, port, problem, around.cores) {
            Err(_) => around.turn.defects.note("sidecore that had the uplink which came back"),
            Ok(true) if self.plug_uplink_in_anew(number, around) => {
                self.go_on(number, mode, around);
            }
            Ok(_) => {}
        }
    }

    /// Goes on with an uplink whose descriptors are here.
    fn go_on(&mut self, number: u32, mode: Mode, around: &mut Around<'_>) {
        let uplink = self.uplinks.get_mut(&number);
        let uplink = found!(around.turn.defects, uplink, "uplink that is back");
        match uplink.go_on(mode, around.turn.now()) {
            Next::Rest => {}
            Next::Serve(ports) => uplink.serve(ports, around.cores),
            Next::Close(ports, _) => drop(ports),
            Next::Leave(ports, _) => {
                // At a stop everything stays as it is, so that what others made of it does.
                if !mode.is_stopping() {
                    HostPorts::from(ports).take_away(&uplink.plan().host, &self.taps);
                }
                self.uplink_is_gone(number, around);
            }
        }
    }

    fn uplink_is_gone(&mut self, number: u32, around: &mut Around<'_>) {
        let uplink = self.uplinks.remove(&number);
        let uplink = found!(around.turn.defects, uplink, "uplink that is gone");
        let (place, home) = (uplink.place(), uplink.home());
        // Its link's end may not be there yet.
        self.ends.retain(|(of, _)| *of != number);
        place.tell(home, None, around.cores);
        // One that was open has taken its tap along.
        if let Some(name) = uplink.tap().filter(|name| self.taps.has(name)) {
            self.left.insert(name.to_string(), around.turn.now());
        }
        // Whoever waited for its interface may have it.
        self.hasten(around.turn.now());
        match uplink.device() {
            // It waits for this.
            Some(nic) => around.turn.touch(nic),
            None => {
                around.cores.give_load(home, 1);
                self.leave_switch(place, around);
            }
        }
    }

    /// Before the sidecores end: every descriptor comes back, none is removed.
    pub(crate) fn give_up_uplinks(&mut self, cores: &mut Cores) {
        self.uplinks.values_mut().for_each(|uplink| uplink.ask_back(cores));
    }
}
