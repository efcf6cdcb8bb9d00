//! Ports that lead to the host: opened here, served by a sidecore, opened again when they fail.
//!
//! An uplink is a port of a switch or one end of a NIC's wire. While its interface cannot be opened
//! frames for it are dropped, and it is tried again each second; whoever has the other ports goes on.
//! Not here: how frames come and go (`backend::net`), numbers of ports (`network`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::net::{HostOpenError, HostPort, HostSource, NullMode, TAP_MTU_RANGE};
use config::plan::{HostPlan, NicPlan, NullPlan, SwitchPlan, UplinkPlan, VlanPlan};
use config::spec::Via;
use sidecore::{
    BridgeId, Command, HostKey, HostServed, HostSpec, PortCounters, PortSpec, QueueCounters,
};
use switch::Rules;
use tracing::{info, warn};

use crate::manager::{Manager, now};
use crate::network::Place;
use crate::start::policy_of;
use crate::taps::MadeTaps;

/// Between two attempts to open one.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Nothing is too long for a host port by our word: it says itself what it cannot carry.
const MTU: u32 = u16::MAX as u32;

/// A port that leads to the host.
pub(crate) struct Uplink {
    pub(crate) plan: UplinkPlan,
    pub(crate) place: Place,
    /// The NIC whose wire it is an end of: its name and number.
    nic: Option<(String, u32)>,
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
    Open { served_as: &'static str, asked_back: bool },
}

impl Uplink {
    /// Why no frames pass, if none do.
    pub(crate) fn problem(&self) -> Option<&str> {
        match &self.state {
            State::Shut { problem, .. } => Some(problem),
            State::Open { .. } => None,
        }
    }

    /// When it is tried again.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        match self.state {
            State::Shut { retry_at, .. } => Some(retry_at),
            State::Open { .. } => None,
        }
    }

    pub(crate) fn is_attached(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// Whether it goes for good.
    pub(crate) fn is_leaving(&self) -> bool {
        self.removing
    }

    fn key(&self) -> HostKey {
        HostKey { bridge: self.place.bridge, port: self.place.port, queue: 0 }
    }

    fn port_spec(&self) -> PortSpec {
        PortSpec {
            rules: Rules {
                vlan: crate::network::vlan_of(&self.plan.vlan),
                macs_max: self.plan.macs_max,
                is_up: true,
                ..Rules::default()
            },
            home: self.place.home as u16,
            mtu: MTU,
            counters: Arc::clone(&self.counters),
        }
    }

    /// For the log.
    fn name(&self) -> String {
        match (&self.nic, self.plan.host.interface()) {
            (_, Some(interface)) => interface.to_string(),
            (Some((nic, _)), None) => nic.clone(),
            (None, None) => String::new(),
        }
    }
}

/// Opens what a plan names. May make a tap.
///
/// # Errors
/// Why not, and what to do.
pub(crate) fn open(
    plan: &HostPlan,
    guest: Option<Guest>,
    taps: &MadeTaps,
) -> Result<HostPort, HostOpenError> {
    let port = HostPort::open(&source_of(plan, guest, taps))?;
    if let HostPlan::Tap { name } = plan
        && let Err(error) = taps.note(name, port.was_made())
    {
        warn!(tap = name, %error, "whether it was made here cannot be kept: it stays when its port goes");
    }
    Ok(port)
}

fn source_of(plan: &HostPlan, guest: Option<Guest>, taps: &MadeTaps) -> HostSource {
    match plan {
        HostPlan::Tap { name } => {
            let mtu = guest.map(|guest| guest.mtu);
            HostSource::Tap { name: name.clone(), queue: 0, mtu, ours: taps.has(name) }
        }
        HostPlan::Interface { name, via: Via::Packet } => {
            HostSource::Packet { interface: name.clone() }
        }
        HostPlan::Interface { name, via: Via::Xdp } => {
            HostSource::Xdp { interface: name.clone(), queue: 0 }
        }
        HostPlan::Null(null) => HostSource::Null {
            mode: match null {
                NullPlan::Drop => NullMode::Drop,
                NullPlan::Echo => NullMode::Echo,
                NullPlan::Generate { size, rate } => {
                    let destination = guest.map_or([0xff; 6], |guest| guest.mac);
                    NullMode::Generate { size: *size, rate: *rate, destination }
                }
            },
        },
    }
}

/// What a wire's end has to know of the NIC at the other one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest {
    mac: [u8; 6],
    /// MTU of a tap that is made, bytes.
    mtu: u16,
}

impl From<&NicPlan> for Guest {
    fn from(plan: &NicPlan) -> Guest {
        let (least, most) = (*TAP_MTU_RANGE.start(), *TAP_MTU_RANGE.end());
        Guest { mac: plan.mac.0, mtu: plan.mtu.clamp(least, most) }
    }
}

impl Manager {
    /// Opens the uplinks of a switch that is about to be made: all, or none.
    ///
    /// # Errors
    /// The first that cannot be opened.
    pub(crate) fn open_uplinks(&self, plan: &SwitchPlan) -> Result<Vec<HostPort>, HostOpenError> {
        let mut opened = Vec::new();
        for uplink in &plan.uplinks {
            match open(&uplink.host, None, &self.taps) {
                Ok(port) => opened.push(port),
                Err(error) => {
                    opened.into_iter().zip(&plan.uplinks).for_each(|(port, uplink)| {
                        self.take_away(port, &uplink.host);
                    });
                    return Err(error);
                }
            }
        }
        Ok(opened)
    }

    /// The host's end of a NIC's wire.
    pub(crate) fn wire_up(&mut self, nic: u32, id: &str, host: HostPlan, place: Place) -> u32 {
        let parts = self.nic_parts_mut(nic);
        let (opened, share, policy, guest) = match parts {
            Some(parts) => {
                let plan = &parts.plan;
                (parts.opened.take(), plan.share, plan.policy, Some(Guest::from(plan)))
            }
            None => (None, config::spec::SHARE_DEFAULT, config::spec::Policy::default(), None),
        };
        let plan = UplinkPlan { host, vlan: VlanPlan::None, macs_max: 1, share, policy };
        let number = self.name_uplink();
        self.add_uplink(number, plan, place, Some((id.to_string(), nic)), guest, opened);
        number
    }

    /// One more uplink of a switch.
    pub(crate) fn uplink_of_switch(
        &mut self,
        bridge: BridgeId,
        plan: UplinkPlan,
        opened: Option<HostPort>,
    ) {
        let number = self.name_uplink();
        // A plan has no more ports than a switch has numbers; those that still go may take some.
        let Some(place) = self.place_of_uplink(bridge, number) else {
            return warn!(uplink = plan.name(), "its switch has no port left");
        };
        self.cores.take_load(place.home, 1);
        self.add_uplink(number, plan, place, None, None, opened);
    }

    fn name_uplink(&mut self) -> u32 {
        let number = self.network.next_uplink;
        self.network.next_uplink = number.wrapping_add(1);
        number
    }

    fn add_uplink(
        &mut self,
        number: u32,
        plan: UplinkPlan,
        place: Place,
        nic: Option<(String, u32)>,
        guest: Option<Guest>,
        opened: Option<HostPort>,
    ) {
        let problem = String::new();
        let uplink = Uplink {
            plan,
            place,
            nic,
            guest,
            counters: Arc::default(),
            work: Arc::default(),
            state: State::Shut { problem, retry_at: now() },
            removing: false,
            moving_to: None,
        };
        let spec = uplink.port_spec();
        self.network.uplinks.insert(number, uplink);
        self.set_port(place, Some(spec));
        match opened {
            Some(port) => self.attach_uplink(number, port),
            None => self.open_uplink(number),
        }
    }

    /// Changes an uplink in place: its VLANs, limits, share.
    pub(crate) fn change_uplink(&mut self, number: u32, plan: UplinkPlan) {
        let Some(uplink) = self.network.uplinks.get_mut(&number) else { return };
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
        let Some(uplink) = self.network.uplinks.get_mut(&number) else { return };
        match open(&uplink.plan.host, uplink.guest, &self.taps) {
            Ok(port) => {
                info!(uplink = uplink.name(), "open");
                self.attach_uplink(number, port);
            }
            Err(error) => {
                let new = error.to_string();
                if uplink.problem() != Some(new.as_str()) {
                    warn!(uplink = uplink.name(), "cannot be opened: {new}");
                }
                uplink.state = State::Shut { problem: new, retry_at: now() + RETRY_INTERVAL };
            }
        }
    }

    fn attach_uplink(&mut self, number: u32, port: HostPort) {
        let Some(uplink) = self.network.uplinks.get_mut(&number) else { return };
        uplink.state = State::Open { served_as: port.describe(), asked_back: false };
        let spec = HostSpec {
            key: uplink.key(),
            port,
            share: uplink.plan.share,
            policy: policy_of(uplink.plan.policy),
            counters: Arc::clone(&uplink.work),
        };
        let home = uplink.place.home;
        self.cores.send(home, Command::AttachHost(HostServed::new(spec)));
    }

    /// Opens what is due.
    pub(crate) fn retry_uplinks(&mut self, now: Instant) {
        let due = |uplink: &Uplink| uplink.due_at().is_some_and(|at| at <= now);
        let uplinks = self.network.uplinks.iter().filter(|(_, uplink)| due(uplink));
        for number in uplinks.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.open_uplink(number);
        }
    }

    /// Has an uplink's descriptor come back, once.
    fn ask_back(&mut self, number: u32) {
        let Some(uplink) = self.network.uplinks.get_mut(&number) else { return };
        let (key, home) = (uplink.key(), uplink.place.home);
        if let State::Open { asked_back, .. } = &mut uplink.state
            && !std::mem::replace(asked_back, true)
        {
            self.cores.send(home, Command::DetachHost(key));
        }
    }

    /// Removes an uplink: now, or when its descriptor is back.
    pub(crate) fn remove_uplink(&mut self, number: u32) {
        let Some(uplink) = self.network.uplinks.get_mut(&number) else { return };
        uplink.removing = true;
        match uplink.is_attached() {
            true => self.ask_back(number),
            false => self.uplink_is_gone(number),
        }
    }

    /// Moves an uplink to another bridge: now, or when its descriptor is back.
    pub(crate) fn move_uplink(&mut self, number: u32, to: BridgeId) {
        let Some(uplink) = self.network.uplinks.get_mut(&number) else { return };
        uplink.moving_to = Some(to);
        match uplink.is_attached() {
            true => self.ask_back(number),
            false => self.plug_uplink_in_anew(number),
        }
    }

    fn plug_uplink_in_anew(&mut self, number: u32) {
        let uplink = self.network.uplinks.get_mut(&number);
        let Some((to, from)) = uplink.and_then(|up| Some((up.moving_to.take()?, up.place))) else {
            return;
        };
        self.set_port(from, None);
        self.cores.give_load(from.home, 1);
        self.leave_switch(from);
        let Some(place) = self.place_of_uplink(to, number) else { return };
        self.cores.take_load(place.home, 1);
        let Some(uplink) = self.network.uplinks.get_mut(&number) else { return };
        uplink.place = place;
        let spec = uplink.port_spec();
        self.set_port(place, Some(spec));
    }

    /// Its interface is gone: the descriptor is of no use any more.
    pub(crate) fn uplink_failed(&mut self, key: HostKey) {
        if let Some(number) = self.uplink_of(key) {
            self.ask_back(number);
        }
    }

    /// Its sidecore gave the descriptor back, for `problem` if there was one.
    pub(crate) fn uplink_is_back(&mut self, spec: HostSpec, problem: Option<String>) {
        let HostSpec { key, port, .. } = spec;
        let Some(number) = self.uplink_of(key) else { return };
        let is_gone = port.is_gone();
        self.plug_uplink_in_anew(number);
        let stopping = self.is_stopping();
        let Some(uplink) = self.network.uplinks.get_mut(&number) else { return };
        let removing = uplink.removing;
        let host = uplink.plan.host.clone();
        let problem = problem.or_else(|| is_gone.then(|| "its interface is gone".to_string()));
        if let Some(problem) = &problem {
            warn!(uplink = uplink.name(), "is not served: {problem}");
        }
        if problem.is_none() && !removing && !stopping {
            return self.attach_uplink(number, port);
        }
        let retry_at = now() + RETRY_INTERVAL;
        uplink.state = State::Shut { problem: problem.unwrap_or_default(), retry_at };
        // At a stop everything stays as it is, so that what others made of it does.
        match removing && !stopping {
            true => self.take_away(port, &host),
            false => drop(port),
        }
        if removing {
            self.uplink_is_gone(number);
        }
    }

    /// Closes a port that goes for good, and with it a tap that we made.
    pub(crate) fn take_away(&self, port: HostPort, plan: &HostPlan) {
        port.remove();
        if let HostPlan::Tap { name } = plan {
            let _ = self.taps.note(name, false);
        }
    }

    fn uplink_is_gone(&mut self, number: u32) {
        let Some(uplink) = self.network.uplinks.remove(&number) else { return };
        self.set_port(uplink.place, None);
        // Whoever waited for its interface may have it.
        for other in self.network.uplinks.values_mut() {
            if let State::Shut { retry_at, .. } = &mut other.state {
                *retry_at = now();
            }
        }
        match uplink.nic {
            // It waits for this.
            Some((_, nic)) => drop(self.touched.insert(nic)),
            None => {
                self.cores.give_load(uplink.place.home, 1);
                self.leave_switch(uplink.place);
            }
        }
    }

    fn uplink_of(&self, key: HostKey) -> Option<u32> {
        let named = |uplink: &Uplink| uplink.key() == key;
        self.network.uplinks.iter().find(|(_, uplink)| named(uplink)).map(|(number, _)| *number)
    }

    /// Before the sidecores end: every descriptor comes back, none is removed.
    pub(crate) fn give_up_uplinks(&mut self) {
        for number in self.network.uplinks.keys().copied().collect::<Vec<_>>() {
            self.ask_back(number);
        }
    }
}
